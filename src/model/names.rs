//! Parts of a model and what files call them.
//!
//! [`USUAL`] has the names that most files use. An architecture whose files use others has them in its row
//! (`names` in `arch/rows/`). A tensor's *canonical* name is its name without the prefixes of multimodal files.

use crate::formats::Weights;

/// A weight, of a layer or of the whole model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "named as in the formulas")]
pub enum Part {
    Embedding,
    /// The second embedding table, with a few features for every layer.
    PerLayerEmbedding,
    /// From the embedding to as many features.
    PerLayerProjection,
    PerLayerProjectionNorm,
    FinalNorm,
    Head,
    /// Before the mixer.
    AttnNorm,
    Q,
    K,
    V,
    /// Rows of q, then k, then v.
    Qkv,
    O,
    QNorm,
    KNorm,
    /// Makes the latent of queries.
    QA,
    QANorm,
    /// Makes queries of it.
    QB,
    /// Makes the latent of keys and values, and behind it the rotated part of keys.
    KvA,
    KvANorm,
    /// Per head: rows that make the other part of a key of the latent, then rows that make a value.
    KvB,
    /// The two by themselves, one matrix per head; the first the other way round.
    KB,
    VB,
    /// Behind the mixer, before the residual is added.
    PostAttnNorm,
    /// Before the feed-forward part.
    FfnNorm,
    /// Behind the feed-forward part.
    PostFfnNorm,
    /// From the residual stream to the gate of a layer's own input.
    PerLayerGate,
    PerLayerOut,
    PerLayerNorm,
    /// One number, without `.weight` in safetensors.
    OutputScale,
    /// Queries, keys and values of a delta rule, before the convolution.
    DeltaQkv,
    DeltaZ,
    DeltaA,
    DeltaB,
    DeltaConv,
    /// `A_log` or, in GGUF, `-exp(A_log)`; the whole name.
    DeltaRates,
    /// The whole name.
    DeltaDtBias,
    DeltaNorm,
    DeltaOut,
    /// Rows of the gates of input and output, then of the input.
    ConvIn,
    Conv,
    ConvOut,
    Gate,
    Up,
    /// Rows of the gate, then of up.
    GateUp,
    Down,
    Router,
    /// What is added to the router's scores for choosing.
    RouterCorrection,
    /// Multiplies what the router sees, feature by feature; the whole name.
    RouterScale,
    /// Multiplies the weight of each expert; the whole name.
    ExpertScale,
    /// Norms of a gated block and a mixture that stand side by side.
    PostDenseNorm,
    PreMoeNorm,
    PostMoeNorm,
    /// Matrices of one expert, whose number stands for `{}`.
    ExpertGate,
    ExpertUp,
    ExpertDown,
    /// Matrices of all experts in one tensor.
    ExpertsGate,
    ExpertsUp,
    ExpertsGateUp,
    ExpertsDown,
    /// The block that every token goes through besides its experts.
    SharedGate,
    SharedUp,
    SharedGateUp,
    SharedDown,
    /// How much of that block a token gets.
    SharedSwitch,
    /// One logit per head, without `.weight` in safetensors.
    Sinks,
}

/// What files call a part, without `.weight` or `.bias`. Parts of layers stand behind `model.layers.N.` or `blk.N.`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartNames {
    /// The part.
    pub part: Part,
    /// In Hugging Face checkpoints.
    pub hf: &'static str,
    /// In GGUF files.
    pub gguf: &'static str,
}

/// A row of a table of names.
pub const fn named(part: Part, hf: &'static str, gguf: &'static str) -> PartNames {
    PartNames { part, hf, gguf }
}

