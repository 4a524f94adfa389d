//! Every method of [`Wide`] on every level that the CPU has, compared with two vectors of the software twin.

use super::{
    ACC_LIMITS, Case, Results, WITH_MATRICES, assert_levels_agree, extremes, neg_sums, operands,
    starts,
};
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, SUM_LANES, Simd, Vector, Wide, simd_kernel};

/// Two of something side by side.
fn both<T: Copy + Default, const N: usize, const TWICE: usize>(a: [T; N], b: [T; N]) -> [T; TWICE] {
    let mut all = [T::default(); TWICE];
    all[..N].copy_from_slice(&a);
    all[N..].copy_from_slice(&b);
    all
}

simd_kernel! {
    /// All methods on two sets of operands.
    unsafe fn wide_methods(cases: &[Case; 2], results: &mut Results) = wide_methods_body; products
}

#[inline(always)]
unsafe fn wide_methods_body<V: Simd>(cases: &[Case; 2], results: &mut Results) {
    // SAFETY: the level is available, the operands hold what the methods read.
    unsafe {
        floats::<V::Wide>(cases, results);
        integers::<V::Wide>(cases, results);
        bytes::<V::Wide>(cases, results);
        products::<V>(cases, results);
    }
}

impl Results {
    /// Sixteen floats; which NaN a method makes is the CPU's choice.
    fn sixteen<W: Wide>(&mut self, method: &'static str, x: W::F32) {
        let mut lanes = [0.0_f32; SUM_LANES];
        // SAFETY: the array holds one vector; the level is available.
        unsafe { W::store(lanes.as_mut_ptr(), x) };
        let bits = lanes.map(|x| if x.is_nan() { f32::NAN } else { x }.to_bits());
        self.0.push((method, bits.to_vec()));
    }
}

#[inline(always)]
unsafe fn floats<W: Wide>([one, other]: &[Case; 2], results: &mut Results) {
    // SAFETY: as for `wide_methods_body`.
    unsafe {
        let float = |i: usize| {
            let all: [f32; SUM_LANES] = both(one.floats[i], other.floats[i]);
            W::load(all.as_ptr())
        };
        let (a, b, c) = (float(0), float(1), float(2));
        results.sixteen::<W>("load", a);
        results.sixteen::<W>("splat", W::splat(one.floats[0][3]));
        results.sixteen::<W>("add", W::add(a, b));
        results.sixteen::<W>("sub", W::sub(a, b));
        results.sixteen::<W>("mul", W::mul(a, b));
        results.sixteen::<W>("fma", W::fma(a, b, c));
        let halves: [u16; SUM_LANES] = both(one.halves, other.halves);
        results.sixteen::<W>("load_f16", W::load_f16(halves.as_ptr().cast()));
        results.sixteen::<W>("load_bf16", W::load_bf16(halves.as_ptr().cast()));
        let exponents: [i32; SUM_LANES] = both(one.exponents, other.exponents);
        let exponents = W::load_i32(exponents.as_ptr());
        results.sixteen::<W>("exp2i", W::exp2i(exponents));
        let integers: [i32; SUM_LANES] = both(one.integers[0], other.integers[0]);
        results.sixteen::<W>("to_f32", W::to_f32(W::load_i32(integers.as_ptr())));
    }
}

#[inline(always)]
unsafe fn integers<W: Wide>([one, other]: &[Case; 2], results: &mut Results) {
    // SAFETY: as for `wide_methods_body`.
    unsafe {
        let load = |one: [i32; LANES], other: [i32; LANES]| {
            let all: [i32; SUM_LANES] = both(one, other);
            W::load_i32(all.as_ptr())
        };
        let a = load(one.integers[0], other.integers[0]);
        let b = load(one.integers[1], other.integers[1]);
        results.whole("load_i32", a);
        let mut stored = [0_i32; SUM_LANES];
        W::store_i32(stored.as_mut_ptr(), a);
        results.whole("store_i32", stored);
        results.whole("splat_i32", W::splat_i32(one.integers[0][3]));
        results.whole("add_i32", W::add_i32(a, b));
        results.whole("sub_i32", W::sub_i32(a, b));
        results.whole("dup_lo16", W::dup_lo16(a));
        results.whole("dup_hi16", W::dup_hi16(a));
        let bytes: [u8; 64] = both(one.bytes[0], other.bytes[0]);
        results.whole("load_u8_i32", W::load_u8_i32(bytes.as_ptr()));
        results.whole("load_i8_i16", W::load_i8_i16(bytes.as_ptr()));
        let a = load(one.pairs[0], other.pairs[0]);
        let b = load(one.pairs[1], other.pairs[1]);
        results.whole("madd_i16", W::madd_i16(a, b));
        // Products stay within i32.
        let small = |case: &Case| case.integers[0].map(|sum| sum >> 16);
        let factors = load(one.factors, other.factors);
        let scaled = W::scale_i32(load(small(one), small(other)), factors);
        results.whole("scale_i32", scaled);
    }
}

