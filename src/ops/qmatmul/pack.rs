//! From a file's rows to a panel of the interleaved layout.
//!
//! Plain byte loops, compiled once per instruction set: fixed trip counts over small arrays are what a compiler
//! turns into vector code.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a place in several arrays at once"
)]

use super::GROUP;
use super::layout::{Codes, Format, PANEL_ROWS, Scheme};
use crate::ops::cpu_level::CpuLevel;
use crate::ops::matmul::RawMatrix;
use crate::ops::simd::{Simd, simd_kernel};
use crate::quant::layout::{self as block, k_scale_min, q3_k_scales};

/// Codes and scales of one block of one row.
struct Unpacked {
    /// Unsigned codes (signed bytes for Q8_0), one per element.
    codes: [u8; 256],
    /// `d`, or zero.
    d: [u8; 2],
    /// `m` or `dmin`, or zero.
    min: [u8; 2],
    /// Scales per 16 or 32 elements, as the scheme wants.
    scales: [u8; 16],
    /// Mins per 16 or 32 elements.
    mins: [u8; 16],
}

/// Packs rows `first..first + 8` of `raw` (rows past its end are zero) into `out`.
pub(super) fn pack_panel(
    level: CpuLevel,
    format: Format,
    raw: &RawMatrix,
    first: usize,
    out: &mut [u8],
) {
    // SAFETY: the level was detected on this CPU; the body is safe code.
    unsafe { kernel(level, format, raw, first, out) }
}

simd_kernel! {
    /// Packs a panel.
    unsafe fn kernel(format: Format, raw: &RawMatrix, first: usize, out: &mut [u8]) = kernel_body
}

#[inline(always)]
#[allow(
    clippy::extra_unused_type_parameters,
    reason = "the compiler finds the instructions itself"
)]
unsafe fn kernel_body<V: Simd>(format: Format, raw: &RawMatrix, first: usize, out: &mut [u8]) {
    let file_block = raw.encoding().block_bytes();
    let mut unpacked: [Unpacked; PANEL_ROWS] = std::array::from_fn(|_| Unpacked {
        codes: [0; 256],
        d: [0; 2],
        min: [0; 2],
        scales: [0; 16],
        mins: [0; 16],
    });
    let mut rows: [&[u8]; PANEL_ROWS] = [&[]; PANEL_ROWS];
    let count = raw.rows().min(first + PANEL_ROWS) - first;
    for (i, row) in rows[..count].iter_mut().enumerate() {
        *row = raw.row(first + i);
    }
    for (index, out) in out.chunks_exact_mut(format.block_bytes()).enumerate() {
        for (unpacked, row) in unpacked.iter_mut().zip(&rows[..count]) {
            let block = &row[index * file_block..(index + 1) * file_block];
            unpack(format, block, unpacked);
        }
        write_block(format, &unpacked, out);
    }
}

#[inline(always)]
fn write_block(format: Format, rows: &[Unpacked; PANEL_ROWS], out: &mut [u8]) {
    let (header, records) = out.split_at_mut(format.header_bytes());
    for (kind, header) in header.chunks_exact_mut(16).enumerate() {
        write_halves(rows, kind, header);
    }
    let (code_bytes, scale_bytes) = (format.code_bytes(), format.scale_bytes());
    for (g, record) in records
        .chunks_exact_mut(code_bytes + scale_bytes)
        .enumerate()
    {
        let (codes, scales) = record.split_at_mut(code_bytes);
        write_codes(format.codes(), &chunks(rows, g), codes);
        match format.scheme() {
            Scheme::Scale { .. } => write_halves(rows, 0, scales),
            Scheme::ScaleMin => {
                write_halves(rows, 0, &mut scales[..16]);
                write_halves(rows, 1, &mut scales[16..]);
            }
            Scheme::KScaleMin => {
                for (i, row) in rows.iter().enumerate() {
                    scales[i] = row.scales[g];
                    scales[8 + i] = row.mins[g];
                }
            }
            Scheme::KScale16 { .. } => write_pairs(rows.each_ref().map(|r| &r.scales), g, scales),
            Scheme::KScaleMin16 => {
                write_pairs(rows.each_ref().map(|r| &r.scales), g, &mut scales[..16]);
                write_pairs(rows.each_ref().map(|r| &r.mins), g, &mut scales[16..]);
            }
        }
    }
}

/// `d` (kind 0) or `m`/`dmin` (kind 1) of the eight rows.
#[inline(always)]
fn write_halves(rows: &[Unpacked; PANEL_ROWS], kind: usize, out: &mut [u8]) {
    for (row, out) in rows.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = if kind == 0 { row.d } else { row.min };
    }
}

