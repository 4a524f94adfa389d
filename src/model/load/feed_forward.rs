//! The gated block: gate and up by themselves or fused, and down.

use super::tensors::Tensors;
use crate::error::Result;
use crate::model::config::{DenseConfig, ModelConfig};
use crate::model::layers::Dense;
use crate::model::names::Part;

/// Names of the four tensors that a gated block may have: gate, up, both of them fused, down.
pub(super) type BlockParts = [Part; 4];

pub(super) fn load(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
    own: &DenseConfig,
) -> Result<Dense> {
    const PARTS: BlockParts = [Part::Gate, Part::Up, Part::GateUp, Part::Down];
    block(tensors, index, PARTS, config.hidden_size, own)
}

/// A gated block of tensors of these names.
pub(super) fn block(
    tensors: &mut Tensors<'_>,
    index: usize,
    [gate, up, both, down]: BlockParts,
    hidden: usize,
    own: &DenseConfig,
) -> Result<Dense> {
    let inner = own.intermediate;
    let parts = [(gate, inner), (up, inner)];
    let [gate, up] = tensors.rows_of(index, both, parts, hidden, own.bias)?;
    Ok(Dense {
        activation: own.activation,
        gate,
        up,
        down: tensors.linear(index, down, hidden, inner, own.bias)?,
    })
}
