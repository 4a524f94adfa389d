//! Layer norm: `y = (x - mean) / sqrt(variance + eps) * weight + bias`, over rows or over equal parts of rows (heads).
//!
//! Source: Ba, Kiros and Hinton 2016, <https://arxiv.org/abs/1607.06450>.

mod cpu;

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Norms every part of `weight.len()` elements of every row of `x` `[rows, n * weight.len()]`; returns a new tensor.
///
/// Sums run over 16 lanes in F32, whatever the CPU. Panics when the part size does not divide the row, or when `bias` has
/// another length than `weight`.
pub fn layer_norm(
    ctx: &Context,
    x: &Tensor,
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) -> Tensor {
    let mut y = ctx.uninit(x.rows(), x.cols());
    y.as_mut_slice().copy_from_slice(x.as_slice());
    layer_norm_in_place(ctx, &mut y, weight, bias, eps);
    y
}

/// [`layer_norm`] that overwrites its input.
pub fn layer_norm_in_place(
    ctx: &Context,
    x: &mut Tensor,
    weight: &[f32],
    bias: Option<&[f32]>,
    eps: f32,
) {
    assert!(
        !weight.is_empty()
            && x.cols().is_multiple_of(weight.len())
            && bias.is_none_or(|b| b.len() == weight.len()),
        "{x:?} in parts of {}, bias {:?}",
        weight.len(),
        bias.map(<[f32]>::len)
    );
    let (rows, cols) = (x.rows(), x.cols());
    let values = Disjoint::new(x.as_mut_slice());
    ctx.for_row_ranges(rows, cols, |first, count| {
        // SAFETY: row ranges are disjoint.
        #[allow(unsafe_code)]
        let values = unsafe { values.part(first * cols, count * cols) };
        cpu::layer_norm(ctx.level(), values, weight, bias, eps);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{bits, contexts, random};

    fn oracle(x: &[f32], weight: &[f32], bias: Option<&[f32]>, eps: f32) -> Vec<f64> {
        let size = weight.len();
        let mut y = Vec::new();
        for part in x.chunks(size) {
            let mean = part.iter().map(|&v| f64::from(v)).sum::<f64>() / size as f64;
            let squares = part.iter().map(|&v| (f64::from(v) - mean).powi(2));
            let scale = 1.0 / (squares.sum::<f64>() / size as f64 + f64::from(eps)).sqrt();
            y.extend((0..size).map(|i| {
                let shift = bias.map_or(0.0, |b| f64::from(b[i]));
                (f64::from(part[i]) - mean) * scale * f64::from(weight[i]) + shift
            }));
        }
        y
    }

    #[test]
    fn equals_the_formula_and_gives_the_same_bits_on_every_path() {
        for (rows, parts, size) in [(1, 1, 1), (3, 1, 7), (5, 2, 24), (40, 1, 576), (2, 3, 64)] {
            // Far from zero, so that a norm that forgets the mean is seen.
            let values: Vec<f32> = random(7, rows * parts * size)
                .iter()
                .map(|v| v + 3.0)
                .collect();
            let (weight, bias) = (random(8, size), random(9, size));
            for bias in [None, Some(&bias[..])] {
                let expected = oracle(&values, &weight, bias, 1e-5);
                let mut seen: Option<Vec<u32>> = None;
                for ctx in contexts() {
                    let x = ctx.tensor(rows, parts * size, &values);
                    let y = layer_norm(&ctx, &x, &weight, bias, 1e-5);
                    // The mean's rounding, about 3e-7 of values near 3, against a deviation near 0.6.
                    for (got, want) in y.as_slice().iter().zip(&expected) {
                        assert!(
                            (f64::from(*got) - want).abs() <= 3e-6 * (1.0 + want.abs()),
                            "{got} {want}"
                        );
                    }
                    let seen = seen.get_or_insert_with(|| bits(y.as_slice()));
                    assert_eq!(*seen, bits(y.as_slice()), "{ctx:?}");
                }
            }
        }
    }
}
