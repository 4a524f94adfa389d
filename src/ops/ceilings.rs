//! What the machine can do at most: how fast it reads memory and multiplies. A measured speed means something beside these.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use super::Context;
use super::buffer::Buffer;
use super::simd::{LANES, SUM_LANES, Simd, Wide, simd_kernel};

/// Bytes read in one measurement: well beyond the caches of most machines.
const READ_BYTES: usize = 256 << 20;
/// Measurements of each kind, of which the median counts.
const REPEATS: usize = 5;
/// Rounds of a multiplication measurement: some ten milliseconds.
const ROUNDS: usize = 100_000;

/// Rates of all threads together, per second.
#[derive(Debug, Clone)]
pub struct Ceilings {
    /// (threads, bytes read), for 1, 2, 4, … threads and all of them.
    pub read_bytes: Vec<(usize, f64)>,
    /// Multiply-accumulates of 4-bit codes and 8-bit activations, 16-bit sums (or what the instruction set has instead).
    pub int8_macs: f64,
    /// Fused multiply-adds of F32.
    pub f32_macs: f64,
}

impl Ceilings {
    /// Measures them, on the context's threads and instruction set; takes about half a second per thread count.
    pub fn measure(ctx: &Context) -> Self {
        let threads = ctx.pool().num_threads();
        let mut counts: Vec<usize> = std::iter::successors(Some(1), |n| Some(n * 2))
            .take_while(|n| *n < threads)
            .collect();
        counts.push(threads);
        let mut buffer = Buffer::zeroed(READ_BYTES);
        // Pages that were never written are all the same one.
        buffer.iter_mut().step_by(1024).for_each(|byte| *byte = 1);
        let read_bytes = counts
            .into_iter()
            .map(|n| (n, READ_BYTES as f64 / median(|| read(ctx, &buffer, n))))
            .collect();
        let macs = |per_round: usize| (per_round * ROUNDS * threads) as f64;
        Self {
            read_bytes,
            int8_macs: macs(INT8_MACS) / median(|| on_all_threads(ctx, int8_on_level)),
            f32_macs: macs(F32_MACS) / median(|| on_all_threads(ctx, f32_on_level)),
        }
    }

    /// Bytes per second that all threads read together.
    pub fn all_read_bytes(&self) -> f64 {
        self.read_bytes.last().map_or(0.0, |(_, rate)| *rate)
    }
}

/// Seconds that `run` took, in the middle of several runs.
fn median(run: impl Fn()) -> f64 {
    let mut seconds: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let begin = Instant::now();
            run();
            begin.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[REPEATS / 2]
}

/// Reads the buffer once, with `threads` threads.
fn read(ctx: &Context, buffer: &[u8], threads: usize) {
    let part = buffer.len() / threads;
    ctx.pool().run(threads, |i| {
        // SAFETY: the level was detected on this CPU.
        black_box(unsafe { sum(ctx.level(), &buffer[i * part..(i + 1) * part]) });
    });
}

fn int8_on_level(level: super::CpuLevel) -> f32 {
    // SAFETY: the level was detected on this CPU.
    unsafe { int8(level) }
}

fn f32_on_level(level: super::CpuLevel) -> f32 {
    // SAFETY: the level was detected on this CPU.
    unsafe { f32s(level) }
}

fn on_all_threads(ctx: &Context, work: impl Fn(super::CpuLevel) -> f32 + Sync) {
    ctx.pool().run(ctx.pool().num_threads(), |_| {
        black_box(work(ctx.level()));
    });
}

simd_kernel! {
    /// Reads every byte.
    unsafe fn sum(bytes: &[u8]) -> f32 = sum_body
}

#[inline(always)]
unsafe fn sum_body<V: Simd>(bytes: &[u8]) -> f32 {
    // SAFETY: whole vectors of the chunks; the instruction set is the caller's duty.
    unsafe {
        let mut sums = [V::splat_i32(0); 4];
        for chunk in bytes.as_chunks::<128>().0 {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = V::add_i32(*sum, V::load_i32(chunk.as_ptr().add(i * 32).cast()));
            }
        }
        first_lane::<V>(V::to_f32(V::add_i32(
            V::add_i32(sums[0], sums[1]),
            V::add_i32(sums[2], sums[3]),
        )))
    }
}

/// What a round multiplies: eight chunks with four rows.
const INT8_MACS: usize = 8 * 4 * 64;

simd_kernel! {
    /// Integer products, as the microkernel of packed weights makes them, from the first-level cache.
    unsafe fn int8() -> f32 = int8_body; products
}

