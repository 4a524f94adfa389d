//! A matrix for each head.

use super::experts::{ExpertStack, multiply};
use crate::error::Result;
use crate::ops::heads::{heads_apart, heads_together};
use crate::ops::moe::{Dispatch, Group};
use crate::ops::{Context, Tensor};

/// One matrix per head, all of one shape: multiplied as those of experts are, only that every token goes to every head, each
/// with its own part of the row.
#[derive(Debug)]
pub struct HeadStack(ExpertStack);

impl HeadStack {
    /// The matrices of `stack`, one per head.
    pub fn new(stack: ExpertStack) -> Self {
        Self(stack)
    }

    /// The part of each head in `x` `[tokens, heads * in]` times the head's matrix: `[tokens, heads * out]`.
    ///
    /// # Errors
    /// As [`crate::ops::matmul::matmul`]. Panics for matrices that were only weighed, and when the width does not fit.
    pub fn forward(&self, ctx: &Context, x: &Tensor) -> Result<Tensor> {
        let (heads, tokens) = (self.0.count(), x.rows());
        let apart = heads_apart(ctx, x, heads); // [heads * tokens, in]
        let rows: Vec<u32> = (0..apart.rows() as u32).collect();
        let group = |head| Group {
            expert: head,
            places: head * tokens..(head + 1) * tokens,
        };
        let dispatch = Dispatch {
            groups: (0..heads).map(group).collect(),
            tokens: rows,
            places: Vec::new(),
        };
        let product = multiply(ctx, &apart, &dispatch.tokens, &dispatch, &[&self.0])?.remove(0);
        drop(apart);
        Ok(heads_together(ctx, &product, heads))
    }

    /// Bytes of all matrices.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Multiply-accumulates per token, and whether they are integer ones.
    pub fn macs(&self) -> (usize, bool) {
        let (macs, is_integer) = self.0.macs();
        (macs * self.0.count(), is_integer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::nn::WeightPath;
    use crate::ops::cases::random_matrix;
    use crate::ops::matmul::RawMatrix;
    use crate::ops::testing::{bits, contexts, random};
    use crate::quant::Encoding;

    fn floats(rows: usize, cols: usize, seed: u64) -> RawMatrix {
        let bytes: Vec<u8> = random(seed, rows * cols)
            .iter()
            .flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())
            .collect();
        RawMatrix::new(rows, cols, Encoding::BF16, Arc::new(bytes)).unwrap()
    }

    #[test]
    fn each_head_sees_its_own_part_and_a_token_is_the_same_bits_alone() {
        let (heads, rows, cols, tokens) = (3, 20, 64, 9);
        let x = random(7, tokens * heads * cols);
        let float = |h: usize| floats(rows, cols, h as u64);
        let packed = |h: usize| random_matrix(Encoding::Q8_0, rows, cols, h as u64);
        for (make, tolerance) in [
            (&float as &dyn Fn(usize) -> RawMatrix, 1e-4),
            (&packed, 0.02),
        ] {
            let mut seen: Option<Vec<u32>> = None;
            for ctx in contexts() {
                let matrices: Vec<RawMatrix> = (0..heads).map(make).collect();
                let stack = ExpertStack::new(&ctx, matrices.clone(), None, WeightPath::Fast);
                let stack = HeadStack::new(stack.unwrap());
                let all = ctx.tensor(tokens, heads * cols, &x);
                let all = stack.forward(&ctx, &all).unwrap();
                for token in 0..tokens {
                    let own = &x[token * heads * cols..][..heads * cols];
                    let alone = stack
                        .forward(&ctx, &ctx.tensor(1, heads * cols, own))
                        .unwrap();
                    assert_eq!(bits(alone.as_slice()), bits(all.row(token)));
                    for (head, matrix) in matrices.iter().enumerate() {
                        let mut weights = vec![0.0; cols];
                        for row in 0..rows {
                            matrix.decode_row(row, &mut weights).unwrap();
                            let part = weights.iter().zip(&own[head * cols..]);
                            let want: f32 = part.clone().map(|(w, x)| w * x).sum();
                            let size: f32 = part.map(|(w, x)| (w * x).abs()).sum();
                            let got = all.row(token)[head * rows + row];
                            assert!((got - want).abs() <= tolerance * size, "{got} {want}");
                        }
                    }
                }
                let seen = seen.get_or_insert_with(|| bits(all.as_slice()));
                assert_eq!(*seen, bits(all.as_slice()), "{ctx:?}");
            }
        }
    }
}
