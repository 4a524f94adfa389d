//! One group of one or two panels times a few rows: integer sums, and how they join the rows' chains of floats, in blocks where those
//! have a scale of their own.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or lane in several arrays at once"
)]

use super::activations::word;
use super::groups::{CHUNKS, Factors, Group, format_of};
use super::layout::{Codes, Format, Scheme};
use super::matrices::dots_of_matrices;
use crate::ops::simd::Wide;

/// How many chunks fit into an accumulator before it must be widened (see `Simd::acc_add`).
const fn chunks_per_acc(format: Format, wide: bool) -> usize {
    match format.codes() {
        Codes::NibblesBits if wide => 8,
        Codes::Nibbles => match format.scheme() {
            Scheme::KScale16 { .. } | Scheme::KScaleMin16 => 4,
            _ => 8,
        },
        // Recentred, five bits are at most 16, and six bits at most 32 in half the chunks.
        Codes::NibblesBits => match format.scheme() {
            Scheme::Scale { zero_log2: Some(4) } => 8,
            _ => 4,
        },
        Codes::NibblesPairs | Codes::PairsBits | Codes::Pairs => 4,
        // Recentred, they are at most 12.
        Codes::Levels => 8,
        // Not accumulated in 16 bits at all.
        Codes::Bytes | Codes::Table => 8,
    }
}

/// Whether the groups of a block are added up before the block's scale multiplies them.
pub(super) const fn scaled_by_block(format: Format) -> bool {
    matches!(format.scheme(), Scheme::KScale16 { .. })
}

/// Whether 16 products with codes, recentred where they are, fit 16 bits.
const fn halves_are_small(format: Format) -> bool {
    matches!(format.codes(), Codes::Pairs | Codes::PairsBits)
}

/// What the groups of a block are added to ([`add_group`]), where the chains of `M` rows stand at `sums`.
#[inline(always)]
pub(super) unsafe fn open_block<V: Wide, const F: u8, const M: usize, const P: usize>(
    sums: &[[V::F32; M]; P],
) -> [[V::F32; M]; P] {
    if const { scaled_by_block(format_of(F)) } {
        // SAFETY: no memory is touched.
        unsafe { [[V::splat(0.0); M]; P] }
    } else {
        *sums
    }
}

/// Makes a block part of the chains. `last` is one of its groups.
#[inline(always)]
pub(super) unsafe fn close_block<
    V: Wide,
    G: Group<V>,
    const F: u8,
    const M: usize,
    const P: usize,
>(
    block: [[V::F32; M]; P],
    last: &[G; P],
    sums: &mut [[V::F32; M]; P],
) {
    if const { !scaled_by_block(format_of(F)) } {
        *sums = block;
        return;
    }
    for p in 0..P {
        // SAFETY: the groups are the caller's duty.
        unsafe {
            let scale = last[p].factors().scale;
            for m in 0..M {
                sums[p][m] = V::fma(scale, block[p][m], sums[p][m]);
            }
        }
    }
}

/// Adds one group of `P` panels to the block ([`open_block`]) of `M` rows.
#[inline(always)]
pub(super) unsafe fn add_group<
    V: Wide,
    G: Group<V>,
    const F: u8,
    const M: usize,
    const P: usize,
>(
    group: &[G; P],
    x: *const i32,
    block: &mut [[V::F32; M]; P],
) {
    // SAFETY: `x` has the words of `M` rows; the groups are the caller's duty.
    unsafe {
        // A loop: what a closure does is compiled without the instruction set where the compiler does not inline it, as happens in
        // large kernels.
        let mut factors = [group[0].factors(); P];
        for p in 1..P {
            factors[p] = group[p].factors();
        }
        let dots = dots::<V, G, F, M, P>(group, &factors, x);
        let splat = |kind: usize, m: usize| V::splat(x.add(kind * M + m).cast::<f32>().read());
        for m in 0..M {
            let scale = splat(word::SCALE, m);
            for p in 0..P {
                let (f, sum) = (&factors[p], &mut block[p][m]);
                let dot = V::to_f32(dots[p][m]);
                match const { format_of(F).scheme() } {
                    Scheme::Scale { .. } | Scheme::Exponent { .. } => {
                        *sum = V::fma(V::mul(f.scale, scale), dot, *sum);
                    }
                    Scheme::KScale16 { .. } => *sum = V::fma(scale, dot, *sum),
                    Scheme::ScaleMin | Scheme::KScaleMin => {
                        *sum = V::fma(V::mul(f.scale, scale), dot, *sum);
                        *sum = V::fma(f.min, splat(word::SCALED_SUM, m), *sum);
                    }
                    Scheme::KScaleMin16 => {
                        let halves = V::splat_i32(x.add(word::HALF_SUMS * M + m).read());
                        let min = V::to_f32(V::madd_i16(f.mins, halves));
                        let both = V::fma(f.scale, dot, V::mul(f.min, min));
                        *sum = V::fma(scale, both, *sum);
                    }
                }
            }
        }
    }
}

