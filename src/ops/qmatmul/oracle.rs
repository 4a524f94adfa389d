//! The arithmetic of every format, written down plainly: what the kernels must equal, bit for bit.

use half::f16;

use super::GROUP;
use super::activations::{Rounded, RoundedRow, round_row};
use crate::ops::CpuLevel;
use crate::ops::matmul::RawMatrix;
use crate::quant::Encoding;
use crate::quant::layout::{self as block, IQ4_NL_VALUES, MXFP4_DOUBLED, k_scale_min, q3_k_scales};

/// `x Wᵀ` for `m` rows: `[m, raw.rows()]`.
pub(super) fn qmatmul(x: &[f32], m: usize, raw: &RawMatrix) -> Vec<f32> {
    let mut y = Vec::new();
    for row in x.chunks_exact(x.len() / m) {
        let rounded = round_row(CpuLevel::Scalar, row);
        y.extend((0..raw.rows()).map(|n| chain(raw.encoding(), raw.row(n), &rounded)));
    }
    y
}

/// One output: a chain of fused multiply-adds over ascending groups, and one over ascending refinements, added up. The groups of a block of
/// Q6_K and Q3_K are a chain of their own, which the block's scale multiplies; each refinement is a block by itself.
fn chain(encoding: Encoding, row: &[u8], rounded: &RoundedRow) -> f32 {
    let groups: Vec<(usize, &Rounded)> = rounded.groups.iter().enumerate().collect();
    let blocks = groups.chunks(encoding.block_len() / GROUP);
    let y = blocks.fold(0.0, |y, block| add_block(encoding, row, block, y));
    let refinements = rounded.refinements.iter().map(|(g, group)| (*g, group));
    y + refinements.fold(0.0, |y, one| add_block(encoding, row, &[one], y))
}

/// `y` and groups of one block.
fn add_block(encoding: Encoding, row: &[u8], groups: &[(usize, &Rounded)], mut y: f32) -> f32 {
    let per_block = encoding.block_len() / GROUP;
    let mut inner = 0.0_f32;
    let b = &row[groups[0].0 / per_block * encoding.block_bytes()..][..encoding.block_bytes()];
    let half = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
    for (index, x) in groups {
        let g = index % per_block;
        let q: [i32; GROUP] = std::array::from_fn(|i| code(encoding, b, g * GROUP + i));
        let dot = |from: usize| {
            (from..from + 16)
                .map(|i| q[i] * i32::from(x.values[i]))
                .sum::<i32>()
        };
        let (dots, sums) = ([dot(0), dot(16)], x.halves());
        let (d, sum) = (dots[0] + dots[1], sums[0] + sums[1]);
        let mut add = |scale: f32, integer: i32| y = (scale * x.scale).mul_add(integer as f32, y);
        match encoding {
            Encoding::Q4_0 | Encoding::Q5_0 | Encoding::Q8_0 | Encoding::IQ4NL => add(half(0), d),
            // A scale of 2^-128 counts as zero.
            Encoding::MXFP4 if b[0] == 0 => add(0.0, d),
            Encoding::MXFP4 => add(block::mxfp4_scale(b[0]), d),
            Encoding::Q4_1 | Encoding::Q5_1 => {
                add(half(0), d);
                y = half(2).mul_add(x.scale * sum as f32, y);
            }
            Encoding::Q4K | Encoding::Q5K => {
                let (scale, min) = k_scale_min(g, b[4..16].try_into().unwrap());
                add(half(0) * f32::from(scale), d);
                y = (-half(2) * f32::from(min)).mul_add(x.scale * sum as f32, y);
            }
            Encoding::Q6K | Encoding::Q3K => {
                let s: Vec<i32> = match encoding {
                    Encoding::Q6K => b[192..208].iter().map(|&s| i32::from(s as i8)).collect(),
                    _ => q3_k_scales(b[96..108].try_into().unwrap())
                        .map(i32::from)
                        .to_vec(),
                };
                let integer = s[2 * g] * dots[0] + s[2 * g + 1] * dots[1];
                inner = x.scale.mul_add(integer as f32, inner);
            }
            Encoding::Q2K => {
                let (low, high) = (b[2 * g], b[2 * g + 1]);
                let mix = |a: u8, b: u8, v: [i32; 2]| i32::from(a) * v[0] + i32::from(b) * v[1];
                let min = -half(82) * mix(low >> 4, high >> 4, sums) as f32;
                let both = half(80).mul_add(mix(low & 15, high & 15, dots) as f32, min);
                y = x.scale.mul_add(both, y);
            }
            other => panic!("{other:?}"),
        }
    }
    match encoding {
        Encoding::Q6K => half(block::q6_k::D).mul_add(inner, y),
        Encoding::Q3K => half(block::q3_k::D).mul_add(inner, y),
        _ => y,
    }
}

/// Element `e` of a block as the integer that its scale multiplies (recentred where the format is).
fn code(encoding: Encoding, b: &[u8], e: usize) -> i32 {
    let nibble = |qs: usize| i32::from((b[qs + e % 16] >> (4 * (e / 16))) & 15);
    let fifth = |qh: usize| i32::from((b[qh + e / 8] >> (e % 8)) & 1) << 4;
    let k_nibble = |qs: usize| i32::from((b[qs + e / 64 * 32 + e % 32] >> (4 * (e / 32 % 2))) & 15);
    let pair = |qs: usize| i32::from((b[qs + e / 128 * 32 + e % 32] >> (2 * (e / 32 % 4))) & 3);
    match encoding {
        Encoding::Q4_0 => nibble(2) - 8,
        Encoding::Q4_1 => nibble(4),
        Encoding::Q5_0 => (nibble(6) | fifth(2)) - 16,
        Encoding::Q5_1 => nibble(8) | fifth(4),
        Encoding::Q8_0 => i32::from(b[2 + e] as i8),
        Encoding::IQ4NL => i32::from(IQ4_NL_VALUES[nibble(2) as usize]),
        Encoding::MXFP4 => i32::from(MXFP4_DOUBLED[nibble(1) as usize]),
        Encoding::Q4K => k_nibble(16),
        Encoding::Q5K => k_nibble(48) | i32::from((b[16 + e % 32] >> (e / 32)) & 1) << 4,
        Encoding::Q6K => {
            let low = (b[e / 128 * 64 + e % 64] >> (4 * (e / 64 % 2))) & 15;
            (i32::from(low) | pair(128) << 4) - 32
        }
        Encoding::Q3K => (pair(32) | i32::from((b[e % 32] >> (e / 32)) & 1) << 2) - 4,
        Encoding::Q2K => pair(16),
        other => panic!("{other:?}"),
    }
}
