//! Commands and words for people: arguments, printing, one file per command.

use std::process::ExitCode;

/// Parses the process's arguments, runs the command and returns the exit code.
pub fn main() -> ExitCode {
    ExitCode::FAILURE
}
