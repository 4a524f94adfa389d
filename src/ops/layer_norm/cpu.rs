//! Layer norm on the CPU.
#![allow(unsafe_code)]

use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, SUM_LANES, Simd, load_part, reduce_sum, simd_kernel, store_part};

/// Norms consecutive parts of `weight.len()` elements of `x`.
pub(super) fn layer_norm(
    level: CpuLevel,
    x: &mut [f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) {
    assert!(x.len().is_multiple_of(weight.len()));
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { parts(level, x, weight, bias, eps) };
}

simd_kernel! {
    unsafe fn parts(x: &mut [f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) = parts_body
}

#[inline(always)]
unsafe fn parts_body<V: Simd>(x: &mut [f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) {
    for part in x.chunks_exact_mut(weight.len()) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            let len = part.len() as f32;
            let mean = V::splat(sum::<V, false>(part) / len);
            for at in (0..part.len()).step_by(LANES) {
                store_part::<V>(part, at, V::sub(load_part::<V>(part, at), mean));
            }
            let scale = V::splat(1.0 / (sum::<V, true>(part) / len + eps).sqrt());
            for at in (0..part.len()).step_by(LANES) {
                let normed = V::mul(load_part::<V>(part, at), scale);
                let mut y = V::mul(normed, load_part::<V>(weight, at));
                if let Some(bias) = bias {
                    y = V::add(y, load_part::<V>(bias, at));
                }
                store_part::<V>(part, at, y);
            }
        }
    }
}

/// `Σ x`, or `Σ x²` when `SQUARES`, over 16 lanes.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
unsafe fn sum<V: Simd, const SQUARES: bool>(x: &[f32]) -> f32 {
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        let (mut low, mut high) = (V::splat(0.0), V::splat(0.0));
        for at in (0..x.len()).step_by(SUM_LANES) {
            let (a, b) = (load_part::<V>(x, at), load_part::<V>(x, at + LANES));
            if SQUARES {
                low = V::fma(a, a, low);
                high = V::fma(b, b, high);
            } else {
                low = V::add(low, a);
                high = V::add(high, b);
            }
        }
        reduce_sum::<V>(low, high)
    }
}
