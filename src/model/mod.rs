//! Configs, weight names and the one forward pass.
//!
//! A model is made of parts: a layer has a mixer (attention or another part that looks at other tokens) and a feed-forward
//! part. Each kind of part has its config in `config.rs`, a reader in `read/`, a loader in `load/` and weights with
//! a forward function in `layers/`. A family is a row of a table that says which parts it has.
//!
//! | file | owns |
//! |---|---|
//! | `arch/table.rs`, `arch/rows/` | one row per architecture: what is special about it, as data |
//! | `arch/keys.rs` | one row per config field: its names in both containers |
//! | `describe.rs` | whether this build runs what a `config.json` describes |
//! | `config.rs` | [`ModelConfig`]: plain data, validated once |
//! | `read/` | container + table → `ModelConfig` |
//! | `fields.rs` | typed access to objects of a `config.json` |
//! | `rope.rs` | rotary frequencies and their scaling rules |
//! | `names.rs` | parts ↔ names in files |
//! | `checkpoint.rs` | tensors of a file by name, each taken once and checked |
//! | `load/` | `ModelConfig` + tensors → [`Transformer`]; the bytes it will take, without reading them |
//! | `layers/` | layers and their parts: weights with forward functions |
//! | `batch.rs` | what one forward pass computes |
//! | `transformer.rs` | the forward pass |
//! | `work.rs` | what layers cost |
//! | `kind.rs` | [`ModelKind`]: chat, embedding or reranker, told by the description |
//! | `encoder/` | BERT and RoBERTa |
//! | `embedder/` | [`Embedder`](embedder::Embedder): texts to vectors and scores |
//! | `plan.rs` | bytes for weights, KV and activations |

pub mod arch;
mod batch;
mod checkpoint;
mod config;
mod describe;
pub mod embedder;
pub mod encoder;
mod fields;
mod kind;
mod layers;
mod load;
mod names;
pub mod plan;
mod read;
mod rope;
mod transformer;
mod work;

pub use batch::{Batch, Sequence};
pub use config::*;
pub use describe::{check_supported, is_supported};
pub use kind::ModelKind;
pub use load::{LoadOptions, LoadedModel, assemble, load, weigh};
pub use names::{Part, PartNames};
pub use read::read_config;
pub use transformer::Transformer;
pub use work::Work;
