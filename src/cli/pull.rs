//! `oxydllm pull`: from the hub, or from a file or folder of this machine.

use std::path::Path;
use std::process::ExitCode;

use super::Printer;
use super::args::PullArgs;
use super::list::abbreviate;
use crate::env;
use crate::error::{Error, Result};
use crate::store;
use crate::units::format_size;

/// Adds a model to the local ones.
///
/// # Errors
/// Whatever goes wrong on the way; what was downloaded stays for the next attempt.
pub fn execute(args: &PullArgs, printer: &Printer) -> Result<ExitCode> {
    if is_local(&args.model) {
        return add(args, printer);
    }
    Err(Error::unsupported(
        "pulling from the hub is not part of this build",
    ))
}

/// A path rather than a repository: it says so itself, or it is an existing GGUF file.
fn is_local(text: &str) -> bool {
    let path = Path::new(text);
    path.is_absolute()
        || text == "."
        || text == ".."
        || text.starts_with("./")
        || text.starts_with("../")
        || (text.to_lowercase().ends_with(".gguf") && path.is_file())
}

fn add(args: &PullArgs, printer: &Printer) -> Result<ExitCode> {
    if let Some(variant) = &args.variant {
        return Err(Error::invalid(format!(
            "`--variant {variant}` is for repositories of the hub, `{}` is local",
            args.model
        )));
    }
    let dir = args.models_dir.resolve()?;
    let added = store::add_local(
        &dir,
        Path::new(&args.model),
        args.name.as_deref(),
        args.force,
    )?;
    let how = if added.copied_bytes == 0 {
        "linked".to_owned()
    } else {
        format!("{} copied", format_size(added.copied_bytes))
    };
    printer.talk(format_args!(
        "Saved in {} ({how})",
        abbreviate(&added.dir, &env::home_dir())
    ));
    for id in &added.ids {
        printer.talk(format_args!("Chat with it: oxydllm run {id}"));
    }
    Ok(ExitCode::SUCCESS)
}
