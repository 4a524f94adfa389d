//! The engine of embedding models and rerankers: tokens of texts in, vectors or scores out. No text on this side of the seam.
//!
//! | file | owns |
//! |---|---|
//! | `handle.rs` | [`EmbedEngine`]: checks requests, bounds the queue |
//! | `worker.rs` | the loop thread: which texts are computed together |
//! | `contract.rs` | the numerical contract on a loaded model |

pub mod contract;
mod handle;
pub mod worker;

pub use handle::{EmbedEngine, Outputs, check_texts};
