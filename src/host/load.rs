//! From a checkpoint on disk to a [`Model`] with a running worker, and what that will take.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::{LoadSettings, Loaded, Loader, Model};
use crate::engine::worker;
use crate::error::{Error, Result};
use crate::formats::{self, Weights};
use crate::memory;
use crate::model::plan::{self, Plan};
use crate::model::{LoadOptions, LoadedModel, ModelConfig, load, read_config, weigh};
use crate::nn::WeightPath;
use crate::ops::{Context, CpuLevel};
use crate::store::LocalModel;
use crate::text::{ChatTemplate, EndTokens, TemplateSources, Tokenizer};
use crate::threads::Pool;

/// Part of the memory of the machine that is left alone: tokenizers, buffers of requests, what other programs need next.
const HEADROOM: u64 = 20;

/// Loads the checkpoint at `path`, which messages call `name`: engine, tokenizer, template, end tokens. It may take all the
/// memory there is.
///
/// # Errors
/// Those of loading; `OutOfMemory` when weights and context do not fit.
pub fn load_model(
    name: &str,
    path: &Path,
    ctx: Context,
    settings: &LoadSettings,
) -> Result<Loaded> {
    load_within(name, path, ctx, settings, |_| memory::capacity())
}

/// The same with `available`, which says from the bytes of the weights how much memory there is for the model.
fn load_within(
    name: &str,
    path: &Path,
    ctx: Context,
    settings: &LoadSettings,
    available: impl FnOnce(usize) -> Option<u64>,
) -> Result<Loaded> {
    let cannot_load = |error: Error| error.context(format!("cannot load `{name}`"));
    let LoadedModel {
        transformer,
        weights,
    } = load(&ctx, path, LoadOptions::default()).map_err(cannot_load)?;
    let text = TextParts::read(&weights, path, transformer.config()).map_err(cannot_load)?;
    let weight_bytes = transformer.weight_bytes();
    let available = available(weight_bytes);
    let plan = plan_memory(transformer.config(), weight_bytes, settings, available)
        .map_err(cannot_load)?;
    let vocab_size = transformer.config().vocab_size as u32;
    let masked: Vec<u32> = (0..vocab_size)
        .filter(|&id| !text.tokenizer.has_text(id))
        .collect();
    let running = worker::start(ctx, transformer, &plan, masked.into());
    let model = Model::new(
        running.engine,
        Arc::new(text.tokenizer),
        text.template,
        text.end_tokens,
    );
    Ok(Loaded {
        model,
        ended: running.thread,
    })
}

/// The one place where memory is planned: for loading and for the question what loading will take.
fn plan_memory(
    config: &ModelConfig,
    weight_bytes: usize,
    settings: &LoadSettings,
    available: Option<u64>,
) -> Result<Plan> {
    let available = available.map_or(usize::MAX / 2, to_usize);
    plan::plan(config, weight_bytes, settings.max_context_len, available)
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX / 2)
}

/// Loads models for the processors of this machine. All of them compute on one pool.
pub struct ModelLoader {
    pool: Arc<Pool>,
    level: CpuLevel,
    settings: LoadSettings,
    memory_budget: Option<u64>,
    /// The memory that plans were made for: loading keeps to what was said before.
    planned_for: Mutex<HashMap<String, Option<u64>>>,
}

impl ModelLoader {
    /// A loader that computes on `pool` and plans with at most `memory_budget` bytes for all models together.
    pub fn new(
        pool: Arc<Pool>,
        level: CpuLevel,
        settings: LoadSettings,
        memory_budget: Option<u64>,
    ) -> Self {
        Self {
            pool,
            level,
            settings,
            memory_budget,
            planned_for: Mutex::default(),
        }
    }

    /// Bytes for one of several models, weights included. A context that nobody asked for takes at most half of what the
    /// weights leave: one model with a long context would otherwise fill the memory and drive out every other.
    fn share(&self, limit: Option<u64>, weight_bytes: usize) -> Option<u64> {
        let is_explicit = self.settings.max_context_len.is_some();
        let weight_bytes = weight_bytes as u64;
        limit.map(|limit| match limit.checked_sub(weight_bytes) {
            Some(rest) if !is_explicit => weight_bytes + rest / 2,
            _ => limit,
        })
    }

    fn limit(&self) -> Option<u64> {
        self.memory_budget.into_iter().chain(self.capacity()).min()
    }
}

impl Loader for ModelLoader {
    fn capacity(&self) -> Option<u64> {
        memory::capacity().map(|bytes| bytes - bytes / HEADROOM)
    }

    fn plan(&self, model: &LocalModel) -> Result<u64> {
        let path = model.load_path();
        let plan = || {
            let weights = formats::open(&path)?;
            let config = read_config(&weights, &path)?;
            let weight_bytes = weigh(&weights, &config, WeightPath::default());
            let limit = self.limit();
            let share = self.share(limit, weight_bytes);
            Ok((
                limit,
                plan_memory(&config, weight_bytes, &self.settings, share)?,
            ))
        };
        let (limit, plan) =
            plan().map_err(|error: Error| error.context(format!("cannot load `{}`", model.id)))?;
        let mut planned_for = self
            .planned_for
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        planned_for.insert(model.id.clone(), limit);
        Ok((plan.weight_bytes + plan.kv_bytes + plan.activation_bytes) as u64)
    }

    fn load(&self, model: &LocalModel) -> Result<Loaded> {
        let planned_for = self
            .planned_for
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&model.id);
        let limit = planned_for.unwrap_or_else(|| self.limit());
        let ctx = Context::cpu(Arc::clone(&self.pool), self.level);
        load_within(
            &model.id,
            &model.load_path(),
            ctx,
            &self.settings,
            |weight_bytes| self.share(limit, weight_bytes),
        )
    }
}

/// The text side of a checkpoint.
pub struct TextParts {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template, if there is one.
    pub template: Option<ChatTemplate>,
    /// Ids that end an answer.
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
