//! The delta rule on the CPU: strips of columns, one token after the other.
#![allow(unsafe_code)]
#![allow(
    clippy::needless_range_loop,
    reason = "an index stands for a vector in several arrays at once"
)]

use super::{DeltaRule, DeltaShape, Gates, KEY_EPS, STRIP};
use crate::ops::Tensor;
use crate::ops::cpu_level::CpuLevel;
use crate::ops::simd::{
    LANES, SUM_LANES, Simd, load_part, math, reduce_sum, simd_kernel, store_part,
};
use crate::ops::states::StateRows;
use crate::threads::Disjoint;

/// Norms the queries and keys of one token's `vectors`, and gives their products by head.
pub(super) fn norm_keys(
    level: CpuLevel,
    shape: &DeltaShape,
    vectors: &mut [f32],
    overlap: &mut [f32],
) {
    let width = shape.key_heads * shape.key_dim;
    assert!(vectors.len() >= 2 * width && overlap.len() == shape.key_heads);
    let (queries, rest) = vectors.split_at_mut(width);
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { norm(level, shape.key_dim, queries, &mut rest[..width], overlap) };
}

/// `x = e^x`.
pub(super) fn exp(level: CpuLevel, x: &mut [f32]) {
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { exp_all(level, x) };
}

/// `x = 1 / (1 + e^-x)`.
pub(super) fn sigmoid(level: CpuLevel, x: &mut [f32]) {
    // SAFETY: the body needs the instruction set only, which the level stands for.
    unsafe { sigmoid_all(level, x) };
}

simd_kernel! { unsafe fn norm(key_dim: usize, queries: &mut [f32], keys: &mut [f32], overlap: &mut [f32]) = norm_body }
simd_kernel! { unsafe fn exp_all(x: &mut [f32]) = exp_body }
simd_kernel! { unsafe fn sigmoid_all(x: &mut [f32]) = sigmoid_body }

#[inline(always)]
unsafe fn norm_body<V: Simd>(
    key_dim: usize,
    queries: &mut [f32],
    keys: &mut [f32],
    overlap: &mut [f32],
) {
    let scale = 1.0 / (key_dim as f32).sqrt();
    let heads = queries
        .chunks_exact_mut(key_dim)
        .zip(keys.chunks_exact_mut(key_dim));
    for ((query, key), overlap) in heads.zip(overlap) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe {
            let q = scale / (dot::<V>(query, query) + KEY_EPS).sqrt();
            let k = 1.0 / (dot::<V>(key, key) + KEY_EPS).sqrt();
            for (x, factor) in [(&mut *query, q), (&mut *key, k)] {
                for at in (0..x.len()).step_by(LANES) {
                    let normed = V::mul(load_part::<V>(x, at), V::splat(factor));
                    store_part::<V>(x, at, normed);
                }
            }
            *overlap = dot::<V>(query, key);
        }
    }
}

/// Over 16 lanes.
#[inline(always)]
unsafe fn dot<V: Simd>(x: &[f32], y: &[f32]) -> f32 {
    // SAFETY: the instruction set is the caller's duty.
    unsafe {
        let (mut low, mut high) = (V::splat(0.0), V::splat(0.0));
        for at in (0..x.len()).step_by(SUM_LANES) {
            low = V::fma(load_part::<V>(x, at), load_part::<V>(y, at), low);
            let next = at + LANES;
            high = V::fma(load_part::<V>(x, next), load_part::<V>(y, next), high);
        }
        reduce_sum::<V>(low, high)
    }
}

#[inline(always)]
unsafe fn exp_body<V: Simd>(x: &mut [f32]) {
    for at in (0..x.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe { store_part::<V>(x, at, math::exp::<V>(load_part::<V>(x, at))) };
    }
}

#[inline(always)]
unsafe fn sigmoid_body<V: Simd>(x: &mut [f32]) {
    for at in (0..x.len()).step_by(LANES) {
        // SAFETY: the instruction set is the caller's duty.
        unsafe { store_part::<V>(x, at, math::sigmoid::<V>(load_part::<V>(x, at))) };
    }
}

/// One value head of one sequence.
pub(super) struct Head<'a> {
    pub rule: &'a DeltaRule,
    /// With normed queries and keys.
    pub qkv: &'a Tensor,
    pub gates: &'a Gates,
    pub rows: &'a StateRows<'a>,
    pub head: usize,
    /// All slots.
    pub memory: &'a Disjoint<'a, f32>,
    pub out: &'a Disjoint<'a, f32>,
}

/// One token as a head sees it.
struct Token<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    strength: f32,
    overlap: f32,
}

