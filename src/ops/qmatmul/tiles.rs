//! All rows of activations times a range of a matrix's rows, in an order that keeps both in the caches.

use std::cell::RefCell;
use std::ops::Range;

use super::activations::{TILE_ROWS, Tile};
use super::cpu::{FEW_TILES, PANELS, Pair, Sums, expand};
use super::layout::PANEL_ROWS;
use super::{GROUP, PAIR_ROWS, Product};
use crate::ops::aligned::{Aligned, Lined};
use crate::ops::cpu_level::CpuLevel;
use crate::threads::Disjoint;

/// Bytes of expanded weights that all tiles pass over before the next ones are expanded: a part of the second-level cache.
const STRIP_BYTES: usize = 128 * 1024;

thread_local! {
    /// Expanded weights.
    static STRIP: RefCell<Aligned<u8>> = const { RefCell::new(Aligned::new()) };
}

/// Pairs of panels `pairs` of the product's matrix times every row, into their columns of its rows of `out`, which this
/// task alone writes.
pub(super) fn multiply(
    level: CpuLevel,
    product: &Product<'_>,
    pairs: Range<usize>,
    out: &Disjoint<'_, f32>,
) {
    let w = product.w;
    let (tiles, groups) = (product.x.tiles(), w.cols / GROUP);
    let pair_bytes = PANELS * w.panel_bytes();
    let packed = |pair: usize| Pair {
        format: w.format,
        bytes: &w.packed()[pair * pair_bytes..(pair + 1) * pair_bytes],
        groups,
    };
    if tiles.is_empty() {
        return;
    }
    if tiles.len() == 1 || level == CpuLevel::Scalar {
        for pair in pairs {
            for (index, tile) in tiles.iter().enumerate() {
                let sums = packed(pair).times(level, tile);
                write(product, pair, index, &sums[..tile.rows()], out);
            }
        }
    } else if tiles.len() <= FEW_TILES {
        let mut all = Lined([Sums::default(); FEW_TILES]);
        let all = &mut all.0[..tiles.len()];
        for pair in pairs {
            packed(pair).times_few(level, tiles, all);
            for (index, (sums, tile)) in all.iter().zip(tiles).enumerate() {
                write(product, pair, index, &sums[..tile.rows()], out);
            }
        }
    } else {
        expand_and_multiply(level, product, pairs, out);
    }
}

/// [`multiply`] for many tiles: the weights are expanded first, once for all of them.
fn expand_and_multiply(
    level: CpuLevel,
    product: &Product<'_>,
    pairs: Range<usize>,
    out: &Disjoint<'_, f32>,
) {
    let (w, tiles): (_, &[Tile]) = (product.w, product.x.tiles());
    let (format, groups, panel_bytes) = (w.format, w.cols / GROUP, w.panel_bytes());
    let expanded_bytes = groups * format.expanded_bytes();
    let per_strip = (STRIP_BYTES / (PANELS * expanded_bytes).max(1)).max(1);
    STRIP.with_borrow_mut(|strip| {
        strip.grow_to(per_strip * PANELS * expanded_bytes);
        for first in pairs.clone().step_by(per_strip) {
            let count = PANELS * per_strip.min(pairs.end - first);
            let strip = &mut strip[..count * expanded_bytes];
            let packed = &w.packed()[first * PANELS * panel_bytes..][..count * panel_bytes];
            expand(level, format, packed, strip);
            for (index, tile) in tiles.iter().enumerate() {
                for (bytes, pair) in strip.chunks_exact(PANELS * expanded_bytes).zip(first..) {
                    let pair_of_panels = Pair {
                        format,
                        bytes,
                        groups,
                    };
                    let sums = pair_of_panels.expanded_times(level, tile);
                    write(product, pair, index, &sums[..tile.rows()], out);
                }
            }
        }
    });
}

/// Writes the sums of tile `tile`'s rows.
#[allow(unsafe_code)]
fn write(
    product: &Product<'_>,
    pair: usize,
    tile: usize,
    sums: &[[[f32; PANEL_ROWS]; PANELS]],
    out: &Disjoint<'_, f32>,
) {
    let (w, first) = (product.w, pair * PAIR_ROWS);
    let valid = PAIR_ROWS.min(w.rows - first);
    for (row, sums) in (product.first_row + tile * TILE_ROWS..).zip(sums) {
        // SAFETY: this task alone writes these columns.
        let out = unsafe { out.part(row * w.rows + first, valid) };
        out.copy_from_slice(&sums.as_flattened()[..valid]);
    }
}
