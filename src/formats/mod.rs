//! Containers of weights: GGUF and safetensors, behind one [`TensorSource`].
//!
//! Knows containers only: names, shapes, encodings, bytes. What a tensor is for is `model`'s business.
//! Everything is validated against the file's real size before it is believed; nothing is allocated that a file merely claims.
//! [`open()`] is the entrance; read `source.rs` next.

pub mod gguf;
pub mod mmap;
mod open;
pub mod safetensors;
mod source;
mod table;

pub use open::{Weights, open};
pub use source::{MappedBytes, TensorInfo, TensorSource, TensorView};
