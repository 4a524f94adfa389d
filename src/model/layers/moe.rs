//! A mixture of experts: a router, experts, and perhaps a block that every token goes through besides them.

use super::Dense;
use crate::error::Result;
use crate::model::work::Work;
use crate::nn::{ExpertStack, Experts, Input, Linear};
use crate::ops::elementwise::{add_assign, scale_rows};
use crate::ops::moe::{RouterRule, route};
use crate::ops::{Context, Tensor};

/// Weights of a mixture.
#[derive(Debug)]
pub(in crate::model) struct Moe {
    pub rule: RouterRule,
    /// Multiplied in floats whatever its encoding is: a choice must not hang on rounded activations.
    pub router: Linear,
    /// Added to the router's scores for choosing.
    pub correction: Option<Vec<f32>>,
    /// Multiplies the weight of each expert.
    pub expert_scale: Option<Vec<f32>>,
    pub experts: Experts,
    pub shared: Option<Shared>,
}

/// What every token goes through besides its experts.
#[derive(Debug)]
pub(in crate::model) struct Shared {
    pub block: Dense,
    /// Its sigmoid multiplies what the block gives.
    pub switch: Option<Linear>,
}

impl Moe {
    /// What `input` `[tokens, hidden]` adds to the residual stream; the router sees `choice` `[tokens, hidden]`.
    pub fn forward(&self, ctx: &Context, choice: &Input<'_>, input: &Input<'_>) -> Result<Tensor> {
        let logits = self.router.forward(ctx, choice)?; // [tokens, experts]
        let mut routing = route(ctx, &logits, &self.rule, self.correction.as_deref());
        if let Some(scale) = &self.expert_scale {
            routing.scale_experts(scale);
        }
        let mut y = self.experts.forward(ctx, input.tensor(), &routing)?;
        if let Some(shared) = &self.shared {
            add_assign(ctx, &mut y, &shared.forward(ctx, input)?);
        }
        Ok(y)
    }

    /// What it does for a token: the experts that it uses.
    pub fn work(&self) -> Work {
        let shared = self.shared.iter().flat_map(Shared::linears);
        let used = |stack: &ExpertStack| {
            let ((macs, is_integer), top_k) = (stack.macs(), self.rule.top_k);
            Work::product(
                (macs * top_k, is_integer),
                stack.bytes() / stack.count() * top_k,
            )
        };
        Work::of(shared.chain([&self.router])) + self.experts.stacks().map(used).into_iter().sum()
    }

    /// Bytes of its weights, all experts included.
    pub fn bytes(&self) -> usize {
        let linears = self.shared.iter().flat_map(Shared::linears);
        let linears = linears.chain([&self.router]).map(Linear::bytes);
        let stacks = self.experts.stacks().map(ExpertStack::bytes);
        let vectors = self.correction.iter().chain(&self.expert_scale);
        let vectors = vectors.map(|v| size_of_val(&v[..]));
        linears.chain(stacks).chain(vectors).sum()
    }
}

impl Shared {
    fn forward(&self, ctx: &Context, input: &Input<'_>) -> Result<Tensor> {
        let mut y = self.block.forward(ctx, input)?;
        if let Some(switch) = &self.switch {
            let logits = switch.forward(ctx, input)?; // [tokens, 1]
            let sigmoid = |x: &f32| 1.0 / (1.0 + libm::expf(-x));
            let factors: Vec<f32> = logits.as_slice().iter().map(sigmoid).collect();
            scale_rows(ctx, &mut y, &factors);
        }
        Ok(y)
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.block.linears().into_iter().chain(&self.switch)
    }
}
