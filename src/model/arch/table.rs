//! One row per architecture. To add one, see `docs/architecture.md`, "Adding an architecture".
//!
//! A row states what its reference implementation does; nothing else in the crate compares family names. Facts come from
//! the classes of the same names in the `transformers` package and, for GGUF, from llama.cpp's converter and loader.

use crate::error::{Error, Result};
use crate::model::config::{NormKind, NormPlacement, QkNorm};
use crate::model::names::{Part, PartNames, named};
use crate::ops::gated_act::Activation;
use crate::ops::rope::Pairing;

/// Where a layer's sliding window comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowRule {
    /// Every layer sees everything; a `sliding_window` in the config is not this family's.
    None,
    /// `use_sliding_window` switches it on, for layers from `max_window_layers` on (Qwen2, Qwen3).
    Switched,
    /// Every n-th layer sees everything, the others slide; n from `sliding_window_pattern` or this default (Gemma 3).
    EveryNthFull(usize),
}

/// Which biases a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BiasRule {
    /// As `attention_bias` (q, k, v and o) and `mlp_bias` say; in GGUF, where the tensors are.
    Configured,
    /// On q, k and v, always (Qwen2).
    Qkv,
}

/// One architecture.
#[derive(Debug, Clone, Copy)]
pub struct Architecture {
    /// Name for people.
    pub name: &'static str,
    /// Class names in `architectures` of `config.json`.
    pub hf: &'static [&'static str],
    /// `general.architecture` of a GGUF file.
    pub gguf: &'static [&'static str],
    /// Activation of the gate when the config names none.
    pub activation: Activation,
    /// Norm weights are stored minus one in safetensors (a GGUF converter has added it).
    pub zero_centred_norms: bool,
    /// Formula of the norms.
    pub norm: NormKind,
    /// Where layers have norms.
    pub norms: NormPlacement,
    /// Norm of q and k.
    pub qk_norm: QkNorm,
    /// Biases.
    pub biases: BiasRule,
    /// Embeddings are multiplied by √hidden.
    pub scaled_embeddings: bool,
    /// Whether the head is the embedding when the config does not say.
    pub tied_by_default: bool,
    /// Which elements GGUF's q and k rows are ordered for; safetensors are half-split in this table.
    pub gguf_pairing: Pairing,
    /// Windows.
    pub window: WindowRule,
    /// Layers with a window rotate by frequencies of their own.
    pub local_rope: bool,
    /// Attention scale is `query_pre_attn_scalar^-0.5` where the config has it, instead of `head_dim^-0.5`.
    pub query_pre_attn_scalar: bool,
    /// Values of config fields (by Hugging Face key) that the class assumes when a file leaves them out.
    pub defaults: &'static [(&'static str, f64)],
    /// Token ids that end an answer besides those that the files name.
    pub extra_stop_ids: &'static [u32],
    /// What its files call parts, where it is not what most files call them.
    pub names: &'static [PartNames],
}

/// Where norms stand on both sides, `post_attention_layernorm` is the one behind attention.
const SANDWICH_NAMES: &[PartNames] = &[named(
    Part::FfnNorm,
    "pre_feedforward_layernorm",
    "ffn_norm",
)];

/// A decoder of the Llama kind; the other rows say how they differ.
const LLAMA: Architecture = Architecture {
    name: "Llama",
    hf: &["LlamaForCausalLM"],
    gguf: &["llama"],
    activation: Activation::Silu,
    zero_centred_norms: false,
    norm: NormKind::Rms,
    norms: NormPlacement::Before,
    qk_norm: QkNorm::None,
    biases: BiasRule::Configured,
    scaled_embeddings: false,
    tied_by_default: false,
    gguf_pairing: Pairing::Interleaved,
    window: WindowRule::None,
    local_rope: false,
    query_pre_attn_scalar: false,
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 2048.0),
    ],
    extra_stop_ids: &[],
    names: &[],
};

