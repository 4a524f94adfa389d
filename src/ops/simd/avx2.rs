//! AVX2 + FMA + F16C: the x86-64 baseline for speed.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::wide::Two;
use super::{LANES, Simd, Vector};

/// 256-bit vectors of x86-64.
#[derive(Debug, Clone, Copy)]
pub struct Avx2;

/// No instruction. The compiler may add integers in any order, and the one it likes needs several times the registers
/// there are; this keeps the order of the source.
#[inline]
#[target_feature(enable = "avx2")]
fn in_order(mut x: __m256i) -> __m256i {
    // SAFETY: the template is a comment.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) x, options(nomem, nostack, preserves_flags));
    }
    x
}

// SAFETY (all methods): as below.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx2 {
    type F32 = __m256;
    type Bytes = __m256i;
    const WIDTH: usize = LANES;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: __m256) {
        unsafe { _mm256_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m256 {
        unsafe {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(
                _mm_loadu_si128(p.cast()),
            )))
        }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn splat_u8(x: u8) -> __m256i {
        unsafe { _mm256_set1_epi8(x as i8) }
    }
    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn shr16<const N: i32>(a: __m256i) -> __m256i {
        unsafe { _mm256_srli_epi16::<N>(a) }
    }
    #[inline(always)]
    unsafe fn shl16<const N: i32>(a: __m256i) -> __m256i {
        unsafe { _mm256_slli_epi16::<N>(a) }
    }
}

