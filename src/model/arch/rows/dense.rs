//! Rows of decoders with attention and one feed-forward block in every layer.

use super::{ATTENTION_BIAS, GEMMA_LIKE, LLAMA, NO_BIAS, QWEN_LIKE};
use crate::model::arch::rules::{
    AttentionScale, Bias, BiasRule, EmbeddingScale, LogitsScale, RopeLayers, WindowRule,
};
use crate::model::arch::table::Architecture;
use crate::model::config::{NormKind, NormPlacement, QkNorm};
use crate::model::names::{Part, named};
use crate::ops::rope::Pairing;
/// Decoders of the Granite kind.
pub(in crate::model::arch) const GRANITE: Architecture = Architecture {
    name: "Granite",
    hf: &["GraniteForCausalLM"],
    model_types: &["granite"],
    gguf: &["granite"],
    examples: "Granite 3.0 to 3.3 2B, 8B",
    verified: &[],
    embedding_scale: EmbeddingScale::Multiplier,
    attention_scale: AttentionScale::Multiplier,
    logits_scale: LogitsScale::Divided,
    residual_multiplier: true,
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 2048.0),
        ("embedding_multiplier", 1.0),
        ("attention_multiplier", 1.0),
        ("residual_multiplier", 1.0),
        ("logits_scaling", 1.0),
    ],
    extra_stop_ids: &[],
    ..LLAMA
};

/// Mistral.
pub(in crate::model::arch) const MISTRAL: Architecture = Architecture {
    name: "Mistral",
    hf: &["MistralForCausalLM"],
    model_types: &["mistral"],
    // Converters write `llama`.
    gguf: &[],
    examples: "Mistral 7B, Mistral Nemo, Mistral Small 2409 and 2501, Codestral",
    verified: &[],
    biases: NO_BIAS,
    window: WindowRule::Always,
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 131_072.0),
        ("num_key_value_heads", 8.0),
        ("sliding_window", 4096.0),
    ],
    extra_stop_ids: &[],
    ..LLAMA
};

/// Mistral 3: images beside the text of Mistral or of Ministral 3.
pub(in crate::model::arch) const MISTRAL_3: Architecture = Architecture {
    name: "Mistral 3",
    hf: &["Mistral3ForConditionalGeneration"],
    model_types: &["mistral3"],
    other_texts: &["ministral3"],
    examples: "Mistral Small 3.1, 3.2 (their text part)",
    // Of the outer class, which has the head; a head of its own in the file is used in any case.
    tied_by_default: true,
    ..MISTRAL
};

/// Ministral 3.
pub(in crate::model::arch) const MINISTRAL_3: Architecture = Architecture {
    name: "Ministral 3",
    hf: &["Ministral3ForCausalLM"],
    model_types: &["ministral3"],
    gguf: &["mistral3"],
    examples: "Ministral 3 3B, 8B, 14B (their text part, as `Mistral3ForConditionalGeneration`)",
    verified: &[],
    biases: NO_BIAS,
    window: WindowRule::Always,
    query_scaling: true,
    // Of the outer class, which has the head; a head of its own in the file is used in any case.
    tied_by_default: true,
    defaults: &[
        // Ministral3Config says nothing of a base in parameters that leave it out; it is that of all configurations.
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-5),
        ("max_position_embeddings", 262_144.0),
        ("num_key_value_heads", 8.0),
        ("head_dim", 128.0),
    ],
    // Ministral3Config: the base among them wins over a `rope_theta` of the whole model, too.
    default_rope: Some(
        r#"{"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}"#,
    ),
    extra_stop_ids: &[],
    ..LLAMA
};

/// Qwen2.
pub(in crate::model::arch) const QWEN2: Architecture = Architecture {
    name: "Qwen2",
    hf: &["Qwen2ForCausalLM"],
    model_types: &["qwen2"],
    gguf: &["qwen2"],
    examples: "Qwen 2, Qwen 2.5, DeepSeek R1 Distill Qwen",
    biases: BiasRule {
        qkv: Bias::Always,
        ..NO_BIAS
    },
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 32_768.0),
        ("sliding_window", 4096.0),
        ("max_window_layers", 28.0),
    ],
    ..QWEN_LIKE
};

