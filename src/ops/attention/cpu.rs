//! Attention on the CPU: up to four rows (queries × heads that share a key/value head) per pass over a tile of keys.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use std::cell::RefCell;

use super::{AttentionOptions, SequenceRows, TILE_KEYS};
use crate::ops::Tensor;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::kv_write::{BLOCK_TOKENS, Pages};
use crate::ops::simd::{LANES, SUM_LANES, Simd, math, reduce_sum, simd_kernel};
use crate::threads::Disjoint;

/// Rows (queries × heads of a group) of one task.
pub(super) const ROWS_PER_TASK: usize = 32;
/// Rows of one pass over the keys.
const MAX_ROWS: usize = 4;

thread_local! {
    /// Weighted values of a task's rows while tiles are merged.
    static WEIGHTED: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// One sequence and key/value head.
pub(super) struct Work<'a> {
    pub q: &'a Tensor,
    pub pages: &'a Pages,
    pub sequence: &'a SequenceRows<'a>,
    pub kv_head: usize,
    /// Query heads per key/value head.
    pub group: usize,
    pub options: &'a AttentionOptions,
    pub out: &'a Disjoint<'a, f32>,
}

/// One row of a pass: which query it is and which keys it sees.
#[derive(Clone, Copy)]
struct Row<'a> {
    q: &'a [f32],
    /// Keys `from..to`.
    from: usize,
    to: usize,
}

/// Maximum and sum of the tiles merged so far.
#[derive(Clone, Copy)]
struct Running {
    max: f32,
    sum: f32,
    empty: bool,
}

/// One tile's own results for `R` rows; weighted values stand in a separate buffer.
struct TileResult<const R: usize> {
    max: [f32; R],
    sum: [f32; R],
}

impl Work<'_> {
    /// Rows `first..first + count` of the flattened (token, head in group) rows.
    pub(super) fn run(&self, level: CpuLevel, first: usize, count: usize) {
        let value_stride = self.pages.shape().value_dim.next_multiple_of(LANES);
        WEIGHTED.with_borrow_mut(|scratch| {
            // Merged values of four rows, then one tile's.
            scratch.resize(2 * MAX_ROWS * value_stride, 0.0);
            let mut at = first;
            while at < first + count {
                let rows = MAX_ROWS.min(first + count - at);
                // SAFETY: the body needs the instruction set, which the level stands for, and scratch of this size.
                unsafe {
                    match rows {
                        1 => pass::<1>(level, self, at, scratch),
                        2 => pass::<2>(level, self, at, scratch),
                        3 => pass::<3>(level, self, at, scratch),
                        _ => pass::<4>(level, self, at, scratch),
                    }
                }
                at += rows;
            }
        });
    }

    fn row(&self, row: usize) -> Row<'_> {
        let (token, head) = self.place(row);
        let key_dim = self.pages.shape().key_dim;
        let to = self.sequence.first_position + row / self.group + 1;
        let from = self
            .options
            .window
            .map_or(0, |window| to.saturating_sub(window));
        Row {
            q: &self.q.row(token)[head * key_dim..][..key_dim],
            from,
            to,
        }
    }

    /// Row in the batch and query head of a flattened row.
    fn place(&self, row: usize) -> (usize, usize) {
        (
            self.sequence.first_row + row / self.group,
            self.kv_head * self.group + row % self.group,
        )
    }

    fn write(&self, row: usize, values: &[f32], sum: f32) {
        let value_dim = self.pages.shape().value_dim;
        let (token, head) = self.place(row);
        let heads = self.pages.shape().kv_heads * self.group;
        // SAFETY: this task alone writes this row and head.
        let out = unsafe { self.out.part((token * heads + head) * value_dim, value_dim) };
        for (out, value) in out.iter_mut().zip(values) {
            *out = value / sum;
        }
    }
}

