//! oxydllm: pull language models, chat with them in the terminal and serve them from your own machine.
//!
//! Layers, top to bottom; a module uses lower rows only (`tests/it/layering.rs` enforces it):
//!
//! | row | modules | speaks of |
//! |---|---|---|
//! | 10 | [`cli`] | commands, words for people |
//! | 9 | [`server`] | HTTP |
//! | 8 | [`chat`] | messages, text, deltas |
//! | 7 | [`host`], [`hub`] | loaded models; downloads |
//! | 6 | [`engine`], [`store`] | token ids and sequences; model files on disk |
//! | 5 | [`model`], [`text`] | configs and forward pass; strings |
//! | 4 | [`nn`] | layers |
//! | 3 | [`kv`] | blocks and pages |
//! | 2 | [`ops`], [`formats`] | tensors and kernels; containers of weights |
//! | 1 | [`quant`] | what packed bytes mean |
//! | 0 | [`error`], [`mod@env`], [`units`], [`net`], [`device`], [`cgroup`], [`memory`], [`threads`], [`telemetry`] | nothing of models |
//!
//! Two seams carry the design: `engine` sees tokens, never text; `chat` sees text, never tensors.
//! Reading order: `docs/architecture.md`, [`engine::request`], [`model`], [`ops`].

pub mod cgroup;
pub mod chat;
pub mod cli;
pub mod device;
pub mod engine;
pub mod env;
pub mod error;
pub mod formats;
pub mod host;
pub mod hub;
pub mod kv;
pub mod memory;
pub mod model;
pub mod net;
pub mod nn;
pub mod ops;
pub mod quant;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod text;
pub mod threads;
pub mod units;
