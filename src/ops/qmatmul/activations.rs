//! Activations rounded to 8 bits: per row, in groups of 32, stored the way the microkernel reads them.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use super::refinements::Refinements;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, pair, simd_kernel};
use crate::ops::{Context, Rows, Tensor};
use crate::threads::Disjoint;

/// Input features that share one activation scale. One choice for all formats, so that q, k, v and gate, up of a file
/// with mixed encodings share one quantised input. 32 rather than 256: the error is a third, the cost within noise.
pub const GROUP: usize = 32;
/// Rows of activations that the microkernel takes at once.
pub const TILE_ROWS: usize = 4;
/// Tiles that have kernels of their own: with more, weights are expanded first.
pub(super) const FEW_TILES: usize = 4;
/// Groups whose largest value is below this are zero: their scale would not be a normal number.
const TINY: f32 = 1e-30;

/// A group is refined when the square of its scale is above this many times the mean over its row.
///
/// Rounding errors grow with a group's largest value, and in real models a few groups of a row hold values far above the
/// rest: those few make most of the error.
const REFINE_ABOVE: f32 = 2.0;

/// Rows of 8-bit activations in tiles of up to [`TILE_ROWS`] rows.
pub struct QuantRows {
    rows: usize,
    cols: usize,
    /// Whose kernels read the tiles.
    level: CpuLevel,
    tiles: Vec<Tile>,
    /// Of more than [`FEW_TILES`] tiles.
    refinements: Refinements,
}

impl fmt::Debug for QuantRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuantRows[{}, {}]", self.rows, self.cols)
    }
}

/// Words per row and record of a tile: 32 values of 8 bits, then what [`word`] names.
pub(super) const ROW_WORDS: usize = 14;

/// Where the words of a record lie, in units of the tile's stride: word `KIND * stride + m` belongs to row m.
///
/// Words 0 to 7 are the values of input features `4 c..4 c + 4`. "Starts" are what the level's [`Simd::start_word`] makes of the sums of the
/// values that the two 16-bit halves of a vector lane see (features 0 and 1 of every four, and 2 and 3).
pub(super) mod word {
    /// F32 scale: value ≈ scale × rounded value.
    pub const SCALE: usize = 8;
    /// F32 scale × sum of the rounded values.
    pub const SCALED_SUM: usize = 9;
    /// Start of the whole group's sums times -8.
    pub const NEG_STARTS: usize = 10;
    /// Starts of the first and of the second 16 features' sums, each times -1.
    pub const NEG_STARTS_HALVES: usize = 11;
    /// Sums of the first and the second 16 rounded values, as two i16, low half first.
    pub const HALF_SUMS: usize = 13;
}

/// One tile: what the microkernel takes at once. Only this file makes them, whole ([`Tile::whole`]): kernels read them through
/// pointers.
#[derive(Default)]
pub(super) struct Tile {
    /// Rows that count.
    rows: usize,
    /// Rows with padding (zeros): 1, 2 or 4.
    stride: usize,
    /// Per group a record of [`ROW_WORDS`] × stride words.
    words: Vec<i32>,
    /// Groups of a row.
    groups: usize,
    /// What is refined: [`place`]s in ascending order, then [`NOWHERE`].
    refined: Vec<u32>,
    /// What refines it: a record of one row for every place.
    refinements: Vec<i32>,
}

/// Behind all places.
const NOWHERE: u32 = u32::MAX;

/// Group `g` of row `m`, as a number that [`Refined`] takes apart.
fn place(g: usize, m: usize) -> u32 {
    u32::try_from(g * TILE_ROWS + m).expect("fewer than 2^30 groups")
}

/// A walk over a tile's refinements: group by group, and in a group row by row.
pub(super) struct Refined<'a> {
    places: *const u32,
    records: *const i32,
    tile: PhantomData<&'a Tile>,
}

impl<'a> Refined<'a> {
    /// The walk's beginning. Tiles are whole: there is a place behind the last one.
    #[inline(always)]
    pub fn of(tile: &'a Tile) -> Self {
        Self {
            places: tile.refined.as_ptr(),
            records: tile.refinements.as_ptr(),
            tile: PhantomData,
        }
    }

    /// The next refinement's group, a number that no group has behind the last one.
    #[inline(always)]
    pub fn group(&self) -> usize {
        // SAFETY: the walk does not go on behind the last place, which belongs to no group.
        unsafe { *self.places as usize / TILE_ROWS }
    }

    /// The next refinement's row and its record; goes on.
    ///
    /// # Safety
    /// [`Refined::group`] is a group.
    #[inline(always)]
    pub unsafe fn next(&mut self) -> (usize, *const i32) {
        // SAFETY: there is a place, and a record for it.
        unsafe {
            let next = (*self.places as usize % TILE_ROWS, self.records);
            self.places = self.places.add(1);
            self.records = self.records.add(ROW_WORDS);
            next
        }
    }
}

