//! Loaded models: a checkpoint becomes a [`Model`] (engine, tokenizer, template, end tokens); a [`Host`] keeps many of them
//! within the memory there is.

mod load;
mod loader;
mod model;
mod models;
mod sampling;
mod settings;

pub use load::{TextParts, load_model};
pub use loader::{Loaded, Loader, Observer};
pub use model::Model;
pub use models::{Host, Lease, ModelEntry, ModelState, RunningModel};
pub use sampling::SamplingDefaults;
pub use settings::{HostSettings, KeepAlive, LoadSettings};
