//! Rows of the architecture table, by kind, and what several of them begin with.

pub mod dense;
pub mod experts;
pub mod gemma4;
pub mod latent;
pub mod recurrent;

use crate::model::arch::rules::{
    AttentionScale, Bias, BiasRule, EmbeddingScale, FeedForwardWidth, LogitsScale, Recurrence,
    RopeLayers, WindowRule,
};
use crate::model::arch::table::Architecture;
use crate::model::config::{NormKind, NormPlacement, QkNorm};
use crate::model::names::{Part, PartNames, named};
use crate::ops::gated_act::Activation;
use crate::ops::rope::Pairing;
/// `attention_bias` is for q, k, v and o; there are no others.
pub(in crate::model::arch) const ATTENTION_BIAS: BiasRule = BiasRule {
    qkv: Bias::Configured("attention_bias", false),
    o: Bias::Configured("attention_bias", false),
    feed_forward: Bias::Never,
};

/// No biases at all.
pub(in crate::model::arch) const NO_BIAS: BiasRule = BiasRule {
    qkv: Bias::Never,
    o: Bias::Never,
    feed_forward: Bias::Never,
};

/// A decoder of the Llama kind; the other rows say how they differ.
pub(in crate::model::arch) const LLAMA: Architecture = Architecture {
    name: "Llama",
    hf: &["LlamaForCausalLM"],
    model_types: &["llama"],
    other_texts: &[],
    gguf: &["llama"],
    examples: "Llama 2, 3, 3.1, 3.2, 3.3; TinyLlama, SmolLM 2, and Mistral in GGUF",
    tiny_gguf: true,
    verified: &["SmolLM2-135M-Instruct (GGUF, Q4_1)"],
    activation: Activation::Silu,
    activation_keys: &["hidden_act", "hidden_activation"],
    zero_centred_norms: false,
    norm: NormKind::Rms,
    norms: NormPlacement::Before,
    mla: false,
    qk_norm: QkNorm::None,
    qk_norm_switch: None,
    value_norm: false,
    qkv_clip: false,
    biases: BiasRule {
        feed_forward: Bias::Configured("mlp_bias", false),
        ..ATTENTION_BIAS
    },
    embedding_scale: EmbeddingScale::One,
    attention_scale: AttentionScale::HeadDim,
    logits_scale: LogitsScale::One,
    residual_multiplier: false,
    query_scaling: false,
    moe: None,
    gguf_yarn_truncate: true,
    sinks: false,
    tied_by_default: false,
    hf_pairing: Pairing::HalfSplit,
    // Converters reorder rows.
    gguf_pairing: Pairing::Reordered,
    interleave_switch: None,
    window: WindowRule::None,
    recurrence: Recurrence::None,
    output_gate: false,
    feed_forward_width: FeedForwardWidth::Plain,
    local_rope: false,
    full_layers: None,
    shared_keys: false,
    per_layer_inputs: false,
    output_scale: false,
    rope_layers: RopeLayers::All,
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 2048.0),
    ],
    default_rope: None,
    // <|eom_id|> and <|eot_id|> of Llama 3.
    extra_stop_ids: &[128_008, 128_009],
    names: &[],
};

/// Decoders of the Qwen kind.
pub(in crate::model::arch) const QWEN_LIKE: Architecture = Architecture {
    gguf_pairing: Pairing::HalfSplit,
    window: WindowRule::Switched,
    extra_stop_ids: &[],
    verified: &[],
    ..LLAMA
};

/// Decoders of the Gemma kind.
pub(in crate::model::arch) const GEMMA_LIKE: Architecture = Architecture {
    activation: Activation::GeluTanh,
    // These classes ignore a `hidden_act` that older files carry.
    activation_keys: &["hidden_activation"],
    zero_centred_norms: true,
    norms: NormPlacement::Sandwich,
    biases: ATTENTION_BIAS,
    embedding_scale: EmbeddingScale::RootHidden,
    tied_by_default: true,
    gguf_pairing: Pairing::HalfSplit,
    extra_stop_ids: &[],
    verified: &[],
    names: SANDWICH_NAMES,
    ..LLAMA
};

/// Where norms stand on both sides, `post_attention_layernorm` is the one behind attention.
pub(in crate::model::arch) const SANDWICH_NAMES: &[PartNames] = &[named(
    Part::FfnNorm,
    "pre_feedforward_layernorm",
    "ffn_norm",
)];
