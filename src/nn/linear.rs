//! A linear layer over whatever encoding its weight has.

use std::cell::OnceCell;

use crate::error::Result;
use crate::ops::elementwise::add_bias;
use crate::ops::matmul::{RawMatrix, matmul};
use crate::ops::qmatmul::{QMatrix, QuantRows, qmatmul, quantize_rows};
use crate::ops::{Context, Tensor};

/// How packed weights are multiplied (`docs/architecture.md`, "Two ways to multiply").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightPath {
    /// Integer kernels with 8-bit activations for packed formats, float tiles for float formats.
    #[default]
    Fast,
    /// Every weight decoded to F32, activations, keys and values in F32: proves decoders and model code.
    Reference,
}

/// `y = x Wᵀ + b`.
#[derive(Debug)]
pub struct Linear {
    weight: Weight,
    bias: Option<Vec<f32>>,
}

/// One variant per way to multiply; a new scheme adds one.
#[derive(Debug)]
enum Weight {
    /// In the file's encoding.
    Raw(RawMatrix),
    /// Interleaved for the integer kernels.
    Packed(QMatrix),
    /// Known by its size only.
    Weighed(Weighed),
}

/// What is known of a weight that was not loaded.
#[derive(Debug)]
struct Weighed {
    rows: usize,
    cols: usize,
    /// As it will be multiplied.
    bytes: usize,
    is_packed: bool,
}

/// Activations that several layers read: rounded to 8 bits at most once.
#[derive(Debug)]
pub struct Input<'a> {
    x: &'a Tensor,
    rounded: OnceCell<QuantRows>,
}

impl<'a> Input<'a> {
    /// `x` `[rows, features]`.
    pub fn new(x: &'a Tensor) -> Self {
        Self {
            x,
            rounded: OnceCell::new(),
        }
    }
}

impl Input<'_> {
    /// What is read.
    pub fn tensor(&self) -> &Tensor {
        self.x
    }
}

impl Linear {
    /// A layer over `weight` `[out, in]` and `bias` `[out]`; packed formats are interleaved here unless `path` says otherwise.
    ///
    /// # Errors
    /// `Unsupported` when the encoding has no kernel and no decoder.
    pub fn new(
        ctx: &Context,
        weight: &RawMatrix,
        bias: Option<Vec<f32>>,
        path: WeightPath,
    ) -> Result<Self> {
        assert!(
            bias.as_ref().is_none_or(|b| b.len() == weight.rows()),
            "bias for {weight:?}"
        );
        let weight = if path == WeightPath::Fast && QMatrix::supports(weight.encoding()) {
            Weight::Packed(QMatrix::pack(ctx, weight)?)
        } else {
            weight.decode_row(0, &mut vec![0.0; weight.cols()])?;
            Weight::Raw(weight.clone())
        };
        Ok(Self { weight, bias })
    }

    /// A layer that knows what [`Linear::new`] would make of the same, and reads nothing. It cannot be computed with.
    pub fn weighed(weight: &RawMatrix, bias: Option<Vec<f32>>, path: WeightPath) -> Self {
        let (rows, cols) = (weight.rows(), weight.cols());
        let packed = match path {
            WeightPath::Fast => QMatrix::packed_bytes(weight.encoding(), rows, cols),
            WeightPath::Reference => None,
        };
        let weight = Weight::Weighed(Weighed {
            rows,
            cols,
            bytes: packed.unwrap_or(weight.bytes().len()),
            is_packed: packed.is_some(),
        });
        Self { weight, bias }
    }

    /// Output features.
    pub fn out_features(&self) -> usize {
        match &self.weight {
            Weight::Raw(w) => w.rows(),
            Weight::Packed(w) => w.rows(),
            Weight::Weighed(w) => w.rows,
        }
    }

    /// Bytes of weights that one forward reads.
    pub fn bytes(&self) -> usize {
        let weight = match &self.weight {
            Weight::Raw(w) => w.bytes().len(),
            Weight::Packed(w) => w.bytes(),
            Weight::Weighed(w) => w.bytes,
        };
        weight + self.bias.as_ref().map_or(0, |b| b.len() * size_of::<f32>())
    }

    /// Multiply-accumulates per row, and whether they are integer ones.
    pub fn macs(&self) -> (usize, bool) {
        match &self.weight {
            Weight::Raw(w) => (w.rows() * w.cols(), false),
            Weight::Packed(w) => (w.rows() * w.cols(), true),
            Weight::Weighed(w) => (w.rows * w.cols, w.is_packed),
        }
    }

    /// `[rows, out]`.
    ///
    /// # Errors
    /// As [`matmul`].
    pub fn forward(&self, ctx: &Context, input: &Input<'_>) -> Result<Tensor> {
        Ok(Self::forward_all(ctx, input, &[self])?.remove(0))
    }

    /// Several layers over one input: those that can share a parallel section do.
    ///
    /// # Errors
    /// As [`matmul`]. Panics for a layer that was only weighed.
    pub fn forward_all(ctx: &Context, input: &Input<'_>, layers: &[&Self]) -> Result<Vec<Tensor>> {
        let packed: Vec<&QMatrix> = layers.iter().filter_map(|l| l.packed()).collect();
        let mut packed_results = if packed.is_empty() {
            Vec::new()
        } else {
            let rounded = input.rounded.get_or_init(|| quantize_rows(ctx, input.x));
            qmatmul(ctx, rounded, &packed)
        }
        .into_iter();
        let mut results = Vec::with_capacity(layers.len());
        for layer in layers {
            let mut y = match &layer.weight {
                Weight::Packed(_) => packed_results.next().expect("one result per packed layer"),
                Weight::Raw(w) => matmul(ctx, input.x, w)?,
                Weight::Weighed(w) => panic!("{w:?} was not loaded"),
            };
            if let Some(bias) = &layer.bias {
                add_bias(ctx, &mut y, bias);
            }
            results.push(y);
        }
        Ok(results)
    }

    fn packed(&self) -> Option<&QMatrix> {
        match &self.weight {
            Weight::Packed(w) => Some(w),
            Weight::Raw(_) | Weight::Weighed(_) => None,
        }
    }
}