impl Tile {
    /// The tile; panics unless it has a record for every group and for every place, and places of its own groups and rows only.
    fn whole(mut self) -> Self {
        assert!(self.words.len() == self.groups * ROW_WORDS * self.stride);
        assert!(self.refinements.len() == self.refined.len() * ROW_WORDS);
        let end = place(self.groups, 0);
        assert!(self.refined.is_sorted() && self.refined.last().is_none_or(|last| *last < end));
        let row = |place: &u32| *place as usize % TILE_ROWS;
        assert!(self.refined.iter().all(|place| row(place) < self.stride));
        self.refined.push(NOWHERE);
        self
    }

    /// Rows that count.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Rows with padding: 1, 2 or 4.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Groups of a row.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Per group a record of [`ROW_WORDS`] × stride words.
    pub fn words(&self) -> &[i32] {
        &self.words
    }

    /// What refines groups of a range: group, row, and a record of one row.
    pub fn refinements(
        &self,
        groups: Range<usize>,
    ) -> impl Iterator<Item = (usize, usize, &[i32])> {
        let before = |g: usize| {
            self.refined
                .partition_point(|at| (*at as usize) < g * TILE_ROWS)
        };
        let range = before(groups.start)..before(groups.end);
        let records = self.refinements[range.start * ROW_WORDS..range.end * ROW_WORDS]
            .chunks_exact(ROW_WORDS);
        let places = self.refined[range].iter().map(|at| *at as usize);
        places
            .zip(records)
            .map(|(at, record)| (at / TILE_ROWS, at % TILE_ROWS, record))
    }

    /// Row `m` alone.
    pub fn row(&self, m: usize) -> Self {
        let words = self.words.iter().skip(m).step_by(self.stride);
        let mut row = Self {
            rows: 1,
            stride: 1,
            groups: self.groups,
            words: words.copied().collect(),
            ..Self::default()
        };
        for (g, of, record) in self.refinements(0..self.groups) {
            if of == m {
                row.refined.push(place(g, 0));
                row.refinements.extend_from_slice(record);
            }
        }
        row.whole()
    }
}

simd_kernel! {
    /// Writes row `m` of records of `stride` rows, one for every group.
    unsafe fn write_row(words: &mut [i32], stride: usize, m: usize, groups: &[Rounded]) = write_body; products
}

#[inline(always)]
unsafe fn write_body<V: Simd>(words: &mut [i32], stride: usize, m: usize, groups: &[Rounded]) {
    for (words, group) in words.chunks_exact_mut(ROW_WORDS * stride).zip(groups) {
        write_record::<V>(words, stride, m, group);
    }
}

/// Writes row `m` of a record of `stride` rows.
#[inline(always)]
fn write_record<V: Simd>(words: &mut [i32], stride: usize, m: usize, rounded: &Rounded) {
    let mut put = |kind: usize, word: i32| words[kind * stride + m] = word;
    for (c, four) in rounded.values.as_chunks::<4>().0.iter().enumerate() {
        put(c, i32::from_le_bytes(four.map(i8::cast_unsigned)));
    }
    let [first, second] = rounded.pairs;
    let halves = rounded.halves();
    let sum = (halves[0] + halves[1]) as f32;
    put(word::SCALE, rounded.scale.to_bits().cast_signed());
    put(
        word::SCALED_SUM,
        (rounded.scale * sum).to_bits().cast_signed(),
    );
    put(
        word::NEG_STARTS,
        V::start_word(-8 * (first[0] + second[0]), -8 * (first[1] + second[1])),
    );
    put(word::NEG_STARTS_HALVES, V::start_word(-first[0], -first[1]));
    put(
        word::NEG_STARTS_HALVES + 1,
        V::start_word(-second[0], -second[1]),
    );
    put(word::HALF_SUMS, pair(halves[0], halves[1]));
}

impl QuantRows {
    /// Rows of activations.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input features per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Panics when another level than that of the rounding is to read them: some words differ ([`Simd::start_word`]).
    pub(super) fn tiles(&self, level: CpuLevel) -> &[Tile] {
        assert!(
            self.level == level,
            "activations for level `{}`, read by `{level}`",
            self.level
        );
        &self.tiles
    }

    /// What refines the rows of more than [`FEW_TILES`] tiles; nothing for fewer.
    pub(super) fn refinements(&self) -> &Refinements {
        &self.refinements
    }
}

