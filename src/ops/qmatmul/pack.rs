//! From a file's rows to a panel in the interleaved layout.
//!
//! Each row gives the 32 codes of a group as one vector of bytes; the vectors of eight rows are transposed into half chunks,
//! and those are stored as bit planes: half of every vector of a record.
#![allow(unsafe_code)]

use super::GROUP;
use super::bits::{bits_to_2, bits_to_4, high_nibbles, low_nibbles, pairs_to_0, pairs_to_4};
use super::layout::{Codes, Format, PANEL_ROWS, Scheme, VECTOR};
use crate::ops::cpu_level::CpuLevel;
use crate::ops::matmul::RawMatrix;
use crate::ops::simd::{LANES, Simd, simd_kernel};
use crate::quant::layout::{self as block, k_scales_mins, q3_k_scales};

/// Bytes of half a vector: eight rows of a panel, or 32 codes of a row.
const HALF: usize = VECTOR / 2;
/// Halves of a panel.
const HALVES: usize = PANEL_ROWS / LANES;

/// Packs rows `first..first + 16` of `raw` (rows past its end are zero) into `out`: one panel.
pub(super) fn pack_panel(
    level: CpuLevel,
    format: Format,
    raw: &RawMatrix,
    first: usize,
    out: &mut [u8],
) {
    let blocks = out.len() / format.block_bytes();
    let file_block = raw.encoding().block_bytes();
    // What the kernel reads and writes through pointers, checked once.
    assert!(Format::of(raw.encoding()) == Some(format));
    assert!(out.len() == blocks * format.block_bytes());
    let is_whole = first + PANEL_ROWS <= raw.rows();
    let empty = vec![0; if is_whole { 0 } else { blocks * file_block }];
    for half in 0..HALVES {
        let rows: [&[u8]; LANES] = std::array::from_fn(|i| {
            let row = first + half * LANES + i;
            if row < raw.rows() {
                raw.row(row)
            } else {
                &empty[..]
            }
        });
        assert!(rows.iter().all(|row| row.len() == blocks * file_block));
        let rows = rows.map(<[u8]>::as_ptr);
        let out = out.as_mut_ptr();
        macro_rules! call {
            ($format:expr) => {
                kernel::<{ $format as u8 }>(level, rows, file_block, blocks, half, out)
            };
        }
        // SAFETY: every row has `blocks` blocks of the file, and `out` as many of a panel.
        unsafe { super::cpu::by_format!(format, call) }
    }
}

simd_kernel! {
    /// Packs `blocks` blocks of eight rows as half `half` of a panel.
    unsafe fn kernel<const F: u8>(rows: [*const u8; LANES], file_block: usize, blocks: usize, half: usize, out: *mut u8) = kernel_body
}

#[inline(always)]
unsafe fn kernel_body<V: Simd, const F: u8>(
    rows: [*const u8; LANES],
    file_block: usize,
    blocks: usize,
    half: usize,
    out: *mut u8,
) {
    let format = const { Format::ALL[F as usize] };
    // SAFETY: the caller has checked how many blocks there are on both sides.
    unsafe {
        let mut out = out;
        for index in 0..blocks {
            let blocks = rows.map(|row| row.add(index * file_block));
            let first = out.add(format.header_bytes());
            for (row, block) in blocks.iter().enumerate() {
                write_scales::<F>(*block, half * LANES + row, out, first);
            }
            for group in 0..format.groups_per_block() {
                let codes = blocks.map(|block| row_codes::<V, F>(block, group));
                let record = first.add(group * format.record_bytes() + half * HALF);
                write_codes::<V, F>(&V::transpose8(codes), record);
            }
            out = out.add(format.block_bytes());
        }
    }
}

