//! Where keys and values of all layers lie.
//!
//! A block's pages of all layers stand together in one buffer. Memory is committed block by block, the first blocks first, so
//! that large pages of the system waste little, and a context that grows touches new memory in one place only.

use std::fmt;
use std::ops::Range;

use crate::ops::buffer::Buffer;
use crate::ops::simd::LANES;

/// Tokens per block of the KV cache.
pub const BLOCK_TOKENS: usize = 16;

/// How an element of a page is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvElement {
    /// Half precision: what attention reads at full speed.
    #[default]
    F16,
    /// Single precision, for what is compared with references.
    F32,
}

impl KvElement {
    /// 16-bit words of an element.
    pub(in crate::ops) const fn words(self) -> usize {
        match self {
            Self::F16 => 1,
            Self::F32 => 2,
        }
    }
}

/// Geometry of one layer's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageShape {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a key.
    pub key_dim: usize,
    /// Elements of a value.
    pub value_dim: usize,
    /// How elements are stored.
    pub element: KvElement,
}

impl PageShape {
    /// Words from one token's value to the next one's: whole vectors.
    pub(super) fn value_stride(&self) -> usize {
        self.value_dim.next_multiple_of(LANES) * self.element.words()
    }

    /// Words of one head's keys in a block.
    fn key_size(&self) -> usize {
        self.key_dim * BLOCK_TOKENS * self.element.words()
    }

    /// Words of one head's values in a block.
    fn value_size(&self) -> usize {
        self.value_stride() * BLOCK_TOKENS
    }

    fn block_words(&self) -> usize {
        self.kv_heads * (self.key_size() + self.value_size())
    }

    /// Bytes of one block of one layer.
    pub fn block_bytes(&self) -> usize {
        self.block_words() * size_of::<u16>()
    }
}

/// One layer's place in the buffer, in 16-bit words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    shape: PageShape,
    /// Of the layer in its block.
    offset: usize,
    /// From block to block.
    stride: usize,
}

impl Place {
    /// Keys of one head of one block: `[key_dim, 16]`.
    pub(super) fn keys(&self, block: usize, head: usize) -> Range<usize> {
        assert!(head < self.shape.kv_heads);
        let size = self.shape.key_size();
        let start = block * self.stride + self.offset + head * size;
        start..start + size
    }

    /// Values of one head of one block: `[16, padded value_dim]`.
    pub(super) fn values(&self, block: usize, head: usize) -> Range<usize> {
        assert!(head < self.shape.kv_heads);
        let size = self.shape.value_size();
        let keys = self.shape.kv_heads * self.shape.key_size();
        let start = block * self.stride + self.offset + keys + head * size;
        start..start + size
    }
}

/// Keys and values of all layers, in blocks of [`BLOCK_TOKENS`] tokens.
pub struct PageStore {
    places: Vec<Place>,
    num_blocks: usize,
    /// `[block][layer]`, a layer being `[head, key_dim, 16]` keys, then `[head, 16, padded value_dim]` values.
    buffer: Buffer,
}

impl fmt::Debug for PageStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (blocks, layers) = (self.num_blocks, self.places.len());
        write!(f, "PageStore[{blocks} blocks, {layers} layers]")
    }
}

impl PageStore {
    /// Zeroed pages. The system commits their memory when they are first written.
    pub fn new(shapes: &[PageShape], num_blocks: usize) -> Self {
        let stride = shapes.iter().map(PageShape::block_words).sum();
        let mut offset = 0;
        let place = |&shape: &PageShape| {
            let place = Place {
                shape,
                offset,
                stride,
            };
            offset += shape.block_words();
            place
        };
        Self {
            places: shapes.iter().map(place).collect(),
            num_blocks,
            buffer: Buffer::zeroed(num_blocks * stride * size_of::<u16>()),
        }
    }

    /// One layer's pages.
    pub fn pages(&self, layer: usize) -> Pages<'_> {
        Pages {
            place: self.places[layer],
            num_blocks: self.num_blocks,
            words: self.buffer.halves(),
        }
    }

    /// One layer's pages, for writing.
    pub fn pages_mut(&mut self, layer: usize) -> PagesMut<'_> {
        PagesMut {
            place: self.places[layer],
            num_blocks: self.num_blocks,
            words: self.buffer.halves_mut(),
        }
    }
}

/// Keys and values of one layer.
#[derive(Clone, Copy)]
pub struct Pages<'a> {
    place: Place,
    num_blocks: usize,
    words: &'a [u16],
}

impl fmt::Debug for Pages<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages[{} blocks, {:?}]", self.num_blocks, self.shape())
    }
}

impl<'a> Pages<'a> {
    /// The geometry.
    pub fn shape(&self) -> PageShape {
        self.place.shape
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Keys of one head of one block: `[key_dim, 16]`.
    pub(in crate::ops) fn key_block(&self, block: usize, head: usize) -> &'a [u16] {
        &self.words[self.place.keys(block, head)]
    }

    /// Values of one head of one block: `[16, padded value_dim]`.
    pub(in crate::ops) fn value_block(&self, block: usize, head: usize) -> &'a [u16] {
        &self.words[self.place.values(block, head)]
    }
}

/// Keys and values of one layer, to write.
pub struct PagesMut<'a> {
    place: Place,
    num_blocks: usize,
    words: &'a mut [u16],
}

impl fmt::Debug for PagesMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "PagesMut[{} blocks, {:?}]",
            self.num_blocks,
            self.shape()
        )
    }
}

impl PagesMut<'_> {
    /// The geometry.
    pub fn shape(&self) -> PageShape {
        self.place.shape
    }

    /// Number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// The pages of all layers; only those of [`Self::place`] are this one's.
    pub(super) fn words_mut(&mut self) -> &mut [u16] {
        self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_belongs_to_one_layer_block_and_head() {
        let shape = |kv_heads, key_dim, value_dim| PageShape {
            kv_heads,
            key_dim,
            value_dim,
            element: if key_dim == 4 {
                KvElement::F32
            } else {
                KvElement::F16
            },
        };
        let shapes = [shape(2, 12, 10), shape(1, 4, 8), shape(3, 8, 16)];
        let store = PageStore::new(&shapes, 3);
        let total: usize = shapes.iter().map(PageShape::block_words).sum();
        let mut owners = vec![0; 3 * total];
        for (layer, shape) in shapes.iter().enumerate() {
            let place = store.pages(layer).place;
            for block in 0..3 {
                for head in 0..shape.kv_heads {
                    for at in place.keys(block, head).chain(place.values(block, head)) {
                        owners[at] += 1;
                    }
                }
            }
        }
        assert!(owners.iter().all(|&owners| owners == 1));
        assert_eq!(store.buffer.halves().len(), owners.len());
    }
}
