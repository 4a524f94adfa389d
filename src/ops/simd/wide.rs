//! Sixteen lanes: what matrix products and attention are written against. Two vectors of [`Simd`], or one where the CPU has 512 bits.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::{LANES, Simd, Vector};

/// Sixteen 32-bit lanes, or 64 bytes. Methods that have the name of one of [`Simd`] do the same, in twice the lanes.
///
/// # Safety
/// As for [`Simd`].
#[allow(missing_docs, clippy::missing_safety_doc)]
pub trait Wide: Vector {
    /// 16 × i32; also 32 × i16 where a method says so.
    type I32: Copy;
    /// Sums of products of unsigned weight codes with signed activations, one per 32-bit lane, before widening.
    type Acc: Copy;

    /// Panels of packed weights or rows of float ones that prompts' kernels multiply at once, and tiles of activations in small batches:
    /// there are registers for so many sums.
    const AT_ONCE: usize;
    /// Whether [`Wide::Acc`] has 32 bits per sum, so that nothing needs to be widened on the way.
    const WIDE_SUMS: bool = false;
    /// [`Simd::MATRICES`]; levels without them need not have the methods for them.
    const MATRICES: bool;

    unsafe fn exp2i(n: Self::I32) -> Self::F32;
    unsafe fn to_f32(x: Self::I32) -> Self::F32;

    unsafe fn splat_i32(x: i32) -> Self::I32;
    unsafe fn add_i32(a: Self::I32, b: Self::I32) -> Self::I32;
    unsafe fn sub_i32(a: Self::I32, b: Self::I32) -> Self::I32;
    unsafe fn load_i32(p: *const i32) -> Self::I32;
    unsafe fn store_i32(p: *mut i32, x: Self::I32);
    /// 16 bytes, zero-extended.
    unsafe fn load_u8_i32(p: *const u8) -> Self::I32;
    /// 32 signed bytes as 32 × i16.
    unsafe fn load_i8_i16(p: *const u8) -> Self::I32;
    unsafe fn dup_lo16(a: Self::I32) -> Self::I32;
    unsafe fn dup_hi16(a: Self::I32) -> Self::I32;
    unsafe fn madd_i16(a: Self::I32, b: Self::I32) -> Self::I32;

    unsafe fn load_bytes(p: *const u8) -> Self::Bytes;
    unsafe fn store_bytes(p: *mut u8, x: Self::Bytes);
    unsafe fn lookup16(table: *const i8, index: Self::Bytes) -> Self::Bytes;

    unsafe fn acc_start<const N: i32>(p: *const i32) -> Self::Acc;
    unsafe fn acc_zero() -> Self::Acc;
    /// For `M` rows: to `accs[m]` go the products of `weights` and the four bytes at `x + m`, within the limits of [`Simd::acc_add`].
    unsafe fn acc_add_rows<const M: usize>(
        accs: &mut [Self::Acc; M],
        weights: Self::Bytes,
        x: *const i32,
    );
    unsafe fn acc_widen(acc: Self::Acc) -> Self::I32;
    unsafe fn acc_widen_scaled(acc: Self::Acc, factor: Self::I32) -> Self::I32;
    /// For [`Wide::both_halves`]: what is known of a group when the sums of its first half are.
    ///
    /// `factors` are the integer factors of both halves (in both halves of a lane); the sums fit 16 bits when `SMALL`.
    #[inline(always)]
    unsafe fn first_half<const SMALL: bool>(acc: Self::Acc, factors: [Self::I32; 2]) -> Self::I32 {
        // SAFETY: no memory is touched.
        unsafe { Self::acc_widen_scaled(acc, factors[0]) }
    }
    /// The sums of both halves of a group, each times its factor, added up.
    #[inline(always)]
    unsafe fn both_halves<const SMALL: bool>(
        first: Self::I32,
        acc: Self::Acc,
        factors: [Self::I32; 2],
    ) -> Self::I32 {
        // SAFETY: no memory is touched.
        unsafe { Self::add_i32(first, Self::acc_widen_scaled(acc, factors[1])) }
    }

    unsafe fn signed(weights: Self::Bytes) -> Self::Bytes;
    unsafe fn signed_start(p: *const i32) -> Self::I32;
    /// For `M` rows: to `sums[m]` are added the products of `weights` ([`Simd::signed`]) and the four bytes at `x + m`.
    unsafe fn dot_rows<const M: usize>(
        sums: &mut [Self::I32; M],
        weights: Self::Bytes,
        x: *const i32,
    );

