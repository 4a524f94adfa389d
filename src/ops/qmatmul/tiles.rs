//! All rows of activations times a range of a matrix's rows, in an order that keeps both in the caches.

use std::cell::RefCell;
use std::ops::Range;

use super::activations::{TILE_ROWS, Tile};
use super::cpu::{FEW_TILES, Panel, Sums, expand};
use super::layout::PANEL_ROWS;
use super::{GROUP, Product};
use crate::ops::aligned::{Aligned, Lined};
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::at_once;
use crate::threads::Disjoint;

/// Bytes of expanded weights that all tiles pass over before the next ones are expanded, per panel that is multiplied at once: a part
/// of the second-level cache, which is larger where there are more.
const STRIP_BYTES: usize = 128 * 1024;

thread_local! {
    /// Expanded weights.
    static STRIP: RefCell<Aligned<u8>> = const { RefCell::new(Aligned::new()) };
}

/// Panels `panels` of the product's matrix times every row, into their columns of its rows of `out`, which this
/// task alone writes.
pub(super) fn multiply(
    level: CpuLevel,
    product: &Product<'_>,
    panels: Range<usize>,
    out: &Disjoint<'_, f32>,
) {
    let w = product.w;
    let (tiles, groups) = (product.x.tiles(level), w.cols / GROUP);
    let panel_bytes = w.panel_bytes();
    let packed = |panel: usize| Panel {
        format: w.format,
        bytes: &w.packed()[panel * panel_bytes..(panel + 1) * panel_bytes],
        groups,
    };
    if tiles.is_empty() {
        return;
    }
    if tiles.len() == 1 || level == CpuLevel::Scalar {
        for panel in panels {
            for (index, tile) in tiles.iter().enumerate() {
                let sums = packed(panel).times(level, tile);
                write(product, panel, index, &sums[..tile.rows()], out);
            }
        }
    } else if tiles.len() <= FEW_TILES {
        let mut all = Lined([Sums::default(); FEW_TILES]);
        let all = &mut all.0[..tiles.len()];
        for panel in panels {
            packed(panel).times_few(level, tiles, all);
            for (index, (sums, tile)) in all.iter().zip(tiles).enumerate() {
                write(product, panel, index, &sums[..tile.rows()], out);
            }
        }
    } else {
        expand_and_multiply(level, product, panels, out);
    }
}

/// [`multiply`] for many tiles: the weights are expanded first, once for all of them.
fn expand_and_multiply(
    level: CpuLevel,
    product: &Product<'_>,
    panels: Range<usize>,
    out: &Disjoint<'_, f32>,
) {
    let (w, tiles): (_, &[Tile]) = (product.w, product.x.tiles(level));
    let (format, groups, panel_bytes) = (w.format, w.cols / GROUP, w.panel_bytes());
    let expanded_bytes = groups * format.expanded_bytes();
    let at_once = at_once(level);
    let per_strip = (STRIP_BYTES / expanded_bytes.max(1)).max(1) * at_once;
    STRIP.with_borrow_mut(|strip| {
        strip.grow_to(per_strip * expanded_bytes);
        for first in panels.clone().step_by(per_strip) {
            let count = per_strip.min(panels.end - first);
            let strip = &mut strip[..count * expanded_bytes];
            let packed = &w.packed()[first * panel_bytes..][..count * panel_bytes];
            expand(level, format, packed, strip);
            for (index, tile) in tiles.iter().enumerate() {
                let rows = tile.rows();
                let panels = (first..).step_by(at_once);
                for (bytes, panel) in strip.chunks(at_once * expanded_bytes).zip(panels) {
                    let expanded = Panel {
                        format,
                        bytes,
                        groups,
                    };
                    if bytes.len() == 2 * expanded_bytes {
                        let [one, other] = expanded.expanded_times(level, tile);
                        write(product, panel, index, &one[..rows], out);
                        write(product, panel + 1, index, &other[..rows], out);
                    } else {
                        let [sums] = expanded.expanded_times(level, tile);
                        write(product, panel, index, &sums[..rows], out);
                    }
                }
            }
        }
    });
}

/// Writes the sums of tile `tile`'s rows.
#[allow(unsafe_code)]
fn write(
    product: &Product<'_>,
    panel: usize,
    tile: usize,
    sums: &[[f32; PANEL_ROWS]],
    out: &Disjoint<'_, f32>,
) {
    let (w, first) = (product.w, panel * PANEL_ROWS);
    let valid = PANEL_ROWS.min(w.rows - first);
    for (row, sums) in (product.first_row + tile * TILE_ROWS..).zip(sums) {
        // SAFETY: this task alone writes these columns.
        let out = unsafe { out.part(row * w.rows + first, valid) };
        match out.as_chunks_mut() {
            // Without a call for so few bytes.
            ([whole], _) => *whole = *sums,
            _ => out.copy_from_slice(&sums[..valid]),
        }
    }
}
