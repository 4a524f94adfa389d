//! The software twin: what every instruction set must equal, bit for bit.
#![allow(unsafe_code)]

use half::{bf16, f16};

use super::wide::Two;
use super::{LANES, Simd, Vector};

/// Portable vectors: arrays and loops.
#[derive(Debug, Clone, Copy)]
pub struct Scalar;

type F = [f32; 8];
type I = [i32; 8];
type B = [u8; 32];

#[inline]
fn lanes<T: Copy, U>(a: [T; 8], f: impl Fn(T) -> U) -> [U; 8] {
    std::array::from_fn(|i| f(a[i]))
}

#[inline]
fn pairs<T: Copy, U>(a: [T; 8], b: [T; 8], f: impl Fn(T, T) -> U) -> [U; 8] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline]
fn halves(x: i32) -> (i32, i32) {
    (i32::from(x as i16), x >> 16)
}

#[inline]
fn join(low: i16, high: i16) -> i32 {
    super::pair(low.into(), high.into())
}

#[inline]
fn words(a: B, f: impl Fn(u16) -> u16) -> B {
    let mut out = [0; 32];
    for i in 0..16 {
        let word = f(u16::from_le_bytes([a[2 * i], a[2 * i + 1]]));
        out[2 * i..2 * i + 2].copy_from_slice(&word.to_le_bytes());
    }
    out
}

#[inline]
fn dot4(acc: I, product: impl Fn(usize) -> i32) -> I {
    std::array::from_fn(|lane| acc[lane] + (0..4).map(|i| product(4 * lane + i)).sum::<i32>())
}

impl Vector for Scalar {
    type F32 = F;
    type Bytes = B;
    const WIDTH: usize = LANES;

    #[inline]
    unsafe fn splat(x: f32) -> F {
        [x; 8]
    }
    #[inline]
    unsafe fn load(p: *const f32) -> F {
        // SAFETY: the trait's contract.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline]
    unsafe fn store(p: *mut f32, x: F) {
        // SAFETY: the trait's contract.
        unsafe { p.cast::<F>().write_unaligned(x) }
    }
    #[inline]
    unsafe fn load_f16(p: *const u8) -> F {
        // SAFETY: the trait's contract.
        lanes(unsafe { p.cast::<[u16; 8]>().read_unaligned() }, |x| {
            f16::from_bits(x).to_f32()
        })
    }
    #[inline]
    unsafe fn load_bf16(p: *const u8) -> F {
        // SAFETY: the trait's contract.
        lanes(unsafe { p.cast::<[u16; 8]>().read_unaligned() }, |x| {
            bf16::from_bits(x).to_f32()
        })
    }
    #[inline]
    unsafe fn add(a: F, b: F) -> F {
        pairs(a, b, |a, b| a + b)
    }
    #[inline]
    unsafe fn sub(a: F, b: F) -> F {
        pairs(a, b, |a, b| a - b)
    }
    #[inline]
    unsafe fn mul(a: F, b: F) -> F {
        pairs(a, b, |a, b| a * b)
    }
    #[inline]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }

    #[inline]
    unsafe fn splat_u8(x: u8) -> B {
        [x; 32]
    }
    #[inline]
    unsafe fn and(a: B, b: B) -> B {
        std::array::from_fn(|i| a[i] & b[i])
    }
    #[inline]
    unsafe fn or(a: B, b: B) -> B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline]
    unsafe fn shr16<const N: i32>(a: B) -> B {
        words(a, |w| w >> N)
    }
    #[inline]
    unsafe fn shl16<const N: i32>(a: B) -> B {
        words(a, |w| w << N)
    }
}

// SAFETY (all methods): pointers are valid for the bytes read or written by the trait's contract, and are accessed unaligned.
// The byte products are calls: inlined into every kernel they would be most of the program.
impl Simd for Scalar {
    type I32 = I;
    type Wide = Two<Self>;
    type Acc = I;

