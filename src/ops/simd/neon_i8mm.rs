//! NEON with the matrix products of ARMv8.6 (i8mm): 2 × 2 sums of the products of eight bytes by one instruction.
#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::wide::Two;
use super::{LANES, Neon, Simd, Vector};

/// [`Neon`] with dot products, and `smmla` for several rows of activations.
///
/// A vector of joined chunks holds eight bytes of two weight rows, and one of activations eight bytes of two rows, so that `smmla` makes four
/// sums of eight products: rows 0 and 1 of the weights for the first row of activations, then for the second.
#[derive(Debug, Clone, Copy)]
pub struct NeonI8mm;

type Dot = Neon<true>;

/// Methods that are those of NEON with dot products.
macro_rules! as_dot {
    ($(fn $name:ident $(<const $n:ident: $nt:ty>)? ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {$(
        #[inline(always)]
        unsafe fn $name $(<const $n: $nt>)? ($($arg: $ty),*) $(-> $ret)? {
            unsafe { Dot::$name $(::<$n>)? ($($arg),*) }
        }
    )*};
}

// SAFETY (all methods): as below.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for NeonI8mm {
    type F32 = float32x4x2_t;
    type Bytes = uint8x16x2_t;
    const WIDTH: usize = LANES;

    as_dot! {
        fn prefetch(p: *const u8);
        fn splat(x: f32) -> float32x4x2_t;
        fn load(p: *const f32) -> float32x4x2_t;
        fn store(p: *mut f32, x: float32x4x2_t);
        fn load_f16(p: *const u8) -> float32x4x2_t;
        fn load_bf16(p: *const u8) -> float32x4x2_t;
        fn add(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t;
        fn sub(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t;
        fn mul(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t;
        fn fma(a: float32x4x2_t, b: float32x4x2_t, c: float32x4x2_t) -> float32x4x2_t;
        fn splat_u8(x: u8) -> uint8x16x2_t;
        fn and(a: uint8x16x2_t, b: uint8x16x2_t) -> uint8x16x2_t;
        fn or(a: uint8x16x2_t, b: uint8x16x2_t) -> uint8x16x2_t;
        fn shr16<const N: i32>(a: uint8x16x2_t) -> uint8x16x2_t;
        fn shl16<const N: i32>(a: uint8x16x2_t) -> uint8x16x2_t;
    }
}

// SAFETY (all methods): the CPU has NEON, dot products and i8mm, and pointers are valid, by the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for NeonI8mm {
    type I32 = int32x4x2_t;
    type Wide = Two<Self>;
    /// 8 × i32.
    type Acc = int32x4x2_t;

    as_dot! {
        fn store_f16(p: *mut u16, x: float32x4x2_t);
        fn div(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t;
        fn max(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t;
        fn min(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t;
        fn abs(a: float32x4x2_t) -> float32x4x2_t;
        fn zero_below(value: float32x4x2_t, x: float32x4x2_t, limit: float32x4x2_t) -> float32x4x2_t;
        fn round_to_i32(x: float32x4x2_t) -> int32x4x2_t;
        fn exp2i(n: int32x4x2_t) -> float32x4x2_t;
        fn to_f32(x: int32x4x2_t) -> float32x4x2_t;
        fn reduce8(vectors: [float32x4x2_t; 8]) -> float32x4x2_t;

        fn splat_i32(x: i32) -> int32x4x2_t;
        fn add_i32(a: int32x4x2_t, b: int32x4x2_t) -> int32x4x2_t;
        fn sub_i32(a: int32x4x2_t, b: int32x4x2_t) -> int32x4x2_t;
        fn shl_i32<const N: i32>(a: int32x4x2_t) -> int32x4x2_t;
        fn load_i32(p: *const i32) -> int32x4x2_t;
        fn load_u8_i32(p: *const u8) -> int32x4x2_t;
        fn load_i8_i16(p: *const u8) -> int32x4x2_t;
        fn dup_lo16(a: int32x4x2_t) -> int32x4x2_t;
        fn dup_hi16(a: int32x4x2_t) -> int32x4x2_t;
        fn madd_i16(a: int32x4x2_t, b: int32x4x2_t) -> int32x4x2_t;

        fn load_bytes(p: *const u8) -> uint8x16x2_t;
        fn store_bytes(p: *mut u8, x: uint8x16x2_t);
        fn store_i32(p: *mut i32, x: int32x4x2_t);
        fn load_nibbles(p: *const u8) -> uint8x16x2_t;
        fn load_bits(p: *const u8, value: u8) -> uint8x16x2_t;
        fn transpose8(rows: [uint8x16x2_t; 8]) -> [uint8x16x2_t; 8];
        fn narrow_i8(integers: [int32x4x2_t; 4]) -> uint8x16x2_t;
        fn lookup16(table: *const i8, index: uint8x16x2_t) -> uint8x16x2_t;
        fn splat4(p: *const i8) -> uint8x16x2_t;

        fn acc_zero() -> int32x4x2_t;
        fn acc_start<const N: i32>(p: *const i32) -> int32x4x2_t;
        fn acc_add(acc: int32x4x2_t, weights: uint8x16x2_t, activations: uint8x16x2_t) -> int32x4x2_t;
        fn acc_widen(acc: int32x4x2_t) -> int32x4x2_t;
        fn acc_widen_scaled(acc: int32x4x2_t, factor: int32x4x2_t) -> int32x4x2_t;
        fn dot_i8(acc: int32x4x2_t, weights: uint8x16x2_t, activations: uint8x16x2_t) -> int32x4x2_t;
    }

    const MATRICES: bool = true;

    /// Weight rows 0 and 1, 2 and 3; 4 and 5, 6 and 7.
    #[inline(always)]
    unsafe fn join(first: uint8x16x2_t, second: uint8x16x2_t) -> [uint8x16x2_t; 2] {
        unsafe {
            let halves = |a, b| {
                let (a, b) = (vreinterpretq_u32_u8(a), vreinterpretq_u32_u8(b));
                uint8x16x2_t(
                    vreinterpretq_u8_u32(vzip1q_u32(a, b)),
                    vreinterpretq_u8_u32(vzip2q_u32(a, b)),
                )
            };
            [halves(first.0, second.0), halves(first.1, second.1)]
        }
    }
    /// As the vectors of [`Simd::join`]: of each pair of weight rows the two sums of the first row, then those of the second.
    #[inline(always)]
    unsafe fn to_matrices([a, b]: [int32x4x2_t; 2]) -> [int32x4x2_t; 2] {
        unsafe {
            [
                int32x4x2_t(low_pairs(a.0, b.0), high_pairs(a.0, b.0)),
                int32x4x2_t(low_pairs(a.1, b.1), high_pairs(a.1, b.1)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn from_matrices([a, b]: [int32x4x2_t; 2]) -> [int32x4x2_t; 2] {
        unsafe {
            [
                int32x4x2_t(low_pairs(a.0, a.1), low_pairs(b.0, b.1)),
                int32x4x2_t(high_pairs(a.0, a.1), high_pairs(b.0, b.1)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn dot_joined<const M: usize, const STRIDE: usize>(
        sums: &mut [[int32x4x2_t; 2]; M],
        weights: [[uint8x16x2_t; 2]; 2],
        x: *const i32,
    ) {
        unsafe {
            for m in (0..M).step_by(2) {
                let rows = two_rows::<STRIDE>(x, m % STRIDE);
                for p in 0..2 {
                    for half in 0..2 {
                        let (sums, weights) = (&mut sums[m + half][p], weights[p][half]);
                        sums.0 = multiply(sums.0, rows, weights.0);
                        sums.1 = multiply(sums.1, rows, weights.1);
                    }
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn scale_i32(sums: int32x4x2_t, factor: int32x4x2_t) -> int32x4x2_t {
        unsafe { Dot::acc_widen_scaled(sums, factor) }
    }
}

/// Words `m` and `STRIDE + m`, then `m + 1` and `STRIDE + m + 1`; with a stride of 1 the first two twice.
///
/// # Safety
/// The CPU has NEON; `x` has two times `STRIDE` words (1, 2 or 4), `m` is even and below the stride.
#[inline(always)]
unsafe fn two_rows<const STRIDE: usize>(x: *const i32, m: usize) -> int8x16_t {
    // SAFETY: the caller's duty.
    unsafe {
        let words = match STRIDE {
            1 => vreinterpretq_s32_s64(vdupq_n_s64(x.cast::<i64>().read_unaligned())),
            2 => {
                let words = vld1q_s32(x);
                vzip1q_s32(words, vextq_s32::<2>(words, words))
            }
            4 => {
                let (first, second) = (vld1q_s32(x), vld1q_s32(x.add(4)));
                if m == 0 {
                    vzip1q_s32(first, second)
                } else {
                    vzip2q_s32(first, second)
                }
            }
            other => unreachable!("a stride of {other} rows"),
        };
        vreinterpretq_s8_s32(words)
    }
}

/// Lanes 0 and 1 of both.
#[inline(always)]
unsafe fn low_pairs(a: int32x4_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: registers only, as in all functions below; NEON is the caller's duty.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
        vreinterpretq_s32_s64(vtrn1q_s64(a, b))
    }
}

/// Lanes 2 and 3 of both.
#[inline(always)]
unsafe fn high_pairs(a: int32x4_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: see `low_pairs`.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
        vreinterpretq_s32_s64(vtrn2q_s64(a, b))
    }
}

/// Adds to `sums` the products of both rows of activations with both of weights: eight signed bytes each.
///
/// # Safety
/// The CPU has i8mm.
#[inline(always)]
unsafe fn multiply(sums: int32x4_t, activations: int8x16_t, weights: uint8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: registers only; the instruction set is the caller's duty.
    unsafe {
        // The intrinsic is not stable: https://github.com/rust-lang/rust/issues/117223
        asm!(
            ".arch_extension i8mm",
            "smmla {sums:v}.4s, {activations:v}.16b, {weights:v}.16b",
            sums = inout(vreg) sums,
            activations = in(vreg) activations,
            weights = in(vreg) weights,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
