//! The softmax of a tile of scores, and merging what tiles gave (Milakov and Gimelshein 2018,
//! <https://arxiv.org/abs/1805.02867>): one chain of operations for every kind of attention.

use std::ops::Range;

use super::{LANES, SUM_LANES, Simd, math, reduce_sum};

/// Maximum of some scores and sum of their weights `e^(score - max)`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Softened {
    /// The largest score.
    pub max: f32,
    /// At least 1, or NaN.
    pub sum: f32,
}

/// Scores to weights `e^(score - max)`, zero for those outside `seen`; 16-lane sums.
///
/// Panics when `N` is no whole number of pairs of vectors or `seen` is not inside it.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn soften<V: Simd, const N: usize>(
    scores: &mut [f32; N],
    seen: Range<usize>,
) -> Softened {
    const { assert!(N.is_multiple_of(SUM_LANES)) };
    scores[..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..].fill(f32::NEG_INFINITY);
    // SAFETY: the array is a whole number of vectors; the instruction set is the caller's duty.
    unsafe {
        let max = max_of::<V>(scores);
        let (mut low, mut high) = (V::splat(0.0), V::splat(0.0));
        for at in (0..N).step_by(SUM_LANES) {
            let p = scores.as_mut_ptr().add(at);
            let a = math::exp::<V>(V::sub(V::load(p), V::splat(max)));
            let b = math::exp::<V>(V::sub(V::load(p.add(LANES)), V::splat(max)));
            V::store(p, a);
            V::store(p.add(LANES), b);
            low = V::add(low, a);
            high = V::add(high, b);
        }
        Softened {
            max,
            sum: reduce_sum::<V>(low, high),
        }
    }
}

/// The largest score. A NaN may be passed over: it makes the sum NaN whatever the maximum is.
#[inline(always)]
unsafe fn max_of<V: Simd>(scores: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    // SAFETY: chunks and `lanes` are whole vectors; the instruction set is the caller's duty.
    unsafe {
        let mut max = V::splat(f32::NEG_INFINITY);
        for eight in scores.chunks_exact(LANES) {
            max = V::max(V::load(eight.as_ptr()), max);
        }
        V::store(lanes.as_mut_ptr(), max);
    }
    let larger = |a: f32, b: f32| if a > b { a } else { b };
    let four: [f32; 4] = std::array::from_fn(|l| larger(lanes[l], lanes[l + 4]));
    larger(larger(four[0], four[2]), larger(four[1], four[3]))
}

/// Merges what later keys gave, `later` and the weighted values `own`, into what the keys before gave: `before` and `merged`.
///
/// Panics when `own` and `merged` differ in length or are no whole number of vectors.
///
/// # Safety
/// The CPU has the instruction set of `V`.
#[inline(always)]
pub unsafe fn merge<V: Simd>(
    before: Softened,
    later: Softened,
    merged: &mut [f32],
    own: &[f32],
) -> Softened {
    assert!(own.len() == merged.len() && own.len().is_multiple_of(LANES));
    let max = if later.max > before.max {
        later.max
    } else {
        before.max
    };
    // SAFETY: both are whole vectors by the assertion; the instruction set is the caller's duty.
    unsafe {
        let old = math::exp::<V>(V::splat(before.max - max));
        let new = math::exp::<V>(V::splat(later.max - max));
        for at in (0..merged.len()).step_by(LANES) {
            let kept = V::mul(V::load(merged.as_ptr().add(at)), old);
            let sum = V::fma(V::load(own.as_ptr().add(at)), new, kept);
            V::store(merged.as_mut_ptr().add(at), sum);
        }
        let mut lanes = [0.0_f32; LANES];
        let sum = V::fma(V::splat(later.sum), new, V::mul(V::splat(before.sum), old));
        V::store(lanes.as_mut_ptr(), sum);
        Softened { max, sum: lanes[0] }
    }
}
