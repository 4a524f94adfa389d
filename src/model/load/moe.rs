//! A mixture of experts: its router, its experts, the block besides them.

use super::tensors::Tensors;
use super::{experts, feed_forward};
use crate::error::Result;
use crate::model::config::{
    ModelConfig, MoeConfig, NormConfig, NormKind, SharedConfig, TwofoldConfig,
};
use crate::model::layers::{Moe, Norm, Shared, Twofold};
use crate::model::names::Part;

pub(super) fn load(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
    own: &MoeConfig,
) -> Result<Moe> {
    let hidden = config.hidden_size;
    let router = tensors.exact_linear(index, Part::Router, own.experts, hidden, own.router_bias)?;
    let correction = own.has_correction.then(|| {
        let name = tensors.correction_name(index);
        tensors.file.vector(&name, own.experts)
    });
    let correction = correction.transpose()?;
    let expert_scale = own.has_expert_scale.then(|| {
        let name = tensors.stem(index, Part::ExpertScale);
        tensors.file.vector(&name, own.experts)
    });
    let expert_scale = expert_scale.transpose()?;
    let shared = own.shared.as_ref();
    Ok(Moe {
        rule: own.router,
        router,
        correction,
        expert_scale,
        experts: experts::load(tensors, index, hidden, own)?,
        shared: shared
            .map(|own| load_shared(tensors, index, hidden, own))
            .transpose()?,
    })
}

/// A gated block and a mixture side by side, with their norms.
pub(super) fn load_twofold(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
    own: &TwofoldConfig,
) -> Result<Twofold> {
    let hidden = config.hidden_size;
    let mut norm = |part| tensors.norm(Some(index), part, hidden, &config.norm);
    let (after_dense, before_moe, after_moe) = (
        norm(Part::PostDenseNorm)?,
        norm(Part::PreMoeNorm)?,
        norm(Part::PostMoeNorm)?,
    );
    Ok(Twofold {
        dense: feed_forward::load(tensors, config, index, &own.dense)?,
        after_dense,
        moe: load(tensors, config, index, &own.moe)?,
        router_norm: router_norm(tensors, config, index)?,
        before_moe,
        after_moe,
    })
}

/// A norm without weights, times the stored vector, times hidden^-0.5.
fn router_norm(tensors: &mut Tensors<'_>, config: &ModelConfig, index: usize) -> Result<Norm> {
    let name = tensors.stem(index, Part::RouterScale);
    let mut scale = tensors.file.vector(&name, config.hidden_size)?;
    let root = 1.0 / (config.hidden_size as f32).sqrt();
    scale.iter_mut().for_each(|x| *x *= root);
    let rule = NormConfig {
        kind: NormKind::Rms,
        ..config.norm
    };
    Ok(Norm::new(&rule, scale, None))
}

fn load_shared(
    tensors: &mut Tensors<'_>,
    index: usize,
    hidden: usize,
    own: &SharedConfig,
) -> Result<Shared> {
    let parts = [
        Part::SharedGate,
        Part::SharedUp,
        Part::SharedGateUp,
        Part::SharedDown,
    ];
    let block = feed_forward::block(tensors, index, parts, hidden, &own.block)?;
    let switch = own
        .is_gated
        .then(|| tensors.exact_row(index, Part::SharedSwitch, hidden));
    Ok(Shared {
        block,
        switch: switch.transpose()?,
    })
}
