//! Sequences of token ids: requests, scheduling, sampling. Sees tokens, never text.
//!
//! Read `request.rs` first (what goes in and comes out), then `scheduler.rs` (who computes what in a step; integers only)
//! and `worker.rs` (the loop).

mod active;
pub mod contract;
pub mod embed;
mod handle;
mod pacer;
pub mod request;
pub mod sampler;
pub mod scheduler;
mod sequence;
mod state;
mod stats;
pub mod worker;

pub use handle::{Engine, EngineInfo, Events, QueueSlot, Submission};
pub use request::{Cancel, Event, FinishReason, Request, SamplingParams, TokenLogprobs, Usage};
pub use stats::{EngineStats, StatsSnapshot};
