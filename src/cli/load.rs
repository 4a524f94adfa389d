//! From what was typed to a loaded model: shared by `run`, `bench` and `eval`.

use std::sync::Arc;

use super::Printer;
use super::args::{ModelsDirArgs, ThreadArgs};
use crate::env;
use crate::error::Result;
use crate::ops::{Context, CpuLevel};
use crate::store::{Located, resolve_for_run};
use crate::threads::{Pool, num_threads};

/// Finds the model that `text` names and says so when it was not unique.
///
/// # Errors
/// `NotFound` or `Invalid`, as the store says.
pub(super) fn locate(models_dir: &ModelsDirArgs, text: &str, printer: &Printer) -> Result<Located> {
    let located = resolve_for_run(&models_dir.resolve()?, text)?;
    if let Some(note) = located.note(text) {
        printer.talk(note);
    }
    Ok(located)
}

/// The context that commands compute in: threads by flag, variable, machine; level by variable, CPU.
///
/// # Errors
/// `Invalid` or `Unsupported` for a variable that asks for what there is not.
pub(super) fn context(threads: &ThreadArgs) -> Result<Context> {
    let level = env::CPU_LEVEL
        .text()?
        .map(|text| text.parse::<CpuLevel>())
        .transpose()?;
    let pool = Pool::new(num_threads(threads.resolve()?));
    Ok(Context::cpu(Arc::new(pool), CpuLevel::choose(level)?))
}
