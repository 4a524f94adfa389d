//! From a checkpoint on disk to a [`Model`] with a running worker.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use serde_json::Value;

use super::{Model, SamplingDefaults, wrong_kind};
use crate::engine::worker::{self, WorkerSettings};
use crate::error::{Error, Result};
use crate::formats::{self, Weights};
use crate::memory;
use crate::model::plan::{self, Plan, Wish};
use crate::model::{LoadOptions, ModelConfig, ModelKind, assemble, read_config, weigh};
use crate::ops::Context;
use crate::text::{ChatTemplate, EndTokens, TemplateSources, Tokenizer};

/// Loads the checkpoint at `path`, which messages call `name`: engine, tokenizer, template, end tokens. It may take all the
/// memory there is; what does not fit is refused before it is read.
///
/// # Errors
/// Those of loading; `OutOfMemory` when weights and context do not fit, `Unsupported` when the model is not made to chat.
pub fn load_model(name: &str, path: &Path, ctx: Context, wish: Wish) -> Result<Model> {
    let kind = ModelKind::of_folder(path);
    if kind != ModelKind::Chat {
        return Err(wrong_kind(kind, ModelKind::Chat).context(format!("cannot use `{name}`")));
    }
    let available = memory::capacity();
    let (model, _) = load_planned(
        name,
        path,
        ctx,
        WorkerSettings::default(),
        |config, weight_bytes| plan_memory(config, weight_bytes, wish, available),
    )?;
    Ok(model)
}

/// The same with `plan`, which plans from configuration and bytes of weights.
pub(super) fn load_planned(
    name: &str,
    path: &Path,
    ctx: Context,
    mut settings: WorkerSettings,
    plan: impl FnOnce(&ModelConfig, usize) -> Result<Plan>,
) -> Result<(Model, JoinHandle<()>)> {
    let cannot_load = |error: Error| error.context(format!("cannot load `{name}`"));
    let Checkpoint { weights, config } = Checkpoint::open(path).map_err(cannot_load)?;
    let options = LoadOptions::default();
    let weight_bytes = weigh(&weights, &config, options.path).map_err(cannot_load)?;
    let plan = plan(&config, weight_bytes).map_err(cannot_load)?;
    let (text, transformer) = std::thread::scope(|scope| {
        // Beside the weights: a large vocabulary takes one core as long as the weights take all of them.
        let text = scope.spawn(|| TextParts::read(&weights, path, &config));
        let transformer = assemble(&ctx, &weights, config.clone(), options);
        (text.join(), transformer)
    });
    let text = text
        .unwrap_or_else(|panic| resume_unwind(panic))
        .map_err(cannot_load)?;
    let transformer = transformer.map_err(cannot_load)?;
    let vocab_size = transformer.config().vocab_size as u32;
    settings.masked_ids = (0..vocab_size)
        .filter(|&id| !text.tokenizer.has_text(id))
        .collect();
    let running = worker::start(ctx, transformer, &plan, settings);
    let model = Model::new(
        running.engine,
        Arc::new(text.tokenizer),
        text.template,
        text.end_tokens,
    )
    .with_sampling_defaults(text.sampling);
    Ok((model, running.thread))
}

/// A checkpoint whose headers have been read.
pub struct Checkpoint {
    /// Its tensors, not read yet.
    pub weights: Weights,
    /// What it says of itself.
    pub config: ModelConfig,
}

impl Checkpoint {
    /// Opens the file or folder at `path`.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` or `Unsupported`, as the readers of containers and configurations say.
    pub fn open(path: &Path) -> Result<Self> {
        let weights = formats::open(path)?;
        let config = read_config(&weights, path)?;
        Ok(Self { weights, config })
    }
}

/// The one place where memory is planned: for loading and for the question what loading will take.
pub(super) fn plan_memory(
    config: &ModelConfig,
    weight_bytes: usize,
    wish: Wish,
    available: Option<u64>,
) -> Result<Plan> {
    let available = available.and_then(|bytes| usize::try_from(bytes).ok());
    plan::plan(
        config,
        weight_bytes,
        wish,
        available.unwrap_or(usize::MAX / 2),
    )
}

/// The text side of a checkpoint.
pub struct TextParts {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if there is one.
    pub template: Option<ChatTemplate>,
    /// Ids that end an answer.
    pub end_tokens: Vec<u32>,
    /// How the model wants to be sampled.
    pub sampling: SamplingDefaults,
}

impl TextParts {
    /// Reads tokenizer, chat template and end tokens from the container or the folder around it.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` or `Unsupported`, as the text layer says.
    pub fn read(weights: &Weights, path: &Path, config: &ModelConfig) -> Result<Self> {
        let (tokenizer, sources, configs, sampling) = match weights {
            Weights::Gguf(file) => {
                let metadata = file.metadata();
                (
                    Tokenizer::from_metadata(metadata)?,
                    TemplateSources::from_metadata(metadata)?,
                    Vec::new(),
                    SamplingDefaults::from_metadata(metadata)?,
                )
            }
            Weights::Safetensors(_) => {
                let configs = ["config.json", "generation_config.json"]
                    .map(|name| Ok((name, read_json(&path.join(name))?)));
                let configs = configs.into_iter().collect::<Result<Vec<_>>>()?;
                let sampling = SamplingDefaults::from_generation_config(&configs[1].1);
                (
                    Tokenizer::from_folder(path)?,
                    TemplateSources::from_folder(path)?,
                    configs,
                    sampling,
                )
            }
        };
        let extra: Vec<u32> = config
            .extra_stop_ids
            .iter()
            .copied()
            .filter(|&id| tokenizer.is_special(id))
            .collect();
        let ends = EndTokens::collect(&configs, Some(&tokenizer), &extra)?;
        Ok(Self {
            template: sources.compile()?,
            end_tokens: ends.ids().to_vec(),
            tokenizer,
            sampling,
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
