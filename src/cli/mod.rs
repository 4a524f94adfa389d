//! Commands and words for people: arguments, printing, one file per command.
//!
//! [`args`] is the table of commands and flags, [`Printer`] the only way to the two output streams. A command is a function
//! `execute(&Args, &Printer) -> Result<ExitCode>`; [`main`] turns its error into an `Error:` line, a hint and an exit code.

pub mod args;
mod bench;
mod eval;
mod list;
mod load;
mod printer;
mod progress;
mod pull;
mod rm;
pub mod run;
mod start;
mod usage;
mod version;

use std::process::ExitCode;

pub use printer::Printer;

use crate::env;
use crate::error::Result;
use crate::telemetry;
use args::{Cli, Command};

/// Parses the process's arguments, runs the command and returns the exit code.
pub fn main() -> ExitCode {
    let printer = Printer::from_environment();
    let words: Vec<_> = std::env::args_os().collect();
    let outcome = match usage::parse(&words, &printer) {
        Ok(Some(cli)) => execute(&cli, &printer),
        Ok(None) => Ok(ExitCode::SUCCESS),
        Err(usage::Refused) => return ExitCode::FAILURE,
    };
    match outcome {
        Ok(code) => code,
        // Whoever read the output has seen enough.
        Err(_) if printer.is_closed() => ExitCode::SUCCESS,
        Err(error) => {
            printer.error(&error);
            ExitCode::from(error.exit_code())
        }
    }
}

fn execute(cli: &Cli, printer: &Printer) -> Result<ExitCode> {
    env::check_all()?;
    telemetry::init(match &cli.command {
        Command::Start(_) => telemetry::SERVER_FILTER,
        _ => telemetry::INTERACTIVE_FILTER,
    })?;
    match &cli.command {
        Command::Pull(args) => pull::execute(args, printer),
        Command::List(args) => list::execute(args, printer),
        Command::Rm(args) => rm::execute(args, printer),
        Command::Run(args) => run::execute(args, printer),
        Command::Start(args) => start::execute(args, printer),
        Command::Bench(args) => bench::execute(args, printer),
        Command::Eval(args) => eval::execute(args, printer),
        Command::Version => {
            printer.data(format_args!("oxydllm {}", version::text()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
