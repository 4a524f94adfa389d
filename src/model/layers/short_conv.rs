//! The gated short convolution (LFM2): `out(c * conv(b * x))`.

use super::Step;
use crate::error::Result;
use crate::kv::KvCache;
use crate::nn::{Input, Linear};
use crate::ops::Tensor;
use crate::ops::elementwise::mul_assign;
use crate::ops::short_conv::{self, short_conv};

/// Weights of a short convolution part.
#[derive(Debug)]
pub(in crate::model) struct ShortConv {
    /// Which of the cache's states hold its past inputs.
    pub states: usize,
    /// Gate of the inputs.
    pub b: Linear,
    /// Gate of the outputs.
    pub c: Linear,
    pub x: Linear,
    pub conv: short_conv::ShortConv,
    pub out: Linear,
}

impl ShortConv {
    /// What it makes of `input` `[tokens, hidden]`, to be added to the residual stream; moves the states on.
    pub fn forward(&self, step: &Step<'_>, input: &Input<'_>, kv: &mut KvCache) -> Result<Tensor> {
        let ctx = step.ctx;
        let layers = [&self.b, &self.c, &self.x];
        let [b, c, mut x]: [Tensor; 3] = Linear::forward_all(ctx, input, &layers)?
            .try_into()
            .expect("three results for three layers"); // [tokens, hidden]
        mul_assign(ctx, &mut x, &b);
        let past = kv.states_mut(self.states);
        let mut y = short_conv(ctx, &self.conv, &x, past, &step.states);
        mul_assign(ctx, &mut y, &c);
        self.out.forward(ctx, &Input::new(&y))
    }

    /// Its linear layers.
    pub fn linears(&self) -> [&Linear; 4] {
        [&self.b, &self.c, &self.x, &self.out]
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        let linears: usize = self.linears().map(Linear::bytes).iter().sum();
        linears + self.conv.bytes()
    }
}
