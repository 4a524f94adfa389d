//! [`TensorSource`]: names, shapes, encodings and mapped bytes of tensors, whatever the container.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::formats::mmap::Mapping;
use crate::quant::Encoding;

/// What a container says about one tensor. Validated: `shape` multiplied out and encoded is exactly the bytes behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the container, untranslated.
    pub name: String,
    /// Dimensions, outermost first: `[out_features, in_features]` for a linear layer, whatever order the container uses.
    pub shape: Vec<usize>,
    /// How the elements are stored.
    pub encoding: Encoding,
}

impl TensorInfo {
    /// Number of elements.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A byte range of a mapped file that keeps the mapping alive. May be misaligned: read it with unaligned loads.
#[derive(Debug, Clone)]
pub struct MappedBytes {
    mapping: Arc<Mapping>,
    start: usize,
    len: usize,
}

impl MappedBytes {
    /// Bytes `start..start + len` of `mapping`.
    ///
    /// # Errors
    /// `Invalid` when the range leaves the mapping.
    pub fn new(mapping: Arc<Mapping>, start: usize, len: usize) -> Result<Self> {
        match start.checked_add(len) {
            Some(end) if end <= mapping.as_slice().len() => Ok(Self {
                mapping,
                start,
                len,
            }),
            _ => Err(Error::invalid(format!(
                "bytes {start}+{len} lie outside the file `{}` of {} bytes",
                mapping.path().display(),
                mapping.as_slice().len()
            ))),
        }
    }

    /// Bytes `start..start + len` of these.
    ///
    /// # Errors
    /// `Invalid` when the range leaves them.
    pub fn part(&self, start: usize, len: usize) -> Result<Self> {
        match start.checked_add(len) {
            Some(end) if end <= self.len => {
                Self::new(self.mapping.clone(), self.start + start, len)
            }
            _ => Err(Error::invalid(format!(
                "bytes {start}+{len} lie outside a tensor of {}",
                self.len
            ))),
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.mapping.as_slice()[self.start..self.start + self.len]
    }

    /// Tells the system that these pages are not needed any more (they stay readable, and return from the file when read).
    /// Called after the bytes were copied into another layout, so that they do not count twice in resident memory.
    pub fn release_pages(&self) {
        self.mapping.release_pages(self.start, self.len);
    }
}

/// A tensor with its bytes.
#[derive(Debug, Clone)]
pub struct TensorView {
    /// Name, shape, encoding.
    pub info: TensorInfo,
    /// The encoded elements, rows of the innermost dimension one after the other.
    pub bytes: MappedBytes,
}

/// A model's weights, read from one or several files of one container kind.
pub trait TensorSource: Send + Sync {
    /// Every tensor, in the container's order.
    fn tensors(&self) -> &[TensorInfo];

    /// The tensor called `name`, or `None`.
    fn find(&self, name: &str) -> Option<TensorView>;
}
