//! Rows of decoders with experts.

use super::dense::GRANITE;
use super::{ATTENTION_BIAS, LLAMA, NO_BIAS, QWEN_LIKE};
use crate::model::arch::rules::{
    Beside, Bias, BiasRule, ExpertKind, GroupRule, MoeRule, Normalize, SharedRule, WindowRule,
};
use crate::model::arch::table::Architecture;
use crate::model::config::{BiasPresence, QkNorm};
use crate::model::names::{Part, PartNames, named};
use crate::ops::moe::{GroupScore, Scoring};
use crate::ops::rope::Pairing;
/// Softmax over all experts; the weights of the chosen ones sum to 1.
pub(in crate::model::arch) const MIXTRAL_EXPERTS: MoeRule = MoeRule {
    scoring: Scoring::Softmax,
    normalize: Normalize::Always,
    is_scaled: false,
    groups: None,
    correction: BiasPresence::Absent,
    has_biases: false,
    shared: SharedRule::None,
    experts: ExpertKind::Usual,
    switch: None,
    beside: Beside::Nothing,
};

/// The names of Mixtral.
const MIXTRAL_NAMES: &[PartNames] = &[
    named(Part::Router, "block_sparse_moe.gate", "ffn_gate_inp"),
    named(
        Part::ExpertGate,
        "block_sparse_moe.experts.{}.w1",
        "ffn_gate.{}",
    ),
    named(
        Part::ExpertUp,
        "block_sparse_moe.experts.{}.w3",
        "ffn_up.{}",
    ),
    named(
        Part::ExpertDown,
        "block_sparse_moe.experts.{}.w2",
        "ffn_down.{}",
    ),
];

/// The names of Granite's experts.
const GRANITE_MOE_NAMES: &[PartNames] = &[
    named(
        Part::Router,
        "block_sparse_moe.router.layer",
        "ffn_gate_inp",
    ),
    named(
        Part::ExpertsGateUp,
        "block_sparse_moe.input_linear",
        "ffn_gate_up_exps",
    ),
    named(
        Part::ExpertsDown,
        "block_sparse_moe.output_linear",
        "ffn_down_exps",
    ),
    named(
        Part::SharedGateUp,
        "shared_mlp.input_linear",
        "ffn_gate_up_shexp",
    ),
    named(
        Part::SharedDown,
        "shared_mlp.output_linear",
        "ffn_down_shexp",
    ),
];

/// Mixtral.
pub(in crate::model::arch) const MIXTRAL: Architecture = Architecture {
    name: "Mixtral",
    hf: &["MixtralForCausalLM"],
    model_types: &["mixtral"],
    // Converters write `llama`.
    gguf: &[],
    examples: "Mixtral 8x7B, 8x22B",
    verified: &[],
    biases: NO_BIAS,
    window: WindowRule::Always,
    moe: Some(MIXTRAL_EXPERTS),
    defaults: &[
        ("rope_theta", 1_000_000.0),
        ("rms_norm_eps", 1e-5),
        ("max_position_embeddings", 131_072.0),
        ("num_key_value_heads", 8.0),
        ("num_local_experts", 8.0),
        ("num_experts_per_tok", 2.0),
    ],
    extra_stop_ids: &[],
    names: MIXTRAL_NAMES,
    ..LLAMA
};

/// Qwen2 MoE.
pub(in crate::model::arch) const QWEN2_MOE: Architecture = Architecture {
    name: "Qwen2 MoE",
    hf: &["Qwen2MoeForCausalLM"],
    model_types: &["qwen2_moe"],
    gguf: &["qwen2moe"],
    examples: "Qwen 1.5 MoE A2.7B, Qwen 2 57B A14B",
    biases: BiasRule {
        qkv: Bias::Configured("qkv_bias", true),
        ..NO_BIAS
    },
    window: WindowRule::SwitchedAlternating,
    moe: Some(MoeRule {
        normalize: Normalize::Configured {
            hf: false,
            gguf: false,
        },
        shared: SharedRule::Gated,
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 32_768.0),
        ("num_key_value_heads", 16.0),
        ("sliding_window", 4096.0),
        ("max_window_layers", 28.0),
        ("num_experts", 60.0),
        ("num_experts_per_tok", 4.0),
    ],
    ..QWEN_LIKE
};

/// Qwen3 MoE.
pub(in crate::model::arch) const QWEN3_MOE: Architecture = Architecture {
    name: "Qwen3 MoE",
    hf: &["Qwen3MoeForCausalLM"],
    model_types: &["qwen3_moe"],
    gguf: &["qwen3moe"],
    examples: "Qwen 3 30B A3B, 235B A22B; Qwen 3 Coder 30B A3B",
    qk_norm: QkNorm::PerHead,
    biases: ATTENTION_BIAS,
    window: WindowRule::SwitchedAll,
    moe: Some(MoeRule {
        normalize: Normalize::Configured {
            hf: false,
            gguf: true,
        },
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 32_768.0),
        ("num_key_value_heads", 4.0),
        ("sliding_window", 4096.0),
        ("num_experts", 128.0),
        ("num_experts_per_tok", 8.0),
        ("moe_intermediate_size", 768.0),
    ],
    ..QWEN_LIKE
};