/// Rounds every row of `x` `[rows, cols]` to 8 bits. `cols` must be a multiple of [`GROUP`].
///
/// A group that holds NaN or an infinity gets a NaN scale, so that it cannot go unnoticed.
pub fn quantize_rows(ctx: &Context, x: &Tensor) -> QuantRows {
    quantize_all(ctx, &[Rows::all(x)]).remove(0)
}

/// [`quantize_rows`] of several sets of rows, of as many columns, in one parallel section.
pub fn quantize_all(ctx: &Context, sets: &[Rows<'_>]) -> Vec<QuantRows> {
    let cols = sets.first().map_or(0, Rows::cols);
    assert!(
        cols.is_multiple_of(GROUP) && sets.iter().all(|set| set.cols() == cols),
        "{cols} columns in groups of {GROUP}"
    );
    // Which set and which of its rows each tile begins with.
    let begins = |set: usize| {
        let firsts = (0..sets[set].count()).step_by(TILE_ROWS);
        firsts.map(move |first| (set, first))
    };
    let places: Vec<(usize, usize)> = (0..sets.len()).flat_map(begins).collect();
    let mut tiles: Vec<Tile> = places.iter().map(|_| Tile::default()).collect();
    let out = Disjoint::new(&mut tiles);
    ctx.for_row_ranges(places.len(), TILE_ROWS * cols * 2, |first, count| {
        // SAFETY: ranges are disjoint.
        let tiles = unsafe { out.part(first, count) };
        for (tile, (set, first_row)) in tiles.iter_mut().zip(&places[first..]) {
            *tile = round_tile(ctx.level(), &sets[*set], *first_row);
        }
    });
    let mut tiles = tiles.into_iter();
    let of = |set: &Rows<'_>| {
        let count = set.count().div_ceil(TILE_ROWS);
        let tiles: Vec<Tile> = tiles.by_ref().take(count).collect();
        let refinements = if count > FEW_TILES {
            Refinements::of(ctx, &tiles, cols / GROUP)
        } else {
            Refinements::default()
        };
        QuantRows {
            rows: set.count(),
            cols,
            level: ctx.level(),
            tiles,
            refinements,
        }
    };
    sets.iter().map(of).collect()
}

fn round_tile(level: CpuLevel, x: &Rows<'_>, first_row: usize) -> Tile {
    let rows = TILE_ROWS.min(x.count() - first_row);
    // A single tile may be smaller, for kernels of fewer rows.
    let stride = if x.count() > TILE_ROWS {
        TILE_ROWS
    } else {
        rows.next_power_of_two()
    };
    let count = x.cols() / GROUP;
    let rounded: Vec<RoundedRow> = (0..rows)
        .map(|m| round_row(level, x.row(first_row + m)))
        .collect();
    let mut tile = Tile {
        rows,
        stride,
        words: vec![0; count * ROW_WORDS * stride],
        groups: count,
        ..Tile::default()
    };
    let mut refinements = Vec::new();
    for (m, row) in rounded.iter().enumerate() {
        // SAFETY: the body needs the instruction set only, which the level stands for.
        unsafe { write_row(level, &mut tile.words, stride, m, &row.groups) }
        let of_row = row.refinements.iter();
        refinements.extend(of_row.map(|(g, group)| (place(*g, m), group)));
    }
    refinements.sort_unstable_by_key(|(place, _)| *place);
    tile.refined = refinements.iter().map(|(place, _)| *place).collect();
    tile.refinements.resize(refinements.len() * ROW_WORDS, 0);
    let refinements: Vec<Rounded> = refinements.iter().map(|(_, group)| **group).collect();
    // SAFETY: as above.
    unsafe { write_row(level, &mut tile.refinements, 1, 0, &refinements) }
    tile.whole()
}

/// A row, rounded: all groups, and the errors of those that are refined.
pub(super) struct RoundedRow {
    pub groups: Vec<Rounded>,
    pub refinements: Vec<(usize, Rounded)>,
}

/// Rounds one row. Depends on nothing but the row.
pub(super) fn round_row(level: CpuLevel, row: &[f32]) -> RoundedRow {
    let of = |group: &[f32; GROUP]| {
        // SAFETY: the body needs the instruction set only, which the level stands for.
        unsafe { round_group(level, group) }
    };
    let parts = row.as_chunks::<GROUP>().0;
    let groups: Vec<Rounded> = parts.iter().map(of).collect();
    let squares: f32 = groups.iter().map(|g| g.scale * g.scale).sum();
    let limit = REFINE_ABOVE * squares / groups.len() as f32;
    let mut refinements = Vec::new();
    for (g, (group, part)) in groups.iter().zip(parts).enumerate() {
        if group.scale * group.scale > limit {
            let errors = std::array::from_fn(|i| {
                (-group.scale).mul_add(f32::from(group.values[i]), part[i])
            });
            refinements.push((g, of(&errors)));
        }
    }
    RoundedRow {
        groups,
        refinements,
    }
}

