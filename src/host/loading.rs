//! The life of a load: plan, wait for memory, load, tell everybody who waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::catalog::unix_seconds;
use super::models::{Host, shutting_down};
use super::slots::{Admission, Facts, Phase, SlotId, Slots};
use super::{AnyModel, Loaded};
use crate::error::{Error, Result};
use crate::store::{LocalModel, RegistryEntry, Weights};
use crate::units::{format_duration, format_size};

/// Longest time that a model which fails to load is left alone.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Models that failed to load, and how long they are left alone: a failing load costs as much as a good one.
#[derive(Debug, Default)]
pub(super) struct Failures(BTreeMap<String, Failure>);

#[derive(Debug)]
struct Failure {
    in_a_row: u32,
    retry_at: Instant,
    error: Error,
}

impl Failures {
    /// Refuses a model that failed twice and was not left alone for long enough.
    pub fn check(&self, model: &str, now: Instant) -> Result<()> {
        match self.0.get(model) {
            Some(failure) if now < failure.retry_at => Err(failure.error.clone().context(format!(
                "not tried for another {} after {} failures in a row",
                format_duration(failure.retry_at - now),
                failure.in_a_row
            ))),
            _ => Ok(()),
        }
    }

    /// The first failure is free, then the pause doubles.
    fn add(&mut self, model: &str, error: &Error, now: Instant) {
        let failure = self.0.entry(model.to_owned()).or_insert_with(|| Failure {
            in_a_row: 0,
            retry_at: now,
            error: error.clone(),
        });
        failure.in_a_row += 1;
        failure.error = error.clone();
        let pause = match failure.in_a_row {
            1 => Duration::ZERO,
            n => Duration::from_secs(1 << (n - 2).min(10)).min(LONGEST_PAUSE),
        };
        failure.retry_at = now + pause;
    }

    fn forget(&mut self, model: &str) {
        self.0.remove(model);
    }
}

/// Why a load came to nothing.
enum Stopped {
    /// Nobody wants it any more, and its slot is gone.
    Unwanted,
    /// It could not begin.
    Refused(Error),
    /// The attempt failed.
    Failed(Error),
}

impl Host {
    /// Fills the slot `id` with the model `local`, or removes it.
    pub(super) async fn load(self: Arc<Self>, id: SlotId, local: LocalModel) {
        let error = match self.try_load(id, &local).await {
            Ok(()) | Err(Stopped::Unwanted) => return,
            Err(Stopped::Refused(error)) => error,
            Err(Stopped::Failed(error)) => {
                let now = Instant::now();
                self.lock().failures.add(&local.id, &error, now);
                error
            }
        };
        if let Some(slot) = self.lock().slots.remove(id) {
            slot.outcome.send_replace(Some(Err(error.clone())));
        }
        self.changes.send_replace(());
        tracing::warn!(model = %local.id, error = %error.chain(), "not loaded");
        self.observer.load_failed(&local.id, &error);
    }

    async fn try_load(self: &Arc<Self>, id: SlotId, local: &LocalModel) -> Result<(), Stopped> {
        let (host, model) = (Arc::clone(self), local.clone());
        let plan = move || {
            let described = host.catalog.describe(&model);
            Ok((host.loader.plan(&model)?, described))
        };
        let (bytes, described) = guarded(local, plan).await.map_err(Stopped::Refused)?;
        if let Some(slot) = self.lock().slots.find_id(id) {
            slot.bytes = bytes;
            slot.facts.kind = described.kind;
            slot.facts.vocab_size = described.geometry.vocab_size;
            slot.facts.num_layers = described.geometry.num_layers;
            slot.phase = Phase::Waiting {
                since: Instant::now(),
            };
        }
        self.wait_for_memory(id).await?;
        tracing::info!(model = %local.id, needs = %format_size(bytes), "loading");
        let begin = Instant::now();
        let (host, model) = (Arc::clone(self), local.clone());
        let loaded = guarded(local, move || host.loader.load(&model)).await;
        let loaded = loaded.map_err(Stopped::Failed)?;
        // Before anybody sees the model, so that no end comes between.
        let _writer = self.writers.token();
        let (model, facts) = self.install(id, local, loaded).await?;
        tracing::info!(model = %local.id, took = %format_duration(begin.elapsed()), "loaded");
        self.observer.loaded(&local.id, &model, begin.elapsed());
        drop(model);
        self.record(facts, local).await;
        Ok(())
    }

