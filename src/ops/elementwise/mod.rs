//! Element by element: residual additions, scales, soft caps.

mod cpu;

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// `x += y`, same shapes.
pub fn add_assign(ctx: &Context, x: &mut Tensor, y: &Tensor) {
    assert_eq!(
        (x.rows(), x.cols()),
        (y.rows(), y.cols()),
        "add {y:?} to {x:?}"
    );
    let y = y.as_slice();
    in_parts(ctx, x, |part, at| {
        cpu::add_assign(ctx.level(), part, &y[at..at + part.len()])
    });
}

/// Adds `bias` (as long as a row) to every row.
pub fn add_bias(ctx: &Context, x: &mut Tensor, bias: &[f32]) {
    assert_eq!(x.cols(), bias.len(), "bias of {} for {x:?}", bias.len());
    for row in x.as_mut_slice().chunks_exact_mut(bias.len().max(1)) {
        cpu::add_assign(ctx.level(), row, bias);
    }
}

/// `x *= factor`.
pub fn scale(ctx: &Context, x: &mut Tensor, factor: f32) {
    in_parts(ctx, x, |part, _| part.iter_mut().for_each(|v| *v *= factor));
}

/// `x = cap * tanh(x / cap)`.
pub fn soft_cap(ctx: &Context, x: &mut Tensor, cap: f32) {
    in_parts(ctx, x, |part, _| cpu::soft_cap(ctx.level(), part, cap));
}

/// Rows `rows` of `x`, in that order, as a new tensor.
pub fn select_rows(ctx: &Context, x: &Tensor, rows: &[usize]) -> Tensor {
    let mut y = ctx.uninit(rows.len(), x.cols());
    for (out, &row) in y.as_mut_slice().chunks_exact_mut(x.cols().max(1)).zip(rows) {
        out.copy_from_slice(x.row(row));
    }
    y
}

/// Calls `work(part, first element)` over row ranges of `x`.
fn in_parts(ctx: &Context, x: &mut Tensor, work: impl Fn(&mut [f32], usize) + Sync) {
    let (rows, cols) = (x.rows(), x.cols());
    let values = Disjoint::new(x.as_mut_slice());
    ctx.for_row_ranges(rows, cols, |first, count| {
        // SAFETY: row ranges are disjoint.
        #[allow(unsafe_code)]
        let part = unsafe { values.part(first * cols, count * cols) };
        work(part, first * cols);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{bits, contexts, random};

    #[test]
    fn sums_scales_and_caps_have_the_same_bits_on_every_path() {
        let (a, b, bias) = (random(1, 37 * 501), random(2, 37 * 501), random(3, 501));
        let mut seen: Option<Vec<u32>> = None;
        for ctx in contexts() {
            let mut x = ctx.tensor(37, 501, &a);
            add_assign(&ctx, &mut x, &ctx.tensor(37, 501, &b));
            add_bias(&ctx, &mut x, &bias);
            scale(&ctx, &mut x, 3.5);
            for (i, got) in x.as_slice().iter().enumerate() {
                assert_eq!(*got, ((a[i] + b[i]) + bias[i % 501]) * 3.5);
            }
            let before = x.as_slice().to_vec();
            soft_cap(&ctx, &mut x, 2.0);
            for (got, x) in x.as_slice().iter().zip(before) {
                let want = 2.0 * (f64::from(x) / 2.0).tanh();
                // The tanh's absolute error is near 1e-7, times the cap.
                assert!((f64::from(*got) - want).abs() < 1e-6, "{got} {want}");
            }
            let seen = seen.get_or_insert_with(|| bits(x.as_slice()));
            assert_eq!(*seen, bits(x.as_slice()), "{ctx:?}");
        }
    }

    #[test]
    fn a_soft_cap_keeps_nan_and_bounds_infinity() {
        for ctx in contexts() {
            let mut x = ctx.tensor(1, 3, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
            soft_cap(&ctx, &mut x, 30.0);
            assert!(x.as_slice()[0].is_nan());
            assert_eq!(&x.as_slice()[1..], &[30.0, -30.0]);
        }
    }
}
