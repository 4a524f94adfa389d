//! [`ModelConfig`]: everything the forward pass needs to know, read once and validated once.
//!
//! A decoder is an embedding, layers and a head. A layer is a *mixer* (the part that looks at other tokens) and a
//! *feed-forward* part, with norms around them. What may differ from layer to layer stands in [`LayerConfig`]; each kind of
//! part has a config here, a loader in `load/` and weights with a forward function in `layers/`, all under the same name.

use super::arch::rules::ExpertKind;
use super::names::PartNames;
use crate::error::{Error, Result};
use crate::kv::CacheShape;
use crate::ops::delta_net::DeltaShape;
use crate::ops::gated_act::Activation;
use crate::ops::kv_write::{KvElement, PageShape};
use crate::ops::moe::RouterRule;
use crate::ops::rope::Pairing;
use crate::ops::short_conv::ShortConv;

/// A decoder's geometry and switches.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Name of the architecture row.
    pub architecture: &'static str,
    /// What files call its parts, where it is not what most files call them.
    pub names: &'static [PartNames],
    /// Token ids that end an answer besides those that the files name.
    pub extra_stop_ids: &'static [u32],
    /// Rows of embedding and head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Longest context that the model was made for.
    pub max_context: usize,
    /// Every norm.
    pub norm: NormConfig,
    /// Multiplies embeddings.
    pub embedding_scale: f32,
    /// Multiplies what a layer's parts add to the residual stream.
    pub residual_scale: f32,
    /// Multiplies logits, before the soft cap.
    pub logits_scale: f32,
    /// Soft cap on logits.
    pub final_soft_cap: Option<f32>,
    /// The head is the embedding table; `None`: when the file has no head of its own.
    pub tied_head: Option<bool>,
    /// What layers see of their tokens besides the residual stream.
    pub per_layer_inputs: Option<PerLayerConfig>,
    /// Rotations in use.
    pub ropes: Vec<RopeConfig>,
    /// The layers.
    pub layers: Vec<LayerConfig>,
    /// Layers that files hold behind [`Self::layers`] to predict further tokens; they are skipped.
    pub num_predict_layers: usize,
    /// How the KV cache stores keys and values: as loading for a path wants it, never as files say.
    pub kv_element: KvElement,
}

/// What may differ from layer to layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// The part that looks at other tokens.
    pub mixer: MixerConfig,
    /// The part that looks at its own token.
    pub feed_forward: FeedForwardConfig,
    /// Where the norms are.
    pub norms: NormPlacement,
    /// A stored factor of what the layer gives, the residual stream included.
    pub output_scale: BiasPresence,
}

/// Inputs of layers besides the residual stream: a few features per token and layer, from a second embedding table and from
/// a projection of the embedding. Behind its feed-forward part, `x += norm(out(act(gate(x)) * input))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PerLayerConfig {
    /// Features per token and layer.
    pub size: usize,
    /// Rows of the second embedding table.
    pub vocab_size: usize,
    /// Activation of the gate.
    pub activation: Activation,
}

/// How tokens see each other; one variant per kind, each with its file in `layers/` and `load/`.
#[derive(Debug, Clone, PartialEq)]
pub enum MixerConfig {
    /// Softmax attention.
    Attention(AttentionConfig),
    /// Softmax attention over latents.
    Mla(MlaConfig),
    /// The gated delta rule.
    DeltaNet(DeltaNetConfig),
    /// The gated short convolution.
    ShortConv(ShortConvConfig),
}

/// What a layer does with each token; one variant per kind, each with its file in `layers/` and `load/`.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedForwardConfig {
    /// `down(act(gate(x)) * up(x))`.
    Dense(DenseConfig),
    /// The weighted sum of a few of many gated blocks.
    Moe(MoeConfig),
    /// Both of them side by side, each between norms of its own, added.
    Twofold(TwofoldConfig),
}

/// Softmax attention.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a query and a key; not always hidden size / heads.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// Norm of queries and keys, before the rotation.
    pub qk_norm: QkNorm,
    /// Values are normed over each head, without weights.
    pub value_norm: bool,
    /// What values are made of.
    pub values: ValueSource,
    /// Biases on q, k and v.
    pub qkv_bias: BiasPresence,
    /// Bias on the output.
    pub o_bias: BiasPresence,
    /// Queries, keys and values are clamped to ± this, before norm and rotation.
    pub qkv_clip: Option<f32>,
    /// Which of [`ModelConfig::ropes`] rotates queries and keys; `None`: they are not rotated.
    pub rope: Option<usize>,
    /// Queries grow with their position.
    pub query_scaling: Option<QueryScaling>,
    /// Multiplies the scores.
    pub scale: f32,
    /// Soft cap on the scores.
    pub soft_cap: Option<f32>,
    /// A query sees itself and the `window - 1` positions before it; `None`: all of them.
    pub window: Option<usize>,
    /// Each head has a logit of its own in the softmax, which has no value.
    pub sinks: bool,
    /// The query projection gives a gate beside each query head; its sigmoid multiplies the head's output.
    pub output_gate: bool,
    /// Whose keys and values are read.
    pub kv: KvSource,
}

