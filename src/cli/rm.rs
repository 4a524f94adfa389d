//! `oxydllm rm`.

use std::process::ExitCode;

use super::Printer;
use super::args::RmArgs;
use super::list::abbreviate;
use crate::env;
use crate::error::{Error, Result};
use crate::store;
use crate::units::format_size;

/// Deletes one model after a question.
///
/// # Errors
/// `NotFound` without an exact match, `Invalid` when a question is due and nobody can be asked, `Io`.
pub fn execute(args: &RmArgs, printer: &Printer) -> Result<ExitCode> {
    let dir = args.models_dir.resolve()?;
    let model = store::resolve_exact(&dir, &args.model)?;
    let removal = store::plan_removal(&dir, &model)?;
    let shown = abbreviate(removal.dir(), &env::home_dir());
    printer.talk(format_args!(
        "Model:     {} ({})",
        model.id,
        format_size(model.size_bytes)
    ));
    printer.talk(format_args!(
        "Directory: {shown}{}",
        if removal.is_whole_folder() {
            ""
        } else {
            " (other variants stay)"
        }
    ));
    if !args.force {
        if !printer.can_ask() {
            return Err(Error::invalid(format!(
                "`{}` was not deleted: there is no terminal to ask on",
                model.id
            ))
            .with_hint("add `--force` to delete without a question"));
        }
        let answer = printer
            .ask("Delete it? [y/N] ")?
            .unwrap_or_default()
            .to_lowercase();
        if answer != "y" && answer != "yes" {
            printer.talk("Aborted, nothing was deleted");
            return Ok(ExitCode::SUCCESS);
        }
    }
    let removed = removal.execute()?;
    let registry = if removed.registry_entry {
        " and its registry entry"
    } else {
        ""
    };
    printer.talk(format_args!("Deleted {}{registry}", model.id));
    Ok(ExitCode::SUCCESS)
}
