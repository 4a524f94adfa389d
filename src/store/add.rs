//! Adding a model that is already on this machine: a GGUF file (with its shards) or a checkpoint folder.
//!
//! Files are hard-linked where the file system allows it and copied otherwise; the originals are never changed, and deleting
//! the model later deletes our names of them only.

use std::fs;
use std::path::{Path, PathBuf};

use super::ModelName;
use super::disk::require_free;
use super::gguf_name::{group_variants, shard_name, split_shard, strip_extension};
use super::lock::Lock;
use super::scan::{PART_SUFFIX, is_wanted_file, is_weight_file, scan, write_gguf_index};
use crate::error::{Error, Result};
use crate::formats::gguf::GgufFile;

/// What was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Added {
    /// The ids that `list` now shows for the folder.
    pub ids: Vec<String>,
    /// The folder.
    pub dir: PathBuf,
    /// Bytes that had to be copied because they could not be linked.
    pub copied_bytes: u64,
}

/// One file to put into the store.
#[derive(Debug)]
struct Item {
    from: PathBuf,
    to: String,
    size: u64,
}

/// Adds `source` as `name` (default: the name of the file or folder).
///
/// # Errors
/// `NotFound` or `Invalid` when `source` is no model, `Invalid` when the name is taken and not `force`, `Io`.
pub fn add_local(
    models_dir: &Path,
    source: &Path,
    name: Option<&str>,
    force: bool,
) -> Result<Added> {
    // The given name counts, not that of what a link points to: download caches keep files under their checksums.
    let given = if source.is_dir() {
        source.canonicalize()
    } else {
        std::path::absolute(source)
    };
    let given = given.map_err(|cause| Error::io("open the model", source, cause))?;
    let name = match name {
        Some(name) => ModelName::parse(name)?,
        None => default_name(&given)?,
    };
    let items = if given.is_dir() {
        folder_items(&given, &name)?
    } else {
        file_items(&given, &name)?
    };
    let dir = name.dir_in(models_dir);
    if given == dir
        || items
            .iter()
            .any(|item| item.from.parent() == Some(dir.as_path()))
    {
        return Err(Error::invalid(format!(
            "`{}` is in the models directory already",
            source.display()
        )));
    }
    fs::create_dir_all(models_dir).map_err(|cause| Error::io("create", models_dir, cause))?;
    let _lock = Lock::wait_model(models_dir, &name)?;
    let has_weights = super::scan::scan_folder(&dir, name.namespace(), name.name())
        .into_iter()
        .next()
        .is_some();
    if has_weights && !force {
        return Err(Error::invalid(format!(
            "the model `{name}` exists already in `{}`",
            dir.display()
        ))
        .with_hint("choose another name with `--name`, or replace it with `--force`"));
    }
    let is_new = !dir.exists();
    fs::create_dir_all(&dir).map_err(|cause| Error::io("create", &dir, cause))?;
    let copied_bytes = match place_all(&dir, &items) {
        Ok(copied) => copied,
        Err(error) => {
            if is_new {
                // Ours alone: nothing in it is worth keeping, the originals are untouched.
                let _ = fs::remove_dir_all(&dir);
            }
            return Err(error);
        }
    };
    if has_weights {
        delete_replaced(&dir, &items)?;
    }
    write_gguf_index(&dir)?;
    let ids = scan(models_dir)?
        .into_iter()
        .filter(|model| model.dir == dir)
        .map(|model| model.id)
        .collect();
    Ok(Added {
        ids,
        dir,
        copied_bytes,
    })
}

fn default_name(given: &Path) -> Result<ModelName> {
    let file = given.file_name().unwrap_or_default().to_string_lossy();
    let stem = if given.is_dir() {
        &*file
    } else {
        split_shard(strip_extension(&file).unwrap_or(&file)).0
    };
    ModelName::parse(stem).map_err(|error| error.with_hint("choose a name with `--name`"))
}

/// The shards of a GGUF file under the model's name, so that name and id are the same.
fn file_items(given: &Path, name: &ModelName) -> Result<Vec<Item>> {
    let file = given
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let Some(stem) = strip_extension(&file) else {
        return Err(Error::invalid(format!(
            "`{}` is neither a `.gguf` file nor a checkpoint folder",
            given.display()
        )));
    };
    let (base, shard) = split_shard(stem);
    let total = shard.map_or(1, |(_, total)| total);
    let mut items = Vec::new();
    for number in 1..=total {
        let (from, to) = match shard {
            None => (given.to_owned(), format!("{}.gguf", name.name())),
            Some(_) => (
                given.with_file_name(shard_name(base, number, total)),
                shard_name(name.name(), number, total),
            ),
        };
        items.push(checked_gguf(from, to)?);
    }
    Ok(items)
}

