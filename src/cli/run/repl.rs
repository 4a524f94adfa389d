//! The chat: read a message, answer, again.

use std::process::ExitCode;

use super::INTERRUPTED;
use super::answer::{Outcome, Session};
use super::commands::{self, Command};
use super::editor::{Editor, Input};
use crate::env;
use crate::error::{Error, Result};

const PROMPT: &str = ">>> ";

/// Chats until the person leaves.
pub(super) fn run(mut session: Session<'_>) -> Result<ExitCode> {
    if !session.can_chat() {
        return Err(Error::unsupported(format!(
            "`{}` has no chat template: it continues texts and cannot chat",
            session.args.model
        ))
        .with_hint(format!(
            "give it a text to continue: `oxydllm run {} \"Once upon a time\"`",
            session.args.model
        )));
    }
    let history = env::home_dir().join(".oxydllm").join("history");
    let mut editor = Editor::new(history.clone(), session.printer.data_is_terminal())?;
    if !editor.has_history() {
        session.printer.warn(format_args!(
            "`{}` cannot be used: messages will not be remembered",
            history.display()
        ));
    }
    session
        .printer
        .talk("Type a message; `/help` lists the commands, Ctrl-D leaves");
    let mut interrupted = false;
    loop {
        let input = {
            let _guard = session.interrupts.ignore();
            editor.read(PROMPT)?
        };
        let line = match input {
            Input::End => return Ok(ExitCode::SUCCESS),
            Input::Interrupt if interrupted => return Ok(ExitCode::from(INTERRUPTED)),
            Input::Interrupt => {
                interrupted = true;
                session.printer.talk("Ctrl-C again leaves");
                continue;
            }
            Input::Line(line) => line,
        };
        interrupted = false;
        if !handle(&mut session, &line)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Whether the chat goes on.
fn handle(session: &mut Session<'_>, line: &str) -> Result<bool> {
    match commands::parse(line) {
        _ if line.trim().is_empty() => {}
        None => say(session, line)?,
        Some(Command::Exit) => return Ok(false),
        Some(Command::Help) => session.printer.talk(commands::HELP),
        Some(Command::Clear) => {
            session.conversation.clear();
            session.printer.talk("The conversation is forgotten");
        }
        Some(Command::System("")) => match session.system.as_deref() {
            Some(system) => session
                .printer
                .talk(format_args!("The system message is: {system}")),
            None => session
                .printer
                .talk("No system message is set: the model's own default applies"),
        },
        Some(Command::System(text)) => {
            session.set_system(text);
            session.printer.talk("The system message is replaced");
        }
        Some(Command::Unknown(word)) => {
            session
                .printer
                .warn(format_args!("there is no command `/{word}`"));
            session
                .printer
                .hint("`/help` lists the commands; a space before the `/` sends it as a message");
        }
    }
    Ok(true)
}

/// Answers; an error ends the answer, not the chat.
fn say(session: &mut Session<'_>, message: &str) -> Result<()> {
    match session.answer(message) {
        Ok(Outcome::Answered | Outcome::Stopped) => Ok(()),
        Ok(Outcome::TooLong(error)) => {
            session
                .printer
                .warn(format_args!("{}; the message is dropped", error.chain()));
            if let Some(hint) = error.hint() {
                session.printer.hint(hint);
            }
            Ok(())
        }
        // Nobody reads the answers any more.
        Err(error) if session.printer.is_closed() => Err(error),
        Err(error) => {
            session.printer.error(&error);
            Ok(())
        }
    }
}
