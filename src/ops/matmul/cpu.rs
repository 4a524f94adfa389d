//! Float products on the CPU: one weight row times up to six activation rows in twelve accumulators, or two weight rows where one
//! vector holds all sums of a row.
//!
//! Twelve hide the latency of a fused multiply-add. A weight is loaded and converted once for six of them, which read their
//! activations from the first-level cache as they multiply: of all shapes this one has the fewest instructions, and those are what
//! is short where two threads share a core. Decoding waits for memory: its weights are one stream.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use std::cell::RefCell;
use std::ops::Range;

use super::{Packed, Product};
use crate::ops::Rows;
use crate::ops::aligned::Aligned;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, SUM_LANES, Simd, Vector, Wide, at_once, reduce_sum, simd_kernel};
use crate::quant::Encoding;
use crate::threads::Disjoint;

/// Weight rows of one task: small enough to balance, and to stay in the second-level cache while all activations pass.
pub(super) const ROWS_PER_TASK: usize = 64;
/// Activation rows that a weight is multiplied with at once.
pub(super) const X_ROWS: usize = 6;
/// Bytes of activations that stay in the first-level cache while a block of weight rows passes over them. Fewer cost more: every part is
/// a loop of its own.
const X_BYTES: usize = 24 * 1024;
/// Weight rows whose partial sums are added up together, from the first-level cache.
const BLOCK_ROWS: usize = 16;
/// How far ahead weights are fetched.
const PREFETCH_BYTES: usize = 2048;

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Buffers of a task.
#[derive(Default)]
struct Scratch {
    /// Partial sums `[weight row][activation row][16]`.
    sums: Aligned<f32>,
    /// Weight rows of the reference path.
    decoded: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Copies up to [`X_ROWS`] rows, from `first` on, in the order in which the kernel reads them: `[features / 16][row][16]`, the last
/// features filled up with zeros.
pub(super) fn pack(x: &Rows<'_>, first: usize, packed: &mut [f32]) {
    let rows = X_ROWS.min(x.count() - first);
    let step = rows * SUM_LANES;
    let last = packed.len().saturating_sub(step);
    packed[last..].fill(0.0);
    for m in 0..rows {
        let (parts, rest) = x.row(first + m).as_chunks::<SUM_LANES>();
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

/// Outputs `outputs` of every row of a product, whose activations are `packed` and whose rows of the result `out` this task alone
/// writes in these columns.
pub(super) fn multiply(
    level: CpuLevel,
    product: &Product<'_>,
    packed: &Packed,
    outputs: Range<usize>,
    out: &Disjoint<'_, f32>,
) {
    let w = product.w;
    let (first, count) = (outputs.start, outputs.len());
    SCRATCH.with_borrow_mut(|Scratch { sums, decoded }| {
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
            let bytes =
                unsafe { std::slice::from_raw_parts(decoded.as_ptr().cast::<u8>(), count * k * 4) };
            (Encoding::F32, bytes)
        };
        for x_first in (0..product.x.count()).step_by(X_ROWS) {
            let task = Task {
                level,
                x: packed.rows_from(x_first),
                m: X_ROWS.min(product.x.count() - x_first),
                k,
                w: bytes,
                count,
            };
            let at = (product.first_row + x_first, first);
            match encoding {
                Encoding::F16 => task.multiply::<F16>(sums, at, w.rows(), out),
                Encoding::BF16 => task.multiply::<BF16>(sums, at, w.rows(), out),
                _ => task.multiply::<F32>(sums, at, w.rows(), out),
            }
        }
    });
}

/// Some weight rows times up to [`X_ROWS`] activation rows.
struct Task<'a> {
    level: CpuLevel,
    /// Packed activations.
    x: &'a [f32],
    /// Activation rows that there are.
    m: usize,
    /// Elements of a row.
    k: usize,
    w: &'a [u8],
    /// Weight rows.
    count: usize,
}

impl Task<'_> {
    /// All weight rows, a block of them after the other, into rows `x_first..` and columns `w_first..` of the result.
    fn multiply<const ENC: u8>(
        &self,
        sums: &mut Aligned<f32>,
        (x_first, w_first): (usize, usize),
        cols: usize,
        out: &Disjoint<'_, f32>,
    ) {
        for block in (0..self.count).step_by(BLOCK_ROWS) {
            let rows = block..self.count.min(block + BLOCK_ROWS);
            sums.set_len(rows.len() * self.m * SUM_LANES);
            self.sum::<ENC>(rows.clone(), sums);
            for m in 0..self.m {
                let at = (x_first + m) * cols + w_first + block;
                // SAFETY: this task alone writes these columns.
                let out = unsafe { out.part(at, rows.len()) };
                // SAFETY: the body needs the instruction set only, which the level stands for.
                unsafe { finish(self.level, &sums[m * SUM_LANES..], self.m * SUM_LANES, out) };
            }
        }
    }

