//! What packed weight bytes mean: block layouts and their scalar decoders. Knows nothing of files, tensors or speed.
//!
//! [`Encoding`] names how the elements of a weight tensor are stored; [`Encoding::decode_row`] is the reference decoder
//! that every fast kernel is tested against. Read `ggml.rs` next.

mod ggml;

pub use ggml::Encoding;
