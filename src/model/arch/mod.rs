//! The architecture table and the config-key table.

pub mod keys;
pub mod rules;
pub mod table;

pub use table::{Architecture, find_gguf, find_hf, find_model_type};