/// Entries `2g` and `2g + 1` of the eight rows.
#[inline(always)]
fn write_pairs(rows: [&[u8; 16]; PANEL_ROWS], g: usize, out: &mut [u8]) {
    for (row, out) in rows.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = [row[2 * g], row[2 * g + 1]];
    }
}

/// The eight chunks of record `g`.
#[inline(always)]
fn chunks(rows: &[Unpacked; PANEL_ROWS], g: usize) -> [[u8; 32]; 8] {
    let mut chunks = [[0; 32]; 8];
    for (i, row) in rows.iter().enumerate() {
        let codes: &[u8; GROUP] = row.codes[g * GROUP..(g + 1) * GROUP]
            .try_into()
            .expect("32 codes");
        for (chunk, four) in chunks.iter_mut().zip(codes.as_chunks::<4>().0) {
            chunk[4 * i..4 * i + 4].copy_from_slice(four);
        }
    }
    chunks
}

#[inline(always)]
fn write_codes(kind: Codes, chunks: &[[u8; 32]; 8], out: &mut [u8]) {
    match kind {
        Codes::Nibbles | Codes::Table => write_nibbles(chunks, out),
        Codes::NibblesBits => {
            write_nibbles(chunks, &mut out[..128]);
            write_bits(chunks, 4, &mut out[128..]);
        }
        Codes::NibblesPairs => {
            write_nibbles(chunks, &mut out[..128]);
            write_code_pairs(chunks, 4, &mut out[128..]);
        }
        Codes::PairsBits => {
            write_code_pairs(chunks, 0, &mut out[..64]);
            write_bits(chunks, 2, &mut out[64..]);
        }
        Codes::Pairs => write_code_pairs(chunks, 0, out),
        Codes::Bytes => {
            for (chunk, out) in chunks.iter().zip(out.chunks_exact_mut(32)) {
                out.copy_from_slice(chunk);
            }
        }
    }
}

#[inline(always)]
fn write_nibbles(chunks: &[[u8; 32]; 8], out: &mut [u8]) {
    let planes: &mut [[u8; 32]] = out.as_chunks_mut().0;
    for (i, plane) in planes.iter_mut().enumerate() {
        for l in 0..32 {
            plane[l] = (chunks[i][l] & 15) | (chunks[i + 4][l] << 4);
        }
    }
}

#[inline(always)]
fn write_code_pairs(chunks: &[[u8; 32]; 8], shift: u32, out: &mut [u8]) {
    let planes: &mut [[u8; 32]] = out.as_chunks_mut().0;
    for (j, plane) in planes.iter_mut().enumerate() {
        *plane = [0; 32];
        for t in 0..4 {
            for l in 0..32 {
                plane[l] |= ((chunks[j + 2 * t][l] >> shift) & 3) << (2 * t);
            }
        }
    }
}

#[inline(always)]
fn write_bits(chunks: &[[u8; 32]; 8], shift: u32, out: &mut [u8]) {
    let mut plane = [0_u8; 32];
    for (t, chunk) in chunks.iter().enumerate() {
        for l in 0..32 {
            plane[l] |= ((chunk[l] >> shift) & 1) << t;
        }
    }
    out.copy_from_slice(&plane);
}