fn folder_items(given: &Path, name: &ModelName) -> Result<Vec<Item>> {
    let mut files = Vec::new();
    collect_wanted(given, "", &mut files)?;
    let weights: Vec<&str> = files
        .iter()
        .map(String::as_str)
        .filter(|file| is_weight_file(file) && !file.contains('/'))
        .collect();
    let has_safetensors = weights.iter().any(|file| file.ends_with(".safetensors"));
    if weights.is_empty() {
        return Err(Error::invalid(format!(
            "the folder `{}` holds no `.safetensors` and no `.gguf` file",
            given.display()
        )));
    }
    if has_safetensors && !files.iter().any(|file| file == "config.json") {
        return Err(Error::invalid(format!(
            "the folder `{}` has weights but no `config.json`",
            given.display()
        )));
    }
    let variants = group_variants(weights.iter().copied());
    let rename_from = match &variants[..] {
        [only] if !has_safetensors => Some(only.stem.clone()),
        _ => None,
    };
    let renamed = |file: &str| match (&rename_from, strip_extension(file)) {
        (Some(stem), Some(found)) if split_shard(found).0 == stem => {
            format!("{}{}", name.name(), &file[stem.len()..])
        }
        _ => file.to_owned(),
    };
    files
        .iter()
        .map(|file| {
            let (from, to) = (given.join(file), renamed(file));
            if strip_extension(file).is_some() {
                checked_gguf(from, to)
            } else {
                item(from, to)
            }
        })
        .collect()
}

fn collect_wanted(dir: &Path, prefix: &str, files: &mut Vec<String>) -> Result<()> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map_err(|cause| Error::io("read", dir, cause))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    names.sort();
    for name in names {
        let path = format!("{prefix}{name}");
        if dir.join(&name).is_dir() {
            if prefix.is_empty() && !name.starts_with('.') {
                collect_wanted(&dir.join(&name), &format!("{name}/"), files)?;
            }
        } else if is_wanted_file(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn item(from: PathBuf, to: String) -> Result<Item> {
    super::check_file_name(&to)?;
    // A link to a file outside is resolved, so that the store does not depend on it.
    let from = from
        .canonicalize()
        .map_err(|cause| Error::io("open", &from, cause))?;
    let size = fs::metadata(&from)
        .map_err(|cause| Error::io("open", &from, cause))?
        .len();
    Ok(Item { from, to, size })
}

fn checked_gguf(from: PathBuf, to: String) -> Result<Item> {
    if split_shard(strip_extension(&to).unwrap_or_default())
        .1
        .is_none_or(|(number, _)| number == 1)
    {
        // Header, tensors and sizes, of all shards.
        GgufFile::open(&from)?;
    }
    item(from, to)
}

fn place_all(dir: &Path, items: &[Item]) -> Result<u64> {
    let mut copied = 0;
    for item in items {
        copied += place(dir, item)?;
    }
    Ok(copied)
}

/// Links or copies one file under a temporary name and renames it. Returns the bytes copied.
fn place(dir: &Path, item: &Item) -> Result<u64> {
    let target = dir.join(&item.to);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent).map_err(|cause| Error::io("create", parent, cause))?;
    }
    let part = dir.join(format!("{}{PART_SUFFIX}", item.to));
    let _ = fs::remove_file(&part);
    let mut copied = 0;
    if fs::hard_link(&item.from, &part).is_err() {
        require_free(dir, item.size)?;
        copied = fs::copy(&item.from, &part).map_err(|cause| {
            let _ = fs::remove_file(&part);
            Error::io("copy", &item.from, cause)
        })?;
    }
    // Renaming a link onto another link of the same file does nothing, also not the removal of the old name.
    fs::rename(&part, &target).map_err(|cause| Error::io("write", &target, cause))?;
    let _ = fs::remove_file(&part);
    Ok(copied)
}

