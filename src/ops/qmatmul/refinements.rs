//! What refines the rows of many tiles, group by group instead of tile by tile: a prompt's kernel multiplies a group of weights, once it is
//! in registers, with all rows that are refined there.

use super::activations::{ROW_WORDS, TILE_ROWS, Tile};
use crate::ops::Context;
use crate::threads::Disjoint;

/// Groups of a part.
const PART_GROUPS: usize = 8;

/// Refinements of some rows, ordered by group and then by row.
#[derive(Default)]
pub(super) struct Refinements {
    rows: usize,
    groups: usize,
    parts: Vec<Part>,
}

/// Those of [`PART_GROUPS`] groups.
#[derive(Default, Clone)]
struct Part {
    /// Where each group's refinements end.
    ends: [usize; PART_GROUPS],
    /// Which row each one belongs to.
    rows: Vec<u32>,
    /// A record of one row for each.
    words: Vec<i32>,
}

impl Refinements {
    /// Those of tiles of [`TILE_ROWS`] rows and `groups` groups.
    pub fn of(ctx: &Context, tiles: &[Tile], groups: usize) -> Self {
        let mut parts = vec![Part::default(); groups.div_ceil(PART_GROUPS)];
        let out = Disjoint::new(&mut parts);
        ctx.for_row_ranges(
            groups.div_ceil(PART_GROUPS),
            tiles.len() * 64,
            |first, count| {
                // SAFETY: ranges are disjoint.
                #[allow(unsafe_code)]
                let parts = unsafe { out.part(first, count) };
                for (part, index) in parts.iter_mut().zip(first..) {
                    *part = Part::of(tiles, index * PART_GROUPS);
                }
            },
        );
        Self {
            rows: tiles.len() * TILE_ROWS,
            groups,
            parts,
        }
    }

    /// Rows of all tiles: no refinement is of another one.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Groups of a row.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Which rows are refined in group `g`, and a record of one row for each of them.
    #[inline(always)]
    pub fn of_group(&self, g: usize) -> (&[u32], &[i32]) {
        let (part, index) = (&self.parts[g / PART_GROUPS], g % PART_GROUPS);
        let first = if index == 0 { 0 } else { part.ends[index - 1] };
        let range = first..part.ends[index];
        let words = &part.words[range.start * ROW_WORDS..range.end * ROW_WORDS];
        (&part.rows[range], words)
    }
}

impl Part {
    fn of(tiles: &[Tile], first_group: usize) -> Self {
        let mut found = Vec::new();
        for (index, tile) in tiles.iter().enumerate() {
            let of_tile = tile.refinements(first_group..first_group + PART_GROUPS);
            found.extend(of_tile.map(|(g, m, record)| (g, index * TILE_ROWS + m, record)));
        }
        found.sort_unstable_by_key(|(g, row, _)| (*g, *row));
        let mut part = Self::default();
        for (g, row, record) in found {
            part.rows.push(row as u32);
            part.words.extend_from_slice(record);
            part.ends[g - first_group..].fill(part.rows.len());
        }
        part
    }
}