/// Qwen3.
pub(in crate::model::arch) const QWEN3: Architecture = Architecture {
    name: "Qwen3",
    hf: &["Qwen3ForCausalLM"],
    model_types: &["qwen3"],
    gguf: &["qwen3"],
    examples: "Qwen 3 0.6B to 32B, DeepSeek R1 0528 Qwen3 8B",
    qk_norm: QkNorm::PerHead,
    biases: ATTENTION_BIAS,
    defaults: &[
        ("head_dim", 128.0),
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 32_768.0),
        ("sliding_window", 4096.0),
        ("max_window_layers", 28.0),
    ],
    ..QWEN_LIKE
};

/// Gemma.
pub(in crate::model::arch) const GEMMA: Architecture = Architecture {
    name: "Gemma",
    hf: &["GemmaForCausalLM"],
    model_types: &["gemma"],
    gguf: &["gemma"],
    examples: "Gemma 2B, 7B; CodeGemma",
    activation_keys: &["hidden_act"],
    norms: NormPlacement::Before,
    names: &[],
    defaults: &[
        ("vocab_size", 256_000.0),
        ("hidden_size", 3072.0),
        ("intermediate_size", 24_576.0),
        ("num_hidden_layers", 28.0),
        ("num_attention_heads", 16.0),
        ("num_key_value_heads", 16.0),
        ("head_dim", 256.0),
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 8192.0),
    ],
    ..GEMMA_LIKE
};

/// Gemma 2.
pub(in crate::model::arch) const GEMMA_2: Architecture = Architecture {
    name: "Gemma 2",
    hf: &["Gemma2ForCausalLM"],
    model_types: &["gemma2"],
    gguf: &["gemma2"],
    examples: "Gemma 2 2B, 9B, 27B",
    window: WindowRule::EveryNthFull(2),
    attention_scale: AttentionScale::QueryScalar { other_at: 46 },
    defaults: &[
        ("vocab_size", 256_000.0),
        ("hidden_size", 2304.0),
        ("intermediate_size", 9216.0),
        ("num_hidden_layers", 26.0),
        ("num_attention_heads", 8.0),
        ("num_key_value_heads", 4.0),
        ("head_dim", 256.0),
        ("query_pre_attn_scalar", 256.0),
        ("sliding_window", 4096.0),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 8192.0),
    ],
    ..GEMMA_LIKE
};

/// Gemma 3.
pub(in crate::model::arch) const GEMMA_3: Architecture = Architecture {
    name: "Gemma 3",
    hf: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    model_types: &["gemma3", "gemma3_text"],
    gguf: &["gemma3"],
    examples: "Gemma 3 270M, 1B, 4B, 12B, 27B (their text part)",
    verified: &["Gemma 3 270M (GGUF, Q4_K_M)"],
    qk_norm: QkNorm::PerHead,
    window: WindowRule::EveryNthFull(6),
    local_rope: true,
    attention_scale: AttentionScale::QueryScalar { other_at: 62 },
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
    ..GEMMA_LIKE
};

/// Phi 3.
pub(in crate::model::arch) const PHI_3: Architecture = Architecture {
    name: "Phi 3",
    hf: &["Phi3ForCausalLM"],
    model_types: &["phi3"],
    gguf: &["phi3"],
    examples: "Phi 3 and 3.5 mini and medium, Phi 4, Phi 4 mini",
    verified: &[],
    biases: NO_BIAS,
    gguf_pairing: Pairing::HalfSplit,
    window: WindowRule::Always,
    defaults: &[
        ("partial_rotary_factor", 1.0),
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-5),
        ("max_position_embeddings", 4096.0),
        ("original_max_position_embeddings", 4096.0),
    ],
    extra_stop_ids: &[],
    names: &[named(Part::GateUp, "mlp.gate_up_proj", "ffn_up")],
    ..LLAMA
};

