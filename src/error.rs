//! The one error type: a kind that decides exit code and HTTP status, a message for people, an optional hint.
//!
//! A message says what was attempted, what was found and what was expected, with the tensor, file or field in backticks.
//! Nobody reads message text to decide anything: match on [`ErrorKind`].

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// What went wrong, as far as a program needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A model, file, tensor or tokenizer that was asked for does not exist.
    NotFound,
    /// Input that is wrong: a file that lies, a field out of range, a prompt that does not fit.
    Invalid,
    /// A prompt that leaves no room for an answer in the model's context.
    ContextLength,
    /// Input that may be right but that this build does not handle: an architecture, a format, a feature.
    Unsupported,
    /// It does not fit into the memory there is.
    OutOfMemory,
    /// Too much work is waiting; try again later.
    Overloaded,
    /// The model or the server is being shut down.
    Unavailable,
    /// The operating system or the network failed.
    Io,
    /// The request was cancelled by whoever made it.
    Cancelled,
    /// A defect of this program, or a non-finite number where none may be.
    Internal,
}

/// An error with its kind, its message, what caused it and what to do about it. Clones share the cause: everybody who
/// waits for the same work gets the same error.
#[derive(Debug, Clone, thiserror::Error)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    hint: Option<String>,
    #[source]
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {$(
        $(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        }
    )*};
}

impl Error {
    /// An error of `kind` that says `message` (no full stop, literals in backticks).
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
            source: None,
        }
    }

    constructors! {
        /// Something that was asked for by name does not exist.
        not_found => NotFound,
        /// Input is wrong.
        invalid => Invalid,
        /// A prompt leaves no room for an answer.
        context_length => ContextLength,
        /// The model or the server is being shut down.
        unavailable => Unavailable,
        /// Input is beyond what this build handles.
        unsupported => Unsupported,
        /// It does not fit into memory.
        out_of_memory => OutOfMemory,
        /// Too much work is waiting.
        overloaded => Overloaded,
        /// The request was cancelled.
        cancelled => Cancelled,
        /// A defect of this program.
        internal => Internal,
    }

    /// A failed file or network operation: `attempt` is what was tried ("read"), `path` on what.
    pub fn io(attempt: &str, path: &Path, source: std::io::Error) -> Self {
        let kind = if source.kind() == std::io::ErrorKind::NotFound {
            ErrorKind::NotFound
        } else {
            ErrorKind::Io
        };
        Self {
            kind,
            message: format!("cannot {attempt} `{}`", path.display()),
            hint: None,
            source: Some(Arc::new(source)),
        }
    }

    /// Adds what to do about it; shown on a `hint:` line of its own.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// Puts `attempt` before the message: "attempt: message". Kind, hint and cause stay.
    #[must_use]
    pub fn context(mut self, attempt: impl fmt::Display) -> Self {
        self.message = format!("{attempt}: {}", self.message);
        self
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What to do about it, if anything can be said.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Message and causes as one line: "what failed: why: why".
    pub fn chain(&self) -> String {
        let mut text = self.message.clone();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }

    /// The exit code of a command that ends with this error.
    pub fn exit_code(&self) -> u8 {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chain_names_every_cause_and_keeps_the_hint() {
        let io = std::io::Error::other("disk on fire");
        let error = Error::io("read", Path::new("/x/y"), io)
            .context("cannot load `m`")
            .with_hint("buy a new disk");
        assert_eq!(
            error.chain(),
            "cannot load `m`: cannot read `/x/y`: disk on fire"
        );
        assert_eq!(error.hint(), Some("buy a new disk"));
        assert_eq!(error.kind(), ErrorKind::Io);
    }

    #[test]
    fn a_clone_says_all_that_the_error_said() {
        let io = std::io::Error::from(std::io::ErrorKind::NotFound);
        let error = Error::io("read", Path::new("/x"), io).with_hint("look elsewhere");
        let clone = error.clone();
        assert_eq!(
            (clone.chain(), clone.kind(), clone.hint()),
            (error.chain(), ErrorKind::NotFound, Some("look elsewhere"))
        );
    }
}
