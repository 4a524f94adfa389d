//! Activation functions on the CPU.
#![allow(unsafe_code)]

use super::Function;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, load_part, math, simd_kernel, store_part};

/// `x = function(x)`.
pub(super) fn activate(level: CpuLevel, function: Function, x: &mut [f32]) {
    // SAFETY: the bodies need the instruction set only, which the level stands for.
    unsafe {
        match function {
            Function::Gelu => gelu(level, x),
            Function::GeluTanh => gelu_tanh(level, x),
            Function::Relu => relu(level, x),
            Function::Silu => silu(level, x),
            Function::Tanh => tanh(level, x),
        }
    }
}

simd_kernel! { unsafe fn gelu(x: &mut [f32]) = gelu_body }
simd_kernel! { unsafe fn gelu_tanh(x: &mut [f32]) = gelu_tanh_body }
simd_kernel! { unsafe fn relu(x: &mut [f32]) = relu_body }
simd_kernel! { unsafe fn silu(x: &mut [f32]) = silu_body }
simd_kernel! { unsafe fn tanh(x: &mut [f32]) = tanh_body }

/// Makes the body that puts every vector of `x` through `$apply`.
macro_rules! body {
    ($name:ident, $apply:expr) => {
        #[inline(always)]
        unsafe fn $name<V: Simd>(x: &mut [f32]) {
            for at in (0..x.len()).step_by(LANES) {
                // SAFETY: the instruction set is the caller's duty.
                unsafe { store_part::<V>(x, at, $apply(load_part::<V>(x, at))) };
            }
        }
    };
}

body!(gelu_body, math::gelu::<V>);
body!(gelu_tanh_body, math::gelu_tanh::<V>);
// Zero first: a NaN is kept, as the second of the two.
body!(relu_body, |x| V::max(V::splat(0.0), x));
body!(silu_body, math::silu::<V>);
body!(tanh_body, math::tanh::<V>);
