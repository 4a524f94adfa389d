//! Float tiles on the CPU: two weight rows times three activation rows in twelve accumulators.
//!
//! Twelve hide the latency of a fused multiply-add, and of all shapes this one loads least. With fewer activation rows memory is what
//! is waited for: then one weight row is read after the other, from beginning to end.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use std::cell::RefCell;
use std::ops::Range;

use super::Product;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, SUM_LANES, Simd, reduce_sum, simd_kernel};
use crate::quant::Encoding;
use crate::threads::Disjoint;

/// Weight rows of one task: small enough to balance, large enough that its rows stay in the second-level cache and that the
/// copies of activations cost little.
pub(super) const ROWS_PER_TASK: usize = 64;
/// Activation rows that one pass over a task's weight rows uses.
const X_ROWS: usize = 3;
/// Bytes of activations that stay in the first-level cache while all weight rows of the task pass over them.
const X_BYTES: usize = 12 * 1024;
/// How far ahead weights are fetched.
const PREFETCH_BYTES: usize = 2048;

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Buffers of a task.
#[derive(Default)]
struct Scratch {
    /// Partial sums `[weight row][activation row][16]`.
    sums: Vec<f32>,
    /// Activations `[features / 16][activation row][16]`.
    x: Vec<f32>,
    /// Weight rows of the reference path.
    decoded: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Outputs `outputs` of every row of a product, whose rows of the result `out` this task alone writes in these columns.
pub(super) fn multiply(
    level: CpuLevel,
    product: &Product<'_>,
    outputs: Range<usize>,
    out: &Disjoint<'_, f32>,
) {
    let (x, w) = (product.x, product.w);
    let (first, count) = (outputs.start, outputs.len());
    SCRATCH.with_borrow_mut(
        |Scratch {
             sums,
             x: packed,
             decoded,
         }| {
            let k = w.cols();
            let (encoding, bytes) = if w.encoding().is_float() {
                let row_bytes = w.bytes().len() / w.rows().max(1);
                (
                    w.encoding(),
                    &w.bytes()[first * row_bytes..(first + count) * row_bytes],
                )
            } else {
                decoded.resize(count * k, 0.0);
                for (i, out) in decoded.chunks_exact_mut(k).enumerate() {
                    w.decode_row(first + i, out)
                        .expect("a row was decoded before the work was shared out");
                }
                // SAFETY: any four bytes of a float may be read as bytes.
                let bytes = unsafe {
                    std::slice::from_raw_parts(decoded.as_ptr().cast::<u8>(), count * k * 4)
                };
                (Encoding::F32, bytes)
            };
            for x_first in (0..x.count()).step_by(X_ROWS) {
                let m = X_ROWS.min(x.count() - x_first);
                let task = Task {
                    level,
                    x: std::array::from_fn(|i| if i < m { x.row(x_first + i) } else { &[] }),
                    m,
                    k,
                    w: bytes,
                    count,
                };
                match encoding {
                    Encoding::F16 => task.sum::<F16>(sums, packed),
                    Encoding::BF16 => task.sum::<BF16>(sums, packed),
                    _ => task.sum::<F32>(sums, packed),
                }
                task.write(sums, product.first_row + x_first, first, w.rows(), out);
            }
        },
    );
}

/// Some weight rows times up to three activation rows.
struct Task<'a> {
    level: CpuLevel,
    x: [&'a [f32]; X_ROWS],
    /// Activation rows that there are.
    m: usize,
    /// Elements of a row.
    k: usize,
    w: &'a [u8],
    /// Weight rows.
    count: usize,
}

impl Task<'_> {
    /// Partial sums of all weight rows, over as many features at a time as keep the activations in the cache.
    fn sum<const ENC: u8>(&self, sums: &mut Vec<f32>, packed: &mut Vec<f32>) {
        let (m, size) = (self.m, if ENC == F32 { 4 } else { 2 });
        let step = m * SUM_LANES;
        sums.clear();
        sums.resize(self.count * step, 0.0);
        let part = (X_BYTES / (m * 4)).next_multiple_of(SUM_LANES);
        for from in (0..self.k).step_by(part) {
            let features = from..self.k.min(from + part);
            self.pack(features.clone(), packed);
            let mut row = 0;
            while row < self.count {
                let together = if m == X_ROWS {
                    2.min(self.count - row)
                } else {
                    1
                };
                let weights = Weights {
                    bytes: &self.w[(row * self.k + from) * size..],
                    stride: self.k * size,
                    rows: together,
                    k: features.len(),
                };
                let sums = &mut sums[row * step..(row + together) * step];
                weights.add_products::<ENC>(self.level, packed, m, sums);
                row += together;
            }
        }
    }

