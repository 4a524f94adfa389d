//! [`Metadata`]: the key-value part of a GGUF file, read with the types the caller needs.
//!
//! Writers disagree about integer widths, so a number is a number: every integer type is accepted where an integer is asked for, if
//! the value fits. Each `find_*` gives `None` for a missing key and an error that names key, found and expected type otherwise.
//! Strings need not be UTF-8 in the file (vocabularies hold raw bytes): [`Metadata::find_bytes_array`] gives them as they are,
//! [`Metadata::find_str`] and [`Metadata::find_str_array`] insist on UTF-8.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::formats::gguf::header::{ArrayRange, Header, Value, ValueType};
use crate::formats::source::MappedBytes;

/// What the ranges of strings and arrays point into.
#[derive(Debug, Clone)]
pub enum HeaderBytes {
    /// A mapped file.
    Mapped(MappedBytes),
    /// Bytes that came from elsewhere, such as the first part of a remote file.
    Owned(Arc<[u8]>),
}

impl HeaderBytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(bytes) => bytes.as_slice(),
            Self::Owned(bytes) => bytes,
        }
    }
}

/// Keys and values. Arrays stay in the file and are read when asked for.
#[derive(Debug, Clone)]
pub struct Metadata {
    bytes: HeaderBytes,
    entries: Vec<(String, Value)>,
    by_key: HashMap<String, usize>,
}

impl Metadata {
    /// The metadata of `header`, which was parsed from `bytes`.
    pub fn new(bytes: HeaderBytes, header: &Header) -> Self {
        let entries = header.entries.clone();
        let by_key = entries
            .iter()
            .enumerate()
            .map(|(at, (key, _))| (key.clone(), at))
            .collect();
        Self {
            bytes,
            entries,
            by_key,
        }
    }

