//! [`Host`]: the loaded models. Who is in memory is decided in `slots.rs`; this file and `loading.rs` carry it out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::catalog::{Catalog, unix_seconds};
use super::lease::{Claim, Lease};
use super::loading::Failures;
use super::slots::{Outcome, Phase, Slot, SlotId, Slots};
use super::view::{ModelEntry, ModelState, RunningModel};
use super::{HostSettings, KeepAlive, Loader, Observer};
use crate::error::{Error, Result};
use crate::model::ModelKind;
use crate::store::{self, LocalModel};
use crate::units::format_duration;

/// Uses of models are written to the registry at most so often.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// The loaded models: loads on demand, keeps within the memory budget, unloads what is idle.
pub struct Host {
    pub(super) settings: HostSettings,
    pub(super) loader: Arc<dyn Loader>,
    pub(super) observer: Arc<dyn Observer>,
    pub(super) catalog: Arc<Catalog>,
    state: Mutex<State>,
    /// Rung whenever a slot has changed; who waits for something looks again.
    pub(super) changes: watch::Sender<()>,
    pub(super) closing: CancellationToken,
    keeper: Once,
    /// Has a token of everybody who has something to write into the registry; the host does not end before they have.
    pub(super) writers: TaskTracker,
}

/// What is locked, always for a moment only.
#[derive(Default)]
pub(super) struct State {
    pub slots: Slots,
    pub failures: Failures,
    /// When models were last used, as far as the registry does not know it yet; in Unix seconds.
    uses: BTreeMap<String, u64>,
    saved: Option<Instant>,
}

/// What came of looking for a model in memory.
enum Found {
    Ready(Lease),
    /// Somebody loads it.
    Loading(Claim, watch::Receiver<Outcome>),
    /// It must leave before it can be loaded again.
    Leaving,
}

impl Host {
    /// A host without loaded models. Entries of the registry whose models are gone are removed.
    pub fn new(
        settings: HostSettings,
        loader: Arc<dyn Loader>,
        observer: Arc<dyn Observer>,
    ) -> Arc<Self> {
        let catalog = Catalog::new(settings.models_dir.clone());
        catalog.reconcile();
        Arc::new(Self {
            settings,
            loader,
            observer,
            catalog: Arc::new(catalog),
            state: Mutex::default(),
            changes: watch::Sender::new(()),
            closing: CancellationToken::new(),
            keeper: Once::new(),
            writers: TaskTracker::new(),
        })
    }

    /// The canonical id of the one model that `name` means. Looks at the disk at most, never loads.
    ///
    /// # Errors
    /// `NotFound` when there is no such model, `Invalid` when the name fits several, is none, or means a model that is
    /// incomplete.
    pub fn resolve(&self, name: &str) -> Result<String> {
        store::check_requested(name)?;
        if self.lock().slots.find(name).is_some() {
            return Ok(name.to_owned());
        }
        Ok(self.catalog.resolve(name)?.id)
    }

