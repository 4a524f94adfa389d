//! The registry file: what the server learned about each model when it loaded it. Keys are canonical ids.
//!
//! Written whole to a temporary file and renamed, under a lock. Fields that a newer program wrote are kept. A file that is no
//! registry is set aside as `.bad` before a new one takes its place.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::REGISTRY_FILE;
use super::lock::Lock;
use super::manifest::write_atomically;
use super::scan::read_small_file;
use crate::error::{Error, Result};

/// What is known about one model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RegistryEntry {
    /// Class name, or `GGUF`.
    #[serde(default)]
    pub architecture: String,
    /// Rows of the output matrix.
    #[serde(default)]
    pub vocab_size: u64,
    /// Transformer layers.
    #[serde(default)]
    pub num_layers: u64,
    /// Bytes of the weights as loaded.
    #[serde(default)]
    pub size_bytes: u64,
    /// Bytes of the KV pool under the settings of that load; 0 in old files.
    #[serde(default)]
    pub kv_cache_bytes: u64,
    /// When it was last used, in Unix seconds.
    #[serde(default)]
    pub last_used_secs: u64,
    /// Fields of newer programs.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The registry's entries by model id, sorted.
pub type Registry = BTreeMap<String, RegistryEntry>;

/// Reads the registry; a missing file is an empty registry, a malformed one too (and is logged).
pub fn load_registry(models_dir: &Path) -> Registry {
    read(models_dir).unwrap_or_else(|why| {
        tracing::warn!(path = %models_dir.join(REGISTRY_FILE).display(), why, "the model registry is malformed, ignoring it");
        Registry::new()
    })
}

/// Changes the registry under its lock: read, `change`, write. Nothing is written when nothing changed.
///
/// # Errors
/// `Io` when the lock or the file fails.
pub fn update_registry(models_dir: &Path, change: impl FnOnce(&mut Registry)) -> Result<()> {
    let _lock = Lock::wait_registry(models_dir)?;
    let path = models_dir.join(REGISTRY_FILE);
    let before = read(models_dir);
    let mut registry = before.clone().unwrap_or_default();
    change(&mut registry);
    if before.as_ref() == Ok(&registry) {
        return Ok(());
    }
    if let Err(why) = before {
        let bad = models_dir.join(format!("{REGISTRY_FILE}.bad"));
        tracing::warn!(path = %path.display(), why, kept = %bad.display(), "the model registry is malformed, starting a new one");
        fs::rename(&path, &bad).map_err(|cause| Error::io("set aside", &path, cause))?;
    }
    let text = serde_json::to_string_pretty(&registry)
        .map_err(|cause| Error::internal("cannot write the registry as JSON").with_source(cause))?;
    write_atomically(&path, format!("{text}\n").as_bytes())
}

fn read(models_dir: &Path) -> std::result::Result<Registry, String> {
    let path = models_dir.join(REGISTRY_FILE);
    if !path.exists() {
        return Ok(Registry::new());
    }
    let text = read_small_file(&path).ok_or("it cannot be read or is too large")?;
    serde_json::from_slice(&text).map_err(|cause| cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(size_bytes: u64) -> RegistryEntry {
        RegistryEntry {
            architecture: "GGUF".into(),
            size_bytes,
            ..RegistryEntry::default()
        }
    }

    #[test]
    fn old_files_without_kv_bytes_are_read_and_unknown_fields_survive_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(REGISTRY_FILE);
        let old = r#"{"z/m": {"architecture": "X", "vocab_size": 1, "num_layers": 2, "size_bytes": 3, "last_used_secs": 4, "mood": "good"}}"#;
        fs::write(&path, old).unwrap();
        assert_eq!(load_registry(dir.path())["z/m"].kv_cache_bytes, 0);
        update_registry(dir.path(), |registry| {
            drop(registry.insert("a/m".into(), entry(7)))
        })
        .unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(r#""mood": "good""#), "{text}");
        assert!(
            text.find("a/m") < text.find("z/m"),
            "keys are sorted: {text}"
        );
    }

    #[test]
    fn a_malformed_file_is_set_aside_and_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(REGISTRY_FILE), "{torn").unwrap();
        assert!(load_registry(dir.path()).is_empty());
        update_registry(dir.path(), |registry| {
            drop(registry.insert("a".into(), entry(1)))
        })
        .unwrap();
        assert_eq!(
            fs::read_to_string(dir.path().join(format!("{REGISTRY_FILE}.bad"))).unwrap(),
            "{torn"
        );
        assert_eq!(load_registry(dir.path()).len(), 1);
    }

    #[test]
    fn nothing_is_written_when_nothing_changes() {
        let dir = tempfile::tempdir().unwrap();
        update_registry(dir.path(), |registry| drop(registry.remove("a"))).unwrap();
        assert!(!dir.path().join(REGISTRY_FILE).exists());
    }

    #[test]
    fn concurrent_writers_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let dir = dir.path();
                scope.spawn(move || {
                    for count in 0..10 {
                        update_registry(dir, |registry| {
                            drop(registry.insert(format!("{writer}/{count}"), entry(1)))
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(load_registry(dir.path()).len(), 80);
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left.len(), 2, "registry and lock only: {left:?}");
    }
}
