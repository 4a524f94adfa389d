//! NEON (aarch64), with or without the dot products of ARMv8.2.
#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::wide::Two;
use super::{LANES, Simd, Vector};

/// Pairs of 128-bit vectors of aarch64. `DOT`: byte products with `sdot`.
#[derive(Debug, Clone, Copy)]
pub struct Neon<const DOT: bool>;

/// Methods that do the same to both vectors of a pair.
macro_rules! in_both {
    ($(fn $name:ident $(<const $n:ident>)? ($($arg:ident: $ty:ty),*) -> $ret:ident = $f:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name $(<const $n: i32>)? ($($arg: $ty),*) -> $ret {
            unsafe { $ret($f($($arg.0),*), $f($($arg.1),*)) }
        }
    )*};
}

// SAFETY (all methods): as below.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const DOT: bool> Vector for Neon<DOT> {
    type F32 = float32x4x2_t;
    type Bytes = uint8x16x2_t;
    const WIDTH: usize = LANES;

    in_both! {
        fn add(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t = vaddq_f32;
        fn sub(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t = vsubq_f32;
        fn mul(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t = vmulq_f32;
        fn fma(a: float32x4x2_t, b: float32x4x2_t, c: float32x4x2_t) -> float32x4x2_t = fma;
        fn and(a: uint8x16x2_t, b: uint8x16x2_t) -> uint8x16x2_t = vandq_u8;
        fn or(a: uint8x16x2_t, b: uint8x16x2_t) -> uint8x16x2_t = vorrq_u8;
        fn shr16<const N>(a: uint8x16x2_t) -> uint8x16x2_t = shr16::<N>;
        fn shl16<const N>(a: uint8x16x2_t) -> uint8x16x2_t = shl16::<N>;
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe {
            asm!("prfm pldl1keep, [{}]", in(reg) p, options(nostack, readonly, preserves_flags))
        }
    }
    #[inline(always)]
    unsafe fn splat_u8(x: u8) -> uint8x16x2_t {
        unsafe { uint8x16x2_t(vdupq_n_u8(x), vdupq_n_u8(x)) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4x2_t {
        unsafe { float32x4x2_t(vdupq_n_f32(x), vdupq_n_f32(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4x2_t {
        unsafe { float32x4x2_t(vld1q_f32(p), vld1q_f32(p.add(4))) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, x: float32x4x2_t) {
        unsafe {
            vst1q_f32(p, x.0);
            vst1q_f32(p.add(4), x.1);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> float32x4x2_t {
        unsafe {
            let (low, high) = (vld1_u16(p.cast()), vld1_u16(p.add(8).cast()));
            float32x4x2_t(
                vcvt_f32_f16(vreinterpret_f16_u16(low)),
                vcvt_f32_f16(vreinterpret_f16_u16(high)),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> float32x4x2_t {
        unsafe {
            let (low, high) = (vld1_u16(p.cast()), vld1_u16(p.add(8).cast()));
            float32x4x2_t(
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(low))),
                vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(high))),
            )
        }
    }
}

// SAFETY (all methods): the CPU has NEON, dot products when `DOT`, and pointers are valid, by the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<const DOT: bool> Simd for Neon<DOT> {
    type I32 = int32x4x2_t;
    type Wide = Two<Self>;
    /// 8 × i32.
    type Acc = int32x4x2_t;

    in_both! {
        fn div(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t = vdivq_f32;
        fn max(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t = greater;
        fn min(a: float32x4x2_t, b: float32x4x2_t) -> float32x4x2_t = lesser;
        fn abs(a: float32x4x2_t) -> float32x4x2_t = vabsq_f32;
        fn zero_below(value: float32x4x2_t, x: float32x4x2_t, limit: float32x4x2_t) -> float32x4x2_t = zero_below;
        fn round_to_i32(x: float32x4x2_t) -> int32x4x2_t = vcvtnq_s32_f32;
        fn exp2i(n: int32x4x2_t) -> float32x4x2_t = exp2i;
        fn to_f32(x: int32x4x2_t) -> float32x4x2_t = vcvtq_f32_s32;

        fn add_i32(a: int32x4x2_t, b: int32x4x2_t) -> int32x4x2_t = vaddq_s32;
        fn sub_i32(a: int32x4x2_t, b: int32x4x2_t) -> int32x4x2_t = vsubq_s32;
        fn shl_i32<const N>(a: int32x4x2_t) -> int32x4x2_t = vshlq_n_s32::<N>;
        fn dup_lo16(a: int32x4x2_t) -> int32x4x2_t = dup_lo16;
        fn dup_hi16(a: int32x4x2_t) -> int32x4x2_t = dup_hi16;
        fn madd_i16(a: int32x4x2_t, b: int32x4x2_t) -> int32x4x2_t = madd_i16;


        // Weights of `acc_add` are below 64: the same bytes signed.
        fn acc_add(acc: int32x4x2_t, weights: uint8x16x2_t, activations: uint8x16x2_t) -> int32x4x2_t = dot::<DOT>;
        fn acc_widen_scaled(acc: int32x4x2_t, factor: int32x4x2_t) -> int32x4x2_t = scale;
        fn dot_i8(acc: int32x4x2_t, weights: uint8x16x2_t, activations: uint8x16x2_t) -> int32x4x2_t = dot::<DOT>;
    }

    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, x: float32x4x2_t) {
        unsafe {
            vst1_u16(p, to_f16(x.0));
            vst1_u16(p.add(4), to_f16(x.1));
        }
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> int32x4x2_t {
        unsafe { int32x4x2_t(vdupq_n_s32(x), vdupq_n_s32(x)) }
    }
    #[inline(always)]
    unsafe fn load_i32(p: *const i32) -> int32x4x2_t {
        unsafe { int32x4x2_t(vld1q_s32(p), vld1q_s32(p.add(4))) }
    }
    #[inline(always)]
    unsafe fn load_u8_i32(p: *const u8) -> int32x4x2_t {
        unsafe {
            let words = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(p)));
            int32x4x2_t(vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words))
        }
    }
    #[inline(always)]
    unsafe fn load_i8_i16(p: *const u8) -> int32x4x2_t {
        unsafe {
            let bytes = vld1q_s8(p.cast());
            int32x4x2_t(
                vreinterpretq_s32_s16(vmovl_s8(vget_low_s8(bytes))),
                vreinterpretq_s32_s16(vmovl_high_s8(bytes)),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(p: *const u8) -> uint8x16x2_t {
        unsafe { uint8x16x2_t(vld1q_u8(p), vld1q_u8(p.add(16))) }
    }
    #[inline(always)]
    unsafe fn lookup16(table: *const i8, index: uint8x16x2_t) -> uint8x16x2_t {
        unsafe {
            let table = vld1q_u8(table.cast());
            uint8x16x2_t(vqtbl1q_u8(table, index.0), vqtbl1q_u8(table, index.1))
        }
    }
    #[inline(always)]
    unsafe fn narrow_i8([a, b, c, d]: [int32x4x2_t; 4]) -> uint8x16x2_t {
        unsafe {
            let eight = |x: int32x4x2_t| vmovn_s16(vcombine_s16(vmovn_s32(x.0), vmovn_s32(x.1)));
            let sixteen = |x, y| vreinterpretq_u8_s8(vcombine_s8(eight(x), eight(y)));
            uint8x16x2_t(sixteen(a, b), sixteen(c, d))
        }
    }
    #[inline(always)]
    unsafe fn reduce8(v: [float32x4x2_t; 8]) -> float32x4x2_t {
        unsafe {
            // Lanes l and l + 4, then of two vectors l and l + 2, then neighbours.
            let fours = v.map(|x| vreinterpretq_u64_f32(vaddq_f32(x.0, x.1)));
            let twos = |a, b| {
                vaddq_f32(
                    vreinterpretq_f32_u64(vtrn1q_u64(a, b)),
                    vreinterpretq_f32_u64(vtrn2q_u64(a, b)),
                )
            };
            let ones = |i: usize| {
                vpaddq_f32(
                    twos(fours[i], fours[i + 1]),
                    twos(fours[i + 2], fours[i + 3]),
                )
            };
            float32x4x2_t(ones(0), ones(4))
        }
    }
    #[inline(always)]
    unsafe fn load_nibbles(p: *const u8) -> uint8x16x2_t {
        unsafe {
            let x = vld1q_u8(p);
            uint8x16x2_t(vandq_u8(x, vdupq_n_u8(15)), vshrq_n_u8::<4>(x))
        }
    }
    #[inline(always)]
    unsafe fn load_bits(p: *const u8, value: u8) -> uint8x16x2_t {
        unsafe {
            let bit = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
            let both = |at: usize| {
                let bytes = vcombine_u8(vdup_n_u8(*p.add(at)), vdup_n_u8(*p.add(at + 1)));
                vandq_u8(vtstq_u8(bytes, bit), vdupq_n_u8(value))
            };
            uint8x16x2_t(both(0), both(2))
        }
    }
    #[inline(always)]
    unsafe fn transpose8(rows: [uint8x16x2_t; 8]) -> [uint8x16x2_t; 8] {
        unsafe {
            // 4 × 4 words of four vectors.
            let four = |v: [uint8x16_t; 4]| {
                let v = v.map(|x| vreinterpretq_u32_u8(x));
                let (a, b) = (vtrn1q_u32(v[0], v[1]), vtrn2q_u32(v[0], v[1]));
                let (c, d) = (vtrn1q_u32(v[2], v[3]), vtrn2q_u32(v[2], v[3]));
                let low = |a, b| {
                    vreinterpretq_u8_u64(vtrn1q_u64(
                        vreinterpretq_u64_u32(a),
                        vreinterpretq_u64_u32(b),
                    ))
                };
                let high = |a, b| {
                    vreinterpretq_u8_u64(vtrn2q_u64(
                        vreinterpretq_u64_u32(a),
                        vreinterpretq_u64_u32(b),
                    ))
                };
                [low(a, c), low(b, d), high(a, c), high(b, d)]
            };
            let [a, b, c, d, e, f, g, h] = rows;
            let upper = [four([a.0, b.0, c.0, d.0]), four([e.0, f.0, g.0, h.0])];
            let lower = [four([a.1, b.1, c.1, d.1]), four([e.1, f.1, g.1, h.1])];
            std::array::from_fn(|i| {
                let half = if i < 4 { upper } else { lower };
                uint8x16x2_t(half[0][i % 4], half[1][i % 4])
            })
        }
    }
    #[inline(always)]
    unsafe fn splat4(p: *const i8) -> uint8x16x2_t {
        unsafe {
            let four = vreinterpretq_u8_u32(vdupq_n_u32(p.cast::<u32>().read_unaligned()));
            uint8x16x2_t(four, four)
        }
    }

    #[inline(always)]
    unsafe fn acc_zero() -> int32x4x2_t {
        unsafe { Self::splat_i32(0) }
    }
    #[inline(always)]
    unsafe fn acc_widen(acc: int32x4x2_t) -> int32x4x2_t {
        acc
    }
    /// (low + high) << `N` of the i16 pair at `p` in every lane.
    #[inline(always)]
    unsafe fn acc_start<const N: i32>(p: *const i32) -> int32x4x2_t {
        unsafe {
            let pair = vreinterpretq_s16_s32(vdupq_n_s32(p.read_unaligned()));
            let sums = vshlq_n_s32::<N>(vpaddlq_s16(pair));
            int32x4x2_t(sums, sums)
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, x: uint8x16x2_t) {
        unsafe {
            vst1q_u8(p, x.0);
            vst1q_u8(p.add(16), x.1);
        }
    }
    #[inline(always)]
    unsafe fn store_i32(p: *mut i32, x: int32x4x2_t) {
        unsafe {
            vst1q_s32(p, x.0);
            vst1q_s32(p.add(4), x.1);
        }
    }
}

/// `a * b + c`.
#[inline(always)]
unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
    // SAFETY: registers only, as in all functions below; NEON is the caller's duty.
    unsafe { vfmaq_f32(c, a, b) }
}

/// `a > b ? a : b`, which `vmaxq_f32` is not when there is a NaN.
#[inline(always)]
unsafe fn greater(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: see `fma`.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// `a < b ? a : b`.
#[inline(always)]
unsafe fn lesser(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: see `fma`.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

/// `x < limit ? 0 : value`.
#[inline(always)]
unsafe fn zero_below(value: float32x4_t, x: float32x4_t, limit: float32x4_t) -> float32x4_t {
    // SAFETY: see `fma`.
    unsafe { vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(value), vcltq_f32(x, limit))) }
}

/// `2^n`.
#[inline(always)]
unsafe fn exp2i(n: int32x4_t) -> float32x4_t {
    // SAFETY: see `fma`.
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(n, vdupq_n_s32(127)))) }
}

/// Half precision, saturating at ±65504; NaN stays.
#[inline(always)]
unsafe fn to_f16(x: float32x4_t) -> uint16x4_t {
    // SAFETY: see `fma`.
    unsafe {
        let x = greater(vdupq_n_f32(-65504.0), lesser(vdupq_n_f32(65504.0), x));
        vreinterpret_u16_f16(vcvt_f16_f32(x))
    }
}

/// The low halves of the lanes in both halves.
#[inline(always)]
unsafe fn dup_lo16(a: int32x4_t) -> int32x4_t {
    // SAFETY: see `fma`.
    unsafe {
        let a = vreinterpretq_s16_s32(a);
        vreinterpretq_s32_s16(vtrn1q_s16(a, a))
    }
}

/// The high halves of the lanes in both halves.
#[inline(always)]
unsafe fn dup_hi16(a: int32x4_t) -> int32x4_t {
    // SAFETY: see `fma`.
    unsafe {
        let a = vreinterpretq_s16_s32(a);
        vreinterpretq_s32_s16(vtrn2q_s16(a, a))
    }
}

/// Sums of the two products of each lane.
#[inline(always)]
unsafe fn madd_i16(a: int32x4_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: see `fma`.
    unsafe {
        let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
        let low = vmull_s16(vget_low_s16(a), vget_low_s16(b));
        vpaddq_s32(low, vmull_high_s16(a, b))
    }
}

/// Every 16-bit group shifted right.
#[inline(always)]
unsafe fn shr16<const N: i32>(a: uint8x16_t) -> uint8x16_t {
    // SAFETY: see `fma`.
    unsafe { vreinterpretq_u8_u16(vshrq_n_u16::<N>(vreinterpretq_u16_u8(a))) }
}

/// Every 16-bit group shifted left.
#[inline(always)]
unsafe fn shl16<const N: i32>(a: uint8x16_t) -> uint8x16_t {
    // SAFETY: see `fma`.
    unsafe { vreinterpretq_u8_u16(vshlq_n_u16::<N>(vreinterpretq_u16_u8(a))) }
}

/// Sums times the factor that both halves of a lane hold: shifting the upper one down extends its sign.
#[inline(always)]
unsafe fn scale(acc: int32x4_t, factor: int32x4_t) -> int32x4_t {
    // SAFETY: see `fma`.
    unsafe { vmulq_s32(acc, vshrq_n_s32::<16>(factor)) }
}

/// Adds to every 32-bit lane its four products of signed bytes; `b` is above -128.
///
/// # Safety
/// The CPU has NEON, and dot products when `DOT`.
#[inline(always)]
unsafe fn dot<const DOT: bool>(acc: int32x4_t, a: uint8x16_t, b: uint8x16_t) -> int32x4_t {
    // SAFETY: registers only; the instruction set is the caller's duty.
    unsafe {
        if DOT {
            let mut sums = acc;
            // The intrinsic is not stable: https://github.com/rust-lang/rust/issues/117224
            asm!(
                ".arch_extension dotprod",
                "sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b",
                sums = inout(vreg) sums,
                a = in(vreg) a,
                b = in(vreg) b,
                options(pure, nomem, nostack, preserves_flags),
            );
            sums
        } else {
            // Two products fit 16 bits: 2 * 128 * 127 = 32512.
            let (a, b) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
            let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
            vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(a, b)))
        }
    }
}
