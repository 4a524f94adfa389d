//! The experts of a layer, in whatever way files store them: one tensor per expert and matrix, or all experts in one tensor, gate
//! and up by themselves or fused, MXFP4 as blocks and scales in two tensors.

use std::ops::Range;
use std::sync::Arc;

use super::tensors::Tensors;
use crate::error::{Error, Result};
use crate::formats::TensorView;
use crate::model::arch::rules::ExpertKind;
use crate::model::checkpoint::Stacked;
use crate::model::config::{BiasPresence, MoeConfig};
use crate::model::names::Part;
use crate::nn::{ExpertStack, Experts, StackShape};
use crate::ops::matmul::RawMatrix;
use crate::quant::Encoding;
use crate::quant::layout::mxfp4;

/// Input features of a block of MXFP4.
const BLOCK: usize = mxfp4::BLOCK_LEN;

pub(super) fn load(
    tensors: &mut Tensors<'_>,
    layer: usize,
    hidden: usize,
    own: &MoeConfig,
) -> Result<Experts> {
    let (fused, stacked) = (
        tensors.stack_name(layer, Part::ExpertsGateUp),
        tensors.stack_name(layer, Part::ExpertsGate),
    );
    let blocks = format!("{}_blocks", tensors.stem(layer, Part::ExpertsGateUp));
    let [gate, up, down] = if tensors.file.has(&blocks) {
        from_blocks(tensors, layer, hidden, own)?
    } else if let Some(fused) = fused {
        match own.kind {
            ExpertKind::GptOss if !tensors.is_gguf() => {
                from_transposed(tensors, layer, hidden, own, &fused)?
            }
            _ => from_fused(tensors, layer, hidden, own, &fused)?,
        }
    } else if stacked.is_some() {
        from_stacked(tensors, layer, hidden, own)?
    } else {
        one_by_one(tensors, layer, hidden, own)?
    };
    Ok(Experts {
        activation: own.activation,
        gate,
        up,
        down,
    })
}

/// gate, up and down.
type Stacks = [ExpertStack; 3];

/// `[experts, 2 * intermediate, hidden]` and `[experts, hidden, intermediate]`.
fn from_fused(
    tensors: &mut Tensors<'_>,
    layer: usize,
    hidden: usize,
    own: &MoeConfig,
    name: &str,
) -> Result<Stacks> {
    let (count, inner) = (own.experts, own.intermediate);
    let both = tensors.file.stacked(name, count, 2 * inner, hidden)?;
    let part = |rows: Range<usize>| -> Result<Vec<RawMatrix>> {
        (0..count).map(|e| both.rows(e, rows.clone())).collect()
    };
    let (gates, ups) = (part(0..inner)?, part(inner..2 * inner)?);
    let (gate_bias, up_bias) = match biases(tensors, layer, Part::ExpertsGateUp, 2 * inner, own)? {
        Some(bias) => (
            Some(picked(&bias, 2 * inner, 0, 1, inner)),
            Some(picked(&bias, 2 * inner, inner, 1, inner)),
        ),
        None => (None, None),
    };
    Ok([
        tensors.file.experts(gates, gate_bias)?,
        tensors.file.experts(ups, up_bias)?,
        down(tensors, layer, hidden, own)?,
    ])
}

/// `[experts, intermediate, hidden]` twice, and `[experts, hidden, intermediate]`.
fn from_stacked(
    tensors: &mut Tensors<'_>,
    layer: usize,
    hidden: usize,
    own: &MoeConfig,
) -> Result<Stacks> {
    let inner = own.intermediate;
    Ok([
        stack(tensors, layer, Part::ExpertsGate, [inner, hidden], own)?,
        stack(tensors, layer, Part::ExpertsUp, [inner, hidden], own)?,
        down(tensors, layer, hidden, own)?,
    ])
}

