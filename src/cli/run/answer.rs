//! From a message to its answer on the screen.

use std::hash::{BuildHasher, RandomState};

use serde_json::{Map, Value};

use super::interrupt::Interrupts;
use super::{Loaded, stats};
use crate::chat::{self, Conversation, Delta, Deltas, Fitted, Generation, Message, Room};
use crate::cli::Printer;
use crate::cli::args::RunArgs;
use crate::engine::{Cancel, FinishReason, Usage};
use crate::error::{Error, ErrorKind, Result};
use crate::host::Model;

/// Tokens that are kept free for an answer, when the context is large enough.
const ANSWER_ROOM: usize = 512;

/// How an answer ended that did not fail.
#[derive(Debug)]
pub(super) enum Outcome {
    /// To its end, or to a limit that was warned of.
    Answered,
    /// By Ctrl-C.
    Stopped,
    /// It never began: the message does not fit into the context.
    TooLong(Error),
}

/// One loaded model and the conversation with it.
pub(super) struct Session<'a> {
    pub(super) args: &'a RunArgs,
    pub(super) printer: &'a Printer,
    pub(super) interrupts: Interrupts,
    pub(super) conversation: Conversation,
    pub(super) system: Option<String>,
    loaded: &'a Loaded,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        args: &'a RunArgs,
        printer: &'a Printer,
        loaded: &'a Loaded,
        interrupts: Interrupts,
    ) -> Self {
        let system = args.system.clone();
        // Without one of the user's, the template says what the model was trained with.
        let first = system.clone().filter(|text| !text.is_empty());
        Self {
            args,
            printer,
            interrupts,
            conversation: Conversation::new(first),
            system,
            loaded,
        }
    }

    /// Whether the model has a chat template.
    pub(super) fn can_chat(&self) -> bool {
        self.model().has_template()
    }

    pub(super) fn set_system(&mut self, text: &str) {
        self.system = Some(text.to_owned());
        self.conversation.set_system(Some(text.to_owned()));
    }

    /// Answers `message` and remembers both. After an error the conversation is what it was before.
    pub(super) fn answer(&mut self, message: &str) -> Result<Outcome> {
        self.conversation.push(Message::user(message));
        match self.answer_newest() {
            Ok((outcome, text)) => {
                if text.is_empty() {
                    self.conversation.pop_unanswered();
                } else {
                    self.conversation.push(Message::assistant(text));
                }
                Ok(outcome)
            }
            Err(error) => {
                self.conversation.pop_unanswered();
                Err(error)
            }
        }
    }

    /// Continues `text` without a template, which is all that a base model can do.
    pub(super) fn complete(&mut self, text: &str) -> Result<Outcome> {
        let name = &self.args.model;
        if self.args.system.is_some() {
            return Err(Error::invalid(format!(
                "`{name}` has no chat template, so `--system` has no meaning for it"
            )));
        }
        self.printer.warn(format_args!(
            "`{name}` has no chat template: the prompt is continued as plain text"
        ));
        let generation = self.generation();
        let cancel = generation.cancel.clone();
        let deltas = chat::complete(self.model(), text, &generation)?;
        Ok(self.show(deltas, cancel)?.0)
    }

    fn answer_newest(&mut self) -> Result<(Outcome, String)> {
        let context = self.model().engine().info().max_context;
        let wanted = self
            .args
            .max_tokens
            .map_or(ANSWER_ROOM, |n| n.get().min(ANSWER_ROOM));
        let room = Room {
            comfortable: context.saturating_sub(wanted.min(context / 4).max(1)),
            most: context.saturating_sub(1),
        };
        let variables = Map::from_iter([("enable_thinking".to_owned(), Value::Bool(false))]);
        let model = &self.loaded.model;
        let fitted = self
            .conversation
            .fit(room, |messages| chat::prompt(model, messages, &variables))?;
        let tokens = match fitted {
            Fitted::Prompt { tokens, forgotten } => {
                if forgotten > 0 {
                    self.printer.warn(format_args!(
                        "the context of {context} tokens is full: the oldest {forgotten} messages are forgotten"
                    ));
                }
                tokens
            }
            Fitted::TooLong { tokens } => {
                let error = Error::invalid(format!(
                    "the message makes a prompt of {tokens} tokens, the context holds {context}"
                ))
                .with_hint("shorten it, or raise `--max-context-len` if the model allows more");
                return Ok((Outcome::TooLong(error), String::new()));
            }
        };
        let generation = self.generation();
        let cancel = generation.cancel.clone();
        let deltas = chat::start(model, tokens, &generation)?;
        self.show(deltas, cancel)
    }

    /// Prints the answer as it comes; its text, cut short if it was stopped.
    fn show(&self, mut deltas: Deltas, cancel: Cancel) -> Result<(Outcome, String)> {
        let _guard = self.interrupts.stop(cancel.clone());
        let mut text = String::new();
        let end = loop {
            match deltas.next() {
                Some(Ok(Delta::Content { text: piece, .. })) => {
                    self.print(&piece)?;
                    text.push_str(&piece);
                }
                Some(Ok(Delta::Finish { reason, usage })) => break Ok((reason, usage)),
                Some(Err(error)) => break Err(error),
                None => break Err(Error::internal("an answer ended without saying why")),
            }
        };
        if !text.ends_with('\n') {
            self.printer.data("")?;
        }
        match end {
            Ok((reason, usage)) => {
                self.report(&usage);
                if reason == FinishReason::Length {
                    self.warn_cut_short(&usage);
                }
                Ok((Outcome::Answered, text))
            }
            Err(error) if error.kind() == ErrorKind::Cancelled && cancel.is_cancelled() => {
                self.report(&deltas.usage());
                Ok((Outcome::Stopped, text))
            }
            Err(error) => Err(error),
        }
    }

    fn print(&self, piece: &str) -> Result<()> {
        if self.printer.data_is_terminal() {
            self.printer.data_piece(visible(piece))
        } else {
            self.printer.data_piece(piece)
        }
    }

    fn report(&self, usage: &Usage) {
        if self.args.verbose {
            let info = self.model().engine().info();
            self.printer.talk(stats::answered(usage, info));
        }
    }

    fn warn_cut_short(&self, usage: &Usage) {
        match self.args.max_tokens {
            Some(most) if usage.completion_tokens >= most.get() => self.printer.warn(format_args!(
                "the answer was cut off at `--max-tokens` {most}"
            )),
            _ => {
                let context = self.model().engine().info().max_context;
                self.printer.warn(format_args!(
                    "the answer was cut off: the context of {context} tokens is full"
                ));
            }
        }
    }

    fn model(&self) -> &'a Model {
        &self.loaded.model
    }

    /// Each answer gets a cancel handle of its own, and a seed of its own unless one was given.
    fn generation(&self) -> Generation {
        Generation {
            sampling: self.args.sampling(RandomState::new().hash_one(())),
            max_tokens: self.args.max_tokens.map(std::num::NonZeroUsize::get),
            stop: Vec::new(),
            cancel: Cancel::default(),
        }
    }
}

/// The text with control characters as their pictures: an answer must not steer the terminal.
fn visible(text: &str) -> String {
    let picture = |c: char| match c {
        '\n' | '\t' => c,
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)).expect("control pictures"),
        '\x7f' => '\u{2421}',
        '\u{80}'..='\u{9f}' => char::REPLACEMENT_CHARACTER,
        _ => c,
    };
    text.chars().map(picture).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_cannot_steer_the_terminal() {
        assert_eq!(
            visible("a\x1b[31m\tb\nc\r\u{9b}2J"),
            "a␛[31m\tb\nc␍\u{fffd}2J"
        );
        assert_eq!(visible("👩‍👧 é"), "👩‍👧 é");
    }
}