    /// Keys in file order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(key, _)| key.as_str())
    }

    /// Whether `key` exists, whatever its type.
    pub fn contains(&self, key: &str) -> bool {
        self.by_key.contains_key(key)
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.by_key.get(key).map(|&at| &self.entries[at].1)
    }

    fn slice(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes.as_slice()[range.clone()]
    }

    fn find_with<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        read(value)
            .map(Some)
            .ok_or_else(|| wrong_type(key, &describe(value), expected))
    }

    /// An integer that is not negative.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_u64(&self, key: &str) -> Result<Option<u64>> {
        self.find_with(key, "an unsigned integer", |value| {
            u64::try_from(integer(value)?).ok()
        })
    }

    /// [`Metadata::find_u64`] as a `usize`.
    ///
    /// # Errors
    /// `Invalid` when the value is something else or does not fit.
    pub fn find_usize(&self, key: &str) -> Result<Option<usize>> {
        self.find_with(key, "an unsigned integer", |value| {
            usize::try_from(integer(value)?).ok()
        })
    }

    /// An integer.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_i64(&self, key: &str) -> Result<Option<i64>> {
        self.find_with(key, "an integer", |value| {
            i64::try_from(integer(value)?).ok()
        })
    }

    /// A number, rounded to 32 bits.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_f32(&self, key: &str) -> Result<Option<f32>> {
        Ok(self.find_f64(key)?.map(|number| number as f32))
    }

    /// A number.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_f64(&self, key: &str) -> Result<Option<f64>> {
        self.find_with(key, "a number", number)
    }

    /// A truth value; integers 0 and 1 will do.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_bool(&self, key: &str) -> Result<Option<bool>> {
        self.find_with(key, "a bool", truth)
    }

    /// A string.
    ///
    /// # Errors
    /// `Invalid` when the value is something else or not UTF-8.
    pub fn find_str(&self, key: &str) -> Result<Option<&str>> {
        match self.find_bytes(key)? {
            None => Ok(None),
            Some(bytes) => {
                let not_utf8 = |_| {
                    Error::invalid(format!(
                        "metadata key `{key}` holds a string that is not UTF-8"
                    ))
                };
                std::str::from_utf8(bytes).map(Some).map_err(not_utf8)
            }
        }
    }

    /// A string as it is in the file.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_bytes(&self, key: &str) -> Result<Option<&[u8]>> {
        self.find_with(key, "a string", |value| match value {
            Value::String(range) => Some(self.slice(range)),
            _ => None,
        })
    }

    fn find_array(&self, key: &str, expected: &str) -> Result<Option<&ArrayRange>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(other) => Err(wrong_type(key, &describe(other), expected)),
        }
    }

    /// The length of an array of any type.
    ///
    /// # Errors
    /// `Invalid` when the value is no array.
    pub fn find_array_len(&self, key: &str) -> Result<Option<usize>> {
        Ok(self.find_array(key, "an array")?.map(|array| array.count))
    }

    /// The strings of an array as they are in the file, read while iterating.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_bytes_array(&self, key: &str) -> Result<Option<Strings<'_>>> {
        let expected = "an array of strings";
        let Some(array) = self.find_array(key, expected)? else {
            return Ok(None);
        };
        if array.element != ValueType::String && array.count > 0 {
            return Err(wrong_type(key, &describe_array(array), expected));
        }
        Ok(Some(Strings {
            rest: self.slice(&array.bytes),
            left: array.count,
        }))
    }

    /// The strings of an array.
    ///
    /// # Errors
    /// `Invalid` when the value is something else or a string is not UTF-8.
    pub fn find_str_array(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(strings) = self.find_bytes_array(key)? else {
            return Ok(None);
        };
        let read = |(index, bytes): (usize, _)| {
            let not_utf8 =
                |_| Error::invalid(format!("metadata key `{key}`: string {index} is not UTF-8"));
            std::str::from_utf8(bytes).map_err(not_utf8)
        };
        strings
            .enumerate()
            .map(read)
            .collect::<Result<Vec<_>>>()
            .map(Some)
    }

    fn find_numbers<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        let Some(array) = self.find_array(key, expected)? else {
            return Ok(None);
        };
        let elements = Scalars {
            element: array.element,
            rest: self.slice(&array.bytes),
        };
        let mut numbers = Vec::new();
        if array.count == 0 {
            return Ok(Some(numbers));
        }
        if matches!(array.element, ValueType::String | ValueType::Array) {
            return Err(wrong_type(key, &describe_array(array), expected));
        }
        numbers.reserve_exact(array.count);
        for (index, value) in elements.enumerate() {
            let found = || format!("{} at index {index}", describe(&value));
            numbers.push(read(&value).ok_or_else(|| wrong_type(key, &found(), expected))?);
        }
        Ok(Some(numbers))
    }

    /// An array of integers that are not negative.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_u64_array(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.find_numbers(key, "an array of unsigned integers", |value| {
            u64::try_from(integer(value)?).ok()
        })
    }

    /// An array of integers of at most 32 bits.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_i32_array(&self, key: &str) -> Result<Option<Vec<i32>>> {
        self.find_numbers(key, "an array of 32-bit integers", |value| {
            i32::try_from(integer(value)?).ok()
        })
    }

    /// An array of numbers, rounded to 32 bits.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_f32_array(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.find_numbers(key, "an array of numbers", |value| {
            Some(number(value)? as f32)
        })
    }

    /// An array of truth values; integers 0 and 1 will do.
    ///
    /// # Errors
    /// `Invalid` when the value is something else.
    pub fn find_bool_array(&self, key: &str) -> Result<Option<Vec<bool>>> {
        self.find_numbers(key, "an array of bools", truth)
    }

    /// A value per layer: an array of `num_layers` integers, or one integer that stands for all layers.
    ///
    /// # Errors
    /// `Invalid` when the value is something else or the array has another length.
    pub fn find_u64_or_array(&self, key: &str, num_layers: usize) -> Result<Option<Vec<u64>>> {
        if !matches!(self.value(key), Some(Value::Array(_))) {
            return Ok(self.find_u64(key)?.map(|value| vec![value; num_layers]));
        }
        let values = self.find_u64_array(key)?;
        match values {
            Some(values) if values.len() != num_layers => Err(Error::invalid(format!(
                "metadata key `{key}` has {} values, expected one for each of {num_layers} layers",
                values.len()
            ))),
            values => Ok(values),
        }
    }
}