    /// The model that `name` means, loaded on demand. All who wait for a model share one load; when the last of them gives
    /// up, a load that waits for memory is given up too, and one that has begun goes on.
    ///
    /// # Errors
    /// `NotFound` when there is no such model, `Invalid` when the name fits several or is none, `OutOfMemory` when it cannot
    /// fit, `Unavailable` when the host shuts down, and those of loading.
    pub async fn acquire(self: &Arc<Self>, name: &str) -> Result<Lease> {
        self.start_keeper();
        let local = self.locate(name).await?;
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            match self.enter(&local)? {
                Found::Ready(lease) => return Ok(lease),
                Found::Loading(claim, outcome) => return self.wait_for_load(claim, outcome).await,
                Found::Leaving => tokio::select! {
                    _ = changes.changed() => {}
                    () = self.closing.cancelled() => return Err(shutting_down()),
                },
            }
        }
    }

    /// What the model with this canonical id does, as far as its files say; `Chat` when there is no such model. Looks at the disk at
    /// most.
    pub fn kind(&self, id: &str) -> ModelKind {
        let models = self.catalog.models().unwrap_or_default();
        let local = models.iter().find(|local| local.id == id);
        local.map_or(ModelKind::Chat, |local| self.catalog.describe(local).kind)
    }

    /// All local models with what is known about them, sorted by id. Reads the disk when something has changed there.
    ///
    /// # Errors
    /// `Io` when the models directory cannot be read.
    pub fn list(&self) -> Result<Vec<ModelEntry>> {
        let models = self.catalog.models()?;
        let registry = self.catalog.registry();
        let used = self.lock().last_uses();
        let entry = |local: &LocalModel| {
            let described = self.catalog.describe(local);
            let known = registry.get(&local.id);
            let saved = known.map_or(0, |known| known.last_used_secs);
            // A model that was changed since is another one.
            let loaded = known.filter(|known| known.last_used_secs >= described.changed_secs);
            ModelEntry {
                id: local.id.clone(),
                created_secs: described.changed_secs,
                architecture: local.architecture.clone(),
                kind: described.kind,
                vocab_size: described.geometry.vocab_size,
                num_layers: described.geometry.num_layers,
                size_bytes: loaded.map_or(local.size_bytes, |known| known.size_bytes),
                last_used_secs: saved.max(used.get(&local.id).copied().unwrap_or(0)),
                missing: local.missing.clone(),
            }
        };
        Ok(models.iter().map(entry).collect())
    }

    /// The models in memory and on their way, sorted by id.
    pub fn running(&self) -> Vec<RunningModel> {
        let now = Instant::now();
        self.lock()
            .slots
            .iter()
            .map(|slot| shown(slot, now))
            .collect()
    }

    /// Bytes that all models together may take, when that was limited.
    pub fn memory_budget(&self) -> Option<u64> {
        self.settings.memory_budget
    }

    /// Unloads all models and returns when their memory is free. From now on [`Host::acquire`] is refused, and whoever waits
    /// for a load is told. Waits for leases that are still held and for a load that has begun.
    pub async fn shutdown(self: &Arc<Self>) {
        self.closing.cancel();
        let mut changes = self.changes.subscribe();
        loop {
            changes.borrow_and_update();
            let ready = self.lock().slots.ready();
            ready.into_iter().for_each(|id| self.unload(id));
            if self.lock().slots.is_empty() {
                break;
            }
            if changes.changed().await.is_err() {
                break;
            }
        }
        self.save_uses().await;
        self.writers.close();
        self.writers.wait().await;
    }

    async fn locate(&self, name: &str) -> Result<LocalModel> {
        store::check_requested(name)?;
        if let Some(slot) = self.lock().slots.find(name) {
            return Ok(slot.local.clone());
        }
        let (catalog, text) = (Arc::clone(&self.catalog), name.to_owned());
        let resolve = tokio::task::spawn_blocking(move || catalog.resolve(&text));
        let local = resolve
            .await
            .map_err(|_| Error::internal(format!("looking for the model `{name}` failed")))??;
        if local.id != name {
            tracing::debug!(name, id = %local.id, "a name was completed");
        }
        Ok(local)
    }

    /// Finds the slot of a model, or makes one and begins to load.
    fn enter(self: &Arc<Self>, local: &LocalModel) -> Result<Found> {
        if self.closing.is_cancelled() {
            return Err(shutting_down());
        }
        let now = Instant::now();
        let mut state = self.lock();
        state.forget_dead(&self.changes);
        if state.slots.find(&local.id).is_none() {
            state.failures.check(&local.id, now)?;
            let id = state
                .slots
                .insert(local.clone(), self.settings.keep_alive, now);
            tokio::spawn(Arc::clone(self).load(id, local.clone()));
        }
        let slot = state.slots.find(&local.id).expect("inserted above");
        let (id, outcome) = (slot.id, slot.outcome.subscribe());
        let model = match &slot.phase {
            Phase::Leaving => return Ok(Found::Leaving),
            Phase::Ready { .. } if slot.drains => return Ok(Found::Leaving),
            Phase::Ready { model, .. } => Some(model.clone()),
            Phase::Planning | Phase::Waiting { .. } | Phase::Loading => None,
        };
        state.slots.begin_use(id, now);
        let claim = Claim::new(Arc::clone(self), id);
        Ok(match model {
            Some(model) => Found::Ready(Lease::new(local.id.clone(), model, claim)),
            None => Found::Loading(claim, outcome),
        })
    }

    async fn wait_for_load(
        &self,
        claim: Claim,
        mut outcome: watch::Receiver<Outcome>,
    ) -> Result<Lease> {
        let outcome = tokio::select! {
            outcome = outcome.wait_for(Option::is_some) => outcome,
            () = self.closing.cancelled() => return Err(shutting_down()),
        };
        match outcome.as_deref() {
            Ok(Some(Ok(()))) => {}
            Ok(Some(Err(error))) => return Err(error.clone()),
            Ok(None) | Err(_) => return Err(Error::internal("a load ended without a result")),
        }
        drop(outcome);
        match self.lock().slots.find_id(claim.slot()) {
            Some(Slot {
                phase: Phase::Ready { model, .. },
                local,
                ..
            }) => Ok(Lease::new(local.id.clone(), model.clone(), claim)),
            _ => Err(Error::unavailable("the model was unloaded").with_hint("try again")),
        }
    }

    /// Lets a model that is ready go: when its memory is free the slot is removed. A lease that is held delays that.
    pub(super) fn unload(self: &Arc<Self>, id: SlotId) {
        let (model, ended, name) = {
            let mut state = self.lock();
            let Some(slot) = state.slots.find_id(id) else {
                return;
            };
            match std::mem::replace(&mut slot.phase, Phase::Leaving) {
                Phase::Ready { model, ended } => (model, ended, slot.local.id.clone()),
                other => {
                    slot.phase = other;
                    return;
                }
            }
        };
        self.changes.send_replace(());
        let host = Arc::clone(self);
        tokio::spawn(async move {
            let begin = Instant::now();
            let freed = tokio::task::spawn_blocking(move || {
                drop(model);
                // A worker that died has freed its memory too.
                let _ = ended.join();
            });
            let _ = freed.await;
            host.lock().slots.remove(id);
            host.changes.send_replace(());
            tracing::info!(model = %name, took = %format_duration(begin.elapsed()), "unloaded");
            host.observer.unloaded(&name);
            host.save_uses().await;
        });
    }

    /// The end of a use.
    pub(super) fn release(&self, id: SlotId, keep_alive: Option<KeepAlive>) {
        let keep_alive = keep_alive.unwrap_or(self.settings.keep_alive);
        {
            let mut state = self.lock();
            state.slots.end_use(id, keep_alive, Instant::now());
            if let Some(slot) = state.slots.find_id(id) {
                let model = slot.local.id.clone();
                state.uses.insert(model, unix_seconds(SystemTime::now()));
            }
        }
        self.changes.send_replace(());
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under the lock except by a defect, and numbers are whole then too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the task that unloads idle models. It ends with the host.
    fn start_keeper(self: &Arc<Self>) {
        self.keeper.call_once(|| {
            let changes = self.changes.subscribe();
            tokio::spawn(keep(Arc::downgrade(self), changes));
        });
    }

    /// Unloads what has been idle for long enough and says when to look again, if ever.
    fn keep(self: &Arc<Self>) -> Option<Instant> {
        let now = Instant::now();
        let (expired, save) = {
            let mut state = self.lock();
            state.forget_dead(&self.changes);
            (state.slots.expired(now), state.must_save(now))
        };
        for id in expired {
            self.unload(id);
        }
        if save {
            let host = Arc::clone(self);
            tokio::spawn(async move { host.save_uses().await });
        }
        self.lock().next_look()
    }

    async fn save_uses(&self) {
        let _writer = self.writers.token();
        let uses = {
            let mut state = self.lock();
            state.saved = Some(Instant::now());
            std::mem::take(&mut state.uses)
        };
        if uses.is_empty() {
            return;
        }
        let catalog = Arc::clone(&self.catalog);
        let _ = tokio::task::spawn_blocking(move || catalog.record_uses(&uses)).await;
    }
}

