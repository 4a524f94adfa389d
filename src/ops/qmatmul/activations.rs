//! Activations rounded to 8 bits: per row, in groups of 32, stored the way the microkernel reads them.
#![allow(unsafe_code)]

use std::fmt;

use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, simd_kernel};
use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Input features that share one activation scale. One choice for all formats, so that q, k, v and gate, up of a file
/// with mixed encodings share one quantised input. 32 rather than 256: the error is a third, the cost within noise.
pub const GROUP: usize = 32;
/// Rows of activations that the microkernel takes at once.
pub const TILE_ROWS: usize = 8;
/// Groups whose largest value is below this are zero: their scale would not be a normal number.
const TINY: f32 = 1e-30;

/// Rows of 8-bit activations in tiles of up to [`TILE_ROWS`] rows.
///
/// In a tile of `t` rows (8, or for the last one 1, 2, 4 or 8, padded with zeros) the four bytes of input features
/// `32 g + 4 c..` of row m stand at `((8 g + c) t + m) * 4`, and everything kept per group at `g t + m`.
pub struct QuantRows {
    rows: usize,
    cols: usize,
    /// Rounded values, -127..=127.
    values: Vec<i8>,
    /// F32 scale per group: value ≈ scale × rounded value.
    scales: Vec<f32>,
    /// Sum of the rounded values per group.
    sums: Vec<i32>,
    /// Sums of the first and the second 16 values per group, as two i16 in one word (low half first).
    half_sums: Vec<i32>,
    /// Scale × sum.
    scaled_sums: Vec<f32>,
}

impl fmt::Debug for QuantRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QuantRows[{}, {}]", self.rows, self.cols)
    }
}

/// One tile, as the microkernel sees it.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    /// Rows that count.
    pub rows: usize,
    /// Rows with padding: 1, 2, 4 or 8.
    pub stride: usize,
    pub values: &'a [i8],
    pub scales: &'a [f32],
    pub sums: &'a [i32],
    pub half_sums: &'a [i32],
    pub scaled_sums: &'a [f32],
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

    fn groups(&self) -> usize {
        self.cols / GROUP
    }

    /// Number of tiles.
    pub(super) fn num_tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Tile number `tile`.
    pub(super) fn tile(&self, tile: usize) -> Tile<'_> {
        let rows = TILE_ROWS.min(self.rows - tile * TILE_ROWS);
        let stride = tile_stride(rows);
        let per_group = tile * TILE_ROWS * self.groups()
            ..tile * TILE_ROWS * self.groups() + stride * self.groups();
        Tile {
            rows,
            stride,
            values: &self.values[per_group.start * GROUP..per_group.end * GROUP],
            scales: &self.scales[per_group.clone()],
            sums: &self.sums[per_group.clone()],
            half_sums: &self.half_sums[per_group.clone()],
            scaled_sums: &self.scaled_sums[per_group],
        }
    }
}

/// Rows of a tile with padding.
fn tile_stride(rows: usize) -> usize {
    rows.next_power_of_two()
}

/// Rounds every row of `x` `[rows, cols]` to 8 bits. `cols` must be a multiple of [`GROUP`].
///
/// A group that holds NaN or an infinity gets a NaN scale, so that it cannot go unnoticed.
pub fn quantize_rows(ctx: &Context, x: &Tensor) -> QuantRows {
    let (rows, cols) = (x.rows(), x.cols());
    assert!(cols.is_multiple_of(GROUP), "{x:?} in groups of {GROUP}");
    let groups = cols / GROUP;
    let padded = rows / TILE_ROWS * TILE_ROWS
        + if rows % TILE_ROWS == 0 {
            0
        } else {
            tile_stride(rows % TILE_ROWS)
        };
    let mut out = QuantRows {
        rows,
        cols,
        values: vec![0; padded * cols],
        scales: vec![0.0; padded * groups],
        sums: vec![0; padded * groups],
        half_sums: vec![0; padded * groups],
        scaled_sums: vec![0.0; padded * groups],
    };
    let writer = Writer {
        values: Disjoint::new(&mut out.values),
        scales: Disjoint::new(&mut out.scales),
        sums: Disjoint::new(&mut out.sums),
        half_sums: Disjoint::new(&mut out.half_sums),
        scaled_sums: Disjoint::new(&mut out.scaled_sums),
    };
    let tiles = rows.div_ceil(TILE_ROWS);
    ctx.for_row_ranges(tiles, TILE_ROWS * cols * 2, |first, count| {
        for tile in first..first + count {
            let in_tile = TILE_ROWS.min(rows - tile * TILE_ROWS);
            writer.tile(ctx.level(), x, tile, in_tile);
        }
    });
    out
}

