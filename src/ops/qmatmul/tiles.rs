//! All rows of activations times a range of a matrix's rows, in an order that keeps both in the caches.

use std::cell::RefCell;
use std::ops::Range;

use super::activations::{QuantRows, Tile};
use super::cpu::{PANELS, Pair, Sums, expand};
use super::layout::PANEL_ROWS;
use super::{GROUP, PAIR_ROWS, QMatrix};
use crate::ops::cpu_level::CpuLevel;
use crate::threads::Disjoint;

/// Bytes of expanded weights that all tiles pass over before the next ones are expanded: a part of the second-level cache.
const STRIP_BYTES: usize = 128 * 1024;

thread_local! {
    /// Expanded weights.
    static STRIP: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Pairs of panels `pairs` of `w` times every row of `x`, into their columns of `out`, which this task alone writes.
///
/// With one tile the kernel reads the packed weights; with several of them the weights are expanded first, once for all tiles.
pub(super) fn multiply(
    level: CpuLevel,
    x: &QuantRows,
    w: &QMatrix,
    pairs: Range<usize>,
    out: &Disjoint<'_, f32>,
) {
    let groups = w.cols / GROUP;
    let pair_bytes = PANELS * w.panel_bytes();
    let packed = |pair: usize| &w.packed[pair * pair_bytes..(pair + 1) * pair_bytes];
    if let [tile] = x.tiles() {
        for pair in pairs {
            write(
                w,
                pair,
                0,
                &times(level, w, packed(pair), false, tile)[..tile.rows],
                out,
            );
        }
        return;
    }
    let expanded_bytes = PANELS * groups * w.format.expanded_bytes();
    let per_strip = (STRIP_BYTES / expanded_bytes.max(1)).max(1);
    STRIP.with_borrow_mut(|strip| {
        strip.resize(strip.len().max(per_strip * expanded_bytes), 0);
        for first in pairs.clone().step_by(per_strip) {
            let count = per_strip.min(pairs.end - first);
            let strip = &mut strip[..count * expanded_bytes];
            let panels = strip.chunks_exact_mut(expanded_bytes / PANELS);
            let packed =
                (first..first + count).flat_map(|pair| packed(pair).chunks_exact(w.panel_bytes()));
            for (out, panel) in panels.zip(packed) {
                expand(level, w.format, panel, out);
            }
            let mut first_row = 0;
            for tile in x.tiles() {
                for (bytes, pair) in strip.chunks_exact(expanded_bytes).zip(first..) {
                    write(
                        w,
                        pair,
                        first_row,
                        &times(level, w, bytes, true, tile)[..tile.rows],
                        out,
                    );
                }
                first_row += tile.rows;
            }
        }
    });
}

/// A pair of panels of `w`, packed or expanded, times a tile.
fn times(level: CpuLevel, w: &QMatrix, bytes: &[u8], expanded: bool, tile: &Tile) -> Sums {
    let mut y = Sums::default();
    let pair = Pair {
        format: w.format,
        bytes,
        expanded,
        groups: w.cols / GROUP,
    };
    pair.times(level, tile, &mut y);
    y
}

/// Writes the sums of a tile's rows to the rows of the result from `first_row` on.
#[allow(unsafe_code)]
fn write(
    w: &QMatrix,
    pair: usize,
    first_row: usize,
    sums: &[[[f32; PANEL_ROWS]; PANELS]],
    out: &Disjoint<'_, f32>,
) {
    let first = pair * PAIR_ROWS;
    let valid = PAIR_ROWS.min(w.rows - first);
    for (row, sums) in (first_row..).zip(sums) {
        // SAFETY: this task alone writes these columns.
        let out = unsafe { out.part(row * w.rows + first, valid) };
        out.copy_from_slice(&sums.as_flattened()[..valid]);
    }
}
