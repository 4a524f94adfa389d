//! From a checkpoint to an [`Embedder`], and what that takes of the memory.

use std::path::{Path, PathBuf};

use super::decoder::Decoder;
use super::dense::{Dense, DenseConfig};
use super::embedder::{Backbone, Embedder, Module, Tail};
use super::recipe::{Recipe, Step, read_json};
use crate::error::{Error, Result};
use crate::formats::{self, Weights};
use crate::model::encoder::{EncoderConfig, load_encoder, read_encoder_config, weigh_encoder};
use crate::model::plan::{self, CHUNK_TOKENS, Wish};
use crate::model::{LoadOptions, ModelConfig, ModelKind, assemble, read_config, weigh};
use crate::nn::WeightPath;
use crate::ops::Context;
use crate::units::format_size;

/// Tokens of a step that holds more than one text; a longer text is a step of its own.
pub const STEP_TOKENS: usize = CHUNK_TOKENS;

/// A checkpoint of an embedding model or reranker whose description has been read.
#[derive(Debug)]
pub struct EmbedderSource {
    weights: Weights,
    config: BackboneConfig,
    /// `None` for rerankers.
    recipe: Option<Recipe>,
    /// Numbers per text.
    dimensions: usize,
}

#[derive(Debug)]
enum BackboneConfig {
    Encoder(EncoderConfig),
    Decoder(Box<ModelConfig>),
}

/// What a loaded embedding model or reranker will take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbedderPlan {
    /// Weights.
    pub weight_bytes: usize,
    /// The cache in which a decoder computes a text.
    pub kv_bytes: usize,
    /// Activations of the largest step.
    pub activation_bytes: usize,
    /// The longest text, in tokens.
    pub max_tokens: usize,
    /// Blocks of the cache.
    num_blocks: usize,
}

impl EmbedderPlan {
    /// All of it.
    pub fn total_bytes(&self) -> usize {
        self.weight_bytes + self.kv_bytes + self.activation_bytes
    }
}

impl EmbedderSource {
    /// Reads the description of the checkpoint at `path`.
    ///
    /// # Errors
    /// Those of the files; `Unsupported` when it is neither an embedding model nor a reranker.
    pub fn open(path: &Path) -> Result<Self> {
        Self::of(formats::open(path)?, path)
    }

    /// The same for opened `weights`.
    ///
    /// # Errors
    /// As [`EmbedderSource::open`].
    pub fn of(weights: Weights, path: &Path) -> Result<Self> {
        if ModelKind::of_weights(&weights, path) == ModelKind::Chat {
            return Err(Error::unsupported(
                "the model is neither an embedding model nor a reranker",
            )
            .with_hint(
                "an embedding model has a `modules.json` beside its weights, or is an encoder",
            ));
        }
        let config = match read_encoder_config(path)? {
            Some(config) => BackboneConfig::Encoder(config),
            None => {
                refuse_unmasked(path)?;
                BackboneConfig::Decoder(Box::new(read_config(&weights, path)?))
            }
        };
        let recipe = match &config {
            BackboneConfig::Encoder(config) if config.kind == ModelKind::Reranker => None,
            _ => Some(Recipe::read(path)?),
        };
        let hidden = match &config {
            BackboneConfig::Encoder(config) => config.hidden_size,
            BackboneConfig::Decoder(config) => config.hidden_size,
        };
        let dimensions = match &recipe {
            Some(recipe) => dimensions(recipe, hidden)?,
            None => 1,
        };
        Ok(Self {
            weights,
            config,
            recipe,
            dimensions,
        })
    }

    /// The model's own longest text, in tokens.
    pub fn max_tokens(&self) -> usize {
        match &self.config {
            BackboneConfig::Encoder(config) => config.max_tokens(),
            BackboneConfig::Decoder(config) => config.max_context,
        }
    }

    /// Bytes of weights when loaded, from headers alone.
    ///
    /// # Errors
    /// Those of loading, as far as headers tell.
    pub fn weight_bytes(&self, path: WeightPath) -> Result<usize> {
        let backbone = match &self.config {
            BackboneConfig::Encoder(config) => weigh_encoder(&self.weights, config, path)?,
            BackboneConfig::Decoder(config) => weigh(&self.weights, config, path)?,
        };
        let dense = |step: &Step| match step {
            Step::Dense(folder) => DenseConfig::read(folder).map_or(0, |config| {
                (config.in_features + 1) * config.out_features * size_of::<f32>()
            }),
            Step::Normalize => 0,
        };
        let steps = self.recipe.iter().flat_map(|recipe| &recipe.steps);
        Ok(backbone + steps.map(dense).sum::<usize>())
    }

