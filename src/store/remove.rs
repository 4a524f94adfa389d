//! Deleting exactly one model: its own files, the folder when no weights are left, the namespace when it is empty.
//!
//! Links are deleted, never what they point to; a folder that is reached through a link out of the models directory is refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::lock::{Lock, LockOutcome};
use super::manifest::{self, Manifest};
use super::registry::update_registry;
use super::scan::{LocalModel, PART_SUFFIX, Weights, is_weight_file, scan, write_gguf_index};
use super::{ModelName, gguf_name};
use crate::error::{Error, Result};

/// What will be deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    models_dir: PathBuf,
    model: LocalModel,
    /// The files of this model, when others stay in the folder; `None` deletes the folder's files all.
    files: Option<Vec<PathBuf>>,
}

/// What was deleted beside the weights.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// The folder is gone.
    pub folder: bool,
    /// A registry entry was there and is gone.
    pub registry_entry: bool,
}

/// Decides what deleting `model` means.
///
/// # Errors
/// `Invalid` when the folder is not really below `models_dir`.
pub fn plan_removal(models_dir: &Path, model: &LocalModel) -> Result<Removal> {
    check_inside(models_dir, &model.dir)?;
    let others = scan(models_dir)?
        .into_iter()
        .filter(|other| other.dir == model.dir && other.id != model.id)
        .count();
    let files = if others == 0 {
        None
    } else {
        Some(own_files(model)?)
    };
    Ok(Removal {
        models_dir: models_dir.to_owned(),
        model: model.clone(),
        files,
    })
}

impl Removal {
    /// Whether the folder goes as a whole.
    pub fn is_whole_folder(&self) -> bool {
        self.files.is_none()
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.model.dir
    }

    /// Deletes. Refuses while a pull into the folder is running.
    ///
    /// # Errors
    /// `Io` when a file cannot be deleted, `Invalid` when the folder is in use.
    pub fn execute(self) -> Result<Removed> {
        let _lock = match ModelName::parse(&self.model.folder_id) {
            Ok(name) => match Lock::try_model(&self.models_dir, &name)? {
                LockOutcome::Locked(lock) => Some(lock),
                LockOutcome::Busy => {
                    return Err(Error::invalid(format!(
                        "`{}` is being pulled by another process",
                        self.model.folder_id
                    )));
                }
            },
            // A folder that somebody named by hand: no pull can be running into it.
            Err(_) => None,
        };
        match &self.files {
            Some(files) => self.delete_files(files)?,
            None => delete_folder(&self.model.dir)?,
        }
        let folder = !self.model.dir.exists();
        self.delete_empty_namespace();
        let mut registry_entry = false;
        update_registry(&self.models_dir, |registry| {
            registry_entry = registry.remove(&self.model.id).is_some()
        })?;
        Ok(Removed {
            folder,
            registry_entry,
        })
    }

    fn delete_files(&self, files: &[PathBuf]) -> Result<()> {
        for file in files {
            remove_file(file)?;
        }
        if let Some(mut manifest) = Manifest::load(&self.model.dir) {
            let is_gone = |name: &str| {
                files
                    .iter()
                    .any(|file| file.file_name().is_some_and(|gone| gone == name))
            };
            manifest.files.retain(|name, _| !is_gone(name));
            manifest.save(&self.model.dir)?;
        }
        write_gguf_index(&self.model.dir)
    }

    fn delete_empty_namespace(&self) {
        let Some(namespace) = self.model.dir.parent() else {
            return;
        };
        if namespace != self.models_dir && namespace.starts_with(&self.models_dir) {
            // Fails when it is not empty, which is what decides.
            let _ = fs::remove_dir(namespace);
        }
    }
}

/// All files of one variant, with unfinished ones.
fn own_files(model: &LocalModel) -> Result<Vec<PathBuf>> {
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(&model.dir)
        .map_err(|cause| Error::io("read", &model.dir, cause))?
        .flatten()
    {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let plain = name.strip_suffix(PART_SUFFIX).unwrap_or(&name);
        let is_own = match &model.weights {
            Weights::Safetensors(_) => {
                plain.ends_with(".safetensors") || plain == "model.safetensors.index.json"
            }
            Weights::Gguf { stem, .. } => gguf_name::strip_extension(plain)
                .is_some_and(|found| gguf_name::split_shard(found).0 == stem),
        };
        if is_own {
            files.insert(entry.path());
        }
    }
    Ok(files.into_iter().collect())
}

/// Deletes a model folder. Subfolders that hold weights of their own (another model) stay, and the folder with them.
fn delete_folder(dir: &Path) -> Result<()> {
    let mut keeps = false;
    for entry in fs::read_dir(dir).map_err(|cause| Error::io("read", dir, cause))? {
        let entry = entry.map_err(|cause| Error::io("read", dir, cause))?;
        let path = entry.path();
        let is_dir = entry
            .file_type()
            .map_err(|cause| Error::io("read", &path, cause))?
            .is_dir();
        if !is_dir {
            remove_file(&path)?;
        } else if holds_model(&path) {
            keeps = true;
        } else {
            fs::remove_dir_all(&path).map_err(|cause| Error::io("delete", &path, cause))?;
        }
    }
    if keeps {
        return Ok(());
    }
    fs::remove_dir(dir).map_err(|cause| Error::io("delete", dir, cause))
}