fn down(
    tensors: &mut Tensors<'_>,
    layer: usize,
    hidden: usize,
    own: &MoeConfig,
) -> Result<ExpertStack> {
    let shape = [hidden, own.intermediate];
    stack(tensors, layer, Part::ExpertsDown, shape, own)
}

/// One tensor for a matrix of all experts.
fn stack(
    tensors: &mut Tensors<'_>,
    layer: usize,
    part: Part,
    [rows, cols]: [usize; 2],
    own: &MoeConfig,
) -> Result<ExpertStack> {
    let name = tensors.stack_name(layer, part);
    // A name that is not there is refused as missing.
    let name = name.unwrap_or_else(|| tensors.weight_name(Some(layer), part));
    let stacked = tensors.file.stacked(&name, own.experts, rows, cols)?;
    let matrices = (0..own.experts).map(|e| stacked.matrix(e));
    let matrices = matrices.collect::<Result<Vec<_>>>()?;
    let bias = biases(tensors, layer, part, rows, own)?;
    let built = tensors.file.experts(matrices, bias);
    built.map_err(|e| tensors.file.in_tensor(&name, e))
}

/// One tensor per expert and matrix.
fn one_by_one(
    tensors: &mut Tensors<'_>,
    layer: usize,
    hidden: usize,
    own: &MoeConfig,
) -> Result<Stacks> {
    let inner = own.intermediate;
    let parts = [
        (Part::ExpertGate, inner, hidden),
        (Part::ExpertUp, inner, hidden),
        (Part::ExpertDown, hidden, inner),
    ];
    let mut stacks = Vec::with_capacity(parts.len());
    for (part, rows, cols) in parts {
        let stem = tensors.stem(layer, part);
        let of = |e: usize| stem.replace("{}", &e.to_string());
        let mut matrices = Vec::with_capacity(own.experts);
        let mut bias = Vec::new();
        for e in 0..own.experts {
            matrices.push(
                tensors
                    .file
                    .matrix(&format!("{}.weight", of(e)), rows, cols)?,
            );
            if own.expert_bias == BiasPresence::Required {
                bias.extend(tensors.file.vector(&format!("{}.bias", of(e)), rows)?);
            }
        }
        let built = tensors
            .file
            .experts(matrices, (!bias.is_empty()).then_some(bias));
        let first = format!("{}.weight", of(0));
        stacks.push(built.map_err(|e| tensors.file.in_tensor(&first, e))?);
    }
    Ok(stacks.try_into().expect("one stack per part"))
}

/// The biases of all experts, one behind the other: `.bias` in GGUF files, `_bias` in safetensors.
fn biases(
    tensors: &mut Tensors<'_>,
    layer: usize,
    part: Part,
    rows: usize,
    own: &MoeConfig,
) -> Result<Option<Vec<f32>>> {
    if own.expert_bias != BiasPresence::Required {
        return Ok(None);
    }
    let separator = if tensors.is_gguf() { '.' } else { '_' };
    let name = format!("{}{separator}bias", tensors.stem(layer, part));
    tensors.file.floats(&name, &[own.experts, rows]).map(Some)
}

/// Of every run of `width` values, `count` from `first` on, in steps of `step`.
fn picked(values: &[f32], width: usize, first: usize, step: usize, count: usize) -> Vec<f32> {
    let of = |run: &[f32]| -> Vec<f32> { (0..count).map(|i| run[first + i * step]).collect() };
    values.chunks_exact(width).flat_map(of).collect()
}

/// Rows of an expert in a fused tensor: from `first` on, in steps of `step`.
#[derive(Clone, Copy)]
struct Every {
    first: usize,
    step: usize,
}

const GATE: Every = Every { first: 0, step: 2 };
const UP: Every = Every { first: 1, step: 2 };
const ALL: Every = Every { first: 0, step: 1 };

