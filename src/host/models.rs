//! [`Host`]: the loaded models.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{HostSettings, KeepAlive, Loaded, Loader, Model, Observer};
use crate::error::{Error, Result};
use crate::store;

/// A local model, loaded or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelEntry {
    /// The canonical id.
    pub id: String,
    /// Modification time of its folder or file, in Unix seconds.
    pub created_secs: u64,
    /// Class name, or GGUF architecture followed by ` (GGUF)`.
    pub architecture: String,
    /// Rows of the output matrix; 0 when the files do not say.
    pub vocab_size: u64,
    /// Layers; 0 when the files do not say.
    pub num_layers: u64,
    /// Bytes of the weights as loaded the last time, of the files when it never was.
    pub size_bytes: u64,
    /// When it was last used, in Unix seconds; 0 when it never was.
    pub last_used_secs: u64,
    /// Files that are missing; it can be loaded when there are none.
    pub missing: Vec<String>,
}

/// What a model is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelState {
    /// Being loaded, or waiting for memory to be freed.
    Loading,
    /// Answers requests.
    Ready,
    /// Leaving memory.
    Unloading,
}

/// A model in memory, or on its way there or back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningModel {
    /// The canonical id.
    pub id: String,
    /// What it is doing.
    pub state: ModelState,
    /// Class name, or GGUF architecture followed by ` (GGUF)`.
    pub architecture: String,
    /// Rows of the output matrix; 0 while loading.
    pub vocab_size: u64,
    /// Layers; 0 when not known.
    pub num_layers: u64,
    /// How long nobody has used it; zero while somebody does.
    pub idle: Duration,
    /// Bytes of weights; 0 while loading.
    pub weight_bytes: u64,
    /// Bytes of the KV cache; 0 while loading.
    pub kv_bytes: u64,
    /// All bytes that count against the budget.
    pub total_bytes: u64,
    /// Sequences that wait.
    pub waiting: usize,
    /// Sequences that compute.
    pub running: usize,
}

struct Slot {
    model: Arc<Model>,
    ended: std::thread::JoinHandle<()>,
    last_used: Instant,
}

/// The loaded models: loads on demand, keeps within the memory budget, unloads what is idle.
pub struct Host {
    settings: HostSettings,
    loader: Arc<dyn Loader>,
    observer: Arc<dyn Observer>,
    slots: tokio::sync::Mutex<BTreeMap<String, Slot>>,
}

/// The right to use a loaded model: it is not unloaded while a lease lives. Keep it as long as the answer runs.
pub struct Lease {
    id: String,
    model: Arc<Model>,
}

impl Host {
    /// A host without loaded models.
    pub fn new(
        settings: HostSettings,
        loader: Arc<dyn Loader>,
        observer: Arc<dyn Observer>,
    ) -> Arc<Self> {
        Arc::new(Self {
            settings,
            loader,
            observer,
            slots: tokio::sync::Mutex::default(),
        })
    }

    /// The canonical id of the one model that `name` means. Looks at the disk, never loads.
    ///
    /// # Errors
    /// `NotFound` when there is no such model, `Invalid` when the name fits several or is none.
    pub fn resolve(&self, name: &str) -> Result<String> {
        Ok(store::resolve_exact(&self.settings.models_dir, name)?.id)
    }

    /// The model that `name` means, loaded on demand. All who wait for a model share one load.
    ///
    /// # Errors
    /// `NotFound` when there is no such model, `Invalid` when the name fits several or is none, `OutOfMemory` when it cannot
    /// fit, `Unavailable` when the host shuts down, and those of loading.
    pub async fn acquire(self: &Arc<Self>, name: &str) -> Result<Lease> {
        let local = store::resolve_exact(&self.settings.models_dir, name)?;
        let mut slots = self.slots.lock().await;
        if !slots.contains_key(&local.id) {
            let (loader, model) = (Arc::clone(&self.loader), local.clone());
            let begin = Instant::now();
            let Loaded { model, ended } = tokio::task::spawn_blocking(move || loader.load(&model))
                .await
                .map_err(|_| Error::internal("the loader failed"))??;
            self.observer.loaded(&local.id, &model, begin.elapsed());
            let slot = Slot {
                model: Arc::new(model),
                ended,
                last_used: Instant::now(),
            };
            slots.insert(local.id.clone(), slot);
        }
        let slot = slots.get_mut(&local.id).expect("inserted above");
        slot.last_used = Instant::now();
        Ok(Lease {
            id: local.id,
            model: Arc::clone(&slot.model),
        })
    }

    /// All local models, sorted by id.
    ///
    /// # Errors
    /// `Io` when the models directory cannot be read.
    pub fn list(&self) -> Result<Vec<ModelEntry>> {
        let registry = store::load_registry(&self.settings.models_dir);
        let models = store::scan(&self.settings.models_dir)?;
        let entry = |model: store::LocalModel| {
            let known = registry.get(&model.id);
            ModelEntry {
                created_secs: 0,
                vocab_size: known.map_or(0, |known| known.vocab_size),
                num_layers: known.map_or(0, |known| known.num_layers),
                last_used_secs: known.map_or(0, |known| known.last_used_secs),
                id: model.id,
                architecture: model.architecture,
                size_bytes: model.size_bytes,
                missing: model.missing,
            }
        };
        Ok(models.into_iter().map(entry).collect())
    }

    /// The models in memory, sorted by id.
    pub fn running(&self) -> Vec<RunningModel> {
        let Ok(slots) = self.slots.try_lock() else {
            return Vec::new();
        };
        let running = |(id, slot): (&String, &Slot)| {
            let (info, stats) = (slot.model.engine().info(), slot.model.engine().stats());
            RunningModel {
                id: id.clone(),
                state: ModelState::Ready,
                architecture: String::new(),
                vocab_size: info.vocab_size as u64,
                num_layers: 0,
                idle: slot.last_used.elapsed(),
                weight_bytes: info.weight_bytes as u64,
                kv_bytes: info.kv_bytes as u64,
                total_bytes: (info.weight_bytes + info.kv_bytes) as u64,
                waiting: stats.waiting,
                running: stats.running,
            }
        };
        slots.iter().map(running).collect()
    }

    /// Bytes that all models together may take, when that was limited.
    pub fn memory_budget(&self) -> Option<u64> {
        self.settings.memory_budget
    }

    /// Unloads all models and returns when their memory is free. From now on [`Host::acquire`] is refused.
    pub async fn shutdown(&self) {
        let slots = std::mem::take(&mut *self.slots.lock().await);
        for (id, slot) in slots {
            drop(slot.model);
            let ended = slot.ended;
            let _ = tokio::task::spawn_blocking(move || ended.join()).await;
            self.observer.unloaded(&id);
        }
    }
}

impl Lease {
    /// The canonical id of the model.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The model. A clone of it does not keep it loaded, but delays the end of its unloading.
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// From the end of this lease on, the model stays for `keep_alive` after its last use.
    pub fn set_keep_alive(&self, keep_alive: KeepAlive) {
        let _ = keep_alive;
    }
}
