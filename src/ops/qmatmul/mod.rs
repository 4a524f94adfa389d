//! Packed integer weights times activations rounded to 8 bits: the product's path for every quantised format.
//!
//! `y[m, n] = Σ_g (exact integer dot product of group g) · weight scale · activation scale`, groups of [`GROUP`] = 32
//! input features in ascending order, one F32 chain of fused multiply-adds per output. Because the inside of a group is
//! integer, its order does not matter; because a chain belongs to one output alone, neither the number of rows, the
//! threads nor the CPU can change a bit. The exact arithmetic of each format stands in `oracle.rs`.
//!
//! Weights are copied once, at load, into an interleaved layout (`layout.rs`): sixteen rows side by side, so that one
//! vector lane is one output and nothing ever crosses lanes. A format is a *code width* and a *scale scheme*; the
//! microkernel (`cpu.rs`) is generic over both, over the rows of activations it takes at once, and over the vector type.
//! `groups.rs` gives it the weights, `tiles.rs` walks it over a matrix.

mod activations;
mod bits;
mod cpu;
mod dots;
mod groups;
mod layout;
mod matrices;
#[cfg(test)]
mod oracle;
mod pack;
mod tiles;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ops::buffer::Buffer;
use crate::ops::matmul::RawMatrix;
use crate::ops::{Context, Tensor, distinct_rows};
use crate::quant::Encoding;
use crate::threads::Disjoint;
pub use activations::{GROUP, QuantRows, TILE_ROWS, quantize_all, quantize_rows};
pub use layout::{Format, PANEL_ROWS};

/// A weight matrix in the interleaved layout.
pub struct QMatrix {
    rows: usize,
    cols: usize,
    encoding: Encoding,
    format: Format,
    /// Shared with the matrices that were packed together.
    buffer: Arc<Buffer>,
    /// Where its panels lie.
    part: Range<usize>,
}

impl fmt::Debug for QMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "QMatrix[{}, {}] {}",
            self.rows,
            self.cols,
            self.encoding.name()
        )
    }
}

impl QMatrix {
    /// Whether matrices of this encoding have an interleaved form.
    pub fn supports(encoding: Encoding) -> bool {
        Format::of(encoding).is_some()
    }

    /// Bytes of the interleaved form of a `rows` × `cols` matrix, for memory plans.
    pub fn packed_bytes(encoding: Encoding, rows: usize, cols: usize) -> Option<usize> {
        Format::of(encoding)?
            .panel_bytes(cols)?
            .checked_mul(num_panels(rows))
    }

    /// Copies `raw` into the interleaved layout, on all threads, and lets the pages of the file go.
    ///
    /// # Errors
    /// `Unsupported` when the encoding has no interleaved form.
    pub fn pack(ctx: &Context, raw: &RawMatrix) -> Result<Self> {
        Ok(Self::pack_all(ctx, std::slice::from_ref(raw))?.remove(0))
    }

    /// [`Self::pack`] of several matrices, such as the experts of a layer, one behind the other into one buffer.
    ///
    /// # Errors
    /// As [`Self::pack`].
    pub fn pack_all(ctx: &Context, raws: &[RawMatrix]) -> Result<Vec<Self>> {
        // Format, bytes of a panel, where the panels begin; per matrix.
        let mut layouts = Vec::with_capacity(raws.len());
        let mut panels = Vec::new();
        let mut bytes = 0;
        for (index, raw) in raws.iter().enumerate() {
            let (format, panel_bytes) = panel_layout(raw.encoding(), raw.cols())?;
            let count = num_panels(raw.rows());
            layouts.push((format, bytes..bytes + count * panel_bytes));
            let place = |panel: usize| (index, panel, bytes + panel * panel_bytes, panel_bytes);
            panels.extend((0..count).map(place));
            bytes += count * panel_bytes;
        }
        let mut buffer = ctx.chunks.zeroed(bytes);
        let out = Disjoint::new(&mut buffer);
        ctx.pool().run(panels.len(), |task| {
            let (index, panel, first, len) = panels[task];
            // SAFETY: panels are disjoint.
            #[allow(unsafe_code)]
            let out = unsafe { out.part(first, len) };
            let (format, raw) = (layouts[index].0, &raws[index]);
            pack::pack_panel(ctx.level(), format, raw, panel * PANEL_ROWS, out);
        });
        raws.iter().for_each(RawMatrix::release);
        let buffer = Arc::new(buffer);
        let of = |(raw, (format, part)): (&RawMatrix, (Format, Range<usize>))| Self {
            rows: raw.rows(),
            cols: raw.cols(),
            encoding: raw.encoding(),
            format,
            buffer: Arc::clone(&buffer),
            part,
        };
        Ok(raws.iter().zip(layouts).map(of).collect())
    }

