//! What the worker knows about a sequence besides its tokens: sampler, channel, limits, times.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

use super::handle::{QueueSlot, Submission};
use super::request::{Cancel, Event, FinishReason, Usage};
use super::sampler::{History, Sampled, Sampler};
use crate::error::{Error, Result};

/// A sequence from submission to its last event.
pub(super) struct Active {
    sampler: Sampler,
    events: UnboundedSender<Event>,
    cancel: Cancel,
    stop_tokens: Arc<[u32]>,
    /// Most tokens that are generated: the request's limit or what the context leaves.
    max_tokens: usize,
    /// Held until admission.
    slot: Option<Arc<QueueSlot>>,
    usage: Usage,
    submitted: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
}

/// What a token means for its sequence.
pub(super) enum Verdict {
    /// It becomes part of the sequence, which goes on.
    Continue,
    /// It was the last one, or nobody listens any more.
    Over,
}

impl Active {
    /// The sequence and the tokens of its prompt.
    pub(super) fn new(
        submission: Submission,
        sampler: Sampler,
        max_context: usize,
    ) -> (Self, Vec<u32>) {
        let request = submission.request;
        let room = max_context.saturating_sub(request.tokens.len());
        let active = Self {
            sampler,
            events: submission.events,
            cancel: request.cancel,
            stop_tokens: request.stop_tokens,
            max_tokens: request.max_tokens.min(room).max(1),
            slot: submission.slot,
            usage: Usage {
                prompt_tokens: request.tokens.len(),
                ..Usage::default()
            },
            submitted: submission.submitted,
            admitted: None,
            first_token: None,
        };
        (active, request.tokens)
    }

    /// Somebody asked to stop, or nobody listens.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled() || self.events.is_closed()
    }

    /// It gets its first step. (Again after a preemption, which changes nothing here.)
    pub(super) fn admit(&mut self, cached_tokens: usize) {
        if self.admitted.is_none() {
            let now = Instant::now();
            self.admitted = Some(now);
            self.usage.queue_s = now.duration_since(self.submitted).as_secs_f64();
            self.usage.cached_tokens = cached_tokens;
            // Whoever does not listen is found at the next step.
            drop(self.events.send(Event::Started {
                cached_tokens,
                queue_s: self.usage.queue_s,
            }));
        }
        self.slot = None;
    }

    /// Chooses the token behind `tokens` (prompt and output) from its row of logits.
    pub(super) fn sample(&self, logits: &mut [f32], tokens: &[u32]) -> Result<Sampled> {
        let history = History {
            tokens,
            output_start: self.usage.prompt_tokens,
        };
        self.sampler.sample(logits, &history, tokens.len() as u64)
    }

    /// Reports a token, and the end if it is the last.
    pub(super) fn take(&mut self, sampled: Sampled) -> Verdict {
        let now = Instant::now();
        if self.first_token.is_none() {
            let begin = self.admitted.unwrap_or(self.submitted);
            self.usage.prefill_s = now.duration_since(begin).as_secs_f64();
        }
        let first = *self.first_token.get_or_insert(now);
        self.usage.decode_s = now.duration_since(first).as_secs_f64();
        if self.stop_tokens.contains(&sampled.id) {
            return self.finish(FinishReason::Stop);
        }
        self.usage.completion_tokens += 1;
        let token = Event::Token {
            id: sampled.id,
            logprobs: sampled.logprobs,
        };
        if self.events.send(token).is_err() {
            return Verdict::Over;
        }
        if self.usage.completion_tokens >= self.max_tokens {
            return self.finish(FinishReason::Length);
        }
        Verdict::Continue
    }

    fn finish(&mut self, reason: FinishReason) -> Verdict {
        let usage = self.usage;
        // A receiver that is gone does not miss the end.
        drop(self.events.send(Event::Done { reason, usage }));
        Verdict::Over
    }

    /// Reports a failure.
    pub(super) fn fail(self, error: Error) {
        // A receiver that is gone does not want the error either.
        drop(self.events.send(Event::Failed(error)));
    }
}
