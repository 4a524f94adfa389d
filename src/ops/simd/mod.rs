//! The vector type that every CPU kernel is written against, its instruction sets and its software twin.
//!
//! A kernel is one generic body over [`Simd`]; each instruction set gives the same bits because
//! - float lanes only ever add, multiply, divide and fuse within their own lane (IEEE, correctly rounded everywhere),
//! - crossing lanes happens in one place, [`sum16`], with a fixed tree,
//! - integer products are exact, in whatever order and width an instruction set likes.
//!
//! The macro `simd_kernel!` makes the dispatching entry point of a body.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
pub mod math;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_i8mm;
mod scalar;
pub mod softmax;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;
pub mod wide;
#[cfg(target_arch = "x86_64")]
mod zmm;

use super::cpu_level::CpuLevel;
#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
#[cfg(target_arch = "aarch64")]
pub use neon_i8mm::NeonI8mm;
pub use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub use vnni::Vnni;
pub use wide::Wide;
#[cfg(target_arch = "x86_64")]
pub use zmm::Zmm;

/// Float lanes of one vector.
pub const LANES: usize = 8;
/// Partial sums of a float dot product: element k goes to sum k mod 16 (`docs/architecture.md`, table of constants).
pub const SUM_LANES: usize = 16;

/// Two i16 in one word, low half first.
#[inline(always)]
pub const fn pair(low: i32, high: i32) -> i32 {
    (low & 0xffff) | (high << 16)
}

