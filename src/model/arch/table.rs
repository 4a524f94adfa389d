//! One row per architecture. To add one, see `docs/architecture.md`, "Adding an architecture".
//!
//! A row states what its reference implementation does; nothing else in the crate compares family names. Facts come from
//! the classes of the same names in the `transformers` package and, for GGUF, from llama.cpp's converter and loader.
//! The rows stand in `rows/`, what their fields can say in `rules.rs`.

use super::rows::{LLAMA, dense, experts, gemma4, latent, recurrent};
use super::rules::{
    AttentionScale, BiasRule, EmbeddingScale, FeedForwardWidth, FullLayers, LogitsScale, MoeRule,
    Recurrence, RopeLayers, WindowRule,
};
use crate::error::{Error, Result};
use crate::model::ModelKind;
use crate::model::config::{NormKind, NormPlacement, QkNorm};
use crate::model::encoder::class_names;
use crate::model::names::PartNames;
use crate::ops::gated_act::Activation;
use crate::ops::rope::Pairing;

/// One architecture.
#[derive(Debug, Clone, Copy)]
pub struct Architecture {
    /// Name for people.
    pub name: &'static str,
    /// Class names in `architectures` of `config.json`.
    pub hf: &'static [&'static str],
    /// Names in `model_type` of a `config.json` that has no `architectures`.
    pub model_types: &'static [&'static str],
    /// Model types of a text part (`text_config`) that are rows of their own: the class holds texts of several kinds.
    pub other_texts: &'static [&'static str],
    /// `general.architecture` of a GGUF file.
    pub gguf: &'static [&'static str],
    /// Models that people know it by.
    pub examples: &'static str,
    /// A tiny GGUF file is among the tests.
    pub tiny_gguf: bool,
    /// Real checkpoints that were run and compared with another engine, besides the tiny ones of the tests.
    pub verified: &'static [&'static str],
    /// Activation of the gate when the config names none.
    pub activation: Activation,
    /// Fields of `config.json` that name the activation, tried in order. Others are ignored, as the class does.
    pub activation_keys: &'static [&'static str],
    /// Norm weights are stored minus one in safetensors (a GGUF converter has added it).
    pub zero_centred_norms: bool,
    /// Formula of the norms.
    pub norm: NormKind,
    /// Where layers have norms.
    pub norms: NormPlacement,
    /// Attention is latent attention (DeepSeek V2).
    pub mla: bool,
    /// Norm of q and k.
    pub qk_norm: QkNorm,
    /// A switch of `config.json` without which there is no such norm; GGUF files have the tensors or not.
    pub qk_norm_switch: Option<&'static str>,
    /// Values are normed over each head, without weights.
    pub value_norm: bool,
    /// Queries, keys and values are clamped where the config says so (`clip_qkv`).
    pub qkv_clip: bool,
    /// Biases.
    pub biases: BiasRule,
    /// What embeddings are multiplied by.
    pub embedding_scale: EmbeddingScale,
    /// What attention scores are multiplied by.
    pub attention_scale: AttentionScale,
    /// What logits are multiplied by.
    pub logits_scale: LogitsScale,
    /// What parts add to the residual stream is multiplied by `residual_multiplier`.
    pub residual_multiplier: bool,
    /// Queries grow with their position where the config says so (`llama_4_scaling_beta`).
    pub query_scaling: bool,
    /// Experts, where the file has any.
    pub moe: Option<MoeRule>,
    /// The bounds of YaRN are rounded in models that come as GGUF files, which do not say it.
    pub gguf_yarn_truncate: bool,
    /// Attention has sinks.
    pub sinks: bool,
    /// Whether the head is the embedding when the config does not say.
    pub tied_by_default: bool,
    /// Which elements safetensors' q and k rows are ordered for.
    pub hf_pairing: Pairing,
    /// Which elements GGUF's q and k rows are ordered for.
    pub gguf_pairing: Pairing,
    /// A switch of `config.json`: true where neighbours make a pair, false where halves do.
    pub interleave_switch: Option<&'static str>,
    /// Windows.
    pub window: WindowRule,
    /// Layers without attention.
    pub recurrence: Recurrence,
    /// The query projection gives a gate beside each query head.
    pub output_gate: bool,
    /// Width of the feed-forward part.
    pub feed_forward_width: FeedForwardWidth,
    /// Layers with a window rotate by frequencies of their own, without scaling.
    pub local_rope: bool,
    /// Layers without a window have a head size, perhaps key/value heads, and a rotation of their own; the last is one of them.
    pub full_layers: Option<FullLayers>,
    /// The last layers can read the keys and values of layers before them.
    pub shared_keys: bool,
    /// Layers can have inputs besides the residual stream.
    pub per_layer_inputs: bool,
    /// What a layer gives is multiplied by a stored number.
    pub output_scale: bool,
    /// Which layers rotate.
    pub rope_layers: RopeLayers,
    /// Values of config fields (by Hugging Face key) that the class assumes when a file leaves them out.
    pub defaults: &'static [(&'static str, f64)],
    /// The rotary parameters that the class assumes for a `config.json` that has none, as JSON.
    pub default_rope: Option<&'static str>,
    /// Token ids that end an answer besides those that the files name, where the tokenizer has them as special tokens.
    pub extra_stop_ids: &'static [u32],
    /// What its files call parts, where it is not what most files call them.
    pub names: &'static [PartNames],
}

