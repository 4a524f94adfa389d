//! Transcendental functions over lanes: one implementation for every instruction set.
//!
//! Accuracy is a few units in the last place, which is far below what a half-precision cache or 8-bit activations keep.
#![allow(unsafe_code)]

use super::Simd;

/// Below this `exp` is 0: the smallest argument whose result is a normal number.
const EXP_LOW: f32 = -87.336_54;
/// Above this `exp` saturates at about 1.7e38, the last power of two that is safely finite.
const EXP_HIGH: f32 = 88.02;

/// `e^x` per lane: Cody–Waite reduction to |r| ≤ ln2/2 and the polynomial of the Cephes library's `expf`
/// (<https://www.netlib.org/cephes/>). NaN stays NaN.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn exp<V: Simd>(x: V::F32) -> V::F32 {
    // SAFETY: no memory is touched; the instruction set is the caller's duty.
    unsafe {
        let clamped = V::max(V::splat(EXP_LOW), V::min(V::splat(EXP_HIGH), x));
        let n = V::round_to_i32(V::mul(clamped, V::splat(std::f32::consts::LOG2_E)));
        let nf = V::to_f32(n);
        let r = V::fma(nf, V::splat(-0.693_359_4), clamped);
        let r = V::fma(nf, V::splat(2.121_944_4e-4), r);
        let mut p = V::splat(1.987_569_2e-4);
        for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
            p = V::fma(p, r, V::splat(c));
        }
        let y = V::add(V::fma(p, V::mul(r, r), r), V::splat(1.0));
        V::zero_below(V::mul(y, V::exp2i(n)), x, V::splat(EXP_LOW))
    }
}

/// `x * sigmoid(x)`, written as `x / (1 + e^-x)`.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn silu<V: Simd>(x: V::F32) -> V::F32 {
    // SAFETY: no memory is touched; the instruction set is the caller's duty.
    unsafe {
        let e = exp::<V>(V::sub(V::splat(0.0), x));
        V::div(x, V::add(V::splat(1.0), e))
    }
}

/// `1 / (1 + e^-x)`.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn sigmoid<V: Simd>(x: V::F32) -> V::F32 {
    // SAFETY: no memory is touched; the instruction set is the caller's duty.
    unsafe {
        let e = exp::<V>(V::sub(V::splat(0.0), x));
        V::div(V::splat(1.0), V::add(V::splat(1.0), e))
    }
}

/// `tanh(x)`, written as `1 - 2 / (e^2x + 1)`: absolute error near 1e-7.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn tanh<V: Simd>(x: V::F32) -> V::F32 {
    // SAFETY: no memory is touched; the instruction set is the caller's duty.
    unsafe {
        let e = exp::<V>(V::add(x, x));
        V::sub(
            V::splat(1.0),
            V::div(V::splat(2.0), V::add(e, V::splat(1.0))),
        )
    }
}

/// GELU with the tanh approximation: `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn gelu_tanh<V: Simd>(x: V::F32) -> V::F32 {
    // SAFETY: no memory is touched; the instruction set is the caller's duty.
    unsafe {
        let cubic = V::mul(V::mul(x, x), x);
        let inner = V::mul(V::splat(0.797_884_6), V::fma(V::splat(0.044_715), cubic, x));
        V::mul(
            V::mul(V::splat(0.5), x),
            V::add(V::splat(1.0), tanh::<V>(inner)),
        )
    }
}

/// Polynomial in x² of `erf(x) / x` for |x| ≤ 1, lowest power last.
const ERF_SMALL: [f32; 7] = [
    7.889_119e-5,
    -8.020_841_4e-4,
    5.189_535e-3,
    -2.685_444_4e-2,
    0.112_836,
    -0.376_126_26,
    std::f32::consts::FRAC_2_SQRT_PI,
];
/// Polynomial in |x| of `ln(1 - erf(|x|))` for |x| from 1 to 4, lowest power last.
const ERF_LARGE: [f32; 9] = [
    1.599_819e-6,
    -4.529_809e-5,
    5.902_031_5e-4,
    -4.727_688e-3,
    2.632_752_2e-2,
    -0.109_909_73,
    -0.632_013_44,
    -1.130_119_7,
    2.910_253_5e-4,
];

/// The error function: absolute error near 1e-7. Up to 1 an odd polynomial, from there `1 - e^p(|x|)`, from 4 on exactly 1; both
/// polynomials are least-maximum fits of our own (errors 1.2e-9 and, of the logarithm, 1.2e-8).
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn erf<V: Simd>(x: V::F32) -> V::F32 {
    // SAFETY: no memory is touched; the instruction set is the caller's duty.
    unsafe {
        let one = V::splat(1.0);
        // Limits come first in comparisons: then NaN stays.
        let within = |limit: f32| V::max(V::splat(-limit), V::min(V::splat(limit), x));
        let (near, all) = (within(1.0), within(4.0));
        let distance = V::abs(all);
        let square = V::mul(near, near);
        let small = V::mul(near, polynomial::<V>(&ERF_SMALL, square));
        let rest = exp::<V>(polynomial::<V>(&ERF_LARGE, distance));
        let sign = V::div(all, distance);
        let large = V::mul(sign, V::sub(one, rest));
        // One of the two is zero.
        let small = V::sub(small, V::zero_below(small, distance, one));
        V::add(small, V::zero_below(large, distance, one))
    }
}

/// `Σ c x^k` by Horner's rule, the highest power first.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
unsafe fn polynomial<V: Simd>(coefficients: &[f32], x: V::F32) -> V::F32 {
    // SAFETY: no memory is touched; the instruction set is the caller's duty.
    unsafe {
        let mut sum = V::splat(coefficients[0]);
        for c in &coefficients[1..] {
            sum = V::fma(sum, x, V::splat(*c));
        }
        sum
    }
}

/// GELU: `0.5 x (1 + erf(x / √2))`.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn gelu<V: Simd>(x: V::F32) -> V::F32 {
    // SAFETY: no memory is touched; the instruction set is the caller's duty.
    unsafe {
        let inner = erf::<V>(V::mul(x, V::splat(std::f32::consts::FRAC_1_SQRT_2)));
        V::mul(V::mul(V::splat(0.5), x), V::add(V::splat(1.0), inner))
    }
}
