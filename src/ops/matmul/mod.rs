//! Activations times a weight matrix that stays in its file encoding: `y = x Wᵀ`.
//!
//! Float weights (F32, F16, BF16) are read as they lie in the mapped file, which is the product's path for float
//! checkpoints. Any other encoding is decoded row by row to F32 first: that is the *reference* path (`eval --reference`),
//! slow and exact. Each output is 16 partial sums over k (k mod 16), fused multiply-adds in ascending k, added by the
//! fixed tree of [`crate::ops::simd::sum16`]: the same bits for one row of `x` and for a thousand, on every CPU.

mod cpu;

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::ops::simd::SUM_LANES;
use crate::ops::{Context, Rows, Tensor, distinct_rows};
use crate::quant::Encoding;
use crate::threads::Disjoint;

/// Bytes that outlive the step, usually a part of a mapped file.
pub trait ByteStore: Send + Sync {
    /// The bytes; may be misaligned for their elements.
    fn bytes(&self) -> &[u8];

    /// The bytes will not be read again soon: their pages may go.
    fn release(&self) {}
}

impl ByteStore for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// A weight matrix `[rows, cols]` in its file encoding.
#[derive(Clone)]
pub struct RawMatrix {
    rows: usize,
    cols: usize,
    encoding: Encoding,
    row_bytes: usize,
    store: Arc<dyn ByteStore>,
}

impl fmt::Debug for RawMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RawMatrix[{}, {}] {}",
            self.rows,
            self.cols,
            self.encoding.name()
        )
    }
}

impl RawMatrix {
    /// A matrix of `rows` rows (output features) of `cols` elements (input features) in `store`.
    ///
    /// # Errors
    /// `Invalid` when a row is no whole number of blocks or the bytes are not exactly the matrix.
    pub fn new(
        rows: usize,
        cols: usize,
        encoding: Encoding,
        store: Arc<dyn ByteStore>,
    ) -> Result<Self> {
        let row_bytes = encoding.row_bytes(cols).ok_or_else(|| {
            Error::invalid(format!(
                "a row of {cols} elements is no whole number of `{}` blocks",
                encoding.name()
            ))
        })?;
        if row_bytes.checked_mul(rows) != Some(store.bytes().len()) {
            let (found, name) = (store.bytes().len(), encoding.name());
            return Err(Error::invalid(format!(
                "a `{name}` matrix of {rows} x {cols} cannot have {found} bytes"
            )));
        }
        Ok(Self {
            rows,
            cols,
            encoding,
            row_bytes,
            store,
        })
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How the elements are stored.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// All bytes, row after row.
    pub fn bytes(&self) -> &[u8] {
        self.store.bytes()
    }

    /// The bytes of one row.
    pub fn row(&self, row: usize) -> &[u8] {
        &self.store.bytes()[row * self.row_bytes..(row + 1) * self.row_bytes]
    }

    /// One row as floats; `out` has `cols` elements.
    ///
    /// # Errors
    /// `Unsupported` when the encoding has no decoder.
    pub fn decode_row(&self, row: usize, out: &mut [f32]) -> Result<()> {
        self.encoding.decode_row(self.row(row), out)
    }

    /// The pages of the file behind this matrix are not needed now.
    pub fn release(&self) {
        self.store.release();
    }
}

/// `x Wᵀ`: `x` `[rows, cols]`, `w` `[out, cols]`, result `[rows, out]`.
///
/// # Errors
/// `Unsupported` when the encoding of `w` has no decoder. Panics when the inner sizes differ.
pub fn matmul(ctx: &Context, x: &Tensor, w: &RawMatrix) -> Result<Tensor> {
    let mut results = [ctx.uninit(x.rows(), w.rows())];
    let product = Product {
        x: Rows::all(x),
        w,
        result: 0,
        first_row: 0,
    };
    matmul_all(ctx, &[product], &mut results)?;
    let [y] = results;
    Ok(y)
}

/// One of several products that are computed in one parallel section: `x Wᵀ` as rows `first_row..` of a result.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// `[rows, w.cols()]`.
    pub x: Rows<'a>,
    /// The weights.
    pub w: &'a RawMatrix,
    /// Which result.
    pub result: usize,
    /// Its row for the first row of `x`.
    pub first_row: usize,
}

