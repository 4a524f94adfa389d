//! The integer microkernel: a panel (sixteen weight rows) times one tile of activation rows.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use std::mem::MaybeUninit;

use super::activations::{FEW_TILES, ROW_WORDS, TILE_ROWS, Tile};
use super::dots::{add_group, close_block, open_block};
use super::groups::{Expanded, Header, HeldGroup, PackedGroup, expand_group, format_of};
use super::layout::{Format, MAX_EXPANDED_BYTES, PANEL_ROWS};
use super::refine::{Refining, finish, refining};
use super::refinements::Refinements;
use crate::ops::aligned::Lined;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{Simd, Vector, Wide, at_once, simd_kernel};

/// How far ahead weights are fetched.
const PREFETCH_BYTES: usize = 8192;
/// Sums of a tile: `[row of the tile][row of the panel]`.
pub(super) type Sums = [[f32; PANEL_ROWS]; TILE_ROWS];
/// Groups that are unpacked before these tiles pass over them: they stay in the first-level cache, and sums in registers.
const WINDOW_GROUPS: usize = 8;

/// `$call!(Format::X)` for the format that `$format` is: from a value to a constant.
macro_rules! by_format {
    ($format:expr, $call:ident) => {
        match $format {
            Format::Q4_0 => $call!(Format::Q4_0),
            Format::Q4_1 => $call!(Format::Q4_1),
            Format::Q5_0 => $call!(Format::Q5_0),
            Format::Q5_1 => $call!(Format::Q5_1),
            Format::Q8_0 => $call!(Format::Q8_0),
            Format::IQ4_NL => $call!(Format::IQ4_NL),
            Format::MXFP4 => $call!(Format::MXFP4),
            Format::Q2_K => $call!(Format::Q2_K),
            Format::Q3_K => $call!(Format::Q3_K),
            Format::Q4_K => $call!(Format::Q4_K),
            Format::Q5_K => $call!(Format::Q5_K),
            Format::Q6_K => $call!(Format::Q6_K),
        }
    };
}

pub(super) use by_format;

/// A panel, as it is packed or expanded.
#[derive(Clone, Copy)]
pub(super) struct Panel<'a> {
    pub(super) format: Format,
    pub(super) bytes: &'a [u8],
    /// Groups of a row.
    pub(super) groups: usize,
}

