//! All rows of activations times a range of a matrix's rows, in an order that keeps both in the caches.

use std::cell::RefCell;
use std::ops::Range;

use super::activations::{FEW_TILES, TILE_ROWS};
use super::cpu::{Panel, Sums, expand};
use super::layout::PANEL_ROWS;
use super::{GROUP, Product};
use crate::ops::aligned::{Aligned, Lined};
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::at_once;
use crate::threads::Disjoint;

/// Bytes of expanded weights that all tiles pass over before the next ones are expanded, per panel that is multiplied at once: a part
/// of the second-level cache, which is larger where there are more. What refines all rows takes at most as much.
const STRIP_BYTES: usize = 128 * 1024;

/// Buffers of a task.
struct Scratch {
    /// Expanded panels.
    strip: Aligned<u8>,
    /// What refines all rows, times those panels.
    refining: Aligned<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch {
            strip: Aligned::new(),
            refining: Aligned::new(),
        })
    };
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
    let (w, panel_bytes) = (product.w, product.w.panel_bytes());
    let expanded_bytes = expanded_bytes(product);
    let refining_len = product.x.refinements().rows() * PANEL_ROWS;
    let larger = expanded_bytes.max(refining_len * size_of::<f32>());
    let per_strip = (STRIP_BYTES / larger.max(1)).max(1) * at_once(level);
    SCRATCH.with_borrow_mut(|Scratch { strip, refining }| {
        strip.grow_to(per_strip * expanded_bytes);
        refining.grow_to(per_strip * refining_len);
        for first in panels.clone().step_by(per_strip) {
            let count = per_strip.min(panels.end - first);
            let strip = &mut strip[..count * expanded_bytes];
            let packed = &w.packed()[first * panel_bytes..][..count * panel_bytes];
            expand(level, w.format, packed, strip);
            let refining = &mut refining[..count * refining_len];
            refine_strip(level, product, strip, refining);
            multiply_strip(level, product, (strip, refining), first, out);
        }
    });
}

/// Bytes of an expanded panel.
fn expanded_bytes(product: &Product<'_>) -> usize {
    product.w.cols / GROUP * product.w.format.expanded_bytes()
}

/// Expanded panels, as many at a time as are multiplied at once: how many, and where they lie.
fn at_once_of<'a>(
    level: CpuLevel,
    product: &Product<'_>,
    strip: &'a [u8],
) -> impl Iterator<Item = (usize, Panel<'a>)> {
    let (format, groups) = (product.w.format, product.w.cols / GROUP);
    let expanded_bytes = expanded_bytes(product);
    strip
        .chunks(at_once(level) * expanded_bytes)
        .map(move |bytes| {
            let panel = Panel {
                format,
                bytes,
                groups,
            };
            (bytes.len() / expanded_bytes, panel)
        })
}

/// What refines all rows times the panels of a strip.
fn refine_strip(level: CpuLevel, product: &Product<'_>, strip: &[u8], refining: &mut [f32]) {
    let refinements = product.x.refinements();
    let step = at_once(level) * refinements.rows() * PANEL_ROWS;
    let refining = refining.chunks_mut(step);
    for ((count, panels), y) in at_once_of(level, product, strip).zip(refining) {
        if count == 2 {
            panels.expanded_refining::<2>(level, refinements, y);
        } else {
            panels.expanded_refining::<1>(level, refinements, y);
        }
    }
}

/// All tiles times the panels of a strip, the first of which is panel `first`.
fn multiply_strip(
    level: CpuLevel,
    product: &Product<'_>,
    (strip, refining): (&[u8], &[f32]),
    first: usize,
    out: &Disjoint<'_, f32>,
) {
    let step = at_once(level) * product.x.refinements().rows() * PANEL_ROWS;
    for (index, tile) in product.x.tiles(level).iter().enumerate() {
        let rows = tile.rows();
        let numbers = (first..).step_by(at_once(level));
        let refining = refining.chunks(step).zip(numbers);
        for ((count, panels), (refining, panel)) in at_once_of(level, product, strip).zip(refining)
        {
            let len = TILE_ROWS * count * PANEL_ROWS;
            let refining = &refining[index * len..][..len];
            if count == 2 {
                let [one, other] = panels.expanded_times(level, tile, refining);
                write(product, panel, index, &one[..rows], out);
                write(product, panel + 1, index, &other[..rows], out);
            } else {
                let [sums] = panels.expanded_times(level, tile, refining);
                write(product, panel, index, &sums[..rows], out);
            }
        }
    }
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
