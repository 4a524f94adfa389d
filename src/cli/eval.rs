//! `oxydllm eval`.

use std::process::ExitCode;

use super::Printer;
use super::args::EvalArgs;
use crate::error::{Error, Result};

/// Runs the command.
///
/// # Errors
/// `Unsupported`: the engine is not part of this build.
pub fn execute(_args: &EvalArgs, _printer: &Printer) -> Result<ExitCode> {
    Err(Error::unsupported(
        "`eval` needs the engine, which this build does not have",
    ))
}