fn holds_model(dir: &Path) -> bool {
    let Ok(entries) = fs::read_dir(dir) else {
        return true;
    };
    let names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let is_module = names.iter().any(|name| name == "config.json")
        && dir.file_name().is_some_and(is_module_folder);
    !is_module
        && names
            .iter()
            .any(|name| is_weight_file(name) || name == manifest::FILE_NAME)
}

fn is_module_folder(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy()
        .starts_with(|c: char| c.is_ascii_digit())
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io("delete", path, cause))
        }
        _ => Ok(()),
    }
}

fn check_inside(models_dir: &Path, dir: &Path) -> Result<()> {
    let real = |path: &Path| {
        path.canonicalize()
            .map_err(|cause| Error::io("find", path, cause))
    };
    let (root, target) = (real(models_dir)?, real(dir)?);
    let is_link =
        |path: &Path| fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    let through_link = is_link(dir)
        || dir
            .parent()
            .is_some_and(|parent| parent != models_dir && is_link(parent));
    if through_link || !target.starts_with(&root) || target == root {
        return Err(Error::invalid(format!(
            "`{}` is reached through a symbolic link to `{}`",
            dir.display(),
            target.display()
        ))
        .with_hint("delete the link yourself; what it points to is not touched"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::resolve_exact;
    use super::*;

    fn write(root: &Path, path: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"x").unwrap();
    }

    fn remove(root: &Path, id: &str) -> Result<Removed> {
        plan_removal(root, &resolve_exact(root, id)?)?.execute()
    }

    #[test]
    fn one_variant_of_several_goes_alone_and_the_last_takes_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        for file in [
            "m-Q4_0-00001-of-00002.gguf",
            "m-Q4_0-00002-of-00002.gguf",
            "m-Q8_0.gguf",
            "config.json",
            "m-Q4_0.gguf.part",
        ] {
            write(root, &format!("u/m-GGUF/{file}"));
        }
        fs::remove_file(root.join("u/m-GGUF/m-Q4_0.gguf.part")).unwrap();
        assert_eq!(
            remove(root, "u/m-Q4_0").unwrap(),
            Removed {
                folder: false,
                registry_entry: false
            }
        );
        let mut left: Vec<_> = fs::read_dir(root.join("u/m-GGUF"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["config.json", "gguf.index", "m-Q8_0.gguf"]);
        assert!(remove(root, "u/m-Q8_0").unwrap().folder);
        assert!(!root.join("u").exists(), "the empty namespace goes too");
        assert!(root.exists());
    }

    #[test]
    fn the_registry_entry_goes_by_canonical_id() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "m/m.gguf");
        update_registry(root.path(), |registry| {
            registry.insert("m".into(), Default::default());
            registry.insert("other".into(), Default::default());
        })
        .unwrap();
        assert!(remove(root.path(), "m").unwrap().registry_entry);
        let left = super::super::load_registry(root.path());
        assert_eq!(left.keys().collect::<Vec<_>>(), ["other"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_deleted_and_never_followed() {
        let outside = tempfile::tempdir().unwrap();
        write(outside.path(), "model/m-Q4_0.gguf");
        write(outside.path(), "keep.txt");
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "u/m/config.json");
        std::os::unix::fs::symlink(
            outside.path().join("model/m-Q4_0.gguf"),
            root.path().join("u/m/m-Q4_0.gguf"),
        )
        .unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("u/m/extra")).unwrap();
        assert!(remove(root.path(), "u/m-Q4_0").unwrap().folder);
        assert!(
            outside.path().join("model/m-Q4_0.gguf").exists()
                && outside.path().join("keep.txt").exists()
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_behind_a_link_is_refused() {
        let outside = tempfile::tempdir().unwrap();
        write(outside.path(), "model/m-Q4_0.gguf");
        let root = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path().join("model"), root.path().join("linked"))
            .unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("ns")).unwrap();
        for id in ["linked/m-Q4_0", "ns/m-Q4_0"] {
            let error = remove(root.path(), id).unwrap_err().to_string();
            assert!(error.contains("symbolic link"), "{id}: {error}");
        }
        assert!(outside.path().join("model/m-Q4_0.gguf").exists());
    }

    #[test]
    fn a_model_inside_a_model_folder_stays() {
        let root = tempfile::tempdir().unwrap();
        for file in [
            "m/config.json",
            "m/model.safetensors",
            "m/1_Pooling/config.json",
            "m/child/config.json",
            "m/child/model.safetensors",
        ] {
            write(root.path(), file);
        }
        assert!(!remove(root.path(), "m").unwrap().folder);
        assert!(root.path().join("m/child/model.safetensors").exists());
        assert!(
            !root.path().join("m/model.safetensors").exists()
                && !root.path().join("m/1_Pooling").exists()
        );
    }

    #[test]
    fn a_running_pull_blocks_the_deletion() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "u/m/m-Q4_0.gguf");
        let _lock = Lock::wait_model(root.path(), &ModelName::parse("u/m").unwrap()).unwrap();
        assert!(
            remove(root.path(), "u/m-Q4_0")
                .unwrap_err()
                .to_string()
                .contains("being pulled")
        );
        assert!(root.path().join("u/m/m-Q4_0.gguf").exists());
    }
}
