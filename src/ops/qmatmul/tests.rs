use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::*;
use crate::ops::cases::{PACKED as ENCODINGS, PACKED_SHAPES, random_matrix, write_scales};
use crate::ops::testing::{bits, product_contexts, random};

/// Activations with groups far above the rest, different ones in every row, so that some are refined.
fn uneven(seed: u64, rows: usize, cols: usize) -> Vec<f32> {
    let mut x = random(seed, rows * cols);
    for (i, group) in x.chunks_exact_mut(GROUP).enumerate() {
        if i * 7 % 5 == 0 {
            group.iter_mut().for_each(|v| *v *= 30.0);
        }
    }
    x
}

#[test]
fn every_format_has_the_bits_of_the_oracle_for_any_rows_level_and_thread_count() {
    for encoding in ENCODINGS {
        for (m, n, k) in PACKED_SHAPES {
            let raw = random_matrix(encoding, n, k, 3);
            let x = uneven(5, m, k);
            let expected = oracle::qmatmul(&x, m, &raw);
            for ctx in product_contexts() {
                let w = QMatrix::pack(&ctx, &raw).unwrap();
                let rows = quantize_rows(&ctx, &ctx.tensor(m, k, &x));
                let y = qmatmul(&ctx, &rows, &[&w]).remove(0);
                assert_eq!(
                    bits(y.as_slice()),
                    bits(&expected),
                    "{encoding:?} {m}x{n}x{k} {ctx:?}"
                );
            }
        }
    }
}

#[test]
fn extreme_codes_and_activations_do_not_overflow_the_integer_sums() {
    for encoding in ENCODINGS {
        for fill in [0x00_u8, 0xff, 0x7f, 0x80] {
            let mut bytes = vec![fill; encoding.row_bytes(256).unwrap() * 8];
            for block in bytes.chunks_exact_mut(encoding.block_bytes()) {
                write_scales(encoding, block, || 0.01);
            }
            let raw = RawMatrix::new(8, 256, encoding, Arc::new(bytes)).unwrap();
            // Signs that change with every run of so many features.
            for run in [1, 2, 4, 8, 16, 256] {
                let sign = |i: usize| {
                    if (i / run).is_multiple_of(2) {
                        1.0
                    } else {
                        -1.0
                    }
                };
                let mut x: Vec<f32> = (0..8 * 256).map(sign).collect();
                x[7 * 256..].fill(-1.0);
                let expected = oracle::qmatmul(&x, 8, &raw);
                for ctx in product_contexts() {
                    let w = QMatrix::pack(&ctx, &raw).unwrap();
                    let y = qmatmul(&ctx, &quantize_rows(&ctx, &ctx.tensor(8, 256, &x)), &[&w])
                        .remove(0);
                    assert_eq!(
                        bits(y.as_slice()),
                        bits(&expected),
                        "{encoding:?} {fill:#x} {run}"
                    );
                }
            }
        }
    }
}

#[test]
fn is_the_decoded_matrix_times_the_rounded_activations() {
    for encoding in ENCODINGS {
        let raw = random_matrix(encoding, 16, 512, 9);
        let x = random(11, 2 * 512);
        let y = oracle::qmatmul(&x, 2, &raw);
        let mut row = vec![0.0; 512];
        for n in 0..16 {
            raw.decode_row(n, &mut row).unwrap();
            for m in 0..2 {
                let xs = &x[m * 512..(m + 1) * 512];
                let want: f64 = row
                    .iter()
                    .zip(xs)
                    .map(|(w, x)| f64::from(*w) * f64::from(*x))
                    .sum();
                let size: f64 = row
                    .iter()
                    .map(|w| f64::from(*w).powi(2))
                    .sum::<f64>()
                    .sqrt();
                // Each activation is off by at most half a step of max/127, independently.
                assert!(
                    (f64::from(y[m * 16 + n]) - want).abs() < size / 127.0 * 2.0,
                    "{encoding:?}"
                );
            }
        }
    }
}

#[test]
fn groups_far_above_the_rest_are_refined_and_the_result_is_better_for_it() {
    let raw = random_matrix(Encoding::Q8_0, 16, 512, 9);
    let x = uneven(12, 1, 512);
    let rounded = activations::round_row(crate::ops::CpuLevel::Scalar, &x);
    assert!(
        (1..8).contains(&rounded.refinements.len()),
        "{}",
        rounded.refinements.len()
    );
    let y = oracle::qmatmul(&x, 1, &raw);
    let mut row = vec![0.0; 512];
    for (n, y) in y.iter().enumerate() {
        raw.decode_row(n, &mut row).unwrap();
        let want: f64 = row
            .iter()
            .zip(&x)
            .map(|(w, x)| f64::from(*w) * f64::from(*x))
            .sum();
        let size: f64 = row
            .iter()
            .map(|w| f64::from(*w).powi(2))
            .sum::<f64>()
            .sqrt();
        // Steps of 30/127 would be off by some 0.07 size; those of the other groups, 1/127, by 0.002.
        assert!((f64::from(*y) - want).abs() < size * 0.01, "{y} {want}");
    }
}

#[test]
fn several_matrices_share_one_section() {
    let (a, b) = (
        random_matrix(Encoding::Q4K, 24, 256, 1),
        random_matrix(Encoding::Q6K, 10, 256, 2),
    );
    for ctx in product_contexts() {
        let rows = quantize_rows(&ctx, &ctx.tensor(3, 256, &random(1, 3 * 256)));
        let (a, b) = (
            QMatrix::pack(&ctx, &a).unwrap(),
            QMatrix::pack(&ctx, &b).unwrap(),
        );
        let both = qmatmul(&ctx, &rows, &[&a, &b]);
        assert_eq!(
            both[0].as_slice(),
            qmatmul(&ctx, &rows, &[&a])[0].as_slice()
        );
        assert_eq!(
            both[1].as_slice(),
            qmatmul(&ctx, &rows, &[&b])[0].as_slice()
        );
    }
}

#[test]
fn activations_of_another_level_are_not_read() {
    let raw = random_matrix(Encoding::Q4_0, 16, 256, 1);
    for (own, other) in product_contexts()
        .iter()
        .zip(product_contexts().iter().rev())
    {
        let w = QMatrix::pack(own, &raw).unwrap();
        let rows = quantize_rows(other, &other.tensor(1, 256, &random(1, 256)));
        let product = AssertUnwindSafe(|| qmatmul(own, &rows, &[&w]));
        let refused = catch_unwind(product).is_err();
        assert_eq!(refused, own.level() != other.level(), "{own:?} {other:?}");
    }
}

#[test]
fn no_rows_give_no_results() {
    let raw = random_matrix(Encoding::Q4K, 24, 256, 1);
    for ctx in product_contexts() {
        let w = QMatrix::pack(&ctx, &raw).unwrap();
        let y = qmatmul(&ctx, &quantize_rows(&ctx, &ctx.tensor(0, 256, &[])), &[&w]);
        assert_eq!((y[0].rows(), y[0].cols()), (0, 24));
    }
}

#[test]
fn a_nan_or_infinite_activation_reaches_the_result() {
    let raw = random_matrix(Encoding::Q4_0, 8, 64, 1);
    for bad in [f32::NAN, f32::INFINITY] {
        for ctx in product_contexts() {
            let mut x = vec![0.5; 64];
            x[40] = bad;
            let w = QMatrix::pack(&ctx, &raw).unwrap();
            let y = qmatmul(&ctx, &quantize_rows(&ctx, &ctx.tensor(1, 64, &x)), &[&w]).remove(0);
            assert!(y.as_slice().iter().all(|v| v.is_nan()));
        }
    }
}