/// GPT-OSS in MXFP4: `_blocks` `[experts, rows, cols / 32, 16]` and `_scales` `[experts, rows, cols / 32]`.
fn from_blocks(
    tensors: &mut Tensors<'_>,
    layer: usize,
    hidden: usize,
    own: &MoeConfig,
) -> Result<Stacks> {
    let inner = own.intermediate;
    let both = Blocks::take(
        tensors,
        layer,
        Part::ExpertsGateUp,
        [2 * inner, hidden],
        own,
    )?;
    let bias = biases(tensors, layer, Part::ExpertsGateUp, 2 * inner, own)?;
    let half = |every: Every| {
        let bias = bias.as_ref();
        bias.map(|bias| picked(bias, 2 * inner, every.first, every.step, inner))
    };
    let gate = both.build(tensors, GATE, half(GATE))?;
    let up = both.build(tensors, UP, half(UP))?;
    let down = Blocks::take(tensors, layer, Part::ExpertsDown, [hidden, inner], own)?;
    let bias = biases(tensors, layer, Part::ExpertsDown, hidden, own)?;
    Ok([gate, up, down.build(tensors, ALL, bias)?])
}

/// A matrix of all experts in MXFP4.
struct Blocks {
    blocks: TensorView,
    scales: TensorView,
    experts: usize,
    rows: usize,
    cols: usize,
}

impl Blocks {
    fn take(
        tensors: &mut Tensors<'_>,
        layer: usize,
        part: Part,
        [rows, cols]: [usize; 2],
        own: &MoeConfig,
    ) -> Result<Self> {
        let stem = tensors.stem(layer, part);
        let groups = cols / BLOCK;
        if !cols.is_multiple_of(BLOCK) {
            return Err(Error::invalid(format!(
                "`{stem}_blocks`: {cols} input features are no whole number of blocks of {BLOCK}"
            )));
        }
        let bytes = [own.experts, rows, groups, BLOCK / 2];
        Ok(Self {
            blocks: tensors.file.bytes(&format!("{stem}_blocks"), &bytes)?,
            scales: tensors.file.bytes(&format!("{stem}_scales"), &bytes[..3])?,
            experts: own.experts,
            rows,
            cols,
        })
    }

    fn build(
        &self,
        tensors: &Tensors<'_>,
        every: Every,
        bias: Option<Vec<f32>>,
    ) -> Result<ExpertStack> {
        let shape = StackShape {
            encoding: Encoding::MXFP4,
            count: self.experts,
            rows: self.rows / every.step,
            cols: self.cols,
        };
        tensors
            .file
            .converted_experts(shape, &|e| self.matrix(e, every), bias)
    }

    /// Rows of expert `e` with every scale in front of its block, and the elements of a block in the order of GGUF files.
    fn matrix(&self, e: usize, every: Every) -> Result<RawMatrix> {
        let groups = self.cols / BLOCK;
        let part = |view: &TensorView, block: usize| {
            let size = self.rows * groups * block;
            view.bytes.part(e * size, size)
        };
        let blocks = part(&self.blocks, BLOCK / 2)?;
        let scales = part(&self.scales, 1)?;
        let rows = self.rows / every.step;
        let mut bytes = Vec::with_capacity(rows * groups * mxfp4::BLOCK_BYTES);
        for row in (every.first..self.rows).step_by(every.step) {
            let row = row * groups..(row + 1) * groups;
            let scales = &scales.as_slice()[row.clone()];
            if let Some(at) = scales.iter().position(|e| *e == u8::MAX) {
                return Err(Error::invalid(format!(
                    "tensor `{}` holds NaN (255) at element {}",
                    self.scales.info.name,
                    (e * self.rows * groups) + row.start + at
                )));
            }
            let (blocks, _) = blocks.as_slice()[row.start * BLOCK / 2..row.end * BLOCK / 2]
                .as_chunks::<{ BLOCK / 2 }>();
            for (scale, block) in scales.iter().zip(blocks) {
                bytes.push(*scale);
                bytes.extend_from_slice(&reordered(block));
            }
        }
        if every.first + 1 == every.step || every.step == 1 {
            // The last who reads them.
            blocks.release_pages();
            scales.release_pages();
        }
        RawMatrix::new(rows, self.cols, Encoding::MXFP4, Arc::new(bytes))
    }
}

