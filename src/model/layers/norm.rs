//! A norm with its weights.

use super::Step;
use crate::model::config::{NormConfig, NormKind};
use crate::ops::layer_norm::{layer_norm, layer_norm_in_place};
use crate::ops::norm::{rms_norm, rms_norm_in_place};
use crate::ops::{Context, Tensor};

/// A norm over rows, or over equal parts of rows as long as its weights (heads).
#[derive(Debug)]
pub(in crate::model) struct Norm {
    kind: NormKind,
    eps: f32,
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl Norm {
    /// The norm that `config` describes, whose offset is in `weight` already.
    pub fn new(config: &NormConfig, weight: Vec<f32>, bias: Option<Vec<f32>>) -> Self {
        Self {
            kind: config.kind,
            eps: config.eps,
            weight,
            bias,
        }
    }

    /// `norm(x)`, or nothing without a norm.
    pub fn of(norm: Option<&Self>, step: &Step<'_>, x: &Tensor) -> Option<Tensor> {
        norm.map(|norm| norm.forward(step.ctx, x))
    }

    /// `norm(x)` as a new tensor.
    pub fn forward(&self, ctx: &Context, x: &Tensor) -> Tensor {
        match self.kind {
            NormKind::Rms => rms_norm(ctx, x, &self.weight, self.eps),
            NormKind::Layer { .. } => {
                layer_norm(ctx, x, &self.weight, self.bias.as_deref(), self.eps)
            }
        }
    }

    /// `x = norm(x)`.
    pub fn forward_in_place(&self, ctx: &Context, x: &mut Tensor) {
        match self.kind {
            NormKind::Rms => rms_norm_in_place(ctx, x, &self.weight, self.eps),
            NormKind::Layer { .. } => {
                layer_norm_in_place(ctx, x, &self.weight, self.bias.as_deref(), self.eps);
            }
        }
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.weight[..]) + self.bias.as_ref().map_or(0, |b| size_of_val(&b[..]))
    }
}
