//! One answer: tokens go to the engine, events come back as text.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Map, Value};

use super::request::{ChatRequest, Generation, Message};
use super::scored::{PendingTokens, ScoredToken};
use crate::engine::{Cancel, Event, Events, FinishReason, Request, Usage};
use crate::error::{Error, Result};
use crate::host::Model;
use crate::text::{Detokenizer, StopMatcher, Tokenizer};

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// Some text.
    Content {
        /// Never empty, never part of a character or of a stop text.
        text: String,
        /// The tokens that begin in this text, when log-probabilities were asked for.
        tokens: Vec<ScoredToken>,
    },
    /// The end; nothing follows.
    Finish {
        /// Why.
        reason: FinishReason,
        /// Counts and times.
        usage: Usage,
    },
}

/// Continues a conversation.
///
/// # Errors
/// `Invalid` when the template refuses the messages or a parameter is out of range; `ContextLength` when the prompt does
/// not fit; `Unsupported` when the model has no chat template; `Overloaded` when too much is waiting.
pub fn turn(model: &Model, request: &ChatRequest) -> Result<Deltas> {
    let tokens = prompt(model, &request.messages, &request.variables)?;
    start(model, tokens, &request.generation)
}

/// Continues a plain text, without a template: for models that only complete.
///
/// # Errors
/// As [`turn`], but for the template.
pub fn complete(model: &Model, text: &str, generation: &Generation) -> Result<Deltas> {
    start(model, model.plain_prompt(text)?, generation)
}

/// The tokens of a conversation with the beginning of an answer.
///
/// # Errors
/// `Unsupported` without a template, `Invalid` when the template refuses the messages.
pub fn prompt(
    model: &Model,
    messages: &[Message],
    variables: &Map<String, Value>,
) -> Result<Vec<u32>> {
    let messages: Vec<Value> = messages.iter().map(Message::to_json).collect();
    model.prompt(&messages, variables)
}

/// Continues `tokens`, a prompt from [`prompt`] or [`Model::plain_prompt`].
///
/// # Errors
/// As [`complete`].
pub fn start(model: &Model, tokens: Vec<u32>, generation: &Generation) -> Result<Deltas> {
    let mut choices = start_choices(model, tokens, generation, 1)?;
    Ok(choices.pop().expect("one choice was asked for"))
}

/// Continues `tokens` in `num_choices` independent ways: all of them are queued, or none. They share one cancel handle,
/// and the engine computes their common prompt once.
///
/// # Errors
/// As [`start`].
pub fn start_choices(
    model: &Model,
    tokens: Vec<u32>,
    generation: &Generation,
    num_choices: u32,
) -> Result<Vec<Deltas>> {
    let info = model.engine().info();
    generation.sampling.check(info.vocab_size)?;
    if generation.max_tokens == Some(0) {
        return Err(Error::invalid("`max_tokens` must be at least 1, got 0"));
    }
    let stops = generation.stop.iter().filter(|text| !text.is_empty());
    let stops = StopMatcher::new(stops.cloned().collect())?;
    let room = info.max_context.saturating_sub(tokens.len());
    let prompt_tokens = tokens.len();
    let request = Request {
        tokens,
        sampling: generation.sampling.clone(),
        max_tokens: generation.max_tokens.unwrap_or(room).min(room).max(1),
        stop_tokens: Arc::clone(model.stop_tokens()),
        cancel: generation.cancel.clone(),
    };
    let of_choice = |choice| {
        let mut request = request.clone();
        request.sampling.choice = choice;
        request
    };
    let requests = (0..num_choices).map(of_choice).collect();
    let events = model.engine().submit_all(requests)?;
    let deltas = |events| Deltas {
        events: Some(events),
        cancel: generation.cancel.clone(),
        detokenizer: Detokenizer::new(Arc::clone(model.tokenizer())),
        pending: PendingTokens::default(),
        stops: stops.clone(),
        ready: VecDeque::new(),
        counted: Counted::new(prompt_tokens),
    };
    Ok(events.into_iter().map(deltas).collect())
}

/// The pieces of one answer, in order: any number of [`Delta::Content`], then one [`Delta::Finish`] or an error.
///
/// Asynchronous callers use [`Deltas::recv`], others the iterator, which blocks. Cancelling gives the text that was still
/// held back, then an error of kind `Cancelled`. Dropping it ends the work as well.
pub struct Deltas {
    /// `None` after the end: the engine knows nothing of stop texts and goes on as long as somebody listens.
    events: Option<Events>,
    cancel: Cancel,
    detokenizer: Detokenizer<Arc<Tokenizer>>,
    pending: PendingTokens,
    stops: StopMatcher,
    ready: VecDeque<Result<Delta>>,
    counted: Counted,
}

impl Iterator for Deltas {
    type Item = Result<Delta>;

    fn next(&mut self) -> Option<Self::Item> {
        pollster::block_on(self.recv())
    }
}

impl Deltas {
    /// The next piece; `None` after the end. Nothing is lost when the future is dropped.
    pub async fn recv(&mut self) -> Option<Result<Delta>> {
        while self.ready.is_empty()
            && let Some(events) = &mut self.events
        {
            match receive(events, &self.cancel).await {
                Ok(event) => self.take(event),
                Err(error) => self.fail(error),
            }
        }
        self.ready.pop_front()
    }

