//! RMS norm: `y = x / sqrt(mean(x²) + eps) * weight`, over rows or over equal parts of rows (heads).
//!
//! Source: Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>. Zero-centred weights get their 1 added at load.

mod cpu;

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Norms every part of `weight.len()` elements of every row of `x` `[rows, n * weight.len()]`; returns a new tensor.
///
/// Sums run over 16 lanes in F32, whatever the CPU. Panics when the part size does not divide the row.
pub fn rms_norm(ctx: &Context, x: &Tensor, weight: &[f32], eps: f32) -> Tensor {
    let mut y = ctx.uninit(x.rows(), x.cols());
    assert!(
        !weight.is_empty() && x.cols().is_multiple_of(weight.len()),
        "{x:?} in parts of {}",
        weight.len()
    );
    let (cols, out) = (x.cols(), Disjoint::new(y.as_mut_slice()));
    ctx.for_row_ranges(x.rows(), cols, |first, count| {
        // SAFETY: row ranges are disjoint.
        #[allow(unsafe_code)]
        let out = unsafe { out.part(first * cols, count * cols) };
        cpu::rms_norm(
            ctx.level(),
            &x.as_slice()[first * cols..(first + count) * cols],
            weight,
            eps,
            out,
        );
    });
    y
}

/// [`rms_norm`] that overwrites its input.
pub fn rms_norm_in_place(ctx: &Context, x: &mut Tensor, weight: &[f32], eps: f32) {
    assert!(
        !weight.is_empty() && x.cols().is_multiple_of(weight.len()),
        "{x:?} in parts of {}",
        weight.len()
    );
    let (rows, cols) = (x.rows(), x.cols());
    let values = Disjoint::new(x.as_mut_slice());
    ctx.for_row_ranges(rows, cols, |first, count| {
        // SAFETY: row ranges are disjoint.
        #[allow(unsafe_code)]
        let values = unsafe { values.part(first * cols, count * cols) };
        cpu::rms_norm_in_place(ctx.level(), values, weight, eps);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{bits, contexts, random};

    fn oracle(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
        x.chunks(weight.len())
            .flat_map(|part| {
                let mean =
                    part.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / part.len() as f64;
                let scale = 1.0 / (mean + f64::from(eps)).sqrt();
                part.iter()
                    .zip(weight)
                    .map(move |(&v, &w)| f64::from(v) * scale * f64::from(w))
                    .collect::<Vec<_>>()
            })
            .collect()
    }

    #[test]
    fn equals_the_formula_and_gives_the_same_bits_on_every_path() {
        for (rows, parts, size) in [(1, 1, 1), (3, 1, 7), (5, 2, 24), (40, 1, 576), (2, 3, 64)] {
            let values = random(7, rows * parts * size);
            let weight = random(8, size);
            let expected = oracle(&values, &weight, 1e-5);
            let mut seen: Option<Vec<u32>> = None;
            for ctx in contexts() {
                let mut x = ctx.tensor(rows, parts * size, &values);
                let y = rms_norm(&ctx, &x, &weight, 1e-5);
                rms_norm_in_place(&ctx, &mut x, &weight, 1e-5);
                assert_eq!(bits(x.as_slice()), bits(y.as_slice()));
                // Two roundings per element and a 16-lane sum: a few units in the last place.
                for (got, want) in y.as_slice().iter().zip(&expected) {
                    assert!(
                        (f64::from(*got) - want).abs() <= 1e-6 * (1.0 + want.abs()),
                        "{got} {want}"
                    );
                }
                let seen = seen.get_or_insert_with(|| bits(y.as_slice()));
                assert_eq!(*seen, bits(y.as_slice()), "{ctx:?}");
            }
        }
    }
}
