//! Numbers that an engine keeps about itself, for metrics and tests.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Written by the worker after each step, read by anybody.
#[derive(Debug, Default)]
pub struct EngineStats {
    /// Sequences that compute.
    pub(super) running: AtomicUsize,
    /// Sequences that wait for their first step, or to be computed again after a preemption.
    pub(super) waiting: AtomicUsize,
    /// Blocks that sequences hold.
    pub(super) used_blocks: AtomicUsize,
    /// Blocks that nobody holds but that are kept for prompts that begin alike.
    pub(super) cached_blocks: AtomicUsize,
    /// Steps so far.
    pub(super) steps: AtomicU64,
    /// Sequences that lost their blocks to an older one, so far.
    pub(super) preemptions: AtomicU64,
}

/// [`EngineStats`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatsSnapshot {
    /// Sequences that compute.
    pub running: usize,
    /// Sequences that wait.
    pub waiting: usize,
    /// Blocks that sequences hold.
    pub used_blocks: usize,
    /// Blocks that nobody holds but that are kept for prompts that begin alike.
    pub cached_blocks: usize,
    /// Steps so far.
    pub steps: u64,
    /// Preemptions so far.
    pub preemptions: u64,
}

impl EngineStats {
    /// The numbers now.
    pub fn snapshot(&self) -> StatsSnapshot {
        StatsSnapshot {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            used_blocks: self.used_blocks.load(Ordering::Relaxed),
            cached_blocks: self.cached_blocks.load(Ordering::Relaxed),
            steps: self.steps.load(Ordering::Relaxed),
            preemptions: self.preemptions.load(Ordering::Relaxed),
        }
    }
}
