//! What a host may do: how long models stay, how much memory they may take, how they are loaded.

use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};

/// How long an idle model stays loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// This long after its last request ended; zero unloads it at once.
    After(Duration),
    /// Until its memory is needed or the host shuts down.
    Forever,
}

impl KeepAlive {
    /// From the seconds of a request: `-1` is for ever.
    ///
    /// # Errors
    /// `Invalid` for other negative numbers.
    pub fn from_secs(secs: i64) -> Result<Self> {
        match u64::try_from(secs) {
            Ok(secs) => Ok(Self::After(Duration::from_secs(secs))),
            Err(_) if secs == -1 => Ok(Self::Forever),
            Err(_) => Err(Error::invalid(format!(
                "`keep_alive` is {secs}, expected seconds from 0 on, or -1 for ever"
            ))),
        }
    }
}

/// How models are loaded; the same for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadSettings {
    /// Tokens that a sequence may hold; `None`: the model's own, bounded by memory.
    pub max_context_len: Option<usize>,
    /// Most sequences that compute at once; `None`: decided from memory.
    pub max_num_seqs: Option<usize>,
    /// Most requests that wait for a model; one more is refused.
    pub max_queued: usize,
}

/// What a [`Host`](super::Host) may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSettings {
    /// Where the models lie.
    pub models_dir: PathBuf,
    /// How long an idle model stays, unless a request says otherwise.
    pub keep_alive: KeepAlive,
    /// Bytes that all loaded models together may take; `None`: what the machine has.
    pub memory_budget: Option<u64>,
}
