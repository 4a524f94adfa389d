//! Texts to vectors and scores: a backbone (an encoder, or a decoder whose last features are pooled) and what
//! sentence-transformers' files say comes behind it.
//!
//! | file | owns |
//! |---|---|
//! | `recipe.rs` | `modules.json` and the folders that it names → [`Recipe`]: pooling, and what follows it |
//! | `dense.rs` | the weights of a `Dense` module |
//! | `embedder.rs` | [`Embedder`]: the backbone and what follows it |
//! | `decoder.rs` | features of a decoder for whole texts |
//! | `load.rs` | checkpoint → [`Embedder`], and what it takes of the memory |

mod decoder;
mod dense;
#[allow(clippy::module_inception)]
mod embedder;
mod load;
mod recipe;

pub use embedder::Embedder;
pub use load::{EmbedderPlan, EmbedderSource, STEP_TOKENS};
pub use recipe::{Pooling, PoolingMode, Recipe};