    /// Partial sums of some weight rows, over as many features at a time as keep the activations in the cache.
    fn sum<const ENC: u8>(&self, rows: Range<usize>, sums: &mut [f32]) {
        let (m, size) = (self.m, element_bytes(ENC));
        let part = (X_BYTES / (m * 4)).next_multiple_of(SUM_LANES);
        // Two rows of weights are two streams, which does not pay where memory is waited for.
        let at_once = match m {
            1 | 2 => 1,
            _ => at_once(self.level),
        };
        let step = at_once * m * SUM_LANES;
        // A row without elements has a part too: the sums must be written.
        for from in (0..self.k.max(1)).step_by(part) {
            let k = part.min(self.k - from);
            let x = &self.x[from * m..][..k.next_multiple_of(SUM_LANES) * m];
            let row_bytes = self.k * size;
            for (first, sums) in rows.clone().step_by(at_once).zip(sums.chunks_mut(step)) {
                let count = sums.len() / (m * SUM_LANES);
                let begin = first * row_bytes + from * size;
                let w = &self.w[begin..][..(count - 1) * row_bytes + k * size];
                let w = Weights {
                    w,
                    row_bytes,
                    count,
                    k,
                };
                add_products::<ENC>(self.level, &w, x, m, sums, from == 0);
            }
        }
    }
}

/// Parts of one or two weight rows.
struct Weights<'a> {
    w: &'a [u8],
    /// From the first part to the second.
    row_bytes: usize,
    count: usize,
    /// Elements of a part.
    k: usize,
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

/// Parts of weight rows times the same part of `m` packed activation rows: added to the partial sums `[weight row][m][16]`, or put in
/// their place where it is the `first` part.
fn add_products<const ENC: u8>(
    level: CpuLevel,
    weights: &Weights<'_>,
    x: &[f32],
    m: usize,
    sums: &mut [f32],
    first: bool,
) {
    let Weights {
        w,
        row_bytes,
        count,
        k,
    } = *weights;
    // What the kernels read and write through pointers, checked once.
    assert!(count > 0 && w.len() == (count - 1) * row_bytes + k * element_bytes(ENC));
    assert!(x.len() == k.div_ceil(SUM_LANES) * m * SUM_LANES);
    assert!(sums.len() == count * m * SUM_LANES);
    let (w, x, sums) = (w.as_ptr(), x.as_ptr(), sums.as_mut_ptr());
    // SAFETY: so many elements and rows, as checked above.
    unsafe {
        match (m, count) {
            (1, 1) => tile::<ENC, 1, 1>(level, w, row_bytes, x, k, sums, first),
            (2, 1) => tile::<ENC, 2, 1>(level, w, row_bytes, x, k, sums, first),
            (3, 1) => tile::<ENC, 3, 1>(level, w, row_bytes, x, k, sums, first),
            (4, 1) => tile::<ENC, 4, 1>(level, w, row_bytes, x, k, sums, first),
            (5, 1) => tile::<ENC, 5, 1>(level, w, row_bytes, x, k, sums, first),
            (6, 1) => tile::<ENC, 6, 1>(level, w, row_bytes, x, k, sums, first),
            (3, 2) => tile::<ENC, 3, 2>(level, w, row_bytes, x, k, sums, first),
            (4, 2) => tile::<ENC, 4, 2>(level, w, row_bytes, x, k, sums, first),
            (5, 2) => tile::<ENC, 5, 2>(level, w, row_bytes, x, k, sums, first),
            (6, 2) => tile::<ENC, 6, 2>(level, w, row_bytes, x, k, sums, first),
            (m, count) => unreachable!("{m} activation rows and {count} weight rows"),
        }
    }
}

