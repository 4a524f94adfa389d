//! [`ModelLoader`]: the loader of real checkpoints.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::load::{Checkpoint, load_planned, plan_memory};
use super::{EmbeddingModel, EmbeddingText, LoadSettings, Loaded, Loader};
use crate::engine::embed;
use crate::engine::worker::WorkerSettings;
use crate::error::{Error, Result};
use crate::memory;
use crate::model::embedder::{EmbedderPlan, EmbedderSource};
use crate::model::plan::{Plan, Wish};
use crate::model::{ModelConfig, ModelKind, weigh};
use crate::nn::WeightPath;
use crate::ops::Context;
use crate::store::{LocalModel, Weights};
use crate::units::format_size;

/// One of so many parts of the machine's memory is left alone: for tokenizers, buffers of requests, and what other programs
/// need next.
const HEADROOM: u64 = 20;

/// A context of so many tokens is worth more than room for other models.
const USEFUL_CONTEXT: usize = 4096;

/// Loads checkpoints. All models compute in siblings of one context: on the same device and threads.
pub struct ModelLoader {
    ctx: Context,
    settings: LoadSettings,
    memory_budget: Option<u64>,
    /// The memory that plans were made for: loading keeps to what was said before.
    planned_for: Mutex<HashMap<String, Option<u64>>>,
}

impl ModelLoader {
    /// A loader that computes as `ctx` does and plans with at most `memory_budget` bytes for all models together.
    pub fn new(ctx: Context, settings: LoadSettings, memory_budget: Option<u64>) -> Self {
        Self {
            ctx,
            settings,
            memory_budget,
            planned_for: Mutex::default(),
        }
    }

    fn limit(&self) -> Option<u64> {
        self.memory_budget.into_iter().chain(self.capacity()).min()
    }

    /// Plans for one of several models that together may take `limit`. A context that nobody asked for takes at most half of
    /// what the weights leave, because one model with a long context would otherwise fill the memory and drive out every
    /// other; but where that would be little, the model gets a useful context.
    fn plan_within(
        &self,
        config: &ModelConfig,
        weight_bytes: usize,
        limit: Option<u64>,
    ) -> Result<Plan> {
        let plan = |context, available| {
            let wish = Wish {
                context,
                max_num_seqs: self.settings.max_num_seqs,
            };
            plan_memory(config, weight_bytes, wish, available)
        };
        if let Some(context) = self.settings.max_context_len {
            return plan(Some(context), limit);
        }
        let useful = USEFUL_CONTEXT.min(config.max_context);
        let weight_bytes = weight_bytes as u64;
        let share = limit.map(|limit| weight_bytes + limit.saturating_sub(weight_bytes) / 2);
        match plan(None, share) {
            Ok(shared) if shared.context >= useful => Ok(shared),
            _ => plan(Some(useful), limit).or_else(|_| plan(None, limit)),
        }
    }

    /// Plans an embedding model or reranker; as [`ModelLoader::plan_within`] for the context of a decoder that nobody asked for.
    fn plan_texts(&self, source: &EmbedderSource, limit: Option<u64>) -> Result<EmbedderPlan> {
        let weight_bytes = source.weight_bytes(WeightPath::default())?;
        let plan = |context, available: Option<u64>| {
            let available = available.and_then(|bytes| usize::try_from(bytes).ok());
            source.plan(weight_bytes, context, available.unwrap_or(usize::MAX / 2))
        };
        if let Some(context) = self.settings.max_context_len {
            return plan(Some(context), limit);
        }
        let useful = USEFUL_CONTEXT.min(source.max_tokens());
        let weights = weight_bytes as u64;
        let share = limit.map(|limit| weights + limit.saturating_sub(weights) / 2);
        match plan(None, share) {
            Ok(shared) if shared.max_tokens >= useful => Ok(shared),
            _ => plan(Some(useful), limit).or_else(|_| plan(None, limit)),
        }
    }