impl Panel<'_> {
    /// The packed panel times the rows of a tile.
    pub(super) fn times(&self, level: CpuLevel, tile: &Tile) -> Sums {
        let mut y = Sums::default();
        if level == CpuLevel::Scalar && tile.stride() > 1 {
            // The software twin has a kernel of one row only: unrolled for more it would be most of the program.
            for (m, y) in y[..tile.rows()].iter_mut().enumerate() {
                *y = self.times(level, &tile.row(m))[0];
            }
            return y;
        }
        let (panel, blocks) = self.packed(std::slice::from_ref(tile));
        macro_rules! by_rows {
            ($format:expr) => {
                match tile.stride() {
                    1 => packed_row::<{ $format as u8 }>(level, panel, blocks, tile, &mut y),
                    2 => packed::<{ $format as u8 }, 2>(level, panel, blocks, tile, &mut y),
                    4 => packed::<{ $format as u8 }, 4>(level, panel, blocks, tile, &mut y),
                    other => unreachable!("a tile of {other} rows"),
                }
            };
        }
        // SAFETY: the panel has `blocks` blocks and the tile as many groups, as `packed` has checked.
        unsafe { by_format!(self.format, by_rows) }
        y
    }

    /// The packed panel times a few tiles of [`TILE_ROWS`] rows, in one pass over the weights; not on the scalar level.
    pub(super) fn times_few(&self, level: CpuLevel, tiles: &[Tile], y: &mut [Sums]) {
        let (panel, blocks) = self.packed(tiles);
        assert!(tiles.len() <= FEW_TILES && tiles.iter().all(|tile| tile.stride() == TILE_ROWS));
        assert!(tiles.len() == y.len());
        macro_rules! call {
            ($format:expr) => {
                few_tiles::<{ $format as u8 }>(level, panel, blocks, tiles, y)
            };
        }
        // SAFETY: the panel has `blocks` blocks and the tiles as many groups, as `packed` has checked.
        unsafe { by_format!(self.format, call) }
    }

    /// `P` expanded panels, one behind the other, times a tile of [`TILE_ROWS`] rows, whose refinements times these panels are `refining`
    /// (`[row][panel][row of the panel]`, see [`Panel::expanded_refining`]); not on the scalar level, and at most as many as [`at_once`] says.
    pub(super) fn expanded_times<const P: usize>(
        &self,
        level: CpuLevel,
        tile: &Tile,
        refining: &[f32],
    ) -> [Sums; P] {
        let mut y = [Sums::default(); P];
        let panels = self.start(
            P * self.groups * self.format.expanded_bytes(),
            std::slice::from_ref(tile),
        );
        assert!(tile.stride() == TILE_ROWS && P <= at_once(level));
        let refining = refining.as_chunks::<PANEL_ROWS>().0.as_chunks::<P>().0;
        assert!(refining.len() == TILE_ROWS);
        macro_rules! call {
            ($format:expr) => {
                expanded::<{ $format as u8 }, P>(level, panels, self.groups, tile, refining, &mut y)
            };
        }
        // SAFETY: the panels have `groups` records each and the tile as many groups, as `start` has checked.
        unsafe { by_format!(self.format, call) }
        y
    }

    /// `P` expanded panels times what refines rows: `[row][panel][row of the panel]`, for as many rows as `refinements` says.
    pub(super) fn expanded_refining<const P: usize>(
        &self,
        level: CpuLevel,
        refinements: &Refinements,
        y: &mut [f32],
    ) {
        let panels = self.start(P * self.groups * self.format.expanded_bytes(), &[]);
        assert!(refinements.groups() == self.groups && P <= at_once(level));
        let y = y.as_chunks_mut::<PANEL_ROWS>().0.as_chunks_mut::<P>().0;
        assert!(y.len() == refinements.rows());
        y.fill([[0.0; PANEL_ROWS]; P]);
        macro_rules! call {
            ($format:expr) => {
                refining::<{ $format as u8 }, P>(level, panels, refinements, y)
            };
        }
        // SAFETY: the panels have `groups` records each, as `start` has checked.
        unsafe { by_format!(self.format, call) }
    }

    /// Where the packed panel begins, and how many blocks it has.
    fn packed(&self, tiles: &[Tile]) -> (*const u8, usize) {
        let blocks = self.groups / self.format.groups_per_block();
        let panel = self.start(blocks * self.format.block_bytes(), tiles);
        assert!(self.groups == blocks * self.format.groups_per_block());
        (panel, blocks)
    }

    /// Where the panel begins. Checks what the kernels read through pointers.
    fn start(&self, bytes: usize, tiles: &[Tile]) -> *const u8 {
        assert!(self.bytes.len() == bytes);
        for tile in tiles {
            assert!(tile.groups() == self.groups);
        }
        self.bytes.as_ptr()
    }
}

/// Unpacks panels: what [`Panel::times`] would do for every tile again. Not on the scalar level.
pub(super) fn expand(level: CpuLevel, format: Format, panels: &[u8], out: &mut [u8]) {
    let blocks = panels.len() / format.block_bytes();
    assert!(panels.len() == blocks * format.block_bytes());
    assert!(out.len() == blocks * format.groups_per_block() * format.expanded_bytes());
    macro_rules! call {
        ($format:expr) => {
            expand_kernel::<{ $format as u8 }>(level, panels.as_ptr(), blocks, out.as_mut_ptr())
        };
    }
    // SAFETY: sizes are checked above.
    unsafe { by_format!(format, call) }
}

simd_kernel! {
    /// `blocks` blocks of a packed panel in format number `F` times a tile of one row.
    unsafe fn packed_row<const F: u8>(panel: *const u8, blocks: usize, tile: &Tile, y: &mut Sums) = packed_row_body; products
}