/// Every architecture that this build runs.
pub const ARCHITECTURES: &[Architecture] = &[
    LLAMA,
    Architecture {
        name: "Qwen2",
        hf: &["Qwen2ForCausalLM"],
        gguf: &["qwen2"],
        biases: BiasRule::Qkv,
        gguf_pairing: Pairing::HalfSplit,
        window: WindowRule::Switched,
        defaults: &[
            ("rope_theta", 10_000.0),
            ("rms_norm_eps", 1e-6),
            ("max_position_embeddings", 32_768.0),
            ("sliding_window", 4096.0),
            ("max_window_layers", 28.0),
        ],
        ..LLAMA
    },
    Architecture {
        name: "Qwen3",
        hf: &["Qwen3ForCausalLM"],
        gguf: &["qwen3"],
        qk_norm: QkNorm::PerHead,
        gguf_pairing: Pairing::HalfSplit,
        window: WindowRule::Switched,
        defaults: &[
            ("head_dim", 128.0),
            ("rope_theta", 10_000.0),
            ("rms_norm_eps", 1e-6),
            ("max_position_embeddings", 32_768.0),
            ("sliding_window", 4096.0),
            ("max_window_layers", 28.0),
        ],
        ..LLAMA
    },
    Architecture {
        name: "Gemma 3",
        hf: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        gguf: &["gemma3"],
        activation: Activation::GeluTanh,
        zero_centred_norms: true,
        norms: NormPlacement::Sandwich,
        qk_norm: QkNorm::PerHead,
        scaled_embeddings: true,
        tied_by_default: true,
        gguf_pairing: Pairing::HalfSplit,
        window: WindowRule::EveryNthFull(6),
        local_rope: true,
        query_pre_attn_scalar: true,
        defaults: &[
            ("vocab_size", 262_208.0),
            ("hidden_size", 2304.0),
            ("intermediate_size", 9216.0),
            ("num_hidden_layers", 26.0),
            ("num_attention_heads", 8.0),
            ("num_key_value_heads", 4.0),
            ("head_dim", 256.0),
            ("query_pre_attn_scalar", 256.0),
            ("sliding_window", 4096.0),
            ("rope_theta", 1_000_000.0),
            ("rope_local_base_freq", 10_000.0),
            ("rms_norm_eps", 1e-6),
            ("max_position_embeddings", 131_072.0),
        ],
        extra_stop_ids: &[1, 106],
        names: SANDWICH_NAMES,
        ..LLAMA
    },
];

impl Architecture {
    /// What a class assumes for a field that a file leaves out.
    pub fn default_of(&self, hf_key: &str) -> Option<f64> {
        self.defaults
            .iter()
            .find(|(key, _)| *key == hf_key)
            .map(|(_, value)| *value)
    }
}

/// The row of one of the class names of a `config.json`.
///
/// # Errors
/// `Unsupported`, with the list of what is supported.
pub fn find_hf<'a>(classes: impl IntoIterator<Item = &'a str>) -> Result<&'static Architecture> {
    let classes: Vec<&str> = classes.into_iter().collect();
    let known = |class: &&str| ARCHITECTURES.iter().find(|a| a.hf.contains(class));
    classes.iter().find_map(known).ok_or_else(|| {
        unsupported(
            &classes.join("`, `"),
            ARCHITECTURES.iter().flat_map(|a| a.hf.iter().copied()),
        )
    })
}

/// The row of a GGUF file's `general.architecture`.
///
/// # Errors
/// `Unsupported`, with the list of what is supported.
pub fn find_gguf(name: &str) -> Result<&'static Architecture> {
    ARCHITECTURES
        .iter()
        .find(|a| a.gguf.contains(&name))
        .ok_or_else(|| {
            unsupported(
                name,
                ARCHITECTURES.iter().flat_map(|a| a.gguf.iter().copied()),
            )
        })
}

fn unsupported<'a>(found: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let known: Vec<String> = known.map(|name| format!("`{name}`")).collect();
    Error::unsupported(format!("architecture `{found}` is not supported"))
        .with_hint(format!("supported are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_stands_in_two_rows() {
        for names in [
            ARCHITECTURES.iter().flat_map(|a| a.hf).collect::<Vec<_>>(),
            ARCHITECTURES
                .iter()
                .flat_map(|a| a.gguf)
                .collect::<Vec<_>>(),
        ] {
            let distinct: std::collections::HashSet<_> = names.iter().collect();
            assert_eq!(distinct.len(), names.len());
        }
    }

    #[test]
    fn every_default_belongs_to_a_field_of_the_key_table() {
        for row in ARCHITECTURES {
            for (key, _) in row.defaults {
                let known = super::super::keys::KEYS.iter().any(|k| k.hf.contains(key));
                assert!(known, "{}: `{key}`", row.name);
            }
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_list() {
        let error = find_hf(["MambaForCausalLM"]).unwrap_err();
        assert_eq!(
            error.chain(),
            "architecture `MambaForCausalLM` is not supported"
        );
        assert!(error.hint().unwrap().contains("`Qwen3ForCausalLM`"));
        assert!(
            find_gguf("mamba")
                .unwrap_err()
                .hint()
                .unwrap()
                .contains("`gemma3`")
        );
    }
}