/// From pairs of neighbours, the even element low, to the pairs `(i, i + 16)` of GGUF files.
fn reordered(block: &[u8; BLOCK / 2]) -> [u8; BLOCK / 2] {
    let element = |i: usize| (block[i / 2] >> (4 * (i % 2))) & 15;
    std::array::from_fn(|i| element(i) | element(i + BLOCK / 2) << 4)
}

/// GPT-OSS in floats: `[experts, hidden, 2 * intermediate]` with the columns of gate and up in turns, and
/// `[experts, intermediate, hidden]`.
fn from_transposed(
    tensors: &mut Tensors<'_>,
    layer: usize,
    hidden: usize,
    own: &MoeConfig,
    name: &str,
) -> Result<Stacks> {
    let (count, inner) = (own.experts, own.intermediate);
    let both = tensors.file.stacked(name, count, hidden, 2 * inner)?;
    let bias = biases(tensors, layer, Part::ExpertsGateUp, 2 * inner, own)?;
    let half = |every: Every| {
        let bias = bias.as_ref();
        bias.map(|bias| picked(bias, 2 * inner, every.first, every.step, inner))
    };
    let gate = transposed(tensors, &both, GATE, half(GATE))?;
    let up = transposed(tensors, &both, UP, half(UP))?;
    let part = Part::ExpertsDown;
    let name = tensors.stack_name(layer, part);
    let name = name.unwrap_or_else(|| tensors.stem(layer, part));
    let down = tensors.file.stacked(&name, count, inner, hidden)?;
    let bias = biases(tensors, layer, part, hidden, own)?;
    Ok([gate, up, transposed(tensors, &down, ALL, bias)?])
}

/// Columns of the matrices in `stacked` as rows of others.
fn transposed(
    tensors: &Tensors<'_>,
    stacked: &Stacked,
    every: Every,
    bias: Option<Vec<f32>>,
) -> Result<ExpertStack> {
    let encoding = stacked.encoding();
    let size = encoding.row_bytes(1).filter(|_| encoding.is_float());
    let size = size.ok_or_else(|| {
        Error::unsupported(format!(
            "experts of type `{encoding}` with the input features outermost"
        ))
    })?;
    let (inputs, outputs) = stacked.shape();
    let shape = StackShape {
        encoding,
        count: stacked.count(),
        rows: outputs / every.step,
        cols: inputs,
    };
    let matrix = |e: usize| {
        let source = stacked.matrix(e)?;
        let mut bytes = Vec::with_capacity(shape.rows * inputs * size);
        for output in (every.first..outputs).step_by(every.step) {
            for input in source.bytes().chunks_exact(outputs * size) {
                bytes.extend_from_slice(&input[output * size..(output + 1) * size]);
            }
        }
        if every.first + 1 == every.step || every.step == 1 {
            source.release();
        }
        RawMatrix::new(shape.rows, inputs, encoding, Arc::new(bytes))
    };
    tensors.file.converted_experts(shape, &matrix, bias)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_in_a_byte_become_elements_that_are_sixteen_apart() {
        let block: [u8; 16] =
            std::array::from_fn(|i| (2 * i % 16) as u8 | (((2 * i + 1) % 16) as u8 * 16));
        // Element i holds i mod 16, and so does element i + 16.
        assert_eq!(reordered(&block), std::array::from_fn(|i| i as u8 * 17));
    }

    #[test]
    fn every_second_value_of_each_run_is_picked() {
        let values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        assert_eq!(picked(&values, 4, 1, 2, 2), [1.0, 3.0, 5.0, 7.0]);
        assert_eq!(picked(&values, 4, 2, 1, 2), [2.0, 3.0, 6.0, 7.0]);
    }
}
