//! One row per architecture. To add one, see `docs/architecture.md`, "Adding an architecture".
//!
//! A row states what its reference implementation does; nothing else in the crate compares family names. Facts come from
//! the classes of the same names in the `transformers` package and, for GGUF, from llama.cpp's converter and loader.
//! What the fields of a row can say stands in `rules.rs`.

use super::rules::{
    AttentionScale, Bias, BiasRule, EmbeddingScale, ExpertKind, FeedForwardWidth, GroupRule,
    LogitsScale, MoeRule, Normalize, Recurrence, RopeLayers, SharedRule, WindowRule,
};
use crate::error::{Error, Result};
use crate::model::config::{NormKind, NormPlacement, QkNorm};
use crate::model::names::{Part, PartNames, named};
use crate::ops::gated_act::Activation;
use crate::ops::moe::{GroupScore, Scoring};
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
    /// Norm of q and k.
    pub qk_norm: QkNorm,
    /// A switch of `config.json` without which there is no such norm; GGUF files have the tensors or not.
    pub qk_norm_switch: Option<&'static str>,
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
    /// Which layers rotate.
    pub rope_layers: RopeLayers,
    /// Values of config fields (by Hugging Face key) that the class assumes when a file leaves them out.
    pub defaults: &'static [(&'static str, f64)],
    /// Token ids that end an answer besides those that the files name, where the tokenizer has them as special tokens.
    pub extra_stop_ids: &'static [u32],
    /// What its files call parts, where it is not what most files call them.
    pub names: &'static [PartNames],
}

/// `attention_bias` is for q, k, v and o; there are no others.
const ATTENTION_BIAS: BiasRule = BiasRule {
    qkv: Bias::Configured("attention_bias", false),
    o: Bias::Configured("attention_bias", false),
    feed_forward: Bias::Never,
};

/// No biases at all.
const NO_BIAS: BiasRule = BiasRule {
    qkv: Bias::Never,
    o: Bias::Never,
    feed_forward: Bias::Never,
};

/// Softmax over all experts; the weights of the chosen ones sum to 1.
const MIXTRAL_EXPERTS: MoeRule = MoeRule {
    scoring: Scoring::Softmax,
    normalize: Normalize::Always,
    is_scaled: false,
    groups: None,
    has_correction: false,
    has_biases: false,
    shared: SharedRule::None,
    experts: ExpertKind::Usual,
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

/// Where norms stand on both sides, `post_attention_layernorm` is the one behind attention.
const SANDWICH_NAMES: &[PartNames] = &[named(
    Part::FfnNorm,
    "pre_feedforward_layernorm",
    "ffn_norm",
)];

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

/// A decoder of the Llama kind; the other rows say how they differ.
const LLAMA: Architecture = Architecture {
    name: "Llama",
    hf: &["LlamaForCausalLM"],
    model_types: &["llama"],
    gguf: &["llama"],
    examples: "Llama 2, 3, 3.1, 3.2, 3.3; TinyLlama, SmolLM 2, and Mistral in GGUF",
    tiny_gguf: true,
    verified: &["SmolLM2-135M-Instruct (GGUF, Q4_1)"],
    activation: Activation::Silu,
    activation_keys: &["hidden_act", "hidden_activation"],
    zero_centred_norms: false,
    norm: NormKind::Rms,
    norms: NormPlacement::Before,
    qk_norm: QkNorm::None,
    qk_norm_switch: None,
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
    window: WindowRule::None,
    recurrence: Recurrence::None,
    output_gate: false,
    feed_forward_width: FeedForwardWidth::Plain,
    local_rope: false,
    rope_layers: RopeLayers::All,
    defaults: &[
        ("rope_theta", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 2048.0),
    ],
    // <|eom_id|> and <|eot_id|> of Llama 3.
    extra_stop_ids: &[128_008, 128_009],
    names: &[],
};

/// Decoders of the Qwen kind.
const QWEN: Architecture = Architecture {
    gguf_pairing: Pairing::HalfSplit,
    window: WindowRule::Switched,
    extra_stop_ids: &[],
    verified: &[],
    ..LLAMA
};

/// Decoders of the Gemma kind.
const GEMMA: Architecture = Architecture {
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

/// Decoders of the Granite kind.
const GRANITE: Architecture = Architecture {
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

/// Every architecture that this build runs.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        // Mixtral in GGUF files.
        moe: Some(MIXTRAL_EXPERTS),
        ..LLAMA
    },
    Architecture {
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
    },
    Architecture {
        name: "Ministral 3",
        hf: &["Mistral3ForConditionalGeneration", "Ministral3ForCausalLM"],
        model_types: &["mistral3", "ministral3"],
        gguf: &["mistral3"],
        examples: "Ministral 3 3B, 8B, 14B; Mistral Small 3.1, 3.2 (their text part)",
        verified: &[],
        biases: NO_BIAS,
        window: WindowRule::Always,
        query_scaling: true,
        // Of the outer class, which has the head; a head of its own in the file is used in any case.
        tied_by_default: true,
        defaults: &[
            ("rope_theta", 1_000_000.0),
            ("rms_norm_eps", 1e-5),
            ("max_position_embeddings", 131_072.0),
            ("num_key_value_heads", 8.0),
            ("head_dim", 128.0),
        ],
        extra_stop_ids: &[],
        ..LLAMA
    },
    Architecture {
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
        ..QWEN
    },
    Architecture {
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
        ..QWEN
    },
    Architecture {
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
        ..GEMMA
    },
    Architecture {
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
        ..GEMMA
    },
    Architecture {
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
        ..QWEN
    },
    Architecture {
        name: "Qwen3.5 MoE",
        hf: &[
            "Qwen3_5MoeForConditionalGeneration",
            "Qwen3_5MoeForCausalLM",
        ],
        model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
        gguf: &["qwen35moe"],
        examples: "Qwen 3.5 35B A3B, 122B A10B (their text part)",
        zero_centred_norms: true,
        qk_norm: QkNorm::PerHead,
        biases: ATTENTION_BIAS,
        window: WindowRule::None,
        recurrence: Recurrence::DeltaNet,
        output_gate: true,
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
        names: QWEN3_5_NAMES,
        ..QWEN
    },
    Architecture {
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
    },
    Architecture {
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
        ..GEMMA
    },
    Architecture {
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
            ("rope_theta", 10_000.0),
            ("rms_norm_eps", 1e-5),
            ("max_position_embeddings", 4096.0),
            ("original_max_position_embeddings", 4096.0),
        ],
        extra_stop_ids: &[],
        names: &[named(Part::GateUp, "mlp.gate_up_proj", "ffn_up")],
        ..LLAMA
    },
    GRANITE,
    Architecture {
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
    },
    Architecture {
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
    },
    Architecture {
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
    },
    Architecture {
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
    },
    Architecture {
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
    },
    Architecture {
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
        ..QWEN
    },
    Architecture {
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
        ..QWEN
    },
    Architecture {
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
    },
    Architecture {
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
    },
    Architecture {
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
            has_correction: true,
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
    },
    Architecture {
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
            ARCHITECTURES.iter().flat_map(|a| a.hf.iter().copied()),
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
