//! Scaled dot-product attention over cache pages: `softmax(scale · q kᵀ) v`, for prompts and single tokens alike.
//!
//! Keys lie in tiles of [`TILE_KEYS`], counted from position 0 of the sequence. For each query and head a tile gives its
//! own maximum, sum and weighted values from its own keys alone; tiles are merged in ascending order. Nothing in that
//! depends on how many queries there are, where blocks lie, or who else is in the batch (the online softmax of
//! Milakov and Gimelshein 2018, <https://arxiv.org/abs/1805.02867>, with fixed tiles).

mod cpu;

use crate::ops::kv_write::{BLOCK_TOKENS, Pages};
use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Keys per tile of the softmax.
pub const TILE_KEYS: usize = 64;

/// Rows of one sequence in a batch: consecutive positions, whose keys and values are already in the pages.
#[derive(Debug, Clone, Copy)]
pub struct SequenceRows<'a> {
    /// First row in the batch.
    pub first_row: usize,
    /// Number of rows.
    pub num_rows: usize,
    /// Position of the first row in its sequence.
    pub first_position: usize,
    /// Block i holds positions `16 i..16 i + 16`.
    pub block_table: &'a [u32],
}

/// What a layer's attention does besides the softmax.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AttentionOptions {
    /// Multiplies the scores.
    pub scale: f32,
    /// A query sees itself and the `window - 1` positions before it.
    pub window: Option<usize>,
    /// `score = cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
}

