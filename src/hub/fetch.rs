//! Getting the chosen files into a model folder of the store.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Hub, Listing, RemoteFile};
use crate::error::{Error, Result};
use crate::net::{Download, Observer};
use crate::store::{self, Manifest, ManifestFile, ModelName, PART_SUFFIX};

/// Is told how a pull gets on, file by file.
pub trait Progress {
    /// A file begins: `number` of `count`.
    fn begin(&mut self, file: &RemoteFile, number: usize, count: usize);
    /// So many bytes of it are on disk.
    fn have(&mut self, bytes: u64);
    /// Its connection broke; it is tried again.
    fn retry(&mut self, why: &Error);
    /// It is complete.
    fn end(&mut self);
}

/// What a pull will do to one model folder. Made and executed under the folder's lock.
#[derive(Debug)]
pub struct Plan {
    dir: PathBuf,
    manifest: Manifest,
    wanted: Vec<RemoteFile>,
    missing: Vec<RemoteFile>,
    stale: Vec<PathBuf>,
}

/// What is in a model folder, compared with the hub.
#[derive(Debug)]
pub struct Folder {
    dir: PathBuf,
    manifest: Manifest,
}

impl Folder {
    /// The folder of `name` below `models_dir`, which need not exist.
    pub fn open(models_dir: &Path, name: &ModelName) -> Self {
        let dir = name.dir_in(models_dir);
        Self {
            manifest: Manifest::load(&dir).unwrap_or_default(),
            dir,
        }
    }

    /// Whether `file` is here, whole, and not known to be another version of it.
    fn has(&self, file: &RemoteFile) -> bool {
        let path = self.dir.join(&file.path);
        let Ok(metadata) = fs::metadata(&path) else {
            return false;
        };
        let is_other = self
            .manifest
            .files
            .get(&file.path)
            .is_some_and(|known| is_other_version(known, file));
        metadata.is_file() && file.size.is_none_or(|size| size == metadata.len()) && !is_other
    }

    /// Whether all of `files` are here, whole.
    pub fn has_all(&self, files: &[RemoteFile]) -> bool {
        files.iter().all(|file| self.has(file))
    }

    /// Whether a download into the folder was begun.
    pub fn is_begun(&self) -> bool {
        self.dir.exists()
    }

    /// Plans to get `wanted`; `force` gets again what is there.
    pub fn plan(self, listing: &Listing, wanted: Vec<RemoteFile>, force: bool) -> Plan {
        let missing: Vec<RemoteFile> = wanted
            .iter()
            .filter(|file| force || !self.has(file))
            .cloned()
            .collect();
        let mut stale = Vec::new();
        for file in &wanted {
            let known = self.manifest.files.get(&file.path);
            if force || known.is_some_and(|known| is_other_version(known, file)) {
                stale.push(part_of(&self.dir, &file.path));
            }
        }
        let mut manifest = self.manifest;
        // Shards of an earlier layout of the same weights would count as weights of the new one.
        let is_safetensors = |path: &str| path.ends_with(".safetensors") && !path.contains('/');
        if wanted.iter().any(|file| is_safetensors(&file.path)) {
            manifest.files.retain(|path, _| {
                let is_old = is_safetensors(path) && !wanted.iter().any(|file| file.path == *path);
                if is_old {
                    stale.extend([self.dir.join(path), part_of(&self.dir, path)]);
                }
                !is_old
            });
        }
        manifest.repository = listing.repository.to_string();
        manifest.commit.clone_from(&listing.commit);
        for file in &wanted {
            let known = ManifestFile {
                size: file.size,
                sha256: file.sha256.clone(),
            };
            manifest.files.insert(file.path.clone(), known);
        }
        Plan {
            dir: self.dir,
            manifest,
            wanted,
            missing,
            stale,
        }
    }
}

/// Whether what is known about a file on disk contradicts what the hub has.
fn is_other_version(known: &ManifestFile, file: &RemoteFile) -> bool {
    let differs = |one: &Option<String>, other: &Option<String>| {
        one.is_some() && other.is_some() && one != other
    };
    differs(&known.sha256, &file.sha256)
        || (known.size.is_some() && file.size.is_some() && known.size != file.size)
}

fn part_of(dir: &Path, path: &str) -> PathBuf {
    dir.join(format!("{path}{PART_SUFFIX}"))
}

impl Plan {
    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Files that have to be downloaded.
    pub fn missing(&self) -> &[RemoteFile] {
        &self.missing
    }

    /// Bytes that have still to be written, as far as sizes are known.
    pub fn missing_bytes(&self) -> u64 {
        let bytes = self.missing.iter().map(|file| {
            let part = part_of(&self.dir, &file.path);
            let is_kept = !self.stale.contains(&part);
            let have = fs::metadata(&part)
                .ok()
                .filter(|_| is_kept)
                .map_or(0, |metadata| metadata.len());
            file.size.unwrap_or(0).saturating_sub(have)
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Downloads what is missing. Whatever fails, complete and unfinished files stay for the next attempt.
    ///
    /// # Errors
    /// `Io` or `Invalid`, saying how many files are complete.
    pub fn execute(
        self,
        hub: &Hub,
        listing: &Listing,
        progress: &mut dyn Progress,
    ) -> Result<PathBuf> {
        fs::create_dir_all(&self.dir).map_err(|cause| Error::io("create", &self.dir, cause))?;
        store::require_free(&self.dir, self.missing_bytes())?;
        for path in &self.stale {
            match fs::remove_file(path) {
                Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Error::io("delete", path, cause));
                }
                _ => {}
            }
        }
        self.manifest.save(&self.dir)?;
        let count = self.missing.len();
        for (index, file) in self.missing.iter().enumerate() {
            progress.begin(file, index + 1, count);
            self.fetch(hub, listing, file, progress).map_err(|error| {
                let complete = self.wanted.len() - count + index;
                let error = error.context(format!(
                    "{complete} of {} files are complete",
                    self.wanted.len()
                ));
                if error.hint().is_some() {
                    error
                } else {
                    error.with_hint("the same command goes on from what is on disk")
                }
            })?;
            progress.end();
        }
        store::write_gguf_index(&self.dir)?;
        Ok(self.dir)
    }

    fn fetch(
        &self,
        hub: &Hub,
        listing: &Listing,
        file: &RemoteFile,
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let url = hub.file_url(listing, &file.path);
        let download = Download {
            target: hub.target(&url, &file.path),
            path: &self.dir.join(&file.path),
            part: &part_of(&self.dir, &file.path),
            size: file.size,
            sha256: file.sha256.as_deref(),
        };
        hub.client().download(&download, &mut Adapter(progress))
    }
}

struct Adapter<'a>(&'a mut dyn Progress);

impl Observer for Adapter<'_> {
    fn have(&mut self, bytes: u64) {
        self.0.have(bytes);
    }

    fn retry(&mut self, why: &Error) {
        self.0.retry(why);
    }
}
