//! The row of Gemma 4: full layers with heads of their own, shared keys, inputs per layer, experts beside the dense block.

use super::{GEMMA_LIKE, SANDWICH_NAMES};
use crate::model::arch::rules::{
    AttentionScale, Beside, FeedForwardWidth, FullLayers, MoeRule, WindowRule,
};
use crate::model::arch::table::Architecture;
use crate::model::config::QkNorm;
use crate::model::names::{Part, PartNames, named};

use super::experts::MIXTRAL_EXPERTS;

/// Its names: those of all with norms on both sides, and of its experts.
const NAMES: &[PartNames] = &[
    SANDWICH_NAMES[0],
    named(Part::Router, "router.proj", "ffn_gate_inp"),
    named(Part::ExpertGate, "experts.{}.gate_proj", "ffn_gate.{}"),
    named(Part::ExpertUp, "experts.{}.up_proj", "ffn_up.{}"),
    named(Part::ExpertDown, "experts.{}.down_proj", "ffn_down.{}"),
    named(
        Part::ExpertsGateUp,
        "experts.gate_up_proj",
        "ffn_gate_up_exps",
    ),
    named(Part::ExpertsDown, "experts.down_proj", "ffn_down_exps"),
];

/// Gemma 4.
pub(in crate::model::arch) const GEMMA_4: Architecture = Architecture {
    name: "Gemma 4",
    hf: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    model_types: &["gemma4", "gemma4_text"],
    gguf: &["gemma4"],
    examples: "Gemma 4 E2B, E4B, 31B, 26B A4B (their text part)",
    // The only ones of the kind that are not.
    zero_centred_norms: false,
    qk_norm: QkNorm::PerHead,
    value_norm: true,
    attention_scale: AttentionScale::One,
    window: WindowRule::EveryNthFull(6),
    local_rope: true,
    full_layers: Some(FullLayers {
        rotating_share: 0.25,
    }),
    shared_keys: true,
    per_layer_inputs: true,
    output_scale: true,
    feed_forward_width: FeedForwardWidth::DoubleWithoutKeys,
    moe: Some(MoeRule {
        switch: Some("enable_moe_block"),
        beside: Beside::Dense,
        ..MIXTRAL_EXPERTS
    }),
    defaults: &[
        ("vocab_size", 262_144.0),
        ("vocab_size_per_layer_input", 262_144.0),
        ("hidden_size", 2304.0),
        ("hidden_size_per_layer_input", 256.0),
        ("intermediate_size", 9216.0),
        ("num_hidden_layers", 30.0),
        ("num_attention_heads", 8.0),
        ("num_key_value_heads", 4.0),
        ("head_dim", 256.0),
        ("global_head_dim", 512.0),
        ("sliding_window", 512.0),
        ("rope_theta", 1_000_000.0),
        ("rope_local_base_freq", 10_000.0),
        ("rms_norm_eps", 1e-6),
        ("max_position_embeddings", 131_072.0),
    ],
    extra_stop_ids: &[1, 106],
    names: NAMES,
    ..GEMMA_LIKE
};
