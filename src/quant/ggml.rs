//! ggml's block formats: layouts and scalar decoders.

/// How the elements of a weight tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Encoding {
    /// 32-bit floats.
    F32,
}
