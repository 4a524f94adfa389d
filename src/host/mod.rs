//! Loaded models: engine, tokenizer, template and end tokens of a checkpoint put together.

mod load;
mod model;

pub use load::{TextParts, load_model};
pub use model::Model;
