//! Inputs that layers have besides the residual stream (Gemma 4): a few features of each token for each layer.

use super::{Norm, Step};
use crate::error::Result;
use crate::nn::{Input, Linear};
use crate::ops::elementwise::{add_assign, scale, select_columns};
use crate::ops::embed::embed;
use crate::ops::gated_act::{Activation, gated_act};
use crate::ops::matmul::RawMatrix;
use crate::ops::{Context, Tensor};

/// Weights that make the inputs of all layers.
#[derive(Debug)]
pub(in crate::model) struct PerLayerInputs {
    /// `[vocab, layers * size]`.
    pub table: RawMatrix,
    /// Features per layer.
    pub size: usize,
    /// From the embedding, `[layers * size, hidden]`.
    pub projection: Linear,
    /// Over the features of each layer.
    pub norm: Norm,
}

/// A layer's part that reads its own input.
#[derive(Debug)]
pub(in crate::model) struct PerLayer {
    /// The first of its features.
    pub first: usize,
    /// How many there are.
    pub size: usize,
    pub activation: Activation,
    pub gate: Linear,
    pub out: Linear,
    pub norm: Norm,
}

impl PerLayerInputs {
    /// The inputs of all layers, `[tokens, layers * size]`, for `tokens` whose scaled embeddings are `x` `[tokens, hidden]`.
    ///
    /// # Errors
    /// `Invalid` for a token outside the table.
    pub fn forward(&self, ctx: &Context, tokens: &[u32], x: &Tensor) -> Result<Tensor> {
        let mut inputs = self.projection.forward(ctx, &Input::new(x))?;
        scale(ctx, &mut inputs, 1.0 / (x.cols() as f32).sqrt());
        self.norm.forward_in_place(ctx, &mut inputs);
        let own = embed(ctx, &self.table, tokens, (self.size as f32).sqrt())?;
        add_assign(ctx, &mut inputs, &own);
        scale(ctx, &mut inputs, std::f32::consts::FRAC_1_SQRT_2);
        Ok(inputs)
    }

    /// What the projection does for a token.
    pub fn linears(&self) -> [&Linear; 1] {
        [&self.projection]
    }

    /// Bytes of its weights; all of the table, of which only the rows that are read become resident.
    pub fn bytes(&self) -> usize {
        self.table.bytes().len() + self.projection.bytes() + self.norm.bytes()
    }
}

impl PerLayer {
    /// What is added to the residual stream `x` `[tokens, hidden]`.
    pub fn forward(&self, step: &Step<'_>, x: &Tensor) -> Result<Tensor> {
        let ctx = step.ctx;
        let inputs = step.per_layer.as_ref();
        let inputs = inputs.expect("a model with such layers makes their inputs");
        let mut gate = self.gate.forward(ctx, &Input::new(x))?; // [tokens, size]
        let own = select_columns(ctx, inputs, self.first, self.size);
        gated_act(ctx, self.activation, &mut gate, &own);
        let mut y = self.out.forward(ctx, &Input::new(&gate))?;
        self.norm.forward_in_place(ctx, &mut y);
        Ok(y)
    }

    /// Its linear layers.
    pub fn linears(&self) -> [&Linear; 2] {
        [&self.gate, &self.out]
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        let linears: usize = self.linears().map(Linear::bytes).iter().sum();
        linears + self.norm.bytes()
    }
}
