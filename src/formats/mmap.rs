//! Mapped files.

use std::path::{Path, PathBuf};

/// A read-only mapping of a whole file.
#[derive(Debug)]
pub struct Mapping {
    path: PathBuf,
    map: memmap2::Mmap,
}

impl Mapping {
    /// The file's bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.map
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the system that the pages inside `start..start + len` are not needed now.
    pub fn release_pages(&self, _start: usize, _len: usize) {}
}
