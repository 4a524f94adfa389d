//! The gate of a feed-forward block: `act(gate) * up`.

mod cpu;

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)` (SwiGLU blocks).
    Silu,
    /// GELU by its tanh approximation (Gemma).
    GeluTanh,
    /// `x * sigmoid(alpha * x)` of a gate that is at most `limit`, times up (within ± `limit`) plus 1 (GPT-OSS).
    ClampedSwish {
        /// Inside the sigmoid.
        alpha: f32,
        /// Of the gate and of up.
        limit: f32,
    },
}

/// `gate = act(gate) * up` (see [`Activation`] for one that changes up too), same shapes; overwrites `gate`.
pub fn gated_act(ctx: &Context, activation: Activation, gate: &mut Tensor, up: &Tensor) {
    assert_eq!(
        (gate.rows(), gate.cols()),
        (up.rows(), up.cols()),
        "gate {gate:?}, up {up:?}"
    );
    let (rows, cols, up) = (gate.rows(), gate.cols(), up.as_slice());
    let gate = Disjoint::new(gate.as_mut_slice());
    ctx.for_row_ranges(rows, cols * 4, |first, count| {
        // SAFETY: row ranges are disjoint.
        #[allow(unsafe_code)]
        let gate = unsafe { gate.part(first * cols, count * cols) };
        cpu::gated_act(
            ctx.level(),
            activation,
            gate,
            &up[first * cols..(first + count) * cols],
        );
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{bits, contexts, random};

    fn oracle(activation: Activation, x: f64, up: f64) -> f64 {
        let swish = |alpha: f64, x: f64| x / (1.0 + (-alpha * x).exp());
        match activation {
            Activation::Silu => swish(1.0, x) * up,
            Activation::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh()) * up
            }
            Activation::ClampedSwish { alpha, limit } => {
                let limit = f64::from(limit);
                swish(f64::from(alpha), x.min(limit)) * (up.clamp(-limit, limit) + 1.0)
            }
        }
    }

    #[test]
    fn equals_the_formulas_and_gives_the_same_bits_on_every_path() {
        let clamped = Activation::ClampedSwish {
            alpha: 1.702,
            limit: 0.75,
        };
        for activation in [Activation::Silu, Activation::GeluTanh, clamped] {
            let mut gate: Vec<f32> = random(1, 41 * 333).iter().map(|x| x * 12.0).collect();
            gate[..6].copy_from_slice(&[0.0, -0.0, 1e30, -1e30, 90.0, -90.0]);
            let up = random(2, gate.len());
            let mut seen: Option<Vec<u32>> = None;
            for ctx in contexts() {
                let mut y = ctx.tensor(41, 333, &gate);
                gated_act(&ctx, activation, &mut y, &ctx.tensor(41, 333, &up));
                for (i, got) in y.as_slice().iter().enumerate() {
                    let want = oracle(activation, f64::from(gate[i]), f64::from(up[i]));
                    // exp and tanh are good to a few units in the last place of values near 1.
                    let slack = 2e-6 * want.abs() + 3e-7 * f64::from(gate[i]).abs();
                    assert!(
                        (f64::from(*got) - want).abs() <= slack,
                        "{activation:?} {} {got} {want}",
                        gate[i]
                    );
                }
                let seen = seen.get_or_insert_with(|| bits(y.as_slice()));
                assert_eq!(*seen, bits(y.as_slice()), "{ctx:?}");
            }
        }
    }

    #[test]
    fn nan_passes_through_the_limits() {
        let ctx = &contexts()[0];
        let clamped = Activation::ClampedSwish {
            alpha: 1.702,
            limit: 7.0,
        };
        for (gate, up) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            let mut y = ctx.tensor(1, 1, &[gate]);
            gated_act(ctx, clamped, &mut y, &ctx.tensor(1, 1, &[up]));
            assert!(y.as_slice()[0].is_nan());
        }
    }
}
