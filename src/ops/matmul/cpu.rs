//! Float tiles on the CPU: two weight rows times three activation rows in twelve accumulators.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use std::cell::RefCell;

use super::RawMatrix;
use crate::ops::Tensor;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, SUM_LANES, Simd, reduce_sum, simd_kernel};
use crate::quant::Encoding;
use crate::threads::Disjoint;

/// Weight rows of one task: small enough to balance, large enough that its rows stay in the second-level cache.
pub(super) const ROWS_PER_TASK: usize = 32;
/// Activation rows that one pass over a task's weight rows uses: a multiple of 3 that stays in the cache.
const X_BLOCK: usize = 24;

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

thread_local! {
    /// Two decoded weight rows of the reference path.
    static DECODED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
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
    for x_first in (0..x.rows()).step_by(X_BLOCK) {
        let x_count = X_BLOCK.min(x.rows() - x_first);
        for row in (first..first + count).step_by(2) {
            let pair = 2.min(first + count - row);
            let block = Block {
                x,
                x_first,
                x_count,
                row,
                pair,
                out,
                out_cols: w.rows(),
            };
            match w.encoding() {
                Encoding::F32 => block.run::<F32>(level, &w.bytes()[row * w.cols() * 4..]),
                Encoding::F16 => block.run::<F16>(level, &w.bytes()[row * w.cols() * 2..]),
                Encoding::BF16 => block.run::<BF16>(level, &w.bytes()[row * w.cols() * 2..]),
                _ => block.run_decoded(level, w),
            }
        }
    }
}

/// One or two weight rows times a block of activation rows.
struct Block<'a> {
    x: &'a Tensor,
    x_first: usize,
    x_count: usize,
    row: usize,
    pair: usize,
    out: &'a Disjoint<'a, f32>,
    out_cols: usize,
}

impl Block<'_> {
    fn run_decoded(&self, level: CpuLevel, w: &RawMatrix) {
        DECODED.with_borrow_mut(|decoded| {
            decoded.resize(2 * w.cols(), 0.0);
            for (i, out) in decoded
                .chunks_exact_mut(w.cols())
                .take(self.pair)
                .enumerate()
            {
                w.decode_row(self.row + i, out)
                    .expect("a row was decoded before the work was shared out");
            }
            // SAFETY: any four bytes of a float may be read as bytes.
            let bytes = unsafe {
                std::slice::from_raw_parts(decoded.as_ptr().cast::<u8>(), decoded.len() * 4)
            };
            self.run::<F32>(level, bytes);
        });
    }

    fn run<const ENC: u8>(&self, level: CpuLevel, w: &[u8]) {
        let k = self.x.cols();
        let row_bytes = k * if ENC == F32 { 4 } else { 2 };
        assert!(w.len() >= self.pair * row_bytes);
        let mut at = 0;
        while at < self.x_count {
            let m = 3.min(self.x_count - at);
            let mut y = [0.0_f32; 6];
            let x = &self.x.as_slice()[(self.x_first + at) * k..(self.x_first + at + m) * k];
            // SAFETY: `w` holds `pair` rows and `x` holds `m` rows of `k` elements.
            unsafe {
                match (self.pair, m) {
                    (1, 1) => tile::<ENC, 1, 1>(level, w.as_ptr(), x.as_ptr(), k, &mut y),
                    (1, 2) => tile::<ENC, 1, 2>(level, w.as_ptr(), x.as_ptr(), k, &mut y),
                    (1, _) => tile::<ENC, 1, 3>(level, w.as_ptr(), x.as_ptr(), k, &mut y),
                    (_, 1) => tile::<ENC, 2, 1>(level, w.as_ptr(), x.as_ptr(), k, &mut y),
                    (_, 2) => tile::<ENC, 2, 2>(level, w.as_ptr(), x.as_ptr(), k, &mut y),
                    (_, _) => tile::<ENC, 2, 3>(level, w.as_ptr(), x.as_ptr(), k, &mut y),
                }
            }
            for i in 0..m {
                // SAFETY: this task alone writes these columns.
                let out = unsafe {
                    self.out.part(
                        (self.x_first + at + i) * self.out_cols + self.row,
                        self.pair,
                    )
                };
                out.copy_from_slice(&y[i * self.pair..][..self.pair]);
            }
            at += m;
        }
    }
}

simd_kernel! {
    /// `R` weight rows of `k` elements times `M` activation rows: `y[m * R + r]`.
    unsafe fn tile<const ENC: u8, const R: usize, const M: usize>(w: *const u8, x: *const f32, k: usize, y: &mut [f32; 6]) = tile_body
}

#[inline(always)]
unsafe fn tile_body<V: Simd, const ENC: u8, const R: usize, const M: usize>(
    w: *const u8,
    x: *const f32,
    k: usize,
    y: &mut [f32; 6],
) {
    let bytes = if ENC == F32 { 4 } else { 2 };
    let full = k - k % SUM_LANES;
    // SAFETY: rows have `k` elements by the caller's duty; the tail is copied into whole vectors.
    unsafe {
        let mut acc = [[[V::splat(0.0); 2]; M]; R];
        for at in (0..full).step_by(SUM_LANES) {
            for half in 0..2 {
                let at = at + half * LANES;
                let weights: [V::F32; R] =
                    std::array::from_fn(|r| load::<V, ENC>(w.add((r * k + at) * bytes)));
                for m in 0..M {
                    let activations = V::load(x.add(m * k + at));
                    for r in 0..R {
                        acc[r][m][half] = V::fma(weights[r], activations, acc[r][m][half]);
                    }
                }
            }
        }
        if full < k {
            for r in 0..R {
                let weights = tail::<V, ENC>(w.add((r * k + full) * bytes), k - full);
                for m in 0..M {
                    let activations = tail::<V, F32>(x.add(m * k + full).cast(), k - full);
                    for half in 0..2 {
                        acc[r][m][half] = V::fma(weights[half], activations[half], acc[r][m][half]);
                    }
                }
            }
        }
        for r in 0..R {
            for m in 0..M {
                y[m * R + r] = reduce_sum::<V>(acc[r][m][0], acc[r][m][1]);
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
