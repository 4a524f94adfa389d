//! Cache pages of one layer, and writing keys and values into them.
//!
//! Pages are half precision, or single where results are compared with references ([`KvElement`]). Keys of a block are stored feature by feature (`[block, head, key_dim, 16]`), so
//! that one vector holds one feature of eight keys and a score never crosses lanes; values token by token
//! (`[block, head, 16, value_dim]`, `value_dim` padded to the vector width with zeros).

mod cpu;
mod pages;

use crate::ops::{Context, Tensor};
use crate::threads::Disjoint;
pub use pages::{BLOCK_TOKENS, KvElement, PageShape, PageStore, Pages, PagesMut};

/// Writes row i of `k` `[tokens, kv_heads * key_dim]` and `v` `[tokens, kv_heads * value_dim]` to slot `slots[i]`
/// (block × 16 + place in the block). Values beyond what a page can hold saturate.
///
/// Slots must be distinct. Panics when shapes or slots do not fit the pages.
pub fn kv_write(ctx: &Context, mut pages: PagesMut<'_>, k: &Tensor, v: &Tensor, slots: &[usize]) {
    let shape = pages.shape();
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
            .all(|&slot| slot < pages.num_blocks() * BLOCK_TOKENS),
        "a slot outside {pages:?}"
    );
    let place = pages.place();
    let words = Disjoint::new(pages.words_mut());
    // Tasks take heads, not tokens: tokens of one block share its cache lines.
    ctx.for_row_ranges(
        shape.kv_heads,
        slots.len() * (shape.key_dim + shape.value_dim),
        |first, count| {
            for head in first..first + count {
                for (i, &slot) in slots.iter().enumerate() {
                    let (block, token) = (slot / BLOCK_TOKENS, slot % BLOCK_TOKENS);
                    let (keys, values) = (place.keys(block, head), place.values(block, head));
                    // SAFETY: heads are disjoint, and this task alone writes this one.
                    #[allow(unsafe_code)]
                    let (keys, values) = unsafe {
                        (
                            words.part(keys.start, keys.len()),
                            words.part(values.start, values.len()),
                        )
                    };
                    cpu::write_key(
                        ctx.level(),
                        shape.element,
                        &k.row(i)[head * shape.key_dim..][..shape.key_dim],
                        token,
                        keys,
                    );
                    let row = &mut values[token * shape.value_stride()..][..shape.value_stride()];
                    cpu::write_value(
                        ctx.level(),
                        shape.element,
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
            element: KvElement::F16,
        };
        let (k, v) = (random(1, 3 * 24), random(2, 3 * 20));
        for ctx in contexts() {
            let mut pages = PageStore::new(&[shape], 4);
            kv_write(
                &ctx,
                pages.pages_mut(0),
                &ctx.tensor(3, 24, &k),
                &ctx.tensor(3, 20, &v),
                &[5, 63, 16],
            );
            for (i, slot) in [5, 63, 16].into_iter().enumerate() {
                for head in 0..2 {
                    let (block, place) = (slot / 16, slot % 16);
                    for d in 0..12 {
                        let want = f16::from_f32(k[i * 24 + head * 12 + d]).to_bits();
                        assert_eq!(pages.pages(0).key_block(block, head)[d * 16 + place], want);
                    }
                    let row = &pages.pages(0).value_block(block, head)[place * 16..][..16];
                    for d in 0..10 {
                        assert_eq!(row[d], f16::from_f32(v[i * 20 + head * 10 + d]).to_bits());
                    }
                    assert_eq!(row[10..], [0; 6]);
                }
            }
            let untouched = [
                pages.pages(0).key_block(2, 0),
                pages.pages(0).value_block(2, 1),
            ];
            assert!(untouched.iter().all(|page| page.iter().all(|&x| x == 0)));
        }
    }

    #[test]
    fn single_precision_is_kept_whole_and_stays_finite() {
        let shape = PageShape {
            kv_heads: 2,
            key_dim: 3,
            value_dim: 9,
            element: KvElement::F32,
        };
        let float = |words: &[u16], at: usize| {
            let [a, b] = [words[2 * at], words[2 * at + 1]].map(u16::to_ne_bytes);
            f32::from_ne_bytes([a[0], a[1], b[0], b[1]])
        };
        let (mut k, v) = (random(1, 6), random(2, 18));
        k[5] = f32::NEG_INFINITY;
        for ctx in contexts() {
            let mut pages = PageStore::new(&[shape], 2);
            let (keys, values) = (ctx.tensor(1, 6, &k), ctx.tensor(1, 18, &v));
            kv_write(&ctx, pages.pages_mut(0), &keys, &values, &[21]);
            let (keys, values) = (
                pages.pages(0).key_block(1, 1),
                pages.pages(0).value_block(1, 1),
            );
            for d in 0..2 {
                assert_eq!(float(keys, d * 16 + 5), k[3 + d]);
            }
            assert_eq!(float(keys, 2 * 16 + 5), -f32::MAX);
            for d in 0..9 {
                assert_eq!(float(values, 5 * 16 + d), v[9 + d]);
            }
            assert_eq!(float(values, 5 * 16 + 9), 0.0);
        }
    }

    #[test]
    fn values_beyond_half_precision_saturate_and_nan_stays() {
        let shape = PageShape {
            kv_heads: 1,
            key_dim: 3,
            value_dim: 3,
            element: KvElement::F16,
        };
        for ctx in contexts() {
            let mut pages = PageStore::new(&[shape], 1);
            let x = ctx.tensor(1, 3, &[1e9, f32::NEG_INFINITY, f32::NAN]);
            kv_write(&ctx, pages.pages_mut(0), &x, &x, &[0]);
            let value = |d: usize| f16::from_bits(pages.pages(0).value_block(0, 0)[d]).to_f32();
            assert_eq!((value(0), value(1)), (65504.0, -65504.0));
            assert!(value(2).is_nan());
            assert_eq!(
                pages.pages(0).key_block(0, 0)[16],
                f16::from_f32(-65504.0).to_bits()
            );
        }
    }

    #[test]
    #[should_panic(expected = "a slot outside")]
    fn a_slot_outside_the_pages_panics() {
        let shape = PageShape {
            kv_heads: 1,
            key_dim: 8,
            value_dim: 8,
            element: KvElement::F16,
        };
        let ctx = contexts().remove(0);
        let x = ctx.tensor(1, 8, &[0.0; 8]);
        kv_write(
            &ctx,
            PageStore::new(&[shape], 1).pages_mut(0),
            &x,
            &x,
            &[16],
        );
    }
}
