//! One vector of the rows of a sequence, and vectors of unit length.
//!
//! A pooled element is one chain over the rows in ascending order, so it depends on its own sequence alone.

use crate::ops::simd::{SUM_LANES, sum16};

/// `Σ weight(i) · row i` over the rows of `cols` elements in `rows`, ascending, divided by `divisor`.
///
/// Panics when `rows` is no whole number of rows.
pub fn weighted_mean(
    rows: &[f32],
    cols: usize,
    weight: impl Fn(usize) -> f32,
    divisor: f32,
) -> Vec<f32> {
    assert!(
        cols > 0 && rows.len().is_multiple_of(cols),
        "rows of {cols} in {}",
        rows.len()
    );
    let mut sum = vec![0.0_f32; cols];
    for (index, row) in rows.chunks_exact(cols).enumerate() {
        let weight = weight(index);
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += weight * value;
        }
    }
    sum.iter_mut().for_each(|sum| *sum /= divisor);
    sum
}

/// The largest of each column. NaN wins. Panics when `rows` is no whole number of rows, at least one.
pub fn largest(rows: &[f32], cols: usize) -> Vec<f32> {
    assert!(
        cols > 0 && !rows.is_empty() && rows.len().is_multiple_of(cols),
        "rows of {cols} in {}",
        rows.len()
    );
    let mut top = rows[..cols].to_vec();
    for row in rows[cols..].chunks_exact(cols) {
        for (top, value) in top.iter_mut().zip(row) {
            if *value > *top || value.is_nan() {
                *top = *value;
            }
        }
    }
    top
}

/// Divides `vector` by its Euclidean length; the zero vector stays what it is.
pub fn normalize(vector: &mut [f32]) {
    /// Of the reference (`torch.nn.functional.normalize`).
    const LEAST: f32 = 1e-12;
    let mut lanes = [0.0_f32; SUM_LANES];
    for part in vector.chunks(SUM_LANES) {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *lane = x.mul_add(*x, *lane);
        }
    }
    let length = sum16(&lanes).sqrt();
    // A comparison that a NaN fails would hide it.
    let length = if length < LEAST { LEAST } else { length };
    vector.iter_mut().for_each(|x| *x /= length);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::random;

    #[test]
    fn means_and_maxima_are_those_of_the_columns() {
        let rows = [1.0, -2.0, 3.0, 5.0, 2.0, -9.0];
        assert_eq!(weighted_mean(&rows, 2, |_| 1.0, 3.0), [2.0, -2.0]);
        let weighted = weighted_mean(&rows, 2, |i| (i + 1) as f32, 6.0);
        assert_eq!(weighted, [13.0 / 6.0, -19.0 / 6.0]);
        assert_eq!(largest(&rows, 2), [3.0, 5.0]);
        assert!(largest(&[1.0, f32::NAN, 2.0], 1)[0].is_nan());
    }

    #[test]
    fn a_normalized_vector_has_length_one_and_zero_stays_zero() {
        let mut vector = random(5, 387);
        normalize(&mut vector);
        let length: f64 = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        assert!((length - 1.0).abs() < 1e-6, "{length}");
        let mut zero = vec![0.0; 5];
        normalize(&mut zero);
        assert_eq!(zero, [0.0; 5]);
        let mut broken = vec![1.0, f32::NAN];
        normalize(&mut broken);
        assert!(broken.iter().all(|x| x.is_nan()));
    }
}
