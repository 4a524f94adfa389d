//! The integer microkernel: a panel (sixteen weight rows) times one tile of activation rows.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use std::mem::MaybeUninit;

use super::activations::{ROW_WORDS, TILE_ROWS, Tile};
use super::dots::add_group;
use super::groups::{
    ExpandedGroup, Group, Header, HeldGroup, PackedGroup, expand_group, format_of,
};
use super::layout::{Format, MAX_EXPANDED_BYTES, PANEL_ROWS};
use crate::ops::aligned::Lined;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{Simd, Vector, Wide, at_once, simd_kernel};

/// How far ahead weights are fetched.
const PREFETCH_BYTES: usize = 8192;
/// Sums of a tile: `[row of the tile][row of the panel]`.
pub(super) type Sums = [[f32; PANEL_ROWS]; TILE_ROWS];
/// Tiles for which the weights are unpacked group by group, in one pass.
pub(super) const FEW_TILES: usize = 4;
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

    /// `P` expanded panels, one behind the other, times a tile of [`TILE_ROWS`] rows; not on the scalar level, and at most as many as
    /// [`at_once`] says.
    pub(super) fn expanded_times<const P: usize>(&self, level: CpuLevel, tile: &Tile) -> [Sums; P] {
        let mut y = [Sums::default(); P];
        let panels = self.start(
            P * self.groups * self.format.expanded_bytes(),
            std::slice::from_ref(tile),
        );
        assert!(tile.stride() == TILE_ROWS && P <= at_once(level));
        macro_rules! call {
            ($format:expr) => {
                expanded::<{ $format as u8 }, P>(level, panels, self.groups, tile, &mut y)
            };
        }
        // SAFETY: the panels have `groups` records each and the tile as many groups, as `start` has checked.
        unsafe { by_format!(self.format, call) }
        y
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
    unsafe fn expanded<const F: u8, const P: usize>(panels: *const u8, groups: usize, tile: &Tile, y: &mut [Sums; P]) = expanded_body, no twin; products
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
        let mut x = Rows::new(tile);
        for _ in 0..blocks {
            let header = Header::load::<F>(at);
            at = at.add(format.header_bytes());
            for _ in 0..format.groups_per_block() {
                prefetch_record::<V::Wide, F>(at.wrapping_add(PREFETCH_BYTES));
                let group = PackedGroup::<V::Wide, F> { record: at, header };
                x.next::<V::Wide, _, F, M, 1>(&[group], &mut sums);
                at = at.add(format.record_bytes());
            }
        }
        store::<V::Wide, M>(&sums[0], y);
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
    let format = const { format_of(F) };
    let window = const { WINDOW_GROUPS / format_of(F).groups_per_block() };
    // SAFETY: all offsets stay inside the panel and the tiles, whose sizes the caller has checked; the records of a window fit
    // `unpacked`, and are written before they are read.
    unsafe {
        if let (2, [one, other]) = (V::Wide::AT_ONCE, tiles) {
            return two_tiles::<V::Wide, F>(panel, blocks, [one, other], y);
        }
        let mut unpacked = MaybeUninit::<Lined<[u8; WINDOW_GROUPS * MAX_EXPANDED_BYTES]>>::uninit();
        let unpacked = unpacked.as_mut_ptr().cast::<u8>();
        let mut at = panel;
        let mut walks: [Rows<'_>; FEW_TILES] =
            std::array::from_fn(|t| Rows::new(&tiles[t.min(tiles.len() - 1)]));
        y.fill(Sums::default());
        for first in (0..blocks).step_by(window) {
            let count = window.min(blocks - first);
            at = expand_blocks::<V::Wide, F>(at, count, unpacked);
            for t in 0..tiles.len() {
                let mut chains = [load_sums::<V::Wide, TILE_ROWS>(&y[t])];
                let groups = count * format.groups_per_block();
                // The next window comes while the first tile passes over this one.
                let next = (t == 0).then_some(at);
                let x = &mut walks[t];
                add_expanded::<V::Wide, F, 1>(unpacked, groups, next, x, &mut chains);
                store::<V::Wide, TILE_ROWS>(&chains[0], &mut y[t]);
            }
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
        let [mut x, mut other_x] = tiles.map(Rows::new);
        let mut at = panel;
        for _ in 0..blocks {
            let header = Header::load::<F>(at);
            at = at.add(format.header_bytes());
            for _ in 0..format.groups_per_block() {
                prefetch_record::<V, F>(at.wrapping_add(PREFETCH_BYTES));
                let group = [HeldGroup::new(&PackedGroup::<V, F> { record: at, header })];
                x.next::<V, _, F, TILE_ROWS, 1>(&group, &mut first);
                other_x.next::<V, _, F, TILE_ROWS, 1>(&group, &mut second);
                at = at.add(format.record_bytes());
            }
        }
        store::<V, TILE_ROWS>(&first[0], &mut y[0]);
        store::<V, TILE_ROWS>(&second[0], &mut y[1]);
    }
}

/// Adds `groups` records of each of `P` expanded panels to the chains of a tile, while as many packed ones are fetched from `next` on.
#[inline(always)]
unsafe fn add_expanded<V: Wide, const F: u8, const P: usize>(
    panels: *const u8,
    groups: usize,
    next: Option<*const u8>,
    x: &mut Rows<'_>,
    sums: &mut [[V::F32; TILE_ROWS]; P],
) {
    let bytes = const { format_of(F).expanded_bytes() };
    // SAFETY: the caller's duty.
    unsafe {
        for g in 0..groups {
            if let Some(next) = next {
                let packed = const { format_of(F).record_bytes() };
                prefetch_record::<V, F>(next.wrapping_add(g * packed));
            }
            let group: [ExpandedGroup<F>; P] = std::array::from_fn(|p| ExpandedGroup {
                record: panels.add((p * groups + g) * bytes),
            });
            x.next::<V, _, F, TILE_ROWS, P>(&group, sums);
        }
    }
}

#[inline(always)]
unsafe fn expanded_body<V: Simd, const F: u8, const P: usize>(
    panels: *const u8,
    groups: usize,
    tile: &Tile,
    y: &mut [Sums; P],
) {
    if P > V::Wide::AT_ONCE {
        unreachable!("{P} panels at once");
    }
    // SAFETY: all offsets stay inside the panels and the tile, whose sizes the caller has checked.
    unsafe {
        let mut sums = [[V::Wide::splat(0.0); TILE_ROWS]; P];
        let x = &mut Rows::new(tile);
        add_expanded::<V::Wide, F, P>(panels, groups, None, x, &mut sums);
        for p in 0..P {
            store::<V::Wide, TILE_ROWS>(&sums[p], &mut y[p]);
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

/// Where the walk through a tile's records stands.
struct Rows<'a> {
    refined: std::slice::Iter<'a, u8>,
    words: *const i32,
    refinements: *const i32,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    fn new(tile: &'a Tile) -> Self {
        Self {
            refined: tile.refined().iter(),
            words: tile.words().as_ptr(),
            refinements: tile.refinements().as_ptr(),
        }
    }

    /// Adds the next group of `M` rows, then what refines it in some of them.
    #[inline(always)]
    unsafe fn next<V: Wide, G: Group<V>, const F: u8, const M: usize, const P: usize>(
        &mut self,
        group: &[G; P],
        sums: &mut [[V::F32; M]; P],
    ) {
        // SAFETY: a tile has a record for every group, and a refinement for every bit of its mask.
        unsafe {
            add_group::<V, G, F, M, P>(group, self.words, sums);
            self.words = self.words.add(ROW_WORDS * M);
            let mut rows = *self.refined.next().unwrap_unchecked();
            for m in 0..M {
                if rows == 0 {
                    break;
                }
                // A row by its number, so that the sums need no addresses and stay in registers.
                if rows & 1 != 0 {
                    let mut one = [[sums[0][m]]; P];
                    for p in 1..P {
                        one[p] = [sums[p][m]];
                    }
                    add_group::<V, G, F, 1, P>(group, self.refinements, &mut one);
                    for p in 0..P {
                        [sums[p][m]] = one[p];
                    }
                    self.refinements = self.refinements.add(ROW_WORDS);
                }
                rows >>= 1;
            }
        }
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
