//! The integer microkernel: a pair of panels (sixteen weight rows) times one tile of activation rows.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use super::activations::{ROW_WORDS, TILE_ROWS, Tile};
use super::dots::add_group;
use super::groups::{ExpandedGroup, Group, Header, PackedGroup, expand_group, format_of};
use super::layout::{Format, MAX_EXPANDED_BYTES, PANEL_ROWS};
use crate::ops::aligned::Lined;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, simd_kernel};

/// How far ahead weights are fetched.
const PREFETCH_BYTES: usize = 2048;
/// Panels that a kernel multiplies at once: each broadcast activation then serves two of them.
pub(super) const PANELS: usize = 2;

/// Sums of a tile: `[row of the tile][panel][row of the panel]`.
pub(super) type Sums = [[[f32; PANEL_ROWS]; PANELS]; TILE_ROWS];
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

/// Two panels, as they are packed or expanded: block by block the headers of both, then the records of both for each group. So
/// a kernel reads one stream.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) format: Format,
    pub(super) bytes: &'a [u8],
    /// Groups of a row.
    pub(super) groups: usize,
}

impl Pair<'_> {
    /// The packed pair times the rows of a tile.
    pub(super) fn times(&self, level: CpuLevel, tile: &Tile) -> Sums {
        let mut y = Sums::default();
        if level == CpuLevel::Scalar && tile.stride() > 1 {
            // The software twin has a kernel of one row only: unrolled for more it would be most of the program.
            for (m, y) in y[..tile.rows()].iter_mut().enumerate() {
                *y = self.times(level, &tile.row(m))[0];
            }
            return y;
        }
        let (panels, blocks) = self.packed(std::slice::from_ref(tile));
        macro_rules! by_rows {
            ($format:expr) => {
                match tile.stride() {
                    1 => packed_row::<{ $format as u8 }>(level, panels, blocks, tile, &mut y),
                    2 => packed::<{ $format as u8 }, 2>(level, panels, blocks, tile, &mut y),
                    4 => packed::<{ $format as u8 }, 4>(level, panels, blocks, tile, &mut y),
                    other => unreachable!("a tile of {other} rows"),
                }
            };
        }
        // SAFETY: the panels have `blocks` blocks and the tile as many groups, as `packed` has checked.
        unsafe { by_format!(self.format, by_rows) }
        y
    }

    /// The packed pair times a few tiles of [`TILE_ROWS`] rows, in one pass over the weights; not on the scalar level.
    pub(super) fn times_few(&self, level: CpuLevel, tiles: &[Tile], y: &mut [Sums]) {
        let (panels, blocks) = self.packed(tiles);
        assert!(tiles.len() <= FEW_TILES && tiles.iter().all(|tile| tile.stride() == TILE_ROWS));
        assert!(tiles.len() == y.len());
        macro_rules! call {
            ($format:expr) => {
                few_tiles::<{ $format as u8 }>(level, panels, blocks, tiles, y)
            };
        }
        // SAFETY: the panels have `blocks` blocks and the tiles as many groups, as `packed` has checked.
        unsafe { by_format!(self.format, call) }
    }

    /// The expanded pair times a tile of [`TILE_ROWS`] rows; not on the scalar level.
    pub(super) fn expanded_times(&self, level: CpuLevel, tile: &Tile) -> Sums {
        let mut y = Sums::default();
        let panels = self.panels(
            self.groups * self.format.expanded_bytes(),
            std::slice::from_ref(tile),
        );
        assert!(tile.stride() == TILE_ROWS);
        macro_rules! call {
            ($format:expr) => {
                expanded::<{ $format as u8 }>(level, panels, self.groups, tile, &mut y)
            };
        }
        // SAFETY: the panels have `groups` records and the tile as many groups, as `panels` has checked.
        unsafe { by_format!(self.format, call) }
        y
    }

    /// Where the packed panels begin, and how many blocks they have.
    fn packed(&self, tiles: &[Tile]) -> (*const u8, usize) {
        let blocks = self.groups / self.format.groups_per_block();
        let panels = self.panels(blocks * self.format.block_bytes(), tiles);
        assert!(self.groups == blocks * self.format.groups_per_block());
        (panels, blocks)
    }

    /// Where the panels begin. Checks what the kernels read through pointers.
    fn panels(&self, panel_bytes: usize, tiles: &[Tile]) -> *const u8 {
        assert!(self.bytes.len() == PANELS * panel_bytes);
        for tile in tiles {
            assert!(tile.groups() == self.groups);
        }
        self.bytes.as_ptr()
    }
}