/// Integer dot products of a group with `M` rows, zero point subtracted: times the 16-feature scales where the format has them.
#[inline(always)]
unsafe fn dots<V: Wide, G: Group<V>, const F: u8, const M: usize, const P: usize>(
    group: &[G; P],
    factors: &[Factors<V>; P],
    x: *const i32,
) -> [[V::I32; M]; P] {
    let format = const { format_of(F) };
    let step = const { chunks_per_acc(format_of(F), V::WIDE_SUMS) };
    // SAFETY: the words of chunk c lie at `c M`.
    unsafe {
        let mut totals = [[V::splat_i32(0); M]; P];
        // Where chunks are yet to be joined, that costs one or two rows more than matrices save.
        if V::MATRICES && (G::JOINED || M > 2) {
            for p in 0..P {
                if M > 1 {
                    totals[p] = dots_of_matrices::<V, G, F, M, M>(&group[p], &factors[p], x);
                } else {
                    // Half of the sums are for nothing, and as many instructions as without matrices.
                    let twice = dots_of_matrices::<V, G, F, 2, 1>(&group[p], &factors[p], x);
                    totals[p][0] = twice[0];
                }
            }
            return totals;
        }
        if matches!(format.codes(), Codes::Bytes | Codes::Table) {
            return signed_dots(group, x);
        }
        for part in 0..CHUNKS / step {
            let mut starts = [V::acc_zero(); M];
            for m in 0..M {
                starts[m] = start::<V, F, M>(x, part * step, m);
            }
            let mut accs = [starts; P];
            for c in part * step..(part + 1) * step {
                for p in 0..P {
                    V::acc_add_rows(&mut accs[p], group[p].chunk(c), x.add(c * M));
                }
            }
            for p in 0..P {
                for m in 0..M {
                    let (total, acc) = (totals[p][m], accs[p][m]);
                    totals[p][m] = join_part::<V, F>(part, total, acc, &factors[p]);
                }
            }
        }
        totals
    }
}

/// The sums of a group up to part `part`: what [`dots`] has of the parts before it, and an accumulator's sums.
#[inline(always)]
unsafe fn join_part<V: Wide, const F: u8>(
    part: usize,
    total: V::I32,
    acc: V::Acc,
    factors: &Factors<V>,
) -> V::I32 {
    let format = const { format_of(F) };
    let by_half = matches!(
        format.scheme(),
        Scheme::KScale16 { .. } | Scheme::KScaleMin16
    );
    // SAFETY: no memory is touched.
    unsafe {
        match (by_half, part, const { halves_are_small(format_of(F)) }) {
            (false, 0, _) => V::acc_widen(acc),
            (false, _, _) => V::add_i32(total, V::acc_widen(acc)),
            (true, 0, false) => V::first_half::<false>(acc, factors.halves),
            (true, 0, true) => V::first_half::<true>(acc, factors.halves),
            (true, _, false) => V::both_halves::<false>(total, acc, factors.halves),
            (true, _, true) => V::both_halves::<true>(total, acc, factors.halves),
        }
    }
}

/// [`dots`] of signed weights.
#[inline(always)]
unsafe fn signed_dots<V: Wide, G: Group<V>, const M: usize, const P: usize>(
    group: &[G; P],
    x: *const i32,
) -> [[V::I32; M]; P] {
    // SAFETY: the words of chunk c lie at `c M`.
    unsafe {
        let mut sums = [[V::splat_i32(0); M]; P];
        for m in 0..M {
            let start = V::signed_start(x.add(word::NEG_STARTS * M + m));
            for p in 0..P {
                sums[p][m] = start;
            }
        }
        for c in 0..CHUNKS {
            for p in 0..P {
                V::dot_rows(&mut sums[p], group[p].chunk(c), x.add(c * M));
            }
        }
        sums
    }
}

/// What an accumulator starts with at chunk `c`: minus the zero point times the activations it belongs to, where that begins.
///
/// Sums of products with recentred codes stay within 16 bits, and what wraps on the way comes back.
#[inline(always)]
pub(super) unsafe fn start<V: Wide, const F: u8, const M: usize>(
    x: *const i32,
    c: usize,
    m: usize,
) -> V::Acc {
    // SAFETY: the words of `M` rows.
    unsafe {
        let all = x.add(word::NEG_STARTS * M + m);
        let half = x.add((word::NEG_STARTS_HALVES + c / (CHUNKS / 2)) * M + m);
        match const { format_of(F).scheme() } {
            Scheme::Scale { zero_log2: Some(3) } if c == 0 => V::acc_start::<0>(all),
            Scheme::Scale { zero_log2: Some(4) } | Scheme::Exponent { zero_log2: 4 } if c == 0 => {
                V::acc_start::<1>(all)
            }
            Scheme::KScale16 { zero_log2: 5 } if c.is_multiple_of(CHUNKS / 2) => {
                V::acc_start::<5>(half)
            }
            Scheme::KScale16 { zero_log2: 2 } if c.is_multiple_of(CHUNKS / 2) => {
                V::acc_start::<2>(half)
            }
            _ => V::acc_zero(),
        }
    }
}
