//! Encoder attention on the CPU: up to four rows of one head per pass over a tile of keys.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use std::cell::RefCell;

use super::{HeadShape, Place, TILE_KEYS};
use crate::ops::Tensor;
use crate::ops::aligned::Aligned;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::softmax::{Softened, merge, soften};
use crate::ops::simd::{LANES, Simd, simd_kernel};
use crate::threads::Disjoint;

/// Rows of one task.
pub(super) const ROWS_PER_TASK: usize = 32;
/// Rows of one pass over the keys.
const MAX_ROWS: usize = 4;
/// Keys whose scores are computed at once.
const STEP_KEYS: usize = 2 * LANES;

thread_local! {
    /// Weighted values of a pass: of the tiles merged so far, then of one tile.
    static WEIGHTED: RefCell<Aligned<f32>> = const { RefCell::new(Aligned::new()) };
}

/// Where the keys of a sequence and head lie in the packed keys, in elements.
fn key_range(place: &Place, heads: HeadShape, head: usize) -> (usize, usize) {
    let tokens = place.length.next_multiple_of(TILE_KEYS);
    let before = place.first_padded * heads.num_heads + head * tokens;
    (before * heads.head_dim, tokens * heads.head_dim)
}

/// The same for the packed values.
fn value_range(place: &Place, heads: HeadShape, head: usize) -> (usize, usize) {
    let stride = heads.head_dim.next_multiple_of(LANES);
    let before = place.first * heads.num_heads + head * place.length;
    (before * stride, place.length * stride)
}

/// The packed keys of a sequence and head: tile by tile, feature by feature, [`TILE_KEYS`] keys.
pub(super) fn keys_of<'a>(
    keys: &'a Tensor,
    place: &Place,
    heads: HeadShape,
    head: usize,
) -> &'a [f32] {
    let (first, len) = key_range(place, heads, head);
    &keys.as_slice()[first..first + len]
}

/// The packed values of a sequence and head: key by key, rows of whole vectors.
pub(super) fn values_of<'a>(
    values: &'a Tensor,
    place: &Place,
    heads: HeadShape,
    head: usize,
) -> &'a [f32] {
    let (first, len) = value_range(place, heads, head);
    &values.as_slice()[first..first + len]
}

/// Writes the keys of a sequence and head as [`keys_of`] has them; keys past its end are zeros.
pub(super) fn pack_keys(
    k: &Tensor,
    place: &Place,
    heads: HeadShape,
    head: usize,
    out: &Disjoint<'_, f32>,
) {
    let (first, len) = key_range(place, heads, head);
    let dim = heads.head_dim;
    // SAFETY: the parts of sequences and heads are disjoint.
    let out = unsafe { out.part(first, len) };
    for (index, tile) in out.chunks_exact_mut(TILE_KEYS * dim).enumerate() {
        let first = index * TILE_KEYS;
        let count = TILE_KEYS.min(place.length - first);
        for key in 0..count {
            let row = &k.row(place.first + first + key)[head * dim..(head + 1) * dim];
            for (d, x) in row.iter().enumerate() {
                tile[d * TILE_KEYS + key] = *x;
            }
        }
        if count < TILE_KEYS {
            tile.chunks_exact_mut(TILE_KEYS)
                .for_each(|keys| keys[count..].fill(0.0));
        }
    }
}

/// Writes the values of a sequence and head as [`values_of`] has them; elements past a head's end are zeros.
pub(super) fn pack_values(
    v: &Tensor,
    place: &Place,
    heads: HeadShape,
    head: usize,
    out: &Disjoint<'_, f32>,
) {
    let (first, len) = value_range(place, heads, head);
    let dim = heads.head_dim;
    // SAFETY: the parts of sequences and heads are disjoint.
    let out = unsafe { out.part(first, len) };
    for (row, values) in out
        .chunks_exact_mut(dim.next_multiple_of(LANES))
        .enumerate()
    {
        values[..dim].copy_from_slice(&v.row(place.first + row)[head * dim..(head + 1) * dim]);
        values[dim..].fill(0.0);
    }
}

/// One sequence and head.
pub(super) struct Work<'a> {
    pub q: &'a Tensor,
    /// As [`keys_of`].
    pub keys: &'a [f32],
    /// As [`values_of`].
    pub values: &'a [f32],
    pub place: &'a Place,
    pub heads: HeadShape,
    pub head: usize,
    pub out: &'a Disjoint<'a, f32>,
}

