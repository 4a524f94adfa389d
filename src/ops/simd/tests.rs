//! Every method on every level that the CPU has, compared with the software twin by bits.

mod wide;

use super::{LANES, SUM_LANES, Scalar, Simd, Vector, math, reduce_sum, simd_kernel, sum16};
use crate::ops::cpu_level::CpuLevel;

/// Operands of one round; each is within what the trait allows.
#[derive(Clone)]
struct Case {
    /// Any bits.
    floats: [[f32; LANES]; 3],
    /// Half precision, bfloat16, and 16 signed bytes: any bits.
    halves: [u16; LANES],
    /// Floats within i32.
    to_round: [f32; LANES],
    /// -126..=127.
    exponents: [i32; LANES],
    /// Any bits.
    integers: [[i32; LANES]; 2],
    /// Pairs of i16 above -32768.
    pairs: [[i32; LANES]; 2],
    /// Any bits.
    bytes: [[u8; 32]; 2],
    /// Below 64.
    weights: [u8; 32],
    /// Above -128.
    activations: [[i8; 32]; 8],
    /// The same i16 in both halves.
    factors: [i32; LANES],
}

/// xorshift64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn array<T, const N: usize>(&mut self, make: impl Fn(u64) -> T) -> [T; N] {
        std::array::from_fn(|_| make(self.next() >> 20))
    }
}

/// Bits of floats at which conversions and comparisons change.
const SPECIAL: [u32; 24] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_1234,
    0x7f80_0001,
    0x3f80_0000,
    // 65504 is the largest half, 65520 the tie above it.
    0x477f_e000,
    0xc77f_e000,
    0x477f_f000,
    0x477f_efff,
    // 2^-25 is the tie between zero and the smallest half; its neighbours.
    0x3300_0000,
    0x3300_0001,
    0xb2ff_ffff,
    // Ties among normal halves: 1 + 2^-11, 1 + 3 * 2^-11, and just above the first.
    0x3f80_1000,
    0x3f80_3000,
    0x3f80_1001,
];

fn float(x: u64) -> f32 {
    let bits = (x >> 4) as u32;
    match x % 4 {
        0 => f32::from_bits(SPECIAL[bits as usize % SPECIAL.len()]),
        1 => f32::from_bits(bits),
        2 => bits as i32 as f32 / (1 << 28) as f32,
        // Exponents of half precision, subnormal ones included.
        _ => f32::from_bits((bits & 0x8fff_ffff) | 0x3000_0000),
    }
}

fn to_round(x: u64) -> f32 {
    let bits = (x >> 4) as u32 as i32;
    match x % 3 {
        0 => bits as f32 * 0.999_999,
        1 => (bits >> 20) as f32 + 0.5,
        _ => bits as f32 / (1 << 25) as f32,
    }
}

fn pair(low: i16, high: i16) -> i32 {
    super::pair(low.into(), high.into())
}

fn operands(seed: u64) -> Case {
    let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let word = |x: u64| (x as i16).max(-32767);
    Case {
        floats: std::array::from_fn(|_| r.array(float)),
        halves: r.array(|x| x as u16),
        to_round: r.array(to_round),
        exponents: r.array(|x| (x % 254) as i32 - 126),
        integers: std::array::from_fn(|_| r.array(|x| x as i32)),
        pairs: std::array::from_fn(|_| r.array(|x| pair(word(x), word(x >> 16)))),
        bytes: std::array::from_fn(|_| r.array(|x| x as u8)),
        weights: r.array(|x| x as u8 & 63),
        activations: std::array::from_fn(|_| r.array(|x| (x as i8).max(-127))),
        factors: r.array(|x| pair(x as i16, x as i16)),
    }
}

