//! The header of one GGUF file, parsed from bytes in hand.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Versions 2 and 3, little endian. [`parse`] works on any
//! prefix of a file: when the header goes on behind the bytes in hand it says so ([`HeaderError::Incomplete`]) instead of calling
//! the file bad. It believes no count or length before the bytes it stands for are there; strings and arrays stay where they are,
//! as ranges. Tensor types stay numbers: `tensors.rs` decides what this build reads.

use std::collections::HashSet;
use std::ops::Range;

use crate::error::{Error, Result};

/// Alignment of tensor data when the file does not say.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// No file has nearly as many; together with [`MAX_NAME_BYTES`] it bounds what a header can make us allocate.
const MAX_ENTRIES: u64 = 1 << 16;
/// Longest accepted key or tensor name (ggml itself stops at 64 bytes for tensor names).
const MAX_NAME_BYTES: u64 = 256;
const MAX_DIMS: u32 = 4;
/// Arrays of arrays are in the format's grammar, but nobody writes them: a few levels are plenty.
const MAX_ARRAY_DEPTH: u32 = 4;
/// Shortest possible metadata entry: key length, key, type, one byte of value.
const MIN_ENTRY_BYTES: u64 = 8 + 1 + 4 + 1;
/// Shortest possible tensor entry: name length, name, dimension count, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 1 + 4 + 4 + 8;

/// Why a header could not be parsed.
#[derive(Debug)]
pub enum HeaderError {
    /// So far nothing is wrong, but the header goes on: at least this many bytes from the start of the file are needed.
    /// A lying file can ask for any number: compare it with the size of the file, and with what you are willing to fetch.
    Incomplete {
        /// A lower bound for the length of the header.
        need: u64,
    },
    /// The header is wrong, or of a kind that is not supported; more bytes change nothing.
    Bad(Error),
}

impl From<Error> for HeaderError {
    fn from(error: Error) -> Self {
        Self::Bad(error)
    }
}

impl From<HeaderError> for Error {
    fn from(error: HeaderError) -> Self {
        match error {
            HeaderError::Incomplete { need } => Error::invalid(format!(
                "the file is truncated: its header needs at least {need} bytes"
            ))
            .with_hint("the download was probably interrupted; fetch the file again"),
            HeaderError::Bad(error) => error,
        }
    }
}

type Parsed<T> = Result<T, HeaderError>;

/// The type of a metadata value or array element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueType {
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
    /// 32-bit float.
    F32,
    /// One byte, false when zero.
    Bool,
    /// Length and bytes.
    String,
    /// Element type, count and elements.
    Array,
    /// Unsigned 64-bit integer.
    U64,
    /// Signed 64-bit integer.
    I64,
    /// 64-bit float.
    F64,
}

impl ValueType {
    fn from_number(number: u32) -> Option<Self> {
        const ORDER: [ValueType; 13] = [
            ValueType::U8,
            ValueType::I8,
            ValueType::U16,
            ValueType::I16,
            ValueType::U32,
            ValueType::I32,
            ValueType::F32,
            ValueType::Bool,
            ValueType::String,
            ValueType::Array,
            ValueType::U64,
            ValueType::I64,
            ValueType::F64,
        ];
        ORDER.get(usize::try_from(number).ok()?).copied()
    }

    /// Bytes of one value, or the fewest one can take.
    fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::String => 8,
            Self::Array => 12,
        }
    }

    /// The word used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }
}

/// A metadata value; strings and arrays as byte ranges of the file.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// Any float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// The bytes of a string.
    String(Range<usize>),
    /// An array.
    Array(ArrayRange),
}

/// Where the elements of an array lie. Every element in the range has been walked over once and is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayRange {
    /// Type of the elements.
    pub element: ValueType,
    /// Number of elements.
    pub count: usize,
    /// Their bytes.
    pub bytes: Range<usize>,
}

/// What the header says about one tensor; the data may not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// The name.
    pub name: String,
    /// Dimensions, innermost first as in the file; at most four, none zero, their product fits a `usize`.
    pub dims: Vec<usize>,
    /// ggml's type number.
    pub ggml_type: u32,
    /// Bytes from the start of the data section.
    pub offset: u64,
}

/// A parsed header.
#[derive(Debug, Clone)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Metadata in file order; keys are unique.
    pub entries: Vec<(String, Value)>,
    /// Tensors in file order; names are unique.
    pub tensors: Vec<TensorEntry>,
    /// Alignment of the data section and of the tensors in it.
    pub alignment: u64,
    /// Where the data section starts: the end of the header, aligned.
    pub data_start: u64,
}

