//! One tile of keys for up to four rows: scores, their softmax, weighted values.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use std::ops::Range;

use super::cpu::Work;
use super::{AttentionOptions, TILE_KEYS};
use crate::ops::kv_write::{BLOCK_TOKENS, KvElement};
use crate::ops::simd::softmax::{Softened, soften};
use crate::ops::simd::{LANES, Simd, Vector, Wide, math};

/// Rows of one pass over a tile.
pub(super) const MAX_ROWS: usize = 4;
/// Blocks of a tile.
const TILE_BLOCKS: usize = TILE_KEYS / BLOCK_TOKENS;
/// Words in a cache line.
const LINE: usize = 32;

/// One row: its query and the keys `from..to` that it sees.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub q: &'a [f32],
    pub from: usize,
    pub to: usize,
}

type Weights<const R: usize> = [[f32; TILE_KEYS]; R];

/// Pages of the tile's blocks; those without a key that anybody sees are somebody else's and stand in for nothing.
type Blocks<'a> = [&'a [u16]; TILE_BLOCKS];

/// The tile that holds `keys` (which some row sees): weights `e^(score - max)` and their sums, and in `own` `[R, padded
/// value_dim]` the weighted values. `ahead`: the next tile's keys are fetched on the way.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn own_tile<V: Simd, const WIDE: bool, const R: usize>(
    work: &Work<'_>,
    head: usize,
    rows: &[Row<'_>; R],
    keys: &Range<usize>,
    ahead: bool,
    own: &mut [f32],
) -> [Option<Softened>; R] {
    let pages = work.pages;
    let block = |b: usize| work.sequence.block_table[b] as usize;
    let (first, last) = (keys.start / BLOCK_TOKENS, (keys.end - 1) / BLOCK_TOKENS);
    let tile = keys.start / TILE_KEYS;
    let at = |i: usize| block((tile * TILE_BLOCKS + i).clamp(first, last));
    let key_pages: Blocks<'_> = std::array::from_fn(|i| pages.key_block(at(i), head));
    let value_pages: Blocks<'_> = std::array::from_fn(|i| pages.value_block(at(i), head));
    let next = (ahead && keys.end == (tile + 1) * TILE_KEYS).then(|| {
        let after = |i: usize| (tile + 1) * TILE_BLOCKS + i;
        let known = work.sequence.block_table.len() - 1;
        std::array::from_fn(|i| pages.key_block(block(after(i).min(known)), head))
    });
    let mut weights = [[0.0_f32; TILE_KEYS]; R];
    let coming = ahead.then_some(&value_pages);
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        // As many blocks at once as hide the latency of an addition, but few streams for the few rows that wait for memory.
        match (R, V::Wide::AT_ONCE) {
            (1, _) => scores::<V::Wide, WIDE, R, 4>(rows, &key_pages, coming, &mut weights),
            (2, _) | (_, 2) => {
                scores::<V::Wide, WIDE, R, 2>(rows, &key_pages, coming, &mut weights);
            }
            _ => scores::<V::Wide, WIDE, R, 1>(rows, &key_pages, coming, &mut weights),
        }
        let softened = soften_rows::<V, R>(work.options, rows, tile * TILE_KEYS, &mut weights);
        let keys = keys.start % TILE_KEYS..(keys.end - 1) % TILE_KEYS + 1;
        let stride = pages.shape().value_dim.next_multiple_of(LANES);
        weighted_values::<V, WIDE, R>(&value_pages, stride, &keys, &weights, next.as_ref(), own);
        softened
    }
}

/// Words of an element.
const fn words(wide: bool) -> usize {
    if wide {
        KvElement::F32.words()
    } else {
        KvElement::F16.words()
    }
}

/// A vector of elements of a page, from `at` on.
///
/// # Safety
/// They lie in the page, whose elements are `WIDE`; the CPU has the instruction set of `V`.
#[inline(always)]
unsafe fn load<V: Vector, const WIDE: bool>(page: *const u16, at: usize) -> V::F32 {
    // SAFETY: the caller's duty; loads need no alignment.
    unsafe {
        if WIDE {
            V::load(page.cast::<f32>().add(at))
        } else {
            V::load_f16(page.add(at).cast())
        }
    }
}

