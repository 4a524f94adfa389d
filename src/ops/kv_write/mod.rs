//! Cache pages of one layer, and writing keys and values into them.
//!
//! Pages are half precision on the CPU. Keys of a block are stored feature by feature (`[block, head, key_dim, 16]`), so
//! that one vector holds one feature of eight keys and a score never crosses lanes; values token by token
//! (`[block, head, 16, value_dim]`, `value_dim` padded to the vector width with zeros).

mod cpu;

use std::fmt;

use crate::ops::simd::LANES;
use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;

/// Tokens per block of the KV cache.
pub const BLOCK_TOKENS: usize = 16;

/// Geometry of one layer's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageShape {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
}

impl PageShape {
    fn padded_value_dim(&self) -> usize {
        self.value_dim.next_multiple_of(LANES)
    }

    fn key_elements(&self) -> usize {
        self.kv_heads * self.key_dim * BLOCK_TOKENS
    }

    fn value_elements(&self) -> usize {
        self.kv_heads * self.padded_value_dim() * BLOCK_TOKENS
    }

    /// Bytes of one block of one layer.
    pub fn block_bytes(&self) -> usize {
        (self.key_elements() + self.value_elements()) * size_of::<u16>()
    }
}

/// Keys and values of one layer, in blocks of [`BLOCK_TOKENS`] tokens.
pub struct Pages {
    shape: PageShape,
    num_blocks: usize,
    /// `[block, head, key_dim, 16]`.
    keys: Vec<u16>,
    /// `[block, head, 16, padded value_dim]`.
    values: Vec<u16>,
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages[{} blocks, {:?}]", self.num_blocks, self.shape)
    }
}

impl Pages {
    /// Zeroed pages. The system commits their memory when they are first written.
    pub fn new(shape: PageShape, num_blocks: usize) -> Self {
        let keys = vec![0; num_blocks * shape.key_elements()];
        let values = vec![0; num_blocks * shape.value_elements()];
        Self {
            shape,
            num_blocks,
            keys,
            values,
        }
    }

