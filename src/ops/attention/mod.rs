//! Scaled dot-product attention over cache pages: `softmax(scale · q kᵀ) v`, for prompts and single tokens alike.
//!
//! Keys lie in tiles of [`TILE_KEYS`], counted from position 0 of the sequence. For each query and head a tile gives its
//! own maximum, sum and weighted values from its own keys alone; the tiles of a span of [`SPAN_KEYS`] are merged in ascending
//! order, then the spans. Nothing in that depends on how many queries there are, where blocks lie, which threads
//! compute what, or who else is in the batch (the online softmax of Milakov and Gimelshein 2018,
//! <https://arxiv.org/abs/1805.02867>, with fixed tiles).

mod cpu;
mod tile;

use crate::ops::kv_write::{BLOCK_TOKENS, Pages};
use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;
use cpu::{ROWS_PER_TASK, Work, record_len};

/// Keys per tile of the softmax.
pub const TILE_KEYS: usize = 64;
/// Keys per span of tiles, of which one thread can compute one while others compute others.
pub const SPAN_KEYS: usize = 8 * TILE_KEYS;

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
pub struct AttentionOptions<'a> {
    /// Multiplies the scores.
    pub scale: f32,
    /// A query sees itself and the `window - 1` positions before it.
    pub window: Option<usize>,
    /// `score = cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// `[heads]`: a score of each query head for a key that has no value (GPT-OSS). It is neither scaled nor capped.
    pub sinks: Option<&'a [f32]>,
}