simd_kernel! {
    /// All tiles for rows `first..first + R`.
    unsafe fn pass<const R: usize>(work: &Work<'_>, first: usize, scratch: &mut [f32]) = pass_body
}

#[inline(always)]
unsafe fn pass_body<V: Simd, const R: usize>(work: &Work<'_>, first: usize, scratch: &mut [f32]) {
    let rows: [Row<'_>; R] = std::array::from_fn(|r| work.row(first + r));
    let value_stride = work.pages.shape().value_dim.next_multiple_of(LANES);
    let (merged, own) = scratch.split_at_mut(MAX_ROWS * value_stride);
    let mut running = [Running {
        max: 0.0,
        sum: 0.0,
        empty: true,
    }; R];
    // Rows are in order of position: the first sees furthest back, the last furthest ahead.
    let (from, to) = (rows[0].from, rows[R - 1].to);
    for tile in from / TILE_KEYS..to.div_ceil(TILE_KEYS) {
        let keys = (tile * TILE_KEYS).max(from)..((tile + 1) * TILE_KEYS).min(to);
        let mut weights = [[0.0_f32; TILE_KEYS]; R];
        // SAFETY: the instruction set is the caller's duty; buffers have the sizes that the functions state.
        unsafe {
            scores::<V, R>(work, &rows, &keys, &mut weights);
            let result = soften::<V, R>(work.options, &rows, tile * TILE_KEYS, &mut weights);
            weighted_values::<V, R>(work, &keys, &weights, own);
            for r in 0..R {
                let seen =
                    rows[r].from.max(tile * TILE_KEYS)..rows[r].to.min((tile + 1) * TILE_KEYS);
                if !seen.is_empty() {
                    let at = r * value_stride..(r + 1) * value_stride;
                    merge::<V>(
                        &mut running[r],
                        result.max[r],
                        result.sum[r],
                        &mut merged[at.clone()],
                        &own[at],
                    );
                }
            }
        }
    }
    for r in 0..R {
        work.write(
            first + r,
            &merged[r * value_stride..(r + 1) * value_stride],
            running[r].sum,
        );
    }
}

/// `weights[r][key in tile] = q_r · key`: one chain of fused multiply-adds over the features, for whole blocks.
#[inline(always)]
unsafe fn scores<V: Simd, const R: usize>(
    work: &Work<'_>,
    rows: &[Row<'_>; R],
    keys: &std::ops::Range<usize>,
    weights: &mut [[f32; TILE_KEYS]; R],
) {
    let key_dim = work.pages.shape().key_dim;
    for block in keys.start / BLOCK_TOKENS..keys.end.div_ceil(BLOCK_TOKENS) {
        let page = work
            .pages
            .key_block(work.sequence.block_table[block] as usize, work.kv_head);
        assert!(page.len() == key_dim * BLOCK_TOKENS);
        let at = block * BLOCK_TOKENS % TILE_KEYS;
        // SAFETY: the page has `key_dim` rows of 16 halves, each q has `key_dim` elements, and `at + 16` is in the tile.
        unsafe {
            let mut acc = [[V::splat(0.0); 2]; R];
            for d in 0..key_dim {
                let p = page.as_ptr().add(d * BLOCK_TOKENS).cast::<u8>();
                let (low, high) = (V::load_f16(p), V::load_f16(p.add(2 * LANES)));
                for r in 0..R {
                    let q = V::splat(*rows[r].q.get_unchecked(d));
                    acc[r][0] = V::fma(q, low, acc[r][0]);
                    acc[r][1] = V::fma(q, high, acc[r][1]);
                }
            }
            for r in 0..R {
                V::store(weights[r].as_mut_ptr().add(at), acc[r][0]);
                V::store(weights[r].as_mut_ptr().add(at + LANES), acc[r][1]);
            }
        }
    }
}

/// Scores to weights `e^(score - max)`, zero for keys that a row does not see; 16-lane sums.
#[inline(always)]
unsafe fn soften<V: Simd, const R: usize>(
    options: &AttentionOptions,
    rows: &[Row<'_>; R],
    tile_start: usize,
    weights: &mut [[f32; TILE_KEYS]; R],
) -> TileResult<R> {
    let mut result = TileResult {
        max: [f32::NEG_INFINITY; R],
        sum: [0.0; R],
    };
    for r in 0..R {
        let w = &mut weights[r];
        let seen = rows[r].from.saturating_sub(tile_start).min(TILE_KEYS)
            ..rows[r].to.saturating_sub(tile_start).min(TILE_KEYS);
        if seen.is_empty() {
            w.fill(0.0);
            continue;
        }
        // SAFETY: a tile is a whole number of vectors; the instruction set is the caller's duty.
        unsafe {
            for at in (0..TILE_KEYS).step_by(LANES) {
                let mut s = V::mul(V::load(w.as_ptr().add(at)), V::splat(options.scale));
                if let Some(cap) = options.soft_cap {
                    s = V::mul(math::tanh::<V>(V::div(s, V::splat(cap))), V::splat(cap));
                }
                V::store(w.as_mut_ptr().add(at), s);
            }
            let max = w[seen.clone()]
                .iter()
                .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
            w[..seen.start].fill(f32::NEG_INFINITY);
            w[seen.end..].fill(f32::NEG_INFINITY);
            let (mut low, mut high) = (V::splat(0.0), V::splat(0.0));
            for at in (0..TILE_KEYS).step_by(SUM_LANES) {
                let a = math::exp::<V>(V::sub(V::load(w.as_ptr().add(at)), V::splat(max)));
                let b = math::exp::<V>(V::sub(V::load(w.as_ptr().add(at + LANES)), V::splat(max)));
                V::store(w.as_mut_ptr().add(at), a);
                V::store(w.as_mut_ptr().add(at + LANES), b);
                low = V::add(low, a);
                high = V::add(high, b);
            }
            result.max[r] = max;
            result.sum[r] = reduce_sum::<V>(low, high);
        }
    }
    result
}

/// `own[r] = Σ weights[r][key] · value`, keys ascending, one chain per feature.
///
/// Runs over keys that some row of the pass sees: for a row that does not see a key the weight is 0 and the key is a
/// later one of the same sequence, finite by `store_f16`.
#[inline(always)]
unsafe fn weighted_values<V: Simd, const R: usize>(
    work: &Work<'_>,
    keys: &std::ops::Range<usize>,
    weights: &[[f32; TILE_KEYS]; R],
    own: &mut [f32],
) {
    let stride = work.pages.shape().value_dim.next_multiple_of(LANES);
    assert!(own.len() >= R * stride);
    let mut d = 0;
    while d < stride {
        // SAFETY: `d + 8` or `d + 16` features lie inside a padded row; the rest is the caller's duty.
        unsafe {
            if d + 2 * LANES <= stride {
                value_columns::<V, R, 2>(work, keys, weights, own, d);
                d += 2 * LANES;
            } else {
                value_columns::<V, R, 1>(work, keys, weights, own, d);
                d += LANES;
            }
        }
    }
}

/// Features `d..d + 8 W` of [`weighted_values`].
#[inline(always)]
unsafe fn value_columns<V: Simd, const R: usize, const W: usize>(
    work: &Work<'_>,
    keys: &std::ops::Range<usize>,
    weights: &[[f32; TILE_KEYS]; R],
    own: &mut [f32],
    d: usize,
) {
    let stride = work.pages.shape().value_dim.next_multiple_of(LANES);
    // SAFETY: pages have 16 rows of `stride` halves; `own` has R rows of `stride`.
    unsafe {
        let mut acc = [[V::splat(0.0); W]; R];
        let mut key = keys.start;
        while key < keys.end {
            let page = work.pages.value_block(
                work.sequence.block_table[key / BLOCK_TOKENS] as usize,
                work.kv_head,
            );
            let end = keys.end.min((key / BLOCK_TOKENS + 1) * BLOCK_TOKENS);
            for key in key..end {
                let p = page
                    .as_ptr()
                    .add(key % BLOCK_TOKENS * stride + d)
                    .cast::<u8>();
                let values: [V::F32; W] =
                    std::array::from_fn(|i| V::load_f16(p.add(i * 2 * LANES)));
                for r in 0..R {
                    let weight = V::splat(*weights[r].get_unchecked(key % TILE_KEYS));
                    for i in 0..W {
                        acc[r][i] = V::fma(weight, values[i], acc[r][i]);
                    }
                }
            }
            key = end;
        }
        for r in 0..R {
            for i in 0..W {
                V::store(own.as_mut_ptr().add(r * stride + d + i * LANES), acc[r][i]);
            }
        }
    }
}

/// Merges a tile into what was merged before.
#[inline(always)]
unsafe fn merge<V: Simd>(
    running: &mut Running,
    max: f32,
    sum: f32,
    merged: &mut [f32],
    own: &[f32],
) {
    if running.empty {
        *running = Running {
            max,
            sum,
            empty: false,
        };
        merged.copy_from_slice(own);
        return;
    }
    let top = if max > running.max { max } else { running.max };
    // SAFETY: both rows are whole vectors; the instruction set is the caller's duty.
    unsafe {
        let old = math::exp::<V>(V::splat(running.max - top));
        let new = math::exp::<V>(V::splat(max - top));
        for at in (0..merged.len()).step_by(LANES) {
            let kept = V::mul(V::load(merged.as_ptr().add(at)), old);
            V::store(
                merged.as_mut_ptr().add(at),
                V::fma(V::load(own.as_ptr().add(at)), new, kept),
            );
        }
        let mut lanes = [0.0_f32; LANES];
        V::store(
            lanes.as_mut_ptr(),
            V::fma(V::splat(sum), new, V::mul(V::splat(running.sum), old)),
        );
        *running = Running {
            max: top,
            sum: lanes[0],
            empty: false,
        };
    }
}
