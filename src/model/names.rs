//! Canonical weights and what files call them.

use crate::formats::Weights;

/// A weight of the whole model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelWeight {
    Embedding,
    FinalNorm,
    Head,
}

/// A weight of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LayerWeight {
    AttnNorm,
    Q,
    K,
    V,
    O,
    QNorm,
    KNorm,
    /// Behind attention, before the residual is added (sandwich norms).
    PostAttnNorm,
    /// Before the feed-forward block.
    FfnNorm,
    /// Behind the feed-forward block (sandwich norms).
    PostFfnNorm,
    Gate,
    Up,
    Down,
}

/// Names of one container kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Names {
    /// Hugging Face, `sandwich` for families with norms behind the blocks, where `post_attention_layernorm` is one.
    Hf {
        sandwich: bool,
    },
    Gguf,
}

/// Prefixes under which safetensors files keep the language model; all stand for `model.` (the head for nothing).
const HF_PREFIXES: [&str; 4] = [
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
];

/// Tensors that are not the language model's, or that it computes itself: skipped without reading their bytes.
const HF_SKIPPED: [&str; 9] = [
    "vision_tower.",
    "model.vision_tower.",
    "model.visual.",
    "visual.",
    "vision_model.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "audio_tower.",
    "mtp.",
];

impl Names {
    pub fn of(weights: &Weights, sandwich: bool) -> Self {
        match weights {
            Weights::Gguf(_) => Self::Gguf,
            Weights::Safetensors(_) => Self::Hf { sandwich },
        }
    }

    pub fn model(self, weight: ModelWeight) -> &'static str {
        match (self, weight) {
            (Self::Hf { .. }, ModelWeight::Embedding) => "model.embed_tokens",
            (Self::Hf { .. }, ModelWeight::FinalNorm) => "model.norm",
            (Self::Hf { .. }, ModelWeight::Head) => "lm_head",
            (Self::Gguf, ModelWeight::Embedding) => "token_embd",
            (Self::Gguf, ModelWeight::FinalNorm) => "output_norm",
            (Self::Gguf, ModelWeight::Head) => "output",
        }
    }

    /// Without `.weight` or `.bias`.
    pub fn layer(self, layer: usize, weight: LayerWeight) -> String {
        match self {
            Self::Hf { sandwich } => format!("model.layers.{layer}.{}", hf_layer(weight, sandwich)),
            Self::Gguf => format!("blk.{layer}.{}", gguf_layer(weight)),
        }
    }

    /// The canonical name of a tensor of the file, or `None` for one that is not the language model's.
    pub fn canonical(self, name: &str) -> Option<String> {
        if self == Self::Gguf {
            return Some(name.to_owned());
        }
        if HF_SKIPPED.iter().any(|prefix| name.starts_with(prefix))
            || name.ends_with(".rotary_emb.inv_freq")
        {
            return None;
        }
        let rest = HF_PREFIXES
            .iter()
            .find_map(|prefix| name.strip_prefix(prefix))
            .unwrap_or(name);
        Some(if rest.starts_with("lm_head.") {
            rest.to_owned()
        } else {
            format!("model.{rest}")
        })
    }
}

fn hf_layer(weight: LayerWeight, sandwich: bool) -> &'static str {
    match weight {
        LayerWeight::AttnNorm => "input_layernorm",
        LayerWeight::Q => "self_attn.q_proj",
        LayerWeight::K => "self_attn.k_proj",
        LayerWeight::V => "self_attn.v_proj",
        LayerWeight::O => "self_attn.o_proj",
        LayerWeight::QNorm => "self_attn.q_norm",
        LayerWeight::KNorm => "self_attn.k_norm",
        LayerWeight::PostAttnNorm => "post_attention_layernorm",
        LayerWeight::FfnNorm if sandwich => "pre_feedforward_layernorm",
        LayerWeight::FfnNorm => "post_attention_layernorm",
        LayerWeight::PostFfnNorm => "post_feedforward_layernorm",
        LayerWeight::Gate => "mlp.gate_proj",
        LayerWeight::Up => "mlp.up_proj",
        LayerWeight::Down => "mlp.down_proj",
    }
}

fn gguf_layer(weight: LayerWeight) -> &'static str {
    match weight {
        LayerWeight::AttnNorm => "attn_norm",
        LayerWeight::Q => "attn_q",
        LayerWeight::K => "attn_k",
        LayerWeight::V => "attn_v",
        LayerWeight::O => "attn_output",
        LayerWeight::QNorm => "attn_q_norm",
        LayerWeight::KNorm => "attn_k_norm",
        LayerWeight::PostAttnNorm => "post_attention_norm",
        LayerWeight::FfnNorm => "ffn_norm",
        LayerWeight::PostFfnNorm => "post_ffw_norm",
        LayerWeight::Gate => "ffn_gate",
        LayerWeight::Up => "ffn_up",
        LayerWeight::Down => "ffn_down",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_of_the_language_model_means_the_same_and_towers_are_skipped() {
        let names = Names::Hf { sandwich: true };
        let canonical = |name: &str| names.canonical(name);
        for prefix in HF_PREFIXES {
            let name = format!("{prefix}layers.3.mlp.up_proj.weight");
            assert_eq!(
                canonical(&name).as_deref(),
                Some("model.layers.3.mlp.up_proj.weight")
            );
        }
        assert_eq!(
            canonical("language_model.lm_head.weight").as_deref(),
            Some("lm_head.weight")
        );
        assert_eq!(
            canonical("lm_head.weight").as_deref(),
            Some("lm_head.weight")
        );
        assert_eq!(
            canonical("vision_tower.vision_model.post_layernorm.bias"),
            None
        );
        assert_eq!(
            canonical("model.layers.0.self_attn.rotary_emb.inv_freq"),
            None
        );
    }
}
