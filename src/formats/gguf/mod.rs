//! GGUF files: header, metadata, tensors.
//!
//! [`GgufFile::open`] takes a file, or any file of a split set, and validates everything against the real sizes. `header.rs`
//! parses, `meta.rs` answers typed questions, `tensors.rs` checks tensors, `shards.rs` finds the files of a set. Read `header.rs` next.

pub mod header;
pub mod meta;
mod shards;
mod tensors;

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use self::meta::Metadata;
pub(crate) use self::shards::ShardName;

use self::header::{Header, HeaderError};
use self::meta::HeaderBytes;
use crate::error::{Error, Result};
use crate::formats::mmap::Mapping;
use crate::formats::source::{MappedBytes, TensorInfo, TensorSource, TensorView};
use crate::formats::table::TensorTable;

/// An opened GGUF model: one file or all files of a split set.
#[derive(Debug)]
pub struct GgufFile {
    metadata: Metadata,
    tensors: TensorTable,
    files: Vec<Arc<Mapping>>,
}

/// One file of a set, parsed.
struct Shard {
    mapping: Arc<Mapping>,
    header: Header,
    metadata: Metadata,
}

impl GgufFile {
    /// Opens `path` and, when it is part of a split set, every other file of the set beside it.
    ///
    /// # Errors
    /// `NotFound` or `Io` when a file cannot be read, `Unsupported` for versions and tensor types this build does not read,
    /// `Invalid` for files that are not what they claim. Messages name the file.
    pub fn open(path: &Path) -> Result<Self> {
        let paths = shards::find_set(path)?;
        let shards = paths
            .iter()
            .map(|path| open_shard(path))
            .collect::<Result<Vec<_>>>()?;
        let shards = in_split_order(shards)?;
        let mut tensors = TensorTable::default();
        for shard in &shards {
            let resolved = tensors::resolve(&shard.header, &shard.mapping);
            resolved
                .and_then(|found| {
                    found
                        .into_iter()
                        .try_for_each(|(info, bytes)| tensors.push(info, bytes))
                })
                .map_err(|error| cannot_open(shard.mapping.path(), error))?;
        }
        let metadata = shards[0].metadata.clone();
        check_tensor_count(&metadata, tensors.infos().len())
            .map_err(|error| cannot_open(path, error))?;
        Ok(Self {
            metadata,
            tensors,
            files: shards.into_iter().map(|shard| shard.mapping).collect(),
        })
    }

    /// The metadata; of a split set, the first file's.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The files, in split order.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.files.iter().map(|file| file.path())
    }
}

/// Shapes and encodings of the tensors in `header`, without their data: what a file will need, from its first bytes alone.
///
/// # Errors
/// `Unsupported` for tensor types this build does not read, `Invalid` for rows that are no whole number of blocks.
pub fn describe_tensors(header: &Header) -> Result<Vec<TensorInfo>> {
    header
        .tensors
        .iter()
        .map(|entry| tensors::describe(entry).map(|(info, _)| info))
        .collect()
}

impl TensorSource for GgufFile {
    fn tensors(&self) -> &[TensorInfo] {
        self.tensors.infos()
    }

    fn find(&self, name: &str) -> Option<TensorView> {
        self.tensors.find(name)
    }
}

fn cannot_open(path: &Path, error: Error) -> Error {
    error.context(format!("cannot open `{}`", path.display()))
}

fn open_shard(path: &Path) -> Result<Shard> {
    let mapping = Mapping::open(path)?;
    let header = parse_whole(mapping.as_slice()).map_err(|error| cannot_open(path, error))?;
    let bytes = MappedBytes::new(Arc::clone(&mapping), 0, mapping.as_slice().len())?;
    let metadata = Metadata::new(HeaderBytes::Mapped(bytes), &header);
    Ok(Shard {
        mapping,
        header,
        metadata,
    })
}

/// Parses the header of a file that is all there.
fn parse_whole(file: &[u8]) -> Result<Header> {
    header::parse(file).map_err(|error| match error {
        HeaderError::Incomplete { need } => Error::invalid(format!(
            "the header needs at least {need} bytes, but the file has {}",
            file.len()
        ))
        .with_hint("the file is truncated or damaged; fetch it again"),
        HeaderError::Bad(error) => error,
    })
}

/// Puts the files in the order their `split.no` gives, which wins over their names. Files without it stay as named.
fn in_split_order(shards: Vec<Shard>) -> Result<Vec<Shard>> {
    let total = shards.len();
    let mut placed: Vec<Option<Shard>> = std::iter::repeat_with(|| None).take(total).collect();
    for (at, shard) in shards.into_iter().enumerate() {
        let path = shard.mapping.path().to_path_buf();
        let number = split_number(&shard, at, total).map_err(|error| cannot_open(&path, error))?;
        if placed[number].is_some() {
            let message = format!("`split.no` is {number} here and in another file of the set");
            return Err(cannot_open(&path, Error::invalid(message)));
        }
        placed[number] = Some(shard);
    }
    Ok(placed
        .into_iter()
        .map(|shard| shard.expect("as many distinct numbers as places"))
        .collect())
}

fn split_number(shard: &Shard, named: usize, total: usize) -> Result<usize> {
    let count = shard.metadata.find_usize("split.count")?;
    // Writers leave 0 or 1 in files that are not split.
    if let Some(count) = count.filter(|&count| count.max(1) != total) {
        let message = format!(
            "the file says it is one of {count} of a split set, but its name says one of {total}"
        );
        return Err(
            Error::invalid(message).with_hint("keep the original names `NAME-00001-of-0000N.gguf`")
        );
    }
    let number = shard.metadata.find_usize("split.no")?.unwrap_or(named);
    if number < total {
        Ok(number)
    } else {
        Err(Error::invalid(format!(
            "`split.no` is {number} in a set of {total} files"
        )))
    }
}

fn check_tensor_count(metadata: &Metadata, found: usize) -> Result<()> {
    match metadata.find_usize("split.tensors.count")? {
        Some(expected) if expected != found => Err(Error::invalid(format!(
            "the split set has {found} tensors, but `split.tensors.count` says {expected}"
        ))),
        _ => Ok(()),
    }
}