/// Every architecture that this build runs.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        // Mixtral in GGUF files.
        moe: Some(experts::MIXTRAL_EXPERTS),
        ..LLAMA
    },
    dense::MISTRAL,
    dense::MISTRAL_3,
    dense::MINISTRAL_3,
    dense::QWEN2,
    dense::QWEN3,
    dense::GEMMA,
    dense::GEMMA_2,
    recurrent::QWEN3_5,
    recurrent::QWEN3_5_MOE,
    recurrent::LFM2,
    dense::GEMMA_3,
    dense::PHI_3,
    dense::GRANITE,
    dense::OLMO_2,
    dense::SMOLLM_3,
    dense::GLM_4,
    dense::COHERE_2,
    gemma4::GEMMA_4,
    experts::MIXTRAL,
    experts::QWEN2_MOE,
    experts::QWEN3_MOE,
    experts::OLMOE,
    experts::GPT_OSS,
    experts::GLM_4_MOE,
    experts::GRANITE_MOE,
    latent::DEEPSEEK_V2,
    latent::DEEPSEEK_V3,
    latent::DEEPSEEK_GGUF,
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

/// Whether this build runs what a model's list calls its architecture: a class name, or a GGUF architecture followed by ` (GGUF)`.
pub fn is_supported(name: &str) -> bool {
    let mut rows = ARCHITECTURES.iter();
    match name.strip_suffix(" (GGUF)") {
        Some(gguf) => rows.any(|row| row.gguf.contains(&gguf)),
        None => rows.any(|row| row.hf.contains(&name)),
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
            ARCHITECTURES
                .iter()
                .flat_map(|a| a.hf.iter().copied())
                .chain(class_names(ModelKind::Embedding))
                .chain(class_names(ModelKind::Reranker)),
        )
    })
}

/// The row of the `model_type` of a `config.json` that names no class.
///
/// # Errors
/// `Unsupported`, with the list of what is supported.
pub fn find_model_type(name: &str) -> Result<&'static Architecture> {
    let found = ARCHITECTURES.iter().find(|a| a.model_types.contains(&name));
    found.ok_or_else(|| {
        unsupported(
            name,
            ARCHITECTURES
                .iter()
                .flat_map(|a| a.model_types.iter().copied()),
        )
    })
}

/// The row of what `outer` holds, whose text part is of the model type `text`.
///
/// # Errors
/// As [`find_model_type`].
pub fn find_text(
    outer: &'static Architecture,
    text: Option<&str>,
) -> Result<&'static Architecture> {
    match text.filter(|text| outer.other_texts.contains(text)) {
        Some(text) => find_model_type(text),
        None => Ok(outer),
    }
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
            ARCHITECTURES
                .iter()
                .flat_map(|a| a.model_types)
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
    fn other_texts_are_rows_and_default_rotary_parameters_are_objects() {
        for row in ARCHITECTURES {
            for text in row.other_texts {
                assert_ne!(find_model_type(text).unwrap().name, row.name);
            }
            if let Some(json) = row.default_rope {
                let json: serde_json::Value = serde_json::from_str(json).unwrap();
                assert!(json.is_object(), "{}", row.name);
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
