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
mod refine;
mod refinements;
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
        let multiple = if x.tiles(ctx.level()).len() > activations::FEW_TILES {
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
mod tests;