/// Parses the header at the start of `bytes`, which may be a whole file or a prefix of one.
///
/// # Errors
/// [`HeaderError::Incomplete`] when more bytes are needed, [`HeaderError::Bad`] otherwise.
pub fn parse(bytes: &[u8]) -> Parsed<Header> {
    let mut reader = Reader { bytes, at: 0 };
    let version = read_version(&mut reader)?;
    let num_tensors = reader.u64()?;
    let num_entries = reader.u64()?;
    for (count, what) in [(num_tensors, "tensors"), (num_entries, "metadata entries")] {
        if count > MAX_ENTRIES {
            let message = format!(
                "the header claims {count} {what}, more than the {MAX_ENTRIES} any model has"
            );
            return Err(Error::invalid(message).into());
        }
    }
    let least = num_entries * MIN_ENTRY_BYTES + num_tensors * MIN_TENSOR_BYTES;
    reader.require(least)?;
    let entries = read_entries(&mut reader, num_entries)?;
    let alignment = alignment_of(&entries)?;
    let tensors = read_tensors(&mut reader, num_tensors)?;
    let data_start = (reader.at as u64).next_multiple_of(alignment);
    Ok(Header {
        version,
        entries,
        tensors,
        alignment,
        data_start,
    })
}

fn read_version(reader: &mut Reader<'_>) -> Parsed<u32> {
    let magic = reader.take(4)?;
    if magic != b"GGUF" {
        return Err(not_gguf(magic).into());
    }
    let version = reader.u32()?;
    match version {
        2 | 3 => Ok(version),
        1 => Err(
            Error::unsupported("GGUF version 1 is not supported, only 2 and 3")
                .with_hint("convert the model again with a current converter")
                .into(),
        ),
        _ if version & 0xffff == 0 && version != 0 => Err(Error::unsupported(
            "the GGUF file is big endian; only little-endian files are supported",
        )
        .with_hint("fetch a little-endian file of the same model")
        .into()),
        _ => Err(Error::unsupported(format!(
            "GGUF version {version} is unknown; versions 2 and 3 are supported"
        ))
        .into()),
    }
}

fn not_gguf(magic: &[u8]) -> Error {
    match magic {
        b"vers" => Error::invalid("the file is a Git LFS pointer, not a GGUF file")
            .with_hint("fetch the real file, for example with `git lfs pull`"),
        b"tjgg" | b"lmgg" | b"fmgg" | b"algg" => {
            Error::unsupported("the file is of the ggml format that GGUF replaced")
                .with_hint("fetch a GGUF file of the same model")
        }
        _ => Error::invalid(format!(
            "the file does not start with `GGUF` but with `{}`",
            magic.escape_ascii()
        )),
    }
}

fn read_entries(reader: &mut Reader<'_>, count: u64) -> Parsed<Vec<(String, Value)>> {
    let mut seen = HashSet::new();
    let mut entries = Vec::new();
    for index in 0..count {
        let key = reader.name("metadata key", index)?;
        if !seen.insert(key.clone()) {
            return Err(Error::invalid(format!("metadata key `{key}` exists twice")).into());
        }
        let value = reader
            .value_type(&key)
            .and_then(|kind| reader.value(kind, &key))?;
        entries.push((key, value));
    }
    Ok(entries)
}

fn alignment_of(entries: &[(String, Value)]) -> Result<u64> {
    let Some((_, value)) = entries.iter().find(|(key, _)| key == "general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let alignment = match *value {
        Value::Unsigned(alignment) => alignment,
        Value::Signed(alignment) => u64::try_from(alignment).unwrap_or(0),
        _ => {
            return Err(Error::invalid(
                "metadata key `general.alignment` is not an integer",
            ));
        }
    };
    if alignment.is_power_of_two() && (8..=1 << 16).contains(&alignment) {
        Ok(alignment)
    } else {
        Err(Error::invalid(format!(
            "`general.alignment` is {alignment}, not a power of two from 8 to 65536"
        )))
    }
}

fn read_tensors(reader: &mut Reader<'_>, count: u64) -> Parsed<Vec<TensorEntry>> {
    let mut seen = HashSet::new();
    let mut tensors = Vec::new();
    for index in 0..count {
        let name = reader.name("tensor name", index)?;
        if !seen.insert(name.clone()) {
            return Err(Error::invalid(format!("tensor `{name}` exists twice")).into());
        }
        let num_dims = reader.u32()?;
        if num_dims > MAX_DIMS {
            let message =
                format!("tensor `{name}` has {num_dims} dimensions, more than {MAX_DIMS}");
            return Err(Error::invalid(message).into());
        }
        let dims = (0..num_dims)
            .map(|_| reader.u64())
            .collect::<Parsed<Vec<u64>>>()?;
        let dims = checked_dims(&name, &dims)?;
        tensors.push(TensorEntry {
            name,
            dims,
            ggml_type: reader.u32()?,
            offset: reader.u64()?,
        });
    }
    Ok(tensors)
}

