//! The handle to the worker of an embedding model or reranker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use tokio::sync::oneshot;

use crate::engine::stats::{EngineStats, StatsSnapshot};
use crate::engine::{EngineInfo, QueueSlot};
use crate::error::{Error, Result};
use crate::model::encoder::TextTokens;

/// The answer to a request, when it is there: numbers for each text, in order. Dropping it cancels the request.
pub type Outputs = oneshot::Receiver<Result<Vec<Vec<f32>>>>;

/// The texts of one request.
#[derive(Debug)]
pub(super) struct Job {
    pub texts: Vec<TextTokens>,
    pub reply: oneshot::Sender<Result<Vec<Vec<f32>>>>,
    /// Its place in the queue, given back at its end.
    pub _slot: QueueSlot,
}

/// A handle to the worker thread of one loaded embedding model or reranker. Clones share the worker; it ends when the last is
/// dropped and its requests are over.
#[derive(Debug, Clone)]
pub struct EmbedEngine {
    queue: mpsc::Sender<Job>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    info: EngineInfo,
    dimensions: usize,
    requests: Arc<AtomicUsize>,
    stats: Arc<EngineStats>,
}

impl EmbedEngine {
    pub(super) fn new(
        queue: mpsc::Sender<Job>,
        info: EngineInfo,
        dimensions: usize,
        stats: Arc<EngineStats>,
    ) -> Self {
        Self {
            queue,
            shared: Arc::new(Shared {
                info,
                dimensions,
                requests: Arc::default(),
                stats,
            }),
        }
    }

    /// Facts about the model. Its `max_context` is the longest text.
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// Numbers per text: the length of a vector, or 1 for a score.
    pub fn dimensions(&self) -> usize {
        self.shared.dimensions
    }

    /// What the worker does at the moment; sequences are requests here.
    pub fn stats(&self) -> StatsSnapshot {
        self.shared.stats.snapshot()
    }

    /// Queues the texts of a request.
    ///
    /// # Errors
    /// `Invalid` when a text has no tokens or an id outside the vocabulary; `ContextLength` when one is too long; `Overloaded` when
    /// the queue is full; `Unavailable` when the worker is gone. Messages count texts from 0.
    pub fn submit(&self, texts: Vec<TextTokens>) -> Result<Outputs> {
        let info = &self.shared.info;
        check_texts(&texts, info.vocab_size, info.max_context)?;
        let _slot = self.take_slot()?;
        let (reply, outputs) = oneshot::channel();
        let job = Job {
            texts,
            reply,
            _slot,
        };
        match self.queue.send(job) {
            Ok(()) => Ok(outputs),
            Err(mpsc::SendError(_)) => {
                Err(Error::unavailable("the model's worker has ended").with_hint("try again"))
            }
        }
    }

    fn take_slot(&self) -> Result<QueueSlot> {
        let (requests, most) = (&self.shared.requests, self.shared.info.max_queued);
        let taken = requests.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
            (n < most).then_some(n + 1)
        });
        match taken {
            Ok(_) => Ok(QueueSlot::new(Arc::clone(requests))),
            Err(waiting) => Err(Error::overloaded(format!(
                "the model's queue is full: {waiting} requests wait, at most {most} may"
            ))),
        }
    }
}

/// Refuses texts that a model of so many token ids, which reads at most `max_tokens` of them, cannot compute; says which text.
///
/// # Errors
/// `Invalid` for a text without tokens or an id outside the vocabulary, `ContextLength` for one that is too long.
pub fn check_texts<'a>(
    texts: impl IntoIterator<Item = &'a TextTokens>,
    vocab_size: usize,
    max_tokens: usize,
) -> Result<()> {
    for (index, text) in texts.into_iter().enumerate() {
        if text.ids.is_empty() {
            return Err(Error::invalid(format!(
                "text {index} has no tokens: at least one is needed"
            )));
        }
        if let Some(id) = text.ids.iter().find(|id| **id as usize >= vocab_size) {
            return Err(Error::invalid(format!(
                "token id {id} in text {index} is outside the model's vocabulary of {vocab_size}"
            )));
        }
        let length = text.ids.len();
        if length > max_tokens {
            return Err(Error::context_length(format!(
                "text {index} has {length} tokens, the model reads at most {max_tokens}"
            ))
            .with_hint("split the text: nothing is cut off in silence"));
        }
    }
    Ok(())
}
