//! Configs, weight names and the one forward pass.
//!
//! | file | owns |
//! |---|---|
//! | `arch/table.rs` | one row per architecture: what is special about it, as data |
//! | `arch/keys.rs` | one row per config field: its names in both containers |
//! | `config.rs` | [`ModelConfig`]: plain data, validated once |
//! | `read.rs` | container + table → `ModelConfig` |
//! | `rope.rs` | rotary frequencies and their scaling rules |
//! | `names.rs` | canonical weight names ↔ names in files |
//! | `load.rs` | `ModelConfig` + tensors → [`Transformer`] |
//! | `transformer.rs` | the forward pass |
//! | `weigh.rs` | bytes of the weights before they are loaded |
//! | `plan.rs` | bytes for weights, KV and activations |

pub mod arch;
mod config;
mod load;
mod names;
pub mod plan;
mod read;
mod rope;
mod transformer;
mod weigh;

pub use config::{LayerConfig, ModelConfig, QkNorm};
pub use load::{LoadOptions, LoadedModel, assemble, load};
pub use read::read_config;
pub use transformer::{Batch, Sequence, Transformer, Work};
pub use weigh::weigh;
