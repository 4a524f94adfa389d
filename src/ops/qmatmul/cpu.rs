//! The integer microkernel: one panel of eight weight rows times one tile of activation rows.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use super::activations::{Groups, QuantRows, Tile};
use super::layout::{Codes, Format, PANEL_ROWS, Scheme};
use super::{GROUP, QMatrix, TILE_ROWS};
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, simd_kernel};
use crate::quant::layout::IQ4_NL_VALUES;
use crate::threads::Disjoint;

/// Four-feature chunks of a record.
const CHUNKS: usize = GROUP / 4;
/// Bytes of a vector.
const VECTOR: usize = 32;

/// Panels `first..first + count` of `w` times every tile of `x`; each tile stays in the first-level cache meanwhile.
pub(super) fn panels(
    level: CpuLevel,
    x: &QuantRows,
    w: &QMatrix,
    first: usize,
    count: usize,
    out: &Disjoint<'_, f32>,
) {
    let panel_bytes = w.panel_bytes();
    for (tile_index, tile) in x.tiles().iter().enumerate() {
        for panel in first..first + count {
            let packed = &w.packed[panel * panel_bytes..(panel + 1) * panel_bytes];
            let mut y = [[0.0_f32; PANEL_ROWS]; TILE_ROWS];
            panel_times_tile(level, w.format, packed, tile, &mut y);
            let valid = PANEL_ROWS.min(w.rows - panel * PANEL_ROWS);
            for (m, y) in y[..tile.rows].iter().enumerate() {
                let at = (tile_index * TILE_ROWS + m) * w.rows + panel * PANEL_ROWS;
                // SAFETY: this task alone writes these columns.
                let out = unsafe { out.part(at, valid) };
                out.copy_from_slice(&y[..valid]);
            }
        }
    }
}

/// One panel times one tile, on the kernel for its format and number of rows.
fn panel_times_tile(
    level: CpuLevel,
    format: Format,
    packed: &[u8],
    tile: &Tile,
    y: &mut [[f32; 8]; 8],
) {
    let blocks = packed.len() / format.block_bytes();
    let count = blocks * format.groups_per_block();
    let num_refined = tile.refined.iter().filter(|refined| **refined).count();
    // What the kernel reads through pointers, checked once.
    assert!(packed.len() == blocks * format.block_bytes() && tile.refined.len() == count);
    assert!(
        tile.groups.has_size(count, tile.stride)
            && tile.refinements.has_size(num_refined, tile.stride)
    );
    macro_rules! by_rows {
        ($format:expr) => {
            match tile.stride {
                1 => kernel::<{ $format as u8 }, 1>(level, packed.as_ptr(), blocks, tile, y),
                2 => kernel::<{ $format as u8 }, 2>(level, packed.as_ptr(), blocks, tile, y),
                4 => kernel::<{ $format as u8 }, 4>(level, packed.as_ptr(), blocks, tile, y),
                8 => kernel::<{ $format as u8 }, 8>(level, packed.as_ptr(), blocks, tile, y),
                other => unreachable!("a tile of {other} rows"),
            }
        };
    }
    // SAFETY: the panel has `blocks` blocks and the tile as many groups, by the assertions above.
    unsafe {
        match format {
            Format::Q4_0 => by_rows!(Format::Q4_0),
            Format::Q4_1 => by_rows!(Format::Q4_1),
            Format::Q5_0 => by_rows!(Format::Q5_0),
            Format::Q5_1 => by_rows!(Format::Q5_1),
            Format::Q8_0 => by_rows!(Format::Q8_0),
            Format::IQ4_NL => by_rows!(Format::IQ4_NL),
            Format::Q2_K => by_rows!(Format::Q2_K),
            Format::Q3_K => by_rows!(Format::Q3_K),
            Format::Q4_K => by_rows!(Format::Q4_K),
            Format::Q5_K => by_rows!(Format::Q5_K),
            Format::Q6_K => by_rows!(Format::Q6_K),
        }
    }
}

simd_kernel! {
    /// `blocks` blocks of a panel in format number `F` times a tile of `M` rows: `y[m][row]`.
    unsafe fn kernel<const F: u8, const M: usize>(packed: *const u8, blocks: usize, tile: &Tile, y: &mut [[f32; 8]; 8]) = kernel_body
}