/// The 32 codes of a group, one per byte.
#[inline(always)]
unsafe fn row_codes<V: Simd, const F: u8>(b: *const u8, group: usize) -> V::Bytes {
    // SAFETY: the parts of a block lie inside it.
    unsafe {
        let load = |at: usize| V::load_bytes(b.add(at));
        match const { Format::ALL[F as usize] } {
            Format::Q4_0 | Format::IQ4_NL => V::load_nibbles(b.add(block::q4_0::QS)),
            Format::MXFP4 => V::load_nibbles(b.add(block::mxfp4::QS)),
            Format::Q4_1 => V::load_nibbles(b.add(block::q4_1::QS)),
            Format::Q5_0 => V::or(
                V::load_nibbles(b.add(block::q5_0::QS)),
                V::load_bits(b.add(block::q5_0::QH), 0x10),
            ),
            Format::Q5_1 => V::or(
                V::load_nibbles(b.add(block::q5_1::QS)),
                V::load_bits(b.add(block::q5_1::QH), 0x10),
            ),
            Format::Q8_0 => load(block::q8_0::QS),
            Format::Q4_K => k_nibbles::<V>(load(block::q4_k::QS + group / 2 * HALF), group),
            Format::Q5_K => V::or(
                k_nibbles::<V>(load(block::q5_k::QS + group / 2 * HALF), group),
                bits_to_4::<V>(load(block::q5_k::QH), group),
            ),
            Format::Q6_K => {
                let (half, part) = (group / 4, group % 4);
                let low = load(block::q6_k::QL + (2 * half + part % 2) * HALF);
                V::or(
                    k_nibbles::<V>(low, part / 2),
                    pairs_to_4::<V>(load(block::q6_k::QH + half * HALF), part),
                )
            }
            Format::Q3_K => V::or(
                pairs_to_0::<V>(load(block::q3_k::QS + group / 4 * HALF), group % 4),
                bits_to_2::<V>(load(block::q3_k::HMASK), group),
            ),
            Format::Q2_K => pairs_to_0::<V>(load(block::q2_k::QS + group / 4 * HALF), group % 4),
        }
    }
}

/// Low nibbles for an even group, high ones for an odd one.
#[inline(always)]
unsafe fn k_nibbles<V: Simd>(bytes: V::Bytes, group: usize) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe {
        if group.is_multiple_of(2) {
            low_nibbles::<V>(bytes)
        } else {
            high_nibbles::<V>(bytes)
        }
    }
}

/// Halves of eight chunks as those of the bit planes of the format.
#[inline(always)]
unsafe fn write_codes<V: Simd, const F: u8>(chunks: &[V::Bytes; 8], out: *mut u8) {
    // SAFETY: a record has `code_bytes` of planes.
    unsafe {
        match const { Format::ALL[F as usize].codes() } {
            Codes::Nibbles | Codes::Table | Codes::Levels => write_nibbles::<V>(chunks, out),
            Codes::NibblesBits => {
                write_nibbles::<V>(chunks, out);
                write_bits::<V, 4>(chunks, out.add(4 * VECTOR));
            }
            Codes::NibblesPairs => {
                write_nibbles::<V>(chunks, out);
                write_pairs::<V, 2>(chunks, out.add(4 * VECTOR));
            }
            Codes::PairsBits => {
                write_pairs::<V, 0>(chunks, out);
                write_bits::<V, 2>(chunks, out.add(2 * VECTOR));
            }
            Codes::Pairs => write_pairs::<V, 0>(chunks, out),
            Codes::Bytes => {
                for (c, chunk) in chunks.iter().enumerate() {
                    V::store_bytes(out.add(c * VECTOR), *chunk);
                }
            }
        }
    }
}

/// The low four bits: chunk c low, chunk c + 4 high.
#[inline(always)]
unsafe fn write_nibbles<V: Simd>(chunks: &[V::Bytes; 8], out: *mut u8) {
    // SAFETY: four vectors.
    unsafe {
        for c in 0..4 {
            let high = V::shl16::<4>(low_nibbles::<V>(chunks[c + 4]));
            let plane = V::or(low_nibbles::<V>(chunks[c]), high);
            V::store_bytes(out.add(c * VECTOR), plane);
        }
    }
}

/// Bit pair `PAIR` of every code: chunk `j + 2t` at bits `2t` of vector j.
#[inline(always)]
unsafe fn write_pairs<V: Simd, const PAIR: usize>(chunks: &[V::Bytes; 8], out: *mut u8) {
    // SAFETY: two vectors.
    unsafe {
        for j in 0..2 {
            let pair = |t: usize| pairs_to_0::<V>(chunks[j + 2 * t], PAIR);
            let low = V::or(pair(0), V::shl16::<2>(pair(1)));
            let high = V::or(V::shl16::<4>(pair(2)), V::shl16::<6>(pair(3)));
            V::store_bytes(out.add(j * VECTOR), V::or(low, high));
        }
    }
}

/// Bit `SHIFT`: chunk t at bit t.
#[inline(always)]
unsafe fn write_bits<V: Simd, const SHIFT: i32>(chunks: &[V::Bytes; 8], out: *mut u8) {
    // SAFETY: one vector.
    unsafe {
        let bit = |t: usize| V::and(V::shr16::<SHIFT>(chunks[t]), V::splat_u8(1));
        let twos: [V::Bytes; 4] =
            std::array::from_fn(|i| V::or(bit(2 * i), V::shl16::<1>(bit(2 * i + 1))));
        let low = V::or(twos[0], V::shl16::<2>(twos[1]));
        let high = V::or(V::shl16::<4>(twos[2]), V::shl16::<6>(twos[3]));
        V::store_bytes(out, V::or(low, high));
    }
}