/// OLMo 2.
pub(in crate::model::arch) const OLMO_2: Architecture = Architecture {
    name: "OLMo 2",
    hf: &["Olmo2ForCausalLM"],
    model_types: &["olmo2"],
    gguf: &["olmo2"],
    examples: "OLMo 2 1B, 7B, 13B, 32B",
    verified: &[],
    norms: NormPlacement::After,
    qk_norm: QkNorm::Flat,
    biases: ATTENTION_BIAS,
    gguf_pairing: Pairing::HalfSplit,
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-5),
        ("max_position_embeddings", 2048.0),
    ],
    extra_stop_ids: &[],
    ..LLAMA
};

/// SmolLM 3.
pub(in crate::model::arch) const SMOLLM_3: Architecture = Architecture {
    name: "SmolLM 3",
    hf: &["SmolLM3ForCausalLM"],
    model_types: &["smollm3"],
    gguf: &["smollm3"],
    examples: "SmolLM 3 3B",
    verified: &[],
    tied_by_default: true,
    window: WindowRule::SwitchedWithoutRope,
    rope_layers: RopeLayers::Listed,
    defaults: &[
        ("rope_theta", 2_000_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 32_768.0),
        ("num_key_value_heads", 4.0),
        ("no_rope_layer_interval", 4.0),
    ],
    extra_stop_ids: &[],
    ..LLAMA
};

/// GLM-4.
pub(in crate::model::arch) const GLM_4: Architecture = Architecture {
    name: "GLM-4",
    hf: &["Glm4ForCausalLM"],
    model_types: &["glm4"],
    gguf: &["glm4"],
    examples: "GLM-4-9B-0414, GLM-4-32B-0414, GLM-Z1",
    verified: &[],
    norms: NormPlacement::Sandwich,
    biases: BiasRule {
        qkv: Bias::Configured("attention_bias", true),
        ..NO_BIAS
    },
    hf_pairing: Pairing::Interleaved,
    gguf_pairing: Pairing::Interleaved,
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1.5625e-7),
        ("max_position_embeddings", 131_072.0),
        ("num_key_value_heads", 2.0),
        ("head_dim", 128.0),
        ("partial_rotary_factor", 0.5),
    ],
    extra_stop_ids: &[151_329, 151_336, 151_338],
    names: &[
        named(
            Part::PostAttnNorm,
            "post_self_attn_layernorm",
            "post_attention_norm",
        ),
        named(Part::PostFfnNorm, "post_mlp_layernorm", "post_ffw_norm"),
        named(Part::GateUp, "mlp.gate_up_proj", "ffn_up"),
    ],
    ..LLAMA
};

/// Cohere 2.
pub(in crate::model::arch) const COHERE_2: Architecture = Architecture {
    name: "Cohere 2",
    tiny_gguf: false,
    hf: &["Cohere2ForCausalLM"],
    model_types: &["cohere2"],
    gguf: &["cohere2"],
    examples: "Command R7B, Command A",
    verified: &[],
    norm: NormKind::Layer { bias: false },
    norms: NormPlacement::Parallel,
    biases: ATTENTION_BIAS,
    logits_scale: LogitsScale::Times,
    tied_by_default: true,
    hf_pairing: Pairing::Interleaved,
    gguf_pairing: Pairing::Interleaved,
    window: WindowRule::EveryNthFull(4),
    rope_layers: RopeLayers::Sliding,
    defaults: &[
        ("rope_theta", 10_000.0),
        ("layer_norm_eps", 1e-5),
        ("max_position_embeddings", 8192.0),
        ("logit_scale", 0.0625),
        ("sliding_window", 4096.0),
    ],
    extra_stop_ids: &[],
    ..LLAMA
};