simd_kernel! {
    /// `k` elements of `N` weight rows times `M` packed activation rows, behind what `sums` has unless they are the `first`.
    unsafe fn tile<const ENC: u8, const M: usize, const N: usize>(w: *const u8, row_bytes: usize, x: *const f32, k: usize, sums: *mut f32, first: bool) = tile_body
}

#[inline(always)]
unsafe fn tile_body<V: Simd, const ENC: u8, const M: usize, const N: usize>(
    w: *const u8,
    row_bytes: usize,
    x: *const f32,
    k: usize,
    sums: *mut f32,
    first: bool,
) {
    if N > V::Wide::AT_ONCE {
        unreachable!("{N} weight rows at once");
    }
    let bytes = const { element_bytes(ENC) };
    // SAFETY: the caller has checked the sizes; the last elements are copied into whole vectors.
    unsafe {
        let mut acc = [[V::Wide::splat(0.0); M]; N];
        if !first {
            for n in 0..N {
                for m in 0..M {
                    acc[n][m] = V::Wide::load(sums.add((n * M + m) * SUM_LANES));
                }
            }
        }
        let (mut w, mut x) = (w, x);
        for _ in 0..k / SUM_LANES {
            for n in 0..N {
                let row = w.wrapping_add(n * row_bytes);
                V::prefetch(row.wrapping_add(PREFETCH_BYTES));
                add::<V::Wide, M>(&mut acc[n], load::<V::Wide, ENC>(row), x);
            }
            w = w.add(SUM_LANES * bytes);
            x = x.add(M * SUM_LANES);
        }
        if !k.is_multiple_of(SUM_LANES) {
            for n in 0..N {
                let row = w.wrapping_add(n * row_bytes);
                add::<V::Wide, M>(&mut acc[n], tail::<V::Wide, ENC>(row, k % SUM_LANES), x);
            }
        }
        for n in 0..N {
            for m in 0..M {
                V::Wide::store(sums.add((n * M + m) * SUM_LANES), acc[n][m]);
            }
        }
    }
}

/// Sixteen weights times as many elements of `M` activation rows.
#[inline(always)]
unsafe fn add<V: Wide, const M: usize>(acc: &mut [V::F32; M], weights: V::F32, x: *const f32) {
    // SAFETY: the caller's duty.
    unsafe {
        for m in 0..M {
            acc[m] = V::fma(weights, V::load(x.add(m * SUM_LANES)), acc[m]);
        }
    }
}

/// Bytes of a weight.
const fn element_bytes(encoding: u8) -> usize {
    if encoding == F32 { 4 } else { 2 }
}

/// Sixteen elements.
#[inline(always)]
unsafe fn load<V: Wide, const ENC: u8>(p: *const u8) -> V::F32 {
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
unsafe fn tail<V: Wide, const ENC: u8>(p: *const u8, count: usize) -> V::F32 {
    let mut padded = [0_u8; SUM_LANES * 4];
    // SAFETY: `count` elements may be read, and fit into the padded copy.
    unsafe {
        std::ptr::copy_nonoverlapping(p, padded.as_mut_ptr(), count * element_bytes(ENC));
        load::<V, ENC>(padded.as_ptr())
    }
}
