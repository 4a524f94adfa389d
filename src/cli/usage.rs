//! From words to [`Cli`]: help and version on standard output, mistakes as one `Error:` line and the usage text.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use super::Printer;
use super::args::Cli;
use crate::error::Result;

/// The words were wrong, and that has been said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// Parses `words` (program name first). `None`: help or version was asked for and printed.
pub fn parse(words: &[OsString], printer: &Printer) -> Result<Option<Cli>, Refused> {
    let error = match Cli::try_parse_from(words) {
        Ok(cli) => return Ok(Some(cli)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = render(
                &error.render(),
                printer.data_is_terminal() && printer.has_color(),
            );
            // A closed reader is no failure of a help text.
            let _ = printer.data_piece(text);
            Ok(None)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            printer.talk_piece(render(&error.render(), printer.has_color()));
            Err(Refused)
        }
        _ => {
            printer.error_line(one_line(&error));
            for tip in tips(&error) {
                printer.hint(tip);
            }
            printer.talk_piece(format_args!(
                "\n{}",
                render(&command_of(words).render_help(), printer.has_color())
            ));
            Err(Refused)
        }
    }
}

fn render(text: &clap::builder::StyledStr, use_color: bool) -> String {
    if use_color {
        text.ansi().to_string()
    } else {
        text.to_string()
    }
}

/// clap's message without its label, its tips and its usage part, on one line.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand)
    {
        return format!("unknown command `{name}`");
    }
    let text = error.render().to_string();
    let head = text.split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = head
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let message = lines.join(" ");
    message
        .strip_prefix("error: ")
        .unwrap_or(&message)
        .to_owned()
}

fn tips(error: &clap::Error) -> Vec<String> {
    let text = error.render().to_string();
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("tip: "))
        .map(str::to_owned)
        .collect()
}

/// The command that the words name, else the whole program; its help is the usage text of the mistake.
fn command_of(words: &[OsString]) -> clap::Command {
    let mut root = Cli::command();
    root.build();
    let named = words
        .iter()
        .skip(1)
        .filter_map(|word| word.to_str())
        .find(|word| !word.starts_with('-'));
    match named.and_then(|name| root.find_subcommand(name)) {
        Some(command) => command.clone(),
        None => root,
    }
}
