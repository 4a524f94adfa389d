//! Loaded models: a checkpoint becomes a [`Model`] (engine, tokenizer, template, end tokens); a [`Host`] keeps many of them
//! within the memory there is.
//!
//! | file | owns |
//! |---|---|
//! | `load.rs` | checkpoint → [`Model`] with a running worker |
//! | `loader.rs`, `model_loader.rs` | [`Loader`]: the seam between the two halves; the one for real checkpoints |
//! | `slots.rs` | who is in memory, who may come in, who leaves: numbers only |
//! | `models.rs`, `loading.rs` | [`Host`]: carries it out, with threads and timers |
//! | `lease.rs` | [`Lease`]: the right to use a model |
//! | `embedding.rs`, `any_model.rs` | models that make vectors or scores; a loaded model of any kind |
//! | `sampling.rs` | how a model wants to be sampled |
//! | `catalog.rs` | the models on disk and the registry file |
//!
//! A model that has a lease is never unloaded, whatever its keep-alive says and whoever needs its memory.

mod any_model;
mod catalog;
mod embedding;
mod lease;
mod load;
mod loader;
mod loading;
mod model;
mod model_loader;
mod models;
mod sampling;
mod settings;
mod slots;
mod view;

pub use any_model::{AnyModel, wrong_kind};
pub use embedding::{EmbeddingModel, EmbeddingText};
pub use lease::Lease;
pub use load::{Checkpoint, TextParts, load_model};
pub use loader::{Loaded, Loader, Observer};
pub use model::Model;
pub use model_loader::ModelLoader;
pub use models::Host;
pub use sampling::SamplingDefaults;
pub use settings::{HostSettings, KeepAlive, LoadSettings};
pub use view::{ModelEntry, ModelState, RunningModel};