/// Unpacks pairs of panels: what [`Pair::times`] would do for every tile again. Not on the scalar level.
pub(super) fn expand(level: CpuLevel, format: Format, panels: &[u8], out: &mut [u8]) {
    let blocks = panels.len() / (PANELS * format.block_bytes());
    assert!(panels.len() == blocks * PANELS * format.block_bytes());
    assert!(out.len() == blocks * PANELS * format.groups_per_block() * format.expanded_bytes());
    macro_rules! call {
        ($format:expr) => {
            expand_kernel::<{ $format as u8 }>(level, panels.as_ptr(), blocks, out.as_mut_ptr())
        };
    }
    // SAFETY: sizes are checked above.
    unsafe { by_format!(format, call) }
}

simd_kernel! {
    /// `blocks` blocks of two packed panels in format number `F` times a tile of one row.
    unsafe fn packed_row<const F: u8>(panels: *const u8, blocks: usize, tile: &Tile, y: &mut Sums) = packed_row_body; products
}

simd_kernel! {
    /// The same for a tile of `M` rows.
    unsafe fn packed<const F: u8, const M: usize>(panels: *const u8, blocks: usize, tile: &Tile, y: &mut Sums) = packed_body, no twin; products
}

simd_kernel! {
    /// The same for up to [`FEW_TILES`] tiles of [`TILE_ROWS`] rows.
    unsafe fn few_tiles<const F: u8>(panels: *const u8, blocks: usize, tiles: &[Tile], y: &mut [Sums]) = few_tiles_body, no twin; products
}

simd_kernel! {
    /// `groups` records of two expanded panels times a tile of [`TILE_ROWS`] rows.
    unsafe fn expanded<const F: u8>(panels: *const u8, groups: usize, tile: &Tile, y: &mut Sums) = expanded_body, no twin; products
}

simd_kernel! {
    /// Expands `blocks` blocks of two panels.
    unsafe fn expand_kernel<const F: u8>(panels: *const u8, blocks: usize, out: *mut u8) = expand_body, no twin; products
}

#[inline(always)]
unsafe fn packed_row_body<V: Simd, const F: u8>(
    panels: *const u8,
    blocks: usize,
    tile: &Tile,
    y: &mut Sums,
) {
    // SAFETY: the caller's duty.
    unsafe { packed_body::<V, F, 1>(panels, blocks, tile, y) }
}

#[inline(always)]
unsafe fn packed_body<V: Simd, const F: u8, const M: usize>(
    panels: *const u8,
    blocks: usize,
    tile: &Tile,
    y: &mut Sums,
) {
    let format = const { format_of(F) };
    // SAFETY: all offsets stay inside the panels and the tile, whose sizes the caller has checked.
    unsafe {
        let mut sums = [[V::splat(0.0); PANELS]; M];
        let mut at = panels;
        let mut x = Rows::new(tile);
        for _ in 0..blocks {
            let headers = headers::<V, F>(&mut at);
            for _ in 0..format.groups_per_block() {
                prefetch_records::<V, F>(at.wrapping_add(PREFETCH_BYTES));
                let group = [0, 1].map(|p| PackedGroup::<V, F> {
                    record: at.add(p * format.record_bytes()),
                    header: headers[p],
                });
                x.next::<V, _, F, M>(&group, &mut sums);
                at = at.add(PANELS * format.record_bytes());
            }
        }
        store::<V, M>(&sums, y);
    }
}

/// The headers of a block of both panels; `at` moves to its records.
#[inline(always)]
unsafe fn headers<V: Simd, const F: u8>(at: &mut *const u8) -> [Header<V>; PANELS] {
    let bytes = const { format_of(F).header_bytes() };
    // SAFETY: a block begins with the headers.
    unsafe {
        let headers = [Header::load::<F>(*at), Header::load::<F>(at.add(bytes))];
        *at = at.add(PANELS * bytes);
        headers
    }
}

/// Asks for the records of a group of both panels, in this pair or whatever follows it.
#[inline(always)]
unsafe fn prefetch_records<V: Simd, const F: u8>(records: *const u8) {
    let bytes = const { PANELS * format_of(F).record_bytes() };
    for line in (0..bytes).step_by(64) {
        // SAFETY: a hint, which need not be readable.
        unsafe { V::prefetch(records.wrapping_add(line)) };
    }
}