    /// Activations in the order in which the kernel reads them, the last features filled up with zeros.
    fn pack(&self, features: Range<usize>, packed: &mut Vec<f32>) {
        let step = self.m * SUM_LANES;
        packed.resize(features.len().div_ceil(SUM_LANES) * step, 0.0);
        let last = packed.len().saturating_sub(step);
        packed[last..].fill(0.0);
        for (m, row) in self.x[..self.m].iter().enumerate() {
            let (parts, rest) = row[features.clone()].as_chunks::<SUM_LANES>();
            let mut to = packed
                .chunks_exact_mut(step)
                .map(|to| &mut to[m * SUM_LANES..]);
            for (part, to) in parts.iter().zip(&mut to) {
                to[..SUM_LANES].copy_from_slice(part);
            }
            if let Some(to) = to.next() {
                to[..rest.len()].copy_from_slice(rest);
            }
        }
    }

    /// Adds the partial sums up, into rows `x_first..` and columns `w_first..` of the result.
    fn write(
        &self,
        sums: &[f32],
        x_first: usize,
        w_first: usize,
        cols: usize,
        out: &Disjoint<'_, f32>,
    ) {
        for m in 0..self.m {
            // SAFETY: this task alone writes these columns.
            let out = unsafe { out.part((x_first + m) * cols + w_first, self.count) };
            // SAFETY: the body needs the instruction set only, which the level stands for.
            unsafe { finish(self.level, &sums[m * SUM_LANES..], self.m * SUM_LANES, out) };
        }
    }
}

simd_kernel! {
    /// `out[i]` = the sum of the 16 partial sums at `i * stride`.
    unsafe fn finish(sums: &[f32], stride: usize, out: &mut [f32]) = finish_body
}

#[inline(always)]
unsafe fn finish_body<V: Simd>(sums: &[f32], stride: usize, out: &mut [f32]) {
    let sixteen = |i: usize| -> &[f32; SUM_LANES] {
        sums[i * stride..][..SUM_LANES].try_into().expect("sixteen")
    };
    // SAFETY: vectors of arrays that hold them; the instruction set is the caller's duty.
    unsafe {
        let (eights, rest) = out.as_chunks_mut::<LANES>();
        for (i, out) in eights.iter_mut().enumerate() {
            let halves = std::array::from_fn(|j| {
                let p = sixteen(i * LANES + j).as_ptr();
                V::add(V::load(p), V::load(p.add(LANES)))
            });
            V::store(out.as_mut_ptr(), V::reduce8(halves));
        }
        let done = eights.len() * LANES;
        for (i, out) in rest.iter_mut().enumerate() {
            let p = sixteen(done + i).as_ptr();
            *out = reduce_sum::<V>(V::load(p), V::load(p.add(LANES)));
        }
    }
}

/// A part of one or two weight rows.
struct Weights<'a> {
    /// From the part of the first row on.
    bytes: &'a [u8],
    /// Bytes from a row to the next.
    stride: usize,
    rows: usize,
    /// Elements of the part.
    k: usize,
}