    /// [`Self::pack_all`] of `count` matrices of one shape (encoding, rows, columns), each of which `make` makes when it is packed
    /// and which is dropped then.
    ///
    /// # Errors
    /// As [`Self::pack`], and the first error of `make`. Panics when it makes another shape.
    pub fn pack_made(
        ctx: &Context,
        count: usize,
        (encoding, rows, cols): (Encoding, usize, usize),
        make: &(dyn Fn(usize) -> Result<RawMatrix> + Sync),
    ) -> Result<Vec<Self>> {
        let (format, panel_bytes) = panel_layout(encoding, cols)?;
        let bytes = num_panels(rows) * panel_bytes;
        let mut buffer = ctx.chunks.zeroed(count * bytes);
        let out = Disjoint::new(&mut buffer);
        let failed = std::sync::Mutex::new(None::<(usize, Error)>);
        ctx.pool().run(count, |index| {
            let raw = match make(index) {
                Ok(raw) => raw,
                Err(error) => {
                    let failed = failed.lock();
                    let mut first = failed.unwrap_or_else(std::sync::PoisonError::into_inner);
                    if first.as_ref().is_none_or(|(other, _)| index < *other) {
                        *first = Some((index, error));
                    }
                    return;
                }
            };
            assert_eq!(
                (raw.encoding(), raw.rows(), raw.cols()),
                (encoding, rows, cols)
            );
            // SAFETY: matrices are disjoint.
            #[allow(unsafe_code)]
            let out = unsafe { out.part(index * bytes, bytes) };
            for (panel, out) in out.chunks_exact_mut(panel_bytes.max(1)).enumerate() {
                pack::pack_panel(ctx.level(), format, &raw, panel * PANEL_ROWS, out);
            }
        });
        let failed = failed.into_inner();
        if let Some((_, error)) = failed.unwrap_or_else(std::sync::PoisonError::into_inner) {
            return Err(error);
        }
        let buffer = Arc::new(buffer);
        let of = |index: usize| Self {
            rows,
            cols,
            encoding,
            format,
            buffer: Arc::clone(&buffer),
            part: index * bytes..(index + 1) * bytes,
        };
        Ok((0..count).map(of).collect())
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The encoding in the file.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Bytes of the interleaved copy.
    pub fn bytes(&self) -> usize {
        self.part.len()
    }

    fn packed(&self) -> &[u8] {
        &self.buffer[self.part.clone()]
    }

    fn num_panels(&self) -> usize {
        num_panels(self.rows)
    }

    fn panel_bytes(&self) -> usize {
        self.part.len() / self.num_panels().max(1)
    }
}

/// The format of an encoding, and the bytes of one of its panels.
fn panel_layout(encoding: Encoding, cols: usize) -> Result<(Format, usize)> {
    let format = Format::of(encoding).ok_or_else(|| {
        let name = encoding.name();
        Error::unsupported(format!("`{name}` weights have no integer kernel"))
    })?;
    let panel_bytes = format.panel_bytes(cols).ok_or_else(|| {
        Error::invalid(format!(
            "a row of {cols} elements is no whole number of `{}` blocks",
            encoding.name()
        ))
    })?;
    Ok((format, panel_bytes))
}

/// Panels of a matrix: the last rows of the last one may be padding.
fn num_panels(rows: usize) -> usize {
    rows.div_ceil(PANEL_ROWS)
}

/// Bytes of packed weights of one task: enough that claiming it costs nothing, few enough that the threads end together.
const TASK_BYTES: usize = 96 * 1024;

/// Tasks of many tiles have a multiple of so many panels, which are multiplied two by two where there are registers for it.
const TASK_PANELS: usize = 4;

/// `x Wᵀ` for several matrices that share their input (q, k and v; gate and up), in one parallel section.
///
/// `x` stands for `[rows, cols]`; the results are `[rows, matrix.rows()]`. Panics when inner sizes differ, or `x` was rounded for another
/// level than that of `ctx`.
pub fn qmatmul<'a>(ctx: &Context, x: &'a QuantRows, matrices: &[&'a QMatrix]) -> Vec<Tensor> {
    let mut results: Vec<Tensor> = matrices
        .iter()
        .map(|w| ctx.uninit(x.rows(), w.rows()))
        .collect();
    let product = |(result, w): (usize, &&'a QMatrix)| Product {
        x,
        w,
        result,
        first_row: 0,
    };
    let products: Vec<Product<'_>> = matrices.iter().enumerate().map(product).collect();
    qmatmul_all(ctx, &products, &mut results);
    results
}

/// One of several products that are computed in one parallel section: `x Wᵀ` as rows `first_row..` of a result.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// `[rows, w.cols()]`.
    pub x: &'a QuantRows,
    /// The weights.
    pub w: &'a QMatrix,
    /// Which result.
    pub result: usize,
    /// Its row for the first row of `x`.
    pub first_row: usize,
}