/// A group, rounded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rounded {
    pub values: [i8; GROUP],
    pub scale: f32,
    /// Of the first and of the second half: the sums of features 0 and 1 of every four, and of 2 and 3.
    pub pairs: [[i32; 2]; 2],
}

impl Rounded {
    /// Sums of the first and the second half.
    pub fn halves(&self) -> [i32; 2] {
        self.pairs.map(|[low, high]| low + high)
    }
}

simd_kernel! {
    /// `scale = max|x| / 127`, values rounded half to even.
    pub(super) unsafe fn round_group(x: &[f32; GROUP]) -> Rounded = round_body
}

#[inline(always)]
unsafe fn round_body<V: Simd>(x: &[f32; GROUP]) -> Rounded {
    // SAFETY: the group is four vectors; the instruction set is the caller's duty.
    unsafe {
        let vectors: [V::F32; 4] = std::array::from_fn(|i| V::load(x.as_ptr().add(i * LANES)));
        // 0 for finite values, NaN otherwise: comparisons lose a NaN, this does not.
        let mut poison = V::splat(0.0);
        let mut top = V::splat(0.0);
        for v in vectors {
            poison = V::fma(v, V::splat(0.0), poison);
            top = V::max(V::abs(v), top);
        }
        let (mut tops, mut poisons) = ([0.0_f32; LANES], [0.0_f32; LANES]);
        V::store(tops.as_mut_ptr(), top);
        V::store(poisons.as_mut_ptr(), poison);
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let [max, poison] = [halved(tops, larger), halved(poisons, std::ops::Add::add)];
        let (scale, inverse) = if max < TINY {
            (0.0, 0.0)
        } else {
            (max / 127.0, 127.0 / max)
        };
        let limit = V::splat(127.0);
        let mut rounded = [V::splat_i32(0); 4];
        for (rounded, v) in rounded.iter_mut().zip(vectors) {
            // What is beyond 127 by an ulp or two is 127 before it is rounded, too; NaN becomes 127.
            let v = V::mul(v, V::splat(inverse));
            let v = V::max(V::min(v, limit), V::sub(V::splat(0.0), limit));
            *rounded = V::round_to_i32(v);
        }
        let mut values = [0_i8; GROUP];
        V::store_bytes(values.as_mut_ptr().cast(), V::narrow_i8(rounded));
        let mut pairs = [[0; 2]; 2];
        for (pair, two) in pairs.iter_mut().zip(rounded.as_chunks::<2>().0) {
            let mut sums = [0_i32; LANES];
            V::store_i32(sums.as_mut_ptr(), V::add_i32(two[0], two[1]));
            *pair = [
                sums[0] + sums[1] + sums[4] + sums[5],
                sums[2] + sums[3] + sums[6] + sums[7],
            ];
        }
        // A finite poison is ±0 and changes nothing.
        Rounded {
            values,
            scale: scale + poison,
            pairs,
        }
    }
}

/// Of all values what `f` makes of them, in an order that no result of it depends on.
#[inline(always)]
fn halved(mut values: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut len = LANES / 2;
    while len > 0 {
        for i in 0..len {
            values[i] = f(values[i], values[i + len]);
        }
        len /= 2;
    }
    values[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::random;

    #[test]
    fn rounds_half_to_even_with_the_largest_value_at_127() {
        for level in CpuLevel::available() {
            let mut x = [0.0; GROUP];
            x[..6].copy_from_slice(&[254.0, -254.0, 1.0, 3.0, 5.0, -3.0]);
            // SAFETY: an available level.
            let r = unsafe { round_group(level, &x) };
            assert_eq!(r.scale, 2.0);
            assert_eq!(r.values[..6], [127, -127, 0, 2, 2, -2]);
            assert_eq!(r.pairs, [[0, 2], [0, 0]]);
        }
    }

    #[test]
    fn every_level_rounds_alike_and_within_half_a_step() {
        for seed in 0..200 {
            let scale = 10.0_f32.powi(seed as i32 % 60 - 36);
            let x: [f32; GROUP] = std::array::from_fn(|i| random(seed + 1, GROUP)[i] * scale);
            // SAFETY: every CPU has the scalar level.
            let reference = unsafe { round_group(CpuLevel::Scalar, &x) };
            for level in CpuLevel::available() {
                // SAFETY: an available level.
                assert_eq!(unsafe { round_group(level, &x) }, reference);
            }
            if reference.scale > 0.0 {
                for (v, x) in reference.values.iter().zip(x) {
                    assert!(
                        (f32::from(*v) * reference.scale - x).abs() <= reference.scale * 0.500_01
                    );
                }
            }
        }
    }
}