/// The largest integers of either sign, signs spread by the bits of `number`.
fn extremes(number: usize) -> Case {
    let sign = |i: usize| {
        if number >> (i % 4) & 1 == 0 { 1_i8 } else { -1 }
    };
    let word = |i| i16::from(sign(i)) * 32767;
    let factor = |i| if sign(i) > 0 { i16::MAX } else { i16::MIN };
    Case {
        integers: [[i32::MAX; LANES], [i32::MIN; LANES]],
        pairs: [
            std::array::from_fn(|i| pair(word(i), word(i + 1))),
            std::array::from_fn(|i| pair(word(i + 2), word(i + 3))),
        ],
        bytes: [
            std::array::from_fn(|i| if sign(i) > 0 { 127 } else { 128 }),
            [255; 32],
        ],
        weights: [63; 32],
        activations: [std::array::from_fn(|i| sign(i) * 127); 8],
        factors: std::array::from_fn(|i| pair(factor(i + 1), factor(i + 1))),
        ..operands(number as u64)
    }
}

/// Results by method, as bits.
#[derive(Default)]
struct Results(Named);

impl Results {
    /// Floats that a method passes on.
    fn moved<V: Simd>(&mut self, method: &'static str, x: V::F32) {
        let mut lanes = [0.0_f32; LANES];
        // SAFETY: the array holds one vector; the level is available.
        unsafe { V::store(lanes.as_mut_ptr(), x) };
        self.0.push((method, lanes.map(f32::to_bits).to_vec()));
    }

    /// Floats that a method makes: which NaN it makes is the CPU's choice.
    fn made<V: Simd>(&mut self, method: &'static str, x: V::F32) {
        self.moved::<V>(method, x);
        for bits in &mut self.0.last_mut().unwrap().1 {
            if f32::from_bits(*bits).is_nan() {
                *bits = f32::NAN.to_bits();
            }
        }
    }

    /// Integers or bytes of a vector.
    fn whole<T: Copy>(&mut self, method: &'static str, x: T) {
        assert!(size_of::<T>() == 32 || size_of::<T>() == 64);
        let words = (&raw const x).cast::<u32>();
        // SAFETY: vectors are 32 or 64 bytes of plain data.
        let words = unsafe { std::slice::from_raw_parts(words, size_of::<T>() / 4) };
        self.0.push((method, words.to_vec()));
    }
}

simd_kernel! {
    /// All methods on one set of operands.
    unsafe fn all_methods(case: &Case, results: &mut Results) = all_methods_body; products
}

#[inline(always)]
unsafe fn all_methods_body<V: Simd>(case: &Case, results: &mut Results) {
    // SAFETY: the level is available, the operands hold what the methods read.
    unsafe {
        float_methods::<V>(case, results);
        conversions::<V>(case, results);
        integer_methods::<V>(case, results);
        byte_methods::<V>(case, results);
        sums_of_products::<V>(case, results);
    }
}

simd_kernel! {
    /// Products of matrices, on levels that have them and on the twin.
    unsafe fn matrices(case: &Case, results: &mut Results) = products_of_matrices; products
}

#[inline(always)]
unsafe fn float_methods<V: Simd>(case: &Case, results: &mut Results) {
    // SAFETY: as for `all_methods_body`.
    unsafe {
        let [a, b, c] = case.floats.map(|x| V::load(x.as_ptr()));
        results.moved::<V>("load", a);
        results.moved::<V>("splat", V::splat(case.floats[0][3]));
        results.moved::<V>("max", V::max(a, b));
        results.moved::<V>("min", V::min(a, b));
        results.moved::<V>("abs", V::abs(a));
        results.moved::<V>("zero_below", V::zero_below(a, b, c));
        results.made::<V>("add", V::add(a, b));
        results.made::<V>("reduce8", V::reduce8([a, b, c, b, a, c, c, a]));
        results.made::<V>("sub", V::sub(a, b));
        results.made::<V>("mul", V::mul(a, b));
        results.made::<V>("div", V::div(a, b));
        results.made::<V>("fma", V::fma(a, b, c));
        results.made::<V>("exp", math::exp::<V>(a));
        results.made::<V>("silu", math::silu::<V>(a));
        results.made::<V>("tanh", math::tanh::<V>(a));
        results.made::<V>("gelu_tanh", math::gelu_tanh::<V>(a));
        results.made::<V>("erf", math::erf::<V>(a));
        results.made::<V>("gelu", math::gelu::<V>(a));
        results.made::<V>("reduce_sum", V::splat(reduce_sum::<V>(a, b)));
    }
}