/// How many chunks fit into an accumulator before it must be widened (see `Simd::acc_add`).
const fn chunks_per_acc(format: Format) -> usize {
    match format.codes() {
        Codes::Nibbles => match format.scheme() {
            Scheme::KScale16 { .. } | Scheme::KScaleMin16 => 4,
            _ => 8,
        },
        Codes::NibblesBits | Codes::PairsBits | Codes::Pairs => 4,
        Codes::NibblesPairs => 2,
        // Not accumulated in 16 bits at all.
        Codes::Bytes | Codes::Table => 8,
    }
}

#[inline(always)]
unsafe fn kernel_body<V: Simd, const F: u8, const M: usize>(
    packed: *const u8,
    blocks: usize,
    tile: &Tile,
    y: &mut [[f32; 8]; 8],
) {
    let format = const { Format::ALL[F as usize] };
    // SAFETY: all offsets stay inside the panel and the tile, whose sizes the caller has checked.
    unsafe {
        let mut sums = [V::splat(0.0); M];
        let mut record = packed;
        let (mut group, mut refinement) = (0, 0);
        for _ in 0..blocks {
            let header = Header::<V>::load::<F>(record);
            record = record.add(format.header_bytes());
            for _ in 0..format.groups_per_block() {
                let scales = record.add(format.code_bytes());
                let values = tile.groups.values.as_ptr().add(group * GROUP * M);
                let dots = dots::<V, F, M>(record, scales, values);
                accumulate::<V, F, M>(&header, scales, &dots, &tile.groups, group * M, &mut sums);
                if *tile.refined.get_unchecked(group) {
                    refine::<V, F, M>(&header, record, &tile.refinements, refinement, &mut sums);
                    refinement += 1;
                }
                record = scales.add(format.scale_bytes());
                group += 1;
            }
        }
        for m in 0..M {
            V::store(y[m].as_mut_ptr(), sums[m]);
        }
    }
}

/// Adds refinement number `index`, of the group whose record this is.
#[inline(always)]
unsafe fn refine<V: Simd, const F: u8, const M: usize>(
    header: &Header<V>,
    record: *const u8,
    refinements: &Groups,
    index: usize,
    sums: &mut [V::F32; M],
) {
    // SAFETY: the caller has checked that there are so many refinements.
    unsafe {
        let scales = record.add(const { format_of(F).code_bytes() });
        let values = refinements.values.as_ptr().add(index * GROUP * M);
        let dots = dots::<V, F, M>(record, scales, values);
        accumulate::<V, F, M>(header, scales, &dots, refinements, index * M, sums);
    }
}

/// Scales of the eight rows that hold for a whole block.
struct Header<V: Simd> {
    d: V::F32,
    /// Negative, as it is subtracted.
    neg_dmin: V::F32,
}

impl<V: Simd> Header<V> {
    #[inline(always)]
    unsafe fn load<const F: u8>(p: *const u8) -> Self {
        let bytes = const { Format::ALL[F as usize].header_bytes() };
        // SAFETY: the header has 0, 16 or 32 bytes.
        unsafe {
            let zero = V::splat(0.0);
            Self {
                d: if bytes >= 16 { V::load_f16(p) } else { zero },
                neg_dmin: if bytes >= 32 {
                    V::sub(zero, V::load_f16(p.add(16)))
                } else {
                    zero
                },
            }
        }
    }
}

/// Integer dot products of a record with `M` rows: times the 16-feature scales where the format has them.
#[inline(always)]
unsafe fn dots<V: Simd, const F: u8, const M: usize>(
    record: *const u8,
    scales: *const u8,
    values: *const i8,
) -> [V::I32; M] {
    let format = const { Format::ALL[F as usize] };
    let step = const { chunks_per_acc(format_of(F)) };
    // SAFETY: chunk c of row m lies at `(c M + m) * 4` of the group's values.
    unsafe {
        let mut totals = [V::splat_i32(0); M];
        if matches!(format.codes(), Codes::Bytes | Codes::Table) {
            for c in 0..CHUNKS {
                let weights = signed_chunk::<V, F>(record, c);
                for m in 0..M {
                    totals[m] =
                        V::dot_i8(totals[m], weights, V::splat4(values.add((c * M + m) * 4)));
                }
            }
            return totals;
        }
        let by_half = matches!(
            format.scheme(),
            Scheme::KScale16 { .. } | Scheme::KScaleMin16
        );
        for part in 0..CHUNKS / step {
            let mut accs = [V::acc_zero(); M];
            for c in part * step..(part + 1) * step {
                let weights = chunk::<V, F>(record, c);
                for m in 0..M {
                    accs[m] = V::acc_add(accs[m], weights, V::splat4(values.add((c * M + m) * 4)));
                }
            }
            if by_half {
                let pairs = V::load_i8_i16(scales);
                let factor = if part * step < CHUNKS / 2 {
                    V::dup_lo16(pairs)
                } else {
                    V::dup_hi16(pairs)
                };
                for m in 0..M {
                    totals[m] = V::add_i32(totals[m], V::acc_widen_scaled(accs[m], factor));
                }
            } else {
                for m in 0..M {
                    totals[m] = V::add_i32(totals[m], V::acc_widen(accs[m]));
                }
            }
        }
        totals
    }
}