impl Head<'_> {
    /// All rows of the sequence, strip after strip, some tokens at a time.
    pub(super) fn run(&self, level: CpuLevel) {
        let shape = self.rule.shape;
        let mut first = 0;
        while first < self.rows.num_rows {
            let end = self.rows.num_rows.min(first + self.rule.chunk);
            for column in (0..shape.padded_value_dim()).step_by(STRIP) {
                let width = STRIP.min(shape.padded_value_dim() - column);
                // SAFETY: the bodies need the instruction set, which the level stands for.
                unsafe {
                    match width / LANES {
                        4 => strip::<4>(level, self, column, first, end),
                        3 => strip::<3>(level, self, column, first, end),
                        2 => strip::<2>(level, self, column, first, end),
                        _ => strip::<1>(level, self, column, first, end),
                    }
                }
            }
            first = end;
        }
    }

    /// A strip of `width` columns from `column` on in a slot: `[key_dim, width]`.
    #[allow(clippy::mut_from_ref)]
    unsafe fn strip(&self, slot: u32, column: usize, width: usize) -> &mut [f32] {
        let shape = self.rule.shape;
        let head = slot as usize * shape.state_len() + self.head * shape.head_len();
        // SAFETY: strips of a head lie one behind the other. This task alone touches this head of the slots that its
        // sequence writes (`States::check`), one strip at a time by the caller's duty.
        unsafe {
            self.memory
                .part(head + column * shape.key_dim, shape.key_dim * width)
        }
    }

    fn token(&self, row: usize) -> Token<'_> {
        let shape = self.rule.shape;
        let row = self.rows.first_row + row;
        let key_head = shape.key_head(self.head);
        let width = shape.key_heads * shape.key_dim;
        let vectors = self.qkv.row(row);
        let at = key_head * shape.key_dim;
        Token {
            query: &vectors[at..][..shape.key_dim],
            key: &vectors[width + at..][..shape.key_dim],
            value: &vectors[2 * width + self.head * shape.value_dim..][..shape.value_dim],
            decay: self.gates.decay.row(row)[self.head],
            strength: self.gates.strength.row(row)[self.head],
            overlap: self.gates.overlap.row(row)[key_head],
        }
    }
}

simd_kernel! {
    /// Rows `first..end` for `8 W` columns from `column` on.
    unsafe fn strip<const W: usize>(work: &Head<'_>, column: usize, first: usize, end: usize) = strip_body
}

#[inline(always)]
unsafe fn strip_body<V: Simd, const W: usize>(
    work: &Head<'_>,
    column: usize,
    first: usize,
    end: usize,
) {
    let (shape, width) = (work.rule.shape, W * LANES);
    // SAFETY: the only strip that is borrowed, but for those of other slots below.
    let memory = unsafe { work.strip(work.rows.to, column, width) };
    let mut saves = work.rows.saves.iter().skip_while(|save| save.0 <= first);
    let mut save = saves.next();
    for row in first..end {
        let token = work.token(row);
        let at = (work.rows.first_row + row) * shape.value_heads + work.head;
        // SAFETY: this task alone writes this head of this row; the instruction set is the caller's duty.
        unsafe {
            let out = work.out.part(at * shape.value_dim, shape.value_dim);
            step::<V, W>(&token, memory, column, out);
        }
        while let Some((_, slot)) = save.filter(|save| save.0 == row + 1) {
            // SAFETY: a save's slot is another one than that of the sequence.
            unsafe { work.strip(*slot, column, width) }.copy_from_slice(memory);
            save = saves.next();
        }
    }
}

/// One token: reads the memory with key and query, then writes the difference into it.
#[inline(always)]
unsafe fn step<V: Simd, const W: usize>(
    token: &Token<'_>,
    memory: &mut [f32],
    column: usize,
    out: &mut [f32],
) {
    let (keys, queries) = (token.key, token.query);
    assert!(memory.len() == keys.len() * W * LANES && keys.len() == queries.len());
    // SAFETY: row i of the memory has W vectors; the instruction set is the caller's duty.
    unsafe {
        let mut read = [V::splat(0.0); W];
        let mut result = [V::splat(0.0); W];
        let mut p = memory.as_ptr();
        for i in 0..keys.len() {
            let key = V::splat(*keys.get_unchecked(i));
            let query = V::splat(*queries.get_unchecked(i));
            for w in 0..W {
                let s = V::load(p.add(w * LANES));
                read[w] = V::fma(key, s, read[w]);
                result[w] = V::fma(query, s, result[w]);
            }
            p = p.add(W * LANES);
        }
        let decay = V::splat(token.decay);
        let mut difference = [V::splat(0.0); W];
        for w in 0..W {
            let at = column + w * LANES;
            let wanted = V::sub(load_part::<V>(token.value, at), V::mul(decay, read[w]));
            difference[w] = V::mul(wanted, V::splat(token.strength));
            // What the query reads behind the write: S'ᵀq = g Sᵀq + (k·q) difference.
            let y = V::fma(
                V::splat(token.overlap),
                difference[w],
                V::mul(decay, result[w]),
            );
            store_part::<V>(out, at, y);
        }
        let mut p = memory.as_mut_ptr();
        for i in 0..keys.len() {
            let key = V::splat(*keys.get_unchecked(i));
            for w in 0..W {
                let at = p.add(w * LANES);
                V::store(at, V::fma(key, difference[w], V::mul(decay, V::load(at))));
            }
            p = p.add(W * LANES);
        }
    }
}
