//! Pages of all layers.

use crate::ops::kv_write::{PageShape, Pages};

/// Keys and values of every layer. Block b means the same tokens in each of them.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<Pages>,
}

impl KvCache {
    /// Pages of `num_blocks` blocks for each layer; their memory is committed when it is first written.
    pub fn new(shapes: &[PageShape], num_blocks: usize) -> Self {
        Self {
            layers: shapes
                .iter()
                .map(|&shape| Pages::new(shape, num_blocks))
                .collect(),
        }
    }

    /// Bytes of one block over all layers.
    pub fn block_bytes(shapes: &[PageShape]) -> usize {
        shapes.iter().map(PageShape::block_bytes).sum()
    }

    /// One layer's pages.
    pub fn layer(&self, layer: usize) -> &Pages {
        &self.layers[layer]
    }

    /// One layer's pages, for writing.
    pub fn layer_mut(&mut self, layer: usize) -> &mut Pages {
        &mut self.layers[layer]
    }
}
