//! A mixture of experts: its router, its experts, the block besides them.

use super::tensors::Tensors;
use super::{experts, feed_forward};
use crate::error::Result;
use crate::model::config::{ModelConfig, MoeConfig, SharedConfig};
use crate::model::layers::{Moe, Shared};
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
    let shared = own.shared.as_ref();
    Ok(Moe {
        rule: own.router,
        router,
        correction,
        experts: experts::load(tensors, index, hidden, own)?,
        shared: shared
            .map(|own| load_shared(tensors, index, hidden, own))
            .transpose()?,
    })
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
