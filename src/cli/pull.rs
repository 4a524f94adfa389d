//! `oxydllm pull`: from the hub, or from a file or folder of this machine.

use std::path::Path;
use std::process::ExitCode;

use super::Printer;
use super::args::PullArgs;
use super::list::abbreviate;
use super::progress::PullProgress;
use crate::env;
use crate::error::{Error, Result};
use crate::hub::{
    Checked, Contents, Folder, Hub, Listing, Variant, check_config, check_gguf, choose_default,
    find_variant,
};
use crate::model::ModelKind;
use crate::store::{self, Lock, LockOutcome, ModelName};
use crate::units::format_size;

/// Adds a model to the local ones.
///
/// # Errors
/// Whatever goes wrong on the way; what was downloaded stays for the next attempt.
pub fn execute(args: &PullArgs, printer: &Printer) -> Result<ExitCode> {
    if is_local(&args.model) {
        return add(args, printer);
    }
    download(args, printer)
}

fn download(args: &PullArgs, printer: &Printer) -> Result<ExitCode> {
    let repository = repository(&args.model)?;
    let name = args
        .name
        .as_deref()
        .map_or_else(|| Ok(repository.clone()), ModelName::parse)?;
    let models_dir = args.models_dir.resolve()?;
    let hub = Hub::from_environment(args.token()?)?;
    let shown = |dir: &Path| abbreviate(dir, &env::home_dir());
    printer.talk(format_args!("Repository:  {repository}"));
    printer.talk(format_args!(
        "Destination: {}",
        shown(&name.dir_in(&models_dir))
    ));
    printer.talk(format_args!(
        "Token:       {}",
        if hub.has_token() { "yes" } else { "none" }
    ));
    let listing = hub.list(&repository, &args.revision)?;
    let contents = Contents::of(&listing)?;
    let (_lock, has_waited) = lock(&models_dir, &name, printer)?;
    let folder = Folder::open(&models_dir, &name);
    let variant = match choose(args, &contents, &folder, has_waited, printer)? {
        Choice::Take(variant) => variant,
        Choice::AlreadyThere => {
            printer.talk(format_args!(
                "The other process completed {name}, nothing is left to do"
            ));
            return Ok(ExitCode::SUCCESS);
        }
        Choice::Abort => {
            printer.talk("Aborted, nothing was downloaded");
            return Ok(ExitCode::SUCCESS);
        }
    };
    check(&hub, &listing, &contents, variant, printer)?;
    let is_begun = folder.is_begun();
    let plan = folder.plan(&listing, contents.files_for(variant), args.force);
    if is_begun && !args.force {
        printer.talk("Continuing with what is there already");
    }
    let (files, bytes) = (plan.missing().len(), plan.missing_bytes());
    printer.talk(format_args!(
        "Downloading {files} file(s), {}",
        format_size(bytes)
    ));
    let dir = plan.execute(&hub, &listing, &mut PullProgress::new(printer))?;
    printer.talk(format_args!("Saved in {}", shown(&dir)));
    say_what_for(&models_dir, &dir, printer)?;
    Ok(ExitCode::SUCCESS)
}

/// How to use the models that now lie in `dir`.
fn say_what_for(models_dir: &Path, dir: &Path, printer: &Printer) -> Result<()> {
    for model in store::scan(models_dir)? {
        if model.dir != dir {
            continue;
        }
        let id = &model.id;
        let serve = |what: &str, path: &str| {
            printer.talk(format_args!(
                "{what} with it: oxydllm start, then POST {path} for the model {id}"
            ));
        };
        match model.kind() {
            ModelKind::Chat => printer.talk(format_args!("Chat with it: oxydllm run {id}")),
            ModelKind::Embedding => serve("Make embeddings", "/v1/embeddings"),
            ModelKind::Reranker => serve("Rerank documents", "/v1/rerank"),
        }
    }
    Ok(())
}

fn repository(text: &str) -> Result<ModelName> {
    let name = ModelName::parse(text)?;
    if name.namespace().is_none() {
        return Err(Error::invalid(format!("`{text}` is no repository: expected `user/model`"))
            .with_hint("for example `oxydllm pull Qwen/Qwen3-0.6B-GGUF`; a local file is given as `./file.gguf`"));
    }
    Ok(name)
}

/// Locks the model folder; waits for another pull into it. Says whether it had to.
fn lock(models_dir: &Path, name: &ModelName, printer: &Printer) -> Result<(Lock, bool)> {
    match Lock::try_model(models_dir, name)? {
        LockOutcome::Locked(lock) => Ok((lock, false)),
        LockOutcome::Busy => {
            printer.talk(format_args!(
                "Another process is pulling {name}, waiting for it"
            ));
            Ok((Lock::wait_model(models_dir, name)?, true))
        }
    }
}

enum Choice<'a> {
    Take(&'a Variant),
    AlreadyThere,
    Abort,
}

