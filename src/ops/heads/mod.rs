//! Moving heads: one behind the other in a token's row, or the rows of a head by themselves, and parts of heads put together.
//!
//! Copies only: every output element is one input element.

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// The rows of each head by themselves: `x` `[tokens, heads * size]` as `[heads * tokens, size]`, head by head.
pub fn heads_apart(ctx: &Context, x: &Tensor, heads: usize) -> Tensor {
    assert!(
        heads > 0 && x.cols().is_multiple_of(heads),
        "{x:?} of {heads} heads"
    );
    let (tokens, size) = (x.rows(), x.cols() / heads);
    let mut y = ctx.uninit(heads * tokens, size);
    let out = Disjoint::new(y.as_mut_slice());
    ctx.for_row_ranges(heads * tokens, size, |first, count| {
        // SAFETY: ranges of rows are disjoint.
        #[allow(unsafe_code)]
        let rows = unsafe { out.part(first * size, count * size) };
        for (row, out) in (first..).zip(rows.chunks_exact_mut(size.max(1))) {
            let (head, token) = (row / tokens, row % tokens);
            out.copy_from_slice(&x.row(token)[head * size..][..size]);
        }
    });
    y
}

/// The inverse of [`heads_apart`]: `x` `[heads * tokens, size]` as `[tokens, heads * size]`.
pub fn heads_together(ctx: &Context, x: &Tensor, heads: usize) -> Tensor {
    assert!(
        heads > 0 && x.rows().is_multiple_of(heads),
        "{x:?} of {heads} heads"
    );
    let (tokens, size) = (x.rows() / heads, x.cols());
    let mut y = ctx.uninit(tokens, heads * size);
    let out = Disjoint::new(y.as_mut_slice());
    ctx.for_row_ranges(tokens, heads * size, |first, count| {
        // SAFETY: ranges of rows are disjoint.
        #[allow(unsafe_code)]
        let rows = unsafe { out.part(first * heads * size, count * heads * size) };
        for (at, out) in rows.chunks_exact_mut(size.max(1)).enumerate() {
            let (token, head) = (first + at / heads, at % heads);
            out.copy_from_slice(x.row(head * tokens + token));
        }
    });
    y
}

/// Per head what `a` has, then what `b` has: `[tokens, heads * (p + q)]` of `a` `[tokens, heads * p]` and `b` `[tokens, heads * q]`.
pub fn join_heads(ctx: &Context, a: &Tensor, b: &Tensor, heads: usize) -> Tensor {
    assert!(
        heads > 0
            && a.rows() == b.rows()
            && a.cols().is_multiple_of(heads)
            && b.cols().is_multiple_of(heads),
        "{a:?} and {b:?} of {heads} heads"
    );
    let (p, q) = (a.cols() / heads, b.cols() / heads);
    let mut y = ctx.uninit(a.rows(), heads * (p + q));
    let width = y.cols();
    let out = Disjoint::new(y.as_mut_slice());
    ctx.for_row_ranges(a.rows(), width, |first, count| {
        // SAFETY: ranges of rows are disjoint.
        #[allow(unsafe_code)]
        let rows = unsafe { out.part(first * width, count * width) };
        for (at, out) in rows.chunks_exact_mut((p + q).max(1)).enumerate() {
            let (token, head) = (first + at / heads, at % heads);
            let (begin, end) = out.split_at_mut(p);
            begin.copy_from_slice(&a.row(token)[head * p..][..p]);
            end.copy_from_slice(&b.row(token)[head * q..][..q]);
        }
    });
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{contexts, random};

    #[test]
    fn every_element_of_a_head_arrives_where_it_belongs() {
        let (tokens, heads, p, q) = (67, 3, 5, 8);
        let a = random(1, tokens * heads * p);
        let b = random(2, tokens * heads * q);
        for ctx in contexts() {
            let a_in = ctx.tensor(tokens, heads * p, &a);
            let apart = heads_apart(&ctx, &a_in, heads);
            assert_eq!((apart.rows(), apart.cols()), (heads * tokens, p));
            let joined = join_heads(&ctx, &a_in, &ctx.tensor(tokens, heads * q, &b), heads);
            for token in 0..tokens {
                for head in 0..heads {
                    let own = &a[(token * heads + head) * p..][..p];
                    assert_eq!(apart.row(head * tokens + token), own);
                    let both = &joined.row(token)[head * (p + q)..][..p + q];
                    assert_eq!(&both[..p], own);
                    assert_eq!(&both[p..], &b[(token * heads + head) * q..][..q]);
                }
            }
            assert_eq!(heads_together(&ctx, &apart, heads).as_slice(), &a[..]);
        }
    }

    #[test]
    fn no_tokens_are_no_work() {
        let ctx = &contexts()[0];
        let none = ctx.tensor(0, 6, &[]);
        assert_eq!(heads_apart(ctx, &none, 2).rows(), 0);
        assert_eq!(heads_together(ctx, &none, 2).cols(), 12);
        assert_eq!(join_heads(ctx, &none, &none, 2).cols(), 12);
    }
}
