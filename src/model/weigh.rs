//! Bytes of weights before they are loaded, from headers alone.

use super::config::ModelConfig;
use super::names::{ModelWeight, Names};
use crate::formats::{TensorInfo, TensorSource, Weights};
use crate::nn::WeightPath;
use crate::ops::qmatmul::QMatrix;

/// What [`Transformer::weight_bytes`](super::Transformer::weight_bytes) will say of the model in `weights` when it is loaded
/// for `path`. Checks nothing: a tensor that loading refuses counts as far as its size is known.
pub fn weigh(weights: &Weights, config: &ModelConfig, path: WeightPath) -> usize {
    let names = Names::of(weights, config.sandwich_norms);
    let is =
        |canonical: &str, weight| canonical.strip_suffix(".weight") == Some(names.model(weight));
    let tensors: Vec<(String, &TensorInfo)> = weights
        .tensors()
        .iter()
        .filter_map(|tensor| Some((names.canonical(&tensor.name)?, tensor)))
        .filter(|(canonical, _)| canonical != "rope_freqs.weight")
        .collect();
    let has_head = tensors
        .iter()
        .any(|(canonical, _)| is(canonical, ModelWeight::Head));
    let is_tied = !has_head && config.tied_head != Some(false);
    tensors
        .iter()
        .map(|(canonical, tensor)| match tensor.shape[..] {
            [rows, cols] if is(canonical, ModelWeight::Embedding) && !is_tied => {
                mapped_bytes(tensor, rows, cols)
            }
            [rows, cols] => match path {
                WeightPath::Fast => QMatrix::packed_bytes(tensor.encoding, rows, cols)
                    .unwrap_or_else(|| mapped_bytes(tensor, rows, cols)),
                WeightPath::Reference => mapped_bytes(tensor, rows, cols),
            },
            // Norms and biases are decoded.
            _ => tensor.num_elements() * size_of::<f32>(),
        })
        .sum()
}

fn mapped_bytes(tensor: &TensorInfo, rows: usize, cols: usize) -> usize {
    tensor
        .encoding
        .row_bytes(cols)
        .unwrap_or(0)
        .saturating_mul(rows)
}