/// Attention of every row of `q` `[tokens, heads * key_dim]` over its own sequence: `[tokens, heads * value_dim]`.
///
/// Query head h uses key/value head `h / (heads / kv_heads)`. Rows of `q` that belong to no sequence give zeros.
/// Panics when shapes do not fit or a block table is too short.
pub fn attention(
    ctx: &Context,
    q: &Tensor,
    pages: &Pages,
    sequences: &[SequenceRows<'_>],
    options: &AttentionOptions,
) -> Tensor {
    let shape = pages.shape();
    let heads = q.cols() / shape.key_dim;
    assert!(
        heads * shape.key_dim == q.cols() && heads.is_multiple_of(shape.kv_heads),
        "{q:?} over {pages:?}"
    );
    let mut out = ctx.uninit(q.rows(), heads * shape.value_dim);
    let covered: usize = sequences.iter().map(|s| s.num_rows).sum();
    if covered < q.rows() {
        out.as_mut_slice().fill(0.0);
    }
    let group = heads / shape.kv_heads;
    let mut tasks = Vec::new();
    for sequence in sequences {
        let length = sequence.first_position + sequence.num_rows;
        assert!(
            sequence.first_row + sequence.num_rows <= q.rows()
                && sequence.block_table.len() * BLOCK_TOKENS >= length
        );
        assert!(
            sequence
                .block_table
                .iter()
                .all(|&b| (b as usize) < pages.num_blocks()),
            "a block outside {pages:?}"
        );
        for head in 0..shape.kv_heads {
            let rows = sequence.num_rows * group;
            tasks.extend(
                (0..rows)
                    .step_by(cpu::ROWS_PER_TASK)
                    .map(|first| (sequence, head, first, rows)),
            );
        }
    }
    // The latest rows see most keys: they go first, so that no long task is left for the end.
    tasks.reverse();
    let writer = Disjoint::new(out.as_mut_slice());
    ctx.pool().run(tasks.len(), |task| {
        let (sequence, kv_head, first, rows) = tasks[task];
        let work = cpu::Work {
            q,
            pages,
            sequence,
            kv_head,
            group,
            options,
            out: &writer,
        };
        work.run(ctx.level(), first, cpu::ROWS_PER_TASK.min(rows - first));
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::kv_write::{PageShape, kv_write};
    use crate::ops::testing::{bits, contexts, random};
    use half::f16;

    struct Case {
        heads: usize,
        shape: PageShape,
        length: usize,
        options: AttentionOptions,
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
    }

    impl Case {
        fn new(heads: usize, shape: PageShape, length: usize, options: AttentionOptions) -> Self {
            let q = random(1, length * heads * shape.key_dim)
                .iter()
                .map(|x| x * 3.0)
                .collect();
            let k = random(2, length * shape.kv_heads * shape.key_dim);
            let v = random(3, length * shape.kv_heads * shape.value_dim);
            Self {
                heads,
                shape,
                length,
                options,
                q,
                k,
                v,
            }
        }

        /// Runs rows `from..length` in chunks, over the given blocks, keys and values written as they come.
        fn run(&self, ctx: &Context, blocks: &[u32], num_blocks: usize, chunk: usize) -> Vec<f32> {
            let mut pages = Pages::new(self.shape, num_blocks);
            // Leftovers of somebody else, worst case.
            let (kc, vc) = (
                self.shape.kv_heads * self.shape.key_dim,
                self.shape.kv_heads * self.shape.value_dim,
            );
            let all: Vec<usize> = (0..num_blocks * BLOCK_TOKENS).collect();
            let junk = |cols: usize| ctx.tensor(all.len(), cols, &vec![f32::NAN; all.len() * cols]);
            kv_write(ctx, &mut pages, &junk(kc), &junk(vc), &all);
            let mut out = Vec::new();
            for first in (0..self.length).step_by(chunk) {
                let n = chunk.min(self.length - first);
                let part = |x: &[f32], cols: usize| {
                    ctx.tensor(n, cols, &x[first * cols..(first + n) * cols])
                };
                let slots: Vec<usize> = (first..first + n)
                    .map(|p| blocks[p / BLOCK_TOKENS] as usize * BLOCK_TOKENS + p % BLOCK_TOKENS)
                    .collect();
                kv_write(
                    ctx,
                    &mut pages,
                    &part(&self.k, kc),
                    &part(&self.v, vc),
                    &slots,
                );
                let sequence = SequenceRows {
                    first_row: 0,
                    num_rows: n,
                    first_position: first,
                    block_table: blocks,
                };
                let q = part(&self.q, self.heads * self.shape.key_dim);
                out.extend_from_slice(
                    attention(ctx, &q, &pages, &[sequence], &self.options).as_slice(),
                );
            }
            out
        }

        fn oracle(&self) -> Vec<f64> {
            let half = |x: f32| f64::from(f16::from_f32(x).to_f32());
            let (kd, vd, group) = (
                self.shape.key_dim,
                self.shape.value_dim,
                self.heads / self.shape.kv_heads,
            );
            let mut out = Vec::new();
            for t in 0..self.length {
                let from = self.options.window.map_or(0, |w| (t + 1).saturating_sub(w));
                for h in 0..self.heads {
                    let q = &self.q[(t * self.heads + h) * kd..][..kd];
                    let at = |j: usize| j * self.shape.kv_heads + h / group;
                    let scores: Vec<f64> = (from..=t)
                        .map(|j| {
                            let k = &self.k[at(j) * kd..][..kd];
                            let s: f64 =
                                q.iter().zip(k).map(|(a, b)| f64::from(*a) * half(*b)).sum();
                            let s = s * f64::from(self.options.scale);
                            self.options
                                .soft_cap
                                .map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                        })
                        .collect();
                    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let p: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                    let sum: f64 = p.iter().sum();
                    for d in 0..vd {
                        let o: f64 = (from..=t)
                            .map(|j| p[j - from] * half(self.v[at(j) * vd + d]))
                            .sum();
                        out.push(o / sum);
                    }
                }
            }
            out
        }
    }

    #[test]
    fn equals_the_formula_whatever_the_chunks_blocks_level_and_threads() {
        let plain = AttentionOptions {
            scale: 0.3,
            window: None,
            soft_cap: None,
        };
        let cases = [
            Case::new(
                1,
                PageShape {
                    kv_heads: 1,
                    key_dim: 8,
                    value_dim: 8,
                },
                1,
                plain,
            ),
            Case::new(
                6,
                PageShape {
                    kv_heads: 2,
                    key_dim: 24,
                    value_dim: 24,
                },
                70,
                plain,
            ),
            Case::new(
                7,
                PageShape {
                    kv_heads: 1,
                    key_dim: 12,
                    value_dim: 20,
                },
                33,
                plain,
            ),
            Case::new(
                4,
                PageShape {
                    kv_heads: 4,
                    key_dim: 64,
                    value_dim: 64,
                },
                150,
                plain,
            ),
            Case::new(
                4,
                PageShape {
                    kv_heads: 2,
                    key_dim: 16,
                    value_dim: 16,
                },
                140,
                AttentionOptions {
                    window: Some(9),
                    ..plain
                },
            ),
            Case::new(
                4,
                PageShape {
                    kv_heads: 2,
                    key_dim: 16,
                    value_dim: 16,
                },
                140,
                AttentionOptions {
                    window: Some(64),
                    soft_cap: Some(2.0),
                    ..plain
                },
            ),
        ];
        for case in cases {
            let expected = case.oracle();
            let needed = case.length.div_ceil(BLOCK_TOKENS) as u32;
            let straight: Vec<u32> = (0..needed).collect();
            let scattered: Vec<u32> = (0..needed).map(|b| (b * 7 + 3) % 13).collect();
            let mut seen: Option<Vec<u32>> = None;
            for ctx in contexts() {
                for (blocks, chunk) in [
                    (&straight, case.length),
                    (&scattered, 1),
                    (&scattered, 7),
                    (&straight, 64),
                ] {
                    let got = case.run(&ctx, blocks, 13, chunk);
                    for (got, want) in got.iter().zip(&expected) {
                        // F32 chains of up to 150 terms of size 1.
                        assert!((f64::from(*got) - want).abs() < 2e-5, "{got} {want}");
                    }
                    let seen = seen.get_or_insert_with(|| bits(&got));
                    assert_eq!(*seen, bits(&got), "chunk {chunk} {ctx:?}");
                }
            }
        }
    }

    #[test]
    fn sequences_in_a_batch_do_not_see_each_other() {
        let options = AttentionOptions {
            scale: 0.25,
            window: None,
            soft_cap: None,
        };
        let shape = PageShape {
            kv_heads: 2,
            key_dim: 16,
            value_dim: 16,
        };
        let case = Case::new(4, shape, 40, options);
        for ctx in contexts() {
            let alone = case.run(&ctx, &[4, 1, 7], 9, 40);
            let mut pages = Pages::new(shape, 9);
            let k = ctx.tensor(40, 32, &case.k);
            let slots = |blocks: [usize; 3]| {
                (0..40)
                    .map(|p| blocks[p / 16] * 16 + p % 16)
                    .collect::<Vec<_>>()
            };
            kv_write(
                &ctx,
                &mut pages,
                &k,
                &ctx.tensor(40, 32, &case.v),
                &slots([4, 1, 7]),
            );
            kv_write(&ctx, &mut pages, &k, &k, &slots([0, 2, 3]));
            // The last row of one sequence beside all rows of the other.
            let mut q = case.q[39 * 64..].to_vec();
            q.extend_from_slice(&case.q);
            let sequences = [
                SequenceRows {
                    first_row: 0,
                    num_rows: 1,
                    first_position: 39,
                    block_table: &[0, 2, 3],
                },
                SequenceRows {
                    first_row: 1,
                    num_rows: 40,
                    first_position: 0,
                    block_table: &[4, 1, 7],
                },
            ];
            let both = attention(&ctx, &ctx.tensor(41, 64, &q), &pages, &sequences, &options);
            assert_eq!(bits(&both.as_slice()[64..]), bits(&alone));
        }
    }
}
