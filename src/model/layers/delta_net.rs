//! The gated delta rule (Qwen3.5's linear attention): a convolution, the rule over a memory per head, a gated norm.

use super::{Norm, Step};
use crate::error::Result;
use crate::kv::KvCache;
use crate::model::work::Work;
use crate::nn::{Input, Linear};
use crate::ops::delta_net::{DeltaInput, DeltaRule, delta_net};
use crate::ops::gated_act::{Activation, gated_act};
use crate::ops::short_conv::{ShortConv, short_conv};
use crate::ops::{Context, Tensor};

/// Weights of a delta rule part.
#[derive(Debug)]
pub(in crate::model) struct DeltaNet {
    /// Number of the layer, for what is said about it.
    pub layer: usize,
    /// Which of the cache's states hold its past inputs; the next one holds its memory.
    pub states: usize,
    /// Queries, keys and values, before the convolution.
    pub qkv: Linear,
    /// Gate of the output.
    pub z: Linear,
    /// What decays.
    pub a: Linear,
    /// How strongly is written.
    pub b: Linear,
    pub conv: ShortConv,
    pub rule: DeltaRule,
    /// Over each value head.
    pub norm: Norm,
    pub out: Linear,
    /// Look for values that are not finite after each stage.
    pub probe: bool,
}

impl DeltaNet {
    /// What it makes of `input` `[tokens, hidden]`, to be added to the residual stream; moves the states on.
    pub fn forward(&self, step: &Step<'_>, input: &Input<'_>, kv: &mut KvCache) -> Result<Tensor> {
        let ctx = step.ctx;
        let layers = [&self.qkv, &self.z, &self.a, &self.b];
        let [qkv, mut z, a, b]: [Tensor; 4] = Linear::forward_all(ctx, input, &layers)?
            .try_into()
            .expect("four results for four layers");
        let stages = [("qkv", &qkv), ("z", &z), ("a", &a), ("b", &b)];
        for (stage, x) in stages {
            self.look(ctx, stage, x);
        }
        let past = kv.states_mut(self.states);
        let mut qkv = short_conv(ctx, &self.conv, &qkv, past, &step.states); // [tokens, q | k | v]
        self.look(ctx, "convolution", &qkv);
        let input = DeltaInput {
            qkv: &mut qkv,
            a: &a,
            b: &b,
        };
        let memory = kv.states_mut(self.states + 1);
        let mut mixed = delta_net(ctx, &self.rule, input, memory, &step.states); // [tokens, value_heads * value_dim]
        self.look(ctx, "delta rule", &mixed);
        self.norm.forward_in_place(ctx, &mut mixed);
        gated_act(ctx, Activation::Silu, &mut z, &mixed);
        self.look(ctx, "gated norm", &z);
        let out = self.out.forward(ctx, &Input::new(&z))?;
        self.look(ctx, "output", &out);
        Ok(out)
    }

    /// With `OXYDLLM_GDN_DEBUG`: says where values that are not finite appear.
    fn look(&self, ctx: &Context, stage: &str, x: &Tensor) {
        if !self.probe {
            return;
        }
        let found = |x: &f32| !x.is_finite();
        let (layer, level) = (self.layer, ctx.level());
        match x.as_slice().iter().position(found) {
            None => tracing::debug!(layer, stage, rows = x.rows(), "delta rule: all finite"),
            Some(at) => {
                let count = x.as_slice().iter().filter(|x| found(x)).count();
                let (row, column) = (at / x.cols(), at % x.cols());
                tracing::warn!(layer, stage, count, row, column, %level, "delta rule: not finite");
            }
        }
    }

    /// Its linear layers.
    pub fn linears(&self) -> [&Linear; 5] {
        [&self.qkv, &self.z, &self.a, &self.b, &self.out]
    }

    /// What it does for a token: its linear layers, and the memory read twice, decayed and written.
    pub fn work(&self) -> Work {
        let mut work = Work::of(self.linears());
        work.f32_macs += 4 * self.rule.shape().state_len();
        work
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        let linears: usize = self.linears().map(Linear::bytes).iter().sum();
        linears + self.conv.bytes() + self.rule.bytes() + self.norm.bytes()
    }
}