simd_kernel! {
    /// The same for a tile of `M` rows.
    unsafe fn packed<const F: u8, const M: usize>(panel: *const u8, blocks: usize, tile: &Tile, y: &mut Sums) = packed_body, no twin; products
}

simd_kernel! {
    /// The same for up to [`FEW_TILES`] tiles of [`TILE_ROWS`] rows.
    unsafe fn few_tiles<const F: u8>(panel: *const u8, blocks: usize, tiles: &[Tile], y: &mut [Sums]) = few_tiles_body, no twin; products
}

simd_kernel! {
    /// `groups` records of each of `P` expanded panels times a tile of [`TILE_ROWS`] rows.
    unsafe fn expanded<const F: u8, const P: usize>(panels: *const u8, groups: usize, tile: &Tile, refining: &[[[f32; PANEL_ROWS]; P]], y: &mut [Sums; P]) = expanded_body, no twin; products
}

simd_kernel! {
    /// Expands `blocks` blocks.
    unsafe fn expand_kernel<const F: u8>(panels: *const u8, blocks: usize, out: *mut u8) = expand_body, no twin; products
}

#[inline(always)]
unsafe fn packed_row_body<V: Simd, const F: u8>(
    panel: *const u8,
    blocks: usize,
    tile: &Tile,
    y: &mut Sums,
) {
    // SAFETY: the caller's duty.
    unsafe { packed_body::<V, F, 1>(panel, blocks, tile, y) }
}

#[inline(always)]
unsafe fn packed_body<V: Simd, const F: u8, const M: usize>(
    panel: *const u8,
    blocks: usize,
    tile: &Tile,
    y: &mut Sums,
) {
    let format = const { format_of(F) };
    // SAFETY: all offsets stay inside the panel and the tile, whose sizes the caller has checked.
    unsafe {
        let mut sums = [[V::Wide::splat(0.0); M]];
        let mut at = panel;
        let (mut x, mut refining) = (tile.words().as_ptr(), Refining::of(tile));
        for first in 0..blocks {
            let first = first * format.groups_per_block();
            let header = Header::load::<F>(at);
            at = at.add(format.header_bytes());
            let mut group = [PackedGroup::<V::Wide, F> { record: at, header }];
            let mut block = open_block::<V::Wide, F, M, 1>(&sums);
            for g in first..first + format.groups_per_block() {
                prefetch_record::<V::Wide, F>(at.wrapping_add(PREFETCH_BYTES));
                group[0].record = at;
                // Before the other rows: the compiler keeps their sums in registers then.
                refining.add_group::<V::Wide, _, F>(g, &group);
                add_group::<V::Wide, _, F, M, 1>(&group, x, &mut block);
                at = at.add(format.record_bytes());
                x = x.add(ROW_WORDS * M);
            }
            close_block::<V::Wide, _, F, M, 1>(block, &group, &mut sums);
        }
        finish::<V::Wide, M>(&sums[0], &refining.sums, y);
    }
}

/// Asks for a record, in this panel or whatever follows it.
#[inline(always)]
unsafe fn prefetch_record<V: Wide, const F: u8>(record: *const u8) {
    let bytes = const { format_of(F).record_bytes() };
    for line in (0..bytes).step_by(64) {
        // SAFETY: a hint, which need not be readable.
        unsafe { V::prefetch(record.wrapping_add(line)) };
    }
}

