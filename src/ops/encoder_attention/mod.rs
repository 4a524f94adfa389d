//! Attention of every token over all tokens of its own sequence: `softmax(scale · q kᵀ) v`, no mask, no cache.
//!
//! A batch is sequences one behind the other; there is no padding, so there is nothing to mask. The rules are those of
//! [`crate::ops::attention`]: keys in tiles of [`TILE_KEYS`] counted from the first token of the sequence, each with its own
//! maximum, sum and weighted values, merged in ascending order; a score is one chain over the features, a weighted value one
//! chain over the keys. Keys and values are F32. Nothing depends on how many sequences there are or where one stands.

mod cpu;

use crate::ops::simd::LANES;
use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Keys per tile of the softmax.
pub const TILE_KEYS: usize = 64;

/// Geometry of the heads, and what multiplies the scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadShape {
    /// Heads, each with its own keys and values.
    pub num_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Multiplies the scores.
    pub scale: f32,
}

/// Attention of every row of `q` over the rows of `k` and `v` of its own sequence; all `[tokens, heads * head_dim]`.
///
/// `lengths` are the tokens of the sequences, in the order of their rows. Panics when they are not all rows, one is 0, or the
/// widths differ.
pub fn encoder_attention(
    ctx: &Context,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    lengths: &[usize],
    heads: HeadShape,
) -> Tensor {
    let width = heads.num_heads * heads.head_dim;
    for x in [q, k, v] {
        assert!(
            x.cols() == width && x.rows() == q.rows(),
            "{x:?} for {heads:?}"
        );
    }
    let (places, padded) = places(lengths);
    assert!(
        lengths.iter().sum::<usize>() == q.rows() && !lengths.contains(&0),
        "sequences of {lengths:?} tokens in {q:?}"
    );
    let stride = heads.head_dim.next_multiple_of(LANES);
    let mut keys = ctx.uninit(padded, width);
    let mut values = ctx.uninit(q.rows(), heads.num_heads * stride);
    {
        let (keys, values) = (
            Disjoint::new(keys.as_mut_slice()),
            Disjoint::new(values.as_mut_slice()),
        );
        ctx.pool().run(lengths.len() * heads.num_heads, |task| {
            let (place, head) = (&places[task / heads.num_heads], task % heads.num_heads);
            cpu::pack_keys(k, place, heads, head, &keys);
            cpu::pack_values(v, place, heads, head, &values);
        });
    }
    let mut y = ctx.uninit(q.rows(), width);
    let out = Disjoint::new(y.as_mut_slice());
    let tasks: Vec<(usize, usize, usize)> = places
        .iter()
        .enumerate()
        .flat_map(|(sequence, place)| {
            let blocks = place.length.div_ceil(cpu::ROWS_PER_TASK);
            (0..heads.num_heads * blocks).map(move |i| (sequence, i / blocks, i % blocks))
        })
        .collect();
    ctx.pool().run(tasks.len(), |task| {
        let (sequence, head, block) = tasks[task];
        let place = &places[sequence];
        let work = cpu::Work {
            q,
            keys: cpu::keys_of(&keys, place, heads, head),
            values: cpu::values_of(&values, place, heads, head),
            place,
            heads,
            head,
            out: &out,
        };
        let first = block * cpu::ROWS_PER_TASK;
        work.run(
            ctx.level(),
            first,
            cpu::ROWS_PER_TASK.min(place.length - first),
        );
    });
    y
}

/// Where a sequence lies in a batch.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Its first row.
    first: usize,
    /// The same in a batch whose sequences begin with a tile each.
    first_padded: usize,
    /// Tokens.
    length: usize,
}

