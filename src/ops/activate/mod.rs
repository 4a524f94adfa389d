//! Activation functions without a gate: the feed-forward blocks, poolers and classifiers of encoders.

mod cpu;

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    /// GELU by the error function: `x Φ(x)`.
    Gelu,
    /// GELU by its tanh approximation.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(x)`.
    Silu,
    /// `tanh(x)`.
    Tanh,
}

/// `x = function(x)`, element by element.
pub fn activate(ctx: &Context, function: Function, x: &mut Tensor) {
    let (rows, cols) = (x.rows(), x.cols());
    let values = Disjoint::new(x.as_mut_slice());
    ctx.for_row_ranges(rows, cols * 4, |first, count| {
        // SAFETY: row ranges are disjoint.
        #[allow(unsafe_code)]
        let values = unsafe { values.part(first * cols, count * cols) };
        cpu::activate(ctx.level(), function, values);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{bits, contexts, random};

    fn oracle(function: Function, x: f64) -> f64 {
        match function {
            Function::Gelu => 0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2)),
            Function::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            }
            Function::Relu => x.max(0.0),
            Function::Silu => x / (1.0 + (-x).exp()),
            Function::Tanh => x.tanh(),
        }
    }

    const ALL: [Function; 5] = [
        Function::Gelu,
        Function::GeluTanh,
        Function::Relu,
        Function::Silu,
        Function::Tanh,
    ];

    #[test]
    fn equal_the_formulas_and_give_the_same_bits_on_every_path() {
        for function in ALL {
            let mut values: Vec<f32> = random(1, 41 * 333).iter().map(|x| x * 7.0).collect();
            values[..8].copy_from_slice(&[0.0, -0.0, 1e30, -1e30, 90.0, -90.0, 1e-30, -1e-30]);
            let mut seen: Option<Vec<u32>> = None;
            for ctx in contexts() {
                let mut y = ctx.tensor(41, 333, &values);
                activate(&ctx, function, &mut y);
                for (&x, &got) in values.iter().zip(y.as_slice()) {
                    let want = oracle(function, f64::from(x));
                    // erf, exp and tanh are good to a few units in the last place of values near 1.
                    let slack = 1e-6 * want.abs() + 2.5e-7 * f64::from(x.abs().min(10.0));
                    let slack = slack
                        + if function == Function::Tanh {
                            3e-7
                        } else {
                            0.0
                        };
                    assert!(
                        (f64::from(got) - want).abs() <= slack,
                        "{function:?} {x} {got} {want}"
                    );
                }
                let seen = seen.get_or_insert_with(|| bits(y.as_slice()));
                assert_eq!(*seen, bits(y.as_slice()), "{ctx:?}");
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        for function in ALL {
            for ctx in contexts() {
                let mut y = ctx.tensor(1, 9, &[f32::NAN; 9]);
                activate(&ctx, function, &mut y);
                assert!(
                    y.as_slice().iter().all(|x| x.is_nan()),
                    "{function:?} {ctx:?}"
                );
            }
        }
    }
}
