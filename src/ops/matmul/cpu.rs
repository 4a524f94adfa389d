//! Float tiles on the CPU: one weight row times six activation rows in twelve accumulators, or a few weight rows times fewer.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use std::cell::RefCell;
use std::ops::Range;

use super::RawMatrix;
use crate::ops::Tensor;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, SUM_LANES, Simd, reduce_sum, simd_kernel};
use crate::quant::Encoding;
use crate::threads::Disjoint;

/// Weight rows of one task: small enough to balance, large enough that its rows stay in the second-level cache.
pub(super) const ROWS_PER_TASK: usize = 32;
/// Activation rows that one pass over a task's weight rows uses.
const X_ROWS: usize = 6;
/// Bytes of activations that stay in the first-level cache while all weight rows of the task pass over them.
const X_BYTES: usize = 12 * 1024;
/// How far ahead of a single activation row the weights are fetched.
const PREFETCH_BYTES: usize = 1024;

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

thread_local! {
    /// Partial sums of a task, and the decoded weight rows of the reference path.
    static SCRATCH: RefCell<(Vec<f32>, Vec<f32>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Outputs `first..first + count` of every row of `x`.
pub(super) fn rows(
    level: CpuLevel,
    x: &Tensor,
    w: &RawMatrix,
    first: usize,
    count: usize,
    out: &Disjoint<'_, f32>,
) {
    SCRATCH.with_borrow_mut(|(sums, decoded)| {
        let k = w.cols();
        let (encoding, bytes) = if w.encoding().is_float() {
            (w.encoding(), w.bytes())
        } else {
            decoded.resize(count * k, 0.0);
            for (i, out) in decoded.chunks_exact_mut(k).enumerate() {
                w.decode_row(first + i, out)
                    .expect("a row was decoded before the work was shared out");
            }
            // SAFETY: any four bytes of a float may be read as bytes.
            let bytes = unsafe {
                std::slice::from_raw_parts(decoded.as_ptr().cast::<u8>(), decoded.len() * 4)
            };
            (Encoding::F32, bytes)
        };
        let from = if w.encoding().is_float() { first } else { 0 };
        sums.resize(ROWS_PER_TASK * X_ROWS * SUM_LANES, 0.0);
        for x_first in (0..x.rows()).step_by(X_ROWS) {
            let task = Task {
                level,
                x: &x.as_slice()[x_first * k..],
                m: X_ROWS.min(x.rows() - x_first),
                k,
                bytes,
                first: from,
                count,
            };
            match encoding {
                Encoding::F16 => task.sum::<F16>(sums),
                Encoding::BF16 => task.sum::<BF16>(sums),
                _ => task.sum::<F32>(sums),
            }
            task.write(sums, x_first, first, w.rows(), out);
        }
    });
}

/// A range of weight rows times up to six activation rows.
struct Task<'a> {
    level: CpuLevel,
    /// From the first activation row on.
    x: &'a [f32],
    /// Activation rows.
    m: usize,
    /// Elements of a row.
    k: usize,
    bytes: &'a [u8],
    /// Weight rows `first..first + count` of `bytes`.
    first: usize,
    count: usize,
}

impl Task<'_> {
    /// Partial sums `[weight row][activation row][16]`.
    fn sum<const ENC: u8>(&self, sums: &mut [f32]) {
        let sums = &mut sums[..self.count * self.m * SUM_LANES];
        sums.fill(0.0);
        let part = (X_BYTES / (self.m * 4)).next_multiple_of(SUM_LANES);
        for from in (0..self.k).step_by(part) {
            self.add_features::<ENC>(from..self.k.min(from + part), sums);
        }
    }

    /// Adds the products of some input features to all partial sums.
    fn add_features<const ENC: u8>(&self, features: Range<usize>, sums: &mut [f32]) {
        let (m, size) = (self.m, if ENC == F32 { 4 } else { 2 });
        let together = if self.level == CpuLevel::Scalar {
            1
        } else {
            [0, 4, 2, 2, 1, 1, 1][m]
        };
        let mut row = 0;
        while row < self.count {
            let r = if row + together <= self.count {
                together
            } else {
                1
            };
            let tile = Tile {
                w: &self.bytes[((self.first + row) * self.k + features.start) * size..],
                w_stride: self.k,
                x: &self.x[features.start..],
                x_stride: self.k,
                k: features.len(),
            };
            tile.add::<ENC>(
                self.level,
                r,
                m,
                &mut sums[row * m * SUM_LANES..][..r * m * SUM_LANES],
            );
            row += r;
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

/// A few weight rows times a few activation rows, over some input features.
struct Tile<'a> {
    w: &'a [u8],
    /// Elements from a weight row to the next.
    w_stride: usize,
    x: &'a [f32],
    /// Elements from an activation row to the next.
    x_stride: usize,
    /// Input features.
    k: usize,
}

impl Tile<'_> {
    /// Adds to the partial sums `[r][m][16]`.
    fn add<const ENC: u8>(&self, level: CpuLevel, r: usize, m: usize, sums: &mut [f32]) {
        let size = if ENC == F32 { 4 } else { 2 };
        // What the kernels read and write through pointers, checked once.
        assert!(self.w.len() >= ((r - 1) * self.w_stride + self.k) * size);
        assert!(self.x.len() >= (m - 1) * self.x_stride + self.k);
        assert!(sums.len() == r * m * SUM_LANES);
        let sums = sums.as_mut_ptr();
        if level == CpuLevel::Scalar {
            // One kernel is enough for the software twin.
            let one = |m: usize| Tile {
                x: &self.x[m * self.x_stride..],
                ..*self
            };
            for m in 0..m {
                // SAFETY: one row of each, within what was checked.
                unsafe { single::<ENC>(level, &one(m), sums.add(m * SUM_LANES)) };
            }
            return;
        }
        // SAFETY: `r` and `m` rows, as checked above.
        unsafe {
            match (r, m) {
                (1, 1) => single::<ENC>(level, self, sums),
                (4, 1) => tile::<ENC, 4, 1>(level, self, sums),
                (1, 2) => tile::<ENC, 1, 2>(level, self, sums),
                (2, 2) => tile::<ENC, 2, 2>(level, self, sums),
                (1, 3) => tile::<ENC, 1, 3>(level, self, sums),
                (2, 3) => tile::<ENC, 2, 3>(level, self, sums),
                (1, 4) => tile::<ENC, 1, 4>(level, self, sums),
                (1, 5) => tile::<ENC, 1, 5>(level, self, sums),
                (1, 6) => tile::<ENC, 1, 6>(level, self, sums),
                (r, m) => unreachable!("{r} weight rows times {m} activation rows"),
            }
        }
    }
}

simd_kernel! {
    /// `R` weight rows times `M` activation rows: adds to `sums[(r M + m) 16..]`.
    unsafe fn tile<const ENC: u8, const R: usize, const M: usize>(tile: &Tile<'_>, sums: *mut f32) = tile_body, no twin
}

simd_kernel! {
    /// One weight row times one activation row.
    unsafe fn single<const ENC: u8>(tile: &Tile<'_>, sums: *mut f32) = single_body
}

#[inline(always)]
unsafe fn single_body<V: Simd, const ENC: u8>(tile: &Tile<'_>, sums: *mut f32) {
    // SAFETY: the caller's duty.
    unsafe { tile_body::<V, ENC, 1, 1>(tile, sums) }
}

#[inline(always)]
unsafe fn tile_body<V: Simd, const ENC: u8, const R: usize, const M: usize>(
    tile: &Tile<'_>,
    sums: *mut f32,
) {
    let bytes = if ENC == F32 { 4 } else { 2 };
    let full = tile.k - tile.k % SUM_LANES;
    let (w, x) = (tile.w.as_ptr(), tile.x.as_ptr());
    // SAFETY: rows have `k` elements by the caller's duty; the tail is copied into whole vectors.
    unsafe {
        let sum =
            |r: usize, m: usize, half: usize| sums.add((r * M + m) * SUM_LANES + half * LANES);
        let mut acc: [[[V::F32; 2]; M]; R] = std::array::from_fn(|r| {
            std::array::from_fn(|m| std::array::from_fn(|half| V::load(sum(r, m, half))))
        });
        for at in (0..full).step_by(SUM_LANES) {
            if M == 1 {
                for r in 0..R {
                    V::prefetch(
                        w.add((r * tile.w_stride + at) * bytes)
                            .wrapping_add(PREFETCH_BYTES),
                    );
                }
            }
            for half in 0..2 {
                let at = at + half * LANES;
                let weights: [V::F32; R] = std::array::from_fn(|r| {
                    load::<V, ENC>(w.add((r * tile.w_stride + at) * bytes))
                });
                for m in 0..M {
                    let activations = V::load(x.add(m * tile.x_stride + at));
                    for r in 0..R {
                        acc[r][m][half] = V::fma(weights[r], activations, acc[r][m][half]);
                    }
                }
            }
        }
        if full < tile.k {
            let rest = tile.k - full;
            for r in 0..R {
                let weights = tail::<V, ENC>(w.add((r * tile.w_stride + full) * bytes), rest);
                for m in 0..M {
                    let activations = tail::<V, F32>(x.add(m * tile.x_stride + full).cast(), rest);
                    for half in 0..2 {
                        acc[r][m][half] = V::fma(weights[half], activations[half], acc[r][m][half]);
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
