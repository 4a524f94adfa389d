//! safetensors files, single or sharded.