/// The scales of a block of the panel's row `row`: into its header, and into its records, of which `first` is the first.
#[inline(always)]
unsafe fn write_scales<const F: u8>(b: *const u8, row: usize, header: *mut u8, first: *mut u8) {
    let format = const { Format::ALL[F as usize] };
    // SAFETY: the parts of a block lie inside it; those of the panel's block too, for a row below sixteen.
    unsafe {
        let half = |from: usize, to: *mut u8| {
            to.add(2 * row)
                .cast::<[u8; 2]>()
                .write(b.add(from).cast::<[u8; 2]>().read());
        };
        let scales = |group: usize| first.add(group * format.record_bytes() + format.code_bytes());
        let (d, min) = const { half_offsets(Format::ALL[F as usize]) };
        let mut low = [0_u8; 16];
        let mut mins = [0_u8; 16];
        match const { Format::ALL[F as usize] } {
            Format::Q4_K | Format::Q5_K => {
                let at = if F == Format::Q4_K as u8 {
                    block::q4_k::SCALES
                } else {
                    block::q5_k::SCALES
                };
                let (s, m) = k_scales_mins(&b.add(at).cast::<[u8; 12]>().read());
                low[..8].copy_from_slice(&s);
                mins[..8].copy_from_slice(&m);
            }
            Format::Q6_K => low = b.add(block::q6_k::SCALES).cast::<[u8; 16]>().read(),
            Format::Q3_K => {
                let packed = b.add(block::q3_k::SCALES).cast::<[u8; 12]>().read();
                low = q3_k_scales(&packed).map(i8::cast_unsigned);
            }
            Format::Q2_K => {
                let packed = b.add(block::q2_k::SCALES).cast::<[u8; 16]>().read();
                (low, mins) = (packed.map(|byte| byte & 15), packed.map(|byte| byte >> 4));
            }
            _ => {}
        }
        match const { Format::ALL[F as usize].scheme() } {
            Scheme::Scale { .. } => half(d, scales(0)),
            Scheme::Exponent { .. } => scales(0).add(row).write(b.add(d).read()),
            Scheme::ScaleMin => {
                half(d, scales(0));
                half(min, scales(0).add(2 * PANEL_ROWS));
            }
            Scheme::KScaleMin => {
                half(d, header);
                half(min, header.add(2 * PANEL_ROWS));
                for g in 0..8 {
                    scales(g).add(row).write(low[g]);
                    scales(g).add(PANEL_ROWS + row).write(mins[g]);
                }
            }
            Scheme::KScale16 { .. } | Scheme::KScaleMin16 => {
                half(d, header);
                let with_mins = matches!(format.scheme(), Scheme::KScaleMin16);
                if with_mins {
                    half(min, header.add(2 * PANEL_ROWS));
                }
                let pair = |values: &[u8; 16], g: usize, to: *mut u8| {
                    to.add(2 * row)
                        .cast::<[u8; 2]>()
                        .write([values[2 * g], values[2 * g + 1]]);
                };
                for g in 0..8 {
                    pair(&low, g, scales(g));
                    if with_mins {
                        pair(&mins, g, scales(g).add(2 * PANEL_ROWS));
                    }
                }
            }
        }
    }
}

/// Where a block of the file has `d` (or its exponent), and `m` or `dmin` (or `d` again).
const fn half_offsets(format: Format) -> (usize, usize) {
    match format {
        Format::Q4_0 | Format::IQ4_NL => (block::q4_0::D, block::q4_0::D),
        Format::MXFP4 => (block::mxfp4::E, block::mxfp4::E),
        Format::Q4_1 => (block::q4_1::D, block::q4_1::M),
        Format::Q5_0 => (block::q5_0::D, block::q5_0::D),
        Format::Q5_1 => (block::q5_1::D, block::q5_1::M),
        Format::Q8_0 => (block::q8_0::D, block::q8_0::D),
        Format::Q2_K => (block::q2_k::D, block::q2_k::DMIN),
        Format::Q3_K => (block::q3_k::D, block::q3_k::D),
        Format::Q4_K => (block::q4_k::D, block::q4_k::DMIN),
        Format::Q5_K => (block::q5_k::D, block::q5_k::DMIN),
        Format::Q6_K => (block::q6_k::D, block::q6_k::D),
    }
}

const _: () = assert!(GROUP == HALF);
