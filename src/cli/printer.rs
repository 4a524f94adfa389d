//! [`Printer`]: the only place that writes to standard output and standard error.
//!
//! Data goes to standard output, talk to standard error. A reader that went away (`oxydllm list | head -1`) ends the
//! command quietly: the write returns a `Cancelled` error and [`Printer::is_closed`] tells `main` to say nothing.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::env;
use crate::error::{Error, Result};

/// Writes for people (standard error) and for programs (standard output).
#[derive(Debug, Default)]
pub struct Printer {
    quiet: bool,
    color: bool,
    talk_is_terminal: bool,
    data_is_terminal: bool,
    closed: AtomicBool,
}

impl Printer {
    /// A printer for this process: colours only on a terminal and without `NO_COLOR`.
    pub fn from_environment() -> Self {
        let talk_is_terminal = io::stderr().is_terminal();
        Self {
            quiet: false,
            color: talk_is_terminal && matches!(env::NO_COLOR.text(), Ok(None)),
            talk_is_terminal,
            data_is_terminal: io::stdout().is_terminal(),
            closed: AtomicBool::new(false),
        }
    }

    /// The same without [`Printer::talk`]; warnings, errors and data remain.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Whether talk is coloured.
    pub fn has_color(&self) -> bool {
        self.color
    }

    /// Whether standard error is a terminal (so that lines may be redrawn).
    pub fn talk_is_terminal(&self) -> bool {
        self.talk_is_terminal
    }

    /// Whether standard output is a terminal.
    pub fn data_is_terminal(&self) -> bool {
        self.data_is_terminal
    }

    /// Whether a question can be asked: somebody reads the talk and types the answer.
    pub fn can_ask(&self) -> bool {
        self.talk_is_terminal && io::stdin().is_terminal()
    }

    /// Whether the reader of standard output went away.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// One line of data.
    ///
    /// # Errors
    /// `Cancelled` when the reader went away, `Io` when writing fails otherwise (a full disk).
    pub fn data(&self, line: impl Display) -> Result<()> {
        self.data_piece(format_args!("{line}\n"))
    }

    /// A piece of data without a line end, visible at once (streamed text).
    ///
    /// # Errors
    /// As [`Printer::data`].
    pub fn data_piece(&self, piece: impl Display) -> Result<()> {
        let mut out = io::stdout().lock();
        write!(out, "{piece}")
            .and_then(|()| out.flush())
            .map_err(|cause| {
                if cause.kind() == ErrorKind::BrokenPipe {
                    self.closed.store(true, Ordering::Relaxed);
                    Error::cancelled("the reader of standard output went away")
                } else {
                    Error::io("write to", Path::new("standard output"), cause)
                }
            })
    }

    /// One line of talk, such as what is being done.
    pub fn talk(&self, line: impl Display) {
        if !self.quiet {
            self.talk_piece(format_args!("{line}\n"));
        }
    }

    /// A piece of talk without a line end (a prompt).
    pub fn talk_piece(&self, piece: impl Display) {
        // Nobody can be told that standard error fails.
        let mut out = io::stderr().lock();
        let _ = write!(out, "{piece}").and_then(|()| out.flush());
    }

    /// A warning line.
    pub fn warn(&self, line: impl Display) {
        let label = self.paint("33", "warning:");
        self.talk_piece(format_args!("{label} {line}\n"));
    }

    /// An error with all its causes on one line, then its hint.
    pub fn error(&self, error: &Error) {
        self.error_line(error.chain());
        if let Some(hint) = error.hint() {
            self.hint(hint);
        }
    }

    /// One `Error:` line.
    pub fn error_line(&self, line: impl Display) {
        let label = self.paint("31", "Error:");
        self.talk_piece(format_args!("{label} {line}\n"));
    }

    /// One `hint:` line.
    pub fn hint(&self, line: impl Display) {
        let label = self.paint("36", "hint:");
        self.talk_piece(format_args!("{label} {line}\n"));
    }

    /// Asks on standard error and reads one line from standard input; `None` at the end of input.
    ///
    /// # Errors
    /// `Io` when standard input cannot be read.
    pub fn ask(&self, question: impl Display) -> Result<Option<String>> {
        self.talk_piece(question);
        let mut answer = String::new();
        match io::stdin().read_line(&mut answer) {
            Ok(0) => {
                self.talk_piece("\n");
                Ok(None)
            }
            Ok(_) => Ok(Some(answer.trim().to_owned())),
            Err(cause) => Err(Error::io("read", Path::new("standard input"), cause)),
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.color {
            format!("\x1b[1;{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}
