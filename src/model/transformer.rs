//! The one forward pass: a batch of token rows through all layers, over the paged KV cache.

use super::config::ModelConfig;
use crate::error::Result;
use crate::kv::{BLOCK_TOKENS, KvCache};
use crate::nn::{Input, Linear};
use crate::ops::attention::{AttentionOptions, SequenceRows, attention};
use crate::ops::elementwise::{add_assign, select_rows, soft_cap};
use crate::ops::embed::embed;
use crate::ops::gated_act::gated_act;
use crate::ops::kv_write::kv_write;
use crate::ops::matmul::RawMatrix;
use crate::ops::norm::{rms_norm, rms_norm_in_place};
use crate::ops::rope::{RopeTable, rope, rope_table};
use crate::ops::{Context, Tensor};

/// Consecutive tokens of one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// The tokens to compute.
    pub tokens: Vec<u32>,
    /// Position of the first; everything before it is in the cache.
    pub first_position: usize,
    /// Block i holds positions `16 i..16 i + 16`; long enough for the tokens.
    pub block_table: Vec<u32>,
    /// How many of the last tokens need logits.
    pub num_logits: usize,
}

/// What one forward pass computes: any mix of prompt chunks and single tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    /// The sequences, in the order of their logits.
    pub sequences: Vec<Sequence>,
}

impl Batch {
    fn tokens(&self) -> Vec<u32> {
        self.sequences
            .iter()
            .flat_map(|s| s.tokens.iter().copied())
            .collect()
    }

    fn positions(&self) -> Vec<u32> {
        let of = |s: &Sequence| s.first_position as u32..(s.first_position + s.tokens.len()) as u32;
        self.sequences.iter().flat_map(of).collect()
    }

    fn slots(&self) -> Vec<usize> {
        let slot = |s: &Sequence, p: usize| {
            s.block_table[p / BLOCK_TOKENS] as usize * BLOCK_TOKENS + p % BLOCK_TOKENS
        };
        let of = |s: &Sequence| -> Vec<usize> {
            let positions = s.first_position..s.first_position + s.tokens.len();
            positions.map(|p| slot(s, p)).collect()
        };
        self.sequences.iter().flat_map(of).collect()
    }

    fn rows(&self) -> Vec<SequenceRows<'_>> {
        let mut first_row = 0;
        self.sequences
            .iter()
            .map(|s| {
                let rows = SequenceRows {
                    first_row,
                    num_rows: s.tokens.len(),
                    first_position: s.first_position,
                    block_table: &s.block_table,
                };
                first_row += s.tokens.len();
                rows
            })
            .collect()
    }

    fn logit_rows(&self) -> Vec<usize> {
        let rows = self.rows();
        let of = |(s, r): (&Sequence, &SequenceRows<'_>)| {
            let end = r.first_row + r.num_rows;
            end - s.num_logits.min(r.num_rows)..end
        };
        self.sequences.iter().zip(&rows).flat_map(of).collect()
    }
}

/// Weights of one layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub attn_norm: Vec<f32>,
    pub q: Linear,
    pub k: Linear,
    pub v: Linear,
    pub o: Linear,
    pub q_norm: Option<Vec<f32>>,
    pub k_norm: Option<Vec<f32>>,
    pub post_attn_norm: Option<Vec<f32>>,
    pub ffn_norm: Vec<f32>,
    pub post_ffn_norm: Option<Vec<f32>>,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

impl Layer {
    fn linears(&self) -> [&Linear; 7] {
        [
            &self.q, &self.k, &self.v, &self.o, &self.gate, &self.up, &self.down,
        ]
    }

    fn bytes(&self) -> usize {
        let norms = [
            Some(&self.attn_norm),
            self.q_norm.as_ref(),
            self.k_norm.as_ref(),
            self.post_attn_norm.as_ref(),
            Some(&self.ffn_norm),
            self.post_ffn_norm.as_ref(),
        ];
        let norms = norms
            .into_iter()
            .flatten()
            .map(|norm| size_of_val(&norm[..]));
        self.linears()
            .map(Linear::bytes)
            .into_iter()
            .chain(norms)
            .sum()
    }
}

/// What some layers have to do for every token they compute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Integer multiply-accumulates per token.
    pub int8_macs: usize,
    /// F32 multiply-accumulates per token.
    pub f32_macs: usize,
    /// Bytes of weights, read once per step.
    pub weight_bytes: usize,
}

impl Work {
    fn of<'a>(linears: impl IntoIterator<Item = &'a Linear>) -> Self {
        let mut work = Self::default();
        for linear in linears {
            let (macs, integer) = linear.macs();
            *(if integer {
                &mut work.int8_macs
            } else {
                &mut work.f32_macs
            }) += macs;
            work.weight_bytes += linear.bytes();
        }
        work
    }
}

/// A decoder-only transformer with its weights.
#[derive(Debug)]
pub struct Transformer {
    config: ModelConfig,
    embedding: RawMatrix,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    head: Head,
}

