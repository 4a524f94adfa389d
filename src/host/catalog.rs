//! The models on disk as the host sees them: a scan that is kept while nothing changes, and the registry file.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::error::Result;
use crate::model::ModelKind;
use crate::store::{
    self, Geometry, LocalModel, Registry, RegistryEntry, load_registry, update_registry,
};

/// A scan is repeated after so long even if no folder has changed: files may have grown.
const MAX_AGE: Duration = Duration::from_secs(5);

/// Folders with the times of their last change.
type Fingerprint = Vec<(PathBuf, Option<SystemTime>)>;

/// The models directory.
pub(super) struct Catalog {
    dir: PathBuf,
    scanned: Mutex<Option<Scanned>>,
    /// By the path that is loaded and the time of its last change.
    geometries: Mutex<HashMap<(PathBuf, u64), (Geometry, ModelKind)>>,
}

struct Scanned {
    at: Instant,
    fingerprint: Fingerprint,
    models: Arc<Vec<LocalModel>>,
}

/// What a model's files say about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Description {
    pub geometry: Geometry,
    /// What it does.
    pub kind: ModelKind,
    /// Last change of its folder or file, in Unix seconds.
    pub changed_secs: u64,
}

impl Catalog {
    pub fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            scanned: Mutex::default(),
            geometries: Mutex::default(),
        }
    }

    /// All models, sorted. Reads the disk only when a folder has changed or the last scan is old.
    pub fn models(&self) -> Result<Arc<Vec<LocalModel>>> {
        let fingerprint = fingerprint(&self.dir);
        let mut scanned = lock(&self.scanned);
        if let Some(known) = &*scanned
            && known.fingerprint == fingerprint
            && known.at.elapsed() < MAX_AGE
        {
            return Ok(Arc::clone(&known.models));
        }
        // The time before the scan counts: what changes meanwhile is seen the next time.
        let at = Instant::now();
        let models = Arc::new(store::scan(&self.dir)?);
        *scanned = Some(Scanned {
            at,
            fingerprint,
            models: Arc::clone(&models),
        });
        Ok(models)
    }

    /// The one model that `text` means.
    pub fn resolve(&self, text: &str) -> Result<LocalModel> {
        store::check_requested(text)?;
        store::resolve_unique(&self.models()?, text)
    }

    /// What the files of `local` say about it; headers are read once.
    pub fn describe(&self, local: &LocalModel) -> Description {
        let path = local.load_path();
        let changed_secs = std::fs::metadata(&path)
            .and_then(|metadata| metadata.modified())
            .map_or(0, unix_seconds);
        let key = (path, changed_secs);
        let known = lock(&self.geometries).get(&key).copied();
        let (geometry, kind) = known.unwrap_or_else(|| {
            let described = (Geometry::of(local), local.kind());
            lock(&self.geometries).insert(key, described);
            described
        });
        Description {
            geometry,
            kind,
            changed_secs,
        }
    }

    /// What was learned by loading.
    pub fn registry(&self) -> Registry {
        load_registry(&self.dir)
    }

    /// Forgets the entries of models that are gone.
    pub fn reconcile(&self) {
        let reconciled = self.models().and_then(|models| {
            update_registry(&self.dir, |registry| {
                registry.retain(|id, _| models.iter().any(|model| model.id == *id));
            })
        });
        warn_about(reconciled);
    }

    /// Writes down what loading `id` taught; fields of newer programs stay.
    pub fn record(&self, id: &str, learned: RegistryEntry) {
        warn_about(update_registry(&self.dir, |registry| {
            let entry = registry.entry(id.to_owned()).or_default();
            let other = std::mem::take(&mut entry.other);
            *entry = RegistryEntry { other, ..learned };
        }));
    }

    /// Writes down when models were last used, in Unix seconds.
    pub fn record_uses(&self, uses: &BTreeMap<String, u64>) {
        if uses.is_empty() {
            return;
        }
        warn_about(update_registry(&self.dir, |registry| {
            for (id, &secs) in uses {
                if let Some(entry) = registry.get_mut(id) {
                    entry.last_used_secs = entry.last_used_secs.max(secs);
                }
            }
        }));
    }
}

/// A registry that cannot be written must not stop a model from answering.
fn warn_about(written: Result<()>) {
    if let Err(error) = written {
        tracing::warn!(error = %error.chain(), "the model registry was not written");
    }
}

/// The folders that a scan looks into, and when they last changed: models come, go and are renamed by that.
fn fingerprint(dir: &Path) -> Fingerprint {
    let mut folders = vec![dir.to_owned()];
    let children: Vec<PathBuf> = subfolders(dir);
    folders.extend(children.iter().flat_map(|child| subfolders(child)));
    folders.extend(children);
    folders.sort();
    let changed = |folder: &PathBuf| std::fs::metadata(folder).and_then(|m| m.modified()).ok();
    folders
        .into_iter()
        .map(|folder| {
            let time = changed(&folder);
            (folder, time)
        })
        .collect()
}

fn subfolders(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect()
}

/// Seconds since 1970; 0 for what is earlier.
pub(super) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