#[inline(always)]
unsafe fn few_tiles_body<V: Simd, const F: u8>(
    panel: *const u8,
    blocks: usize,
    tiles: &[Tile],
    y: &mut [Sums],
) {
    let per_block = const { format_of(F).groups_per_block() };
    let window = WINDOW_GROUPS / per_block;
    // SAFETY: all offsets stay inside the panel and the tiles, whose sizes the caller has checked; the records of a window fit
    // `unpacked`, and are written before they are read.
    unsafe {
        if let (2, [one, other]) = (V::Wide::AT_ONCE, tiles) {
            return two_tiles::<V::Wide, F>(panel, blocks, [one, other], y);
        }
        let mut unpacked = MaybeUninit::<Lined<[u8; WINDOW_GROUPS * MAX_EXPANDED_BYTES]>>::uninit();
        let unpacked = unpacked.as_mut_ptr().cast::<u8>();
        let mut at = panel;
        let of = |t: usize| &tiles[t.min(tiles.len() - 1)];
        let mut words: [_; FEW_TILES] = std::array::from_fn(|t| of(t).words().as_ptr());
        let mut refining: [_; FEW_TILES] = std::array::from_fn(|t| Refining::of(of(t)));
        y.fill(Sums::default());
        for first in (0..blocks).step_by(window) {
            let count = window.min(blocks - first);
            at = expand_blocks::<V::Wide, F>(at, count, unpacked);
            let expanded = Expanded::<F> {
                panels: unpacked,
                first: first * per_block,
                groups: count * per_block,
            };
            for t in 0..tiles.len() {
                let mut chains = [load_sums::<V::Wide, TILE_ROWS>(&y[t])];
                // The next window comes while the first tile passes over this one.
                let next = (t == 0).then_some(at);
                add_expanded::<V::Wide, F, 1>(&expanded, next, words[t], &mut chains);
                words[t] = words[t].add(expanded.groups * ROW_WORDS * TILE_ROWS);
                store::<V::Wide, TILE_ROWS>(&chains[0], &mut y[t]);
                refining[t].add_expanded::<V::Wide, F>(&expanded);
            }
        }
        for t in 0..tiles.len() {
            let chains = load_sums::<V::Wide, TILE_ROWS>(&y[t]);
            finish::<V::Wide, TILE_ROWS>(&chains, &refining[t].sums, &mut y[t]);
        }
    }
}

/// [`few_tiles`] for two tiles, on levels that have registers for the weights and the sums of both.
#[inline(always)]
unsafe fn two_tiles<V: Wide, const F: u8>(
    panel: *const u8,
    blocks: usize,
    tiles: [&Tile; 2],
    y: &mut [Sums],
) {
    let format = const { format_of(F) };
    // SAFETY: all offsets stay inside the panel and the tiles, whose sizes the caller has checked.
    unsafe {
        // By name and not in a loop, so that sums stay in registers.
        let mut first = [[V::splat(0.0); TILE_ROWS]];
        let mut second = first;
        let [mut x, mut other_x] = tiles.map(|tile| tile.words().as_ptr());
        let [mut refining, mut other_refining] = tiles.map(Refining::of);
        let mut at = panel;
        for block in 0..blocks {
            let first_group = block * format.groups_per_block();
            let header = Header::load::<F>(at);
            at = at.add(format.header_bytes());
            let mut group = [PackedGroup::<V, F> { record: at, header }];
            let mut block = open_block::<V, F, TILE_ROWS, 1>(&first);
            let mut other_block = open_block::<V, F, TILE_ROWS, 1>(&second);
            for g in first_group..first_group + format.groups_per_block() {
                prefetch_record::<V, F>(at.wrapping_add(PREFETCH_BYTES));
                group[0].record = at;
                // Before the other rows, for the same reason.
                refining.add_group::<V, _, F>(g, &group);
                other_refining.add_group::<V, _, F>(g, &group);
                let held = [HeldGroup::new(&group[0])];
                add_group::<V, _, F, TILE_ROWS, 1>(&held, x, &mut block);
                add_group::<V, _, F, TILE_ROWS, 1>(&held, other_x, &mut other_block);
                at = at.add(format.record_bytes());
                x = x.add(ROW_WORDS * TILE_ROWS);
                other_x = other_x.add(ROW_WORDS * TILE_ROWS);
            }
            close_block::<V, _, F, TILE_ROWS, 1>(block, &group, &mut first);
            close_block::<V, _, F, TILE_ROWS, 1>(other_block, &group, &mut second);
        }
        finish::<V, TILE_ROWS>(&first[0], &refining.sums, &mut y[0]);
        finish::<V, TILE_ROWS>(&second[0], &other_refining.sums, &mut y[1]);
    }
}

