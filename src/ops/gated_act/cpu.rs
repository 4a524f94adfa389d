//! Gated activations on the CPU.
#![allow(unsafe_code)]

use super::Activation;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, load_part, math, simd_kernel, store_part};

/// `gate = act(gate) * up`, same lengths.
pub(super) fn gated_act(level: CpuLevel, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len());
    // SAFETY: the bodies need the instruction set only, which the level stands for.
    unsafe {
        match activation {
            Activation::Silu => silu(level, gate, up),
            Activation::GeluTanh => gelu_tanh(level, gate, up),
            Activation::ClampedSwish { alpha, limit } => {
                clamped_swish(level, gate, up, alpha, limit);
            }
        }
    }
}

simd_kernel! { unsafe fn silu(gate: &mut [f32], up: &[f32]) = silu_body }
simd_kernel! { unsafe fn clamped_swish(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) = clamped_swish_body }
simd_kernel! { unsafe fn gelu_tanh(gate: &mut [f32], up: &[f32]) = gelu_tanh_body }

#[inline(always)]
unsafe fn silu_body<V: Simd>(gate: &mut [f32], up: &[f32]) {
    for at in (0..gate.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            store_part::<V>(
                gate,
                at,
                V::mul(
                    math::silu::<V>(load_part::<V>(gate, at)),
                    load_part::<V>(up, at),
                ),
            )
        };
    }
}

#[inline(always)]
unsafe fn gelu_tanh_body<V: Simd>(gate: &mut [f32], up: &[f32]) {
    for at in (0..gate.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            let act = math::gelu_tanh::<V>(load_part::<V>(gate, at));
            store_part::<V>(gate, at, V::mul(act, load_part::<V>(up, at)));
        }
    }
}

#[inline(always)]
unsafe fn clamped_swish_body<V: Simd>(gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) {
    for at in (0..gate.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            // NaN passes through both limits.
            let x = V::min(V::splat(limit), load_part::<V>(gate, at));
            let up = V::min(V::splat(limit), load_part::<V>(up, at));
            let up = V::max(V::splat(-limit), up);
            let swish = V::mul(x, math::sigmoid::<V>(V::mul(V::splat(alpha), x)));
            store_part::<V>(gate, at, V::mul(swish, V::add(up, V::splat(1.0))));
        }
    }
}