    /// Waits until the slot has its memory.
    async fn wait_for_memory(self: &Arc<Self>, id: SlotId) -> Result<(), Stopped> {
        let mut changes = self.changes.subscribe();
        let since = Instant::now();
        loop {
            changes.borrow_and_update();
            if self.closing.is_cancelled() {
                return Err(Stopped::Refused(shutting_down()));
            }
            let now = Instant::now();
            match self.ask_for_memory(id, now) {
                Admission::Granted => return Ok(()),
                Admission::Unwanted => return Err(Stopped::Unwanted),
                Admission::Refused(error) => return Err(Stopped::Refused(error)),
                Admission::Wait { leaving } => leaving.into_iter().for_each(|id| self.unload(id)),
            }
            // Also when nothing changes here: other programs may give memory back.
            let patience = since + Slots::PATIENCE;
            let look_again = patience.max(now + Slots::PATIENCE / 10);
            tokio::select! {
                _ = changes.changed() => {}
                () = self.closing.cancelled() => {}
                () = tokio::time::sleep_until(if now < patience { patience } else { look_again }) => {}
            }
        }
    }

    fn ask_for_memory(&self, id: SlotId, now: Instant) -> Admission {
        let budget = self.settings.memory_budget.into_iter();
        let limit = budget.chain(self.loader.capacity()).min();
        let mut state = self.lock();
        state.forget_dead(&self.changes);
        let admission = state.slots.admit(id, limit, now);
        match admission {
            // Under the same lock: who comes now finds no slot and makes one.
            Admission::Unwanted => drop(state.slots.remove(id)),
            Admission::Granted | Admission::Refused(_) => {}
            Admission::Wait { .. } => return admission,
        }
        // Models that stopped to take requests may do so again.
        self.changes.send_replace(());
        admission
    }

    /// Makes the loaded model available, unless it is dead already or took more than the budget.
    async fn install(
        self: &Arc<Self>,
        id: SlotId,
        local: &LocalModel,
        loaded: Loaded,
    ) -> Result<(AnyModel, Facts), Stopped> {
        let Loaded { model, ended } = loaded;
        let info = model.info();
        let (weight_bytes, kv_bytes) = (info.weight_bytes as u64, info.kv_bytes as u64);
        let vocab_size = info.vocab_size as u64;
        let problem = if self.closing.is_cancelled() {
            Some(Stopped::Refused(shutting_down()))
        } else if ended.is_finished() {
            let text = format!("the worker of `{}` ended while it was loaded", local.id);
            Some(Stopped::Failed(Error::internal(text)))
        } else {
            let taken = weight_bytes + kv_bytes;
            let budget = self.settings.memory_budget;
            let above = budget.filter(|&budget| taken > budget);
            above.map(|budget| Stopped::Failed(took_too_much(local, taken, budget)))
        };
        if let Some(problem) = problem {
            let freed = tokio::task::spawn_blocking(move || {
                drop(model);
                let _ = ended.join();
            });
            let _ = freed.await;
            return Err(problem);
        }
        let facts = {
            let mut state = self.lock();
            state.failures.forget(&local.id);
            let slot = state
                .slots
                .find_id(id)
                .expect("a load's slot stays until it ends");
            slot.facts = Facts {
                vocab_size,
                weight_bytes,
                kv_bytes,
                ..slot.facts
            };
            slot.bytes = slot.bytes.max(weight_bytes + kv_bytes);
            slot.last_used = Instant::now();
            slot.phase = Phase::Ready {
                model: model.clone(),
                ended,
            };
            slot.outcome.send_replace(Some(Ok(())));
            slot.facts
        };
        self.changes.send_replace(());
        Ok((model, facts))
    }

    /// Writes to the registry what the load has taught, even when the model has left again meanwhile.
    async fn record(&self, facts: Facts, local: &LocalModel) {
        let learned = RegistryEntry {
            architecture: match &local.weights {
                Weights::Gguf { .. } => "GGUF".to_owned(),
                Weights::Safetensors(_) => local.architecture.clone(),
            },
            vocab_size: facts.vocab_size,
            num_layers: facts.num_layers,
            size_bytes: facts.weight_bytes,
            kv_cache_bytes: facts.kv_bytes,
            last_used_secs: unix_seconds(SystemTime::now()),
            ..RegistryEntry::default()
        };
        let (catalog, name) = (Arc::clone(&self.catalog), local.id.clone());
        let _ = tokio::task::spawn_blocking(move || catalog.record(&name, learned)).await;
    }
}

fn took_too_much(local: &LocalModel, taken: u64, budget: u64) -> Error {
    Error::out_of_memory(format!(
        "the model `{}` took {} when it was loaded, and the memory budget is {}",
        local.id,
        format_size(taken),
        format_size(budget)
    ))
    .with_hint(
        "choose a smaller quantisation, a smaller --max-context-len or a larger --memory-budget",
    )
}

/// Runs `work` on a thread where it may block. A panic in it is an error.
async fn guarded<T: Send + 'static>(
    local: &LocalModel,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(failed) => {
            let why = failed
                .try_into_panic()
                .ok()
                .and_then(|payload| {
                    let text = payload
                        .downcast_ref::<&str>()
                        .map(|text| (*text).to_owned());
                    text.or_else(|| payload.downcast_ref::<String>().cloned())
                })
                .unwrap_or_else(|| "the loader was stopped".to_owned());
            Err(Error::internal(format!(
                "loading `{}` failed: {why}",
                local.id
            )))
        }
    }
}
