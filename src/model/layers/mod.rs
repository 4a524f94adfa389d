//! Layers: weights with their forward functions.
//!
//! | file | owns |
//! |---|---|
//! | `norm.rs` | a norm with its weights |
//! | `attention.rs` | softmax attention over the paged cache |
//! | `mla.rs` | the same over latents |
//! | `delta_net.rs` | the gated delta rule |
//! | `short_conv.rs` | the gated short convolution |
//! | `feed_forward.rs` | the gated block |
//! | `moe.rs` | a mixture of experts |
//! | `twofold.rs` | the gated block and a mixture side by side |
//! | `per_layer.rs` | inputs besides the residual stream |
//!
//! A new kind of part is a file here with a struct of weights, whose `forward` takes the step and the normed residual
//! stream and returns what is added to it, and a variant of [`Mixer`] or [`FeedForward`]. Its config is in `config.rs`,
//! its loader in `load/`.

mod attention;
mod delta_net;
mod feed_forward;
mod mla;
mod moe;
mod norm;
mod per_layer;
mod short_conv;
mod twofold;

pub(in crate::model) use attention::{Attention, Keys};
pub(in crate::model) use delta_net::DeltaNet;
pub(in crate::model) use feed_forward::Dense;
pub(in crate::model) use mla::{Mla, Queries};
pub(in crate::model) use moe::{Moe, Shared};
pub(in crate::model) use norm::Norm;
pub(in crate::model) use per_layer::{PerLayer, PerLayerInputs};
pub(in crate::model) use short_conv::ShortConv;
pub(in crate::model) use twofold::Twofold;

use super::config::NormPlacement;
use super::work::Work;
use crate::error::Result;
use crate::kv::KvCache;
use crate::nn::Input;
use crate::ops::attention::SequenceRows;
use crate::ops::elementwise::{add_assign, scale};
use crate::ops::rope::RopeTable;
use crate::ops::states::StateRows;
use crate::ops::{Context, Tensor};

/// What every layer of one forward pass shares.
pub(in crate::model) struct Step<'a> {
    pub ctx: &'a Context,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// Rows of each sequence.
    pub rows: Vec<SequenceRows<'a>>,
    /// The same rows, with where their recurrent states lie.
    pub states: Vec<StateRows<'a>>,
    /// Where each row's key and value go.
    pub slots: Vec<usize>,
    /// One table per rotation in use.
    pub ropes: Vec<RopeTable>,
    /// Multiplies what is added to the residual stream.
    pub residual_scale: f32,
    /// Inputs of all layers besides the residual stream, layer after layer.
    pub per_layer: Option<Tensor>,
}

/// The part of a layer that looks at other tokens.
#[derive(Debug)]
pub(in crate::model) enum Mixer {
    Attention(Attention),
    Mla(Box<Mla>),
    DeltaNet(DeltaNet),
    ShortConv(ShortConv),
}

/// The part of a layer that looks at its own token.
#[derive(Debug)]
pub(in crate::model) enum FeedForward {
    Dense(Box<Dense>),
    Moe(Box<Moe>),
    Twofold(Box<Twofold>),
}

/// Norms of a layer, those that its placement has.
#[derive(Debug, Default)]
pub(in crate::model) struct LayerNorms {
    pub before_mixer: Option<Norm>,
    pub after_mixer: Option<Norm>,
    pub before_feed_forward: Option<Norm>,
    pub after_feed_forward: Option<Norm>,
}

/// One layer.
#[derive(Debug)]
pub(in crate::model) struct Layer {
    pub placement: NormPlacement,
    pub norms: LayerNorms,
    pub mixer: Mixer,
    pub feed_forward: FeedForward,
    /// Reads the layer's own input, behind the feed-forward part.
    pub per_layer: Option<PerLayer>,
    /// Multiplies what the layer gives, the residual stream included.
    pub output_scale: Option<f32>,
}

impl Layer {
    /// Computes the layer: `x` `[tokens, hidden]` is the residual stream.
    pub fn forward(&self, step: &Step<'_>, x: &mut Tensor, kv: &mut KvCache) -> Result<()> {
        self.add_parts(step, x, kv)?;
        if let Some(part) = &self.per_layer {
            let own = part.forward(step, x)?;
            add(step, x, own, None);
        }
        if let Some(factor) = self.output_scale {
            scale(step.ctx, x, factor);
        }
        Ok(())
    }

