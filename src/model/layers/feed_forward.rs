//! The gated feed-forward block: `down(act(gate(x)) * up(x))`.

use crate::error::Result;
use crate::nn::{Input, Linear};
use crate::ops::gated_act::{Activation, gated_act};
use crate::ops::{Context, Tensor};

/// Weights of a gated block.
#[derive(Debug)]
pub(in crate::model) struct Dense {
    pub activation: Activation,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

impl Dense {
    /// What `input` `[tokens, hidden]` adds to the residual stream.
    pub fn forward(&self, ctx: &Context, input: &Input<'_>) -> Result<Tensor> {
        let both = Linear::forward_all(ctx, input, &[&self.gate, &self.up])?;
        let [mut gate, up]: [Tensor; 2] = both.try_into().expect("two results for two layers"); // [tokens, intermediate]
        gated_act(ctx, self.activation, &mut gate, &up);
        self.down.forward(ctx, &Input::new(&gate))
    }

    /// Its linear layers.
    pub fn linears(&self) -> [&Linear; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        self.linears().map(Linear::bytes).iter().sum()
    }
}
