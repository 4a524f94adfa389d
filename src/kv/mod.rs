//! The KV cache: blocks (integers) and pages (tensors).
//!
//! [`BlockPool`] hands out block numbers, counts references and finds prefixes that are computed already; it knows no tensor. [`KvCache`] holds the pages and states of every
//! layer, all with the same number of blocks, so that one block table serves them all. Recurrent layers have states instead of pages: [`StatePool`] hands out
//! their slots and keeps states for prompts that begin alike.

mod cache;
mod pool;
mod states;

pub use crate::ops::kv_write::{BLOCK_TOKENS, PageShape};
pub use cache::{CacheShape, KvCache};
pub use pool::{BlockPool, CachedBlock, Link};
pub use states::{StatePool, StateUse};
