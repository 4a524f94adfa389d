//! The record of a download, `.oxydllm_pull.json` in the model folder: what was wanted, from which commit, with which
//! sizes and checksums. It tells a finished folder from an unfinished one and lets a later pull resume safely.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::scan::read_small_file;
use crate::error::{Error, Result};

/// The file's name.
pub const FILE_NAME: &str = ".oxydllm_pull.json";

/// What a model folder was downloaded from and what belongs to it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// `user/model` on the hub.
    #[serde(default)]
    pub repository: String,
    /// The commit that was downloaded last.
    #[serde(default)]
    pub commit: String,
    /// The files that belong to the folder, by path below it.
    #[serde(default)]
    pub files: BTreeMap<String, ManifestFile>,
}

/// One downloaded or wanted file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Its size, where the hub told.
    #[serde(default)]
    pub size: Option<u64>,
    /// SHA-256 in hexadecimal, where the hub told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

impl Manifest {
    /// Reads the manifest of `dir`; `None` when there is none or it is not readable as one.
    pub fn load(dir: &Path) -> Option<Self> {
        let text = read_small_file(&dir.join(FILE_NAME))?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes it, atomically.
    ///
    /// # Errors
    /// `Io` when that fails.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).map_err(|cause| {
            Error::internal("cannot write a download record as JSON").with_source(cause)
        })?;
        write_atomically(&dir.join(FILE_NAME), text.as_bytes())
    }
}

/// Writes a file under a unique temporary name beside it and renames it: readers see the old or the new content.
///
/// # Errors
/// `Io` when that fails; the old content is still there.
pub fn write_atomically(path: &Path, content: &[u8]) -> Result<()> {
    static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.{count}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|cause| {
        let _ = fs::remove_file(&temporary);
        Error::io("write", path, cause)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_survives_a_round_trip_and_a_broken_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut manifest = Manifest {
            repository: "u/m".into(),
            commit: "abc".into(),
            ..Manifest::default()
        };
        manifest.files.insert(
            "config.json".into(),
            ManifestFile {
                size: Some(3),
                sha256: None,
            },
        );
        manifest.save(dir.path()).unwrap();
        assert_eq!(Manifest::load(dir.path()), Some(manifest));
        fs::write(dir.path().join(FILE_NAME), "{").unwrap();
        assert_eq!(Manifest::load(dir.path()), None);
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }
}