    /// Counts and times so far; of use after an answer was cancelled.
    pub fn usage(&self) -> Usage {
        self.counted.usage()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Started {
                cached_tokens,
                queue_s,
            } => self.counted.started(cached_tokens, queue_s),
            Event::Token { id, logprobs } => {
                self.counted.token();
                if let Some(logprobs) = logprobs
                    && !self.detokenizer.skips(id)
                {
                    self.pending.push(ScoredToken { id, logprobs });
                }
                let piece = self.detokenizer.push(id);
                self.push_text(&piece);
                if self.stops.found().is_some() {
                    self.end(Ok(Delta::Finish {
                        reason: FinishReason::Stop,
                        usage: self.counted.usage(),
                    }));
                }
            }
            Event::Done { reason, usage } => {
                self.flush();
                let reason = match self.stops.found() {
                    Some(_) => FinishReason::Stop,
                    None => reason,
                };
                self.end(Ok(Delta::Finish { reason, usage }));
            }
            Event::Failed(error) => self.fail(error),
        }
    }

    /// What was held back is part of the answer, whatever ended it.
    fn fail(&mut self, error: Error) {
        self.flush();
        self.end(Err(error));
    }

    fn flush(&mut self) {
        let rest = self.detokenizer.finish();
        self.push_text(&rest);
        let held = self.stops.finish().text;
        self.content(held);
    }

    fn push_text(&mut self, piece: &str) {
        if !piece.is_empty() {
            self.pending.decoded(piece.len());
            let text = self.stops.push(piece).text;
            self.content(text);
        }
    }

    fn content(&mut self, text: String) {
        if !text.is_empty() {
            let tokens = self.pending.give(text.len());
            self.ready.push_back(Ok(Delta::Content { text, tokens }));
        }
    }

    fn end(&mut self, last: Result<Delta>) {
        self.ready.push_back(last);
        self.events = None;
    }
}

/// The next event. Being cancelled is an error at once, however long the engine's step takes.
async fn receive(events: &mut Events, cancel: &Cancel) -> Result<Event> {
    let stopped = || Error::cancelled("the answer was stopped");
    tokio::select! {
        biased;
        () = cancel.cancelled() => Err(stopped()),
        event = events.recv() => match event {
            Some(event) => Ok(event),
            // The engine may have seen it first.
            None if cancel.is_cancelled() => Err(stopped()),
            None => Err(Error::internal(
                "the model's worker ended in the middle of an answer",
            )),
        },
    }
}

/// Counts kept here, for answers that end without the engine saying so.
struct Counted {
    prompt_tokens: usize,
    cached_tokens: usize,
    queue_s: f64,
    completion_tokens: usize,
    begin: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Counted {
    fn new(prompt_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            cached_tokens: 0,
            queue_s: 0.0,
            completion_tokens: 0,
            begin: Instant::now(),
            first: None,
            last: None,
        }
    }

    fn started(&mut self, cached_tokens: usize, queue_s: f64) {
        self.cached_tokens = cached_tokens;
        self.queue_s = queue_s;
    }

    fn token(&mut self) {
        let now = Instant::now();
        self.completion_tokens += 1;
        self.first.get_or_insert(now);
        self.last = Some(now);
    }

    fn usage(&self) -> Usage {
        let between = |from: Instant, to: Option<Instant>| {
            to.map_or(0.0, |to| to.duration_since(from).as_secs_f64())
        };
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.completion_tokens,
            prefill_s: (between(self.begin, self.first) - self.queue_s).max(0.0),
            queue_s: self.queue_s,
            decode_s: self.first.map_or(0.0, |first| between(first, self.last)),
        }
    }
}

/// A whole answer: the fold of its deltas.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The text.
    pub content: String,
    /// Its tokens, when log-probabilities were asked for.
    pub tokens: Vec<ScoredToken>,
    /// Why it ended.
    pub reason: FinishReason,
    /// Counts and times.
    pub usage: Usage,
}

impl Answer {
    /// Waits for the end.
    ///
    /// # Errors
    /// The error that the answer ended with.
    pub fn collect(deltas: impl Iterator<Item = Result<Delta>>) -> Result<Self> {
        let mut partial = PartialAnswer::default();
        for delta in deltas {
            if let Some(answer) = partial.push(delta?) {
                return Ok(answer);
            }
        }
        Err(Error::internal("an answer ended without saying why"))
    }
}

/// An answer as far as its deltas have come.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PartialAnswer {
    content: String,
    tokens: Vec<ScoredToken>,
}

impl PartialAnswer {
    /// Adds the next delta; the last one gives the answer, and nothing may follow.
    pub fn push(&mut self, delta: Delta) -> Option<Answer> {
        match delta {
            Delta::Content { text, tokens } => {
                self.content.push_str(&text);
                self.tokens.extend(tokens);
                None
            }
            Delta::Finish { reason, usage } => {
                let Self { content, tokens } = std::mem::take(self);
                Some(Answer {
                    content,
                    tokens,
                    reason,
                    usage,
                })
            }
        }
    }
}
