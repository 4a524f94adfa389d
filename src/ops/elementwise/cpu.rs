//! Element-wise kernels on the CPU.
#![allow(unsafe_code)]

use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, load_part, math, simd_kernel, store_part};

/// `x += y`, same lengths.
pub(super) fn add_assign(level: CpuLevel, x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { add(level, x, y) };
}

/// `x = cap * tanh(x / cap)`.
pub(super) fn soft_cap(level: CpuLevel, x: &mut [f32], cap: f32) {
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { cap_all(level, x, cap) };
}

/// `x *= sigmoid(gate)`, same lengths.
pub(super) fn sigmoid_mul(level: CpuLevel, x: &mut [f32], gate: &[f32]) {
    assert_eq!(x.len(), gate.len());
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { gate_all(level, x, gate) };
}

simd_kernel! { unsafe fn gate_all(x: &mut [f32], gate: &[f32]) = gate_body }
simd_kernel! { unsafe fn add(x: &mut [f32], y: &[f32]) = add_body }
simd_kernel! { unsafe fn cap_all(x: &mut [f32], cap: f32) = cap_body }

#[inline(always)]
unsafe fn add_body<V: Simd>(x: &mut [f32], y: &[f32]) {
    for at in (0..x.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe { store_part::<V>(x, at, V::add(load_part::<V>(x, at), load_part::<V>(y, at))) };
    }
}

#[inline(always)]
unsafe fn cap_body<V: Simd>(x: &mut [f32], cap: f32) {
    for at in (0..x.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            let inner = V::div(load_part::<V>(x, at), V::splat(cap));
            store_part::<V>(x, at, V::mul(math::tanh::<V>(inner), V::splat(cap)));
        }
    }
}

#[inline(always)]
unsafe fn gate_body<V: Simd>(x: &mut [f32], gate: &[f32]) {
    for at in (0..x.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            let sigmoid = math::sigmoid::<V>(load_part::<V>(gate, at));
            store_part::<V>(x, at, V::mul(load_part::<V>(x, at), sigmoid));
        }
    }
}
