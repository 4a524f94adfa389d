//! Parts of bytes, moved to where a code needs them. Shifts cross bytes; what crosses is masked away.
#![allow(unsafe_code)]

use crate::ops::simd::Vector;

/// The low four bits of every byte.
#[inline(always)]
pub(super) unsafe fn low_nibbles<V: Vector>(bytes: V::Bytes) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe { V::and(bytes, V::splat_u8(0x0f)) }
}

/// The high four bits of every byte.
#[inline(always)]
pub(super) unsafe fn high_nibbles<V: Vector>(bytes: V::Bytes) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe { V::and(V::shr16::<4>(bytes), V::splat_u8(0x0f)) }
}

/// Bit pair `t` of every byte, moved to bit 0.
#[inline(always)]
pub(super) unsafe fn pairs_to_0<V: Vector>(plane: V::Bytes, t: usize) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe {
        let shifted = match t {
            0 => plane,
            1 => V::shr16::<2>(plane),
            2 => V::shr16::<4>(plane),
            _ => V::shr16::<6>(plane),
        };
        V::and(shifted, V::splat_u8(0x03))
    }
}

/// Bit pair `t` of every byte, moved to bit 4.
#[inline(always)]
pub(super) unsafe fn pairs_to_4<V: Vector>(plane: V::Bytes, t: usize) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe {
        let shifted = match t {
            0 => V::shl16::<4>(plane),
            1 => V::shl16::<2>(plane),
            2 => plane,
            _ => V::shr16::<2>(plane),
        };
        V::and(shifted, V::splat_u8(0x30))
    }
}

/// Bit `t` of every byte, moved to bit 4.
#[inline(always)]
pub(super) unsafe fn bits_to_4<V: Vector>(plane: V::Bytes, t: usize) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe {
        let shifted = match t {
            0 => V::shl16::<4>(plane),
            1 => V::shl16::<3>(plane),
            2 => V::shl16::<2>(plane),
            3 => V::shl16::<1>(plane),
            4 => plane,
            5 => V::shr16::<1>(plane),
            6 => V::shr16::<2>(plane),
            _ => V::shr16::<3>(plane),
        };
        V::and(shifted, V::splat_u8(0x10))
    }
}

/// Bit `t` of every byte, moved to bit 2.
#[inline(always)]
pub(super) unsafe fn bits_to_2<V: Vector>(plane: V::Bytes, t: usize) -> V::Bytes {
    // SAFETY: no memory is touched.
    unsafe {
        let shifted = match t {
            0 => V::shl16::<2>(plane),
            1 => V::shl16::<1>(plane),
            2 => plane,
            3 => V::shr16::<1>(plane),
            4 => V::shr16::<2>(plane),
            5 => V::shr16::<3>(plane),
            6 => V::shr16::<4>(plane),
            _ => V::shr16::<5>(plane),
        };
        V::and(shifted, V::splat_u8(0x04))
    }
}