/// The strings of an array, in order.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Strings<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        // The parser walked over these bytes; should the file have changed since, the array ends early.
        let (len, rest) = self.rest.split_first_chunk::<8>()?;
        let (string, rest) =
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        self.rest = rest;
        Some(string)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Strings<'_> {}

/// The scalars of an array, in order.
struct Scalars<'a> {
    element: ValueType,
    rest: &'a [u8],
}

impl Scalars<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*bytes)
    }
}

impl Iterator for Scalars<'_> {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        Some(match self.element {
            ValueType::U8 => Value::Unsigned(self.take::<1>()?[0].into()),
            ValueType::I8 => Value::Signed(i8::from_le_bytes(self.take()?).into()),
            ValueType::U16 => Value::Unsigned(u16::from_le_bytes(self.take()?).into()),
            ValueType::I16 => Value::Signed(i16::from_le_bytes(self.take()?).into()),
            ValueType::U32 => Value::Unsigned(u32::from_le_bytes(self.take()?).into()),
            ValueType::I32 => Value::Signed(i32::from_le_bytes(self.take()?).into()),
            ValueType::U64 => Value::Unsigned(u64::from_le_bytes(self.take()?)),
            ValueType::I64 => Value::Signed(i64::from_le_bytes(self.take()?)),
            ValueType::F32 => Value::Float(f32::from_le_bytes(self.take()?).into()),
            ValueType::F64 => Value::Float(f64::from_le_bytes(self.take()?)),
            ValueType::Bool => Value::Bool(self.take::<1>()?[0] != 0),
            ValueType::String | ValueType::Array => return None,
        })
    }
}