/// The output matrix.
#[derive(Debug)]
pub(super) struct Head {
    pub linear: Linear,
    /// Made of the embedding table.
    pub tied: bool,
}

/// What every layer of one forward pass shares.
struct Step<'a> {
    ctx: &'a Context,
    rows: Vec<SequenceRows<'a>>,
    slots: Vec<usize>,
    ropes: Vec<RopeTable>,
}

impl Transformer {
    pub(super) fn new(
        config: ModelConfig,
        embedding: RawMatrix,
        layers: Vec<Layer>,
        norm: Vec<f32>,
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
        layers + size_of_val(&self.norm[..]) + self.head.linear.bytes() + embedding
    }

    /// What the linear layers do for a token, the output matrix apart.
    pub fn layers_work(&self) -> Work {
        Work::of(self.layers.iter().flat_map(Layer::linears))
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
        let positions = batch.positions();
        let rope = |r: &super::config::RopeConfig| {
            rope_table(ctx, &positions, &r.frequencies, r.magnitude)
        };
        let step = Step {
            ctx,
            rows: batch.rows(),
            slots: batch.slots(),
            ropes: self.config.ropes.iter().map(rope).collect(),
        };
        let mut x = embed(
            ctx,
            &self.embedding,
            &batch.tokens(),
            self.config.embedding_scale,
        )?; // [tokens, hidden]
        for (index, layer) in self.layers.iter().enumerate() {
            self.attention_block(&step, index, layer, &mut x, kv)?;
            self.feed_forward_block(&step, layer, &mut x)?;
        }
        let last = select_rows(ctx, &x, &batch.logit_rows());
        let normed = rms_norm(ctx, &last, &self.norm, self.config.norm_eps);
        let mut logits = self.head.linear.forward(ctx, &Input::new(&normed))?; // [logit rows, vocab]
        if let Some(cap) = self.config.final_soft_cap {
            soft_cap(ctx, &mut logits, cap);
        }
        Ok(logits)
    }

    fn attention_block(
        &self,
        step: &Step<'_>,
        index: usize,
        layer: &Layer,
        x: &mut Tensor,
        kv: &mut KvCache,
    ) -> Result<()> {
        let (ctx, c) = (step.ctx, &self.config);
        let layer_config = &c.layers[index];
        let normed = rms_norm(ctx, x, &layer.attn_norm, c.norm_eps);
        let qkv = Linear::forward_all(ctx, &Input::new(&normed), &[&layer.q, &layer.k, &layer.v])?;
        let [mut q, mut k, v]: [Tensor; 3] =
            qkv.try_into().expect("three results for three layers"); // [tokens, heads * head_dim]
        if let (Some(q_norm), Some(k_norm)) = (&layer.q_norm, &layer.k_norm) {
            rms_norm_in_place(ctx, &mut q, q_norm, c.norm_eps);
            rms_norm_in_place(ctx, &mut k, k_norm, c.norm_eps);
        }
        let pairing = c.ropes[layer_config.rope].pairing;
        rope(
            ctx,
            &mut q,
            c.head_dim,
            pairing,
            &step.ropes[layer_config.rope],
        );
        rope(
            ctx,
            &mut k,
            c.head_dim,
            pairing,
            &step.ropes[layer_config.rope],
        );
        kv_write(ctx, kv.layer_mut(index), &k, &v, &step.slots);
        let options = AttentionOptions {
            scale: c.attention_scale,
            window: layer_config.window,
            soft_cap: c.attention_soft_cap,
            sinks: None,
        };
        let mixed = attention(ctx, &q, kv.layer(index), &step.rows, &options); // [tokens, heads * head_dim]
        let out = layer.o.forward(ctx, &Input::new(&mixed))?;
        self.add_residual(step, x, out, layer.post_attn_norm.as_deref());
        Ok(())
    }

    fn feed_forward_block(&self, step: &Step<'_>, layer: &Layer, x: &mut Tensor) -> Result<()> {
        let (ctx, c) = (step.ctx, &self.config);
        let normed = rms_norm(ctx, x, &layer.ffn_norm, c.norm_eps);
        let both = Linear::forward_all(ctx, &Input::new(&normed), &[&layer.gate, &layer.up])?;
        let [mut gate, up]: [Tensor; 2] = both.try_into().expect("two results for two layers"); // [tokens, intermediate]
        gated_act(ctx, c.activation, &mut gate, &up);
        let out = layer.down.forward(ctx, &Input::new(&gate))?;
        self.add_residual(step, x, out, layer.post_ffn_norm.as_deref());
        Ok(())
    }

    /// `x += norm(out)`, the norm where the family has one.
    fn add_residual(&self, step: &Step<'_>, x: &mut Tensor, mut out: Tensor, norm: Option<&[f32]>) {
        if let Some(norm) = norm {
            rms_norm_in_place(step.ctx, &mut out, norm, self.config.norm_eps);
        }
        add_assign(step.ctx, x, &out);
    }
}
