//! What refines groups of activations times the weights of those groups: chains of their own, which are added to the others at the end, so
//! that a kernel may compute them when it likes.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use super::activations::{ROW_WORDS, Refined, Tile};
use super::cpu::Sums;
use super::dots::{add_group, close_block, open_block};
use super::groups::{Expanded, Group, HeldGroup};
use super::layout::PANEL_ROWS;
use super::refinements::Refinements;
use crate::ops::simd::{Simd, Wide, simd_kernel};

/// The chains of what refines a tile's groups. In memory: it is needed seldom, and registers are for the other chains.
pub(super) struct Refining<'a> {
    refined: Refined<'a>,
    /// `[row of the tile][row of the panel]`.
    pub(super) sums: Sums,
}

impl<'a> Refining<'a> {
    #[inline(always)]
    pub(super) fn of(tile: &'a Tile) -> Self {
        Self {
            refined: Refined::of(tile),
            sums: Sums::default(),
        }
    }

    /// Adds what refines group `g`, if it is the next that is refined.
    #[inline(always)]
    pub(super) unsafe fn add_group<V: Wide, G: Group<V>, const F: u8>(
        &mut self,
        g: usize,
        group: &[G; 1],
    ) {
        // SAFETY: the caller's duty.
        unsafe {
            while self.refined.group() == g {
                self.add_next::<V, G, F>(group);
            }
        }
    }

    /// Adds what refines groups that are expanded, if they are the next that are refined.
    #[inline(always)]
    pub(super) unsafe fn add_expanded<V: Wide, const F: u8>(&mut self, expanded: &Expanded<F>) {
        // SAFETY: the caller's duty.
        unsafe {
            while self.refined.group() < expanded.first + expanded.groups {
                let group = expanded.group::<1>(self.refined.group());
                self.add_next::<V, _, F>(&group);
            }
        }
    }

    /// Adds the next refinement, which is one of `group`.
    #[inline(always)]
    unsafe fn add_next<V: Wide, G: Group<V>, const F: u8>(&mut self, group: &[G; 1]) {
        // SAFETY: the group is the caller's duty.
        unsafe {
            let (m, x) = self.refined.next();
            let sums = std::array::from_mut(&mut self.sums[m]);
            refine::<V, G, F, 1>(group, x, sums);
        }
    }
}

/// Writes chains and what refines them, added up.
#[inline(always)]
pub(super) unsafe fn finish<V: Wide, const M: usize>(
    sums: &[V::F32; M],
    refining: &Sums,
    y: &mut Sums,
) {
    for m in 0..M {
        // SAFETY: sixteen floats each.
        unsafe {
            let sum = V::add(sums[m], V::load(refining[m].as_ptr()));
            V::store(y[m].as_mut_ptr(), sum);
        }
    }
}

simd_kernel! {
    /// Adds all refinements times `P` expanded panels to the chains `y` of their rows.
    pub(super) unsafe fn refining<const F: u8, const P: usize>(panels: *const u8, refinements: &Refinements, y: &mut [[[f32; PANEL_ROWS]; P]]) = refining_body, no twin; products
}

#[inline(always)]
unsafe fn refining_body<V: Simd, const F: u8, const P: usize>(
    panels: *const u8,
    refinements: &Refinements,
    y: &mut [[[f32; PANEL_ROWS]; P]],
) {
    if P > V::Wide::AT_ONCE {
        unreachable!("{P} panels at once");
    }
    let groups = refinements.groups();
    let expanded = Expanded::<F> {
        panels,
        first: 0,
        groups,
    };
    for g in 0..groups {
        // SAFETY: the panels have so many groups; a record has the words of one row.
        unsafe {
            let (rows, words) = refinements.of_group(g);
            let group = expanded.group::<P>(g);
            if V::Wide::AT_ONCE > 1 {
                let mut held = [HeldGroup::new(&group[0]); P];
                for p in 1..P {
                    held[p] = HeldGroup::new(&group[p]);
                }
                refine_rows::<V::Wide, _, F, P>(&held, rows, words, y);
            } else {
                refine_rows::<V::Wide, _, F, P>(&group, rows, words, y);
            }
        }
    }
}

/// Adds a group times a record of each of some rows to their chains.
#[inline(always)]
unsafe fn refine_rows<V: Wide, G: Group<V>, const F: u8, const P: usize>(
    group: &[G; P],
    rows: &[u32],
    words: &[i32],
    y: &mut [[[f32; PANEL_ROWS]; P]],
) {
    for (row, x) in rows.iter().zip(words.as_chunks::<ROW_WORDS>().0) {
        // SAFETY: sixteen floats each; the group is the caller's duty.
        unsafe { refine::<V, G, F, P>(group, x.as_ptr(), &mut y[*row as usize]) }
    }
}

/// Adds a group times a record of one row to the row's chains.
#[inline(always)]
unsafe fn refine<V: Wide, G: Group<V>, const F: u8, const P: usize>(
    group: &[G; P],
    x: *const i32,
    y: &mut [[f32; PANEL_ROWS]; P],
) {
    // SAFETY: sixteen floats each; the group and the record are the caller's duty.
    unsafe {
        let mut chains = [[V::splat(0.0)]; P];
        for p in 0..P {
            chains[p] = [V::load(y[p].as_ptr())];
        }
        let mut block = open_block::<V, F, 1, P>(&chains);
        add_group::<V, G, F, 1, P>(group, x, &mut block);
        close_block::<V, G, F, 1, P>(block, group, &mut chains);
        for p in 0..P {
            V::store(y[p].as_mut_ptr(), chains[p][0]);
        }
    }
}
