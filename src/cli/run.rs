//! `run`: chat in the terminal, or answer one prompt. A thin caller of [`crate::chat`].
//!
//! The answer goes to standard output and everything else to standard error, so that `run` works in a pipe. Read
//! `repl.rs` for the chat, `answer.rs` for what happens between a message and its answer.

mod answer;
mod commands;
mod editor;
mod input;
mod interrupt;
mod repl;
mod stats;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::args::RunArgs;
use super::{Printer, load};
use crate::error::Result;
use crate::host::{self, Model};
use crate::model::plan::Wish;
use answer::{Outcome, Session};
use interrupt::Interrupts;

/// Exit code of a command that was stopped by Ctrl-C: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// A model that is ready, and how long that took.
pub struct Loaded {
    /// The model.
    pub model: Model,
    /// From the first byte read to the model being ready.
    pub load_time: Duration,
}

/// Runs the command.
///
/// # Errors
/// Those of finding, loading and running the model; `Invalid` for an empty prompt.
pub fn execute(args: &RunArgs, printer: &Printer) -> Result<ExitCode> {
    execute_with(args, printer, |args| {
        let located = load::locate(&args.models_dir, &args.model, printer)?;
        let ctx = load::context(&args.device, &args.threads, |text| printer.warn(text))?;
        let wish = Wish {
            context: args.max_context_len()?,
            max_num_seqs: Some(1),
        };
        host::load_model(&located.name(), &located.path, ctx, wish)
    })
}

/// As [`execute`], with `load` to find and load the model.
///
/// # Errors
/// As [`execute`].
pub fn execute_with(
    args: &RunArgs,
    printer: &Printer,
    load: impl FnOnce(&RunArgs) -> Result<Model>,
) -> Result<ExitCode> {
    // Before the model is loaded: whoever sends an empty file learns it at once.
    let prompt = input::prompt(args.prompt.as_deref())?;
    let interrupts = Interrupts::install()?;
    let is_chat = prompt.is_none();
    if is_chat || args.verbose {
        printer.talk(format_args!("Loading `{}`", args.model));
    }
    let begin = Instant::now();
    let loaded = Loaded {
        model: load(args)?,
        load_time: begin.elapsed(),
    };
    if is_chat || args.verbose {
        printer.talk(stats::loaded(&loaded));
    }
    let session = Session::new(args, printer, &loaded, interrupts);
    match prompt {
        Some(prompt) => answer_once(session, &prompt),
        None => repl::run(session),
    }
}

fn answer_once(mut session: Session<'_>, prompt: &str) -> Result<ExitCode> {
    let outcome = if session.can_chat() {
        session.answer(prompt)?
    } else {
        session.complete(prompt)?
    };
    match outcome {
        Outcome::Answered => Ok(ExitCode::SUCCESS),
        Outcome::Stopped => Ok(ExitCode::from(INTERRUPTED)),
        Outcome::TooLong(error) => Err(error),
    }
}