/// OLMoE.
pub(in crate::model::arch) const OLMOE: Architecture = Architecture {
    name: "OLMoE",
    hf: &["OlmoeForCausalLM"],
    model_types: &["olmoe"],
    gguf: &["olmoe"],
    examples: "OLMoE 1B 7B",
    verified: &[],
    qk_norm: QkNorm::Flat,
    qkv_clip: true,
    biases: ATTENTION_BIAS,
    gguf_pairing: Pairing::HalfSplit,
    moe: Some(MoeRule {
        normalize: Normalize::Configured {
            hf: false,
            gguf: false,
        },
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-5),
        ("max_position_embeddings", 4096.0),
        ("num_experts", 64.0),
        ("num_experts_per_tok", 8.0),
    ],
    extra_stop_ids: &[],
    ..LLAMA
};

/// GPT-OSS.
pub(in crate::model::arch) const GPT_OSS: Architecture = Architecture {
    name: "GPT-OSS",
    hf: &["GptOssForCausalLM"],
    model_types: &["gpt_oss"],
    gguf: &["gpt-oss"],
    examples: "gpt-oss 20B, 120B",
    verified: &[],
    biases: BiasRule {
        qkv: Bias::Configured("attention_bias", true),
        o: Bias::Configured("attention_bias", true),
        feed_forward: Bias::Never,
    },
    gguf_pairing: Pairing::HalfSplit,
    window: WindowRule::EveryNthFull(2),
    sinks: true,
    gguf_yarn_truncate: false,
    moe: Some(MoeRule {
        scoring: Scoring::SoftmaxOfChosen,
        normalize: Normalize::Configured {
            hf: false,
            gguf: false,
        },
        has_biases: true,
        experts: ExpertKind::GptOss,
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("rope_theta", 150_000.0),
        ("rms_norm_eps", 1e-5),
        ("max_position_embeddings", 131_072.0),
        ("num_key_value_heads", 8.0),
        ("head_dim", 64.0),
        ("sliding_window", 128.0),
        ("num_local_experts", 128.0),
        ("num_experts_per_tok", 4.0),
        ("swiglu_limit", 7.0),
        ("swiglu_alpha", 1.702),
    ],
    // GptOssConfig.
    default_rope: Some(
        r#"{"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
            "original_max_position_embeddings": 4096}"#,
    ),
    extra_stop_ids: &[],
    names: &[
        named(
            Part::FfnNorm,
            "post_attention_layernorm",
            "post_attention_norm",
        ),
        named(Part::Router, "mlp.router", "ffn_gate_inp"),
    ],
    ..LLAMA
};

/// GLM-4 MoE.
pub(in crate::model::arch) const GLM_4_MOE: Architecture = Architecture {
    name: "GLM-4 MoE",
    hf: &["Glm4MoeForCausalLM"],
    model_types: &["glm4_moe"],
    gguf: &["glm4moe"],
    examples: "GLM-4.5, GLM-4.5 Air, GLM-4.6",
    verified: &[],
    qk_norm: QkNorm::PerHead,
    qk_norm_switch: Some("use_qk_norm"),
    biases: BiasRule {
        qkv: Bias::Configured("attention_bias", false),
        ..NO_BIAS
    },
    gguf_pairing: Pairing::HalfSplit,
    moe: Some(MoeRule {
        scoring: Scoring::Sigmoid,
        normalize: Normalize::Configured {
            hf: true,
            gguf: true,
        },
        is_scaled: true,
        groups: Some(GroupRule::Always(GroupScore::TwoBest)),
        correction: BiasPresence::Required,
        shared: SharedRule::Plain,
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-5),
        ("max_position_embeddings", 131_072.0),
        ("num_key_value_heads", 8.0),
        ("partial_rotary_factor", 0.5),
        ("n_routed_experts", 128.0),
        ("num_experts_per_tok", 8.0),
        ("n_shared_experts", 1.0),
        ("first_k_dense_replace", 1.0),
    ],
    extra_stop_ids: &[151_329, 151_336, 151_338],
    names: &[
        named(
            Part::FfnNorm,
            "post_attention_layernorm",
            "post_attention_norm",
        ),
        named(
            Part::SharedGate,
            "mlp.shared_experts.gate_proj",
            "ffn_gate_shexp",
        ),
        named(Part::SharedUp, "mlp.shared_experts.up_proj", "ffn_up_shexp"),
        named(
            Part::SharedDown,
            "mlp.shared_experts.down_proj",
            "ffn_down_shexp",
        ),
    ],
    ..LLAMA
};

/// Granite MoE.
pub(in crate::model::arch) const GRANITE_MOE: Architecture = Architecture {
    name: "Granite MoE",
    hf: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    model_types: &["granitemoe", "granitemoeshared"],
    gguf: &["granitemoe"],
    examples: "Granite 3.0 and 3.1 1B A400M, 3B A800M",
    moe: Some(MoeRule {
        scoring: Scoring::SoftmaxOfChosen,
        shared: SharedRule::Plain,
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 2048.0),
        ("embedding_multiplier", 1.0),
        ("attention_multiplier", 1.0),
        ("residual_multiplier", 1.0),
        ("logits_scaling", 1.0),
        ("num_local_experts", 8.0),
        ("num_experts_per_tok", 2.0),
    ],
    names: GRANITE_MOE_NAMES,
    ..GRANITE
};
