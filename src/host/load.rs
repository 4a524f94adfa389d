//! From a checkpoint on disk to a [`Model`] with a running worker.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::Model;
use crate::engine::worker::{self, WorkerSettings};
use crate::error::{Error, Result};
use crate::formats::Weights;
use crate::model::plan::{self, Wish, available_memory};
use crate::model::{LoadOptions, LoadedModel, ModelConfig, load};
use crate::ops::Context;
use crate::text::{ChatTemplate, EndTokens, TemplateSources, Tokenizer};

/// Loads the checkpoint at `path`, which messages call `name`: engine, tokenizer, template, end tokens.
///
/// # Errors
/// Those of loading; `OutOfMemory` when weights and context do not fit.
pub fn load_model(name: &str, path: &Path, ctx: Context, wish: Wish) -> Result<Model> {
    let LoadedModel {
        transformer,
        weights,
    } = load(&ctx, path, LoadOptions::default())
        .map_err(|e| e.context(format!("cannot load `{name}`")))?;
    let text = TextParts::read(&weights, path, transformer.config())?;
    let weight_bytes = transformer.weight_bytes();
    // The weights are resident already: what is available is what is left beside them.
    let available = available_memory().saturating_add(weight_bytes);
    let plan = plan::plan(transformer.config(), weight_bytes, wish, available)?;
    let vocab_size = transformer.config().vocab_size as u32;
    let masked: Vec<u32> = (0..vocab_size)
        .filter(|&id| !text.tokenizer.has_text(id))
        .collect();
    let settings = WorkerSettings {
        masked_ids: masked.into(),
        ..WorkerSettings::default()
    };
    let running = worker::start(ctx, transformer, &plan, settings);
    Ok(Model::new(
        running.engine,
        Arc::new(text.tokenizer),
        text.template,
        text.end_tokens,
    ))
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
