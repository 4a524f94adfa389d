//! [`ModelLoader`]: the loader of real checkpoints.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::load::{load_within, plan_memory};
use super::{LoadSettings, Loaded, Loader};
use crate::engine::worker::WorkerSettings;
use crate::error::{Error, Result};
use crate::formats;
use crate::memory;
use crate::model::plan::{Plan, Wish};
use crate::model::{read_config, weigh};
use crate::nn::WeightPath;
use crate::ops::Context;
use crate::store::LocalModel;
use crate::units::format_size;

/// One of so many parts of the machine's memory is left alone: for tokenizers, buffers of requests, and what other programs
/// need next.
const HEADROOM: u64 = 20;

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

    fn wish(&self) -> Wish {
        Wish {
            context: self.settings.max_context_len,
            max_num_seqs: self.settings.max_num_seqs,
        }
    }

    fn limit(&self) -> Option<u64> {
        self.memory_budget.into_iter().chain(self.capacity()).min()
    }

    /// Bytes for one of several models, weights included. A context that nobody asked for takes at most half of what the
    /// weights leave: one model with a long context would otherwise fill the memory and drive out every other.
    fn share(&self, limit: Option<u64>, weight_bytes: usize) -> Option<u64> {
        let weight_bytes = weight_bytes as u64;
        limit.map(|limit| match limit.checked_sub(weight_bytes) {
            Some(rest) if self.settings.max_context_len.is_none() => weight_bytes + rest / 2,
            _ => limit,
        })
    }

    fn plan_within(&self, model: &LocalModel, limit: Option<u64>) -> Result<Plan> {
        let path = model.load_path();
        let weights = formats::open(&path)?;
        let config = read_config(&weights, &path)?;
        let weight_bytes = weigh(&weights, &config, WeightPath::default());
        let share = self.share(limit, weight_bytes);
        let plan = plan_memory(&config, weight_bytes, self.wish(), share)?;
        let (name, own) = (&model.id, config.max_context);
        if let Some(wanted) = self.settings.max_context_len.filter(|&wanted| wanted > own) {
            tracing::warn!(model = %name, wanted, "the context is {own} tokens, the model was made for no more");
        }
        if let Some(wanted) = self
            .settings
            .max_num_seqs
            .filter(|&wanted| wanted > plan.max_num_seqs)
        {
            tracing::warn!(model = %name, wanted, "at most {} sequences run at once, the KV cache holds no more", plan.max_num_seqs);
        }
        tracing::info!(
            model = %name,
            weights = %format_size(plan.weight_bytes as u64),
            kv = %format_size(plan.kv_bytes as u64),
            activations = %format_size(plan.activation_bytes as u64),
            context = plan.context,
            of = own,
            sequences = plan.max_num_seqs,
            "planned"
        );
        Ok(plan)
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
        let plan = self
            .plan_within(model, limit)
            .map_err(|error: Error| error.context(format!("cannot load `{}`", model.id)))?;
        self.planned_for().insert(model.id.clone(), limit);
        Ok(plan.total_bytes() as u64)
    }

    fn load(&self, model: &LocalModel) -> Result<Loaded> {
        let planned_for = self.planned_for().remove(&model.id);
        let limit = planned_for.unwrap_or_else(|| self.limit());
        let settings = WorkerSettings {
            max_queued: self.settings.max_queued,
            ..WorkerSettings::default()
        };
        load_within(
            &model.id,
            &model.load_path(),
            self.ctx.sibling(),
            (self.wish(), settings),
            |weight_bytes| self.share(limit, weight_bytes),
        )
    }
}
