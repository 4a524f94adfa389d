//! Writing pages on the CPU.
#![allow(unsafe_code)]

use super::BLOCK_TOKENS;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, load_part, simd_kernel};

/// Writes `key` into column `place` of a head's block `[key_dim, 16]`.
pub(super) fn write_key(level: CpuLevel, key: &[f32], place: usize, block: &mut [u16]) {
    assert!(block.len() == key.len() * BLOCK_TOKENS && place < BLOCK_TOKENS);
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { key_kernel(level, key, place, block) };
}

/// Writes `value` to the front of `row`, and zeros behind it.
pub(super) fn write_value(level: CpuLevel, value: &[f32], row: &mut [u16]) {
    assert!(row.len() == value.len().next_multiple_of(LANES));
    // SAFETY: the row holds whole vectors by the assertion.
    unsafe { value_kernel(level, value, row) };
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