fn choose<'a>(
    args: &PullArgs,
    contents: &'a Contents,
    folder: &Folder,
    has_waited: bool,
    printer: &Printer,
) -> Result<Choice<'a>> {
    let is_there = |variant: &Variant| !args.force && folder.has_all(&contents.files_for(variant));
    let reuse = |what: String| {
        let error = Error::invalid(format!("{what} on disk already"))
            .with_hint("download again with `--force`, or elsewhere with `--name`");
        if has_waited {
            Ok(Choice::AlreadyThere)
        } else {
            Err(error)
        }
    };
    if let Some(label) = &args.variant {
        let variant = find_variant(&contents.variants, label)?;
        return if is_there(variant) {
            reuse(format!("the variant `{}` is", variant.label))
        } else {
            Ok(Choice::Take(variant))
        };
    }
    let open: Vec<&Variant> = contents
        .variants
        .iter()
        .filter(|variant| !is_there(variant))
        .collect();
    if open.is_empty() {
        return reuse("everything of this repository is".to_owned());
    }
    if let [only] = &contents.variants[..] {
        return Ok(Choice::Take(only));
    }
    // The other process was asked the same question; without a terminal it took the same default.
    let best = choose_default(contents.variants.iter());
    if has_waited && best.is_some_and(is_there) {
        return Ok(Choice::AlreadyThere);
    }
    let default = choose_default(open.iter().copied()).unwrap_or(open[0]);
    if !printer.can_ask() {
        printer.talk(format_args!(
            "Variant:     {} (no terminal to ask on; `--variant` chooses another)",
            default.label
        ));
        return Ok(Choice::Take(default));
    }
    Ok(ask(&contents.variants, &open, default, printer)?.map_or(Choice::Abort, Choice::Take))
}

/// Shows the variants and asks for a number. `None`: the input ended.
fn ask<'a>(
    all: &[Variant],
    open: &[&'a Variant],
    default: &Variant,
    printer: &Printer,
) -> Result<Option<&'a Variant>> {
    let width = all
        .iter()
        .map(|variant| variant.label.chars().count())
        .max()
        .unwrap_or(0);
    let number_of = |label: &str| {
        open.iter()
            .position(|variant| variant.label == label)
            .map(|index| index + 1)
    };
    for variant in all {
        let size = variant.size().map_or_else(|| "-".to_owned(), format_size);
        let mark =
            number_of(&variant.label).map_or_else(|| "✓".to_owned(), |number| number.to_string());
        let star = if variant.label == default.label {
            "★"
        } else {
            " "
        };
        let (files, remark) = (variant.files.len(), variant.remark());
        printer.talk(format_args!(
            "{mark:>3} {star} {:width$} {size:>10} {files:>3} file(s)  {remark}",
            variant.label
        ));
    }
    let default_number = number_of(&default.label).unwrap_or(1);
    loop {
        let question = format!("Which one? [1-{}, default {default_number}] ", open.len());
        let Some(answer) = printer.ask(question)? else {
            return Ok(None);
        };
        match pick(&answer, default_number, open.len()) {
            Some(number) => return Ok(Some(open[number - 1])),
            None => printer.talk(format_args!(
                "Please give a number from 1 to {}",
                open.len()
            )),
        }
    }
}

/// The number that was answered; nothing is the default.
fn pick(answer: &str, default: usize, count: usize) -> Option<usize> {
    let number = if answer.is_empty() {
        default
    } else {
        answer.parse().ok()?
    };
    (1..=count).contains(&number).then_some(number)
}

fn check(
    hub: &Hub,
    listing: &Listing,
    contents: &Contents,
    variant: &Variant,
    printer: &Printer,
) -> Result<()> {
    let (label, checked) = match variant.files.first() {
        Some(first) if variant.is_gguf => ("Header:     ", check_gguf(hub, listing, first)?),
        _ => (
            "Model:      ",
            check_config(hub, listing, &contents.shared)?,
        ),
    };
    match checked {
        Checked::Readable(line) => printer.talk(format_args!("{label} {line}")),
        Checked::Unknown(why) => tracing::info!(why, "the model could not be checked"),
    }
    Ok(())
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
    say_what_for(&dir, &added.dir, printer)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_a_number_in_range_or_nothing() {
        assert_eq!(pick("", 2, 3), Some(2));
        assert_eq!(pick("3", 2, 3), Some(3));
        for answer in ["0", "4", "q4", "-1", "1.0"] {
            assert_eq!(pick(answer, 2, 3), None, "{answer}");
        }
    }

    #[test]
    fn only_what_says_so_is_local() {
        for text in ["/x", "./x", "../x", "."] {
            assert!(is_local(text), "{text}");
        }
        for text in ["user/model", "user/model.gguf", "x"] {
            assert!(!is_local(text), "{text}");
        }
        assert!(repository("model").unwrap_err().hint().is_some());
    }
}
