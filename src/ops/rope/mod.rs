//! Rotary position embedding, in both pairings that checkpoints use.
//!
//! Source: Su et al. 2021, <https://arxiv.org/abs/2104.09864>. Angles are the F32
//! product of position and frequency, as in the reference implementation, because at long positions the rounding of that
//! product is visible; sine and cosine are computed in F64 by the `libm` crate, the same on every machine.

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Which two elements of a head are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Element i with i + pairs (GPT-NeoX; nearly every Hugging Face checkpoint).
    HalfSplit,
    /// Element 2i with 2i + 1 (the paper's).
    Interleaved,
    /// The same, and then put into the order of [`Self::HalfSplit`]: rows of such a checkpoint that were reordered for
    /// neighbours (GGUF files of the Llama family). Scores are then the same sums as over the rows of the original.
    Reordered,
}

/// Cosines and sines for the rows of one forward pass: `[tokens, pairs]` each.
#[derive(Debug)]
pub struct RopeTable {
    cos: Tensor,
    sin: Tensor,
}

/// The table for `positions`, with one frequency (radians per position) per rotated pair.
///
/// Cosine and sine are multiplied by `magnitude` (1 for all but some scaling rules).
pub fn rope_table(
    ctx: &Context,
    positions: &[u32],
    frequencies: &[f32],
    magnitude: f32,
) -> RopeTable {
    rope_table_by_row(ctx, positions, frequencies.len(), magnitude, |_| {
        frequencies
    })
}

/// [`rope_table`] with frequencies that differ from row to row: `frequencies(row)` has `pairs` of them.
pub fn rope_table_by_row<'a>(
    ctx: &Context,
    positions: &[u32],
    pairs: usize,
    magnitude: f32,
    frequencies: impl Fn(usize) -> &'a [f32] + Sync,
) -> RopeTable {
    let rows = positions.len();
    let (mut cos, mut sin) = (ctx.uninit(rows, pairs), ctx.uninit(rows, pairs));
    let (cos_out, sin_out) = (
        Disjoint::new(cos.as_mut_slice()),
        Disjoint::new(sin.as_mut_slice()),
    );
    ctx.for_row_ranges(rows, pairs * 32, |first, count| {
        for (row, &position) in positions.iter().enumerate().skip(first).take(count) {
            // SAFETY: rows are disjoint.
            #[allow(unsafe_code)]
            let (cos, sin) = unsafe {
                (
                    cos_out.part(row * pairs, pairs),
                    sin_out.part(row * pairs, pairs),
                )
            };
            for (i, &frequency) in frequencies(row).iter().enumerate() {
                let (s, c) = libm::sincos(f64::from(position as f32 * frequency));
                cos[i] = c as f32 * magnitude;
                sin[i] = s as f32 * magnitude;
            }
        }
    });
    RopeTable { cos, sin }
}

/// Rotates the first `2 * pairs` elements of every head of `x` `[tokens, heads * head_dim]` in place.
pub fn rope(ctx: &Context, x: &mut Tensor, head_dim: usize, pairing: Pairing, table: &RopeTable) {
    let (rows, cols, pairs) = (x.rows(), x.cols(), table.cos.cols());
    assert!(
        rows == table.cos.rows() && cols.is_multiple_of(head_dim) && 2 * pairs <= head_dim,
        "{x:?}, {pairs} pairs"
    );
    let values = Disjoint::new(x.as_mut_slice());
    ctx.for_row_ranges(rows, cols, |first, count| {
        for row in first..first + count {
            // SAFETY: rows are disjoint.
            #[allow(unsafe_code)]
            let heads = unsafe { values.part(row * cols, cols) };
            let mut old = Vec::new();
            for head in heads.chunks_exact_mut(head_dim) {
                let (head, cos, sin) = (
                    &mut head[..2 * pairs],
                    table.cos.row(row),
                    table.sin.row(row),
                );
                match pairing {
                    Pairing::HalfSplit => rotate_halves(head, cos, sin),
                    Pairing::Interleaved => rotate_neighbours(head, cos, sin),
                    Pairing::Reordered => {
                        old.clear();
                        old.extend_from_slice(head);
                        rotate_apart(&old, head, cos, sin);
                    }
                }
            }
        }
    });
}

/// One head: plain multiplications and one rounding each, so that vectorising it changes nothing.
fn rotate_halves(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = head.split_at_mut(cos.len());
    for (((a, b), &c), &s) in low.iter_mut().zip(high).zip(cos).zip(sin) {
        let (x, y) = (*a, *b);
        *a = x * c - y * s;
        *b = y * c + x * s;
    }
}

/// Neighbours of `old` to the halves of `head`.
fn rotate_apart(old: &[f32], head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = head.split_at_mut(cos.len());
    let pairs = old.as_chunks::<2>().0.iter().zip(low).zip(high);
    for ((([x, y], a), b), (&c, &s)) in pairs.zip(cos.iter().zip(sin)) {
        *a = x * c - y * s;
        *b = y * c + x * s;
    }
}

fn rotate_neighbours(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for (([a, b], &c), &s) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
        let (x, y) = (*a, *b);
        *a = x * c - y * s;
        *b = y * c + x * s;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{bits, contexts, random};

    #[test]
    fn rotates_pairs_by_position_times_frequency_and_leaves_the_rest() {
        let positions = [0, 1, 5, 1000];
        let frequencies = [1.0, 0.1, 0.003];
        let values = random(4, 4 * 2 * 8);
        let mut seen: Option<Vec<u32>> = None;
        for ctx in contexts() {
            let mut x = ctx.tensor(4, 16, &values);
            let table = rope_table(&ctx, &positions, &frequencies, 1.0);
            rope(&ctx, &mut x, 8, Pairing::HalfSplit, &table);
            // Interleaved is the same on reordered elements.
            let order = |i: usize| if i < 6 { i / 2 + i % 2 * 3 } else { i };
            let mixed: Vec<f32> = (0..values.len())
                .map(|i| values[i / 8 * 8 + order(i % 8)])
                .collect();
            let mut other = ctx.tensor(4, 16, &mixed);
            rope(&ctx, &mut other, 8, Pairing::Interleaved, &table);
            assert!(
                (0..values.len())
                    .all(|i| other.as_slice()[i] == x.as_slice()[i / 8 * 8 + order(i % 8)])
            );
            // Reordered is half-split on elements that come in the other order.
            let mut other = ctx.tensor(4, 16, &mixed);
            rope(&ctx, &mut other, 8, Pairing::Reordered, &table);
            assert_eq!(bits(other.as_slice()), bits(x.as_slice()));
            for (row, &position) in positions.iter().enumerate() {
                for head in 0..2 {
                    let (old, new) = (
                        &values[row * 16 + head * 8..][..8],
                        &x.row(row)[head * 8..][..8],
                    );
                    for (i, &frequency) in frequencies.iter().enumerate() {
                        let angle = f64::from(position as f32 * frequency);
                        let (a, b) = (f64::from(old[i]), f64::from(old[i + 3]));
                        assert!(
                            (f64::from(new[i]) - (a * angle.cos() - b * angle.sin())).abs() < 1e-6
                        );
                        assert!(
                            (f64::from(new[i + 3]) - (b * angle.cos() + a * angle.sin())).abs()
                                < 1e-6
                        );
                    }
                    assert_eq!(old[6..], new[6..]);
                }
            }
            let seen = seen.get_or_insert_with(|| bits(x.as_slice()));
            assert_eq!(*seen, bits(x.as_slice()), "{ctx:?}");
        }
    }
}
