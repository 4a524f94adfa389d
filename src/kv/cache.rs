//! Pages and states of all layers.

use crate::ops::kv_write::{PageShape, PageStore, Pages, PagesMut};
use crate::ops::states::States;

/// What the layers of a model remember of sequences.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheShape {
    /// Pages of each layer with attention of its own.
    pub pages: Vec<PageShape>,
    /// Floats of each state of a sequence; a recurrent layer may have several.
    pub states: Vec<usize>,
}

impl CacheShape {
    /// Bytes of one block over all layers.
    pub fn block_bytes(&self) -> usize {
        self.pages.iter().map(PageShape::block_bytes).sum()
    }

    /// Bytes of one state slot over all layers; 0 for a model without recurrent layers.
    pub fn slot_bytes(&self) -> usize {
        self.states.iter().sum::<usize>() * size_of::<f32>()
    }
}

/// Keys and values of every layer with attention: block b means the same tokens in each of them. States of every recurrent
/// layer: slot s means the same sequence and position in each of them.
#[derive(Debug)]
pub struct KvCache {
    pages: PageStore,
    states: Vec<States>,
}

impl KvCache {
    /// `num_blocks` blocks and `num_slots` state slots for each layer; their memory is committed when it is first written.
    pub fn new(shape: &CacheShape, num_blocks: usize, num_slots: usize) -> Self {
        let states = shape.states.iter();
        Self {
            pages: PageStore::new(&shape.pages, num_blocks),
            states: states.map(|&len| States::new(len, num_slots)).collect(),
        }
    }

    /// One layer's pages.
    pub fn layer(&self, layer: usize) -> Pages<'_> {
        self.pages.pages(layer)
    }

    /// One layer's pages, for writing.
    pub fn layer_mut(&mut self, layer: usize) -> PagesMut<'_> {
        self.pages.pages_mut(layer)
    }

    /// One of [`CacheShape::states`], for writing.
    pub fn states_mut(&mut self, index: usize) -> &mut States {
        &mut self.states[index]
    }
}
