//! Element by element: residual additions, scales, limits, gates, soft caps.

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

/// `x *= y`, same shapes.
pub fn mul_assign(ctx: &Context, x: &mut Tensor, y: &Tensor) {
    assert_eq!(
        (x.rows(), x.cols()),
        (y.rows(), y.cols()),
        "{x:?} times {y:?}"
    );
    let y = y.as_slice();
    in_parts(ctx, x, |part, at| {
        let y = &y[at..at + part.len()];
        part.iter_mut().zip(y).for_each(|(x, y)| *x *= y);
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

/// Row i of `x` times `factors[i]`.
pub fn scale_rows(ctx: &Context, x: &mut Tensor, factors: &[f32]) {
    let cols = x.cols().max(1);
    assert_eq!(x.rows(), factors.len(), "factors for {x:?}");
    in_parts(ctx, x, |part, at| {
        for (row, factor) in part.chunks_exact_mut(cols).zip(&factors[at / cols..]) {
            row.iter_mut().for_each(|v| *v *= factor);
        }
    });
}

/// Every element within `low..=high`; NaN stays NaN.
pub fn clamp(ctx: &Context, x: &mut Tensor, low: f32, high: f32) {
    in_parts(ctx, x, |part, _| {
        part.iter_mut().for_each(|v| *v = v.clamp(low, high));
    });
}

/// `x *= sigmoid(gate)`, same shapes.
pub fn sigmoid_mul(ctx: &Context, x: &mut Tensor, gate: &Tensor) {
    assert_eq!(
        (x.rows(), x.cols()),
        (gate.rows(), gate.cols()),
        "{x:?} gated by {gate:?}"
    );
    let gate = gate.as_slice();
    in_parts(ctx, x, |part, at| {
        cpu::sigmoid_mul(ctx.level(), part, &gate[at..at + part.len()]);
    });
}

/// Cuts every part of `size` elements of every row of `x` `[rows, n * size]` behind its first `first` elements: the
/// beginnings `[rows, n * first]` and the ends `[rows, n * (size - first)]`.
pub fn split_heads(ctx: &Context, x: &Tensor, size: usize, first: usize) -> (Tensor, Tensor) {
    assert!(
        0 < first && first < size && x.cols().is_multiple_of(size),
        "{x:?} in parts of {size} cut at {first}"
    );
    let parts = x.cols() / size;
    let mut begin = ctx.uninit(x.rows(), parts * first);
    let mut end = ctx.uninit(x.rows(), parts * (size - first));
    let begins = begin.as_mut_slice().chunks_exact_mut(first);
    let ends = end.as_mut_slice().chunks_exact_mut(size - first);
    for ((part, b), e) in x.as_slice().chunks_exact(size).zip(begins).zip(ends) {
        b.copy_from_slice(&part[..first]);
        e.copy_from_slice(&part[first..]);
    }
    (begin, end)
}

/// Columns `first..first + count` of `x` `[rows, n]` as a new tensor.
pub fn select_columns(ctx: &Context, x: &Tensor, first: usize, count: usize) -> Tensor {
    assert!(
        0 < count && first + count <= x.cols(),
        "columns {first} and {count} more of {x:?}"
    );
    let mut y = ctx.uninit(x.rows(), count);
    let rows = x.as_slice().chunks_exact(x.cols());
    for (out, row) in y.as_mut_slice().chunks_exact_mut(count).zip(rows) {
        out.copy_from_slice(&row[first..first + count]);
    }
    y
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
            let mut product = ctx.tensor(37, 501, &a);
            mul_assign(&ctx, &mut product, &ctx.tensor(37, 501, &b));
            for (i, got) in product.as_slice().iter().enumerate() {
                assert_eq!(*got, a[i] * b[i]);
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
    fn gates_limits_and_factors_of_rows_have_the_same_bits_on_every_path() {
        let (a, b) = (random(1, 37 * 505), random(2, 37 * 505));
        let factors = random(3, 37);
        let mut seen: Option<Vec<u32>> = None;
        for ctx in contexts() {
            let mut x = ctx.tensor(37, 505, &a);
            scale_rows(&ctx, &mut x, &factors);
            clamp(&ctx, &mut x, -0.5, 0.25);
            let before = x.as_slice().to_vec();
            for (i, got) in before.iter().enumerate() {
                assert_eq!(*got, (a[i] * factors[i / 505]).clamp(-0.5, 0.25));
            }
            let gate = ctx.tensor(37, 505, &b);
            sigmoid_mul(&ctx, &mut x, &gate);
            for (i, got) in x.as_slice().iter().enumerate() {
                let want = f64::from(before[i]) / (1.0 + (-f64::from(b[i])).exp());
                assert!((f64::from(*got) - want).abs() < 1e-6, "{got} {want}");
            }
            let seen = seen.get_or_insert_with(|| bits(x.as_slice()));
            assert_eq!(*seen, bits(x.as_slice()), "{ctx:?}");
            let (begin, end) = split_heads(&ctx, &x, 5, 2);
            for part in 0..37 * 101 {
                assert_eq!(
                    begin.as_slice()[part * 2..][..2],
                    x.as_slice()[part * 5..][..2]
                );
                assert_eq!(
                    end.as_slice()[part * 3..][..3],
                    x.as_slice()[part * 5 + 2..][..3]
                );
            }
        }
    }

    #[test]
    fn selected_columns_are_those_of_every_row() {
        let ctx = &contexts()[0];
        let x = ctx.tensor(2, 4, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let part = select_columns(ctx, &x, 1, 2);
        assert_eq!(
            (part.rows(), part.as_slice()),
            (2, &[1.0, 2.0, 5.0, 6.0][..])
        );
        assert_eq!(select_columns(ctx, &x, 0, 4).as_slice(), x.as_slice());
    }

    #[test]
    fn limits_keep_nan() {
        let ctx = &contexts()[0];
        let mut x = ctx.tensor(1, 2, &[f32::NAN, f32::INFINITY]);
        clamp(ctx, &mut x, -1.0, 1.0);
        assert!(x.as_slice()[0].is_nan());
        assert_eq!(x.as_slice()[1], 1.0);
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
