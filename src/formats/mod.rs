//! Containers of weights: GGUF and safetensors, behind one [`TensorSource`].
//!
//! Knows containers only: names, shapes, encodings, bytes. What a tensor is for is `model`'s business.
//! Everything is validated against the file's real size before it is believed; nothing is allocated that a file merely claims.

pub mod gguf;
pub mod mmap;
pub mod safetensors;
mod source;

pub use source::{MappedBytes, TensorInfo, TensorSource, TensorView};
