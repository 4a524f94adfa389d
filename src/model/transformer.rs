//! The one forward pass: a batch of token rows through all layers, over the paged KV cache.

use super::batch::Batch;
use super::config::{ModelConfig, RopeConfig};
use super::layers::{Layer, Norm, PerLayerInputs, Step};
use super::work::Work;
use crate::error::Result;
use crate::kv::KvCache;
use crate::nn::{Input, Linear};
use crate::ops::elementwise::{scale, select_rows, soft_cap};
use crate::ops::embed::embed;
use crate::ops::matmul::RawMatrix;
use crate::ops::rope::rope_table_by_row;
use crate::ops::{Context, Tensor};

/// A decoder-only transformer with its weights.
#[derive(Debug)]
pub struct Transformer {
    config: ModelConfig,
    weights: Parts,
}

/// The weights.
#[derive(Debug)]
pub(super) struct Parts {
    pub embedding: RawMatrix,
    pub per_layer: Option<PerLayerInputs>,
    pub layers: Vec<Layer>,
    pub norm: Norm,
    pub head: Head,
}

/// The output matrix.
#[derive(Debug)]
pub(super) struct Head {
    pub linear: Linear,
    /// Made of the embedding table.
    pub tied: bool,
}

impl Transformer {
    pub(super) fn new(config: ModelConfig, weights: Parts) -> Self {
        Self { config, weights }
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes of weights that stay resident: linear layers as they are multiplied, and norms. A tied embedding is counted
    /// once; of an embedding table of its own only the rows that are read become resident, but all of it is counted.
    pub fn weight_bytes(&self) -> usize {
        let weights = &self.weights;
        let layers: usize = weights.layers.iter().map(Layer::bytes).sum();
        let embedding = if weights.head.tied {
            0
        } else {
            weights.embedding.bytes().len()
        };
        let per_layer = weights.per_layer.as_ref().map_or(0, PerLayerInputs::bytes);
        layers + weights.norm.bytes() + weights.head.linear.bytes() + embedding + per_layer
    }

    /// What the layers do for a token, the output matrix apart.
    pub fn layers_work(&self) -> Work {
        let layers: Work = self.weights.layers.iter().map(Layer::work).sum();
        let per_layer = self.weights.per_layer.iter();
        layers + Work::of(per_layer.flat_map(PerLayerInputs::linears))
    }

    /// What the output matrix does for a token whose logits are asked for.
    pub fn head_work(&self) -> Work {
        Work::of([&self.weights.head.linear])
    }

    /// Computes `batch`, writes its keys and values into `kv`, and returns the logits of the rows that were asked for:
    /// `[Σ num_logits, vocab]`, sequence after sequence.
    ///
    /// The logits of a row are the same bits whatever else is in the batch (`docs/architecture.md`, numerical contract).
    ///
    /// # Errors
    /// `Invalid` for a token id outside the vocabulary.
    pub fn forward(&self, ctx: &Context, batch: &Batch, kv: &mut KvCache) -> Result<Tensor> {
        let normed = self.features(ctx, batch, kv)?;
        let head = &self.weights.head.linear;
        let mut logits = head.forward(ctx, &Input::new(&normed))?; // [logit rows, vocab]
        if self.config.logits_scale != 1.0 {
            scale(ctx, &mut logits, self.config.logits_scale);
        }
        if let Some(cap) = self.config.final_soft_cap {
            soft_cap(ctx, &mut logits, cap);
        }
        Ok(logits)
    }

    /// The same up to the output matrix: the last hidden states, normed, of the rows that were asked for:
    /// `[Σ num_logits, hidden]`.
    ///
    /// # Errors
    /// `Invalid` for a token id outside the vocabulary.
    pub fn features(&self, ctx: &Context, batch: &Batch, kv: &mut KvCache) -> Result<Tensor> {
        let x = self.hidden_states(ctx, batch, kv)?; // [tokens, hidden]
        let last = select_rows(ctx, &x, &batch.logit_rows());
        Ok(self.weights.norm.forward(ctx, &last))
    }

    /// The residual stream behind the last layer, of every row of `batch`: `[tokens, hidden]`.
    fn hidden_states(&self, ctx: &Context, batch: &Batch, kv: &mut KvCache) -> Result<Tensor> {
        let mut step = self.step(ctx, batch);
        let (scale, tokens) = (self.config.embedding_scale, batch.tokens());
        let mut x = embed(ctx, &self.weights.embedding, &tokens, scale)?;
        if let Some(inputs) = &self.weights.per_layer {
            step.per_layer = Some(inputs.forward(ctx, &tokens, &x)?);
        }
        for layer in &self.weights.layers {
            layer.forward(&step, &mut x, kv)?;
        }
        Ok(x)
    }

    fn step<'a>(&self, ctx: &'a Context, batch: &'a Batch) -> Step<'a> {
        let positions = batch.positions();
        let is_long = batch.long_rows();
        let table = |rope: &RopeConfig| {
            let pairs = rope.frequencies.len();
            rope_table_by_row(ctx, &positions, pairs, rope.magnitude, |row| {
                match rope.long.as_ref().filter(|_| is_long[row]) {
                    Some(long) => &long.frequencies,
                    None => &rope.frequencies,
                }
            })
        };
        Step {
            ctx,
            rows: batch.rows(),
            states: batch.state_rows(),
            slots: batch.slots(),
            ropes: self.config.ropes.iter().map(table).collect(),
            positions,
            residual_scale: self.config.residual_scale,
            per_layer: None,
        }
    }
}