impl Work<'_> {
    /// Rows `first..first + count` of the sequence.
    pub(super) fn run(&self, level: CpuLevel, first: usize, count: usize) {
        let stride = self.heads.head_dim.next_multiple_of(LANES);
        WEIGHTED.with_borrow_mut(|scratch| {
            scratch.set_len(2 * MAX_ROWS * stride);
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

    fn query(&self, row: usize) -> &[f32] {
        let dim = self.heads.head_dim;
        &self.q.row(self.place.first + row)[self.head * dim..(self.head + 1) * dim]
    }

    fn write(&self, row: usize, values: &[f32], sum: f32) {
        let (dim, num_heads) = (self.heads.head_dim, self.heads.num_heads);
        let at = ((self.place.first + row) * num_heads + self.head) * dim;
        // SAFETY: this task alone writes this row and head.
        let out = unsafe { self.out.part(at, dim) };
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
    let queries: [&[f32]; R] = std::array::from_fn(|r| work.query(first + r));
    let dim = work.heads.head_dim;
    let stride = dim.next_multiple_of(LANES);
    let (merged, own) = scratch.split_at_mut(MAX_ROWS * stride);
    let mut running: [Option<Softened>; R] = [None; R];
    for (index, keys) in work.keys.chunks_exact(TILE_KEYS * dim).enumerate() {
        let count = TILE_KEYS.min(work.place.length - index * TILE_KEYS);
        let values = &work.values[index * TILE_KEYS * stride..][..count * stride];
        let mut weights = [[0.0_f32; TILE_KEYS]; R];
        // SAFETY: the instruction set is the caller's duty; buffers have the sizes that the functions state.
        unsafe {
            scores::<V, R>(&queries, keys, work.heads.scale, &mut weights);
            let mut tiles = [Softened::default(); R];
            for r in 0..R {
                tiles[r] = soften::<V, TILE_KEYS>(&mut weights[r], 0..count);
            }
            weighted_values::<V, R>(values, stride, &weights, own);
            for r in 0..R {
                let at = r * stride..(r + 1) * stride;
                let (merged, own) = (&mut merged[at.clone()], &own[at]);
                running[r] = Some(match running[r] {
                    None => {
                        merged.copy_from_slice(own);
                        tiles[r]
                    }
                    Some(before) => merge::<V>(before, tiles[r], merged, own),
                });
            }
        }
    }
    for r in 0..R {
        let sum = running[r].expect("a sequence has a token").sum;
        work.write(first + r, &merged[r * stride..(r + 1) * stride], sum);
    }
}

/// `weights[r][key] = scale · (q_r · key)` for a whole tile: one chain of fused multiply-adds over the features.
#[inline(always)]
unsafe fn scores<V: Simd, const R: usize>(
    queries: &[&[f32]; R],
    keys: &[f32],
    scale: f32,
    weights: &mut [[f32; TILE_KEYS]; R],
) {
    let dim = queries[0].len();
    assert!(keys.len() == dim * TILE_KEYS && queries.iter().all(|q| q.len() == dim));
    for at in (0..TILE_KEYS).step_by(STEP_KEYS) {
        // SAFETY: the tile has `dim` rows of 64 keys, each query `dim` elements, and `at + 16` is in the tile.
        unsafe {
            let mut acc = [[V::splat(0.0); 2]; R];
            for d in 0..dim {
                let p = keys.as_ptr().add(d * TILE_KEYS + at);
                let (low, high) = (V::load(p), V::load(p.add(LANES)));
                for r in 0..R {
                    let q = V::splat(*queries[r].get_unchecked(d));
                    acc[r][0] = V::fma(q, low, acc[r][0]);
                    acc[r][1] = V::fma(q, high, acc[r][1]);
                }
            }
            for r in 0..R {
                let scale = V::splat(scale);
                let out = weights[r].as_mut_ptr().add(at);
                V::store(out, V::mul(acc[r][0], scale));
                V::store(out.add(LANES), V::mul(acc[r][1], scale));
            }
        }
    }
}

/// `own[r] = Σ weights[r][key] · value`, keys ascending, one chain per feature; `values` holds rows of `stride`.
#[inline(always)]
unsafe fn weighted_values<V: Simd, const R: usize>(
    values: &[f32],
    stride: usize,
    weights: &[[f32; TILE_KEYS]; R],
    own: &mut [f32],
) {
    assert!(own.len() >= R * stride && values.len() <= TILE_KEYS * stride);
    let mut d = 0;
    while d < stride {
        // SAFETY: `d + 8` or `d + 16` features lie inside a padded row; the rest is asserted above.
        unsafe {
            if d + 2 * LANES <= stride {
                value_columns::<V, R, 2>(values, stride, weights, own, d);
                d += 2 * LANES;
            } else {
                value_columns::<V, R, 1>(values, stride, weights, own, d);
                d += LANES;
            }
        }
    }
}

/// Features `d..d + 8 W` of [`weighted_values`].
#[inline(always)]
unsafe fn value_columns<V: Simd, const R: usize, const W: usize>(
    values: &[f32],
    stride: usize,
    weights: &[[f32; TILE_KEYS]; R],
    own: &mut [f32],
    d: usize,
) {
    // SAFETY: the caller says that `own` has R rows of `stride` and that `d + 8 W` is inside a row.
    unsafe {
        let mut acc = [[V::splat(0.0); W]; R];
        for (key, row) in values.chunks_exact(stride).enumerate() {
            let loaded: [V::F32; W] =
                std::array::from_fn(|i| V::load(row.as_ptr().add(d + i * LANES)));
            for r in 0..R {
                let weight = V::splat(*weights[r].get_unchecked(key));
                for i in 0..W {
                    acc[r][i] = V::fma(weight, loaded[i], acc[r][i]);
                }
            }
        }
        for r in 0..R {
            for i in 0..W {
                V::store(own.as_mut_ptr().add(r * stride + d + i * LANES), acc[r][i]);
            }
        }
    }
}
