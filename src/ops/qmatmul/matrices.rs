//! The microkernel's integer sums on the levels that multiply matrices of 2 × 8 and 8 × 2 bytes: in the order of the instruction set
//! from the beginning of a group to its end.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use super::dots::start;
use super::groups::{CHUNKS, Factors, Group, format_of};
use super::layout::Scheme;
use crate::ops::simd::Wide;

/// Integer dot products of a group with `M` rows (an even number), zero point subtracted: times the 16-feature scales where the format
/// has them. With a `STRIDE` of 1 it is the same row `M` times.
#[inline(always)]
pub(super) unsafe fn dots_of_matrices<
    V: Wide,
    G: Group<V>,
    const F: u8,
    const M: usize,
    const STRIDE: usize,
>(
    group: &G,
    factors: &Factors<V>,
    x: *const i32,
) -> [V::I32; M] {
    let by_half = const {
        matches!(
            format_of(F).scheme(),
            Scheme::KScale16 { .. } | Scheme::KScaleMin16
        )
    };
    let step = if by_half { CHUNKS / 2 } else { CHUNKS };
    // SAFETY: the words of chunk c lie at `c STRIDE`.
    unsafe {
        let mut totals = [V::splat_i32(0); M];
        for part in 0..CHUNKS / step {
            let mut sums = [V::splat_i32(0); M];
            for m in 0..M {
                sums[m] = V::acc_widen(start::<V, F, STRIDE>(x, part * step, m % STRIDE));
            }
            for m in (0..M).step_by(2) {
                [sums[m], sums[m + 1]] = V::to_matrices([sums[m], sums[m + 1]]);
            }
            for pair in 0..step / 2 {
                let c = part * step + 2 * pair;
                V::dot_joined::<M, STRIDE>(&mut sums, group.joined(c), x.add(c * STRIDE));
            }
            for m in (0..M).step_by(2) {
                [sums[m], sums[m + 1]] = V::from_matrices([sums[m], sums[m + 1]]);
            }
            for m in 0..M {
                let mut sum = sums[m];
                if by_half {
                    sum = V::scale_i32(sum, factors.halves[part]);
                }
                totals[m] = V::add_i32(totals[m], sum);
            }
        }
        totals
    }
}
