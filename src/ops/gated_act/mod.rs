//! The gate of a feed-forward block: `act(gate) * up`.

mod cpu;

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)` (SwiGLU blocks).
    Silu,
    /// GELU by its tanh approximation (Gemma).
    GeluTanh,
}

/// `gate = act(gate) * up`, same shapes; overwrites `gate`.
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

    fn oracle(activation: Activation, x: f64) -> f64 {
        match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                0.5 * x
                    * (1.0
                        + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3)))
                            .tanh())
            }
        }
    }

    #[test]
    fn equals_the_formulas_and_gives_the_same_bits_on_every_path() {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let mut gate: Vec<f32> = random(1, 41 * 333).iter().map(|x| x * 12.0).collect();
            gate[..6].copy_from_slice(&[0.0, -0.0, 1e30, -1e30, 90.0, -90.0]);
            let up = random(2, gate.len());
            let mut seen: Option<Vec<u32>> = None;
            for ctx in contexts() {
                let mut y = ctx.tensor(41, 333, &gate);
                gated_act(&ctx, activation, &mut y, &ctx.tensor(41, 333, &up));
                for (i, got) in y.as_slice().iter().enumerate() {
                    let want = oracle(activation, f64::from(gate[i])) * f64::from(up[i]);
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
}
