//! What metrics and logs are told about a request and its sequences. Each of them ends exactly once, whatever ends it: one that
//! is dropped without having ended was cancelled, or ended by what was said about the request as a whole.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing::{debug, info, warn};

use super::app::App;
use super::error::ApiError;
use crate::engine::{FinishReason, Usage};
use crate::telemetry::Metrics;
use crate::telemetry::metrics::{Outcome, SequenceGuard, tokens_per_second};

/// A request for a model that exists.
pub(super) struct Record {
    shared: Arc<Shared>,
    /// Nothing of it has been counted yet: it is not in sequences.
    is_open: bool,
}

struct Shared {
    app: Arc<App>,
    model_id: String,
    begin: Instant,
    /// What ended all of it, when it was not the client.
    verdict: Mutex<Option<(Outcome, String)>>,
    /// The prompt was counted.
    has_started: AtomicBool,
}

/// One choice of a request.
pub(super) struct SequenceRecord {
    shared: Arc<Shared>,
    seq_id: u64,
    /// Counts it as waiting or running; `None` after its end.
    guard: Option<SequenceGuard>,
    has_first_token: bool,
}

impl Record {
    /// A request begins that is for the model with this id.
    pub(super) fn open(app: &Arc<App>, model_id: &str) -> Self {
        let shared = Shared {
            app: Arc::clone(app),
            model_id: model_id.to_owned(),
            begin: Instant::now(),
            verdict: Mutex::default(),
            has_started: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
            is_open: true,
        }
    }

    /// A sequence was handed to the engine; from the first on, they are counted instead of the request.
    pub(super) fn sequence(&mut self) -> SequenceRecord {
        self.is_open = false;
        let shared = Arc::clone(&self.shared);
        let seq_id = shared.app.next_sequence();
        debug!(
            model_id = shared.model_id,
            seq_id,
            pre_engine_total_ms = milliseconds_since(shared.begin),
            "request enqueued"
        );
        SequenceRecord {
            guard: Some(shared.metrics().sequence()),
            shared,
            seq_id,
            has_first_token: false,
        }
    }

    /// Vectors or scores were made of `num_tokens` tokens: the request is complete.
    pub(super) fn computed(&mut self, num_tokens: usize) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let Shared {
            model_id, begin, ..
        } = &*self.shared;
        let metrics = self.shared.metrics();
        metrics.tokens(model_id, num_tokens, 0);
        metrics.request_ended(model_id, Outcome::Ok);
        info!(
            model_id,
            prompt_tokens = num_tokens,
            total_ms = milliseconds_since(*begin),
            "request completed"
        );
    }

    /// `error` ends the request and all of its sequences that have not ended.
    pub(super) fn ended_by(&mut self, error: &ApiError) {
        let outcome = error.outcome();
        let verdict = outcome.unwrap_or(Outcome::Error);
        *self.shared.verdict() = Some((verdict, error.message().to_owned()));
        if std::mem::take(&mut self.is_open)
            && let Some(outcome) = outcome
        {
            let Shared { model_id, .. } = &*self.shared;
            self.shared.metrics().request_ended(model_id, outcome);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.is_open {
            let Shared { model_id, .. } = &*self.shared;
            debug!(model_id, reason = "cancelled", "request aborted");
            self.shared
                .metrics()
                .request_ended(model_id, Outcome::Cancelled);
        }
    }
}

impl Shared {
    fn metrics(&self) -> &Arc<Metrics> {
        self.app.metrics()
    }

    fn verdict(&self) -> std::sync::MutexGuard<'_, Option<(Outcome, String)>> {
        self.verdict.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SequenceRecord {
    /// Tells of the first token, once it is there.
    pub(super) fn progress(&mut self, usage: &Usage) {
        if self.has_first_token || usage.completion_tokens == 0 {
            return;
        }
        self.has_first_token = true;
        let ttft_ms = (usage.queue_s + usage.prefill_s) * 1000.0;
        let model_id = &self.shared.model_id;
        self.shared.metrics().first_token(model_id, ttft_ms);
        self.count_prompt(usage);
        info!(
            model_id,
            seq_id = self.seq_id,
            ttft_ms = rounded(ttft_ms),
            "first token emitted"
        );
    }

    /// The answer is complete.
    pub(super) fn finished(&mut self, reason: FinishReason, usage: &Usage) {
        self.progress(usage);
        let Some(_guard) = self.guard.take() else {
            return;
        };
        let Shared {
            model_id, begin, ..
        } = &*self.shared;
        self.count_prompt(usage);
        self.count_tokens(usage);
        self.shared.metrics().request_ended(model_id, Outcome::Ok);
        let speed = tokens_per_second(usage.completion_tokens, usage.decode_s);
        info!(
            model_id,
            seq_id = self.seq_id,
            prompt_tokens = usage.prompt_tokens,
            cached_tokens = usage.cached_tokens,
            completion_tokens = usage.completion_tokens,
            finish_reason = ?reason,
            total_ms = milliseconds_since(*begin),
            decode_ms = rounded(usage.decode_s * 1000.0),
            tokens_per_second = rounded(speed.unwrap_or(0.0)),
            "request completed"
        );
    }

    /// It goes away; if it had not ended, this is how it ends.
    pub(super) fn closed(&mut self, usage: &Usage) {
        let Some(_guard) = self.guard.take() else {
            return;
        };
        let Shared { model_id, .. } = &*self.shared;
        let verdict = self.shared.verdict().clone();
        let (outcome, reason) =
            verdict.unwrap_or_else(|| (Outcome::Cancelled, "the client went away".to_owned()));
        self.count_tokens(usage);
        self.shared.metrics().request_ended(model_id, outcome);
        let (seq_id, tokens) = (self.seq_id, usage.completion_tokens);
        if outcome == Outcome::Error {
            warn!(
                model_id,
                seq_id,
                completion_tokens = tokens,
                error = reason,
                "request failed"
            );
        } else {
            debug!(
                model_id,
                seq_id,
                completion_tokens = tokens,
                outcome = outcome.as_str(),
                reason,
                "request aborted"
            );
        }
    }

    fn count_prompt(&self, usage: &Usage) {
        let Shared {
            model_id,
            has_started,
            ..
        } = &*self.shared;
        // Further choices find the prompt in the cache because the first computed it, which is no hit.
        if !has_started.swap(true, Ordering::Relaxed) {
            let metrics = self.shared.metrics();
            metrics.prefix_lookup(model_id, usage.cached_tokens > 0);
            metrics.tokens(model_id, usage.prompt_tokens, 0);
        }
    }

    fn count_tokens(&self, usage: &Usage) {
        if self.shared.has_started.load(Ordering::Relaxed) {
            let tokens = usage.completion_tokens;
            let Shared { model_id, .. } = &*self.shared;
            self.shared.metrics().tokens(model_id, 0, tokens);
            self.shared
                .metrics()
                .speed(model_id, tokens, usage.decode_s);
        }
    }
}

fn milliseconds_since(begin: Instant) -> f64 {
    rounded(begin.elapsed().as_secs_f64() * 1000.0)
}

/// To one place behind the point: for people.
fn rounded(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}
