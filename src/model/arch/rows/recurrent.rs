//! Rows of decoders with layers that remember a state instead of keys and values.

use super::experts::MIXTRAL_EXPERTS;
use super::{ATTENTION_BIAS, LLAMA, NO_BIAS, QWEN_LIKE};
use crate::model::arch::rules::{FeedForwardWidth, MoeRule, Recurrence, SharedRule, WindowRule};
use crate::model::arch::table::Architecture;
use crate::model::config::QkNorm;
use crate::model::names::{Part, PartNames, named};
use crate::ops::rope::Pairing;
/// The norm before the feed-forward part keeps its Hugging Face name in GGUF files of Qwen3.5.
const QWEN3_5_NAMES: &[PartNames] = &[named(
    Part::FfnNorm,
    "post_attention_layernorm",
    "post_attention_norm",
)];

const LFM2_NAMES: &[PartNames] = &[
    named(Part::FinalNorm, "model.embedding_norm", "token_embd_norm"),
    named(Part::AttnNorm, "operator_norm", "attn_norm"),
    named(Part::FfnNorm, "ffn_norm", "ffn_norm"),
    named(Part::O, "self_attn.out_proj", "attn_output"),
    named(Part::QNorm, "self_attn.q_layernorm", "attn_q_norm"),
    named(Part::KNorm, "self_attn.k_layernorm", "attn_k_norm"),
    named(Part::Gate, "feed_forward.w1", "ffn_gate"),
    named(Part::Up, "feed_forward.w3", "ffn_up"),
    named(Part::Down, "feed_forward.w2", "ffn_down"),
];

/// Qwen3.5.
pub(in crate::model::arch) const QWEN3_5: Architecture = Architecture {
    name: "Qwen3.5",
    hf: &["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"],
    model_types: &["qwen3_5", "qwen3_5_text"],
    gguf: &["qwen35"],
    examples: "Qwen 3.5 0.8B, 2B, 4B, 9B, 27B (their text part)",
    zero_centred_norms: true,
    qk_norm: QkNorm::PerHead,
    biases: ATTENTION_BIAS,
    window: WindowRule::None,
    recurrence: Recurrence::DeltaNet,
    output_gate: true,
    defaults: &[
        ("vocab_size", 248_320.0),
        ("hidden_size", 4096.0),
        ("intermediate_size", 12_288.0),
        ("num_hidden_layers", 32.0),
        ("num_attention_heads", 16.0),
        ("num_key_value_heads", 4.0),
        ("head_dim", 256.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 32_768.0),
        ("rope_theta", 10_000.0),
        ("partial_rotary_factor", 0.25),
        ("linear_conv_kernel_dim", 4.0),
        ("linear_key_head_dim", 128.0),
        ("linear_value_head_dim", 128.0),
        ("linear_num_key_heads", 16.0),
        ("linear_num_value_heads", 32.0),
        ("full_attention_interval", 4.0),
    ],
    names: QWEN3_5_NAMES,
    ..QWEN_LIKE
};

/// Qwen3.5 MoE.
pub(in crate::model::arch) const QWEN3_5_MOE: Architecture = Architecture {
    name: "Qwen3.5 MoE",
    tiny_gguf: false,
    hf: &[
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
    ],
    model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
    gguf: &["qwen35moe"],
    examples: "Qwen 3.5 35B A3B, 122B A10B (their text part)",
    moe: Some(MoeRule {
        shared: SharedRule::Gated,
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("vocab_size", 248_320.0),
        ("hidden_size", 2048.0),
        ("num_hidden_layers", 40.0),
        ("num_attention_heads", 16.0),
        ("num_key_value_heads", 2.0),
        ("head_dim", 256.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 32_768.0),
        ("rope_theta", 10_000.0),
        ("partial_rotary_factor", 0.25),
        ("linear_conv_kernel_dim", 4.0),
        ("linear_key_head_dim", 128.0),
        ("linear_value_head_dim", 128.0),
        ("linear_num_key_heads", 16.0),
        ("linear_num_value_heads", 32.0),
        ("full_attention_interval", 4.0),
        ("num_experts", 256.0),
        ("num_experts_per_tok", 8.0),
        ("moe_intermediate_size", 512.0),
        ("shared_expert_intermediate_size", 512.0),
    ],
    ..QWEN3_5
};

/// LFM2.
pub(in crate::model::arch) const LFM2: Architecture = Architecture {
    name: "LFM2",
    hf: &["Lfm2ForCausalLM"],
    model_types: &["lfm2"],
    gguf: &["lfm2"],
    examples: "LFM2 350M, 700M, 1.2B, 2.6B",
    verified: &[],
    biases: NO_BIAS,
    qk_norm: QkNorm::PerHead,
    tied_by_default: true,
    gguf_pairing: Pairing::HalfSplit,
    recurrence: Recurrence::ShortConv,
    feed_forward_width: FeedForwardWidth::TwoThirds,
    defaults: &[
        ("vocab_size", 65_536.0),
        ("hidden_size", 2560.0),
        ("intermediate_size", 12_288.0),
        ("num_hidden_layers", 32.0),
        ("num_attention_heads", 32.0),
        ("num_key_value_heads", 8.0),
        ("norm_eps", 1e-5),
        ("max_position_embeddings", 128_000.0),
        ("rope_theta", 1_000_000.0),
        ("conv_L_cache", 3.0),
        ("block_ffn_dim_multiplier", 1.0),
        ("block_multiple_of", 256.0),
    ],
    extra_stop_ids: &[],
    names: LFM2_NAMES,
    ..LLAMA
};