/// The names of most files.
const USUAL: &[PartNames] = &[
    named(Part::Embedding, "model.embed_tokens", "token_embd"),
    named(
        Part::PerLayerEmbedding,
        "model.embed_tokens_per_layer",
        "per_layer_token_embd",
    ),
    named(
        Part::PerLayerProjection,
        "model.per_layer_model_projection",
        "per_layer_model_proj",
    ),
    named(
        Part::PerLayerProjectionNorm,
        "model.per_layer_projection_norm",
        "per_layer_proj_norm",
    ),
    named(Part::FinalNorm, "model.norm", "output_norm"),
    named(Part::Head, "lm_head", "output"),
    named(Part::AttnNorm, "input_layernorm", "attn_norm"),
    named(Part::PerLayerGate, "per_layer_input_gate", "inp_gate"),
    named(Part::PerLayerOut, "per_layer_projection", "proj"),
    named(Part::PerLayerNorm, "post_per_layer_input_norm", "post_norm"),
    named(Part::OutputScale, "layer_scalar", "layer_output_scale"),
    named(Part::Q, "self_attn.q_proj", "attn_q"),
    named(Part::K, "self_attn.k_proj", "attn_k"),
    named(Part::V, "self_attn.v_proj", "attn_v"),
    named(Part::Qkv, "self_attn.qkv_proj", "attn_qkv"),
    named(Part::O, "self_attn.o_proj", "attn_output"),
    named(Part::QNorm, "self_attn.q_norm", "attn_q_norm"),
    named(Part::KNorm, "self_attn.k_norm", "attn_k_norm"),
    named(Part::QA, "self_attn.q_a_proj", "attn_q_a"),
    named(Part::QANorm, "self_attn.q_a_layernorm", "attn_q_a_norm"),
    named(Part::QB, "self_attn.q_b_proj", "attn_q_b"),
    named(Part::KvA, "self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
    named(Part::KvANorm, "self_attn.kv_a_layernorm", "attn_kv_a_norm"),
    named(Part::KvB, "self_attn.kv_b_proj", "attn_kv_b"),
    named(Part::KB, "self_attn.k_b_proj", "attn_k_b"),
    named(Part::VB, "self_attn.v_b_proj", "attn_v_b"),
    named(
        Part::PostAttnNorm,
        "post_attention_layernorm",
        "post_attention_norm",
    ),
    named(Part::FfnNorm, "post_attention_layernorm", "ffn_norm"),
    named(
        Part::PostFfnNorm,
        "post_feedforward_layernorm",
        "post_ffw_norm",
    ),
    named(Part::DeltaQkv, "linear_attn.in_proj_qkv", "attn_qkv"),
    named(Part::DeltaZ, "linear_attn.in_proj_z", "attn_gate"),
    named(Part::DeltaA, "linear_attn.in_proj_a", "ssm_alpha"),
    named(Part::DeltaB, "linear_attn.in_proj_b", "ssm_beta"),
    named(Part::DeltaConv, "linear_attn.conv1d", "ssm_conv1d"),
    named(Part::DeltaRates, "linear_attn.A_log", "ssm_a"),
    named(Part::DeltaDtBias, "linear_attn.dt_bias", "ssm_dt.bias"),
    named(Part::DeltaNorm, "linear_attn.norm", "ssm_norm"),
    named(Part::DeltaOut, "linear_attn.out_proj", "ssm_out"),
    named(Part::ConvIn, "conv.in_proj", "shortconv.in_proj"),
    named(Part::Conv, "conv.conv", "shortconv.conv"),
    named(Part::ConvOut, "conv.out_proj", "shortconv.out_proj"),
    named(Part::Gate, "mlp.gate_proj", "ffn_gate"),
    named(Part::Up, "mlp.up_proj", "ffn_up"),
    named(Part::GateUp, "mlp.gate_up_proj", "ffn_gate_up"),
    named(Part::Down, "mlp.down_proj", "ffn_down"),
    named(Part::Router, "mlp.gate", "ffn_gate_inp"),
    named(
        Part::RouterCorrection,
        "mlp.gate.e_score_correction_bias",
        "exp_probs_b",
    ),
    named(Part::RouterScale, "router.scale", "ffn_gate_inp.scale"),
    named(
        Part::ExpertScale,
        "router.per_expert_scale",
        "ffn_down_exps.scale",
    ),
    named(
        Part::PostDenseNorm,
        "post_feedforward_layernorm_1",
        "post_ffw_norm_1",
    ),
    named(
        Part::PreMoeNorm,
        "pre_feedforward_layernorm_2",
        "pre_ffw_norm_2",
    ),
    named(
        Part::PostMoeNorm,
        "post_feedforward_layernorm_2",
        "post_ffw_norm_2",
    ),
    // GGUF files of the older kind have one tensor per expert too.
    named(Part::ExpertGate, "mlp.experts.{}.gate_proj", "ffn_gate.{}"),
    named(Part::ExpertUp, "mlp.experts.{}.up_proj", "ffn_up.{}"),
    named(Part::ExpertDown, "mlp.experts.{}.down_proj", "ffn_down.{}"),
    named(Part::ExpertsGate, "mlp.experts.gate_proj", "ffn_gate_exps"),
    named(Part::ExpertsUp, "mlp.experts.up_proj", "ffn_up_exps"),
    named(
        Part::ExpertsGateUp,
        "mlp.experts.gate_up_proj",
        "ffn_gate_up_exps",
    ),
    named(Part::ExpertsDown, "mlp.experts.down_proj", "ffn_down_exps"),
    named(
        Part::SharedGate,
        "mlp.shared_expert.gate_proj",
        "ffn_gate_shexp",
    ),
    named(Part::SharedUp, "mlp.shared_expert.up_proj", "ffn_up_shexp"),
    named(
        Part::SharedGateUp,
        "mlp.shared_expert.gate_up_proj",
        "ffn_gate_up_shexp",
    ),
    named(
        Part::SharedDown,
        "mlp.shared_expert.down_proj",
        "ffn_down_shexp",
    ),
    named(
        Part::SharedSwitch,
        "mlp.shared_expert_gate",
        "ffn_gate_inp_shexp",
    ),
    named(Part::Sinks, "self_attn.sinks", "attn_sinks"),
];

/// Prefixes under which safetensors files keep the language model; all stand for `model.` (the head for nothing).
const HF_PREFIXES: [&str; 4] = [
    "model.language_model.",
    "language_model.model.",
    "language_model.",
    "model.",
];

/// Tensors that are not the language model's: skipped without reading their bytes.
const HF_SKIPPED: [&str; 14] = [
    "vision_tower.",
    "model.vision_tower.",
    "model.visual.",
    "visual.",
    "vision_model.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "audio_tower.",
    "model.audio_tower.",
    "embed_vision.",
    "model.embed_vision.",
    "embed_audio.",
    "model.embed_audio.",
    "mtp.",
];

/// Tensors of GGUF files that are read with the configuration.
pub(super) const GGUF_CONFIG: [&str; 3] = [
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
];

/// What a tensor of a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Use {
    /// A weight of the language model, by its canonical name.
    Weight(String),
    /// Read with the configuration, or computed instead of read.
    Config,
    /// Of a part that is skipped: which.
    Skipped(&'static str),
}

/// Names of one model's file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    is_gguf: bool,
    own: &'static [PartNames],
    num_layers: usize,
    num_predict_layers: usize,
}

