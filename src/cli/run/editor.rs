//! The line editor and its history file.

use std::path::{Path, PathBuf};

use rustyline::config::Behavior;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Cmd, Config, EventHandler, KeyCode, KeyEvent, Modifiers};

use crate::error::{Error, Result};

/// Entries that the history file keeps.
const HISTORY_LEN: usize = 2000;

/// What came from the keyboard.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A message or command; may have several lines.
    Line(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, or the terminal is gone.
    End,
}

/// Reads messages from the terminal.
pub(super) struct Editor {
    inner: rustyline::Editor<(), FileHistory>,
    history: Option<PathBuf>,
}

impl Editor {
    /// An editor with the history of earlier chats. `shares_output`: standard output is the terminal.
    pub(super) fn new(history: PathBuf, shares_output: bool) -> Result<Self> {
        let config = Config::builder()
            .max_history_size(HISTORY_LEN)
            .map_err(failed)?;
        let config = config.history_ignore_dups(true).map_err(failed)?;
        // When answers go elsewhere, the prompt and its escape codes must not go with them.
        let behavior = if shares_output {
            Behavior::Stdio
        } else {
            Behavior::PreferTerm
        };
        let config = config.behavior(behavior);
        let mut inner =
            rustyline::Editor::<(), FileHistory>::with_config(config.build()).map_err(failed)?;
        inner.bind_sequence(
            KeyEvent(KeyCode::Enter, Modifiers::ALT),
            EventHandler::Simple(Cmd::Newline),
        );
        let mut editor = Self {
            inner,
            history: None,
        };
        editor.open_history(history);
        Ok(editor)
    }

    /// Whether messages are remembered for the next chat.
    pub(super) fn has_history(&self) -> bool {
        self.history.is_some()
    }

    /// Shows `prompt` and reads a message.
    pub(super) fn read(&mut self, prompt: &str) -> Result<Input> {
        match self.inner.readline(prompt) {
            Ok(line) => {
                self.remember(&line);
                Ok(Input::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupt),
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(cause) => Err(failed(cause)),
        }
    }

    /// Creates the folder when needed. Chatting works without a history, so nothing here is an error.
    fn open_history(&mut self, path: PathBuf) {
        let folder = path.parent().unwrap_or(Path::new("."));
        let usable = std::fs::create_dir_all(folder).is_ok()
            && match self.inner.load_history(&path) {
                Ok(()) => true,
                Err(ReadlineError::Io(cause)) => cause.kind() == std::io::ErrorKind::NotFound,
                Err(_) => false,
            };
        self.history = usable.then_some(path);
    }

    /// Writes at once: a chat that is killed is remembered too, and two at a time do not overwrite each other.
    fn remember(&mut self, line: &str) {
        if line.trim().is_empty() || !matches!(self.inner.add_history_entry(line), Ok(true)) {
            return;
        }
        if let Some(path) = &self.history
            && self.inner.append_history(path).is_err()
        {
            self.history = None;
        }
    }
}

fn failed(cause: ReadlineError) -> Error {
    Error::internal("cannot read from the terminal").with_source(cause)
}
