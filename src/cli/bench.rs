//! `oxydllm bench`.

use std::process::ExitCode;

use super::Printer;
use super::args::BenchArgs;
use crate::error::{Error, Result};

/// Runs the command.
///
/// # Errors
/// `Unsupported`: the engine is not part of this build.
pub fn execute(_args: &BenchArgs, _printer: &Printer) -> Result<ExitCode> {
    Err(Error::unsupported(
        "`bench` needs the engine, which this build does not have",
    ))
}
