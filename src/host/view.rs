//! What a host shows of its models: plain data.

use std::time::Duration;

use crate::model::ModelKind;

/// A local model, loaded or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// The canonical id.
    pub id: String,
    /// Modification time of its folder or file, in Unix seconds.
    pub created_secs: u64,
    /// Class name, or GGUF architecture followed by ` (GGUF)`.
    pub architecture: String,
    /// What it does.
    pub kind: ModelKind,
    /// Rows of the output matrix; 0 when the files do not say.
    pub vocab_size: u64,
    /// Layers; 0 when the files do not say.
    pub num_layers: u64,
    /// Bytes of the weights as loaded the last time, of the files when it never was.
    pub size_bytes: u64,
    /// When it was last used, in Unix seconds; 0 when it never was.
    pub last_used_secs: u64,
    /// Files that are missing; it can be loaded when there are none.
    pub missing: Vec<String>,
}

/// What a model is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelState {
    /// Being loaded, or waiting for memory to be freed.
    Loading,
    /// Answers requests.
    Ready,
    /// Leaving memory.
    Unloading,
}

/// A model in memory, or on its way there or back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningModel {
    /// The canonical id.
    pub id: String,
    /// What it is doing.
    pub state: ModelState,
    /// Class name, or GGUF architecture followed by ` (GGUF)`.
    pub architecture: String,
    /// What it does.
    pub kind: ModelKind,
    /// Rows of the output matrix; 0 while loading.
    pub vocab_size: u64,
    /// Layers; 0 when not known.
    pub num_layers: u64,
    /// Requests that hold it or wait for it.
    pub users: usize,
    /// How long nobody has used it; zero while somebody does.
    pub idle: Duration,
    /// Bytes of weights; 0 while loading.
    pub weight_bytes: u64,
    /// Bytes of the KV cache; 0 while loading.
    pub kv_bytes: u64,
    /// All bytes that count against the budget.
    pub total_bytes: u64,
    /// Blocks of the KV cache; 0 while loading.
    pub kv_blocks: usize,
    /// Of these, blocks that sequences hold.
    pub kv_blocks_used: usize,
    /// Of these, blocks that nobody holds but that are kept for prompts that begin alike.
    pub kv_blocks_cached: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Sequences that compute.
    pub running: usize,
}