/// Multi-head latent attention (DeepSeek V2). Keys and values of all heads are made of one latent vector per token; it is what the
/// cache holds, beside one rotated key that all heads share. What makes keys of latents is applied to queries instead, and
/// what makes values to what the attention gives: all query heads see one key/value head.
#[derive(Debug, Clone, PartialEq)]
pub struct MlaConfig {
    /// Query heads.
    pub heads: usize,
    /// Elements of the latent that queries are made of; `None`: they are made of the residual stream.
    pub query_rank: Option<usize>,
    /// Elements of the latent that keys and values are made of.
    pub kv_rank: usize,
    /// Elements of a query and a key that are not rotated.
    pub nope_dim: usize,
    /// Elements behind them that are.
    pub rope_dim: usize,
    /// Elements of a head's value.
    pub value_dim: usize,
    /// Norm of the latents.
    pub latent_norm: NormConfig,
    /// Biases on what makes the latents.
    pub latent_bias: BiasPresence,
    /// Bias on the output.
    pub o_bias: BiasPresence,
    /// Which of [`ModelConfig::ropes`] rotates.
    pub rope: usize,
    /// Multiplies the scores.
    pub scale: f32,
}

/// The gated delta rule behind a short convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaNetConfig {
    /// Heads and their sizes.
    pub shape: DeltaShape,
    /// Inputs that the convolution sees.
    pub conv_kernel: usize,
    /// What files say of the decay.
    pub rates: DecayRates,
}

/// How files store the decay rates of a delta rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DecayRates {
    /// As `A_log`: the rate is `-exp(A_log)`.
    Logarithms,
    /// As they are.
    Plain,
}

/// The gated short convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct ShortConvConfig {
    /// Channels: the width of the residual stream.
    pub channels: usize,
    /// Inputs that the convolution sees.
    pub kernel: usize,
    /// Biases on both projections and on the convolution.
    pub bias: BiasPresence,
}

/// Whose keys and values a layer's attention reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvSource {
    /// Its own.
    Own,
    /// Those of an earlier layer, which has its own; this one has no k and v projections.
    Layer(usize),
}

/// What values are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueSource {
    /// A projection of their own.
    Projection,
    /// The projection of the keys, as it is before norm and rotation.
    Keys,
}

/// Norm of queries and keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Over each head.
    PerHead,
    /// Over the whole projection.
    Flat,
}

/// Queries are multiplied by `1 + beta * ln(1 + floor(position / original))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScaling {
    /// How fast they grow.
    pub beta: f32,
    /// Context before stretching.
    pub original: usize,
}

/// A gated feed-forward block.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseConfig {
    /// Width of the block.
    pub intermediate: usize,
    /// Activation of the gate.
    pub activation: Activation,
    /// Biases on all three.
    pub bias: BiasPresence,
}

/// A mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct MoeConfig {
    /// Experts.
    pub experts: usize,
    /// Width of an expert.
    pub intermediate: usize,
    /// Activation of the gates.
    pub activation: Activation,
    /// How a token's experts are chosen and weighted.
    pub router: RouterRule,
    /// Bias on the router's logits.
    pub router_bias: BiasPresence,
    /// Something is added to the router's scores for choosing.
    pub has_correction: bool,
    /// The weight of each expert is multiplied by a stored number of its own.
    pub has_expert_scale: bool,
    /// Biases on all three matrices of every expert.
    pub expert_bias: BiasPresence,
    /// What fused experts look like in safetensors.
    pub kind: ExpertKind,
    /// The block that every token goes through besides its experts.
    pub shared: Option<SharedConfig>,
}

/// A gated block and a mixture of experts, both over the residual stream: `norm(dense(norm(x))) + norm(experts(norm(x)))`. The
/// router sees `x` normed without weights, times a stored vector.
#[derive(Debug, Clone, PartialEq)]
pub struct TwofoldConfig {
    /// The block.
    pub dense: DenseConfig,
    /// The mixture.
    pub moe: MoeConfig,
}