#[inline(always)]
unsafe fn int8_body<V: Simd>() -> f32 {
    // SAFETY: the caller's duty.
    unsafe {
        match V::Wide::AT_ONCE {
            1 => int8_rounds::<V::Wide, 1>(ROUNDS),
            _ => int8_rounds::<V::Wide, 2>(ROUNDS / 2),
        }
    }
}

/// As many panels at once as the microkernel takes. The first lane of all sums.
#[inline(always)]
unsafe fn int8_rounds<V: Wide, const P: usize>(rounds: usize) -> f32 {
    let weights = black_box([[[3_u8; 64]; 8]; P]);
    let x = black_box([7_i8; 128]);
    // SAFETY: the arrays hold what is read; the instruction set is the caller's duty.
    unsafe {
        let mut total = V::splat_i32(0);
        for _ in 0..rounds {
            // Else a round's sums could be the last one's.
            let x: *const i32 = black_box(&x).as_ptr().cast();
            if V::MATRICES {
                let mut sums = [V::splat_i32(0); 4];
                for c in 0..4 {
                    let pair = [0, 1].map(|i| V::load_bytes(weights[0][2 * c + i].as_ptr()));
                    V::dot_joined::<4, 4>(&mut sums, pair, x.add(c * 8));
                }
                for sum in sums {
                    total = V::add_i32(total, sum);
                }
                continue;
            }
            let mut accs = [[V::acc_zero(); 4]; P];
            for c in 0..8 {
                for (accs, weights) in accs.iter_mut().zip(&weights) {
                    V::acc_add_rows(accs, V::load_bytes(weights[c].as_ptr()), x.add(c * 4));
                }
            }
            for acc in accs.as_flattened() {
                total = V::add_i32(total, V::acc_widen(*acc));
            }
        }
        let mut lanes = [0_i32; SUM_LANES];
        V::store_i32(lanes.as_mut_ptr(), total);
        lanes[0] as f32
    }
}

/// What a round multiplies: twelve vectors of sixteen lanes.
const F32_MACS: usize = 12 * SUM_LANES;

simd_kernel! {
    /// Fused multiply-adds in registers.
    unsafe fn f32s() -> f32 = f32_body
}

#[inline(always)]
unsafe fn f32_body<V: Simd>() -> f32 {
    // SAFETY: the caller's duty. Twelve sums of eight lanes at once, or of sixteen: so many registers there are.
    unsafe {
        match V::Wide::AT_ONCE {
            1 => f32_rounds::<V::Wide, 6>() + f32_rounds::<V::Wide, 6>(),
            _ => f32_rounds::<V::Wide, 12>(),
        }
    }
}

/// The first lanes of `N` vectors, added up.
#[inline(always)]
unsafe fn f32_rounds<V: Wide, const N: usize>() -> f32 {
    // SAFETY: the arrays hold a vector each; the instruction set is the caller's duty.
    unsafe {
        let (a, b) = (V::splat(black_box(0.5)), V::splat(black_box(0.25)));
        // From memory: lanes that are known to be equal would be computed once.
        let ones = black_box([1.0_f32; SUM_LANES]);
        let mut sums = [V::load(ones.as_ptr()); N];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = V::fma(*sum, a, b);
            }
        }
        let firsts = sums.map(|sum| {
            let mut lanes = [0.0_f32; SUM_LANES];
            V::store(lanes.as_mut_ptr(), sum);
            lanes[0]
        });
        firsts.iter().sum()
    }
}

#[inline(always)]
unsafe fn first_lane<V: Simd>(x: V::F32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    // SAFETY: the array holds one vector.
    unsafe { V::store(lanes.as_mut_ptr(), x) };
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CpuLevel;

    #[test]
    fn what_is_measured_is_really_computed() {
        for level in CpuLevel::available() {
            let bytes: Vec<u8> = (0..512_u32).flat_map(u32::to_le_bytes).collect();
            // Lane 0 of the vectors: words 0, 8, 16, …
            let expected: u32 = (0..512).step_by(8).sum();
            // SAFETY: an available level.
            unsafe {
                assert_eq!(sum(level, &bytes), expected as f32);
                // Four products of 3 and 7 per lane, 8 chunks, 4 accumulators.
                assert_eq!(int8(level), (4 * 3 * 7 * 8 * 4 * ROUNDS) as f32);
                // The fixed point of x / 2 + 1/4, twelve times.
                assert_eq!(f32s(level), 6.0);
            }
        }
    }
}