#[inline(always)]
fn unpack(format: Format, b: &[u8], out: &mut Unpacked) {
    let half = |at: usize| [b[at], b[at + 1]];
    match format {
        Format::Q4_0 | Format::IQ4_NL => {
            out.d = half(block::q4_0::D);
            split_nibbles(&b[block::q4_0::QS..], &mut out.codes);
        }
        Format::Q4_1 => {
            (out.d, out.min) = (half(block::q4_1::D), half(block::q4_1::M));
            split_nibbles(&b[block::q4_1::QS..], &mut out.codes);
        }
        Format::Q5_0 => {
            out.d = half(block::q5_0::D);
            split_nibbles(&b[block::q5_0::QS..], &mut out.codes);
            add_fifth_bits(&b[block::q5_0::QH..], &mut out.codes);
        }
        Format::Q5_1 => {
            (out.d, out.min) = (half(block::q5_1::D), half(block::q5_1::M));
            split_nibbles(&b[block::q5_1::QS..], &mut out.codes);
            add_fifth_bits(&b[block::q5_1::QH..], &mut out.codes);
        }
        Format::Q8_0 => {
            out.d = half(block::q8_0::D);
            out.codes[..32].copy_from_slice(&b[block::q8_0::QS..][..32]);
        }
        Format::Q4_K => {
            (out.d, out.min) = (half(block::q4_k::D), half(block::q4_k::DMIN));
            k_scales(&b[block::q4_k::SCALES..], out);
            k_nibbles(&b[block::q4_k::QS..], &mut out.codes);
        }
        Format::Q5_K => {
            (out.d, out.min) = (half(block::q5_k::D), half(block::q5_k::DMIN));
            k_scales(&b[block::q5_k::SCALES..], out);
            k_nibbles(&b[block::q5_k::QS..], &mut out.codes);
            let high: &[u8; 32] = b[block::q5_k::QH..][..32].try_into().expect("32 bytes");
            let codes: &mut [[u8; 32]] = out.codes.as_chunks_mut().0;
            for (g, codes) in codes.iter_mut().enumerate() {
                for i in 0..32 {
                    codes[i] |= ((high[i] >> g) & 1) << 4;
                }
            }
        }
        Format::Q6_K => unpack_q6_k(b, out),
        Format::Q3_K => {
            out.d = half(block::q3_k::D);
            let packed = b[block::q3_k::SCALES..][..12].try_into().expect("12 bytes");
            out.scales = q3_k_scales(packed).map(i8::cast_unsigned);
            split_pairs(&b[block::q3_k::QS..], &mut out.codes);
            let high: &[u8; 32] = b[block::q3_k::HMASK..][..32].try_into().expect("32 bytes");
            let codes: &mut [[u8; 32]] = out.codes.as_chunks_mut().0;
            for (g, codes) in codes.iter_mut().enumerate() {
                for i in 0..32 {
                    codes[i] |= ((high[i] >> g) & 1) << 2;
                }
            }
        }
        Format::Q2_K => {
            (out.d, out.min) = (half(block::q2_k::D), half(block::q2_k::DMIN));
            for (g, byte) in b[block::q2_k::SCALES..][..16].iter().enumerate() {
                (out.scales[g], out.mins[g]) = (byte & 15, byte >> 4);
            }
            split_pairs(&b[block::q2_k::QS..], &mut out.codes);
        }
    }
}

/// 16 bytes of nibbles: element i low in byte i, element i + 16 high.
#[inline(always)]
fn split_nibbles(qs: &[u8], codes: &mut [u8; 256]) {
    let qs: &[u8; 16] = qs[..16].try_into().expect("16 bytes");
    for i in 0..16 {
        codes[i] = qs[i] & 15;
        codes[i + 16] = qs[i] >> 4;
    }
}

#[inline(always)]
fn add_fifth_bits(qh: &[u8], codes: &mut [u8; 256]) {
    let bits = u32::from_le_bytes([qh[0], qh[1], qh[2], qh[3]]);
    for (i, code) in codes[..32].iter_mut().enumerate() {
        *code |= (((bits >> i) & 1) << 4) as u8;
    }
}

#[inline(always)]
fn k_scales(packed: &[u8], out: &mut Unpacked) {
    let packed: &[u8; 12] = packed[..12].try_into().expect("12 bytes");
    for g in 0..8 {
        (out.scales[g], out.mins[g]) = k_scale_min(g, packed);
    }
}

/// 128 bytes: of each 64 elements the first 32 are low nibbles, the others high.
#[inline(always)]
fn k_nibbles(qs: &[u8], codes: &mut [u8; 256]) {
    let qs: &[[u8; 32]] = qs[..128].as_chunks().0;
    let codes: &mut [[u8; 64]] = codes.as_chunks_mut().0;
    for (qs, codes) in qs.iter().zip(codes) {
        for i in 0..32 {
            codes[i] = qs[i] & 15;
            codes[i + 32] = qs[i] >> 4;
        }
    }
}

/// 64 bytes of bit pairs: element `128 h + 32 k + i` is bits `2k` of byte `32 h + i`.
#[inline(always)]
fn split_pairs(qs: &[u8], codes: &mut [u8; 256]) {
    let qs: &[[u8; 32]] = qs[..64].as_chunks().0;
    let codes: &mut [[u8; 32]] = codes.as_chunks_mut().0;
    for (h, qs) in qs.iter().enumerate() {
        for k in 0..4 {
            for i in 0..32 {
                codes[4 * h + k][i] = (qs[i] >> (2 * k)) & 3;
            }
        }
    }
}

#[inline(always)]
fn unpack_q6_k(b: &[u8], out: &mut Unpacked) {
    out.d = [b[block::q6_k::D], b[block::q6_k::D + 1]];
    out.scales.copy_from_slice(&b[block::q6_k::SCALES..][..16]);
    split_pairs(&b[block::q6_k::QH..], &mut out.codes);
    let low: &[[u8; 32]] = b[block::q6_k::QL..][..128].as_chunks().0;
    let codes: &mut [[u8; 32]] = out.codes.as_chunks_mut().0;
    for h in 0..2 {
        for k in 0..4 {
            for i in 0..32 {
                let nibble = (low[2 * h + k % 2][i] >> (4 * (k / 2))) & 15;
                let code = &mut codes[4 * h + k][i];
                *code = nibble | (*code << 4);
            }
        }
    }
}
