//! What the rows of the architecture table can say.

use crate::model::config::BiasPresence;
use crate::ops::moe::{GroupScore, Scoring};

/// Where a layer's sliding window comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowRule {
    /// Every layer sees everything; a `sliding_window` in the config is not this family's.
    None,
    /// Every layer slides when there is a `sliding_window`; `layer_types` is ignored (Mistral, Phi 3).
    Always,
    /// `use_sliding_window` switches it on, for layers from `max_window_layers` on (Qwen2, Qwen3).
    Switched,
    /// `use_sliding_window` switches it on, for layers that do not rotate (SmolLM3).
    SwitchedWithoutRope,
    /// `use_sliding_window` switches it on, for all layers (Qwen3 MoE).
    SwitchedAll,
    /// `use_sliding_window` switches it on, for every second layer below `max_window_layers`, from the first on (Qwen2 MoE).
    SwitchedAlternating,
    /// Every n-th layer sees everything, the others slide; n from `sliding_window_pattern` or this default (Gemma 3).
    EveryNthFull(usize),
}

/// Which layers rotate queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeLayers {
    /// All.
    All,
    /// Those with a window (Cohere 2).
    Sliding,
    /// Those that `no_rope_layers` marks with 1; without it all but every n-th, n from `no_rope_layer_interval` (SmolLM3).
    Listed,
}

/// Whether a bias is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// Never.
    Never,
    /// Always.
    Always,
    /// As this switch of `config.json` says, with the class's default; in GGUF, where the tensors are.
    Configured(&'static str, bool),
}

/// Which biases a family has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BiasRule {
    /// On q, k and v.
    pub qkv: Bias,
    /// On the attention output.
    pub o: Bias,
    /// In the feed-forward part.
    pub feed_forward: Bias,
}

/// What embeddings are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// Nothing.
    One,
    /// √hidden (Gemma).
    RootHidden,
    /// `embedding_multiplier` (Granite).
    Multiplier,
}

/// What attention scores are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionScale {
    /// `head_dim^-0.5`.
    HeadDim,
    /// `query_pre_attn_scalar^-0.5` (Gemma 2, Gemma 3). GGUF files do not have it: there it is the head size, but hidden size /
    /// heads for the model of so many layers, as llama.cpp's loader knows.
    QueryScalar {
        /// Layers of the model that differs.
        other_at: usize,
    },
    /// Nothing: norms of queries and keys do it (Gemma 4).
    One,
    /// `attention_multiplier` itself (Granite); `head_dim^-0.5` where a GGUF file has none.
    Multiplier,
}

/// What logits are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsScale {
    /// Nothing.
    One,
    /// `logit_scale` (Cohere 2).
    Times,
    /// 1 / `logits_scaling` (Granite).
    Divided,
}

/// What the layers of a family are that have no attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recurrence {
    /// There are none.
    None,
    /// The gated delta rule: `linear_attention` in `layer_types`, else all but every `full_attention_interval`-th layer.
    DeltaNet,
    /// The gated short convolution: `conv` in `layer_types`, else those that `full_attn_idxs` leaves out.
    ShortConv,
}

impl Recurrence {
    /// What `layer_types` calls these layers.
    pub fn layer_type(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::DeltaNet => Some("linear_attention"),
            Self::ShortConv => Some("conv"),
        }
    }
}

/// What sets layers without a window apart from the others (Gemma 4), besides what they see.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FullLayers {
    /// The share of pairs that rotate where a `config.json` has no `rope_parameters` (GGUF files have divisors).
    pub rotating_share: f64,
}

/// How wide the feed-forward part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForwardWidth {
    /// As `intermediate_size` says.
    Plain,
    /// With `block_auto_adjust_ff_dim` two thirds of it, times `block_ffn_dim_multiplier`, rounded up to a multiple of
    /// `block_multiple_of`; GGUF files have the result (LFM2).
    TwoThirds,
    /// As `intermediate_size` says, with `use_double_wide_mlp` twice that in layers that read the keys of others; GGUF files have
    /// the width of each layer (Gemma 4).
    DoubleWithoutKeys,
}

/// How a family mixes experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeRule {
    /// How the logits of the router become scores. GGUF files may say another one (`expert_gating_func`).
    pub scoring: Scoring,
    /// Weights are divided by their sum.
    pub normalize: Normalize,
    /// Weights are multiplied by `routed_scaling_factor`.
    pub is_scaled: bool,
    /// Experts come from the best groups (`n_group`, `topk_group`), which are compared like this.
    pub groups: Option<GroupRule>,
    /// A correction is added to scores for choosing.
    pub correction: BiasPresence,
    /// Router and experts have biases.
    pub has_biases: bool,
    /// The block that every token goes through besides its experts.
    pub shared: SharedRule,
    /// Which experts: usual gated blocks, or those of GPT-OSS.
    pub experts: ExpertKind,
    /// A switch of `config.json` without which there are no experts.
    pub switch: Option<&'static str>,
    /// What stands beside them in a layer.
    pub beside: Beside,
}

/// What stands beside the experts of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// A gated block of the usual width, each of the two between norms of its own; the router sees the residual stream normed without
    /// weights, times a stored vector, and each expert has a factor of its own (Gemma 4).
    Dense,
}

/// Whether the weights of a token are divided by their sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalize {
    /// Always.
    Always,
    /// Never.
    Never,
    /// As `norm_topk_prob` says.
    Configured {
        /// When a `config.json` does not say it.
        hf: bool,
        /// When a GGUF file does not say it (`expert_weights_norm`).
        gguf: bool,
    },
}

/// When experts come from some groups only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupRule {
    /// Always.
    Always(GroupScore),
    /// When `topk_method` of the config is this.
    Method(&'static str, GroupScore),
    /// Always: by the two best where scores are sigmoids, else by the best (GGUF files of DeepSeek).
    ByScoring,
}

/// The block that every token goes through besides its experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedRule {
    /// None.
    None,
    /// One, if the config gives it a width.
    Plain,
    /// One, times the sigmoid of a gate.
    Gated,
}

/// What experts are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertKind {
    /// Gated blocks; fused ones have the rows of the gate first.
    Usual,
    /// A clamped gate; fused in safetensors with the rows of gate and up in turns, floats with the input features outermost.
    GptOss,
}
