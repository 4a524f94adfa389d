//! RMS norm on the CPU.
#![allow(unsafe_code)]

use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, SUM_LANES, Simd, load_part, reduce_sum, simd_kernel, store_part};

/// Norms consecutive parts of `weight.len()` elements of `x` into `y` of the same length.
pub(super) fn rms_norm(level: CpuLevel, x: &[f32], weight: &[f32], eps: f32, y: &mut [f32]) {
    assert!(x.len() == y.len() && x.len().is_multiple_of(weight.len()));
    y.copy_from_slice(x);
    rms_norm_in_place(level, y, weight, eps);
}

/// Norms consecutive parts of `weight.len()` elements of `x`.
pub(super) fn rms_norm_in_place(level: CpuLevel, x: &mut [f32], weight: &[f32], eps: f32) {
    assert!(x.len().is_multiple_of(weight.len()));
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { parts(level, x, weight, eps) };
}

simd_kernel! {
    unsafe fn parts(x: &mut [f32], weight: &[f32], eps: f32) = parts_body
}

#[inline(always)]
unsafe fn parts_body<V: Simd>(x: &mut [f32], weight: &[f32], eps: f32) {
    for part in x.chunks_exact_mut(weight.len()) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            let scale =
                V::splat(1.0 / (sum_of_squares::<V>(part) / part.len() as f32 + eps).sqrt());
            for at in (0..part.len()).step_by(LANES) {
                let normed = V::mul(load_part::<V>(part, at), scale);
                store_part::<V>(part, at, V::mul(normed, load_part::<V>(weight, at)));
            }
        }
    }
}

/// `Σ x²` over 16 lanes.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
unsafe fn sum_of_squares<V: Simd>(x: &[f32]) -> f32 {
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        let (mut low, mut high) = (V::splat(0.0), V::splat(0.0));
        for at in (0..x.len()).step_by(SUM_LANES) {
            let (a, b) = (load_part::<V>(x, at), load_part::<V>(x, at + LANES));
            low = V::fma(a, a, low);
            high = V::fma(b, b, high);
        }
        reduce_sum::<V>(low, high)
    }
}
