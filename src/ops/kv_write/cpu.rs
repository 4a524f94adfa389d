//! Writing pages on the CPU.
#![allow(unsafe_code)]

use super::{BLOCK_TOKENS, KvElement};
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, load_part, simd_kernel};

/// Writes `key` into column `place` of a head's block `[key_dim, 16]`.
pub(super) fn write_key(
    level: CpuLevel,
    element: KvElement,
    key: &[f32],
    place: usize,
    block: &mut [u16],
) {
    let words = element.words();
    assert!(block.len() == key.len() * BLOCK_TOKENS * words && place < BLOCK_TOKENS);
    match element {
        // SAFETY: the body needs the instruction set only, which the level stands for.
        KvElement::F16 => unsafe { key_kernel(level, key, place, block) },
        KvElement::F32 => {
            let rows = block.as_chunks_mut::<{ 2 * BLOCK_TOKENS }>().0;
            for (row, &x) in rows.iter_mut().zip(key) {
                row.as_chunks_mut::<2>().0[place] = words_of(x);
            }
        }
    }
}

/// Writes `value` to the front of `row`, and zeros behind it.
pub(super) fn write_value(level: CpuLevel, element: KvElement, value: &[f32], row: &mut [u16]) {
    assert!(row.len() == value.len().next_multiple_of(LANES) * element.words());
    match element {
        // SAFETY: the row holds whole vectors by the assertion.
        KvElement::F16 => unsafe { value_kernel(level, value, row) },
        KvElement::F32 => {
            let (own, padding) = row.split_at_mut(2 * value.len());
            for (words, &x) in own.as_chunks_mut::<2>().0.iter_mut().zip(value) {
                *words = words_of(x);
            }
            padding.fill(0);
        }
    }
}

/// A float as two words, saturating as half precision does: what is finite here stays so when it is multiplied with 0.
fn words_of(x: f32) -> [u16; 2] {
    let finite = if x.is_infinite() {
        f32::MAX.copysign(x)
    } else {
        x
    };
    let [a, b, c, d] = finite.to_ne_bytes();
    [u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d])]
}

simd_kernel! { unsafe fn key_kernel(key: &[f32], place: usize, block: &mut [u16]) = key_body }
simd_kernel! { unsafe fn value_kernel(value: &[f32], row: &mut [u16]) = value_body }

#[inline(always)]
unsafe fn key_body<V: Simd>(key: &[f32], place: usize, block: &mut [u16]) {
    for at in (0..key.len()).step_by(LANES) {
        let mut halves = [0_u16; LANES];
        // SAFETY: the array holds one vector; the instruction set is the caller's duty.
        unsafe { V::store_f16(halves.as_mut_ptr(), load_part::<V>(key, at)) };
        for (row, half) in block[at * BLOCK_TOKENS..]
            .chunks_exact_mut(BLOCK_TOKENS)
            .zip(halves)
        {
            row[place] = half;
        }
    }
}

#[inline(always)]
unsafe fn value_body<V: Simd>(value: &[f32], row: &mut [u16]) {
    for (i, out) in row.chunks_exact_mut(LANES).enumerate() {
        // SAFETY: chunks are whole vectors; the instruction set is the caller's duty.
        unsafe { V::store_f16(out.as_mut_ptr(), load_part::<V>(value, i * LANES)) };
    }
}
