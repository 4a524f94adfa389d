//! What experts gave: biases of their own, and the sum over the slots of a token.
#![allow(unsafe_code)]

use super::{Dispatch, Routing};
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{LANES, Simd, load_part, simd_kernel, store_part};
use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Adds to every row of `x` `[places, cols]` the bias of its expert, of which `biases` holds one after the other.
pub fn add_expert_bias(ctx: &Context, x: &mut Tensor, biases: &[f32], dispatch: &Dispatch) {
    let cols = x.cols();
    assert_eq!(x.rows(), dispatch.tokens.len(), "places of {x:?}");
    let values = Disjoint::new(x.as_mut_slice());
    ctx.for_row_ranges(dispatch.groups.len(), cols * 8, |first, count| {
        for group in &dispatch.groups[first..first + count] {
            let bias = &biases[group.expert * cols..][..cols];
            for place in group.places.clone() {
                // SAFETY: groups have no place in common.
                let row = unsafe { values.part(place * cols, cols) };
                // SAFETY: the body needs the instruction set only, which the level stands for.
                unsafe { add(ctx.level(), row, bias) };
            }
        }
    });
}

/// Per token the sum of what its experts gave, `y` `[places, cols]`, times their weights: one chain of fused multiply-adds per
/// element, in ascending order of the slots. `[tokens, cols]`.
pub fn combine(ctx: &Context, y: &Tensor, routing: &Routing, dispatch: &Dispatch) -> Tensor {
    let (cols, top_k) = (y.cols(), routing.top_k);
    assert_eq!(y.rows(), routing.experts.len(), "places of {y:?}");
    let mut out = ctx.uninit(y.rows() / top_k.max(1), cols);
    let (rows, values) = (out.rows(), Disjoint::new(out.as_mut_slice()));
    ctx.for_row_ranges(rows, cols * top_k, |first, count| {
        for token in first..first + count {
            // SAFETY: row ranges are disjoint.
            let out = unsafe { values.part(token * cols, cols) };
            let slots = token * top_k..(token + 1) * top_k;
            sum(
                ctx.level(),
                y,
                &dispatch.places[slots.clone()],
                &routing.weights[slots],
                out,
            );
        }
    });
    out
}

fn sum(level: CpuLevel, y: &Tensor, places: &[u32], weights: &[f32], out: &mut [f32]) {
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { weighted_sum(level, y, places, weights, out) };
}

simd_kernel! { unsafe fn add(x: &mut [f32], y: &[f32]) = add_body }
simd_kernel! { unsafe fn weighted_sum(y: &Tensor, places: &[u32], weights: &[f32], out: &mut [f32]) = sum_body }

#[inline(always)]
unsafe fn add_body<V: Simd>(x: &mut [f32], y: &[f32]) {
    for at in (0..x.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe { store_part::<V>(x, at, V::add(load_part::<V>(x, at), load_part::<V>(y, at))) };
    }
}

#[inline(always)]
unsafe fn sum_body<V: Simd>(y: &Tensor, places: &[u32], weights: &[f32], out: &mut [f32]) {
    for at in (0..out.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            let mut sum = V::splat(0.0);
            for (place, weight) in places.iter().zip(weights) {
                let given = load_part::<V>(y.row(*place as usize), at);
                sum = V::fma(V::splat(*weight), given, sum);
            }
            store_part::<V>(out, at, sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{bits, contexts, random};

    fn routing(tokens: usize, experts: u32) -> Routing {
        // Two different experts per token, and one that nobody goes to.
        let of = |t: u32| [t % (experts - 1), (t * 3 + 1) % (experts - 1)];
        let two = |t: u32| match of(t) {
            [a, b] if a == b => [a, (b + 1) % (experts - 1)],
            other => other,
        };
        Routing {
            top_k: 2,
            experts: (0..tokens as u32).flat_map(two).collect(),
            weights: random(9, tokens * 2),
        }
    }

    #[test]
    fn a_token_gets_the_biased_and_weighted_sum_of_its_own_experts_in_the_order_of_its_slots() {
        for (tokens, cols) in [(1, 37), (50, 333)] {
            let routing = routing(tokens, 5);
            let dispatch = Dispatch::new(&routing, 5);
            let (y, bias) = (random(1, tokens * 2 * cols), random(2, 5 * cols));
            for ctx in contexts() {
                let mut given = ctx.tensor(tokens * 2, cols, &y);
                add_expert_bias(&ctx, &mut given, &bias, &dispatch);
                let out = combine(&ctx, &given, &routing, &dispatch);
                let mut expected = Vec::new();
                for t in 0..tokens {
                    for c in 0..cols {
                        let slot = |s: usize| {
                            let place = dispatch.places[2 * t + s] as usize;
                            let expert = routing.experts[2 * t + s] as usize;
                            (
                                routing.weights[2 * t + s],
                                y[place * cols + c] + bias[expert * cols + c],
                            )
                        };
                        let ((w0, y0), (w1, y1)) = (slot(0), slot(1));
                        expected.push(w1.mul_add(y1, w0.mul_add(y0, 0.0)));
                    }
                }
                assert_eq!(bits(out.as_slice()), bits(&expected), "{ctx:?}");
            }
        }
    }
}