#[inline(always)]
unsafe fn bytes<W: Wide>([one, other]: &[Case; 2], results: &mut Results) {
    // SAFETY: as for `wide_methods_body`.
    unsafe {
        let load = |i: usize| {
            let all: [u8; 64] = both(one.bytes[i], other.bytes[i]);
            W::load_bytes(all.as_ptr())
        };
        let (a, b) = (load(0), load(1));
        results.whole("load_bytes", a);
        let mut stored = [0_u8; 64];
        W::store_bytes(stored.as_mut_ptr(), a);
        results.whole("store_bytes", stored);
        results.whole("splat_u8", W::splat_u8(one.bytes[0][3]));
        results.whole("and", W::and(a, b));
        results.whole("or", W::or(a, b));
        results.whole("shr16::<1>", W::shr16::<1>(a));
        results.whole("shr16::<4>", W::shr16::<4>(a));
        results.whole("shl16::<1>", W::shl16::<1>(a));
        results.whole("shl16::<4>", W::shl16::<4>(a));
        let table = one.bytes[1].as_ptr().cast();
        let index = W::and(a, W::splat_u8(15));
        results.whole("lookup16", W::lookup16(table, index));
    }
}

#[inline(always)]
unsafe fn products<V: Simd>([one, other]: &[Case; 2], results: &mut Results) {
    // SAFETY: as for `wide_methods_body`; as many additions as `Simd::acc_add` allows.
    unsafe {
        results.whole("acc_zero", V::Wide::acc_widen(V::Wide::acc_zero()));
        let [start, small] = starts::<V>(one);
        let start = V::Wide::acc_start::<0>(&raw const start);
        results.whole("acc_start::<0>", V::Wide::acc_widen(start));
        let start = V::Wide::acc_start::<5>(&raw const small);
        results.whole("acc_start::<5>", V::Wide::acc_widen(start));
        let factors: [i32; SUM_LANES] = both(one.factors, other.factors);
        let factors = V::Wide::load_i32(factors.as_ptr());
        let weights: [u8; 64] = both(one.weights, other.weights);
        for (limit, count) in ACC_LIMITS {
            let weights = V::Wide::and(
                V::Wide::load_bytes(weights.as_ptr()),
                V::Wide::splat_u8(limit - 1),
            );
            let mut accs = [V::Wide::acc_zero(); 3];
            for activations in &one.activations[..count] {
                V::Wide::acc_add_rows(&mut accs, weights, activations.as_ptr().cast());
            }
            for acc in accs {
                results.whole("acc_add_rows", V::Wide::acc_widen(acc));
                results.whole("acc_widen_scaled", V::Wide::acc_widen_scaled(acc, factors));
            }
        }
        let swapped: [i32; SUM_LANES] = both(other.factors, one.factors);
        let factors = [factors, V::Wide::load_i32(swapped.as_ptr())];
        halves::<V::Wide, false>(weights, 64, &one.activations, factors, results);
        halves::<V::Wide, true>(weights, 8, &one.activations, factors, results);
        let weights: [u8; 64] = both(one.bytes[0], other.bytes[0]);
        let weights = V::Wide::signed(V::Wide::load_bytes(weights.as_ptr()));
        let fours: [[[i8; 4]; 3]; 2] = std::array::from_fn(|c| {
            std::array::from_fn(|m| std::array::from_fn(|i| one.activations[c][4 * m + i]))
        });
        let mut sums: [<V::Wide as Wide>::I32; 3] = std::array::from_fn(|m| {
            let [low, high] = neg_sums(&[fours[0][m], fours[1][m]]);
            let start = V::start_word(low, high);
            V::Wide::signed_start(&raw const start)
        });
        for four in &fours {
            V::Wide::dot_rows(&mut sums, weights, four.as_ptr().cast());
        }
        for sum in sums {
            results.whole("signed_start, dot_rows", sum);
        }
    }
}