/// Attention of every row of `q` `[tokens, heads * key_dim]` over its own sequence: `[tokens, heads * value_dim]`.
///
/// Query head h uses key/value head `h / (heads / kv_heads)`. Rows of `q` that belong to no sequence give zeros.
/// Panics when shapes do not fit or a block table is too short.
pub fn attention(
    ctx: &Context,
    q: &Tensor,
    pages: Pages<'_>,
    sequences: &[SequenceRows<'_>],
    options: &AttentionOptions<'_>,
) -> Tensor {
    let heads = check(q, &pages, sequences, options);
    let shape = pages.shape();
    let mut out = ctx.uninit(q.rows(), heads * shape.value_dim);
    let covered: usize = sequences.iter().map(|s| s.num_rows).sum();
    if covered < q.rows() {
        out.as_mut_slice().fill(0.0);
    }
    let works: Vec<Work<'_>> = sequences
        .iter()
        .map(|sequence| Work {
            q,
            pages,
            sequence,
            group: heads / shape.kv_heads,
            options,
        })
        .collect();
    // With few rows in the whole batch, as when a long text is continued, spans are shared out too.
    let most = 4 * ctx.pool().num_threads();
    let few = works.iter().map(Work::num_chunks).sum::<usize>() < most;
    let splits = |work: &&Work<'_>| few && work.num_spans() > 1;
    let (long, whole): (Vec<_>, Vec<_>) = works.iter().partition(splits);
    let writer = Disjoint::new(out.as_mut_slice());
    whole_chunks(ctx, &whole, &writer);
    for work in long {
        by_spans(ctx, work, &writer);
    }
    out
}

/// The number of query heads, when everything fits.
fn check(
    q: &Tensor,
    pages: &Pages<'_>,
    sequences: &[SequenceRows<'_>],
    options: &AttentionOptions<'_>,
) -> usize {
    let shape = pages.shape();
    let heads = q.cols() / shape.key_dim;
    assert!(
        heads * shape.key_dim == q.cols() && heads.is_multiple_of(shape.kv_heads),
        "{q:?} over {pages:?}"
    );
    assert!(
        options.sinks.is_none_or(|sinks| sinks.len() == heads),
        "a sink for each of {heads} heads"
    );
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
    }
    heads
}

/// Each task computes some rows of one head over all their keys.
fn whole_chunks(ctx: &Context, works: &[&Work<'_>], out: &Disjoint<'_, f32>) {
    let mut tasks = Vec::new();
    for work in works {
        for head in 0..work.pages.shape().kv_heads {
            let firsts = (0..work.num_rows()).step_by(ROWS_PER_TASK);
            tasks.extend(firsts.map(|first| (*work, head, first)));
        }
    }
    // The latest rows see most keys: they go first, so that no long task is left for the end.
    tasks.reverse();
    ctx.pool().run(tasks.len(), |task| {
        let (work, head, first) = tasks[task];
        work.compute(ctx.level(), head, first, out);
    });
}

/// Each task computes some rows of one head over one span; then the spans are merged.
fn by_spans(ctx: &Context, work: &Work<'_>, out: &Disjoint<'_, f32>) {
    let shape = work.pages.shape();
    let (spans, chunks) = (work.num_spans(), work.num_rows().div_ceil(ROWS_PER_TASK));
    let record_len = record_len(shape.value_dim);
    let rows = work.num_rows();
    // [kv head, span, row], a record each
    let mut records = ctx.uninit(shape.kv_heads * spans * rows, record_len);
    let part = |head: usize, span: usize, chunk: usize| {
        let (first, row) = (chunk * ROWS_PER_TASK, (head * spans + span) * rows);
        let count = ROWS_PER_TASK.min(rows - first);
        (row + first) * record_len..(row + first + count) * record_len
    };
    {
        let writer = Disjoint::new(records.as_mut_slice());
        ctx.pool().run(shape.kv_heads * spans * chunks, |task| {
            let (head, span) = (task / spans % shape.kv_heads, task % spans);
            let chunk = task / spans / shape.kv_heads;
            // SAFETY: this task alone writes the records of its head, span and chunk.
            #[allow(unsafe_code)]
            let own = unsafe {
                writer.part(part(head, span, chunk).start, part(head, span, chunk).len())
            };
            work.compute_span(ctx.level(), head, span, chunk * ROWS_PER_TASK, own);
        });
    }
    let records = records.as_slice();
    ctx.pool().run(shape.kv_heads * chunks, |task| {
        let (head, chunk) = (task / chunks, task % chunks);
        let of_span = |span| &records[part(head, span, chunk)];
        let spans: Vec<&[f32]> = (0..spans).map(of_span).collect();
        work.merge_spans(ctx.level(), head, chunk * ROWS_PER_TASK, &spans, out);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::kv_write::{KvElement, PageShape, PageStore, kv_write};
    use crate::ops::testing::{bits, contexts, random};
    use half::f16;

    struct Case {
        heads: usize,
        shape: PageShape,
        length: usize,
        options: AttentionOptions<'static>,
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
    }

    impl Case {
        fn new(
            heads: usize,
            shape: PageShape,
            length: usize,
            options: AttentionOptions<'static>,
        ) -> Self {
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
            let mut pages = PageStore::new(&[self.shape], num_blocks);
            // Leftovers of somebody else, worst case.
            let (kc, vc) = (
                self.shape.kv_heads * self.shape.key_dim,
                self.shape.kv_heads * self.shape.value_dim,
            );
            let all: Vec<usize> = (0..num_blocks * BLOCK_TOKENS).collect();
            let junk = |cols: usize| ctx.tensor(all.len(), cols, &vec![f32::NAN; all.len() * cols]);
            kv_write(ctx, pages.pages_mut(0), &junk(kc), &junk(vc), &all);
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
                    pages.pages_mut(0),
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
                    attention(ctx, &q, pages.pages(0), &[sequence], &self.options).as_slice(),
                );
            }
            out
        }

        fn oracle(&self) -> Vec<f64> {
            let stored = |x: f32| match self.shape.element {
                KvElement::F16 => f64::from(f16::from_f32(x).to_f32()),
                KvElement::F32 => f64::from(x),
            };
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
                            let s: f64 = q
                                .iter()
                                .zip(k)
                                .map(|(a, b)| f64::from(*a) * stored(*b))
                                .sum();
                            let s = s * f64::from(self.options.scale);
                            self.options
                                .soft_cap
                                .map_or(s, |c| f64::from(c) * (s / f64::from(c)).tanh())
                        })
                        .collect();
                    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let p: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
                    let sink = self.options.sinks.map(|sinks| f64::from(sinks[h]));
                    let sum = p.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - top).exp());
                    for d in 0..vd {
                        let o: f64 = (from..=t)
                            .map(|j| p[j - from] * stored(self.v[at(j) * vd + d]))
                            .sum();
                        out.push(o / sum);
                    }
                }
            }
            out
        }
    }

    const PLAIN: AttentionOptions<'static> = AttentionOptions {
        scale: 0.3,
        window: None,
        soft_cap: None,
        sinks: None,
    };

    /// Heads, key/value heads, sizes of key and value, length, options.
    fn cases(element: KvElement) -> Vec<Case> {
        let window = |window: usize| AttentionOptions {
            window: Some(window),
            ..PLAIN
        };
        let with_sinks = |sinks: &'static [f32], options| AttentionOptions {
            sinks: Some(sinks),
            ..options
        };
        let capped = AttentionOptions {
            soft_cap: Some(2.0),
            ..window(64)
        };
        let far = with_sinks(&[1.0, -1.0], window(SPAN_KEYS + 33));
        [
            (1, (1, 8, 8), 1, PLAIN),
            (6, (2, 24, 24), 70, PLAIN),
            (7, (1, 12, 20), 33, PLAIN),
            (4, (4, 64, 64), 150, PLAIN),
            (4, (2, 16, 16), 140, window(9)),
            (4, (2, 16, 16), 140, capped),
            (
                4,
                (2, 16, 16),
                90,
                with_sinks(&[-2.0, 0.5, 30.0, 3.0], PLAIN),
            ),
            // More than one span, more rows than a pass holds, and windows that begin in a later span.
            (5, (1, 8, 72), SPAN_KEYS + 90, PLAIN),
            (2, (2, 8, 32), 2 * SPAN_KEYS + 70, far),
        ]
        .map(
            move |(heads, (kv_heads, key_dim, value_dim), length, options)| {
                let shape = PageShape {
                    kv_heads,
                    key_dim,
                    value_dim,
                    element,
                };
                Case::new(heads, shape, length, options)
            },
        )
        .into()
    }

    #[test]
    fn equals_the_formula_whatever_the_chunks_blocks_level_and_threads() {
        let elements = [KvElement::F16, KvElement::F32];
        for case in elements.into_iter().flat_map(cases) {
            let expected = case.oracle();
            let needed = case.length.div_ceil(BLOCK_TOKENS) as u32;
            let straight: Vec<u32> = (0..needed).collect();
            let blocks = needed.max(13);
            let scattered: Vec<u32> = (0..needed).map(|b| (b * 7 + 3) % blocks).collect();
            let mut seen: Option<Vec<u32>> = None;
            for ctx in contexts() {
                for (table, chunk) in [
                    (&straight, case.length),
                    (&scattered, 1),
                    (&scattered, 7),
                    (&straight, 64),
                ] {
                    let got = case.run(&ctx, table, blocks as usize, chunk);
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
            sinks: None,
        };
        let shape = PageShape {
            kv_heads: 2,
            key_dim: 16,
            value_dim: 16,
            element: KvElement::F16,
        };
        let case = Case::new(4, shape, 40, options);
        for ctx in contexts() {
            let alone = case.run(&ctx, &[4, 1, 7], 9, 40);
            let mut pages = PageStore::new(&[shape], 9);
            let k = ctx.tensor(40, 32, &case.k);
            let slots = |blocks: [usize; 3]| {
                (0..40)
                    .map(|p| blocks[p / 16] * 16 + p % 16)
                    .collect::<Vec<_>>()
            };
            kv_write(
                &ctx,
                pages.pages_mut(0),
                &k,
                &ctx.tensor(40, 32, &case.v),
                &slots([4, 1, 7]),
            );
            kv_write(&ctx, pages.pages_mut(0), &k, &k, &slots([0, 2, 3]));
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
            let both = attention(
                &ctx,
                &ctx.tensor(41, 64, &q),
                pages.pages(0),
                &sequences,
                &options,
            );
            assert_eq!(bits(&both.as_slice()[64..]), bits(&alone));
        }
    }
}
