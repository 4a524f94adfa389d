//! What packed weight bytes mean: block layouts and their scalar decoders. Knows nothing of files, tensors or speed.
//!
//! [`Encoding`] names how the elements of a weight tensor are stored; [`Encoding::decode_row`] is the reference decoder
//! that every fast kernel is tested against; [`layout`] says where the parts of a block lie, for kernels that read packed
//! bytes themselves. Read `ggml.rs` next.

mod decode;
mod ggml;
pub mod layout;

pub use ggml::Encoding;