/// What vectors of any width have.
///
/// # Safety
/// As for [`Simd`].
#[allow(missing_docs, clippy::missing_safety_doc)]
pub trait Vector: Copy + 'static {
    /// 8 × f32 of [`Simd`], 16 of [`Wide`].
    type F32: Copy;
    /// 32 bytes of [`Simd`], 64 of [`Wide`].
    type Bytes: Copy;
    /// 32-bit lanes.
    const WIDTH: usize;

    unsafe fn splat(x: f32) -> Self::F32;
    unsafe fn load(p: *const f32) -> Self::F32;
    unsafe fn store(p: *mut f32, x: Self::F32);
    /// Half-precision floats.
    unsafe fn load_f16(p: *const u8) -> Self::F32;
    /// Bfloat16.
    unsafe fn load_bf16(p: *const u8) -> Self::F32;
    unsafe fn add(a: Self::F32, b: Self::F32) -> Self::F32;
    unsafe fn sub(a: Self::F32, b: Self::F32) -> Self::F32;
    unsafe fn mul(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;

    /// A hint that the cache line at `p`, which need not be readable, will be read soon.
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        let _ = p;
    }

    unsafe fn splat_u8(x: u8) -> Self::Bytes;
    unsafe fn and(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    unsafe fn or(a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// Every 16-bit group shifted right by `N`; callers mask the bits that cross a byte.
    unsafe fn shr16<const N: i32>(a: Self::Bytes) -> Self::Bytes;
    /// Every 16-bit group shifted left by `N`.
    unsafe fn shl16<const N: i32>(a: Self::Bytes) -> Self::Bytes;
}

/// Eight 32-bit lanes, or 32 bytes, of one instruction set.
///
/// # Safety
/// Every method requires that the CPU has the instruction set, and every pointer that the bytes the vector covers are
/// readable (or writable); no alignment is required. Methods are `#[inline(always)]` into kernels that were compiled for
/// the instruction set.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub trait Simd: Vector {
    /// Sixteen lanes of the same instruction set, for the matrix products.
    type Wide: Wide;
    /// 8 × i32; also 16 × i16 where a method says so.
    type I32: Copy;
    /// Sums of products of unsigned weight codes with signed activations, one per 32-bit lane, before widening.
    type Acc: Copy;

    /// To half precision, ties to even, finite values saturate at ±65504.
    unsafe fn store_f16(p: *mut u16, x: Self::F32);
    unsafe fn div(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a > b ? a : b` (so `b` when either is NaN).
    unsafe fn max(a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a < b ? a : b`.
    unsafe fn min(a: Self::F32, b: Self::F32) -> Self::F32;
    unsafe fn abs(a: Self::F32) -> Self::F32;
    /// `x < limit ? 0 : value` (so `value` when `x` is NaN).
    unsafe fn zero_below(value: Self::F32, x: Self::F32, limit: Self::F32) -> Self::F32;
    /// To the nearest integer, ties to even; inputs are within i32.
    unsafe fn round_to_i32(x: Self::F32) -> Self::I32;
    /// `2^n` for n in -126..=127; -127 gives 0, 128 infinity.
    unsafe fn exp2i(n: Self::I32) -> Self::F32;
    unsafe fn to_f32(x: Self::I32) -> Self::F32;

    /// The sum of each vector's lanes, by the tree of [`sum16`] from its second level on: (l, l+4), (l, l+2), (l, l+1).
    #[inline(always)]
    unsafe fn reduce8(vectors: [Self::F32; LANES]) -> Self::F32 {
        let mut sums = [0.0_f32; LANES];
        for (sum, vector) in sums.iter_mut().zip(vectors) {
            let mut lanes = [0.0_f32; LANES];
            // SAFETY: the array holds one vector.
            unsafe { Self::store(lanes.as_mut_ptr(), vector) };
            *sum = sum8(&lanes);
        }
        // SAFETY: the array holds one vector.
        unsafe { Self::load(sums.as_ptr()) }
    }

    unsafe fn splat_i32(x: i32) -> Self::I32;
    unsafe fn add_i32(a: Self::I32, b: Self::I32) -> Self::I32;
    unsafe fn sub_i32(a: Self::I32, b: Self::I32) -> Self::I32;
    unsafe fn shl_i32<const N: i32>(a: Self::I32) -> Self::I32;
    unsafe fn load_i32(p: *const i32) -> Self::I32;
    /// 8 bytes, zero-extended.
    unsafe fn load_u8_i32(p: *const u8) -> Self::I32;
    /// 16 signed bytes as 16 × i16.
    unsafe fn load_i8_i16(p: *const u8) -> Self::I32;
    /// The low 16 bits of every 32-bit lane in both halves (as 2 × i16 per lane).
    unsafe fn dup_lo16(a: Self::I32) -> Self::I32;
    /// The high 16 bits of every 32-bit lane in both halves.
    unsafe fn dup_hi16(a: Self::I32) -> Self::I32;
    /// Per 32-bit lane the sum of the two products of its signed 16-bit halves.
    unsafe fn madd_i16(a: Self::I32, b: Self::I32) -> Self::I32;

    unsafe fn load_bytes(p: *const u8) -> Self::Bytes;
    /// 16 bytes: their low halves, then their high halves.
    unsafe fn load_nibbles(p: *const u8) -> Self::Bytes;
    /// 4 bytes: `value` where bit i is set, in byte i.
    unsafe fn load_bits(p: *const u8, value: u8) -> Self::Bytes;
    /// Lane i of vector j becomes lane j of vector i.
    unsafe fn transpose8(rows: [Self::Bytes; 8]) -> [Self::Bytes; 8];
    /// `table[index]` per byte; indices are below 16.
    unsafe fn lookup16(table: *const i8, index: Self::Bytes) -> Self::Bytes;
    /// The same four bytes in every lane.
    unsafe fn splat4(p: *const i8) -> Self::Bytes;

    /// 32 integers within i8 as bytes.
    unsafe fn narrow_i8(integers: [Self::I32; 4]) -> Self::Bytes;

    unsafe fn store_bytes(p: *mut u8, x: Self::Bytes);
    unsafe fn store_i32(p: *mut i32, x: Self::I32);

    /// What [`Simd::acc_start`] and [`Simd::signed_start`] read of the sums (within i16) that the two 16-bit halves of a lane begin with:
    /// the two as i16, or on levels whose accumulators have 32 bits what these need.
    #[inline(always)]
    fn start_word(low: i32, high: i32) -> i32 {
        pair(low, high)
    }
    /// An accumulator that starts in every lane at the two sums of the word at `p` ([`Simd::start_word`]), each times `2^N` (within i16).
    unsafe fn acc_start<const N: i32>(p: *const i32) -> Self::Acc;
    unsafe fn acc_zero() -> Self::Acc;
    /// Adds the four products of each lane: weights are unsigned and below 64, activations signed and above -128.
    ///
    /// Between [`Simd::acc_zero`] and widening at most 8 additions of weights below 16, 4 below 32, 2 below 64; after
    /// [`Simd::acc_start`] as many as leave the whole sums of both halves of a lane within i16.
    unsafe fn acc_add(acc: Self::Acc, weights: Self::Bytes, activations: Self::Bytes) -> Self::Acc;
    /// [`Simd::acc_add`] for `M` rows and two vectors of weights: to `accs[m][p]` go the products of `weights[p]` and the four bytes
    /// at `x + m`.
    #[inline(always)]
    unsafe fn acc_add_rows<const M: usize>(
        accs: &mut [[Self::Acc; 2]; M],
        weights: [Self::Bytes; 2],
        x: *const i32,
    ) {
        // SAFETY: the caller's duty.
        unsafe {
            for (m, [first, second]) in accs.iter_mut().enumerate() {
                let four = Self::splat4(x.add(m).cast());
                *first = Self::acc_add(*first, weights[0], four);
                *second = Self::acc_add(*second, weights[1], four);
            }
        }
    }
    /// The sums as integers.
    unsafe fn acc_widen(acc: Self::Acc) -> Self::I32;
    /// The sums times a factor per lane, given as the same i16 in both halves of the lane.
    unsafe fn acc_widen_scaled(acc: Self::Acc, factor: Self::I32) -> Self::I32;
    /// Signed weights as [`Simd::dot_i8`] takes them.
    #[inline(always)]
    unsafe fn signed(weights: Self::Bytes) -> Self::Bytes {
        weights
    }
    /// What sums of [`Simd::dot_i8`] begin with, of all products that are added to them; the word at `p` ([`Simd::start_word`]) is of -8
    /// times the sums of the activations in the two halves of a lane.
    #[inline(always)]
    unsafe fn signed_start(p: *const i32) -> Self::I32 {
        let _ = p;
        // SAFETY: no memory is touched.
        unsafe { Self::splat_i32(0) }
    }
    /// Adds the four products of each lane to `acc`: weights as [`Simd::signed`] gives them, activations signed and above -128. Sums that
    /// began with [`Simd::signed_start`] are those of the signed weights at their end.
    unsafe fn dot_i8(acc: Self::I32, weights: Self::Bytes, activations: Self::Bytes) -> Self::I32;

    /// Whether kernels of several rows multiply matrices of 2 × 8 and 8 × 2 bytes: with [`Simd::dot_joined`]. Other levels have the
    /// methods from here on too, but no kernel calls them there.
    const MATRICES: bool = false;
    /// Two vectors of four bytes per row as two vectors of eight bytes per row, in an order of the level's own.
    #[inline(always)]
    unsafe fn join(first: Self::Bytes, second: Self::Bytes) -> [Self::Bytes; 2] {
        [first, second]
    }
    /// Sums of two rows of activations, in an order of the level's own: that of [`Simd::dot_joined`].
    #[inline(always)]
    unsafe fn to_matrices(sums: [Self::I32; 2]) -> [Self::I32; 2] {
        sums
    }
    /// What [`Simd::to_matrices`] was given.
    #[inline(always)]
    unsafe fn from_matrices(sums: [Self::I32; 2]) -> [Self::I32; 2] {
        sums
    }
    /// Two times [`Simd::dot_i8`], of weights that [`Simd::signed`] leaves as they are, for `M` rows (an even number) and two joined pairs
    /// of weights: to `sums[m][p]` are added the products of the first vector of `weights[p]` and the four bytes at `x + m`, and those of
    /// the second and the four at `x + STRIDE + m`. With a `STRIDE` of 1 every row has the same bytes.
    #[inline(always)]
    unsafe fn dot_joined<const M: usize, const STRIDE: usize>(
        sums: &mut [[Self::I32; 2]; M],
        weights: [[Self::Bytes; 2]; 2],
        x: *const i32,
    ) {
        // SAFETY: the caller's duty.
        unsafe {
            for (m, sums) in sums.iter_mut().enumerate() {
                for (sum, weights) in sums.iter_mut().zip(weights) {
                    for (c, weights) in weights.into_iter().enumerate() {
                        let four = Self::splat4(x.add(c * STRIDE + m % STRIDE).cast());
                        *sum = Self::dot_i8(*sum, weights, four);
                    }
                }
            }
        }
    }
    /// Sums times a factor per lane, given as the same i16 in both halves of the lane; products are within i32.
    #[inline(always)]
    unsafe fn scale_i32(sums: Self::I32, factor: Self::I32) -> Self::I32 {
        let (mut lanes, mut factors) = ([0_i32; LANES], [0_i32; LANES]);
        // SAFETY: the arrays hold one vector each.
        unsafe {
            Self::store_i32(lanes.as_mut_ptr(), sums);
            Self::store_i32(factors.as_mut_ptr(), factor);
            for (lane, factor) in lanes.iter_mut().zip(factors) {
                *lane = lane.wrapping_mul(factor >> 16);
            }
            Self::load_i32(lanes.as_ptr())
        }
    }
}

/// Adds sixteen lanes with the fixed tree: (l, l+8), (l, l+4), (l, l+2), (l, l+1).
pub fn sum16(lanes: &[f32; SUM_LANES]) -> f32 {
    let eight: [f32; 8] = std::array::from_fn(|i| lanes[i] + lanes[i + 8]);
    let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
    let two = [four[0] + four[2], four[1] + four[3]];
    two[0] + two[1]
}

/// [`sum16`] of two vectors (lanes 0–7 and 8–15).
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn reduce_sum<V: Simd>(low: V::F32, high: V::F32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    // SAFETY: the array holds one vector.
    unsafe { V::store(lanes.as_mut_ptr(), V::add(low, high)) };
    sum8(&lanes)
}

#[inline(always)]
fn sum8(lanes: &[f32; LANES]) -> f32 {
    let four: [f32; 4] = std::array::from_fn(|i| lanes[i] + lanes[i + 4]);
    let two = [four[0] + four[2], four[1] + four[3]];
    two[0] + two[1]
}

/// Makes `fn $name(level, args…)`, which runs the generic `unsafe fn $body::<V>(args…)` compiled for the CPU level.
///
/// The body may assume that the CPU has `V`'s instruction set; its other duties are the caller's. `= $body, no twin` leaves
/// the software twin out: then the caller never asks for it. A kernel that multiplies bytes ends with `; products`; all others would not
/// differ on the levels that only have other products of bytes, `avx-vnni` and `neon-i8mm`, and run the code of the level below them.
macro_rules! simd_kernel {
    (@products [] $own:block $below:block) => { $below };
    (@products [products] $own:block $below:block) => { $own };
    (@twin [] $body:ident [$($c:ident),*] [$($arg:ident),*]) => {
        // SAFETY: the software twin needs no instruction set; the rest is the caller's duty.
        unsafe { $body::<$crate::ops::simd::Scalar $(, $c)*>($($arg),*) }
    };
    (@twin [no twin] $($rest:tt)*) => {
        unreachable!("this kernel has no software twin")
    };
    ($(#[$doc:meta])* $vis:vis unsafe fn $name:ident $(<$(const $c:ident: $ct:ty),*>)? ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:ident $(, $no:ident $twin:ident)? $(; $products:ident)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name $(<$(const $c: $ct),*>)? (level: $crate::ops::cpu_level::CpuLevel, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx2 $(<$(const $c: $ct),*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is only called when the level says that the CPU has AVX2, FMA and F16C.
                unsafe { $body::<$crate::ops::simd::Avx2 $($(, $c)*)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c,bmi1,bmi2")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512 $(<$(const $c: $ct),*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is only called when the level says that the CPU has all of these.
                unsafe { $body::<$crate::ops::simd::Vnni<true> $($(, $c)*)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avxvnni,avx2,fma,f16c,bmi1,bmi2")]
            #[allow(clippy::too_many_arguments)]
            #[allow(dead_code, reason = "without products of bytes it would be the AVX2 function again")]
            unsafe fn avx_vnni $(<$(const $c: $ct),*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is only called when the level says that the CPU has all of these.
                unsafe { $body::<$crate::ops::simd::Vnni<false> $($(, $c)*)?>($($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn neon $(<$(const $c: $ct),*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is only called when the level says that the CPU has NEON.
                unsafe { $body::<$crate::ops::simd::Neon<false> $($(, $c)*)?>($($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon,dotprod")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn neon_dot $(<$(const $c: $ct),*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is only called when the level says that the CPU has NEON and dot products.
                unsafe { $body::<$crate::ops::simd::Neon<true> $($(, $c)*)?>($($arg),*) }
            }
            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon,dotprod,i8mm")]
            #[allow(clippy::too_many_arguments)]
            #[allow(dead_code, reason = "without products of bytes it would be the function above again")]
            unsafe fn neon_i8mm $(<$(const $c: $ct),*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function is only called when the level says that the CPU has NEON, dot products and i8mm.
                unsafe { $body::<$crate::ops::simd::NeonI8mm $($(, $c)*)?>($($arg),*) }
            }
            match level {
                #[cfg(target_arch = "x86_64")]
                // SAFETY: the level was detected on this CPU; the rest is the caller's duty.
                $crate::ops::cpu_level::CpuLevel::Avx2 => unsafe { avx2 $(::<$($c),*>)? ($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::ops::cpu_level::CpuLevel::AvxVnni => unsafe {
                    $crate::ops::simd::simd_kernel!(@products [$($products)?] { avx_vnni $(::<$($c),*>)? ($($arg),*) } { avx2 $(::<$($c),*>)? ($($arg),*) })
                },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::ops::cpu_level::CpuLevel::Avx512 => unsafe { avx512 $(::<$($c),*>)? ($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: as above.
                $crate::ops::cpu_level::CpuLevel::Neon => unsafe { neon $(::<$($c),*>)? ($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: as above.
                $crate::ops::cpu_level::CpuLevel::NeonDot => unsafe { neon_dot $(::<$($c),*>)? ($($arg),*) },
                #[cfg(target_arch = "aarch64")]
                // SAFETY: as above.
                $crate::ops::cpu_level::CpuLevel::NeonI8mm => unsafe {
                    $crate::ops::simd::simd_kernel!(@products [$($products)?] { neon_i8mm $(::<$($c),*>)? ($($arg),*) } { neon_dot $(::<$($c),*>)? ($($arg),*) })
                },
                _ => $crate::ops::simd::simd_kernel!(@twin [$($no $twin)?] $body [$($($c),*)?] [$($arg),*]),
            }
        }
    };
}
pub(crate) use simd_kernel;

/// [`Wide::AT_ONCE`] of a level of this CPU.
pub fn at_once(level: CpuLevel) -> usize {
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { at_once_kernel(level) }
}

simd_kernel! {
    /// [`at_once`].
    unsafe fn at_once_kernel() -> usize = at_once_body
}

#[inline(always)]
unsafe fn at_once_body<V: Simd>() -> usize {
    V::Wide::AT_ONCE
}

/// Elements `at..at + 8` of `x`, zeros past its end.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn load_part<V: Simd>(x: &[f32], at: usize) -> V::F32 {
    if at + LANES <= x.len() {
        // SAFETY: eight elements lie inside the slice.
        return unsafe { V::load(x.as_ptr().add(at)) };
    }
    let mut lanes = [0.0_f32; LANES];
    let rest = &x[at.min(x.len())..];
    lanes[..rest.len()].copy_from_slice(rest);
    // SAFETY: the array holds one vector.
    unsafe { V::load(lanes.as_ptr()) }
}

/// Writes the lanes that fall inside `x` to elements `at..at + 8`.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn store_part<V: Simd>(x: &mut [f32], at: usize, value: V::F32) {
    if at + LANES <= x.len() {
        // SAFETY: eight elements lie inside the slice.
        return unsafe { V::store(x.as_mut_ptr().add(at), value) };
    }
    let mut lanes = [0.0_f32; LANES];
    // SAFETY: the array holds one vector.
    unsafe { V::store(lanes.as_mut_ptr(), value) };
    let rest = &mut x[at..];
    let count = rest.len();
    rest.copy_from_slice(&lanes[..count]);
}
