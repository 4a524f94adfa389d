//! The scalar decoders: one block at a time, as the layout notes read. Never fast, never removed.
//!
//! Products and sums are rounded one by one (no fused multiply-add), in ggml's order, so that the bits agree.

use half::{bf16, f16};

use crate::quant::Encoding;
use crate::quant::layout::{
    IQ4_NL_VALUES, MXFP4_DOUBLED, iq4_nl, k_scale_min, mxfp4, mxfp4_scale, q2_k, q3_k, q3_k_scales,
    q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0,
};

/// Decodes `bytes` into `out`. The caller has checked that the lengths match and the encoding is decodable.
pub(super) fn row(encoding: Encoding, bytes: &[u8], out: &mut [f32]) {
    let block: fn(&[u8], &mut [f32]) = match encoding {
        Encoding::F32 => |b, y| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        Encoding::F16 => |b, y| y[0] = half_at(b, 0),
        Encoding::BF16 => |b, y| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        Encoding::Q4_0 => block_q4_0,
        Encoding::Q4_1 => block_q4_1,
        Encoding::Q5_0 => block_q5_0,
        Encoding::Q5_1 => block_q5_1,
        Encoding::Q8_0 => block_q8_0,
        Encoding::Q2K => block_q2_k,
        Encoding::Q3K => block_q3_k,
        Encoding::Q4K => block_q4_k,
        Encoding::Q5K => block_q5_k,
        Encoding::Q6K => block_q6_k,
        Encoding::IQ4NL => block_iq4_nl,
        Encoding::MXFP4 => block_mxfp4,
        other => unreachable!("`{other}` was refused before"),
    };
    for (b, y) in bytes
        .chunks_exact(encoding.block_bytes())
        .zip(out.chunks_exact_mut(encoding.block_len()))
    {
        block(b, y);
    }
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn block_q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, q4_0::D);
    let qs = &block[q4_0::QS..];
    for i in 0..16 {
        out[i] = (f32::from(qs[i] & 15) - 8.0) * d;
        out[i + 16] = (f32::from(qs[i] >> 4) - 8.0) * d;
    }
}

fn block_q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, q4_1::D), half_at(block, q4_1::M));
    let qs = &block[q4_1::QS..];
    for i in 0..16 {
        out[i] = f32::from(qs[i] & 15) * d + m;
        out[i + 16] = f32::from(qs[i] >> 4) * d + m;
    }
}

/// Element `i` (0 to 31) of 5-bit codes split into nibbles `qs` and fifth bits `qh`.
fn five_bits(qs: &[u8], qh: &[u8], i: usize) -> u8 {
    let low = (qs[i % 16] >> (4 * (i / 16))) & 15;
    let high = (qh[i / 8] >> (i % 8)) & 1;
    low | high << 4
}

fn block_q5_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, q5_0::D);
    let (qs, qh) = (&block[q5_0::QS..], &block[q5_0::QH..]);
    for (i, y) in out.iter_mut().enumerate() {
        *y = (f32::from(five_bits(qs, qh, i)) - 16.0) * d;
    }
}

fn block_q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, q5_1::D), half_at(block, q5_1::M));
    let (qs, qh) = (&block[q5_1::QS..], &block[q5_1::QH..]);
    for (i, y) in out.iter_mut().enumerate() {
        *y = f32::from(five_bits(qs, qh, i)) * d + m;
    }
}

fn block_q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, q8_0::D);
    for (y, &q) in out.iter_mut().zip(&block[q8_0::QS..]) {
        *y = f32::from(q.cast_signed()) * d;
    }
}

fn block_iq4_nl(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, iq4_nl::D);
    let qs = &block[iq4_nl::QS..];
    for i in 0..16 {
        out[i] = d * f32::from(IQ4_NL_VALUES[usize::from(qs[i] & 15)]);
        out[i + 16] = d * f32::from(IQ4_NL_VALUES[usize::from(qs[i] >> 4)]);
    }
}

fn block_mxfp4(block: &[u8], out: &mut [f32]) {
    let d = mxfp4_scale(block[mxfp4::E]);
    let qs = &block[mxfp4::QS..];
    for i in 0..16 {
        out[i] = d * f32::from(MXFP4_DOUBLED[usize::from(qs[i] & 15)]);
        out[i + 16] = d * f32::from(MXFP4_DOUBLED[usize::from(qs[i] >> 4)]);
    }
}

