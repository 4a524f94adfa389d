//! `oxydllm run`.

use std::process::ExitCode;

use super::Printer;
use super::args::RunArgs;
use crate::error::{Error, Result};

/// Runs the command.
///
/// # Errors
/// `Unsupported`: the engine is not part of this build.
pub fn execute(_args: &RunArgs, _printer: &Printer) -> Result<ExitCode> {
    Err(Error::unsupported(
        "`run` needs the engine, which this build does not have",
    ))
}