#[inline(always)]
unsafe fn conversions<V: Simd>(case: &Case, results: &mut Results) {
    // SAFETY: as for `all_methods_body`.
    unsafe {
        let halves = case.halves.as_ptr().cast::<u8>();
        results.made::<V>("load_f16", V::load_f16(halves));
        results.made::<V>("load_bf16", V::load_bf16(halves));
        let mut stored = [0_u16; LANES];
        V::store_f16(stored.as_mut_ptr(), V::load(case.floats[0].as_ptr()));
        let stored = stored.map(|half| match half & 0x7fff {
            0x7c01.. => 0x7e00,
            _ => u32::from(half),
        });
        results.0.push(("store_f16", stored.to_vec()));
        let rounded = V::round_to_i32(V::load(case.to_round.as_ptr()));
        results.whole("round_to_i32", rounded);
        let exponents = V::load_i32(case.exponents.as_ptr());
        results.moved::<V>("exp2i", V::exp2i(exponents));
        let integers = V::load_i32(case.integers[0].as_ptr());
        results.moved::<V>("to_f32", V::to_f32(integers));
    }
}

#[inline(always)]
unsafe fn integer_methods<V: Simd>(case: &Case, results: &mut Results) {
    // SAFETY: as for `all_methods_body`.
    unsafe {
        let [a, b] = case.integers.map(|x| V::load_i32(x.as_ptr()));
        results.whole("load_i32", a);
        let mut stored = [0_i32; LANES];
        V::store_i32(stored.as_mut_ptr(), a);
        results.whole("store_i32", stored);
        results.whole("splat_i32", V::splat_i32(case.integers[0][3]));
        results.whole("add_i32", V::add_i32(a, b));
        results.whole("sub_i32", V::sub_i32(a, b));
        results.whole("shl_i32::<1>", V::shl_i32::<1>(a));
        results.whole("shl_i32::<5>", V::shl_i32::<5>(a));
        results.whole("dup_lo16", V::dup_lo16(a));
        results.whole("dup_hi16", V::dup_hi16(a));
        let bytes = case.bytes[0].as_ptr();
        results.whole("load_u8_i32", V::load_u8_i32(bytes));
        results.whole("load_i8_i16", V::load_i8_i16(bytes));
        let [a, b] = case.pairs.map(|x| V::load_i32(x.as_ptr()));
        results.whole("madd_i16", V::madd_i16(a, b));
    }
}

#[inline(always)]
unsafe fn byte_methods<V: Simd>(case: &Case, results: &mut Results) {
    // SAFETY: as for `all_methods_body`.
    unsafe {
        let [a, b] = case.bytes.map(|x| V::load_bytes(x.as_ptr()));
        results.whole("load_bytes", a);
        let mut stored = [0_u8; 32];
        V::store_bytes(stored.as_mut_ptr(), a);
        results.whole("store_bytes", stored);
        results.whole("splat_u8", V::splat_u8(case.bytes[0][3]));
        results.whole("and", V::and(a, b));
        results.whole("or", V::or(a, b));
        results.whole("shr16::<1>", V::shr16::<1>(a));
        results.whole("shr16::<4>", V::shr16::<4>(a));
        results.whole("shr16::<6>", V::shr16::<6>(a));
        results.whole("shl16::<1>", V::shl16::<1>(a));
        results.whole("shl16::<4>", V::shl16::<4>(a));
        let table = case.bytes[1].as_ptr().cast();
        let index = V::and(a, V::splat_u8(15));
        results.whole("lookup16", V::lookup16(table, index));
        let narrow: [V::I32; 4] = std::array::from_fn(|i| {
            let integers: [i32; LANES] =
                std::array::from_fn(|lane| i32::from(case.bytes[0][8 * i + lane].cast_signed()));
            V::load_i32(integers.as_ptr())
        });
        results.whole("narrow_i8", V::narrow_i8(narrow));
        results.whole("load_nibbles", V::load_nibbles(case.bytes[0].as_ptr()));
        results.whole("load_bits", V::load_bits(case.bytes[1].as_ptr(), 0x10));
        let rows = std::array::from_fn(|i| {
            let rotated: [u8; 32] = std::array::from_fn(|at| case.bytes[i % 2][(at + 5 * i) % 32]);
            V::load_bytes(rotated.as_ptr())
        });
        for (name, row) in TRANSPOSED.into_iter().zip(V::transpose8(rows)) {
            results.whole(name, row);
        }
        results.whole("splat4", V::splat4(case.bytes[0].as_ptr().add(5).cast()));
    }
}