    /// Plans for `available` bytes, of which the weights take `weight_bytes`. A decoder's longest text is `max_tokens` when
    /// somebody asked for that, else what fits; an encoder reads a text whole, and its own limit holds.
    ///
    /// # Errors
    /// `OutOfMemory`, with the numbers.
    pub fn plan(
        &self,
        weight_bytes: usize,
        max_tokens: Option<usize>,
        available: usize,
    ) -> Result<EmbedderPlan> {
        let config = match &self.config {
            BackboneConfig::Encoder(config) => {
                return plan_encoder(config, weight_bytes, max_tokens, available);
            }
            BackboneConfig::Decoder(config) => config,
        };
        let wish = Wish {
            context: max_tokens,
            max_num_seqs: Some(1),
        };
        let plan = plan::plan(config, weight_bytes, wish, available)?;
        Ok(EmbedderPlan {
            weight_bytes,
            kv_bytes: plan.kv_bytes,
            activation_bytes: plan.activation_bytes,
            max_tokens: plan.context,
            num_blocks: plan.num_blocks,
        })
    }

    /// Loads it as planned.
    ///
    /// # Errors
    /// `Invalid` or `Unsupported`, with the tensor.
    pub fn load(self, ctx: &Context, plan: &EmbedderPlan, path: WeightPath) -> Result<Embedder> {
        let Self {
            weights,
            config,
            recipe,
            dimensions,
        } = self;
        let backbone = match config {
            BackboneConfig::Encoder(config) => {
                Backbone::Encoder(Box::new(load_encoder(ctx, &weights, config, path)?))
            }
            BackboneConfig::Decoder(config) => {
                let transformer = assemble(ctx, &weights, *config, LoadOptions { path })?;
                let decoder = Decoder::new(transformer, plan.max_tokens, plan.num_blocks);
                Backbone::Decoder(Box::new(decoder))
            }
        };
        let tail = match recipe {
            None => Tail::Score,
            Some(recipe) => Tail::Vector {
                pooling: recipe.pooling,
                modules: recipe
                    .steps
                    .iter()
                    .map(|step| module(ctx, step, path))
                    .collect::<Result<_>>()?,
                dimensions,
            },
        };
        Ok(Embedder { backbone, tail })
    }
}

fn module(ctx: &Context, step: &Step, path: WeightPath) -> Result<Module> {
    Ok(match step {
        Step::Normalize => Module::Normalize,
        Step::Dense(folder) => {
            let dense = Dense::load(ctx, folder, path);
            let folder: PathBuf = folder.file_name().map(PathBuf::from).unwrap_or_default();
            Module::Dense(
                dense.map_err(|error| error.context(format!("module `{}`", folder.display())))?,
            )
        }
    })
}

/// The length of the vectors; modules must fit to each other.
fn dimensions(recipe: &Recipe, hidden: usize) -> Result<usize> {
    let mut dimensions = recipe.pooling.modes.len() * hidden;
    for step in &recipe.steps {
        let Step::Dense(folder) = step else {
            continue;
        };
        let config = DenseConfig::read(folder)?;
        if config.in_features != dimensions {
            let found = config.in_features;
            return Err(Error::invalid(format!(
                "the dense module in `{}` expects {found} features, and is given {dimensions}",
                folder.display()
            )));
        }
        dimensions = config.out_features;
    }
    Ok(dimensions)
}

fn plan_encoder(
    config: &EncoderConfig,
    weight_bytes: usize,
    max_tokens: Option<usize>,
    available: usize,
) -> Result<EmbedderPlan> {
    let own = config.max_tokens();
    let max_tokens = max_tokens.map_or(own, |wanted| wanted.min(own)).max(1);
    let activation_bytes = config.activation_bytes(max_tokens.max(STEP_TOKENS));
    if weight_bytes.saturating_add(activation_bytes) > available {
        let [weights, activations, memory] =
            [weight_bytes, activation_bytes, available].map(|bytes| format_size(bytes as u64));
        return Err(Error::out_of_memory(format!(
            "the model does not fit: weights {weights}, activations {activations} for {max_tokens} tokens, available {memory}"
        ))
        .with_hint("choose a smaller model or a smaller --max-context-len, or free memory"));
    }
    Ok(EmbedderPlan {
        weight_bytes,
        kv_bytes: 0,
        activation_bytes,
        max_tokens,
        num_blocks: 0,
    })
}

/// Some decoders were trained on with attention in both directions.
fn refuse_unmasked(folder: &Path) -> Result<()> {
    let Some(config) = read_json(&folder.join("config.json"))? else {
        return Ok(());
    };
    for (key, value) in [("is_causal", false), ("use_bidirectional_attention", true)] {
        if config.get(key).and_then(serde_json::Value::as_bool) == Some(value) {
            return Err(Error::unsupported(format!(
                "`{key}` is {value}: a decoder whose tokens see those behind them is not supported"
            )));
        }
    }
    Ok(())
}
