//! Local models: where they lie, what they are called, what is complete, adding and deleting. The registry file.
//!
//! A model folder is `<models>/<name>/` or `<models>/<user>/<name>/`. What a folder holds is decided by its weight files
//! alone ([`scan`]). Ids are made in `gguf_name.rs`; typed text meets ids in `resolve.rs` and never becomes a path by itself.
//! Nothing here prints, asks or downloads.

mod add;
mod disk;
mod gguf_name;
mod lock;
mod manifest;
mod metadata;
mod model_name;
mod registry;
mod remove;
mod resolve;
mod scan;

use std::path::PathBuf;

use crate::env;

pub use add::{Added, add_local};
pub use disk::{free_bytes, require_free};
pub use gguf_name::{GgufVariant, group_variants, is_companion};
pub use lock::{Lock, LockOutcome};
pub use manifest::{Manifest, ManifestFile};
pub use metadata::Geometry;
pub use model_name::{ModelName, check_file_name};
pub use registry::{Registry, RegistryEntry, load_registry, update_registry};
pub use remove::{Removal, Removed, plan_removal};
pub use resolve::{Located, check_requested, resolve_exact, resolve_for_run, resolve_unique};
pub use scan::{
    LocalModel, PART_SUFFIX, Weights, is_wanted_file, is_weight_file, scan, write_gguf_index,
};

/// The file that holds the registry, below the models directory.
pub const REGISTRY_FILE: &str = ".oxydllm_registry.json";

/// `~/.oxydllm/models`.
pub fn default_models_dir() -> PathBuf {
    env::home_dir().join(".oxydllm").join("models")
}