/// Names of the results of `transpose8`.
const TRANSPOSED: [&str; 8] = [
    "transpose8, 0",
    "transpose8, 1",
    "transpose8, 2",
    "transpose8, 3",
    "transpose8, 4",
    "transpose8, 5",
    "transpose8, 6",
    "transpose8, 7",
];

/// `count` additions of weights below `limit`: widened plainly and with a factor.
#[inline(always)]
unsafe fn accumulated<V: Simd>(case: &Case, limit: u8, count: usize) -> [V::I32; 2] {
    // SAFETY: as for `all_methods_body`.
    unsafe {
        let weights = V::load_bytes(case.weights.as_ptr());
        let weights = V::and(weights, V::splat_u8(limit - 1));
        let mut acc = V::acc_zero();
        for activations in &case.activations[..count] {
            let activations = V::load_bytes(activations.as_ptr().cast());
            acc = V::acc_add(acc, weights, activations);
        }
        let factors = V::load_i32(case.factors.as_ptr());
        [V::acc_widen(acc), V::acc_widen_scaled(acc, factors)]
    }
}

#[inline(always)]
unsafe fn sums_of_products<V: Simd>(case: &Case, results: &mut Results) {
    // SAFETY: as for `all_methods_body`; as many additions as `Simd::acc_add` allows.
    unsafe {
        results.whole("acc_zero", V::acc_widen(V::acc_zero()));
        let [start, small] = starts::<V>(case);
        let whole = V::acc_start::<0>(&raw const start);
        results.whole("acc_start::<0>", V::acc_widen(whole));
        let start = &raw const small;
        results.whole("acc_start::<3>", V::acc_widen(V::acc_start::<3>(start)));
        results.whole("acc_start::<5>", V::acc_widen(V::acc_start::<5>(start)));
        for (limit, count) in ACC_LIMITS {
            let [plain, scaled] = accumulated::<V>(case, limit, count);
            results.whole("acc_add, acc_widen", plain);
            results.whole("acc_add, acc_widen_scaled", scaled);
        }
        let small = |bytes: &[u8; 32]| V::and(V::load_bytes(bytes.as_ptr()), V::splat_u8(15));
        let weights = [small(&case.bytes[0]), small(&case.bytes[1])];
        let mut accs = [[V::acc_zero(); 2]; 3];
        V::acc_add_rows(&mut accs, weights, case.activations[0].as_ptr().cast());
        V::acc_add_rows(&mut accs, weights, case.activations[1].as_ptr().cast());
        for acc in accs.as_flattened() {
            results.whole("acc_add_rows", V::acc_widen(*acc));
        }
        let weights = V::signed(V::load_bytes(case.bytes[0].as_ptr()));
        for two in case.activations.as_chunks::<2>().0 {
            let fours = two.map(|row| [row[0], row[1], row[2], row[3]]);
            let [low, high] = neg_sums(&fours);
            let start = V::start_word(low, high);
            let mut sums = V::signed_start(&raw const start);
            for four in &fours {
                sums = V::dot_i8(sums, weights, V::splat4(four.as_ptr()));
            }
            results.whole("signed_start, dot_i8", sums);
        }
    }
}

/// Words for [`Simd::acc_start`]: of any sums, and of sums that stay within 16 bits when they are shifted.
fn starts<V: Simd>(case: &Case) -> [i32; 2] {
    let word = case.pairs[0][0];
    let of = |word: i32| V::start_word(i32::from(word as i16), word >> 16);
    [of(word), of((word >> 6) & 0x03ff_03ff)]
}

/// -8 times the sums of the activations in both halves of a lane.
fn neg_sums(fours: &[[i8; 4]]) -> [i32; 2] {
    let mut halves = [0; 2];
    for four in fours {
        for (i, x) in four.iter().enumerate() {
            halves[i / 2] -= 8 * i32::from(*x);
        }
    }
    halves
}