impl Weights<'_> {
    /// Times packed activations of `m` rows: adds to the partial sums `[rows][m][16]`.
    fn add_products<const ENC: u8>(&self, level: CpuLevel, x: &[f32], m: usize, sums: &mut [f32]) {
        let size = if ENC == F32 { 4 } else { 2 };
        // What the kernels read and write through pointers, checked once.
        assert!(self.bytes.len() >= (self.rows - 1) * self.stride + self.k * size);
        assert!(x.len() == self.k.div_ceil(SUM_LANES) * m * SUM_LANES);
        assert!(sums.len() == self.rows * m * SUM_LANES);
        let (w, x, sums) = (self.bytes.as_ptr(), x.as_ptr(), sums.as_mut_ptr());
        let (stride, k) = (self.stride, self.k);
        // SAFETY: so many elements and rows, as checked above.
        unsafe {
            match (self.rows, m) {
                (1, 1) => tile::<ENC, 1, 1>(level, w, stride, x, k, sums),
                (1, 2) => tile::<ENC, 1, 2>(level, w, stride, x, k, sums),
                (1, 3) => tile::<ENC, 1, 3>(level, w, stride, x, k, sums),
                (2, 3) => tile::<ENC, 2, 3>(level, w, stride, x, k, sums),
                (r, m) => unreachable!("{r} weight rows times {m} activation rows"),
            }
        }
    }
}

simd_kernel! {
    /// `k` elements of `R` weight rows, `stride` bytes apart, times `M` packed activation rows.
    unsafe fn tile<const ENC: u8, const R: usize, const M: usize>(w: *const u8, stride: usize, x: *const f32, k: usize, sums: *mut f32) = tile_body
}

#[inline(always)]
unsafe fn tile_body<V: Simd, const ENC: u8, const R: usize, const M: usize>(
    w: *const u8,
    stride: usize,
    x: *const f32,
    k: usize,
    sums: *mut f32,
) {
    let bytes = if ENC == F32 { 4 } else { 2 };
    // SAFETY: the caller has checked the sizes; the last elements are copied into whole vectors.
    unsafe {
        let mut acc = [[[V::splat(0.0); 2]; M]; R];
        let sum =
            |r: usize, m: usize, half: usize| sums.add((r * M + m) * SUM_LANES + half * LANES);
        for r in 0..R {
            for m in 0..M {
                for half in 0..2 {
                    acc[r][m][half] = V::load(sum(r, m, half));
                }
            }
        }
        let (mut w, mut x) = (w, x);
        for _ in 0..k / SUM_LANES {
            if R == 1 {
                V::prefetch(w.wrapping_add(PREFETCH_BYTES));
            }
            for half in 0..2 {
                let mut weights = [V::splat(0.0); R];
                for r in 0..R {
                    weights[r] = load::<V, ENC>(w.add(r * stride + half * LANES * bytes));
                }
                for m in 0..M {
                    let activations = V::load(x.add(m * SUM_LANES + half * LANES));
                    for r in 0..R {
                        acc[r][m][half] = V::fma(weights[r], activations, acc[r][m][half]);
                    }
                }
            }
            w = w.add(SUM_LANES * bytes);
            x = x.add(M * SUM_LANES);
        }
        if !k.is_multiple_of(SUM_LANES) {
            for r in 0..R {
                let weights = tail::<V, ENC>(w.add(r * stride), k % SUM_LANES);
                for m in 0..M {
                    for half in 0..2 {
                        let activations = V::load(x.add(m * SUM_LANES + half * LANES));
                        acc[r][m][half] = V::fma(weights[half], activations, acc[r][m][half]);
                    }
                }
            }
        }
        for r in 0..R {
            for m in 0..M {
                for half in 0..2 {
                    V::store(sum(r, m, half), acc[r][m][half]);
                }
            }
        }
    }
}

/// Eight elements.
#[inline(always)]
unsafe fn load<V: Simd, const ENC: u8>(p: *const u8) -> V::F32 {
    // SAFETY: the caller's duty.
    unsafe {
        match ENC {
            F32 => V::load(p.cast()),
            F16 => V::load_f16(p),
            _ => V::load_bf16(p),
        }
    }
}

/// The last `count` (below 16) elements of a row, followed by zeros.
#[inline(always)]
unsafe fn tail<V: Simd, const ENC: u8>(p: *const u8, count: usize) -> [V::F32; 2] {
    let bytes = if ENC == F32 { 4 } else { 2 };
    let mut padded = [0_u8; SUM_LANES * 4];
    // SAFETY: `count` elements may be read, and fit into the padded copy.
    unsafe {
        std::ptr::copy_nonoverlapping(p, padded.as_mut_ptr(), count * bytes);
        std::array::from_fn(|half| load::<V, ENC>(padded.as_ptr().add(half * LANES * bytes)))
    }
}
