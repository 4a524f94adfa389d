//! One admitted request: the deltas of its choices as they come, its time limit, its end, and what metrics and logs are told.
//!
//! Every endpoint that generates text, streaming or not, is a loop over [`Generation::next`]. Whoever drops a [`Generation`],
//! or the future that was going to make one, cancels its sequences at once: that is how a client that went away frees what
//! it held, in the queue, in the prefill and in the decode alike.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::app::App;
use super::body::off_thread_if;
use super::clock::Clock;
use super::error::ApiError;
use super::record::{Record, SequenceRecord};
use crate::chat::{self, Delta, Deltas};
use crate::engine::{Cancel, Usage};
use crate::error::{Error, ErrorKind, Result};
use crate::host::{Lease, Model};

/// A request that an engine works on.
pub(super) struct Generation {
    app: Arc<App>,
    clock: Clock,
    choices: FuturesUnordered<NextDelta>,
    record: Record,
    total: Total,
    num_ended: u32,
    // Dropped after the sequences, which need the model.
    cancel: CancelOnDrop,
    model: Arc<Model>,
    _lease: Lease,
}

type NextDelta = Pin<Box<dyn Future<Output = (Choice, Option<Result<Delta>>)> + Send>>;

struct Choice {
    index: u32,
    deltas: Deltas,
    record: SequenceRecord,
}

impl Drop for Choice {
    fn drop(&mut self) {
        self.record.closed(&self.deltas.usage());
    }
}

/// Cancels what it was made for when it is dropped; after the end that changes nothing.
pub(super) struct CancelOnDrop(Cancel);

impl CancelOnDrop {
    /// Cancels `cancel` at its end.
    pub(super) fn new(cancel: Cancel) -> Self {
        Self(cancel)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Tokens of all choices of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Total {
    /// Tokens of the prompt, which all choices share.
    pub prompt_tokens: usize,
    /// How many of them were not computed for this request.
    pub cached_tokens: usize,
    /// Tokens of all choices together.
    pub completion_tokens: usize,
}

impl Total {
    fn add(&mut self, usage: &Usage, is_first: bool) {
        self.prompt_tokens = usage.prompt_tokens;
        self.completion_tokens += usage.completion_tokens;
        // Choices find in the cache what the first of them computed.
        self.cached_tokens = if is_first {
            usage.cached_tokens
        } else {
            self.cached_tokens.min(usage.cached_tokens)
        };
    }
}

/// What is to be generated, from a model that was leased.
pub(super) struct Order<P> {
    /// The right to use the model.
    pub lease: Lease,
    /// The model.
    pub model: Arc<Model>,
    /// The record that was opened for the model.
    pub record: Record,
    /// Makes the prompt.
    pub prompt: P,
    /// How the answers are made. Its cancel handle is used.
    pub generation: chat::Generation,
    /// How many answers.
    pub num_choices: u32,
}

impl Generation {
    /// Makes the prompt and hands it to the engine; returns as soon as it is in the queue.
    ///
    /// # Errors
    /// Whatever is wrong with the prompt, 429 when too much is waiting, 408 when the time is over.
    pub(super) async fn start<P>(
        app: &Arc<App>,
        clock: Clock,
        order: Order<P>,
    ) -> Result<Self, ApiError>
    where
        P: FnOnce(&Model) -> Result<Vec<u32>> + Send + 'static,
    {
        let Order {
            lease,
            model,
            mut record,
            prompt,
            generation,
            num_choices,
        } = order;
        let cancel = CancelOnDrop(generation.cancel.clone());
        let used = Arc::clone(&model);
        let submit = move || {
            // It may have waited for a thread for longer than the client did.
            if generation.cancel.is_cancelled() {
                return Err(ApiError::from(Error::cancelled("the client went away")));
            }
            let tokens = prompt(&used).map_err(|error| ApiError::no_prompt(&error))?;
            chat::start_choices(&used, tokens, &generation, num_choices).map_err(ApiError::from)
        };
        let submitted = clock.limit(off_thread_if(true, submit)).await;
        let choices = match submitted.and_then(|choices| choices) {
            Ok(choices) => choices,
            Err(error) => {
                record.ended_by(&error);
                return Err(error);
            }
        };
        let choice = |(index, deltas)| {
            next_delta(Choice {
                index,
                deltas,
                record: record.sequence(),
            })
        };
        let choices = (0..num_choices).zip(choices).map(choice).collect();
        Ok(Self {
            app: Arc::clone(app),
            clock,
            choices,
            record,
            total: Total::default(),
            num_ended: 0,
            cancel,
            model,
            _lease: lease,
        })
    }

    /// The model that answers.
    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// Tokens of the choices that have ended.
    pub(super) fn total(&self) -> Total {
        self.total
    }

    /// The next delta with the index of its choice; `None` when all choices have ended. After an error nothing follows: the
    /// other choices are cancelled.
    pub(super) async fn next(&mut self) -> Option<Result<(u32, Delta), ApiError>> {
        let next = tokio::select! {
            biased;
            error = Self::interrupted(&self.app, &self.clock), if !self.choices.is_empty() => Err(error),
            next = self.choices.next() => Ok(next?),
        };
        let error = match next {
            Ok((choice, Some(Ok(delta)))) => return Some(Ok(self.take(choice, delta))),
            Ok((choice, ended)) => {
                let error = match ended {
                    Some(Err(error)) => failure(&error),
                    _ => failure(&Error::internal("an answer ended without saying why")),
                };
                self.record.ended_by(&error);
                drop(choice);
                error
            }
            Err(error) => error,
        };
        self.stop(&error);
        Some(Err(error))
    }

    /// Waits for what may end the request besides its choices: the time limit, or the end of the server.
    async fn interrupted(app: &App, clock: &Clock) -> ApiError {
        tokio::select! {
            error = clock.over() => error,
            () = app.life().aborted() => ApiError::shutting_down(),
        }
    }

    /// `work`, such as handing a piece to a slow client. When the request is interrupted meanwhile its sequences are stopped
    /// although nobody asks for the next delta; that delta is then the error.
    pub(super) async fn beside<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if !self.choices.is_empty() {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = Self::interrupted(&self.app, &self.clock) => self.cancel.0.cancel(),
            }
        }
        work.await
    }

    fn take(&mut self, mut choice: Choice, delta: Delta) -> (u32, Delta) {
        let index = choice.index;
        match &delta {
            Delta::Finish { usage, reason } => {
                self.total.add(usage, self.num_ended == 0);
                self.num_ended += 1;
                choice.record.finished(*reason, usage);
            }
            Delta::Content { .. } => {
                choice.record.progress(&choice.deltas.usage());
                self.choices.push(next_delta(choice));
            }
        }
        (index, delta)
    }

    /// Cancels everything; what has not ended is recorded as ended by `error`.
    fn stop(&mut self, error: &ApiError) {
        self.cancel.0.cancel();
        self.record.ended_by(error);
        self.choices.clear();
    }
}

fn next_delta(mut choice: Choice) -> NextDelta {
    Box::pin(async move {
        let delta = choice.deltas.recv().await;
        (choice, delta)
    })
}

/// How a failure in the middle of an answer is told. Whatever the engine blames, it is not the client's fault any more.
fn failure(error: &Error) -> ApiError {
    match error.kind() {
        ErrorKind::Overloaded
        | ErrorKind::OutOfMemory
        | ErrorKind::Unavailable
        | ErrorKind::ContextLength => ApiError::from(error),
        _ => ApiError::from(&Error::internal(error.chain())),
    }
}