#[inline(always)]
unsafe fn products_of_matrices<V: Simd>(case: &Case, results: &mut Results) {
    // SAFETY: as for `all_methods_body`.
    unsafe {
        joined_sums::<V, 2, 1>(case, results);
        joined_sums::<V, 2, 2>(case, results);
        joined_sums::<V, 4, 4>(case, results);
        // Products stay within i32.
        let sums = case.integers[0].map(|sum| sum >> 16);
        let factors = V::load_i32(case.factors.as_ptr());
        let scaled = V::scale_i32(V::load_i32(sums.as_ptr()), factors);
        results.whole("scale_i32", scaled);
    }
}

/// Sums of `M` rows that start somewhere, two products of joined chunks of all rows added.
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "an index stands for a row or panel in several arrays at once"
)]
unsafe fn joined_sums<V: Simd, const M: usize, const STRIDE: usize>(
    case: &Case,
    results: &mut Results,
) {
    // SAFETY: as for `all_methods_body`.
    unsafe {
        // Far from overflowing, and another one in every row, panel and lane.
        let begin = |m: usize, p: usize| {
            let lanes = case.integers[p].map(|sum| (sum >> 8).wrapping_add(m as i32));
            V::load_i32(lanes.as_ptr())
        };
        let mut sums = [[V::splat_i32(0); 2]; M];
        for m in (0..M).step_by(2) {
            for p in 0..2 {
                let there = V::to_matrices([begin(m, p), begin(m + 1, p)]);
                for row in V::from_matrices(there) {
                    results.whole("to_matrices and back", row);
                }
                [sums[m][p], sums[m + 1][p]] = there;
            }
        }
        let bytes = case.bytes.map(|bytes| V::load_bytes(bytes.as_ptr()));
        let codes = V::load_bytes(case.weights.as_ptr());
        for (activations, weights) in [
            [[bytes[0], bytes[1]], [codes, bytes[0]]],
            [[bytes[1], codes], [bytes[1], bytes[0]]],
        ]
        .into_iter()
        .enumerate()
        {
            let joined = weights.map(|[first, second]| V::join(first, second));
            let x = case.activations[activations].as_ptr().cast();
            V::dot_joined::<M, STRIDE>(&mut sums, joined, x);
        }
        for m in (0..M).step_by(2) {
            for p in 0..2 {
                for sum in V::from_matrices([sums[m][p], sums[m + 1][p]]) {
                    results.whole("dot_joined", sum);
                }
            }
        }
    }
}

/// Weights below the first number may be added so many times (`Simd::acc_add`).
const ACC_LIMITS: [(u8, usize); 3] = [(16, 8), (32, 4), (64, 2)];

/// What a test compares: results by method.
type Named = Vec<(&'static str, Vec<u32>)>;

/// Runs `on`, which writes down what a level gives, on the twin and on those of `levels` that the CPU has.
fn assert_levels_agree(levels: &[CpuLevel], what: &str, on: impl Fn(CpuLevel, &mut Results)) {
    let of = |level| -> Named {
        let mut results = Results::default();
        on(level, &mut results);
        results.0
    };
    let expected = of(CpuLevel::Scalar);
    let available = CpuLevel::available();
    for level in levels.iter().filter(|level| available.contains(level)) {
        let found = of(*level);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found, expected, "{level}, {what}");
        }
    }
}

/// Levels with products of matrices ([`Simd::MATRICES`]).
const WITH_MATRICES: [CpuLevel; 1] = [CpuLevel::NeonI8mm];

fn assert_levels_equal(case: &Case, what: &str) {
    // SAFETY: levels are available, or the twin.
    assert_levels_agree(&CpuLevel::ALL, what, |level, results| unsafe {
        all_methods(level, case, results);
    });
    // SAFETY: as above.
    assert_levels_agree(&WITH_MATRICES, what, |level, results| unsafe {
        matrices(level, case, results);
    });
}

#[test]
fn every_method_gives_the_bits_of_the_software_twin() {
    for seed in 1..=400 {
        assert_levels_equal(&operands(seed), &format!("seed {seed}"));
    }
}

