//! Softmax attention over the paged cache.

use super::{Norm, Step};
use crate::error::Result;
use crate::kv::KvCache;
use crate::model::config::{AttentionConfig, QueryScaling};
use crate::nn::{Input, Linear};
use crate::ops::attention::{AttentionOptions, attention};
use crate::ops::elementwise::{clamp, scale_rows, select_columns, sigmoid_mul, split_heads};
use crate::ops::kv_write::kv_write;
use crate::ops::rope::rope;
use crate::ops::{Context, Tensor};

/// Weights of an attention part.
#[derive(Debug)]
pub(in crate::model) struct Attention {
    pub config: AttentionConfig,
    /// Which of the cache's layers it reads.
    pub pages: usize,
    pub pairing: crate::ops::rope::Pairing,
    pub q: Linear,
    pub q_norm: Option<Norm>,
    /// `None`: it reads the keys and values of another layer.
    pub keys: Option<Keys>,
    /// One logit per head, which takes part in the softmax and has no value.
    pub sinks: Option<Vec<f32>>,
    pub o: Linear,
}

/// What makes keys and values.
#[derive(Debug)]
pub(in crate::model) struct Keys {
    pub k: Linear,
    /// `None`: values are the keys as `k` gives them.
    pub v: Option<Linear>,
    pub k_norm: Option<Norm>,
    pub v_norm: Option<Norm>,
}

impl Attention {
    /// What the attention of `input` `[tokens, hidden]` adds to the residual stream; writes keys and values to the cache.
    pub fn forward(&self, step: &Step<'_>, input: &Input<'_>, kv: &mut KvCache) -> Result<Tensor> {
        let (ctx, c) = (step.ctx, &self.config);
        let (mut q, new) = match &self.keys {
            Some(keys) => {
                let mut layers = vec![&self.q, &keys.k];
                layers.extend(&keys.v);
                let mut qkv = Linear::forward_all(ctx, input, &layers)?.into_iter(); // [tokens, heads * head_dim]
                let mut next = || qkv.next().expect("one result per layer");
                let (q, k) = (next(), next());
                let v = match &keys.v {
                    Some(_) => next(),
                    None => select_columns(ctx, &k, 0, k.cols()),
                };
                (q, Some((keys, k, v)))
            }
            None => (self.q.forward(ctx, input)?, None),
        };
        let gate = c.output_gate.then(|| {
            // Per head: the query, then its gate.
            let (query, gate) = split_heads(ctx, &q, 2 * c.key_dim, c.key_dim);
            q = query;
            gate
        });
        self.position(step, &mut q, self.q_norm.as_ref());
        if let Some(scaling) = &c.query_scaling {
            scale_rows(ctx, &mut q, &growth(scaling, &step.positions));
        }
        if let Some((keys, mut k, mut v)) = new {
            self.position(step, &mut k, keys.k_norm.as_ref());
            clip(ctx, &mut v, c.qkv_clip);
            if let Some(norm) = &keys.v_norm {
                norm.forward_in_place(ctx, &mut v);
            }
            kv_write(ctx, kv.layer_mut(self.pages), &k, &v, &step.slots);
        }
        let options = AttentionOptions {
            scale: c.scale,
            window: c.window,
            soft_cap: c.soft_cap,
            sinks: self.sinks.as_deref(),
        };
        let mut mixed = attention(ctx, &q, kv.layer(self.pages), &step.rows, &options); // [tokens, heads * value_dim]
        if let Some(gate) = &gate {
            sigmoid_mul(ctx, &mut mixed, gate);
        }
        self.o.forward(ctx, &Input::new(&mixed))
    }

    /// Norms, clamps (in this order, as `OlmoeAttention` of the transformers package) and rotates queries or keys.
    fn position(&self, step: &Step<'_>, x: &mut Tensor, norm: Option<&Norm>) {
        let c = &self.config;
        if let Some(norm) = norm {
            norm.forward_in_place(step.ctx, x);
        }
        clip(step.ctx, x, c.qkv_clip);
        if let Some(index) = c.rope {
            rope(step.ctx, x, c.key_dim, self.pairing, &step.ropes[index]);
        }
    }

    /// Its linear layers.
    pub fn linears(&self) -> Vec<&Linear> {
        let keys = self.keys.iter();
        let keys = keys.flat_map(|keys| std::iter::once(&keys.k).chain(&keys.v));
        [&self.q, &self.o].into_iter().chain(keys).collect()
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        let keys = self.keys.iter();
        let kv_norms = keys.flat_map(|keys| keys.k_norm.iter().chain(&keys.v_norm));
        let norms = self.q_norm.iter().chain(kv_norms).map(Norm::bytes);
        let linears = self.linears().into_iter().map(Linear::bytes);
        let sinks = self.sinks.iter().map(|sinks| size_of_val(&sinks[..]));
        linears.chain(norms).chain(sinks).sum()
    }
}

fn clip(ctx: &Context, x: &mut Tensor, limit: Option<f32>) {
    if let Some(limit) = limit {
        clamp(ctx, x, -limit, limit);
    }
}

/// The factor of the query at each position.
fn growth(scaling: &QueryScaling, positions: &[u32]) -> Vec<f32> {
    let of = |position: u32| {
        let times = (position as usize / scaling.original) as f32;
        1.0 + scaling.beta * libm::logf(1.0 + times)
    };
    positions.iter().map(|&p| of(p)).collect()
}
