//! Which files make up a safetensors checkpoint.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, Result};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Real indexes stay under a tenth of this.
const MAX_INDEX_BYTES: u64 = 64 << 20;

#[derive(Deserialize)]
struct IndexJson {
    weight_map: HashMap<String, String>,
}

/// The files of a checkpoint, and what its index (if any) says is in them.
#[derive(Debug)]
pub(super) struct Checkpoint {
    /// Distinct files, sorted by name.
    pub(super) files: Vec<PathBuf>,
    /// Tensor name to file, from the index.
    weight_map: HashMap<String, PathBuf>,
}

impl Checkpoint {
    /// Fails when the index says that `name` is in another file than `file`.
    pub(super) fn check_place(&self, name: &str, file: &Path) -> Result<()> {
        match self.weight_map.get(name) {
            Some(named) if named != file => Err(Error::invalid(format!(
                "tensor `{name}` is in this file, but the index names `{}`",
                named.display()
            ))),
            _ => Ok(()),
        }
    }

    /// Fails when the index names a tensor for which `exists` is false.
    pub(super) fn check_complete(&self, exists: impl Fn(&str) -> bool) -> Result<()> {
        match self
            .weight_map
            .iter()
            .filter(|(name, _)| !exists(name))
            .min()
        {
            Some((name, file)) => Err(Error::invalid(format!(
                "tensor `{name}` is not in `{}`, where the index has it",
                file.display()
            ))),
            None => Ok(()),
        }
    }
}

/// What a checkpoint's files are called, for hints.
pub(in crate::formats) const CHECKPOINT_NAMES: &str = "`model.safetensors`, `model.safetensors.index.json`, `model-*.safetensors` or `consolidated.safetensors`";

/// The files by whose names `folder` holds a safetensors checkpoint: the index, or the weights. Empty when it holds none.
///
/// A single file comes before an index, as in transformers.
pub(in crate::formats) fn find_checkpoint(folder: &Path) -> Result<Vec<PathBuf>> {
    for name in [SINGLE, INDEX] {
        let file = folder.join(name);
        if file.exists() {
            return Ok(vec![file]);
        }
    }
    let numbered = numbered_files(folder)?;
    let consolidated = folder.join("consolidated.safetensors");
    Ok(if numbered.is_empty() && consolidated.exists() {
        vec![consolidated]
    } else {
        numbered
    })
}

/// The files of the checkpoint at `path`, a folder or one file.
pub(super) fn find_files(path: &Path) -> Result<Checkpoint> {
    let without_index = |files| Checkpoint {
        files,
        weight_map: HashMap::new(),
    };
    if !std::fs::metadata(path)
        .map_err(|error| Error::io("open", path, error))?
        .is_dir()
    {
        return Ok(without_index(vec![path.to_path_buf()]));
    }
    let files = find_checkpoint(path)?;
    match files.first() {
        Some(first) if first.ends_with(INDEX) => read_index(first),
        Some(first) => {
            let ignored = path.join(INDEX);
            if first.ends_with(SINGLE) && ignored.exists() {
                tracing::warn!(
                    "`{}` is ignored: `{SINGLE}` lies beside it and is loaded",
                    ignored.display()
                );
            }
            check_all_numbered(path, &files)?;
            Ok(without_index(files))
        }
        None => Err(
            Error::not_found(format!("no safetensors checkpoint in `{}`", path.display()))
                .with_hint(format!("expected {CHECKPOINT_NAMES}")),
        ),
    }
}

/// `model-*.safetensors`, sorted.
fn numbered_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = |error| Error::io("list", folder, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if name.starts_with("model-") && name.ends_with(".safetensors") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Without an index, a set whose names say "of N" must have N files.
fn check_all_numbered(folder: &Path, files: &[PathBuf]) -> Result<()> {
    let total_in_name = |path: &PathBuf| {
        let stem = path.file_stem()?.to_str()?;
        stem.rsplit_once("-of-")?.1.parse::<usize>().ok()
    };
    match files.first().and_then(total_in_name) {
        Some(total) if total != files.len() => {
            let message = format!(
                "`{}` has {} of {total} checkpoint files",
                folder.display(),
                files.len()
            );
            Err(Error::not_found(message)
                .with_hint("fetch the missing `model-*.safetensors` files"))
        }
        _ => Ok(()),
    }
}

fn read_index(index: &Path) -> Result<Checkpoint> {
    let cannot_read = |error: Error| error.context(format!("cannot read `{}`", index.display()));
    let len = std::fs::metadata(index)
        .map_err(|error| Error::io("read", index, error))?
        .len();
    if len > MAX_INDEX_BYTES {
        let message = format!("it has {len} bytes, more than the {MAX_INDEX_BYTES} accepted");
        return Err(cannot_read(Error::invalid(message)));
    }
    let text = std::fs::read(index).map_err(|error| Error::io("read", index, error))?;
    let json: IndexJson = serde_json::from_slice(&text).map_err(|error| {
        cannot_read(
            Error::invalid("it is no JSON object with a `weight_map` of names").with_source(error),
        )
    })?;
    let mut files = BTreeSet::new();
    let mut weight_map = HashMap::with_capacity(json.weight_map.len());
    for (name, file) in json.weight_map {
        let path = shard_path(index, &name, &file).map_err(cannot_read)?;
        files.insert(path.clone());
        weight_map.insert(name, path);
    }
    if files.is_empty() {
        return Err(cannot_read(Error::invalid("its `weight_map` is empty")));
    }
    match files.iter().find(|file| !file.exists()) {
        Some(missing) => Err(Error::not_found(format!(
            "checkpoint file `{}` is missing",
            missing.display()
        ))
        .with_hint("the download was probably interrupted; fetch the model again")),
        None => Ok(Checkpoint {
            files: files.into_iter().collect(),
            weight_map,
        }),
    }
}

/// Whether an index may name `file`: a `.safetensors` file without a folder.
pub fn is_shard_name(file: &str) -> bool {
    file.ends_with(".safetensors") && !file.contains(['/', '\\', '\0', ':'])
}

/// A file beside the index; an index has no business anywhere else.
fn shard_path(index: &Path, tensor: &str, file: &str) -> Result<PathBuf> {
    if is_shard_name(file) {
        Ok(index.with_file_name(file))
    } else {
        Err(Error::invalid(format!(
            "the path `{}` of tensor `{}` is not allowed: it names no `.safetensors` file beside the index",
            file.escape_debug(),
            tensor.escape_debug()
        )))
    }
}