    fn plan_embedding(&self, model: &LocalModel, limit: Option<u64>) -> Result<u64> {
        let plan = || {
            let source = EmbedderSource::open(&model.load_path())?;
            let plan = self.plan_texts(&source, limit)?;
            tracing::info!(
                model = %model.id,
                weights = %format_size(plan.weight_bytes as u64),
                kv = %format_size(plan.kv_bytes as u64),
                activations = %format_size(plan.activation_bytes as u64),
                longest_text = plan.max_tokens,
                of = source.max_tokens(),
                "planned"
            );
            Ok(plan)
        };
        let plan =
            plan().map_err(|error: Error| error.context(format!("cannot load `{}`", model.id)))?;
        self.planned_for().insert(model.id.clone(), limit);
        Ok(plan.total_bytes() as u64)
    }

    fn load_embedding(&self, model: &LocalModel, limit: Option<u64>) -> Result<Loaded> {
        let load = || {
            let path = model.load_path();
            let source = EmbedderSource::open(&path)?;
            let plan = self.plan_texts(&source, limit)?;
            let text = EmbeddingText::read(&path)?;
            let ctx = self.ctx.sibling();
            let embedder = source.load(&ctx, &plan, WeightPath::default())?;
            let kind = embedder.kind();
            let running = embed::worker::start(ctx, embedder, &plan, self.settings.max_queued);
            Ok(Loaded {
                model: EmbeddingModel::new(kind, running.engine, text).into(),
                ended: running.thread,
            })
        };
        load().map_err(|error: Error| error.context(format!("cannot load `{}`", model.id)))
    }

    fn announce(&self, model: &LocalModel, config: &ModelConfig, plan: &Plan) {
        let (name, own) = (&model.id, config.max_context);
        if let Some(wanted) = self.settings.max_context_len.filter(|&n| n > own) {
            tracing::warn!(model = %name, wanted, "the context is {own} tokens: the model was made for no more");
        }
        let most = plan.max_num_seqs;
        if let Some(wanted) = self.settings.max_num_seqs.filter(|&n| n > most) {
            tracing::warn!(model = %name, wanted, "at most {most} sequences run at once: there is memory for no more");
        }
        tracing::info!(
            model = %name,
            weights = %format_size(plan.weight_bytes as u64),
            kv = %format_size(plan.kv_bytes as u64),
            activations = %format_size(plan.activation_bytes as u64),
            context = plan.context,
            of = own,
            sequences = most,
            "planned"
        );
    }

    fn planned_for(&self) -> MutexGuard<'_, HashMap<String, Option<u64>>> {
        self.planned_for
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loader for ModelLoader {
    fn capacity(&self) -> Option<u64> {
        memory::capacity().map(|bytes| bytes - bytes / HEADROOM)
    }

    fn plan(&self, model: &LocalModel) -> Result<u64> {
        let limit = self.limit();
        if is_embedding(model) {
            return self.plan_embedding(model, limit);
        }
        let plan = || {
            let Checkpoint { weights, config } = Checkpoint::open(&model.load_path())?;
            let weight_bytes = weigh(&weights, &config, WeightPath::default())?;
            let plan = self.plan_within(&config, weight_bytes, limit)?;
            self.announce(model, &config, &plan);
            Ok(plan)
        };
        let plan =
            plan().map_err(|error: Error| error.context(format!("cannot load `{}`", model.id)))?;
        self.planned_for().insert(model.id.clone(), limit);
        Ok(plan.total_bytes() as u64)
    }

    fn load(&self, model: &LocalModel) -> Result<Loaded> {
        let planned_for = self.planned_for().remove(&model.id);
        let limit = planned_for.unwrap_or_else(|| self.limit());
        if is_embedding(model) {
            return self.load_embedding(model, limit);
        }
        let settings = WorkerSettings {
            max_queued: self.settings.max_queued,
            ..WorkerSettings::default()
        };
        let (model, ended) = load_planned(
            &model.id,
            &model.load_path(),
            self.ctx.sibling(),
            settings,
            |config, weight_bytes| self.plan_within(config, weight_bytes, limit),
        )?;
        let model = model.into();
        Ok(Loaded { model, ended })
    }
}

/// Whether `model` makes vectors or scores.
fn is_embedding(model: &LocalModel) -> bool {
    matches!(model.weights, Weights::Safetensors(_))
        && ModelKind::of_folder(&model.dir) != ModelKind::Chat
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::error::ErrorKind;
    use crate::ops::CpuLevel;
    use crate::store;
    use crate::threads::Pool;

    const SETTINGS: LoadSettings = LoadSettings {
        max_context_len: None,
        max_num_seqs: None,
        max_queued: 3,
    };

    fn loader(settings: LoadSettings, memory_budget: Option<u64>) -> ModelLoader {
        let ctx = Context::cpu(Arc::new(Pool::new(1)), CpuLevel::detect());
        ModelLoader::new(ctx, settings, memory_budget)
    }

    fn fixtures() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
    }

