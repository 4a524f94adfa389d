//! The handle to a loaded model's worker: checks requests, bounds the queue, hands them over.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::request::{Event, Request};
use super::stats::{EngineStats, StatsSnapshot};
use crate::error::{Error, Result};

/// The events of one sequence, in order. Dropping it cancels the sequence. It never holds more than the sequence can make:
/// one event per token of the context.
pub type Events = UnboundedReceiver<Event>;

/// A request with the channel that its events go to.
#[derive(Debug)]
pub struct Submission {
    /// What to do.
    pub request: Request,
    /// Where the events go; a closed receiver cancels the request.
    pub events: UnboundedSender<Event>,
    /// Its place in the queue, given back when it is dropped: the worker does so when the sequence is admitted.
    pub slot: Option<Arc<QueueSlot>>,
    /// When it was submitted.
    pub submitted: Instant,
}

/// A place in the bounded queue. The sequences of one call of [`Engine::submit_all`] share one.
#[derive(Debug)]
pub struct QueueSlot(Arc<AtomicUsize>);

impl QueueSlot {
    /// Stands for a place that was counted in `waiting`.
    pub(super) fn new(waiting: Arc<AtomicUsize>) -> Self {
        Self(waiting)
    }
}

impl Drop for QueueSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Facts about a loaded model that callers above the engine need.
#[derive(Debug, Clone, Default)]
pub struct EngineInfo {
    /// Rows of the output matrix; token ids are below this.
    pub vocab_size: usize,
    /// Most tokens (prompt and output) that one sequence can hold; the KV pool can hold one such sequence at least.
    pub max_context: usize,
    /// Bytes of weights as resident.
    pub weight_bytes: usize,
    /// Bytes of the KV pool.
    pub kv_bytes: usize,
    /// Blocks of the KV pool.
    pub num_blocks: usize,
    /// Most sequences that compute at once.
    pub max_num_seqs: usize,
    /// Most requests that wait; one more is refused.
    pub max_queued: usize,
}

/// A handle to the worker thread of one loaded model. Clones share the worker; the worker ends when the last is dropped
/// and its sequences are over.
#[derive(Debug, Clone)]
pub struct Engine {
    queue: mpsc::Sender<Submission>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    info: EngineInfo,
    waiting: Arc<AtomicUsize>,
    stats: Arc<EngineStats>,
}

impl Engine {
    /// A handle that sends to `queue`; whoever holds the other end is the worker and keeps `stats`.
    pub fn from_queue(
        queue: mpsc::Sender<Submission>,
        info: EngineInfo,
        stats: Arc<EngineStats>,
    ) -> Self {
        let waiting = Arc::default();
        Self {
            queue,
            shared: Arc::new(Shared {
                info,
                waiting,
                stats,
            }),
        }
    }

    /// Facts about the model.
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// What the worker does at the moment.
    pub fn stats(&self) -> StatsSnapshot {
        self.shared.stats.snapshot()
    }

    /// Queues a request and returns its events.
    ///
    /// # Errors
    /// `Invalid` when the prompt is empty or holds an id outside the vocabulary, or no token may be generated;
    /// `ContextLength` when the prompt leaves no room in the context; `Overloaded` when the queue is full; `Unavailable` when
    /// the worker is gone.
    pub fn submit(&self, request: Request) -> Result<Events> {
        let mut all = self.submit_all(vec![request])?;
        Ok(all.pop().expect("one request, one receiver"))
    }

    /// Queues several requests that belong together, such as the choices of one prompt: all of them or none. They take one
    /// place in the queue.
    ///
    /// # Errors
    /// As [`Engine::submit`].
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<Events>> {
        requests
            .iter()
            .try_for_each(|request| self.check(request))?;
        let slot = self.take_slot()?;
        let submitted = Instant::now();
        let submit = |request| {
            let (events, receiver) = unbounded_channel();
            let submission = Submission {
                request,
                events,
                slot: Some(Arc::clone(&slot)),
                submitted,
            };
            match self.queue.send(submission) {
                Ok(()) => Ok(receiver),
                Err(mpsc::SendError(_)) => {
                    Err(Error::unavailable("the model's worker has ended").with_hint("try again"))
                }
            }
        };
        requests.into_iter().map(submit).collect()
    }

    fn take_slot(&self) -> Result<Arc<QueueSlot>> {
        let (waiting, most) = (&self.shared.waiting, self.shared.info.max_queued);
        let taken = waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
            (n < most).then_some(n + 1)
        });
        match taken {
            Ok(_) => Ok(Arc::new(QueueSlot(Arc::clone(waiting)))),
            Err(waiting) => Err(Error::overloaded(format!(
                "the model's queue is full: {waiting} requests wait, at most {most} may"
            ))),
        }
    }

    fn check(&self, request: &Request) -> Result<()> {
        let info = &self.shared.info;
        if request.tokens.is_empty() {
            return Err(Error::invalid(
                "the prompt is empty: at least one token is needed",
            ));
        }
        if request.max_tokens == 0 {
            return Err(Error::invalid(
                "at least one token must be generated, `max_tokens` is 0",
            ));
        }
        let outside = |id: &&u32| **id as usize >= info.vocab_size;
        if let Some(id) = request.tokens.iter().find(outside) {
            let size = info.vocab_size;
            return Err(Error::invalid(format!(
                "token id {id} is outside the model's vocabulary of {size}"
            )));
        }
        if request.tokens.len() >= info.max_context {
            return Err(Error::context_length(format!(
                "the prompt has {} tokens, the model's context holds {} and one must be left for the answer",
                request.tokens.len(),
                info.max_context
            ))
            .with_hint("shorten the prompt, or raise --max-context-len"));
        }
        Ok(())
    }
}
