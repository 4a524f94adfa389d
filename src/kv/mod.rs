//! The KV cache: blocks (integers) and pages (tensors).
//!
//! [`BlockPool`] hands out block numbers, counts references and finds prefixes that are computed already; it knows no tensor. [`KvCache`] holds the pages of every
//! layer, all with the same number of blocks, so that one block table serves them all.

mod cache;
mod pool;

pub use crate::ops::kv_write::{BLOCK_TOKENS, PageShape};
pub use cache::KvCache;
pub use pool::{BlockPool, CachedBlock, Link};