    /// A tiny model that claims to be made for very long contexts: 64 bytes of KV per token and layer.
    fn long() -> ModelConfig {
        let mut checkpoint = Checkpoint::open(&fixtures().join("models/llama_plain")).unwrap();
        checkpoint.config.max_context = 1 << 20;
        checkpoint.config
    }

    #[test]
    fn a_context_that_nobody_asked_for_leaves_room_for_other_models() {
        let (weights, limit) = (20 << 20, 100 << 20);
        let plan = |settings, limit| {
            let plan = loader(settings, None).plan_within(&long(), weights, Some(limit));
            plan.unwrap()
        };
        let shared = plan(SETTINGS, limit);
        let (total, half) = (shared.total_bytes() as u64, (weights as u64 + limit) / 2);
        assert!(
            total <= half + (1 << 20) && total > half / 10 * 9,
            "{shared:?}"
        );
        assert!(shared.context > USEFUL_CONTEXT);
        let wanted = LoadSettings {
            max_context_len: Some(shared.context * 3 / 2),
            ..SETTINGS
        };
        assert_eq!(plan(wanted, limit).context, shared.context * 3 / 2);
        // Little memory: a useful context comes before room for others, and any context before none.
        let tight = weights as u64 + (4 << 20);
        assert_eq!(plan(SETTINGS, tight).context, USEFUL_CONTEXT);
        let tightest = weights as u64 + (2 << 20);
        assert!((256..USEFUL_CONTEXT).contains(&plan(SETTINGS, tightest).context));
    }

    #[test]
    fn a_wish_for_sequences_never_gives_fewer_than_none() {
        let mut config = long();
        config.vocab_size = 50_000;
        for limit in (22..80).map(|mib| mib << 20) {
            let sequences = |max_num_seqs| {
                let settings = LoadSettings {
                    max_num_seqs,
                    ..SETTINGS
                };
                let plan = loader(settings, None).plan_within(&config, 20 << 20, Some(limit));
                plan.map_or(0, |plan| plan.max_num_seqs)
            };
            let unasked = sequences(None);
            let mut before = 0;
            for wish in [1, 4, 16, 64, 1000] {
                let found = sequences(Some(wish));
                assert!(found >= before.max(wish.min(unasked)), "{limit}: {wish}");
                before = found;
            }
        }
    }

    #[test]
    fn what_can_never_fit_is_told_with_all_the_memory_there_is() {
        let error = loader(SETTINGS, None)
            .plan_within(&long(), 20 << 20, Some(20 << 20))
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().contains("available 20.0 MB"), "{error}");
    }

    #[test]
    fn loading_takes_what_was_planned() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "llama_plain",
            "packed_q4_k",
            "llama_rope3_tied",
            "packed_mixed_k",
        ] {
            let to = dir.path().join("u").join(name);
            std::fs::create_dir_all(&to).unwrap();
            for entry in std::fs::read_dir(fixtures().join("models").join(name)).unwrap() {
                let from = entry.unwrap().path();
                let file = from.file_name().unwrap();
                if !file.to_str().unwrap().starts_with("expected") {
                    std::fs::copy(&from, to.join(file)).unwrap();
                }
            }
        }
        let models = store::scan(dir.path()).unwrap();
        assert_eq!(models.len(), 4);
        let loader = loader(SETTINGS, Some(64 << 20));
        for model in &models {
            let planned = loader.plan(model).unwrap();
            let Loaded { model, ended } = loader.load(model).unwrap();
            let info = model.info().clone();
            let taken = (info.weight_bytes + info.kv_bytes) as u64;
            assert!(taken < planned && planned < 64 << 20, "{planned} {info:?}");
            assert_eq!(info.max_queued, 3);
            drop(model);
            ended.join().unwrap();
        }
    }
}
