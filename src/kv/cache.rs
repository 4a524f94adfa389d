//! Pages of all layers.

use crate::ops::kv_write::{PageShape, PageStore, Pages, PagesMut};

/// Keys and values of every layer. Block b means the same tokens in each of them.
#[derive(Debug)]
pub struct KvCache {
    pages: PageStore,
}

impl KvCache {
    /// Pages of `num_blocks` blocks for each layer; their memory is committed when it is first written.
    pub fn new(shapes: &[PageShape], num_blocks: usize) -> Self {
        Self {
            pages: PageStore::new(shapes, num_blocks),
        }
    }

    /// Bytes of one block over all layers.
    pub fn block_bytes(shapes: &[PageShape]) -> usize {
        shapes.iter().map(PageShape::block_bytes).sum()
    }

    /// One layer's pages.
    pub fn layer(&self, layer: usize) -> Pages<'_> {
        self.pages.pages(layer)
    }

    /// One layer's pages, for writing.
    pub fn layer_mut(&mut self, layer: usize) -> PagesMut<'_> {
        self.pages.pages_mut(layer)
    }
}