// SAFETY (all methods): the CPU has AVX2, FMA and F16C, and pointers are valid, by the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type I32 = __m256i;
    type Wide = Two<Self>;
    /// 16 × i16: two partial sums per 32-bit lane.
    type Acc = __m256i;

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: __m256) {
        unsafe {
            let x = _mm256_max_ps(
                _mm256_set1_ps(-65504.0),
                _mm256_min_ps(_mm256_set1_ps(65504.0), x),
            );
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x));
        }
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn abs(a: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), a) }
    }
    #[inline(always)]
    unsafe fn zero_below(value: __m256, x: __m256, limit: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(x, limit), value) }
    }
    #[inline(always)]
    unsafe fn round_to_i32(x: __m256) -> __m256i {
        unsafe { _mm256_cvtps_epi32(x) }
    }
    #[inline(always)]
    unsafe fn exp2i(n: __m256i) -> __m256 {
        unsafe {
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                n,
                _mm256_set1_epi32(127),
            )))
        }
    }
    #[inline(always)]
    unsafe fn to_f32(x: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(x) }
    }

    #[inline(always)]
    unsafe fn reduce8(v: [__m256; 8]) -> __m256 {
        unsafe {
            // Two vectors' lower and upper halves added: four sums of each.
            let fours = |a, b| {
                _mm256_add_ps(
                    _mm256_permute2f128_ps::<0x20>(a, b),
                    _mm256_permute2f128_ps::<0x31>(a, b),
                )
            };
            // Vectors 0, 4 | 1, 5 | 2, 6 | 3, 7, so that the results come out in order.
            let (a, b) = (fours(v[0], v[4]), fours(v[1], v[5]));
            let (c, d) = (fours(v[2], v[6]), fours(v[3], v[7]));
            let twos = |a, b| {
                _mm256_add_ps(
                    _mm256_shuffle_ps::<0b01_00_01_00>(a, b),
                    _mm256_shuffle_ps::<0b11_10_11_10>(a, b),
                )
            };
            let (ab, cd) = (twos(a, b), twos(c, d));
            _mm256_add_ps(
                _mm256_shuffle_ps::<0b10_00_10_00>(ab, cd),
                _mm256_shuffle_ps::<0b11_01_11_01>(ab, cd),
            )
        }
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn add_i32(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_i32(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_sub_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn shl_i32<const N: i32>(a: __m256i) -> __m256i {
        unsafe { _mm256_slli_epi32::<N>(a) }
    }
    #[inline(always)]
    unsafe fn load_i32(p: *const i32) -> __m256i {
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_u8_i32(p: *const u8) -> __m256i {
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_i8_i16(p: *const u8) -> __m256i {
        unsafe { _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn dup_lo16(a: __m256i) -> __m256i {
        unsafe { _mm256_blend_epi16::<0b1010_1010>(a, _mm256_slli_epi32::<16>(a)) }
    }
    #[inline(always)]
    unsafe fn dup_hi16(a: __m256i) -> __m256i {
        unsafe { _mm256_blend_epi16::<0b0101_0101>(a, _mm256_srli_epi32::<16>(a)) }
    }
    #[inline(always)]
    unsafe fn madd_i16(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_madd_epi16(a, b) }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> __m256i {
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(p: *const u8) -> __m256i {
        unsafe {
            let x = _mm_loadu_si128(p.cast());
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(x), x);
            _mm256_and_si256(both, _mm256_set1_epi8(0x0f))
        }
    }
    #[inline(always)]
    unsafe fn load_bits(p: *const u8, value: u8) -> __m256i {
        unsafe {
            // Each byte of the word in eight bytes, of which each keeps a bit of its own.
            let word = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
            let byte = _mm256_set_epi64x(
                0x0303_0303_0303_0303,
                0x0202_0202_0202_0202,
                0x0101_0101_0101_0101,
                0,
            );
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
            let kept = _mm256_and_si256(_mm256_shuffle_epi8(word, byte), bit);
            _mm256_and_si256(
                _mm256_cmpeq_epi8(kept, bit),
                _mm256_set1_epi8(value.cast_signed()),
            )
        }
    }
    #[inline(always)]
    unsafe fn transpose8(r: [__m256i; 8]) -> [__m256i; 8] {
        unsafe {
            let low = |a, b| _mm256_unpacklo_epi32(a, b);
            let high = |a, b| _mm256_unpackhi_epi32(a, b);
            let low64 = |a, b| _mm256_unpacklo_epi64(a, b);
            let high64 = |a, b| _mm256_unpackhi_epi64(a, b);
            let t = [
                low(r[0], r[1]),
                high(r[0], r[1]),
                low(r[2], r[3]),
                high(r[2], r[3]),
                low(r[4], r[5]),
                high(r[4], r[5]),
                low(r[6], r[7]),
                high(r[6], r[7]),
            ];
            // Lanes 0..4 (or 4..8) of one column: of rows 0..4, then of rows 4..8.
            let u = [
                (low64(t[0], t[2]), low64(t[4], t[6])),
                (high64(t[0], t[2]), high64(t[4], t[6])),
                (low64(t[1], t[3]), low64(t[5], t[7])),
                (high64(t[1], t[3]), high64(t[5], t[7])),
            ];
            std::array::from_fn(|i| {
                let (a, b) = u[i % 4];
                if i < 4 {
                    _mm256_permute2x128_si256::<0x20>(a, b)
                } else {
                    _mm256_permute2x128_si256::<0x31>(a, b)
                }
            })
        }
    }
    #[inline(always)]
    unsafe fn lookup16(table: *const i8, index: __m256i) -> __m256i {
        unsafe {
            _mm256_shuffle_epi8(
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast())),
                index,
            )
        }
    }
    #[inline(always)]
    unsafe fn narrow_i8([a, b, c, d]: [__m256i; 4]) -> __m256i {
        unsafe {
            // Each 128-bit half has its own four of every vector.
            let halves = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            _mm256_permutevar8x32_epi32(halves, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
        }
    }
    #[inline(always)]
    unsafe fn splat4(p: *const i8) -> __m256i {
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, x: __m256i) {
        unsafe { _mm256_storeu_si256(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn store_i32(p: *mut i32, x: __m256i) {
        unsafe { _mm256_storeu_si256(p.cast(), x) }
    }
    #[inline(always)]
    unsafe fn acc_start<const N: i32>(p: *const i32) -> __m256i {
        unsafe { _mm256_slli_epi16::<N>(_mm256_set1_epi32(p.read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn acc_zero() -> __m256i {
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn acc_add(acc: __m256i, weights: __m256i, activations: __m256i) -> __m256i {
        unsafe {
            let products = _mm256_maddubs_epi16(weights, activations);
            in_order(_mm256_add_epi16(acc, products))
        }
    }
    /// Products of one row are added behind the multiplications of the next: so multiplications, which only two of four ports do, never
    /// wait behind additions, which all four do.
    #[inline(always)]
    unsafe fn acc_add_rows<const M: usize>(
        accs: &mut [[__m256i; 2]; M],
        weights: [__m256i; 2],
        x: *const i32,
    ) {
        unsafe {
            let mut products = [_mm256_setzero_si256(); 2];
            for m in 0..M {
                let four = Self::splat4(x.add(m).cast());
                let next = [
                    in_order(_mm256_maddubs_epi16(weights[0], four)),
                    in_order(_mm256_maddubs_epi16(weights[1], four)),
                ];
                if m > 0 {
                    for p in 0..2 {
                        accs[m - 1][p] = in_order(_mm256_add_epi16(accs[m - 1][p], products[p]));
                    }
                }
                products = next;
            }
            for p in 0..2 {
                accs[M - 1][p] = in_order(_mm256_add_epi16(accs[M - 1][p], products[p]));
            }
        }
    }
    #[inline(always)]
    unsafe fn acc_widen(acc: __m256i) -> __m256i {
        unsafe { _mm256_madd_epi16(acc, _mm256_set1_epi16(1)) }
    }
    #[inline(always)]
    unsafe fn acc_widen_scaled(acc: __m256i, factor: __m256i) -> __m256i {
        unsafe { _mm256_madd_epi16(acc, factor) }
    }
    #[inline(always)]
    unsafe fn dot_i8(acc: __m256i, weights: __m256i, activations: __m256i) -> __m256i {
        // |w| fits an unsigned byte (128 at most), and |w| * x does not saturate: 2 * 128 * 127 = 32512.
        unsafe {
            let products = _mm256_maddubs_epi16(
                _mm256_abs_epi8(weights),
                _mm256_sign_epi8(activations, weights),
            );
            in_order(_mm256_add_epi32(
                acc,
                _mm256_madd_epi16(products, _mm256_set1_epi16(1)),
            ))
        }
    }
}