/// Several products, each of its own rows: they are written into `results`, whose other rows stay as they are.
///
/// # Errors
/// `Unsupported` when the encoding of a matrix has no decoder. Panics when sizes differ, or two products give the same row.
pub fn matmul_all(ctx: &Context, products: &[Product<'_>], results: &mut [Tensor]) -> Result<()> {
    let mut tasks = Vec::new();
    for (index, product) in products.iter().enumerate() {
        let w = product.w;
        assert_eq!(product.x.cols(), w.cols(), "{:?} times {w:?}", product.x);
        assert_eq!(results[product.result].cols(), w.rows(), "{product:?}");
        if !w.encoding().is_float() {
            // Fails here, in one place, when there is no decoder.
            w.decode_row(0, &mut vec![0.0; w.cols()])?;
        }
        let starts = (0..w.rows()).step_by(cpu::ROWS_PER_TASK);
        tasks.extend(starts.map(|first| (index, first..w.rows().min(first + cpu::ROWS_PER_TASK))));
    }
    assert!(distinct_rows(products.iter().map(|p| (
        p.result,
        p.first_row,
        p.x.count()
    ))));
    let packed: Vec<Packed> = products.iter().map(|p| Packed::new(ctx, &p.x)).collect();
    let outs: Vec<Disjoint<'_, f32>> = results
        .iter_mut()
        .map(|y| Disjoint::new(y.as_mut_slice()))
        .collect();
    ctx.pool().run_in_stretches(tasks.len(), |task| {
        let (index, outputs) = tasks[task].clone();
        let product = &products[index];
        cpu::multiply(
            ctx.level(),
            product,
            &packed[index],
            outputs,
            &outs[product.result],
        );
    });
    Ok(())
}

/// Activations in the order in which the kernels read them.
struct Packed {
    values: Tensor,
}

impl Packed {
    fn new(ctx: &Context, x: &Rows<'_>) -> Self {
        let (rows, cols) = (x.count(), x.cols().next_multiple_of(SUM_LANES));
        let mut values = ctx.uninit(rows, cols);
        let out = Disjoint::new(values.as_mut_slice());
        ctx.for_row_ranges(
            rows.div_ceil(cpu::X_ROWS),
            cpu::X_ROWS * cols,
            |first, count| {
                for first in (first..first + count).map(|group| group * cpu::X_ROWS) {
                    let rows = cpu::X_ROWS.min(rows - first);
                    // SAFETY: groups of rows are disjoint.
                    #[allow(unsafe_code)]
                    let out = unsafe { out.part(first * cols, rows * cols) };
                    cpu::pack(x, first, out);
                }
            },
        );
        Self { values }
    }

    /// What begins with row `first`, a multiple of [`cpu::X_ROWS`].
    fn rows_from(&self, first: usize) -> &[f32] {
        &self.values.as_slice()[first * self.values.cols()..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cases::FLOAT_SHAPES;
    use crate::ops::testing::{bits, contexts, random};

    fn encode(encoding: Encoding, values: &[f32]) -> Vec<u8> {
        match encoding {
            Encoding::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Encoding::F16 => values
                .iter()
                .flat_map(|&x| half::f16::from_f32(x).to_le_bytes())
                .collect(),
            Encoding::BF16 => values
                .iter()
                .flat_map(|&x| half::bf16::from_f32(x).to_le_bytes())
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    /// The contract, written down: 16 chains of fused multiply-adds and the tree.
    fn oracle(x: &[f32], w: &[f32]) -> f32 {
        let mut lanes = [0.0_f32; 16];
        for (k, (a, b)) in w.iter().zip(x).enumerate() {
            lanes[k % 16] = a.mul_add(*b, lanes[k % 16]);
        }
        crate::ops::simd::sum16(&lanes)
    }

    #[test]
    fn has_the_bits_of_the_written_contract_for_any_shape_level_and_thread_count() {
        for encoding in [Encoding::F32, Encoding::F16, Encoding::BF16] {
            for (m, n, k) in FLOAT_SHAPES {
                let (x, w) = (random(1, m * k), random(2, n * k));
                let matrix =
                    RawMatrix::new(n, k, encoding, Arc::new(encode(encoding, &w))).unwrap();
                let mut row = vec![0.0; k];
                let mut expected = vec![0.0; m * n];
                for j in 0..n {
                    matrix.decode_row(j, &mut row).unwrap();
                    for i in 0..m {
                        expected[i * n + j] = oracle(&x[i * k..(i + 1) * k], &row);
                    }
                }
                for ctx in contexts() {
                    let y = matmul(&ctx, &ctx.tensor(m, k, &x), &matrix).unwrap();
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
    fn bytes_that_are_not_the_matrix_are_refused() {
        let error = RawMatrix::new(2, 4, Encoding::F32, Arc::new(vec![0_u8; 31])).unwrap_err();
        assert_eq!(
            error.chain(),
            "a `F32` matrix of 2 x 4 cannot have 31 bytes"
        );
        assert!(RawMatrix::new(1, 33, Encoding::Q4_0, Arc::new(vec![0_u8; 18])).is_err());
        assert!(RawMatrix::new(usize::MAX, 4, Encoding::F32, Arc::new(vec![0_u8; 16])).is_err());
    }
}
