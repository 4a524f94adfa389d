//! Inputs of layers besides the residual stream: what makes them, and the part of a layer that reads its own.

use super::tensors::Tensors;
use crate::error::Result;
use crate::model::config::{BiasPresence, ModelConfig};
use crate::model::layers::{PerLayer, PerLayerInputs};
use crate::model::names::Part;

pub(super) fn load_inputs(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
) -> Result<Option<PerLayerInputs>> {
    let Some(own) = &config.per_layer_inputs else {
        return Ok(None);
    };
    let all = config.layers.len() * own.size;
    let table = tensors.weight_name(None, Part::PerLayerEmbedding);
    let table = tensors.file.table(&table, own.vocab_size, all)?;
    let name = tensors.weight_name(None, Part::PerLayerProjection);
    let projection = tensors.file.matrix(&name, all, config.hidden_size)?;
    let projection = tensors.file.build(&projection, None);
    Ok(Some(PerLayerInputs {
        table,
        size: own.size,
        projection: projection.map_err(|e| tensors.file.in_tensor(&name, e))?,
        norm: tensors.norm(None, Part::PerLayerProjectionNorm, own.size, &config.norm)?,
    }))
}

pub(super) fn load(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
) -> Result<Option<PerLayer>> {
    let Some(own) = &config.per_layer_inputs else {
        return Ok(None);
    };
    let (hidden, size) = (config.hidden_size, own.size);
    let mut linear = |part: Part, out: usize, inn: usize| {
        tensors.linear(index, part, out, inn, BiasPresence::Absent)
    };
    Ok(Some(PerLayer {
        first: index * size,
        size,
        activation: own.activation,
        gate: linear(Part::PerLayerGate, size, hidden)?,
        out: linear(Part::PerLayerOut, hidden, size)?,
        norm: tensors.norm(Some(index), Part::PerLayerNorm, hidden, &config.norm)?,
    }))
}

/// The stored factor of what a layer gives.
pub(super) fn output_scale(
    tensors: &mut Tensors<'_>,
    config: &ModelConfig,
    index: usize,
) -> Result<Option<f32>> {
    let name = tensors.bare_name(index, Part::OutputScale);
    let presence = config.layers[index].output_scale;
    let scale = tensors.file.find_vector(&name, 1, presence)?;
    Ok(scale.map(|one| one[0]))
}
