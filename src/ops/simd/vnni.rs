//! VNNI on 256-bit vectors, AVX2's lanes with 32-bit sums of byte products: of AVX-512, with twice the registers, or of AVX-VNNI.
//! Products of matrices on level `avx512` are those of [`Zmm`]; there this is for everything else.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::wide::{Two, Wide};
use super::{Avx2, LANES, Simd, Vector, Zmm};

/// 256-bit vectors of x86-64 with AVX-512 F, BW, VL and VNNI (`AVX512`), or with AVX-VNNI, whose instruction is the same in AVX2's encoding.
///
/// The instruction set of [`Avx2`] is part of both, so all that has no better form here is AVX2's function, compiled again.
#[derive(Debug, Clone, Copy)]
pub struct Vnni<const AVX512: bool>;

/// Adds to every lane its four products of unsigned `a` with signed `b`.
///
/// # Safety
/// The CPU has what `AVX512` stands for.
#[inline(always)]
unsafe fn dot<const AVX512: bool>(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        if AVX512 {
            _mm256_dpbusd_epi32(acc, a, b)
        } else {
            _mm256_dpbusd_avx_epi32(acc, a, b)
        }
    }
}

/// Methods that are AVX2's.
macro_rules! as_avx2 {
    ($(fn $name:ident $(<const $n:ident>)? ($($arg:ident: $ty:ty),*) $(-> $ret:ty)?;)*) => {$(
        #[inline(always)]
        unsafe fn $name $(<const $n: i32>)? ($($arg: $ty),*) $(-> $ret)? {
            unsafe { Avx2::$name $(::<$n>)? ($($arg),*) }
        }
    )*};
}

/// Which vector of sixteen lanes belongs to it.
#[allow(missing_docs)]
pub trait Sixteen {
    type Vector: Wide;
}

impl Sixteen for Vnni<true> {
    type Vector = Zmm;
}

impl Sixteen for Vnni<false> {
    type Vector = Two<Self>;
}

// SAFETY (all methods): as below.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const AVX512: bool> Vector for Vnni<AVX512> {
    type F32 = __m256;
    type Bytes = __m256i;
    const WIDTH: usize = LANES;

    as_avx2! {
        fn prefetch(p: *const u8);
        fn splat(x: f32) -> __m256;
        fn load(p: *const f32) -> __m256;
        fn store(p: *mut f32, x: __m256);
        fn load_f16(p: *const u8) -> __m256;
        fn load_bf16(p: *const u8) -> __m256;
        fn add(a: __m256, b: __m256) -> __m256;
        fn sub(a: __m256, b: __m256) -> __m256;
        fn mul(a: __m256, b: __m256) -> __m256;
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256;
        fn splat_u8(x: u8) -> __m256i;
        fn and(a: __m256i, b: __m256i) -> __m256i;
        fn or(a: __m256i, b: __m256i) -> __m256i;
        fn shr16<const N>(a: __m256i) -> __m256i;
        fn shl16<const N>(a: __m256i) -> __m256i;
    }
}

// SAFETY (all methods): the CPU has the AVX2 level and AVX-512 F, BW, VL and VNNI, or AVX-VNNI, and pointers are valid, by the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const AVX512: bool> Simd for Vnni<AVX512>
where
    Self: Sixteen,
{
    type I32 = __m256i;
    type Wide = <Self as Sixteen>::Vector;
    /// 8 × i32.
    type Acc = __m256i;

    as_avx2! {
        fn store_f16(p: *mut u16, x: __m256);
        fn div(a: __m256, b: __m256) -> __m256;
        fn max(a: __m256, b: __m256) -> __m256;
        fn min(a: __m256, b: __m256) -> __m256;
        fn abs(a: __m256) -> __m256;
        fn zero_below(value: __m256, x: __m256, limit: __m256) -> __m256;
        fn round_to_i32(x: __m256) -> __m256i;
        fn exp2i(n: __m256i) -> __m256;
        fn to_f32(x: __m256i) -> __m256;
        fn reduce8(vectors: [__m256; 8]) -> __m256;

        fn splat_i32(x: i32) -> __m256i;
        fn add_i32(a: __m256i, b: __m256i) -> __m256i;
        fn sub_i32(a: __m256i, b: __m256i) -> __m256i;
        fn shl_i32<const N>(a: __m256i) -> __m256i;
        fn load_i32(p: *const i32) -> __m256i;
        fn load_u8_i32(p: *const u8) -> __m256i;
        fn load_i8_i16(p: *const u8) -> __m256i;
        fn dup_lo16(a: __m256i) -> __m256i;
        fn dup_hi16(a: __m256i) -> __m256i;
        fn madd_i16(a: __m256i, b: __m256i) -> __m256i;

        fn load_bytes(p: *const u8) -> __m256i;
        fn store_bytes(p: *mut u8, x: __m256i);
        fn store_i32(p: *mut i32, x: __m256i);
        fn load_nibbles(p: *const u8) -> __m256i;
        fn load_bits(p: *const u8, value: u8) -> __m256i;
        fn transpose8(rows: [__m256i; 8]) -> [__m256i; 8];
        fn lookup16(table: *const i8, index: __m256i) -> __m256i;
        fn splat4(p: *const i8) -> __m256i;
        fn narrow_i8(integers: [__m256i; 4]) -> __m256i;

        fn acc_zero() -> __m256i;
    }

    #[inline(always)]
    unsafe fn acc_add(acc: __m256i, weights: __m256i, activations: __m256i) -> __m256i {
        unsafe { dot::<AVX512>(acc, weights, activations) }
    }
    #[inline(always)]
    unsafe fn acc_widen(acc: __m256i) -> __m256i {
        acc
    }
    #[inline(always)]
    unsafe fn acc_widen_scaled(acc: __m256i, factor: __m256i) -> __m256i {
        // Both halves of a lane hold the factor: shifting the upper one down extends its sign.
        unsafe { _mm256_mullo_epi32(acc, _mm256_srai_epi32::<16>(factor)) }
    }
    /// Plus 128.
    #[inline(always)]
    unsafe fn signed(weights: __m256i) -> __m256i {
        unsafe { _mm256_xor_si256(weights, _mm256_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn signed_start(p: *const i32) -> __m256i {
        unsafe { Self::acc_start::<4>(p) }
    }
    #[inline(always)]
    unsafe fn dot_i8(acc: __m256i, weights: __m256i, activations: __m256i) -> __m256i {
        unsafe { dot::<AVX512>(acc, weights, activations) }
    }
    /// The sum of both halves.
    #[inline(always)]
    fn start_word(low: i32, high: i32) -> i32 {
        low + high
    }
    #[inline(always)]
    unsafe fn acc_start<const N: i32>(p: *const i32) -> __m256i {
        unsafe { _mm256_slli_epi32::<N>(_mm256_set1_epi32(p.read_unaligned())) }
    }
}
