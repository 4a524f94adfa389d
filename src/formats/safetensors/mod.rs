//! safetensors files, single or sharded.
//!
//! [`SafetensorsFolder::open`] takes a model folder or one file. `index.rs` decides which files belong to the model, `shards.rs`
//! reads one of them. Tensor names stay as they are in the files.

mod index;
mod shards;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use self::index::is_shard_name;
pub(super) use self::index::{CHECKPOINT_NAMES, find_checkpoint};
pub use self::shards::{TensorPlace, parse_header};

use crate::error::{Error, Result};
use crate::formats::mmap::Mapping;
use crate::formats::source::{MappedBytes, TensorInfo, TensorSource, TensorView};
use crate::formats::table::TensorTable;

/// The tensors of a checkpoint in safetensors files.
#[derive(Debug)]
pub struct SafetensorsFolder {
    tensors: TensorTable,
    files: Vec<Arc<Mapping>>,
}

impl SafetensorsFolder {
    /// Opens the checkpoint at `path`: a folder, or one `.safetensors` file.
    ///
    /// In a folder that is `model.safetensors`, else the files that `model.safetensors.index.json` names, else every
    /// `model-*.safetensors`, else `consolidated.safetensors`.
    ///
    /// # Errors
    /// `NotFound` when there is no such file or one is missing, `Invalid` when a file is truncated, lies about its tensors, or
    /// does not have what the index says. Messages name the file.
    pub fn open(path: &Path) -> Result<Self> {
        let checkpoint = index::find_files(path)?;
        let mut tensors = TensorTable::default();
        let mut files = Vec::new();
        for file in &checkpoint.files {
            let mapping = Mapping::open(file)?;
            let mut add = || {
                for tensor in parse_header(mapping.as_slice())? {
                    let bytes = MappedBytes::new(Arc::clone(&mapping), tensor.start, tensor.len)?;
                    checkpoint.check_place(&tensor.info.name, file)?;
                    tensors.push(tensor.info, bytes)?;
                }
                Ok(())
            };
            add().map_err(|error: Error| {
                error.context(format!("cannot open `{}`", file.display()))
            })?;
            files.push(mapping);
        }
        checkpoint.check_complete(|name| tensors.find(name).is_some())?;
        Ok(Self { tensors, files })
    }

    /// The files, in the order they were read.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|file| file.path())
    }
}

impl TensorSource for SafetensorsFolder {
    fn tensors(&self) -> &[TensorInfo] {
        self.tensors.infos()
    }

    fn find(&self, name: &str) -> Option<TensorView> {
        self.tensors.find(name)
    }
}