/// The 2-bit code of element `i` (0 to 255) in the order of Q2_K, Q3_K and the upper bits of Q6_K.
fn two_bits(qs: &[u8], i: usize) -> u8 {
    let (half, shift, byte) = (i / 128, 2 * (i % 128 / 32), i % 32);
    (qs[32 * half + byte] >> shift) & 3
}

fn block_q2_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, q2_k::D), half_at(block, q2_k::DMIN));
    let (qs, scales) = (&block[q2_k::QS..], &block[q2_k::SCALES..]);
    for (i, y) in out.iter_mut().enumerate() {
        let packed = scales[i / 16];
        let (scale, min) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
        *y = scale * f32::from(two_bits(qs, i)) - min;
    }
}

fn block_q3_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, q3_k::D);
    let (qs, hmask) = (&block[q3_k::QS..], &block[q3_k::HMASK..]);
    let scales = q3_k_scales(&packed_scales(block, q3_k::SCALES));
    for (i, y) in out.iter_mut().enumerate() {
        let high = (hmask[i % 32] >> (i / 32)) & 1;
        let q = f32::from(two_bits(qs, i) | high << 2) - 4.0;
        *y = (d * f32::from(scales[i / 16])) * q;
    }
}

fn packed_scales(block: &[u8], at: usize) -> [u8; 12] {
    std::array::from_fn(|i| block[at + i])
}

/// The nibble of element `i` (0 to 255) in the order of Q4_K and Q5_K.
fn k_nibble(qs: &[u8], i: usize) -> u8 {
    (qs[32 * (i / 64) + i % 32] >> (4 * (i % 64 / 32))) & 15
}

fn block_q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, q4_k::D), half_at(block, q4_k::DMIN));
    let (qs, scales) = (&block[q4_k::QS..], packed_scales(block, q4_k::SCALES));
    for (i, y) in out.iter_mut().enumerate() {
        let (scale, min) = k_scale_min(i / 32, &scales);
        *y = (d * f32::from(scale)) * f32::from(k_nibble(qs, i)) - dmin * f32::from(min);
    }
}

fn block_q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, q5_k::D), half_at(block, q5_k::DMIN));
    let (qs, qh, scales) = (
        &block[q5_k::QS..],
        &block[q5_k::QH..],
        packed_scales(block, q5_k::SCALES),
    );
    for (i, y) in out.iter_mut().enumerate() {
        let (scale, min) = k_scale_min(i / 32, &scales);
        let high = (qh[i % 32] >> (i / 32)) & 1;
        let q = f32::from(k_nibble(qs, i) | high << 4);
        *y = (d * f32::from(scale)) * q - dmin * f32::from(min);
    }
}

fn block_q6_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, q6_k::D);
    let (ql, qh, scales) = (
        &block[q6_k::QL..],
        &block[q6_k::QH..],
        &block[q6_k::SCALES..],
    );
    for (i, y) in out.iter_mut().enumerate() {
        let k = i % 128 / 32;
        let low = (ql[64 * (i / 128) + 32 * (k % 2) + i % 32] >> (4 * (k / 2))) & 15;
        let q = f32::from(low | two_bits(qh, i) << 4) - 32.0;
        *y = (d * f32::from(scales[i / 16].cast_signed())) * q;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks_exact(2);
        digits
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
            .collect()
    }

    #[test]
    fn decoders_give_the_bits_of_the_gguf_package() {
        let mut covered = std::collections::BTreeSet::new();
        for line in include_str!("vectors.txt").lines() {
            let [name, bytes, floats] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("bad line `{line}`")
            };
            let encoding = Encoding::ALL
                .into_iter()
                .find(|encoding| encoding.name() == name)
                .unwrap();
            let expected: Vec<u32> = from_hex(floats)
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
                .collect();
            let mut out = vec![f32::NAN; expected.len()];
            encoding.decode_row(&from_hex(bytes), &mut out).unwrap();
            let found: Vec<u32> = out.iter().map(|value| value.to_bits()).collect();
            assert_eq!(found, expected, "{name}");
            covered.insert(name);
        }
        let decodable = Encoding::ALL
            .into_iter()
            .filter(|encoding| encoding.is_decodable())
            .count();
        assert_eq!(covered.len(), decodable, "every decodable type has vectors");
    }
}
