//! GGUF files: header, metadata, tensors.