    #[inline]
    unsafe fn store_f16(p: *mut u16, x: F) {
        let bits = lanes(x, |x| f16::from_f32(clamp_f16(x)).to_bits());
        // SAFETY: the trait's contract.
        unsafe { p.cast::<[u16; 8]>().write_unaligned(bits) }
    }
    #[inline]
    unsafe fn div(a: F, b: F) -> F {
        pairs(a, b, |a, b| a / b)
    }
    #[inline]
    unsafe fn max(a: F, b: F) -> F {
        pairs(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline]
    unsafe fn min(a: F, b: F) -> F {
        pairs(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline]
    unsafe fn abs(a: F) -> F {
        lanes(a, f32::abs)
    }
    #[inline]
    unsafe fn zero_below(value: F, x: F, limit: F) -> F {
        std::array::from_fn(|i| if x[i] < limit[i] { 0.0 } else { value[i] })
    }
    #[inline]
    unsafe fn round_to_i32(x: F) -> I {
        lanes(x, |x| x.round_ties_even() as i32)
    }
    #[inline]
    unsafe fn exp2i(n: I) -> F {
        lanes(n, |n| f32::from_bits(((n + 127) << 23) as u32))
    }
    #[inline]
    unsafe fn to_f32(x: I) -> F {
        lanes(x, |x| x as f32)
    }

    #[inline]
    unsafe fn splat_i32(x: i32) -> I {
        [x; 8]
    }
    #[inline]
    unsafe fn add_i32(a: I, b: I) -> I {
        pairs(a, b, |a, b| a.wrapping_add(b))
    }
    #[inline]
    unsafe fn sub_i32(a: I, b: I) -> I {
        pairs(a, b, |a, b| a.wrapping_sub(b))
    }
    #[inline]
    unsafe fn shl_i32<const N: i32>(a: I) -> I {
        lanes(a, |a| a << N)
    }
    #[inline]
    unsafe fn load_i32(p: *const i32) -> I {
        // SAFETY: the trait's contract.
        unsafe { p.cast::<I>().read_unaligned() }
    }
    #[inline]
    unsafe fn load_u8_i32(p: *const u8) -> I {
        // SAFETY: the trait's contract.
        lanes(unsafe { p.cast::<[u8; 8]>().read_unaligned() }, i32::from)
    }
    #[inline]
    unsafe fn load_i8_i16(p: *const u8) -> I {
        // SAFETY: the trait's contract.
        let x = unsafe { p.cast::<[i8; 16]>().read_unaligned() };
        std::array::from_fn(|i| join(i16::from(x[2 * i]), i16::from(x[2 * i + 1])))
    }
    #[inline]
    unsafe fn dup_lo16(a: I) -> I {
        lanes(a, |a| join(a as i16, a as i16))
    }
    #[inline]
    unsafe fn dup_hi16(a: I) -> I {
        lanes(a, |a| join((a >> 16) as i16, (a >> 16) as i16))
    }
    #[inline]
    unsafe fn madd_i16(a: I, b: I) -> I {
        pairs(a, b, |a, b| {
            halves(a).0 * halves(b).0 + halves(a).1 * halves(b).1
        })
    }

    #[inline]
    unsafe fn load_bytes(p: *const u8) -> B {
        // SAFETY: the trait's contract.
        unsafe { p.cast::<B>().read_unaligned() }
    }
    #[inline]
    unsafe fn load_nibbles(p: *const u8) -> B {
        // SAFETY: the trait's contract.
        let x = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
        std::array::from_fn(|i| (x[i % 16] >> (i / 16 * 4)) & 15)
    }
    #[inline]
    unsafe fn load_bits(p: *const u8, value: u8) -> B {
        // SAFETY: the trait's contract.
        let bits = u32::from_le_bytes(unsafe { p.cast::<[u8; 4]>().read_unaligned() });
        std::array::from_fn(|i| if bits >> i & 1 == 1 { value } else { 0 })
    }
    #[inline(never)]
    unsafe fn transpose8(rows: [B; 8]) -> [B; 8] {
        std::array::from_fn(|i| std::array::from_fn(|at| rows[at / 4][i * 4 + at % 4]))
    }
    #[inline]
    unsafe fn lookup16(table: *const i8, index: B) -> B {
        // SAFETY: the trait's contract (16 entries).
        let table = unsafe { table.cast::<[i8; 16]>().read_unaligned() };
        std::array::from_fn(|i| table[usize::from(index[i] & 15)] as u8)
    }
    #[inline]
    unsafe fn narrow_i8(integers: [I; 4]) -> B {
        std::array::from_fn(|i| integers[i / 8][i % 8] as u8)
    }
    #[inline]
    unsafe fn splat4(p: *const i8) -> B {
        // SAFETY: the trait's contract.
        let four = unsafe { p.cast::<[u8; 4]>().read_unaligned() };
        std::array::from_fn(|i| four[i % 4])
    }

    #[inline]
    unsafe fn store_bytes(p: *mut u8, x: B) {
        // SAFETY: the trait's contract.
        unsafe { p.cast::<B>().write_unaligned(x) }
    }
    #[inline]
    unsafe fn store_i32(p: *mut i32, x: I) {
        // SAFETY: the trait's contract.
        unsafe { p.cast::<I>().write_unaligned(x) }
    }
    #[inline]
    unsafe fn acc_start<const N: i32>(p: *const i32) -> I {
        // SAFETY: the trait's contract.
        let (low, high) = halves(unsafe { p.read_unaligned() });
        [(low + high) << N; 8]
    }
    #[inline]
    unsafe fn acc_zero() -> I {
        [0; 8]
    }
    #[inline(never)]
    unsafe fn acc_add(acc: I, weights: B, activations: B) -> I {
        dot4(acc, |i| {
            i32::from(weights[i]) * i32::from(activations[i] as i8)
        })
    }
    #[inline]
    unsafe fn acc_widen(acc: I) -> I {
        acc
    }
    #[inline]
    unsafe fn acc_widen_scaled(acc: I, factor: I) -> I {
        pairs(acc, factor, |a, f| a * halves(f).0)
    }
    #[inline(never)]
    unsafe fn dot_i8(acc: I, weights: B, activations: B) -> I {
        dot4(acc, |i| {
            i32::from(weights[i] as i8) * i32::from(activations[i] as i8)
        })
    }
}

/// Saturates at the largest half-precision float; NaN stays.
#[inline]
fn clamp_f16(x: f32) -> f32 {
    // The comparisons of `Simd::min` and `Simd::max` with the limit first keep NaN, as the vector instruction sets do.
    let x = if 65504.0 < x { 65504.0 } else { x };
    if -65504.0 > x { -65504.0 } else { x }
}