#[test]
fn the_largest_integers_give_the_bits_of_the_software_twin() {
    for number in 0..16 {
        assert_levels_equal(&extremes(number), &format!("extremes {number}"));
    }
}

#[test]
fn every_half_and_bfloat16_is_read_as_the_software_twin_reads_it() {
    let mut case = operands(1);
    for first in (0..=u16::MAX).step_by(LANES) {
        case.halves = std::array::from_fn(|i| first + i as u16);
        let what = format!("from {first:#06x}");
        // SAFETY: levels are available, or the twin.
        assert_levels_agree(&CpuLevel::ALL, &what, |level, results| unsafe {
            only_conversions(level, &case, results);
        });
    }
}

simd_kernel! {
    /// Conversions on one set of operands.
    unsafe fn only_conversions(case: &Case, results: &mut Results) = conversions
}

#[test]
fn sums_of_sixteen_lanes_follow_the_tree() {
    let mut r = Random(7);
    for _ in 0..50 {
        let lanes: [f32; SUM_LANES] = r.array(|x| x as u32 as f32 / (1 << 20) as f32);
        // SAFETY: the software twin needs no instruction set; the array holds two vectors.
        let sum = unsafe {
            let (low, high) = lanes.split_at(LANES);
            reduce_sum::<Scalar>(Scalar::load(low.as_ptr()), Scalar::load(high.as_ptr()))
        };
        assert_eq!(sum.to_bits(), sum16(&lanes).to_bits());
    }
}

/// What AVX2 does for one 32-bit lane: saturating products of neighbours, wrapping 16-bit sums.
fn sums_of_16_bits(weights: [u8; 4], activations: [i8; 4], count: usize) -> i32 {
    let product = |i: usize| i32::from(weights[i]) * i32::from(activations[i]);
    let saturated = |x: i32| x.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
    let [mut low, mut high] = [0_i16; 2];
    for _ in 0..count {
        low = low.wrapping_add(saturated(product(0) + product(1)));
        high = high.wrapping_add(saturated(product(2) + product(3)));
    }
    i32::from(low) + i32::from(high)
}

/// What VNNI and NEON do for one lane: 32-bit sums throughout.
fn sums_of_32_bits(weights: [u8; 4], activations: [i8; 4], count: usize) -> i32 {
    let products = (0..4).map(|i| i32::from(weights[i]) * i32::from(activations[i]));
    products.sum::<i32>() * count as i32
}

#[test]
fn sums_of_16_bits_are_exact_up_to_the_documented_number_of_additions_and_no_further() {
    for (limit, count) in ACC_LIMITS {
        let weights = [limit - 1; 4];
        for signs in 0..16 {
            let activations = std::array::from_fn(|i| if signs >> i & 1 == 0 { 127 } else { -127 });
            let exact = sums_of_32_bits(weights, activations, count);
            assert_eq!(sums_of_16_bits(weights, activations, count), exact);
        }
        let (over, activations) = (count + 1, [127; 4]);
        let exact = sums_of_32_bits(weights, activations, over);
        assert_ne!(sums_of_16_bits(weights, activations, over), exact);
    }
}

#[test]
fn a_signed_product_is_that_of_the_weights_size_with_the_signed_activation() {
    // How AVX2 multiplies two signed bytes: |w| as an unsigned byte, x with the sign of w. VNNI: w + 128, and 128 x taken off.
    for weight in i8::MIN..=i8::MAX {
        for activation in -127..=i8::MAX {
            let size = weight.unsigned_abs();
            let signed = match weight {
                0 => 0,
                1.. => activation,
                _ => activation.wrapping_neg(),
            };
            let [exact, sixteen] = [
                4 * i32::from(weight) * i32::from(activation),
                sums_of_16_bits([size; 4], [signed; 4], 1),
            ];
            assert_eq!(sixteen, exact, "{weight} * {activation}");
            let moved = sums_of_32_bits([(weight as u8) ^ 0x80; 4], [activation; 4], 1);
            assert_eq!(moved - 4 * 128 * i32::from(activation), exact);
        }
    }
}
