//! Multi-head latent attention over the paged cache, in the space of latents.
//!
//! With the latent c of a token a head's key is `[B c, r]` (B makes keys, r is the rotated part that all heads share) and its value
//! is `V c`. The score of a query `[q, s]` is `q·(B c) + s·r = (Bᵀ q)·c + s·r`, and the weighted sum of values is V times the weighted
//! sum of latents. So the cache holds `[c, r]` as the key and c as the value of one head, whatever the number of query heads, and
//! nothing is made of cached latents again.
//! Source: DeepSeek-AI 2024, <https://arxiv.org/abs/2405.04434>, section 2.1.

use super::{Norm, Step};
use crate::error::Result;
use crate::kv::KvCache;
use crate::model::config::MlaConfig;
use crate::model::work::Work;
use crate::nn::{HeadStack, Input, Linear};
use crate::ops::Tensor;
use crate::ops::attention::{AttentionOptions, attention};
use crate::ops::elementwise::split_heads;
use crate::ops::heads::join_heads;
use crate::ops::kv_write::kv_write;
use crate::ops::rope::{Pairing, rope};

/// Weights of latent attention.
#[derive(Debug)]
pub(in crate::model) struct Mla {
    pub config: MlaConfig,
    /// Which of the cache's layers it reads.
    pub pages: usize,
    pub pairing: Pairing,
    pub queries: Queries,
    /// Gives the latent, and behind it the rotated part of keys.
    pub kv_a: Linear,
    pub kv_norm: Norm,
    /// Bᵀ of every head: `[rank, nope]`.
    pub to_latent: HeadStack,
    /// V of every head: `[value, rank]`.
    pub to_value: HeadStack,
    pub o: Linear,
}

/// What makes queries.
#[derive(Debug)]
pub(in crate::model) enum Queries {
    /// One projection.
    Direct(Linear),
    /// Two, with a normed latent between them.
    Latent { a: Linear, norm: Norm, b: Linear },
}

impl Mla {
    /// What the attention of `input` `[tokens, hidden]` adds to the residual stream; writes latents to the cache.
    pub fn forward(&self, step: &Step<'_>, input: &Input<'_>, kv: &mut KvCache) -> Result<Tensor> {
        let (ctx, c) = (step.ctx, &self.config);
        let (q, new) = self.projections(step, input)?;
        let rotate = |x: &mut Tensor| rope(ctx, x, c.rope_dim, self.pairing, &step.ropes[c.rope]);

        let (mut latent, mut shared) = split_heads(ctx, &new, c.kv_rank + c.rope_dim, c.kv_rank);
        self.kv_norm.forward_in_place(ctx, &mut latent);
        rotate(&mut shared);
        let keys = join_heads(ctx, &latent, &shared, 1); // [tokens, rank + rope]
        kv_write(ctx, kv.layer_mut(self.pages), &keys, &latent, &step.slots);

        let (plain, mut rotated) = split_heads(ctx, &q, c.query_dim(), c.nope_dim);
        drop(q);
        rotate(&mut rotated);
        let plain = self.to_latent.forward(ctx, &plain)?; // [tokens, heads * rank]
        let q = join_heads(ctx, &plain, &rotated, c.heads); // [tokens, heads * (rank + rope)]
        drop(plain);
        let options = AttentionOptions {
            scale: c.scale,
            ..AttentionOptions::default()
        };
        let mixed = attention(ctx, &q, kv.layer(self.pages), &step.rows, &options); // [tokens, heads * rank]
        drop(q);
        let mixed = self.to_value.forward(ctx, &mixed)?; // [tokens, heads * value]
        self.o.forward(ctx, &Input::new(&mixed))
    }

    /// Queries `[tokens, heads * (nope + rope)]`, and the latent of keys and values with the rotated part of keys behind it.
    fn projections(&self, step: &Step<'_>, input: &Input<'_>) -> Result<(Tensor, Tensor)> {
        let ctx = step.ctx;
        let (Queries::Direct(first) | Queries::Latent { a: first, .. }) = &self.queries;
        let both = Linear::forward_all(ctx, input, &[first, &self.kv_a])?;
        let [mut q, new]: [Tensor; 2] = both.try_into().expect("two results for two layers");
        if let Queries::Latent { norm, b, .. } = &self.queries {
            norm.forward_in_place(ctx, &mut q);
            q = b.forward(ctx, &Input::new(&q))?;
        }
        Ok((q, new))
    }

    fn linears(&self) -> Vec<&Linear> {
        let mut linears = vec![&self.kv_a, &self.o];
        match &self.queries {
            Queries::Direct(q) => linears.push(q),
            Queries::Latent { a, b, .. } => linears.extend([a, b]),
        }
        linears
    }

    /// What it does for a token.
    pub fn work(&self) -> Work {
        let stacks = [&self.to_latent, &self.to_value];
        let stacks = stacks.map(|stack| Work::product(stack.macs(), stack.bytes()));
        Work::of(self.linears()) + stacks.into_iter().sum()
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        let linears: usize = self.linears().into_iter().map(Linear::bytes).sum();
        let norm = match &self.queries {
            Queries::Direct(_) => 0,
            Queries::Latent { norm, .. } => norm.bytes(),
        };
        linears + norm + self.kv_norm.bytes() + self.to_latent.bytes() + self.to_value.bytes()
    }
}