    #[inline(always)]
    unsafe fn join(_: Self::Bytes, _: Self::Bytes) -> [Self::Bytes; 2] {
        unreachable!("{NO_MATRICES}")
    }
    #[inline(always)]
    unsafe fn to_matrices(_: [Self::I32; 2]) -> [Self::I32; 2] {
        unreachable!("{NO_MATRICES}")
    }
    #[inline(always)]
    unsafe fn from_matrices(_: [Self::I32; 2]) -> [Self::I32; 2] {
        unreachable!("{NO_MATRICES}")
    }
    /// [`Simd::dot_joined`], of one joined pair of chunks.
    #[inline(always)]
    unsafe fn dot_joined<const M: usize, const STRIDE: usize>(
        _: &mut [Self::I32; M],
        _: [Self::Bytes; 2],
        _: *const i32,
    ) {
        unreachable!("{NO_MATRICES}")
    }
    unsafe fn scale_i32(sums: Self::I32, factor: Self::I32) -> Self::I32;
}

const NO_MATRICES: &str = "a level without products of matrices";

/// Two vectors of `V`, side by side.
#[derive(Debug, Clone, Copy)]
pub struct Two<V>(PhantomData<V>);

/// Methods without memory or lanes that cross: those of `V`, twice.
macro_rules! twice {
    ($(fn $name:ident $(<const $n:ident>)? ($($arg:ident: $ty:ident),*) -> $ret:ident;)*) => {$(
        #[inline(always)]
        unsafe fn $name $(<const $n: i32>)? ($($arg: [V::$ty; 2]),*) -> [V::$ret; 2] {
            unsafe { [V::$name $(::<$n>)? ($($arg[0]),*), V::$name $(::<$n>)? ($($arg[1]),*)] }
        }
    )*};
}

/// Loads: the second vector lies so many elements behind the first.
macro_rules! loads {
    ($(fn $name:ident(*const $element:ty, $step:expr) -> $ret:ident;)*) => {$(
        #[inline(always)]
        unsafe fn $name(p: *const $element) -> [V::$ret; 2] {
            unsafe { [V::$name(p), V::$name(p.add($step))] }
        }
    )*};
}