/// `weights[r][key in tile] = q_r · key`: one chain of fused multiply-adds over the features. `B` blocks at a time, for as many
/// chains at once as hide the latency of an addition.
#[inline(always)]
unsafe fn scores<V: Wide, const WIDE: bool, const R: usize, const B: usize>(
    rows: &[Row<'_>; R],
    pages: &Blocks<'_>,
    coming: Option<&Blocks<'_>>,
    weights: &mut Weights<R>,
) {
    let key_dim = rows[0].q.len();
    for first in (0..TILE_BLOCKS).step_by(B) {
        let page: [*const u16; B] = std::array::from_fn(|b| {
            assert!(pages[first + b].len() == key_dim * BLOCK_TOKENS * words(WIDE));
            pages[first + b].as_ptr()
        });
        // SAFETY: a page has `key_dim` rows of 16 elements, each q has `key_dim` elements, and the blocks lie in the tile. What is
        // fetched need not be readable.
        unsafe {
            let mut acc = [[V::splat(0.0); B]; R];
            for d in 0..key_dim {
                let mut keys = [V::splat(0.0); B];
                for b in 0..B {
                    keys[b] = load::<V, WIDE>(page[b], d * BLOCK_TOKENS);
                    if let Some(coming) = coming {
                        V::prefetch(
                            coming[first + b]
                                .as_ptr()
                                .wrapping_add(d * BLOCK_TOKENS * words(WIDE))
                                .cast(),
                        );
                    }
                }
                for r in 0..R {
                    let q = V::splat(*rows[r].q.get_unchecked(d));
                    for b in 0..B {
                        acc[r][b] = V::fma(q, keys[b], acc[r][b]);
                    }
                }
            }
            for r in 0..R {
                for b in 0..B {
                    let out = weights[r].as_mut_ptr().add((first + b) * BLOCK_TOKENS);
                    V::store(out, acc[r][b]);
                }
            }
        }
    }
}

/// Scores to weights `e^(score - max)`, zero for keys that a row does not see; `None` for a row that sees none.
#[inline(always)]
unsafe fn soften_rows<V: Simd, const R: usize>(
    options: &AttentionOptions<'_>,
    rows: &[Row<'_>; R],
    tile_start: usize,
    weights: &mut Weights<R>,
) -> [Option<Softened>; R] {
    let mut softened = [None; R];
    for r in 0..R {
        let w = &mut weights[r];
        let place = |key: usize| key.saturating_sub(tile_start).min(TILE_KEYS);
        let seen = place(rows[r].from)..place(rows[r].to);
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
            softened[r] = Some(soften::<V, TILE_KEYS>(w, seen));
        }
    }
    softened
}

/// `own[r] = Σ weights[r][key] · value` over `keys` (places in the tile), ascending, one chain per feature.
///
/// Runs over keys that some row of the pass sees: for a row that does not see a key the weight is 0 and the key is a
/// later one of the same sequence, finite by how pages are written.
#[inline(always)]
unsafe fn weighted_values<V: Simd, const WIDE: bool, const R: usize>(
    pages: &Blocks<'_>,
    stride: usize,
    keys: &Range<usize>,
    weights: &Weights<R>,
    coming: Option<&Blocks<'_>>,
    own: &mut [f32],
) {
    let len = stride * BLOCK_TOKENS * words(WIDE);
    assert!(own.len() >= R * stride && pages.iter().all(|p| p.len() == len));
    let mut d = 0;
    // SAFETY: the features lie inside a padded row; the instruction set is the caller's duty.
    unsafe {
        let most = const { 4 / R.next_power_of_two() * V::Wide::AT_ONCE };
        macro_rules! columns {
            ($vector:ty, $count:literal) => {
                while $count <= most && d + $count * <$vector>::WIDTH <= stride {
                    value_columns::<$vector, WIDE, R, $count>(
                        pages, stride, keys, weights, coming, own, d,
                    );
                    d += $count * <$vector>::WIDTH;
                }
            };
        }
        columns!(V::Wide, 8);
        columns!(V::Wide, 4);
        columns!(V::Wide, 2);
        columns!(V::Wide, 1);
        columns!(V, 1);
    }
}

/// Features of `W` vectors from `d` on of [`weighted_values`].
#[inline(always)]
unsafe fn value_columns<V: Vector, const WIDE: bool, const R: usize, const W: usize>(
    pages: &Blocks<'_>,
    stride: usize,
    keys: &Range<usize>,
    weights: &Weights<R>,
    coming: Option<&Blocks<'_>>,
    own: &mut [f32],
    d: usize,
) {
    // SAFETY: pages have 16 rows of `stride` elements, `own` has R rows of `stride`, and `d` and `W` vectors are at most `stride`. What is
    // fetched need not be readable.
    unsafe {
        let mut acc = [[V::splat(0.0); W]; R];
        for block in keys.start / BLOCK_TOKENS..keys.end.div_ceil(BLOCK_TOKENS) {
            if let Some(coming) = coming {
                // These features' share of the lines.
                let len = coming[block].len();
                let share = len * d / stride..len * (d + W * V::WIDTH) / stride;
                for at in share.step_by(LINE) {
                    V::prefetch(coming[block].as_ptr().wrapping_add(at).cast());
                }
            }
            let page = pages[block].as_ptr();
            let end = keys.end.min((block + 1) * BLOCK_TOKENS);
            for key in keys.start.max(block * BLOCK_TOKENS)..end {
                let at = key % BLOCK_TOKENS * stride + d;
                let mut values = [V::splat(0.0); W];
                for i in 0..W {
                    values[i] = load::<V, WIDE>(page, at + i * V::WIDTH);
                }
                for r in 0..R {
                    let weight = V::splat(*weights[r].get_unchecked(key));
                    for i in 0..W {
                        acc[r][i] = V::fma(weight, values[i], acc[r][i]);
                    }
                }
            }
        }
        for r in 0..R {
            for i in 0..W {
                V::store(
                    own.as_mut_ptr().add(r * stride + d + i * V::WIDTH),
                    acc[r][i],
                );
            }
        }
    }
}