impl Names {
    pub fn of(weights: &Weights, config: &super::ModelConfig) -> Self {
        Self {
            is_gguf: matches!(weights, Weights::Gguf(_)),
            own: config.names,
            num_layers: config.layers.len(),
            num_predict_layers: config.num_predict_layers,
        }
    }

    /// The canonical name of a part, without `.weight` or `.bias`; `layer` for parts of layers.
    pub fn stem(&self, layer: Option<usize>, part: Part) -> String {
        let mut rows = self.own.iter().chain(USUAL);
        let row = rows.find(|row| row.part == part);
        let row = row.expect("every part stands in the table of usual names");
        match (layer, self.is_gguf) {
            (None, true) => row.gguf.to_owned(),
            (None, false) => row.hf.to_owned(),
            (Some(layer), true) => format!("blk.{layer}.{}", row.gguf),
            (Some(layer), false) => format!("model.layers.{layer}.{}", row.hf),
        }
    }

    /// What the tensor `name` of the file is.
    pub fn use_of(&self, name: &str) -> Use {
        let canonical = if self.is_gguf {
            if GGUF_CONFIG.contains(&name) {
                return Use::Config;
            }
            name.to_owned()
        } else {
            let skipped = HF_SKIPPED
                .into_iter()
                .find(|prefix| name.starts_with(prefix));
            if let Some(prefix) = skipped {
                return Use::Skipped(prefix);
            }
            if name.ends_with(".rotary_emb.inv_freq") {
                return Use::Config;
            }
            canonical_hf(name)
        };
        match self.layer_of(&canonical) {
            Some(layer) if self.predicts(layer) => {
                Use::Skipped("layers that predict further tokens")
            }
            _ => Use::Weight(canonical),
        }
    }

    fn layer_of(&self, canonical: &str) -> Option<usize> {
        let prefix = if self.is_gguf {
            "blk."
        } else {
            "model.layers."
        };
        let (number, _) = canonical.strip_prefix(prefix)?.split_once('.')?;
        number.parse().ok()
    }

    fn predicts(&self, layer: usize) -> bool {
        (self.num_layers..self.num_layers + self.num_predict_layers).contains(&layer)
    }
}

fn canonical_hf(name: &str) -> String {
    let rest = HF_PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .unwrap_or(name);
    if rest.starts_with("lm_head.") {
        rest.to_owned()
    } else {
        format!("model.{rest}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: Names = Names {
        is_gguf: false,
        own: &[named(
            Part::FfnNorm,
            "pre_feedforward_layernorm",
            "ffn_norm",
        )],
        num_layers: 4,
        num_predict_layers: 1,
    };

    #[test]
    fn every_prefix_of_the_language_model_means_the_same_and_towers_are_skipped() {
        let weight = |name: &str| Use::Weight(name.to_owned());
        for prefix in HF_PREFIXES {
            let name = format!("{prefix}layers.3.mlp.up_proj.weight");
            assert_eq!(
                NAMES.use_of(&name),
                weight("model.layers.3.mlp.up_proj.weight")
            );
        }
        for name in ["language_model.lm_head.weight", "lm_head.weight"] {
            assert_eq!(NAMES.use_of(name), weight("lm_head.weight"));
        }
        let tower = NAMES.use_of("vision_tower.vision_model.post_layernorm.bias");
        assert_eq!(tower, Use::Skipped("vision_tower."));
        let computed = NAMES.use_of("model.layers.0.self_attn.rotary_emb.inv_freq");
        assert_eq!(computed, Use::Config);
    }

    #[test]
    fn layers_that_predict_further_tokens_are_skipped_and_others_beyond_the_last_are_not() {
        let use_of =
            |layer: usize| NAMES.use_of(&format!("model.layers.{layer}.mlp.up_proj.weight"));
        assert!(matches!(use_of(3), Use::Weight(_)));
        assert!(matches!(use_of(4), Use::Skipped(_)));
        assert!(matches!(use_of(5), Use::Weight(_)));
    }

    #[test]
    fn a_row_of_an_architecture_wins_over_the_usual_names() {
        let stem = |part| NAMES.stem(Some(2), part);
        assert_eq!(
            stem(Part::FfnNorm),
            "model.layers.2.pre_feedforward_layernorm"
        );
        assert_eq!(stem(Part::Q), "model.layers.2.self_attn.q_proj");
    }
}