    /// Mixer and feed-forward part.
    fn add_parts(&self, step: &Step<'_>, x: &mut Tensor, kv: &mut KvCache) -> Result<()> {
        let norms = &self.norms;
        if self.placement == NormPlacement::Parallel {
            let normed = Norm::of(norms.before_mixer.as_ref(), step, x);
            let input = Input::new(normed.as_ref().unwrap_or(x));
            let mixed = self.mixer.forward(step, &input, kv)?;
            let fed = self.feed_forward.forward(step, x, &input)?;
            drop(input);
            // In the reference's order: residual + attention + feed-forward.
            add(step, x, mixed, None);
            add(step, x, fed, None);
            return Ok(());
        }
        let normed = Norm::of(norms.before_mixer.as_ref(), step, x);
        let mixed = self
            .mixer
            .forward(step, &Input::new(normed.as_ref().unwrap_or(x)), kv)?;
        add(step, x, mixed, norms.after_mixer.as_ref());
        let normed = Norm::of(norms.before_feed_forward.as_ref(), step, x);
        let fed = self
            .feed_forward
            .forward(step, x, &Input::new(normed.as_ref().unwrap_or(x)))?;
        add(step, x, fed, norms.after_feed_forward.as_ref());
        Ok(())
    }

    /// What it does for a token.
    pub fn work(&self) -> Work {
        let per_layer = self.per_layer.iter().flat_map(PerLayer::linears);
        self.mixer.work() + self.feed_forward.work() + Work::of(per_layer)
    }

    /// Bytes of its weights.
    pub fn bytes(&self) -> usize {
        let n = &self.norms;
        let norms = [
            &n.before_mixer,
            &n.after_mixer,
            &n.before_feed_forward,
            &n.after_feed_forward,
        ];
        let norms: usize = norms.into_iter().flatten().map(Norm::bytes).sum();
        let per_layer = self.per_layer.as_ref().map_or(0, PerLayer::bytes);
        let scale = self.output_scale.map_or(0, |scale| size_of_val(&scale));
        norms + self.mixer.bytes() + self.feed_forward.bytes() + per_layer + scale
    }
}

/// `x += scale * norm(part)`, the norm where there is one.
fn add(step: &Step<'_>, x: &mut Tensor, mut part: Tensor, norm: Option<&Norm>) {
    if let Some(norm) = norm {
        norm.forward_in_place(step.ctx, &mut part);
    }
    if step.residual_scale != 1.0 {
        scale(step.ctx, &mut part, step.residual_scale);
    }
    add_assign(step.ctx, x, &part);
}

impl Mixer {
    fn forward(&self, step: &Step<'_>, input: &Input<'_>, kv: &mut KvCache) -> Result<Tensor> {
        match self {
            Self::Attention(attention) => attention.forward(step, input, kv),
            Self::Mla(mla) => mla.forward(step, input, kv),
            Self::DeltaNet(delta_net) => delta_net.forward(step, input, kv),
            Self::ShortConv(conv) => conv.forward(step, input, kv),
        }
    }

    fn work(&self) -> Work {
        match self {
            Self::Attention(attention) => Work::of(attention.linears()),
            Self::Mla(mla) => mla.work(),
            Self::DeltaNet(delta_net) => delta_net.work(),
            Self::ShortConv(conv) => Work::of(conv.linears()),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Attention(attention) => attention.bytes(),
            Self::Mla(mla) => mla.bytes(),
            Self::DeltaNet(delta_net) => delta_net.bytes(),
            Self::ShortConv(conv) => conv.bytes(),
        }
    }
}

impl FeedForward {
    /// What the part adds to the residual stream `x`, of which `input` is the normed one.
    fn forward(&self, step: &Step<'_>, x: &Tensor, input: &Input<'_>) -> Result<Tensor> {
        match self {
            Self::Dense(dense) => dense.forward(step.ctx, input),
            Self::Moe(moe) => moe.forward(step.ctx, input, input),
            Self::Twofold(both) => both.forward(step.ctx, x, input),
        }
    }

    fn work(&self) -> Work {
        match self {
            Self::Dense(dense) => Work::of(dense.linears()),
            Self::Moe(moe) => moe.work(),
            Self::Twofold(both) => both.work(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.bytes(),
            Self::Moe(moe) => moe.bytes(),
            Self::Twofold(both) => both.bytes(),
        }
    }
}
