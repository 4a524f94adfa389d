//! The one forward pass: a batch of token rows through all layers, over the paged KV cache.

use super::batch::Batch;
use super::config::{ModelConfig, RopeConfig};
use super::layers::{Layer, Norm, Step};
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
    embedding: RawMatrix,
    layers: Vec<Layer>,
    norm: Norm,
    head: Head,
}

/// The output matrix.
#[derive(Debug)]
pub(super) struct Head {
    pub linear: Linear,
    /// Made of the embedding table.
    pub tied: bool,
}

impl Transformer {
    pub(super) fn new(
        config: ModelConfig,
        embedding: RawMatrix,
        layers: Vec<Layer>,
        norm: Norm,
        head: Head,
    ) -> Self {
        Self {
            config,
            embedding,
            layers,
            norm,
            head,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes of weights that stay resident: linear layers as they are multiplied, and norms. A tied embedding is counted
    /// once; of an embedding table of its own only the rows that are read become resident, but all of it is counted.
    pub fn weight_bytes(&self) -> usize {
        let layers: usize = self.layers.iter().map(Layer::bytes).sum();
        let embedding = if self.head.tied {
            0
        } else {
            self.embedding.bytes().len()
        };
        layers + self.norm.bytes() + self.head.linear.bytes() + embedding
    }

    /// What the layers do for a token, the output matrix apart.
    pub fn layers_work(&self) -> Work {
        self.layers.iter().map(Layer::work).sum()
    }

    /// What the output matrix does for a token whose logits are asked for.
    pub fn head_work(&self) -> Work {
        Work::of([&self.head.linear])
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
        let mut logits = self.head.linear.forward(ctx, &Input::new(&normed))?; // [logit rows, vocab]
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
        Ok(self.norm.forward(ctx, &last))
    }

    /// The residual stream behind the last layer, of every row of `batch`: `[tokens, hidden]`.
    fn hidden_states(&self, ctx: &Context, batch: &Batch, kv: &mut KvCache) -> Result<Tensor> {
        let step = self.step(ctx, batch);
        let scale = self.config.embedding_scale;
        let mut x = embed(ctx, &self.embedding, &batch.tokens(), scale)?;
        for layer in &self.layers {
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
        }
    }
}
