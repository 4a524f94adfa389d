//! The gated block: gate and up by themselves or fused, and down.

use super::tensors::Tensors;
use crate::error::Result;
use crate::model::config::{DenseConfig, ModelConfig};
use crate::model::layers::Dense;
use crate::model::names::Part;

pub(super) fn load(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
    own: &DenseConfig,
) -> Result<Dense> {
    let (hidden, inner) = (config.hidden_size, own.intermediate);
    let parts = [(Part::Gate, inner), (Part::Up, inner)];
    let [gate, up] = tensors.rows_of(index, Part::GateUp, parts, hidden, own.bias)?;
    Ok(Dense {
        activation: own.activation,
        gate,
        up,
        down: tensors.linear(index, Part::Down, hidden, inner, own.bias)?,
    })
}
