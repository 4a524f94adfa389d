//! From what was typed to a loaded model: shared by `run`, `bench` and `eval`.

use std::sync::Arc;

use super::Printer;
use super::args::{DeviceArgs, ModelsDirArgs, ThreadArgs};
use crate::device::{self, Device};
use crate::env;
use crate::error::{Error, Result};
use crate::host::{Checkpoint, wrong_kind};
use crate::model::{LoadOptions, LoadedModel, ModelConfig, ModelKind, assemble};
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

/// The context that commands compute in: device and threads by flag, variable, machine; level by variable, CPU. `warn` is
/// told when a GPU build computes on the CPU.
///
/// # Errors
/// `Invalid` or `Unsupported` for a flag or variable that asks for what there is not, or when no device can be used.
pub(super) fn context(
    device: &DeviceArgs,
    threads: &ThreadArgs,
    warn: impl FnOnce(String),
) -> Result<Context> {
    let choice = device::choose(device.devices()?.as_deref(), device.allow_cpu()?)?;
    if let Some(reason) = choice.fallback {
        warn(format!("computing on the CPU: {reason}"));
    }
    if choice.device != Device::Cpu {
        return Err(Error::internal(format!(
            "{} was chosen, and operations run on the CPU only",
            choice.device
        )));
    }
    let level = env::CPU_LEVEL
        .text()?
        .map(|text| text.parse::<CpuLevel>())
        .transpose()?;
    let pool = Pool::new(num_threads(threads.resolve()?));
    Ok(Context::cpu(Arc::new(pool), CpuLevel::choose(level)?))
}

/// Loads a model that generates text, for commands that compute with it themselves. `check` sees its configuration before the
/// weights are read; `other_kind` is the hint for whoever names an embedding model or a reranker.
///
/// # Errors
/// `Unsupported` for a model of another kind, those of loading and of `check`.
pub(super) fn load_generator(
    ctx: &Context,
    located: &Located,
    options: LoadOptions,
    other_kind: &str,
    check: impl FnOnce(&ModelConfig) -> Result<()>,
) -> Result<LoadedModel> {
    let kind = ModelKind::of_folder(&located.path);
    if kind != ModelKind::Chat {
        return Err(wrong_kind(kind, ModelKind::Chat)
            .context(format!("cannot use `{}`", located.name()))
            .with_hint(other_kind));
    }
    let cannot_load = |e: Error| e.context(format!("cannot load `{}`", located.name()));
    let Checkpoint { weights, config } = Checkpoint::open(&located.path).map_err(cannot_load)?;
    check(&config)?;
    let transformer = assemble(ctx, &weights, config, options).map_err(cannot_load)?;
    Ok(LoadedModel {
        transformer,
        weights,
    })
}