const fn format_of(number: u8) -> Format {
    Format::ALL[number as usize]
}

/// Adds a record's share to the chains, as its scheme says.
#[inline(always)]
unsafe fn accumulate<V: Simd, const F: u8, const M: usize>(
    header: &Header<V>,
    scales: *const u8,
    dots: &[V::I32; M],
    groups: &Groups,
    at: usize,
    sums: &mut [V::F32; M],
) {
    // SAFETY: `at + m` is inside the tile's per-group arrays; the record's scales have `scale_bytes`.
    unsafe {
        let x_scale = |m: usize| V::splat(*groups.scales.get_unchecked(at + m));
        let x_sum = |m: usize| V::splat(*groups.scaled_sums.get_unchecked(at + m));
        let halves = |m: usize| V::splat_i32(*groups.half_sums.get_unchecked(at + m));
        match const { format_of(F).scheme() } {
            Scheme::Scale { zero_log2 } => {
                let d = V::load_f16(scales);
                for m in 0..M {
                    let dot = match zero_log2 {
                        None => dots[m],
                        Some(_) => {
                            let sum = V::splat_i32(*groups.sums.get_unchecked(at + m));
                            V::sub_i32(dots[m], shift_zero::<V, F>(sum))
                        }
                    };
                    sums[m] = V::fma(V::mul(d, x_scale(m)), V::to_f32(dot), sums[m]);
                }
            }
            Scheme::ScaleMin => {
                let (d, min) = (V::load_f16(scales), V::load_f16(scales.add(16)));
                for m in 0..M {
                    sums[m] = V::fma(V::mul(d, x_scale(m)), V::to_f32(dots[m]), sums[m]);
                    sums[m] = V::fma(min, x_sum(m), sums[m]);
                }
            }
            Scheme::KScaleMin => {
                let d = V::mul(header.d, V::to_f32(V::load_u8_i32(scales)));
                let min = V::mul(header.neg_dmin, V::to_f32(V::load_u8_i32(scales.add(8))));
                for m in 0..M {
                    sums[m] = V::fma(V::mul(d, x_scale(m)), V::to_f32(dots[m]), sums[m]);
                    sums[m] = V::fma(min, x_sum(m), sums[m]);
                }
            }
            Scheme::KScale16 { .. } => {
                let pairs = V::load_i8_i16(scales);
                for m in 0..M {
                    let zero = shift_zero::<V, F>(V::madd_i16(pairs, halves(m)));
                    let dot = V::sub_i32(dots[m], zero);
                    sums[m] = V::fma(V::mul(header.d, x_scale(m)), V::to_f32(dot), sums[m]);
                }
            }
            Scheme::KScaleMin16 => {
                let mins = V::load_i8_i16(scales.add(16));
                for m in 0..M {
                    let min = V::to_f32(V::madd_i16(mins, halves(m)));
                    sums[m] = V::fma(V::mul(header.d, x_scale(m)), V::to_f32(dots[m]), sums[m]);
                    sums[m] = V::fma(V::mul(header.neg_dmin, x_scale(m)), min, sums[m]);
                }
            }
        }
    }
}

/// The sum times the format's zero point, a power of two.
#[inline(always)]
unsafe fn shift_zero<V: Simd, const F: u8>(sum: V::I32) -> V::I32 {
    // SAFETY: no memory is touched.
    unsafe {
        match const { format_of(F).scheme() } {
            Scheme::Scale { zero_log2: Some(3) } => V::shl_i32::<3>(sum),
            Scheme::Scale { zero_log2: Some(4) } => V::shl_i32::<4>(sum),
            Scheme::KScale16 { zero_log2: 5 } => V::shl_i32::<5>(sum),
            Scheme::KScale16 { zero_log2: 2 } => V::shl_i32::<2>(sum),
            _ => unreachable!(),
        }
    }
}

