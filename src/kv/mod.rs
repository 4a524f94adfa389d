//! The KV cache: blocks (integers) and pages (tensors).