struct Writer<'a> {
    values: Disjoint<'a, i8>,
    scales: Disjoint<'a, f32>,
    sums: Disjoint<'a, i32>,
    half_sums: Disjoint<'a, i32>,
    scaled_sums: Disjoint<'a, f32>,
}

impl Writer<'_> {
    fn tile(&self, level: CpuLevel, x: &Tensor, tile: usize, rows: usize) {
        let (stride, groups) = (tile_stride(rows), x.cols() / GROUP);
        let (start, len) = (tile * TILE_ROWS * groups, stride * groups);
        // SAFETY: tiles do not overlap.
        let (values, scales, sums, half_sums, scaled_sums) = unsafe {
            (
                self.values.part(start * GROUP, len * GROUP),
                self.scales.part(start, len),
                self.sums.part(start, len),
                self.half_sums.part(start, len),
                self.scaled_sums.part(start, len),
            )
        };
        for m in 0..rows {
            let row = x.row(tile * TILE_ROWS + m);
            for (g, group) in row.chunks_exact(GROUP).enumerate() {
                let group: &[f32; GROUP] = group.try_into().expect("chunks of GROUP");
                // SAFETY: the body needs the instruction set only, which the level stands for.
                let rounded = unsafe { round_group(level, group) };
                for (c, four) in rounded.values.as_chunks::<4>().0.iter().enumerate() {
                    let at = ((g * 8 + c) * stride + m) * 4;
                    values[at..at + 4].copy_from_slice(four);
                }
                let at = g * stride + m;
                scales[at] = rounded.scale;
                let [low, high] = rounded.halves;
                sums[at] = low + high;
                half_sums[at] = (low & 0xffff) | (high << 16);
                scaled_sums[at] = rounded.scale * (low + high) as f32;
            }
        }
    }
}

/// A group, rounded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rounded {
    pub values: [i8; GROUP],
    pub scale: f32,
    /// Sums of the first and the second half.
    pub halves: [i32; 2],
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
        let max = tops.iter().fold(0.0_f32, |a, &b| if b > a { b } else { a });
        let poison: f32 = poisons.iter().sum();
        let (scale, inverse) = if max < TINY {
            (0.0, 0.0)
        } else {
            (max / 127.0, 127.0 / max)
        };
        let mut integers = [0_i32; GROUP];
        for (i, v) in vectors.into_iter().enumerate() {
            let rounded = V::round_to_i32(V::mul(v, V::splat(inverse)));
            integers
                .as_mut_ptr()
                .add(i * LANES)
                .cast::<V::I32>()
                .write_unaligned(rounded);
        }
        let values: [i8; GROUP] = std::array::from_fn(|i| integers[i].clamp(-127, 127) as i8);
        let sum = |part: &[i8]| part.iter().map(|&v| i32::from(v)).sum();
        let halves = [sum(&values[..16]), sum(&values[16..])];
        // A finite poison is ±0 and changes nothing.
        Rounded {
            values,
            scale: scale + poison,
            halves,
        }
    }
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
            assert_eq!(r.halves, [2, 0]);
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