// SAFETY (all methods): the CPU has what `V` needs, and pointers are valid, by the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Simd> Vector for Two<V> {
    type F32 = [V::F32; 2];
    type Bytes = [V::Bytes; 2];
    const WIDTH: usize = 2 * LANES;

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { V::prefetch(p) }
    }
    #[inline(always)]
    unsafe fn splat_u8(x: u8) -> [V::Bytes; 2] {
        unsafe { [V::splat_u8(x); 2] }
    }
    twice! {
        fn add(a: F32, b: F32) -> F32;
        fn sub(a: F32, b: F32) -> F32;
        fn mul(a: F32, b: F32) -> F32;
        fn fma(a: F32, b: F32, c: F32) -> F32;
        fn and(a: Bytes, b: Bytes) -> Bytes;
        fn or(a: Bytes, b: Bytes) -> Bytes;
        fn shr16<const N>(a: Bytes) -> Bytes;
        fn shl16<const N>(a: Bytes) -> Bytes;
    }
    loads! {
        fn load(*const f32, LANES) -> F32;
        fn load_f16(*const u8, 2 * LANES) -> F32;
        fn load_bf16(*const u8, 2 * LANES) -> F32;
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> [V::F32; 2] {
        unsafe { [V::splat(x); 2] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, [low, high]: [V::F32; 2]) {
        unsafe {
            V::store(p, low);
            V::store(p.add(LANES), high);
        }
    }
}

// SAFETY (all methods): as above.
#[allow(clippy::undocumented_unsafe_blocks)]
impl<V: Simd> Wide for Two<V> {
    type I32 = [V::I32; 2];
    type Acc = [V::Acc; 2];

    const AT_ONCE: usize = 1;
    const MATRICES: bool = V::MATRICES;

    twice! {
        fn exp2i(n: I32) -> F32;
        fn to_f32(x: I32) -> F32;
        fn add_i32(a: I32, b: I32) -> I32;
        fn sub_i32(a: I32, b: I32) -> I32;
        fn dup_lo16(a: I32) -> I32;
        fn dup_hi16(a: I32) -> I32;
        fn madd_i16(a: I32, b: I32) -> I32;
        fn acc_widen(acc: Acc) -> I32;
        fn acc_widen_scaled(acc: Acc, factor: I32) -> I32;
        fn signed(weights: Bytes) -> Bytes;
        fn scale_i32(sums: I32, factor: I32) -> I32;
    }
    loads! {
        fn load_i32(*const i32, LANES) -> I32;
        fn load_u8_i32(*const u8, LANES) -> I32;
        fn load_i8_i16(*const u8, 2 * LANES) -> I32;
        fn load_bytes(*const u8, 4 * LANES) -> Bytes;
    }
    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> [V::I32; 2] {
        unsafe { [V::splat_i32(x); 2] }
    }
    #[inline(always)]
    unsafe fn store_i32(p: *mut i32, [low, high]: [V::I32; 2]) {
        unsafe {
            V::store_i32(p, low);
            V::store_i32(p.add(LANES), high);
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(p: *mut u8, [low, high]: [V::Bytes; 2]) {
        unsafe {
            V::store_bytes(p, low);
            V::store_bytes(p.add(4 * LANES), high);
        }
    }
    #[inline(always)]
    unsafe fn lookup16(table: *const i8, index: [V::Bytes; 2]) -> [V::Bytes; 2] {
        unsafe { index.map(|index| V::lookup16(table, index)) }
    }
    #[inline(always)]
    unsafe fn acc_start<const N: i32>(p: *const i32) -> [V::Acc; 2] {
        unsafe { [V::acc_start::<N>(p); 2] }
    }
    #[inline(always)]
    unsafe fn acc_zero() -> [V::Acc; 2] {
        unsafe { [V::acc_zero(); 2] }
    }
    #[inline(always)]
    unsafe fn acc_add_rows<const M: usize>(
        accs: &mut [[V::Acc; 2]; M],
        weights: [V::Bytes; 2],
        x: *const i32,
    ) {
        unsafe { V::acc_add_rows::<M>(accs, weights, x) }
    }
    #[inline(always)]
    unsafe fn signed_start(p: *const i32) -> [V::I32; 2] {
        unsafe { [V::signed_start(p); 2] }
    }
    #[inline(always)]
    unsafe fn dot_rows<const M: usize>(
        sums: &mut [[V::I32; 2]; M],
        weights: [V::Bytes; 2],
        x: *const i32,
    ) {
        unsafe {
            for (m, [first, second]) in sums.iter_mut().enumerate() {
                let four = V::splat4(x.add(m).cast());
                *first = V::dot_i8(*first, weights[0], four);
                *second = V::dot_i8(*second, weights[1], four);
            }
        }
    }
    #[inline(always)]
    unsafe fn join(first: [V::Bytes; 2], second: [V::Bytes; 2]) -> [[V::Bytes; 2]; 2] {
        unsafe {
            let ([a, b], [c, d]) = (V::join(first[0], second[0]), V::join(first[1], second[1]));
            [[a, c], [b, d]]
        }
    }
    #[inline(always)]
    unsafe fn to_matrices([a, b]: [[V::I32; 2]; 2]) -> [[V::I32; 2]; 2] {
        unsafe {
            let ([c, d], [e, f]) = (V::to_matrices([a[0], b[0]]), V::to_matrices([a[1], b[1]]));
            [[c, e], [d, f]]
        }
    }
    #[inline(always)]
    unsafe fn from_matrices([a, b]: [[V::I32; 2]; 2]) -> [[V::I32; 2]; 2] {
        unsafe {
            let ([c, d], [e, f]) = (
                V::from_matrices([a[0], b[0]]),
                V::from_matrices([a[1], b[1]]),
            );
            [[c, e], [d, f]]
        }
    }
    #[inline(always)]
    unsafe fn dot_joined<const M: usize, const STRIDE: usize>(
        sums: &mut [[V::I32; 2]; M],
        [first, second]: [[V::Bytes; 2]; 2],
        x: *const i32,
    ) {
        let weights = [[first[0], second[0]], [first[1], second[1]]];
        unsafe { V::dot_joined::<M, STRIDE>(sums, weights, x) }
    }
}