fn integer(value: &Value) -> Option<i128> {
    match *value {
        Value::Unsigned(value) => Some(value.into()),
        Value::Signed(value) => Some(value.into()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    match *value {
        Value::Unsigned(value) => Some(value as f64),
        Value::Signed(value) => Some(value as f64),
        Value::Float(value) => Some(value),
        _ => None,
    }
}

fn truth(value: &Value) -> Option<bool> {
    match *value {
        Value::Bool(value) => Some(value),
        Value::Unsigned(0) | Value::Signed(0) => Some(false),
        Value::Unsigned(1) | Value::Signed(1) => Some(true),
        _ => None,
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Unsigned(value) => format!("the integer {value}"),
        Value::Signed(value) => format!("the integer {value}"),
        Value::Float(value) => format!("the float {value}"),
        Value::Bool(value) => format!("the bool {value}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(array) => describe_array(array),
    }
}

fn describe_array(array: &ArrayRange) -> String {
    format!("an array of {}", array.element.name())
}

fn wrong_type(key: &str, found: &str, expected: &str) -> Error {
    Error::invalid(format!(
        "metadata key `{key}` holds {found}, expected {expected}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::gguf::header;
    use crate::formats::gguf::sample::{Sample, array, kind};

    fn metadata_of(sample: &Sample) -> Metadata {
        let bytes = sample.header();
        let header = header::parse(&bytes).unwrap();
        Metadata::new(HeaderBytes::Owned(bytes.into()), &header)
    }

    #[test]
    fn metadata_can_be_read_from_fetched_bytes() {
        let metadata = metadata_of(&Sample::new());
        assert_eq!(
            metadata.find_str("general.architecture").unwrap(),
            Some("llama")
        );
        let tokens: Vec<&[u8]> = metadata
            .find_bytes_array("tokenizer.ggml.tokens")
            .unwrap()
            .unwrap()
            .collect();
        assert_eq!(tokens, [b"<s>".as_slice(), b"\xff\xfe", b""]);
    }

    #[test]
    fn mixed_types_read_as_the_numbers_they_are() {
        let sample = Sample::new()
            .entry("negative", kind::I64, (-5i64).to_le_bytes())
            .entry("flag", kind::BOOL, [1])
            .entry("one", kind::U8, [1])
            .entry("double", kind::F64, 0.5f64.to_le_bytes())
            .entry("huge", kind::U64, u64::MAX.to_le_bytes())
            .entry(
                "layers",
                kind::ARRAY,
                array(kind::I32, &[vec![4, 0, 0, 0], vec![8, 0, 0, 0]]),
            )
            .entry(
                "signs",
                kind::ARRAY,
                array(kind::I32, &[vec![4, 0, 0, 0], vec![255; 4]]),
            )
            .entry("flags", kind::ARRAY, array(kind::BOOL, &[vec![1], vec![0]]))
            .entry("empty", kind::ARRAY, array(kind::I32, &[]));
        let metadata = metadata_of(&sample);

        assert_eq!(metadata.find_i64("negative").unwrap(), Some(-5));
        let negative = metadata.find_u64("negative").unwrap_err().to_string();
        assert_eq!(
            negative,
            "metadata key `negative` holds the integer -5, expected an unsigned integer"
        );
        assert_eq!(metadata.find_u64("huge").unwrap(), Some(u64::MAX));
        assert!(metadata.find_i64("huge").is_err());
        assert_eq!(metadata.find_f32("one").unwrap(), Some(1.0));
        assert_eq!(metadata.find_f32("double").unwrap(), Some(0.5));
        assert_eq!(
            (
                metadata.find_bool("flag").unwrap(),
                metadata.find_bool("one").unwrap()
            ),
            (Some(true), Some(true))
        );
        assert!(metadata.find_bool("negative").is_err());
        assert_eq!(metadata.find_u64("nothing").unwrap(), None);
        assert!(
            metadata
                .find_str("flag")
                .unwrap_err()
                .to_string()
                .contains("holds the bool true, expected a string")
        );

        assert_eq!(
            metadata.find_u64_or_array("layers", 2).unwrap(),
            Some(vec![4, 8])
        );
        assert_eq!(
            metadata.find_u64_or_array("one", 3).unwrap(),
            Some(vec![1; 3])
        );
        assert!(
            metadata
                .find_u64_or_array("layers", 3)
                .unwrap_err()
                .to_string()
                .contains("each of 3 layers")
        );
        assert_eq!(metadata.find_i32_array("signs").unwrap(), Some(vec![4, -1]));
        let sign = metadata.find_u64_array("signs").unwrap_err().to_string();
        assert!(sign.contains("the integer -1 at index 1"), "{sign}");
        assert_eq!(
            metadata.find_bool_array("flags").unwrap(),
            Some(vec![true, false])
        );
        assert_eq!(
            metadata.find_f32_array("layers").unwrap(),
            Some(vec![4.0, 8.0])
        );
        assert_eq!(metadata.find_u64_array("empty").unwrap(), Some(vec![]));
        assert_eq!(metadata.find_str_array("empty").unwrap(), Some(vec![]));
        let text = metadata
            .find_str_array("tokenizer.ggml.tokens")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("`tokenizer.ggml.tokens`: string 1 is not UTF-8"),
            "{text}"
        );
        assert_eq!(
            metadata.find_array_len("tokenizer.ggml.tokens").unwrap(),
            Some(3)
        );
        assert!(
            metadata
                .find_u64_array("tokenizer.ggml.tokens")
                .unwrap_err()
                .to_string()
                .contains("array of string")
        );
        assert_eq!(
            metadata.find_str("general.architecture").unwrap(),
            Some("llama")
        );
    }
}