fn checked_dims(name: &str, dims: &[u64]) -> Result<Vec<usize>> {
    let mut elements = 1usize;
    let mut checked = Vec::with_capacity(dims.len());
    for &dim in dims {
        let product = usize::try_from(dim)
            .ok()
            .and_then(|dim| Some((dim, elements.checked_mul(dim)?)));
        match product {
            Some((dim, product)) if dim > 0 => {
                elements = product;
                checked.push(dim);
            }
            _ => {
                return Err(Error::invalid(format!(
                    "tensor `{name}` has impossible dimensions {dims:?}"
                )));
            }
        }
    }
    Ok(checked)
}

/// A cursor over the bytes in hand.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Fails unless `len` more bytes are in hand.
    fn require(&self, len: u64) -> Parsed<()> {
        if len <= (self.bytes.len() - self.at) as u64 {
            Ok(())
        } else {
            Err(HeaderError::Incomplete {
                need: (self.at as u64).saturating_add(len),
            })
        }
    }

    fn take(&mut self, len: u64) -> Parsed<&'a [u8]> {
        self.require(len)?;
        let start = self.at;
        self.at += usize::try_from(len).expect("bytes in hand are counted by a usize");
        Ok(&self.bytes[start..self.at])
    }

    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let bytes = self.take(N as u64)?;
        Ok(bytes.try_into().expect("exactly N bytes were taken"))
    }

    fn u32(&mut self) -> Parsed<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Parsed<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn name(&mut self, what: &str, index: u64) -> Parsed<String> {
        let len = self.u64()?;
        if len == 0 || len > MAX_NAME_BYTES {
            let message =
                format!("{what} number {index} is {len} bytes long, not 1 to {MAX_NAME_BYTES}");
            return Err(Error::invalid(message).into());
        }
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => Err(Error::invalid(format!(
                "{what} number {index} is not UTF-8: `{}`",
                bytes.escape_ascii()
            ))
            .into()),
        }
    }

    fn value_type(&mut self, key: &str) -> Parsed<ValueType> {
        let number = self.u32()?;
        let unknown = || {
            Error::invalid(format!(
                "metadata key `{key}` has a value of unknown type {number}"
            ))
        };
        Ok(ValueType::from_number(number).ok_or_else(unknown)?)
    }

    fn value(&mut self, kind: ValueType, key: &str) -> Parsed<Value> {
        Ok(match kind {
            ValueType::U8 => Value::Unsigned(self.array::<1>()?[0].into()),
            ValueType::I8 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            ValueType::U16 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            ValueType::I16 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            ValueType::U32 => Value::Unsigned(self.u32()?.into()),
            ValueType::I32 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            ValueType::U64 => Value::Unsigned(self.u64()?),
            ValueType::I64 => Value::Signed(i64::from_le_bytes(self.array()?)),
            ValueType::F32 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            ValueType::F64 => Value::Float(f64::from_le_bytes(self.array()?)),
            ValueType::Bool => Value::Bool(self.array::<1>()?[0] != 0),
            ValueType::String => Value::String(self.string()?),
            ValueType::Array => Value::Array(self.elements(key, 1)?),
        })
    }

    fn string(&mut self) -> Parsed<Range<usize>> {
        let len = self.u64()?;
        self.take(len)?;
        let len = usize::try_from(len).expect("these bytes are in hand");
        Ok(self.at - len..self.at)
    }

    fn elements(&mut self, key: &str, depth: u32) -> Parsed<ArrayRange> {
        if depth > MAX_ARRAY_DEPTH {
            let message =
                format!("metadata key `{key}` nests arrays more than {MAX_ARRAY_DEPTH} deep");
            return Err(Error::invalid(message).into());
        }
        let element = self.value_type(key)?;
        let count = self.u64()?;
        let least = count.saturating_mul(element.min_bytes());
        self.require(least)?;
        let start = self.at;
        match element {
            ValueType::String => (0..count).try_for_each(|_| self.string().map(drop))?,
            ValueType::Array => {
                (0..count).try_for_each(|_| self.elements(key, depth + 1).map(drop))?
            }
            _ => drop(self.take(least)?),
        }
        let count = usize::try_from(count).expect("each element has bytes in hand");
        Ok(ArrayRange {
            element,
            count,
            bytes: start..self.at,
        })
    }
}