    /// The geometry.
    pub fn shape(&self) -> PageShape {
        self.shape
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Keys of one head of one block: `[key_dim, 16]`.
    pub(in crate::ops) fn key_block(&self, block: usize, head: usize) -> &[u16] {
        let size = self.shape.key_dim * BLOCK_TOKENS;
        &self.keys[(block * self.shape.kv_heads + head) * size..][..size]
    }

    /// Values of one head of one block: `[16, padded value_dim]`.
    pub(in crate::ops) fn value_block(&self, block: usize, head: usize) -> &[u16] {
        let size = self.shape.padded_value_dim() * BLOCK_TOKENS;
        &self.values[(block * self.shape.kv_heads + head) * size..][..size]
    }
}

/// Writes row i of `k` `[tokens, kv_heads * key_dim]` and `v` `[tokens, kv_heads * value_dim]` to slot `slots[i]`
/// (block × 16 + place in the block). Values beyond half precision saturate.
///
/// Slots must be distinct. Panics when shapes or slots do not fit the pages.
pub fn kv_write(ctx: &Context, pages: &mut Pages, k: &Tensor, v: &Tensor, slots: &[usize]) {
    let shape = pages.shape;
    assert_eq!(
        (k.rows(), k.cols()),
        (slots.len(), shape.kv_heads * shape.key_dim),
        "keys {k:?} for {pages:?}"
    );
    assert_eq!(
        (v.rows(), v.cols()),
        (slots.len(), shape.kv_heads * shape.value_dim),
        "values {v:?} for {pages:?}"
    );
    assert!(
        slots
            .iter()
            .all(|&slot| slot < pages.num_blocks * BLOCK_TOKENS),
        "a slot outside {pages:?}"
    );
    let (key_size, value_size) = (
        shape.key_dim * BLOCK_TOKENS,
        shape.padded_value_dim() * BLOCK_TOKENS,
    );
    let (keys, values) = (
        Disjoint::new(&mut pages.keys),
        Disjoint::new(&mut pages.values),
    );
    // Tasks take heads, not tokens: tokens of one block share its cache lines.
    ctx.for_row_ranges(
        shape.kv_heads,
        slots.len() * (shape.key_dim + shape.value_dim),
        |first, count| {
            for head in first..first + count {
                for (i, &slot) in slots.iter().enumerate() {
                    let (block, place) = (
                        slot / BLOCK_TOKENS * shape.kv_heads + head,
                        slot % BLOCK_TOKENS,
                    );
                    // SAFETY: heads are disjoint, and this task alone writes this one.
                    #[allow(unsafe_code)]
                    let (keys, values) = unsafe {
                        (
                            keys.part(block * key_size, key_size),
                            values.part(block * value_size, value_size),
                        )
                    };
                    cpu::write_key(
                        ctx.level(),
                        &k.row(i)[head * shape.key_dim..][..shape.key_dim],
                        place,
                        keys,
                    );
                    let row =
                        &mut values[place * shape.padded_value_dim()..][..shape.padded_value_dim()];
                    cpu::write_value(
                        ctx.level(),
                        &v.row(i)[head * shape.value_dim..][..shape.value_dim],
                        row,
                    );
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{contexts, random};
    use half::f16;

    #[test]
    fn a_token_lands_in_its_slot_in_half_precision() {
        let shape = PageShape {
            kv_heads: 2,
            key_dim: 12,
            value_dim: 10,
        };
        let (k, v) = (random(1, 3 * 24), random(2, 3 * 20));
        for ctx in contexts() {
            let mut pages = Pages::new(shape, 4);
            kv_write(
                &ctx,
                &mut pages,
                &ctx.tensor(3, 24, &k),
                &ctx.tensor(3, 20, &v),
                &[5, 63, 16],
            );
            for (i, slot) in [5, 63, 16].into_iter().enumerate() {
                for head in 0..2 {
                    let (block, place) = (slot / 16, slot % 16);
                    for d in 0..12 {
                        let want = f16::from_f32(k[i * 24 + head * 12 + d]).to_bits();
                        assert_eq!(pages.key_block(block, head)[d * 16 + place], want);
                    }
                    let row = &pages.value_block(block, head)[place * 16..][..16];
                    for d in 0..10 {
                        assert_eq!(row[d], f16::from_f32(v[i * 20 + head * 10 + d]).to_bits());
                    }
                    assert_eq!(row[10..], [0; 6]);
                }
            }
            let written = pages.keys.iter().filter(|&&x| x != 0).count();
            assert!(written <= 3 * 24);
        }
    }

    #[test]
    fn values_beyond_half_precision_saturate_and_nan_stays() {
        let shape = PageShape {
            kv_heads: 1,
            key_dim: 3,
            value_dim: 3,
        };
        for ctx in contexts() {
            let mut pages = Pages::new(shape, 1);
            let x = ctx.tensor(1, 3, &[1e9, f32::NEG_INFINITY, f32::NAN]);
            kv_write(&ctx, &mut pages, &x, &x, &[0]);
            let value = |d: usize| f16::from_bits(pages.value_block(0, 0)[d]).to_f32();
            assert_eq!((value(0), value(1)), (65504.0, -65504.0));
            assert!(value(2).is_nan());
            assert_eq!(pages.key_block(0, 0)[16], f16::from_f32(-65504.0).to_bits());
        }
    }

    #[test]
    #[should_panic(expected = "a slot outside")]
    fn a_slot_outside_the_pages_panics() {
        let shape = PageShape {
            kv_heads: 1,
            key_dim: 8,
            value_dim: 8,
        };
        let ctx = contexts().remove(0);
        let x = ctx.tensor(1, 8, &[0.0; 8]);
        kv_write(&ctx, &mut Pages::new(shape, 1), &x, &x, &[16]);
    }
}