/// After `--force`: weights of the former model that the new one did not overwrite.
fn delete_replaced(dir: &Path, items: &[Item]) -> Result<()> {
    let _ = fs::remove_file(dir.join(super::manifest::FILE_NAME));
    for entry in fs::read_dir(dir)
        .map_err(|cause| Error::io("read", dir, cause))?
        .flatten()
    {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let plain = name.strip_suffix(PART_SUFFIX).unwrap_or(&name);
        let is_index = plain.ends_with(".safetensors.index.json");
        if (is_weight_file(plain) || is_index) && !items.iter().any(|item| item.to == name) {
            fs::remove_file(entry.path())
                .map_err(|cause| Error::io("delete", &entry.path(), cause))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{plan_removal, resolve_exact, resolve_for_run};
    use super::*;

    /// A GGUF file without tensors.
    fn gguf(architecture: &str) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        for text in ["general.architecture", architecture] {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
            if text == "general.architecture" {
                bytes.extend(8u32.to_le_bytes());
            }
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes
    }

    fn ids(models_dir: &Path) -> Vec<String> {
        scan(models_dir)
            .unwrap()
            .into_iter()
            .map(|model| model.id)
            .collect()
    }

    #[test]
    fn a_file_gets_the_name_as_its_id_and_the_original_survives_deletion() {
        let home = tempfile::tempdir().unwrap();
        let (file, models) = (
            home.path().join("Some-Model.Q4_1.gguf"),
            home.path().join("models"),
        );
        fs::write(&file, gguf("llama")).unwrap();
        for name in ["short", "u/Long-Name-GGUF"] {
            let added = add_local(&models, &file, Some(name), false).unwrap();
            assert_eq!(
                (added.ids.as_slice(), added.copied_bytes),
                (&[name.to_owned()][..], 0)
            );
            assert!(resolve_for_run(&models, name).unwrap().path.is_file());
        }
        let model = resolve_exact(&models, "short").unwrap();
        assert_eq!(model.architecture, "llama (GGUF)");
        plan_removal(&models, &model).unwrap().execute().unwrap();
        assert_eq!(fs::read(&file).unwrap(), gguf("llama"));
        assert_eq!(ids(&models), ["u/Long-Name-GGUF"]);
    }

    #[test]
    fn a_taken_name_is_refused_and_force_replaces_without_touching_the_first_original() {
        let home = tempfile::tempdir().unwrap();
        let (one, two, models) = (
            home.path().join("one.gguf"),
            home.path().join("two.gguf"),
            home.path().join("models"),
        );
        fs::write(&one, gguf("llama")).unwrap();
        fs::write(&two, gguf("qwen3")).unwrap();
        add_local(&models, &one, Some("m"), false).unwrap();
        let error = add_local(&models, &two, Some("m"), false).unwrap_err();
        assert!(
            error.to_string().contains("exists already") && error.hint().is_some(),
            "{error}"
        );
        add_local(&models, &two, Some("m"), true).unwrap();
        assert_eq!(scan(&models).unwrap()[0].architecture, "qwen3 (GGUF)");
        assert_eq!(fs::read(&one).unwrap(), gguf("llama"));
    }

    #[test]
    fn a_folder_brings_what_belongs_to_a_model_only() {
        let home = tempfile::tempdir().unwrap();
        let (folder, models) = (home.path().join("checkpoint"), home.path().join("models"));
        for file in [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "README.md",
            "1_Pooling/config.json",
            "onnx/model.onnx",
        ] {
            fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            fs::write(folder.join(file), "{}").unwrap();
        }
        let added = add_local(&models, &folder, None, false).unwrap();
        assert_eq!(added.ids, ["checkpoint"]);
        let dir = models.join("checkpoint");
        assert!(dir.join("1_Pooling/config.json").exists() && dir.join("tokenizer.json").exists());
        assert!(!dir.join("README.md").exists() && !dir.join("onnx").exists());
    }

    #[test]
    fn what_is_no_model_or_no_name_is_refused_and_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let (file, models) = (home.path().join("m.gguf"), home.path().join("models"));
        fs::write(&file, "GGUX").unwrap();
        assert!(add_local(&models, &file, None, false).is_err());
        fs::write(&file, &gguf("llama")[..40]).unwrap();
        assert!(add_local(&models, &file, None, false).is_err());
        assert!(add_local(&models, &home.path().join("nowhere.gguf"), None, false).is_err());
        assert!(add_local(&models, home.path().join("empty").as_path(), None, false).is_err());
        fs::write(&file, gguf("llama")).unwrap();
        for name in ["../m", "/m", "a//b", "CON", "a\0b"] {
            assert!(
                add_local(&models, &file, Some(name), false).is_err(),
                "{name:?}"
            );
        }
        assert!(!models.exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_linked_source_is_resolved() {
        let home = tempfile::tempdir().unwrap();
        let (file, models) = (home.path().join("blobs-0123"), home.path().join("models"));
        fs::write(&file, gguf("llama")).unwrap();
        let link = home.path().join("link.gguf");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        add_local(&models, &link, Some("m"), false).unwrap();
        let stored = models.join("m/m.gguf");
        assert!(!fs::symlink_metadata(&stored).unwrap().is_symlink());
        fs::remove_file(&file).unwrap();
        assert_eq!(fs::read(&stored).unwrap(), gguf("llama"));
    }
}
