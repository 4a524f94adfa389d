//! The header of one safetensors file: the `safetensors` crate parses it, this file bounds and names what it finds.
//!
//! Format: <https://huggingface.co/docs/safetensors/index>. The crate checks that offsets leave no gap, do not overlap, match
//! shape and dtype, and end at the end of the file; JSON itself allows a name twice, so that is checked here.

use std::collections::HashSet;
use std::fmt;

use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result};
use crate::formats::source::TensorInfo;
use crate::quant::Encoding;

/// The crate accepts more, but the parsed form takes several times as much memory; a checkpoint with a quarter of a million
/// tensors in one file stays below this.
const MAX_HEADER_BYTES: u64 = 32 << 20;
/// More dimensions than any tensor has.
const MAX_DIMS: usize = 16;

/// A tensor and where its bytes lie in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlace {
    /// Name, shape, encoding.
    pub info: TensorInfo,
    /// First byte, from the start of the file.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Parses and checks the header of the file whose bytes are `file`; tensors come in the order of their data.
///
/// # Errors
/// `Invalid` for a file that is truncated, too long or inconsistent, `Unsupported` for a dtype without an [`Encoding`].
pub fn parse_header(file: &[u8]) -> Result<Vec<TensorPlace>> {
    let header = header_bytes(file)?;
    refuse_repeated_names(header)?;
    let (header_len, metadata) =
        SafeTensors::read_metadata(file).map_err(|error| explain(error, file.len()))?;
    let data_start = 8 + header_len;
    let mut places = Vec::new();
    for name in metadata.offset_keys() {
        let tensor = metadata
            .info(&name)
            .expect("the name comes from the same header");
        let (start, end) = tensor.data_offsets;
        let encoding =
            encoding_of(tensor.dtype).map_err(|error| error.context(format!("tensor `{name}`")))?;
        let info = TensorInfo {
            name,
            shape: tensor.shape.clone(),
            encoding,
        };
        places.push(TensorPlace {
            info,
            start: data_start + start,
            len: end - start,
        });
    }
    Ok(places)
}

fn header_bytes(file: &[u8]) -> Result<&[u8]> {
    let Some((len, rest)) = file.split_first_chunk::<8>() else {
        return Err(truncated(format!("the file has only {} bytes", file.len())));
    };
    if file.starts_with(b"version ") {
        return Err(
            Error::invalid("the file is a Git LFS pointer, not a safetensors file")
                .with_hint("fetch the real file, for example with `git lfs pull`"),
        );
    }
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER_BYTES {
        return Err(Error::invalid(format!(
            "the header claims {len} bytes, more than the {MAX_HEADER_BYTES} accepted; this is no safetensors file"
        )));
    }
    usize::try_from(len)
        .ok()
        .and_then(|len| rest.get(..len))
        .ok_or_else(|| {
            truncated(format!(
                "the header claims {len} bytes, but the file has only {}",
                file.len()
            ))
        })
}

fn truncated(message: String) -> Error {
    Error::invalid(message).with_hint("the download was probably interrupted; fetch the file again")
}

fn refuse_repeated_names(header: &[u8]) -> Result<()> {
    let mut json = serde_json::Deserializer::from_slice(header);
    match serde::Deserializer::deserialize_map(&mut json, Names) {
        Ok(Some(name)) => Err(Error::invalid(format!("tensor `{name}` exists twice"))),
        Ok(None) => Ok(()),
        Err(error) => Err(
            Error::invalid("the header is not the JSON of a safetensors file").with_source(error),
        ),
    }
}

/// Walks over the header and finds the first name that exists twice.
struct Names;

impl<'de> Visitor<'de> for Names {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
        let (mut seen, mut repeated) = (HashSet::new(), None);
        while let Some((name, Entry)) = map.next_entry::<String, Entry>()? {
            if seen.contains(&name) {
                repeated = Some(name);
            } else {
                seen.insert(name);
            }
        }
        Ok(repeated)
    }
}

/// The value of a header entry: an object whose arrays (shape and offsets) are short. A long one would take many times its
/// own size in memory once it is parsed.
struct Entry;

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entry)
    }
}

impl<'de> Visitor<'de> for Entry {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with `dtype`, `shape` and `data_offsets`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while let Some((IgnoredAny, Field)) = map.next_entry()? {}
        Ok(Self)
    }
}

/// A member of an entry: text, or a list of at most [`MAX_DIMS`] numbers.
struct Field;

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Field)
    }
}

impl<'de> Visitor<'de> for Field {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text or a list of at most {MAX_DIMS} numbers")
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Self, E> {
        Ok(Self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        let mut len = 0;
        while let Some(_number) = list.next_element::<u64>()? {
            len += 1;
            if len > MAX_DIMS {
                return Err(serde::de::Error::invalid_length(len, &self));
            }
        }
        Ok(Self)
    }
}

fn explain(error: SafeTensorError, file_len: usize) -> Error {
    match error {
        SafeTensorError::MetadataIncompleteBuffer => Error::invalid(format!(
            "the tensors in the header do not end where the file ends, at {file_len} bytes"
        ))
        .with_hint("the file is truncated or damaged; fetch it again"),
        SafeTensorError::InvalidOffset(name) => Error::invalid(format!(
            "tensor `{name}` overlaps its neighbour or leaves a gap"
        )),
        SafeTensorError::InvalidHeaderDeserialization(error) => {
            Error::invalid("the header is not that of a safetensors file this build knows")
                .with_source(error)
        }
        other => Error::invalid("the header is wrong").with_source(other),
    }
}

fn encoding_of(dtype: Dtype) -> Result<Encoding> {
    Ok(match dtype {
        Dtype::F32 => Encoding::F32,
        Dtype::F16 => Encoding::F16,
        Dtype::BF16 => Encoding::BF16,
        Dtype::F64 => Encoding::F64,
        Dtype::F8_E4M3 => Encoding::F8E4M3,
        Dtype::F8_E5M2 => Encoding::F8E5M2,
        Dtype::F8_E8M0 => Encoding::F8E8M0,
        Dtype::BOOL => Encoding::Bool,
        Dtype::I8 => Encoding::I8,
        Dtype::U8 => Encoding::U8,
        Dtype::I16 => Encoding::I16,
        Dtype::U16 => Encoding::U16,
        Dtype::I32 => Encoding::I32,
        Dtype::U32 => Encoding::U32,
        Dtype::I64 => Encoding::I64,
        Dtype::U64 => Encoding::U64,
        other => {
            return Err(Error::unsupported(format!(
                "dtype `{other}` is not supported"
            )));
        }
    })
}