/// A gated block that every token goes through besides its experts.
#[derive(Debug, Clone, PartialEq)]
pub struct SharedConfig {
    /// The block.
    pub block: DenseConfig,
    /// It is multiplied by the sigmoid of a gate.
    pub is_gated: bool,
}

/// Whether a tensor, a bias most often, must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BiasPresence {
    /// It must.
    Required,
    /// It must not.
    Absent,
    /// The file decides.
    Optional,
}

/// What the norms of a model have in common.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormConfig {
    /// The formula.
    pub kind: NormKind,
    /// Inside the root.
    pub eps: f32,
    /// Added to stored weights at load (1 for zero-centred ones).
    pub offset: f32,
}

/// A norm's formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Divided by the root of the mean square, times a weight.
    Rms,
    /// The mean subtracted, divided by the standard deviation, times a weight; plus a bias when `bias`.
    Layer {
        /// Whether there is a bias.
        bias: bool,
    },
}

/// Where a layer has norms. `x` is the residual stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormPlacement {
    /// `x += part(norm(x))`, for both parts.
    Before,
    /// `x += norm(part(x))`, for both parts.
    After,
    /// `x += norm(part(norm(x)))`, for both parts.
    Sandwich,
    /// `y = norm(x); x += mixer(y) + feed_forward(y)`.
    Parallel,
}

/// Rotary frequencies, shared by all layers that rotate alike.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Radians per position, one per rotated pair.
    pub frequencies: Vec<f32>,
    /// Multiplies cosine and sine.
    pub magnitude: f32,
    /// Which elements make a pair.
    pub pairing: Pairing,
    /// Other frequencies for long sequences.
    pub long: Option<LongRope>,
}

/// Frequencies for sequences whose prompt is longer than the model was first made for (LongRoPE).
#[derive(Debug, Clone, PartialEq)]
pub struct LongRope {
    /// Radians per position, one per rotated pair.
    pub frequencies: Vec<f32>,
    /// Prompts of more tokens than this rotate by them, from their beginning to the end of the answer.
    pub above: usize,
}

impl NormPlacement {
    /// Whether the parts see a normed residual stream.
    pub fn is_before(self) -> bool {
        self != Self::After
    }

    /// Whether what the parts give is normed.
    pub fn is_after(self) -> bool {
        matches!(self, Self::After | Self::Sandwich)
    }
}

impl AttentionConfig {
    /// Features of the query projection.
    pub fn query_features(&self) -> usize {
        self.heads * self.key_dim * if self.output_gate { 2 } else { 1 }
    }

    /// Geometry of the pages that it reads, in half precision.
    pub fn page_shape(&self) -> PageShape {
        PageShape {
            kv_heads: self.kv_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
            element: KvElement::F16,
        }
    }
}

impl MlaConfig {
    /// Elements of a query before it is brought into the space of latents.
    pub fn query_dim(&self) -> usize {
        self.nope_dim + self.rope_dim
    }

    /// Geometry of its pages: the latent and the rotated key are the key, the latent is the value.
    pub fn page_shape(&self) -> PageShape {
        PageShape {
            kv_heads: 1,
            key_dim: self.kv_rank + self.rope_dim,
            value_dim: self.kv_rank,
            element: KvElement::F16,
        }
    }
}

impl MixerConfig {
    /// Whose keys and values it reads, when it reads any.
    pub fn kv_source(&self) -> Option<KvSource> {
        match self {
            Self::Attention(c) => Some(c.kv),
            Self::Mla(_) => Some(KvSource::Own),
            Self::DeltaNet(_) | Self::ShortConv(_) => None,
        }
    }

    /// Geometry of the pages that it reads, its own or another layer's, when it reads any.
    fn page_shape(&self) -> Option<PageShape> {
        match self {
            Self::Attention(c) => Some(c.page_shape()),
            Self::Mla(c) => Some(c.page_shape()),
            Self::DeltaNet(_) | Self::ShortConv(_) => None,
        }
    }

    /// Elements of keys and values that a token behind `depth` others reads.
    pub fn cache_elements(&self, depth: usize) -> usize {
        let window = match self {
            Self::Attention(c) => c.window,
            Self::Mla(_) | Self::DeltaNet(_) | Self::ShortConv(_) => None,
        };
        let seen = window.map_or(depth, |window| window.min(depth));
        self.page_shape().map_or(0, |shape| {
            shape.kv_heads * (shape.key_dim + shape.value_dim) * seen
        })
    }