/// The task of [`Host::start_keeper`].
async fn keep(host: Weak<Host>, mut changes: watch::Receiver<()>) {
    loop {
        changes.borrow_and_update();
        let Some(next) = host.upgrade().map(|host| host.keep()) else {
            return;
        };
        let sleep = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = sleep => {}
        }
    }
}

impl State {
    /// Removes models whose workers have ended by themselves: the next request loads them again.
    pub fn forget_dead(&mut self, changes: &watch::Sender<()>) {
        for id in self.slots.dead() {
            if let Some(slot) = self.slots.remove(id) {
                tracing::error!(model = %slot.local.id, "the model's worker has ended unexpectedly");
                changes.send_replace(());
            }
        }
    }

    fn must_save(&self, now: Instant) -> bool {
        !self.uses.is_empty() && self.saved.is_none_or(|at| now >= at + SAVE_INTERVAL)
    }

    fn next_look(&self) -> Option<Instant> {
        let save = (!self.uses.is_empty())
            .then_some(self.saved)
            .flatten()
            .map(|at| at + SAVE_INTERVAL);
        self.slots.next_expiry().into_iter().chain(save).min()
    }

    /// When models in memory were last used, in Unix seconds.
    fn last_uses(&self) -> BTreeMap<String, u64> {
        let (now, clock) = (Instant::now(), unix_seconds(SystemTime::now()));
        self.slots
            .iter()
            .filter(|slot| matches!(slot.phase, Phase::Ready { .. }))
            .map(|slot| {
                let idle = if slot.users > 0 {
                    0
                } else {
                    now.saturating_duration_since(slot.last_used).as_secs()
                };
                (slot.local.id.clone(), clock.saturating_sub(idle))
            })
            .collect()
    }
}

fn shown(slot: &Slot, now: Instant) -> RunningModel {
    let (stats, kv_blocks) = match &slot.phase {
        Phase::Ready { model, .. } => (model.stats(), model.info().num_blocks),
        _ => Default::default(),
    };
    let state = match slot.phase {
        Phase::Planning | Phase::Waiting { .. } | Phase::Loading => ModelState::Loading,
        Phase::Ready { .. } => ModelState::Ready,
        Phase::Leaving => ModelState::Unloading,
    };
    let is_used = slot.users > 0 || state == ModelState::Loading;
    RunningModel {
        id: slot.local.id.clone(),
        state,
        architecture: slot.local.architecture.clone(),
        kind: slot.facts.kind,
        vocab_size: slot.facts.vocab_size,
        num_layers: slot.facts.num_layers,
        users: slot.users,
        idle: if is_used {
            Duration::ZERO
        } else {
            now.saturating_duration_since(slot.last_used)
        },
        weight_bytes: slot.facts.weight_bytes,
        kv_bytes: slot.facts.kv_bytes,
        total_bytes: slot.bytes,
        kv_blocks,
        kv_blocks_used: stats.used_blocks,
        kv_blocks_cached: stats.cached_blocks,
        waiting: stats.waiting,
        running: stats.running,
    }
}

pub(super) fn shutting_down() -> Error {
    Error::unavailable("the server is shutting down")
}
