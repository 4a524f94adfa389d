//! Rows of decoders with latent attention.

use super::experts::MIXTRAL_EXPERTS;
use super::{ATTENTION_BIAS, LLAMA, NO_BIAS};
use crate::model::arch::rules::{Bias, BiasRule, GroupRule, MoeRule, Normalize, SharedRule};
use crate::model::arch::table::Architecture;
use crate::model::config::BiasPresence;
use crate::model::names::{Part, PartNames, named};
use crate::ops::moe::{GroupScore, Scoring};
use crate::ops::rope::Pairing;

/// The names of the experts that every token uses.
const SHARED_EXPERTS_NAMES: &[PartNames] = &[
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
];

/// DeepSeek V2; the other rows say how they differ.
pub(in crate::model::arch) const DEEPSEEK_V2: Architecture = Architecture {
    name: "DeepSeek V2",
    hf: &["DeepseekV2ForCausalLM"],
    model_types: &["deepseek_v2"],
    gguf: &[],
    examples: "DeepSeek V2, V2 Lite, V2.5; DeepSeek Coder V2",
    verified: &[],
    mla: true,
    biases: BiasRule {
        qkv: Bias::Configured("attention_bias", false),
        o: Bias::Configured("attention_bias", false),
        feed_forward: Bias::Configured("mlp_bias", false),
    },
    hf_pairing: Pairing::Interleaved,
    gguf_pairing: Pairing::Interleaved,
    moe: Some(MoeRule {
        // `norm_topk_prob` is not read by the class.
        normalize: Normalize::Never,
        is_scaled: true,
        groups: Some(GroupRule::Method("group_limited_greedy", GroupScore::Best)),
        shared: SharedRule::Plain,
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 2048.0),
        ("q_lora_rank", 1536.0),
        ("kv_lora_rank", 512.0),
        ("qk_nope_head_dim", 128.0),
        ("qk_rope_head_dim", 64.0),
        ("v_head_dim", 128.0),
        ("n_routed_experts", 64.0),
        ("moe_intermediate_size", 1407.0),
        ("n_shared_experts", 2.0),
    ],
    extra_stop_ids: &[],
    names: SHARED_EXPERTS_NAMES,
    ..LLAMA
};

/// DeepSeek V3.
pub(in crate::model::arch) const DEEPSEEK_V3: Architecture = Architecture {
    name: "DeepSeek V3",
    hf: &["DeepseekV3ForCausalLM"],
    model_types: &["deepseek_v3"],
    examples: "DeepSeek V3, V3.1, R1 where they are BF16; Kanana 2 30B A3B, GigaChat 3 10B A1.8B",
    interleave_switch: Some("rope_interleave"),
    biases: ATTENTION_BIAS,
    moe: Some(MoeRule {
        scoring: Scoring::Sigmoid,
        normalize: Normalize::Configured {
            hf: true,
            gguf: false,
        },
        is_scaled: true,
        groups: Some(GroupRule::Always(GroupScore::TwoBest)),
        correction: BiasPresence::Required,
        shared: SharedRule::Plain,
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 4096.0),
        ("q_lora_rank", 1536.0),
        ("kv_lora_rank", 512.0),
        ("qk_nope_head_dim", 128.0),
        ("qk_rope_head_dim", 64.0),
        ("v_head_dim", 128.0),
        ("n_routed_experts", 256.0),
        ("num_experts_per_tok", 8.0),
        ("moe_intermediate_size", 2048.0),
        ("n_shared_experts", 1.0),
        ("n_group", 8.0),
        ("topk_group", 4.0),
        ("first_k_dense_replace", 3.0),
        ("routed_scaling_factor", 2.5),
        ("num_nextn_predict_layers", 1.0),
    ],
    ..DEEPSEEK_V2
};

/// Both in GGUF files, which have one architecture for them: what they say of experts tells them apart.
pub(in crate::model::arch) const DEEPSEEK_GGUF: Architecture = Architecture {
    name: "DeepSeek V2, V3 (GGUF)",
    hf: &[],
    model_types: &[],
    gguf: &["deepseek2"],
    examples: "DeepSeek V2, V2 Lite, V2.5, V3, V3.1, R1; DeepSeek Coder V2",
    biases: NO_BIAS,
    moe: Some(MoeRule {
        normalize: Normalize::Configured {
            hf: false,
            gguf: false,
        },
        is_scaled: true,
        groups: Some(GroupRule::ByScoring),
        correction: BiasPresence::Optional,
        shared: SharedRule::Plain,
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[("rope_theta", 10_000.0)],
    ..DEEPSEEK_V2
};