    /// Floats of each recurrent state of a sequence.
    pub fn state_lens(&self) -> Vec<usize> {
        match self {
            Self::Attention(_) | Self::Mla(_) => Vec::new(),
            Self::DeltaNet(c) => vec![
                ShortConv::state_len(c.shape.qkv_dim(), c.conv_kernel),
                c.shape.state_len(),
            ],
            Self::ShortConv(c) => vec![ShortConv::state_len(c.channels, c.kernel)],
        }
    }

    /// Floats per token at the widest moment.
    pub fn activation_width(&self) -> usize {
        match self {
            Self::Attention(c) => {
                let heads_out = if c.output_gate {
                    2 * c.heads * c.key_dim
                } else {
                    0
                };
                c.query_features() + heads_out + c.kv_heads * (c.key_dim + c.value_dim)
            }
            Self::Mla(c) => {
                // Queries in the space of latents and what the attention gives, or one of them twice.
                let pages = c.page_shape();
                let latents = pages.key_dim + pages.value_dim;
                c.heads * (latents + c.query_dim() + c.value_dim) + 2 * latents
            }
            Self::DeltaNet(c) => {
                let values = c.shape.value_heads * c.shape.value_dim;
                2 * c.shape.qkv_dim() + 2 * values + 5 * c.shape.value_heads
            }
            Self::ShortConv(c) => 4 * c.channels,
        }
    }
}

impl FeedForwardConfig {
    /// Floats per token at the widest moment; `hidden` is the width of the residual stream.
    pub fn activation_width(&self, hidden: usize) -> usize {
        match self {
            Self::Dense(c) => 2 * c.intermediate,
            Self::Moe(c) => c.activation_width(hidden),
            // What the block gave is kept, beside the inputs of router and experts.
            Self::Twofold(c) => {
                let moe = 2 * hidden + c.moe.activation_width(hidden);
                hidden + moe.max(2 * c.dense.intermediate)
            }
        }
    }
}

impl MoeConfig {
    fn activation_width(&self, hidden: usize) -> usize {
        let shared = self.shared.as_ref();
        let shared = shared.map_or(0, |s| 2 * s.block.intermediate);
        // Gates, ups and outputs of all the experts that a token uses.
        self.experts + shared + hidden + self.router.top_k * (2 * self.intermediate + hidden)
    }
}

impl ModelConfig {
    /// Refuses to compute more tokens than the model was made for; `what` needs so many.
    ///
    /// # Errors
    /// `ContextLength`.
    pub fn check_context(&self, what: impl std::fmt::Display, tokens: usize) -> Result<()> {
        if tokens <= self.max_context {
            return Ok(());
        }
        let most = self.max_context;
        Err(Error::context_length(format!(
            "{what} takes {tokens} tokens, the model's context holds {most}"
        )))
    }

    /// What its layers remember of sequences, in their order.
    pub fn cache_shape(&self) -> CacheShape {
        let states = self.layers.iter().flat_map(|l| l.mixer.state_lens());
        let pages = self.layers.iter().filter_map(own_pages);
        let element = self.kv_element;
        CacheShape {
            pages: pages.map(|shape| PageShape { element, ..shape }).collect(),
            states: states.collect(),
        }
    }

    /// Whether a sequence with a prompt of `prompt_len` tokens rotates by the frequencies for long ones. Decided once, when the
    /// sequence begins: keys that are computed already cannot be rotated again.
    pub fn is_long(&self, prompt_len: usize) -> bool {
        let mut limits = self.ropes.iter().filter_map(|rope| rope.long.as_ref());
        limits.any(|long| prompt_len > long.above)
    }

    /// The first of [`CacheShape::states`] that belong to `layer`.
    pub fn states_of(&self, layer: usize) -> usize {
        let before = self.layers[..layer].iter();
        before.map(|l| l.mixer.state_lens().len()).sum()
    }

    /// Which of [`CacheShape::pages`] the attention of `layer` reads; `None` for a layer without attention.
    pub fn pages_of(&self, layer: usize) -> Option<usize> {
        let owner = match self.layers[layer].mixer.kv_source()? {
            KvSource::Own => layer,
            KvSource::Layer(other) => other,
        };
        Some(self.layers[..owner].iter().filter_map(own_pages).count())
    }
}

fn own_pages(layer: &LayerConfig) -> Option<PageShape> {
    let owns = layer.mixer.kv_source() == Some(KvSource::Own);
    layer.mixer.page_shape().filter(|_| owns)
}
