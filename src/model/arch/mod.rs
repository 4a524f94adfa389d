//! The architecture table and the config-key table.

pub mod keys;
mod page;
mod rows;
pub mod rules;
pub mod table;

pub use page::models_page;
pub use table::{Architecture, find_gguf, find_hf, find_model_type, find_text, is_supported};
