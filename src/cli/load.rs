//! From what was typed to a loaded model: shared by `run`, `bench` and `eval`.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::Printer;
use super::args::{DeviceArgs, ModelsDirArgs, ThreadArgs};
use crate::chat::ChatModel;
use crate::device::{self, Device};
use crate::engine::worker;
use crate::env;
use crate::error::{Error, Result};
use crate::formats::Weights;
use crate::model::plan::{self, available_memory};
use crate::model::{LoadOptions, LoadedModel, ModelConfig, load};
use crate::ops::{Context, CpuLevel};
use crate::store::{Located, resolve_for_run};
use crate::text::{ChatTemplate, EndTokens, TemplateSources, Tokenizer};
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

/// The context that commands compute in: device and threads by flag, variable, machine; level by variable, CPU. Says so when
/// a GPU build computes on the CPU.
///
/// # Errors
/// `Invalid` or `Unsupported` for a flag or variable that asks for what there is not, or when no device can be used.
pub(super) fn context(
    device: &DeviceArgs,
    threads: &ThreadArgs,
    printer: &Printer,
) -> Result<Context> {
    let choice = device::choose(device.devices()?.as_deref(), device.allow_cpu()?)?;
    if let Some(reason) = choice.fallback {
        printer.warn(format_args!("computing on the CPU: {reason}"));
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

/// Loads a model for chatting: engine, tokenizer, template, end tokens.
///
/// # Errors
/// Those of loading; `OutOfMemory` when weights and context do not fit.
pub(super) fn load_chat_model(
    located: &Located,
    ctx: Context,
    max_context: Option<usize>,
) -> Result<ChatModel> {
    let LoadedModel {
        transformer,
        weights,
    } = load(&ctx, &located.path, LoadOptions::default())
        .map_err(|e| e.context(format!("cannot load `{}`", located.name())))?;
    let text = TextParts::read(&weights, &located.path, transformer.config())?;
    let weight_bytes = transformer.weight_bytes();
    // The weights are resident already: what is available is what is left beside them.
    let available = available_memory().saturating_add(weight_bytes);
    let plan = plan::plan(transformer.config(), weight_bytes, max_context, available)?;
    let vocab_size = transformer.config().vocab_size as u32;
    let masked: Vec<u32> = (0..vocab_size)
        .filter(|&id| !text.tokenizer.has_text(id))
        .collect();
    let engine = worker::start(ctx, transformer, &plan, masked.into());
    Ok(ChatModel::new(
        engine,
        Arc::new(text.tokenizer),
        text.template,
        text.end_tokens,
    ))
}

/// The text side of a checkpoint.
pub(super) struct TextParts {
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    pub end_tokens: Vec<u32>,
}

impl TextParts {
    /// Reads tokenizer, chat template and end tokens from the container or the folder around it.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` or `Unsupported`, as the text layer says.
    pub fn read(weights: &Weights, path: &Path, config: &ModelConfig) -> Result<Self> {
        let (tokenizer, sources, configs) = match weights {
            Weights::Gguf(file) => {
                let metadata = file.metadata();
                (
                    Tokenizer::from_metadata(metadata)?,
                    TemplateSources::from_metadata(metadata)?,
                    Vec::new(),
                )
            }
            Weights::Safetensors(_) => {
                let configs = ["config.json", "generation_config.json"]
                    .map(|name| read_json(&path.join(name)));
                let configs = configs.into_iter().collect::<Result<Vec<Value>>>()?;
                (
                    Tokenizer::from_folder(path)?,
                    TemplateSources::from_folder(path)?,
                    configs,
                )
            }
        };
        let extra: Vec<u32> = config
            .extra_stop_ids
            .iter()
            .copied()
            .filter(|&id| tokenizer.is_special(id))
            .collect();
        let ends = EndTokens::collect(
            &configs.iter().collect::<Vec<_>>(),
            Some(&tokenizer),
            &extra,
        );
        Ok(Self {
            template: sources.compile()?,
            end_tokens: ends.ids().to_vec(),
            tokenizer,
        })
    }
}

/// A JSON file, or null when there is none.
fn read_json(path: &Path) -> Result<Value> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| {
            Error::invalid(format!("`{}` is not JSON", path.display())).with_source(e)
        }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(e) => Err(Error::io("read", path, e)),
    }
}
