//! A gated block and a mixture of experts side by side (Gemma 4): `norm(dense(norm(x))) + norm(experts(norm(x)))`.

use super::{Dense, Moe, Norm};
use crate::error::Result;
use crate::model::work::Work;
use crate::nn::Input;
use crate::ops::elementwise::add_assign;
use crate::ops::{Context, Tensor};

/// Weights of both, with the norms that are theirs alone.
#[derive(Debug)]
pub(in crate::model) struct Twofold {
    pub dense: Dense,
    pub after_dense: Norm,
    pub moe: Moe,
    /// Of what the router sees.
    pub router_norm: Norm,
    pub before_moe: Norm,
    pub after_moe: Norm,
}

impl Twofold {
    /// What is added to the residual stream `x` `[tokens, hidden]`; the block sees `input`, which is `x` behind the layer's own
    /// norm.
    pub fn forward(&self, ctx: &Context, x: &Tensor, input: &Input<'_>) -> Result<Tensor> {
        let mut y = self.dense.forward(ctx, input)?;
        self.after_dense.forward_in_place(ctx, &mut y);
        let choice = self.router_norm.forward(ctx, x);
        let own = self.before_moe.forward(ctx, x);
        let mut mixed = self
            .moe
            .forward(ctx, &Input::new(&choice), &Input::new(&own))?;
        self.after_moe.forward_in_place(ctx, &mut mixed);
        add_assign(ctx, &mut y, &mixed);
        Ok(y)
    }

    /// What it does for a token.
    pub fn work(&self) -> Work {
        Work::of(self.dense.linears()) + self.moe.work()
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        let norms = [
            &self.after_dense,
            &self.router_norm,
            &self.before_moe,
            &self.after_moe,
        ];
        self.dense.bytes() + self.moe.bytes() + norms.map(Norm::bytes).iter().sum::<usize>()
    }
}