/// Several products, each of its own rows: they are written into `results`, whose other rows stay as they are.
///
/// Panics when sizes differ, two products give the same row, or activations were rounded for another level than that of `ctx`.
pub fn qmatmul_all(ctx: &Context, products: &[Product<'_>], results: &mut [Tensor]) {
    let all_panels: usize = products.iter().map(|p| p.w.num_panels()).sum();
    let by_balance = all_panels / (ctx.pool().num_threads() * 4);
    let mut tasks = Vec::new();
    for (index, product) in products.iter().enumerate() {
        let (x, w) = (product.x, product.w);
        assert_eq!(x.cols(), w.cols(), "{x:?} times {w:?}");
        assert_eq!(results[product.result].cols(), w.rows(), "{product:?}");
        let by_size = TASK_BYTES / w.panel_bytes().max(1);
        let multiple = if x.tiles(ctx.level()).len() > cpu::FEW_TILES {
            TASK_PANELS
        } else {
            1
        };
        let by_size = by_size.max(multiple) / multiple * multiple;
        let step = by_size.min(by_balance).max(1);
        let starts = (0..w.num_panels()).step_by(step);
        tasks.extend(starts.map(|first| (index, first..w.num_panels().min(first + step))));
    }
    assert!(distinct_rows(products.iter().map(|p| (
        p.result,
        p.first_row,
        p.x.rows()
    ))));
    let outs: Vec<Disjoint<'_, f32>> = results
        .iter_mut()
        .map(|y| Disjoint::new(y.as_mut_slice()))
        .collect();
    ctx.pool().run_in_stretches(tasks.len(), |task| {
        let (index, panels) = tasks[task].clone();
        let product = &products[index];
        tiles::multiply(ctx.level(), product, panels, &outs[product.result]);
    });
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    use super::*;
    use crate::ops::cases::{PACKED as ENCODINGS, PACKED_SHAPES, random_matrix, write_scales};
    use crate::ops::testing::{bits, product_contexts, random};

    /// Activations with groups far above the rest, different ones in every row, so that some are refined.
    fn uneven(seed: u64, rows: usize, cols: usize) -> Vec<f32> {
        let mut x = random(seed, rows * cols);
        for (i, group) in x.chunks_exact_mut(GROUP).enumerate() {
            if i * 7 % 5 == 0 {
                group.iter_mut().for_each(|v| *v *= 30.0);
            }
        }
        x
    }

    #[test]
    fn every_format_has_the_bits_of_the_oracle_for_any_rows_level_and_thread_count() {
        for encoding in ENCODINGS {
            for (m, n, k) in PACKED_SHAPES {
                let raw = random_matrix(encoding, n, k, 3);
                let x = uneven(5, m, k);
                let expected = oracle::qmatmul(&x, m, &raw);
                for ctx in product_contexts() {
                    let w = QMatrix::pack(&ctx, &raw).unwrap();
                    let rows = quantize_rows(&ctx, &ctx.tensor(m, k, &x));
                    let y = qmatmul(&ctx, &rows, &[&w]).remove(0);
                    assert_eq!(
                        bits(y.as_slice()),
                        bits(&expected),
                        "{encoding:?} {m}x{n}x{k} {ctx:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn extreme_codes_and_activations_do_not_overflow_the_integer_sums() {
        for encoding in ENCODINGS {
            for fill in [0x00_u8, 0xff, 0x7f, 0x80] {
                let mut bytes = vec![fill; encoding.row_bytes(256).unwrap() * 8];
                for block in bytes.chunks_exact_mut(encoding.block_bytes()) {
                    write_scales(encoding, block, || 0.01);
                }
                let raw = RawMatrix::new(8, 256, encoding, Arc::new(bytes)).unwrap();
                // Signs that change with every run of so many features.
                for run in [1, 2, 4, 8, 16, 256] {
                    let sign = |i: usize| {
                        if (i / run).is_multiple_of(2) {
                            1.0
                        } else {
                            -1.0
                        }
                    };
                    let mut x: Vec<f32> = (0..8 * 256).map(sign).collect();
                    x[7 * 256..].fill(-1.0);
                    let expected = oracle::qmatmul(&x, 8, &raw);
                    for ctx in product_contexts() {
                        let w = QMatrix::pack(&ctx, &raw).unwrap();
                        let y = qmatmul(&ctx, &quantize_rows(&ctx, &ctx.tensor(8, 256, &x)), &[&w])
                            .remove(0);
                        assert_eq!(
                            bits(y.as_slice()),
                            bits(&expected),
                            "{encoding:?} {fill:#x} {run}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn is_the_decoded_matrix_times_the_rounded_activations() {
        for encoding in ENCODINGS {
            let raw = random_matrix(encoding, 16, 512, 9);
            let x = random(11, 2 * 512);
            let y = oracle::qmatmul(&x, 2, &raw);
            let mut row = vec![0.0; 512];
            for n in 0..16 {
                raw.decode_row(n, &mut row).unwrap();
                for m in 0..2 {
                    let xs = &x[m * 512..(m + 1) * 512];
                    let want: f64 = row
                        .iter()
                        .zip(xs)
                        .map(|(w, x)| f64::from(*w) * f64::from(*x))
                        .sum();
                    let size: f64 = row
                        .iter()
                        .map(|w| f64::from(*w).powi(2))
                        .sum::<f64>()
                        .sqrt();
                    // Each activation is off by at most half a step of max/127, independently.
                    assert!(
                        (f64::from(y[m * 16 + n]) - want).abs() < size / 127.0 * 2.0,
                        "{encoding:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn groups_far_above_the_rest_are_refined_and_the_result_is_better_for_it() {
        let raw = random_matrix(Encoding::Q8_0, 16, 512, 9);
        let x = uneven(12, 1, 512);
        let rounded = activations::round_row(crate::ops::CpuLevel::Scalar, &x);
        assert!(
            (1..8).contains(&rounded.refinements.len()),
            "{}",
            rounded.refinements.len()
        );
        let y = oracle::qmatmul(&x, 1, &raw);
        let mut row = vec![0.0; 512];
        for (n, y) in y.iter().enumerate() {
            raw.decode_row(n, &mut row).unwrap();
            let want: f64 = row
                .iter()
                .zip(&x)
                .map(|(w, x)| f64::from(*w) * f64::from(*x))
                .sum();
            let size: f64 = row
                .iter()
                .map(|w| f64::from(*w).powi(2))
                .sum::<f64>()
                .sqrt();
            // Steps of 30/127 would be off by some 0.07 size; those of the other groups, 1/127, by 0.002.
            assert!((f64::from(*y) - want).abs() < size * 0.01, "{y} {want}");
        }
    }

    #[test]
    fn several_matrices_share_one_section() {
        let (a, b) = (
            random_matrix(Encoding::Q4K, 24, 256, 1),
            random_matrix(Encoding::Q6K, 10, 256, 2),
        );
        for ctx in product_contexts() {
            let rows = quantize_rows(&ctx, &ctx.tensor(3, 256, &random(1, 3 * 256)));
            let (a, b) = (
                QMatrix::pack(&ctx, &a).unwrap(),
                QMatrix::pack(&ctx, &b).unwrap(),
            );
            let both = qmatmul(&ctx, &rows, &[&a, &b]);
            assert_eq!(
                both[0].as_slice(),
                qmatmul(&ctx, &rows, &[&a])[0].as_slice()
            );
            assert_eq!(
                both[1].as_slice(),
                qmatmul(&ctx, &rows, &[&b])[0].as_slice()
            );
        }
    }

    #[test]
    fn activations_of_another_level_are_not_read() {
        let raw = random_matrix(Encoding::Q4_0, 16, 256, 1);
        for (own, other) in product_contexts()
            .iter()
            .zip(product_contexts().iter().rev())
        {
            let w = QMatrix::pack(own, &raw).unwrap();
            let rows = quantize_rows(other, &other.tensor(1, 256, &random(1, 256)));
            let product = AssertUnwindSafe(|| qmatmul(own, &rows, &[&w]));
            let refused = catch_unwind(product).is_err();
            assert_eq!(refused, own.level() != other.level(), "{own:?} {other:?}");
        }
    }

    #[test]
    fn no_rows_give_no_results() {
        let raw = random_matrix(Encoding::Q4K, 24, 256, 1);
        for ctx in product_contexts() {
            let w = QMatrix::pack(&ctx, &raw).unwrap();
            let y = qmatmul(&ctx, &quantize_rows(&ctx, &ctx.tensor(0, 256, &[])), &[&w]);
            assert_eq!((y[0].rows(), y[0].cols()), (0, 24));
        }
    }

    #[test]
    fn a_nan_or_infinite_activation_reaches_the_result() {
        let raw = random_matrix(Encoding::Q4_0, 8, 64, 1);
        for bad in [f32::NAN, f32::INFINITY] {
            for ctx in product_contexts() {
                let mut x = vec![0.5; 64];
                x[40] = bad;
                let w = QMatrix::pack(&ctx, &raw).unwrap();
                let y =
                    qmatmul(&ctx, &quantize_rows(&ctx, &ctx.tensor(1, 64, &x)), &[&w]).remove(0);
                assert!(y.as_slice().iter().all(|v| v.is_nan()));
            }
        }
    }
}
