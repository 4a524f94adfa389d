//! From tensor entries of a header to validated tensors with bytes.
//!
//! Offsets need not be multiples of the alignment (bytes are read unaligned anyway), but every range must lie inside the file
//! and no two may overlap.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::formats::gguf::header::{Header, TensorEntry};
use crate::formats::mmap::Mapping;
use crate::formats::source::{MappedBytes, TensorInfo};
use crate::quant::Encoding;

/// Every tensor of one file, in header order.
pub(super) fn resolve(
    header: &Header,
    mapping: &Arc<Mapping>,
) -> Result<Vec<(TensorInfo, MappedBytes)>> {
    let mut ranges = Vec::with_capacity(header.tensors.len());
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for entry in &header.tensors {
        let (info, len) = describe(entry)?;
        let start = header
            .data_start
            .checked_add(entry.offset)
            .and_then(|start| usize::try_from(start).ok())
            .filter(|start| {
                start
                    .checked_add(len)
                    .is_some_and(|end| end <= mapping.as_slice().len())
            })
            .ok_or_else(|| outside(entry, len, header, mapping))?;
        ranges.push((start, len, entry.name.as_str()));
        tensors.push((info, MappedBytes::new(Arc::clone(mapping), start, len)?));
    }
    ranges.sort_unstable();
    match ranges
        .windows(2)
        .find(|pair| pair[0].0 + pair[0].1 > pair[1].0)
    {
        Some(pair) => Err(Error::invalid(format!(
            "tensors `{}` and `{}` overlap in the file",
            pair[0].2, pair[1].2
        ))),
        None => Ok(tensors),
    }
}

/// Shape and encoding of a tensor, and how many bytes it takes.
pub(super) fn describe(entry: &TensorEntry) -> Result<(TensorInfo, usize)> {
    let encoding = Encoding::from_ggml(entry.ggml_type)
        .map_err(|error| error.context(format!("tensor `{}`", entry.name)))?;
    let cols = entry.dims.first().copied().unwrap_or(1);
    let rows: usize = entry.dims.iter().skip(1).product();
    let row_bytes = encoding.row_bytes(cols).ok_or_else(|| {
        Error::invalid(format!(
            "tensor `{}` has rows of {cols} elements, not a multiple of the {} in a block of `{encoding}`",
            entry.name,
            encoding.block_len()
        ))
    })?;
    let len = row_bytes.checked_mul(rows).ok_or_else(|| {
        Error::invalid(format!(
            "tensor `{}` has impossible dimensions {:?}",
            entry.name, entry.dims
        ))
    })?;
    let shape = entry.dims.iter().rev().copied().collect();
    Ok((
        TensorInfo {
            name: entry.name.clone(),
            shape,
            encoding,
        },
        len,
    ))
}

fn outside(entry: &TensorEntry, len: usize, header: &Header, mapping: &Mapping) -> Error {
    Error::invalid(format!(
        "tensor `{}` should take {len} bytes from {} on, but the file has {}",
        entry.name,
        header.data_start.saturating_add(entry.offset),
        mapping.as_slice().len()
    ))
    .with_hint("the file is truncated or damaged; fetch it again")
}