/// Both halves of a group: two products each of weights below `limit` with different activations.
#[inline(always)]
unsafe fn halves<W: Wide, const SMALL: bool>(
    weights: [u8; 64],
    limit: u8,
    activations: &[[i8; 32]; 8],
    factors: [W::I32; 2],
    results: &mut Results,
) {
    // SAFETY: as for `wide_methods_body`; two additions are within every limit.
    unsafe {
        let weights = W::and(W::load_bytes(weights.as_ptr()), W::splat_u8(limit - 1));
        let mut accs = [[W::acc_zero(); 1]; 2];
        for (acc, activations) in accs.iter_mut().zip(activations.chunks_exact(2)) {
            for activations in activations {
                W::acc_add_rows(acc, weights, activations.as_ptr().cast());
            }
        }
        let first = W::first_half::<SMALL>(accs[0][0], factors);
        let sums = W::both_halves::<SMALL>(first, accs[1][0], factors);
        results.whole("first_half, both_halves", sums);
    }
}

simd_kernel! {
    /// Products of matrices, on levels that have them and on the twin.
    unsafe fn matrices(cases: &[Case; 2], results: &mut Results) = matrices_body; products
}

#[inline(always)]
unsafe fn matrices_body<V: Simd>(cases: &[Case; 2], results: &mut Results) {
    // SAFETY: as for `wide_methods_body`.
    unsafe {
        joined::<V::Wide, 2, 1>(cases, results);
        joined::<V::Wide, 4, 4>(cases, results);
    }
}

/// Sums of `M` rows that start somewhere, products of joined chunks added.
#[inline(always)]
unsafe fn joined<W: Wide, const M: usize, const STRIDE: usize>(
    [one, other]: &[Case; 2],
    results: &mut Results,
) {
    // SAFETY: as for `wide_methods_body`.
    unsafe {
        let mut sums: [W::I32; M] = std::array::from_fn(|m| {
            // Far from overflowing, and another one in every row and lane.
            let lanes: [i32; SUM_LANES] = both(one.integers[0], other.integers[0]);
            W::load_i32(lanes.map(|sum| (sum >> 8).wrapping_add(m as i32)).as_ptr())
        });
        for m in (0..M).step_by(2) {
            [sums[m], sums[m + 1]] = W::to_matrices([sums[m], sums[m + 1]]);
        }
        let load = |i: usize| {
            let all: [u8; 64] = both(one.bytes[i], other.bytes[i]);
            W::load_bytes(all.as_ptr())
        };
        let weights = W::join(load(0), load(1));
        W::dot_joined::<M, STRIDE>(&mut sums, weights, one.activations[0].as_ptr().cast());
        for m in (0..M).step_by(2) {
            [sums[m], sums[m + 1]] = W::from_matrices([sums[m], sums[m + 1]]);
        }
        for sum in sums {
            results.whole("dot_joined", sum);
        }
    }
}

fn assert_levels_equal(cases: &[Case; 2], what: &str) {
    // SAFETY: levels are available, or the twin.
    assert_levels_agree(&CpuLevel::ALL, what, |level, results| unsafe {
        wide_methods(level, cases, results);
    });
    // SAFETY: as above.
    assert_levels_agree(&WITH_MATRICES, what, |level, results| unsafe {
        matrices(level, cases, results);
    });
}

#[test]
fn sixteen_lanes_give_the_bits_of_two_vectors_of_the_software_twin() {
    for seed in 1..=300 {
        let cases = [operands(seed), operands(seed + 1000)];
        assert_levels_equal(&cases, &format!("seed {seed}"));
    }
    for number in 0..16 {
        let cases = [extremes(number), extremes(15 - number)];
        assert_levels_equal(&cases, &format!("extremes {number}"));
    }
}