/// Adds expanded groups of `P` panels to the chains of a tile whose words for them begin at `x`, while as many packed ones are fetched from
/// `next` on.
#[inline(always)]
unsafe fn add_expanded<V: Wide, const F: u8, const P: usize>(
    expanded: &Expanded<F>,
    next: Option<*const u8>,
    mut x: *const i32,
    sums: &mut [[V::F32; TILE_ROWS]; P],
) {
    let format = const { format_of(F) };
    let per_block = format.groups_per_block();
    // SAFETY: the caller's duty.
    unsafe {
        for block in (0..expanded.groups).step_by(per_block) {
            let mut chains = open_block::<V, F, TILE_ROWS, P>(sums);
            for index in block..block + per_block {
                if let Some(next) = next {
                    prefetch_record::<V, F>(next.wrapping_add(index * format.record_bytes()));
                }
                let group = expanded.group::<P>(expanded.first + index);
                add_group::<V, _, F, TILE_ROWS, P>(&group, x, &mut chains);
                x = x.add(ROW_WORDS * TILE_ROWS);
            }
            let group = expanded.group::<P>(expanded.first + block);
            close_block::<V, _, F, TILE_ROWS, P>(chains, &group, sums);
        }
    }
}

#[inline(always)]
unsafe fn expanded_body<V: Simd, const F: u8, const P: usize>(
    panels: *const u8,
    groups: usize,
    tile: &Tile,
    refining: &[[[f32; PANEL_ROWS]; P]],
    y: &mut [Sums; P],
) {
    if P > V::Wide::AT_ONCE {
        unreachable!("{P} panels at once");
    }
    // SAFETY: all offsets stay inside the panels and the tile, whose sizes the caller has checked.
    unsafe {
        let expanded = Expanded::<F> {
            panels,
            first: 0,
            groups,
        };
        let mut sums = [[V::Wide::splat(0.0); TILE_ROWS]; P];
        let x = tile.words().as_ptr();
        add_expanded::<V::Wide, F, P>(&expanded, None, x, &mut sums);
        for p in 0..P {
            for m in 0..TILE_ROWS {
                let sum = V::Wide::add(sums[p][m], V::Wide::load(refining[m][p].as_ptr()));
                V::Wide::store(y[p][m].as_mut_ptr(), sum);
            }
        }
    }
}

#[inline(always)]
unsafe fn load_sums<V: Wide, const M: usize>(y: &Sums) -> [V::F32; M] {
    // SAFETY: sixteen floats each.
    unsafe {
        let mut sums = [V::splat(0.0); M];
        for m in 0..M {
            sums[m] = V::load(y[m].as_ptr());
        }
        sums
    }
}

#[inline(always)]
unsafe fn store<V: Wide, const M: usize>(sums: &[V::F32; M], y: &mut Sums) {
    for m in 0..M {
        // SAFETY: sixteen floats.
        unsafe { V::store(y[m].as_mut_ptr(), sums[m]) };
    }
}

#[inline(always)]
unsafe fn expand_body<V: Simd, const F: u8>(panels: *const u8, blocks: usize, out: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe { expand_blocks::<V::Wide, F>(panels, blocks, out) };
}

/// Expands `blocks` blocks; where they end.
#[inline(always)]
unsafe fn expand_blocks<V: Wide, const F: u8>(
    panels: *const u8,
    blocks: usize,
    out: *mut u8,
) -> *const u8 {
    let format = const { format_of(F) };
    // SAFETY: the caller has checked the sizes of both buffers.
    unsafe {
        let (mut at, mut out) = (panels, out);
        for _ in 0..blocks {
            let header = Header::load::<F>(at);
            at = at.add(format.header_bytes());
            for _ in 0..format.groups_per_block() {
                expand_group::<V, F>(&PackedGroup { record: at, header }, out);
                at = at.add(format.record_bytes());
                out = out.add(format.expanded_bytes());
            }
        }
        at
    }
}
