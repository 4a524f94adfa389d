//! Sequences of token ids: requests, scheduling, sampling. Sees tokens, never text.
//!
//! Read `request.rs` first (what goes in and comes out), then `worker.rs` (the loop).

pub mod request;
pub mod sampler;
pub mod worker;

use std::sync::mpsc;

use crate::error::{Error, Result};
pub use request::{Cancel, Event, FinishReason, Request, SamplingParams, TokenLogprobs, Usage};

/// A request with the channel its events go to.
#[derive(Debug)]
pub struct Submission {
    /// What to do.
    pub request: Request,
    /// Where the events go. Bounded by the number of events a request can make; a closed receiver cancels it.
    pub events: mpsc::Sender<Event>,
}

/// Facts about a loaded model that callers above the engine need.
#[derive(Debug, Clone)]
pub struct EngineInfo {
    /// Rows of the output matrix; token ids are below this.
    pub vocab_size: usize,
    /// Most tokens (prompt and output) that one sequence can hold.
    pub max_context: usize,
    /// Bytes of weights as resident.
    pub weight_bytes: usize,
    /// Bytes of the KV pool.
    pub kv_bytes: usize,
}

/// A handle to the worker thread of one loaded model. Clones share the worker; the worker ends when the last is dropped.
#[derive(Debug, Clone)]
pub struct Engine {
    queue: mpsc::SyncSender<Submission>,
    info: EngineInfo,
}

impl Engine {
    /// A handle that sends to `queue`; whoever holds the other end is the worker.
    pub fn from_queue(queue: mpsc::SyncSender<Submission>, info: EngineInfo) -> Self {
        Self { queue, info }
    }

    /// Facts about the model.
    pub fn info(&self) -> &EngineInfo {
        &self.info
    }

    /// Queues a request and returns its events.
    ///
    /// # Errors
    /// `Invalid` when the prompt is empty, holds an id outside the vocabulary, or leaves no room in the context;
    /// `Overloaded` when the queue is full; `Internal` when the worker is gone.
    pub fn submit(&self, request: Request) -> Result<mpsc::Receiver<Event>> {
        self.check(&request)?;
        let (events, receiver) = mpsc::channel();
        match self.queue.try_send(Submission { request, events }) {
            Ok(()) => Ok(receiver),
            Err(mpsc::TrySendError::Full(_)) => Err(Error::overloaded("the model's queue is full")),
            Err(mpsc::TrySendError::Disconnected(_)) => {
                Err(Error::internal("the model's worker has ended"))
            }
        }
    }

    fn check(&self, request: &Request) -> Result<()> {
        if request.tokens.is_empty() {
            return Err(Error::invalid(
                "the prompt is empty: at least one token is needed",
            ));
        }
        if let Some(id) = request
            .tokens
            .iter()
            .find(|&&id| id as usize >= self.info.vocab_size)
        {
            let size = self.info.vocab_size;
            return Err(Error::invalid(format!(
                "token id {id} is outside the model's vocabulary of {size}"
            )));
        }
        if request.tokens.len() >= self.info.max_context {
            return Err(Error::invalid(format!(
                "the prompt has {} tokens, the context holds {} and one must be left for the answer",
                request.tokens.len(),
                self.info.max_context
            ))
            .with_hint("shorten the prompt, or raise --max-context-len"));
        }
        Ok(())
    }
}
