//! The convolution on the CPU: one row at a time, channels side by side.
#![allow(unsafe_code)]

use super::ShortConv;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, load_part, math, simd_kernel, store_part};

/// One row of results from its inputs, oldest first; an empty one stands for zeros.
pub(super) fn row(level: CpuLevel, inputs: &[&[f32]], conv: &ShortConv, out: &mut [f32]) {
    assert!(inputs.len() == conv.kernel() && out.len() == conv.channels);
    assert!(inputs.iter().all(|x| x.is_empty() || x.len() == out.len()));
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { kernel(level, inputs, conv, out) };
}

simd_kernel! { unsafe fn kernel(inputs: &[&[f32]], conv: &ShortConv, out: &mut [f32]) = body }

#[inline(always)]
unsafe fn body<V: Simd>(inputs: &[&[f32]], conv: &ShortConv, out: &mut [f32]) {
    for at in (0..out.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            let mut sum = match &conv.bias {
                Some(bias) => load_part::<V>(bias, at),
                None => V::splat(0.0),
            };
            for (x, tap) in inputs.iter().zip(conv.taps.chunks_exact(conv.channels)) {
                // Past the end of an empty input there are zeros.
                sum = V::fma(load_part::<V>(x, at), load_part::<V>(tap, at), sum);
            }
            if conv.silu {
                sum = math::silu::<V>(sum);
            }
            store_part::<V>(out, at, sum);
        }
    }
}