/// Chunk `c` of a record as unsigned codes.
#[inline(always)]
unsafe fn chunk<V: Simd, const F: u8>(record: *const u8, c: usize) -> V::Bytes {
    // SAFETY: planes lie inside the record.
    unsafe {
        match const { format_of(F).codes() } {
            Codes::Nibbles => nibbles::<V>(record, c),
            Codes::NibblesBits => V::or(
                nibbles::<V>(record, c),
                bits_to_4::<V>(V::load_bytes(record.add(128)), c),
            ),
            Codes::NibblesPairs => V::or(
                nibbles::<V>(record, c),
                pairs_to_4::<V>(V::load_bytes(record.add(128 + c % 2 * VECTOR)), c / 2),
            ),
            Codes::PairsBits => V::or(
                pairs_to_0::<V>(record, c),
                bits_to_2::<V>(V::load_bytes(record.add(64)), c),
            ),
            Codes::Pairs => pairs_to_0::<V>(record, c),
            Codes::Bytes | Codes::Table => unreachable!(),
        }
    }
}

/// Chunk `c` of a record as signed bytes.
#[inline(always)]
unsafe fn signed_chunk<V: Simd, const F: u8>(record: *const u8, c: usize) -> V::Bytes {
    // SAFETY: planes lie inside the record; nibbles are below 16.
    unsafe {
        match const { format_of(F).codes() } {
            Codes::Bytes => V::load_bytes(record.add(c * VECTOR)),
            Codes::Table => V::lookup16(IQ4_NL_VALUES.as_ptr(), nibbles::<V>(record, c)),
            _ => unreachable!(),
        }
    }
}

#[inline(always)]
unsafe fn nibbles<V: Simd>(planes: *const u8, c: usize) -> V::Bytes {
    // SAFETY: four vectors of nibbles.
    unsafe {
        let plane = V::load_bytes(planes.add(c % 4 * VECTOR));
        V::and(
            if c < 4 { plane } else { V::shr16::<4>(plane) },
            V::splat_u8(0x0f),
        )
    }
}

/// Bit pair `t` of every byte, at bit 0, of chunk `c`.
#[inline(always)]
unsafe fn pairs_to_0<V: Simd>(planes: *const u8, c: usize) -> V::Bytes {
    // SAFETY: two vectors of pairs.
    unsafe {
        let plane = V::load_bytes(planes.add(c % 2 * VECTOR));
        let shifted = match c / 2 {
            0 => plane,
            1 => V::shr16::<2>(plane),
            2 => V::shr16::<4>(plane),
            _ => V::shr16::<6>(plane),
        };
        V::and(shifted, V::splat_u8(0x03))
    }
}

/// Bit pair `t` of every byte, moved to bit 4.
#[inline(always)]
unsafe fn pairs_to_4<V: Simd>(plane: V::Bytes, t: usize) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe {
        let shifted = match t {
            0 => V::shl16::<4>(plane),
            1 => V::shl16::<2>(plane),
            2 => plane,
            _ => V::shr16::<2>(plane),
        };
        V::and(shifted, V::splat_u8(0x30))
    }
}

/// Bit `t` of every byte, moved to bit 4.
#[inline(always)]
unsafe fn bits_to_4<V: Simd>(plane: V::Bytes, t: usize) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe {
        let shifted = match t {
            0 => V::shl16::<4>(plane),
            1 => V::shl16::<3>(plane),
            2 => V::shl16::<2>(plane),
            3 => V::shl16::<1>(plane),
            4 => plane,
            5 => V::shr16::<1>(plane),
            6 => V::shr16::<2>(plane),
            _ => V::shr16::<3>(plane),
        };
        V::and(shifted, V::splat_u8(0x10))
    }
}

/// Bit `t` of every byte, moved to bit 2.
#[inline(always)]
unsafe fn bits_to_2<V: Simd>(plane: V::Bytes, t: usize) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe {
        let shifted = match t {
            0 => V::shl16::<2>(plane),
            1 => V::shl16::<1>(plane),
            2 => plane,
            3 => V::shr16::<1>(plane),
            4 => V::shr16::<2>(plane),
            5 => V::shr16::<3>(plane),
            6 => V::shr16::<4>(plane),
            _ => V::shr16::<5>(plane),
        };
        V::and(shifted, V::splat_u8(0x04))
    }
}

const _: () = assert!(PANEL_ROWS == LANES);
