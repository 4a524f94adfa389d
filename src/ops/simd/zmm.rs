//! Sixteen lanes in one vector of AVX-512.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::{Vector, Wide};

/// 512-bit vectors of x86-64 with AVX-512 F, BW, VL and VNNI.
#[derive(Debug, Clone, Copy)]
pub struct Zmm;

// SAFETY (all methods): the CPU has the AVX2 level and AVX-512 F, BW, VL and VNNI, by the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Zmm {
    type F32 = __m512;
    type Bytes = __m512i;
    const WIDTH: usize = 16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m512) {
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_u8(x: u8) -> __m512i {
        unsafe { _mm512_set1_epi8(x.cast_signed()) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shr16<const N: i32>(a: __m512i) -> __m512i {
        // A count in a register, for the intrinsic takes its constant as another type.
        unsafe { _mm512_srl_epi16(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn shl16<const N: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_sll_epi16(a, _mm_cvtsi32_si128(N)) }
    }
}

/// Four bytes of memory in every lane.
///
/// # Safety
/// The four bytes at `p` are readable; the CPU has AVX-512.
#[inline(always)]
unsafe fn splat4(p: *const i32) -> __m512i {
    // SAFETY: the caller's duty.
    unsafe { _mm512_set1_epi32(p.read_unaligned()) }
}

// SAFETY (all methods): as above, and pointers are valid.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Wide for Zmm {
    type I32 = __m512i;
    /// 16 × i32.
    type Acc = __m512i;

    const AT_ONCE: usize = 2;
    const WIDE_SUMS: bool = true;
    const MATRICES: bool = false;

    #[inline(always)]
    unsafe fn exp2i(n: __m512i) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(n, _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn to_f32(x: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(x) }
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn add_i32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i32(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn load_i32(p: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_i32(p: *mut i32, x: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn load_u8_i32(p: *const u8) -> __m512i {
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8_i16(p: *const u8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn dup_lo16(a: __m512i) -> __m512i {
        unsafe { _mm512_mask_mov_epi16(a, 0xaaaa_aaaa, _mm512_slli_epi32::<16>(a)) }
    }
    #[inline(always)]
    unsafe fn dup_hi16(a: __m512i) -> __m512i {
        unsafe { _mm512_mask_mov_epi16(a, 0x5555_5555, _mm512_srli_epi32::<16>(a)) }
    }
    #[inline(always)]
    unsafe fn madd_i16(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_madd_epi16(a, b) }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, x: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn lookup16(table: *const i8, index: __m512i) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.cast()));
            _mm512_shuffle_epi8(table, index)
        }
    }

    #[inline(always)]
    unsafe fn acc_start<const N: i32>(p: *const i32) -> __m512i {
        unsafe { _mm512_sll_epi32(splat4(p), _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn acc_zero() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn acc_add_rows<const M: usize>(
        accs: &mut [__m512i; M],
        weights: __m512i,
        x: *const i32,
    ) {
        unsafe {
            for (m, acc) in accs.iter_mut().enumerate() {
                *acc = _mm512_dpbusd_epi32(*acc, weights, splat4(x.add(m)));
            }
        }
    }
    #[inline(always)]
    unsafe fn acc_widen(acc: __m512i) -> __m512i {
        acc
    }
    #[inline(always)]
    unsafe fn acc_widen_scaled(acc: __m512i, factor: __m512i) -> __m512i {
        unsafe { Self::scale_i32(acc, factor) }
    }
    #[inline(always)]
    unsafe fn first_half<const SMALL: bool>(acc: __m512i, factors: [__m512i; 2]) -> __m512i {
        if SMALL {
            return acc;
        }
        unsafe { Self::acc_widen_scaled(acc, factors[0]) }
    }
    #[inline(always)]
    unsafe fn both_halves<const SMALL: bool>(
        first: __m512i,
        acc: __m512i,
        factors: [__m512i; 2],
    ) -> __m512i {
        unsafe {
            if SMALL {
                // One multiplication for both: sums and factors side by side in 16 bits.
                let both = |low, high| _mm512_mask_mov_epi16(low, 0xaaaa_aaaa, high);
                let sums = both(first, _mm512_slli_epi32::<16>(acc));
                return _mm512_madd_epi16(sums, both(factors[0], factors[1]));
            }
            Self::add_i32(first, Self::acc_widen_scaled(acc, factors[1]))
        }
    }

    #[inline(always)]
    unsafe fn signed(weights: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(weights, _mm512_set1_epi8(-128)) }
    }
    #[inline(always)]
    unsafe fn signed_start(p: *const i32) -> __m512i {
        unsafe { Self::acc_start::<4>(p) }
    }
    #[inline(always)]
    unsafe fn dot_rows<const M: usize>(sums: &mut [__m512i; M], weights: __m512i, x: *const i32) {
        unsafe { Self::acc_add_rows::<M>(sums, weights, x) }
    }

    #[inline(always)]
    unsafe fn scale_i32(sums: __m512i, factor: __m512i) -> __m512i {
        // Both halves of a lane hold the factor: shifting the upper one down extends its sign.
        unsafe { _mm512_mullo_epi32(sums, _mm512_srai_epi32::<16>(factor)) }
    }
}