#[inline(always)]
unsafe fn few_tiles_body<V: Simd, const F: u8>(
    panels: *const u8,
    blocks: usize,
    tiles: &[Tile],
    y: &mut [Sums],
) {
    let format = const { format_of(F) };
    let window = const { WINDOW_GROUPS / format_of(F).groups_per_block() };
    // SAFETY: all offsets stay inside the panels and the tiles, whose sizes the caller has checked; the records of a window fit
    // `unpacked`.
    unsafe {
        let mut unpacked = Lined([0_u8; PANELS * WINDOW_GROUPS * MAX_EXPANDED_BYTES]);
        let mut at = panels;
        let mut walks: [Rows<'_>; FEW_TILES] =
            std::array::from_fn(|t| Rows::new(&tiles[t.min(tiles.len() - 1)]));
        y.fill(Sums::default());
        for first in (0..blocks).step_by(window) {
            let count = window.min(blocks - first);
            at = expand_blocks::<V, F>(at, count, unpacked.0.as_mut_ptr());
            for t in 0..tiles.len() {
                let mut chains = load_sums::<V, TILE_ROWS>(&y[t]);
                let records = unpacked.0.as_ptr();
                let groups = count * format.groups_per_block();
                // The next window comes while the first tile passes over this one.
                let next = (t == 0).then_some(at);
                add_expanded::<V, F>(records, groups, next, &mut walks[t], &mut chains);
                store::<V, TILE_ROWS>(&chains, &mut y[t]);
            }
        }
    }
}

/// Adds `groups` records of two expanded panels to the chains of a tile, while as many packed ones are fetched from `next` on.
#[inline(always)]
unsafe fn add_expanded<V: Simd, const F: u8>(
    records: *const u8,
    groups: usize,
    next: Option<*const u8>,
    x: &mut Rows<'_>,
    sums: &mut [[V::F32; PANELS]; TILE_ROWS],
) {
    let bytes = const { format_of(F).expanded_bytes() };
    // SAFETY: the caller's duty.
    unsafe {
        let mut at = records;
        for g in 0..groups {
            if let Some(next) = next {
                let records = const { PANELS * format_of(F).record_bytes() };
                prefetch_records::<V, F>(next.wrapping_add(g * records));
            }
            let group = [0, 1].map(|p| ExpandedGroup::<F> {
                record: at.add(p * bytes),
            });
            x.next::<V, _, F, TILE_ROWS>(&group, sums);
            at = at.add(PANELS * bytes);
        }
    }
}

#[inline(always)]
unsafe fn expanded_body<V: Simd, const F: u8>(
    panels: *const u8,
    groups: usize,
    tile: &Tile,
    y: &mut Sums,
) {
    // SAFETY: all offsets stay inside the panels and the tile, whose sizes the caller has checked.
    unsafe {
        let mut sums = [[V::splat(0.0); PANELS]; TILE_ROWS];
        let x = &mut Rows::new(tile);
        add_expanded::<V, F>(panels, groups, None, x, &mut sums);
        store::<V, TILE_ROWS>(&sums, y);
    }
}

#[inline(always)]
unsafe fn load_sums<V: Simd, const M: usize>(y: &Sums) -> [[V::F32; PANELS]; M] {
    // SAFETY: eight floats each.
    std::array::from_fn(|m| std::array::from_fn(|p| unsafe { V::load(y[m][p].as_ptr()) }))
}

#[inline(always)]
unsafe fn store<V: Simd, const M: usize>(sums: &[[V::F32; PANELS]; M], y: &mut Sums) {
    for m in 0..M {
        for p in 0..PANELS {
            // SAFETY: eight floats.
            unsafe { V::store(y[m][p].as_mut_ptr(), sums[m][p]) };
        }
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
    unsafe fn next<V: Simd, G: Group<V>, const F: u8, const M: usize>(
        &mut self,
        group: &[G; PANELS],
        sums: &mut [[V::F32; PANELS]; M],
    ) {
        // SAFETY: a tile has a record for every group, and a refinement for every bit of its mask.
        unsafe {
            add_group::<V, G, F, M>(group, self.words, sums);
            self.words = self.words.add(ROW_WORDS * M);
            let mut rows = *self.refined.next().unwrap_unchecked();
            if rows != 0 {
                // A copy, so that the sums themselves need no address and stay in registers.
                let mut all = *sums;
                while rows != 0 {
                    let m = rows.trailing_zeros() as usize % M;
                    let mut one = [all[m]];
                    add_group::<V, G, F, 1>(group, self.refinements, &mut one);
                    [all[m]] = one;
                    self.refinements = self.refinements.add(ROW_WORDS);
                    rows &= rows - 1;
                }
                *sums = all;
            }
        }
    }
}

#[inline(always)]
unsafe fn expand_body<V: Simd, const F: u8>(panels: *const u8, blocks: usize, out: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe { expand_blocks::<V, F>(panels, blocks, out) };
}

/// Expands `blocks` blocks of two panels; where they end.
#[inline(always)]
unsafe fn expand_blocks<V: Simd, const F: u8>(
    panels: *const u8,
    blocks: usize,
    out: *mut u8,
) -> *const u8 {
    let format = const { format_of(F) };
    // SAFETY: the caller has checked the sizes of both buffers.
    unsafe {
        let (mut at, mut out) = (panels, out);
        for _ in 0..blocks {
            let headers = headers::<V, F>(&mut at);
            for _ in 0..format.groups_per_block() {
                for header in headers {
                    expand_group::<V, F>(&PackedGroup { record: at, header }, out);
                    at = at.add(format.record_bytes());
                    out = out.add(format.expanded_bytes());
                }
            }
        }
        at
    }
}

const _: () = assert!(PANEL_ROWS == LANES);
