//! [`ModelConfig`]: everything the forward pass needs to know, read once and validated once.

use crate::ops::gated_act::Activation;
use crate::ops::kv_write::PageShape;
use crate::ops::rope::Pairing;

/// Norm of queries and keys before the rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Over each head.
    PerHead,
}

/// What may differ from layer to layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// A query sees itself and the `window - 1` positions before it; `None`: all of them.
    pub window: Option<usize>,
    /// Which of [`ModelConfig::ropes`] rotates this layer.
    pub rope: usize,
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
}

/// A decoder's geometry and switches.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Name of the architecture row.
    pub architecture: &'static str,
    /// Token ids that end an answer besides those that the files name.
    pub extra_stop_ids: &'static [u32],
    /// Rows of embedding and head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key/value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Elements of a head; not always `hidden_size / num_heads`.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Longest context that the model was made for.
    pub max_context: usize,
    /// Inside the root of every norm.
    pub norm_eps: f32,
    /// Added to stored norm weights at load (1 for zero-centred ones).
    pub norm_offset: f32,
    /// Norms behind attention and feed-forward too.
    pub sandwich_norms: bool,
    /// Norm of queries and keys.
    pub qk_norm: QkNorm,
    /// Biases on q, k and v.
    pub qkv_bias: BiasPresence,
    /// Bias on the attention output.
    pub o_bias: BiasPresence,
    /// Biases in the feed-forward block.
    pub mlp_bias: BiasPresence,
    /// Activation of the gate.
    pub activation: Activation,
    /// Multiplies embeddings.
    pub embedding_scale: f32,
    /// Multiplies attention scores.
    pub attention_scale: f32,
    /// Soft cap on attention scores.
    pub attention_soft_cap: Option<f32>,
    /// Soft cap on logits.
    pub final_soft_cap: Option<f32>,
    /// The head is the embedding table; `None`: when the file has no head of its own.
    pub tied_head: Option<bool>,
    /// Rotations in use.
    pub ropes: Vec<RopeConfig>,
    /// The layers.
    pub layers: Vec<LayerConfig>,
}

/// Whether a bias tensor must be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BiasPresence {
    /// It must.
    Required,
    /// It must not.
    Absent,
    /// The file decides.
    Optional,
}

impl ModelConfig {
    /// Geometry of the KV pages of every layer.
    pub fn page_shapes(&self) -> Vec<PageShape> {
        let shape = PageShape {
            kv_heads: self.num_kv_heads,
            key_dim: self.head_dim,
            value_dim: self.head_dim,
        };
        vec![shape; self.layers.len()]
    }
}