/// Where the sequences lie, and how many rows they take with whole tiles.
fn places(lengths: &[usize]) -> (Vec<Place>, usize) {
    let (mut first, mut first_padded) = (0, 0);
    let places = lengths
        .iter()
        .map(|&length| {
            let place = Place {
                first,
                first_padded,
                length,
            };
            first += length;
            first_padded += length.next_multiple_of(TILE_KEYS);
            place
        })
        .collect();
    (places, first_padded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{bits, contexts, random};

    struct Case {
        lengths: Vec<usize>,
        heads: HeadShape,
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
    }

    impl Case {
        fn new(lengths: &[usize], num_heads: usize, head_dim: usize) -> Self {
            let len = lengths.iter().sum::<usize>() * num_heads * head_dim;
            Self {
                lengths: lengths.to_vec(),
                heads: HeadShape {
                    num_heads,
                    head_dim,
                    scale: 1.7 / (head_dim as f32).sqrt(),
                },
                q: random(1, len),
                k: random(2, len),
                v: random(3, len),
            }
        }

        fn width(&self) -> usize {
            self.heads.num_heads * self.heads.head_dim
        }

        /// The rows `first..first + sum of lengths`.
        fn run(&self, ctx: &Context, first: usize, lengths: &[usize]) -> Vec<f32> {
            let (rows, width) = (lengths.iter().sum::<usize>(), self.width());
            let part =
                |x: &[f32]| ctx.tensor(rows, width, &x[first * width..(first + rows) * width]);
            // Buffers that were used before hold anything.
            drop(ctx.tensor(1, 1 << 16, &vec![f32::NAN; 1 << 16]));
            drop((
                ctx.tensor(1, 4096, &[f32::NAN; 4096]),
                ctx.tensor(1, 4096, &[f32::NAN; 4096]),
            ));
            let y = encoder_attention(
                ctx,
                &part(&self.q),
                &part(&self.k),
                &part(&self.v),
                lengths,
                self.heads,
            );
            y.as_slice().to_vec()
        }

        fn oracle(&self) -> Vec<f64> {
            let (dim, width) = (self.heads.head_dim, self.width());
            let at = |x: &[f32], row: usize, head: usize, d: usize| {
                f64::from(x[row * width + head * dim + d])
            };
            let mut out = Vec::new();
            let mut first = 0;
            for &length in &self.lengths {
                for row in first..first + length {
                    for head in 0..self.heads.num_heads {
                        let scores: Vec<f64> = (first..first + length)
                            .map(|key| {
                                let dot: f64 = (0..dim)
                                    .map(|d| at(&self.q, row, head, d) * at(&self.k, key, head, d))
                                    .sum();
                                dot * f64::from(self.heads.scale)
                            })
                            .collect();
                        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                        let sum: f64 = weights.iter().sum();
                        for d in 0..dim {
                            let value: f64 = (0..length)
                                .map(|j| weights[j] * at(&self.v, first + j, head, d))
                                .sum();
                            out.push(value / sum);
                        }
                    }
                }
                first += length;
            }
            out
        }
    }

    #[test]
    fn equals_the_formula_and_gives_the_same_bits_on_every_path() {
        for (lengths, num_heads, head_dim) in [
            (&[1][..], 1, 1),
            (&[5, 1, 64], 2, 10),
            (&[65, 3], 3, 8),
            (&[130, 63, 2], 2, 33),
            (&[40], 4, 64),
        ] {
            let case = Case::new(lengths, num_heads, head_dim);
            let expected = case.oracle();
            let mut seen: Option<Vec<u32>> = None;
            for ctx in contexts() {
                let y = case.run(&ctx, 0, lengths);
                for (got, want) in y.iter().zip(&expected) {
                    assert!(
                        (f64::from(*got) - want).abs() < 2e-6,
                        "{lengths:?} {got} {want}"
                    );
                }
                let seen = seen.get_or_insert_with(|| bits(&y));
                assert_eq!(*seen, bits(&y), "{lengths:?} {ctx:?}");
            }
        }
    }

    #[test]
    fn a_sequence_has_the_same_bits_alone_and_in_company() {
        let case = Case::new(&[70, 1, 33, 128, 7], 2, 12);
        let width = case.width();
        for ctx in contexts() {
            let all = case.run(&ctx, 0, &case.lengths);
            let mut first = 0;
            for &length in &case.lengths {
                let alone = case.run(&ctx, first, &[length]);
                assert_eq!(
                    bits(&alone),
                    bits(&all[first * width..(first + length) * width]),
                    "{length} {ctx:?}"
                );
                first += length;
            }
        }
    }

    #[test]
    fn a_value_that_is_no_number_stays_in_its_sequence() {
        let mut case = Case::new(&[20, 30], 1, 16);
        case.v[0] = f32::NAN;
        case.k[16 * 3] = f32::NAN;
        for ctx in contexts() {
            let y = case.run(&ctx, 0, &[20, 30]);
            assert!(y[..20 * 16].iter().all(|x| x.is_nan()));
            assert!(y[20 * 16..].iter().all(|x| x.is_finite()));
        }
    }
}
