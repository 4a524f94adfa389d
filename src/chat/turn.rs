//! One answer: tokens go to the engine, events come back as text.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::model::ChatModel;
use super::request::{ChatRequest, Generation};
use crate::engine::{Cancel, Event, FinishReason, Request, Usage};
use crate::error::{Error, Result};
use crate::text::{Detokenizer, StopMatcher};

/// How long a cancelled answer may go on before it is noticed, should the engine be in a long step.
const CANCEL_POLL: Duration = Duration::from_millis(20);

/// A piece of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Delta {
    /// Text; never empty, never part of a character or of a stop text.
    Content(String),
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
/// `Invalid` when the template refuses the messages, a parameter is out of range or the prompt does not fit;
/// `Unsupported` when the model has no chat template; `Overloaded` when too much is waiting.
pub fn turn<'m>(model: &'m ChatModel, request: &ChatRequest) -> Result<Deltas<'m>> {
    let tokens = model.prompt(&request.messages, &request.variables)?;
    start(model, tokens, &request.generation)
}

/// Continues a plain text, without a template: for models that only complete.
///
/// # Errors
/// As [`turn`], but for the template.
pub fn complete<'m>(
    model: &'m ChatModel,
    text: &str,
    generation: &Generation,
) -> Result<Deltas<'m>> {
    start(model, model.plain_prompt(text)?, generation)
}

/// Continues `tokens`, a prompt from [`ChatModel::prompt`] or [`ChatModel::plain_prompt`].
///
/// # Errors
/// As [`complete`].
pub fn start<'m>(
    model: &'m ChatModel,
    tokens: Vec<u32>,
    generation: &Generation,
) -> Result<Deltas<'m>> {
    let info = model.engine().info();
    generation.sampling.check(info.vocab_size)?;
    if generation.max_tokens == Some(0) {
        return Err(Error::invalid("`max_tokens` must be at least 1, got 0"));
    }
    let stops = generation.stop.iter().filter(|text| !text.is_empty());
    let stops = StopMatcher::new(stops.cloned().collect())?;
    let room = info.max_context.saturating_sub(tokens.len());
    let prompt_tokens = tokens.len();
    let events = model.engine().submit(Request {
        tokens,
        sampling: generation.sampling.clone(),
        max_tokens: generation.max_tokens.unwrap_or(room).min(room).max(1),
        stop_tokens: Arc::clone(model.stop_tokens()),
        cancel: generation.cancel.clone(),
    })?;
    Ok(Deltas {
        events: Some(events),
        cancel: generation.cancel.clone(),
        detokenizer: Detokenizer::new(model.tokenizer()),
        stops,
        ready: VecDeque::new(),
        counted: Counted::new(prompt_tokens),
    })
}

/// The pieces of one answer, in order: any number of [`Delta::Content`], then one [`Delta::Finish`] or an error.
///
/// Cancelling gives the text that was still held back, then an error of kind `Cancelled`. Dropping it ends the work as well.
pub struct Deltas<'m> {
    /// `None` after the end: the engine knows nothing of stop texts and goes on as long as somebody listens.
    events: Option<Receiver<Event>>,
    cancel: Cancel,
    detokenizer: Detokenizer<'m>,
    stops: StopMatcher,
    ready: VecDeque<Result<Delta>>,
    counted: Counted,
}

impl Iterator for Deltas<'_> {
    type Item = Result<Delta>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.ready.is_empty()
            && let Some(events) = &self.events
        {
            match receive(events, &self.cancel) {
                Ok(event) => self.take(event),
                Err(error) => self.fail(error),
            }
        }
        self.ready.pop_front()
    }
}

impl Deltas<'_> {
    /// Counts and times so far; of use after an answer was cancelled.
    pub fn usage(&self) -> Usage {
        self.counted.usage()
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Token { id, .. } => {
                self.counted.token();
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
            let text = self.stops.push(piece).text;
            self.content(text);
        }
    }

    fn content(&mut self, text: String) {
        if !text.is_empty() {
            self.ready.push_back(Ok(Delta::Content(text)));
        }
    }

    fn end(&mut self, last: Result<Delta>) {
        self.ready.push_back(last);
        self.events = None;
    }
}

/// The next event. Being cancelled is an error at once, however long the engine's step takes.
fn receive(events: &Receiver<Event>, cancel: &Cancel) -> Result<Event> {
    loop {
        if cancel.is_cancelled() {
            return Err(Error::cancelled("the answer was stopped"));
        }
        match events.recv_timeout(CANCEL_POLL) {
            Ok(event) => return Ok(event),
            Err(RecvTimeoutError::Timeout) => {}
            // The engine may have seen it first.
            Err(RecvTimeoutError::Disconnected) if cancel.is_cancelled() => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Error::internal(
                    "the model's worker ended in the middle of an answer",
                ));
            }
        }
    }
}

/// Counts kept here, for answers that end without the engine saying so.
struct Counted {
    prompt_tokens: usize,
    completion_tokens: usize,
    begin: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Counted {
    fn new(prompt_tokens: usize) -> Self {
        Self {
            prompt_tokens,
            completion_tokens: 0,
            begin: Instant::now(),
            first: None,
            last: None,
        }
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
            cached_tokens: 0,
            completion_tokens: self.completion_tokens,
            prefill_s: between(self.begin, self.first),
            decode_s: self.first.map_or(0.0, |first| between(first, self.last)),
        }
    }
}

/// A whole answer: the fold of its deltas.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The text.
    pub content: String,
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
        let mut content = String::new();
        for delta in deltas {
            match delta? {
                Delta::Content(text) => content.push_str(&text),
                Delta::Finish { reason, usage } => {
                    return Ok(Self {
                        content,
                        reason,
                        usage,
                    });
                }
            }
        }
        Err(Error::internal("an answer ended without saying why"))
    }
}
