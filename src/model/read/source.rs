//! Access to a container's own description: fields by the rows of `arch/keys.rs`.

use serde_json::Value;

use crate::error::{Error, Result};
use crate::formats::Weights;
use crate::formats::gguf::Metadata;
use crate::model::arch::keys::Key;
use crate::model::arch::table::Architecture;
use crate::model::fields::Fields;

/// Larger than any width or count of a model; a bound for what a file may make us allocate.
const MAX_WIDTH: usize = 1 << 24;

/// What a class's default must not stand in for in a GGUF file: llama.cpp's converter always writes the first three, and without the
/// last its loader takes the scale of the heads.
const NO_DEFAULT_IN_GGUF: [&str; 4] = [
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "expert_used_count",
    "attention.scale",
];

/// Where fields come from.
pub(super) enum Source<'a> {
    Hf(Value),
    Gguf {
        metadata: &'a Metadata,
        prefix: String,
    },
}

/// A number of a GGUF file.
pub(super) fn finite(metadata: &Metadata, name: &str) -> Result<Option<f64>> {
    match metadata.find_f64(name)? {
        Some(x) if !x.is_finite() => Err(Error::invalid(format!(
            "`{name}` is {x}, expected a number"
        ))),
        found => Ok(found),
    }
}

/// A description, read by the rules of an architecture.
pub(super) struct Reader<'a> {
    pub source: Source<'a>,
    pub arch: &'static Architecture,
    pub weights: &'a Weights,
}

impl Reader<'_> {
    pub(super) fn is_hf(&self) -> bool {
        matches!(self.source, Source::Hf(_))
    }

    /// The fields of a `config.json`.
    fn hf_fields(&self) -> Option<Fields<'_>> {
        match &self.source {
            Source::Hf(json) => Some(Fields::of(json)),
            Source::Gguf { .. } => None,
        }
    }

    pub(super) fn hf(&self, key: &str) -> Option<&Value> {
        self.hf_fields()?.get(key)
    }

    /// A switch of a `config.json`.
    pub(super) fn hf_flag(&self, key: &str) -> Result<Option<bool>> {
        self.hf_fields().map_or(Ok(None), |all| all.flag(key))
    }

    /// A name in a `config.json`.
    pub(super) fn hf_name(&self, key: &str) -> Result<Option<&str>> {
        self.hf_fields()
            .map_or(Ok(None), |all| all.text(key, "a name"))
    }

    /// A list in a `config.json`.
    pub(super) fn hf_list(&self, key: &str) -> Result<Option<&[Value]>> {
        self.hf_fields().map_or(Ok(None), |all| all.list(key))
    }

    /// An object in a `config.json`.
    pub(super) fn hf_object<'k>(&'k self, key: &'k str) -> Result<Option<Fields<'k>>> {
        self.hf_fields().map_or(Ok(None), |all| all.nested(key))
    }

    /// A number as it stands in the file, or the class's default.
    pub(super) fn find_number(&self, key: &Key) -> Result<Option<f64>> {
        let found = match &self.source {
            Source::Hf(json) => {
                match key
                    .hf
                    .iter()
                    .find_map(|name| Some((*name, json.get(name)?)))
                {
                    // As for the class: null is no number, and not its default either.
                    Some((_, Value::Null)) => return Ok(None),
                    Some((name, value)) => Some(value.as_f64().ok_or_else(|| {
                        Error::invalid(format!("`{name}` is {value}, expected a number"))
                    })?),
                    None => None,
                }
            }
            Source::Gguf { metadata, prefix } => match key.gguf {
                Some(suffix) => {
                    let found = finite(metadata, &format!("{prefix}.{suffix}"))?;
                    if NO_DEFAULT_IN_GGUF.contains(&suffix) {
                        return Ok(found);
                    }
                    found
                }
                None => None,
            },
        };
        Ok(found.or_else(|| key.hf.iter().find_map(|name| self.arch.default_of(name))))
    }

    /// One number per layer, where a GGUF file has a list of them: whole, from 0 to [`MAX_WIDTH`].
    pub(super) fn per_layer(&self, key: &Key, num_layers: usize) -> Result<Option<Vec<usize>>> {
        let (Source::Gguf { metadata, prefix }, Some(suffix)) = (&self.source, key.gguf) else {
            return Ok(None);
        };
        let name = format!("{prefix}.{suffix}");
        if metadata.find_array_len(&name).ok().flatten().is_none() {
            return Ok(None);
        }
        let counts = metadata.find_u64_or_array(&name, num_layers)?;
        let count = |count: u64| match usize::try_from(count) {
            Ok(count) if count <= MAX_WIDTH => Ok(count),
            _ => Err(Error::invalid(format!(
                "`{name}` holds {count}, expected whole numbers up to {MAX_WIDTH}"
            ))),
        };
        let counts = counts.unwrap_or_default().into_iter().map(count);
        counts.collect::<Result<_>>().map(Some)
    }

    /// What the file calls a field.
    pub(super) fn name(&self, key: &Key) -> String {
        match (&self.source, key.gguf) {
            (Source::Gguf { prefix, .. }, Some(suffix)) => format!("{prefix}.{suffix}"),
            _ => {
                let written = key.hf.iter().find(|name| self.hf(name).is_some());
                (*written.unwrap_or(&key.hf[0])).to_owned()
            }
        }
    }

    /// Whether the file speaks of a field, if only to say `null`.
    pub(super) fn is_written(&self, key: &Key) -> bool {
        match &self.source {
            Source::Hf(json) => key.hf.iter().any(|name| json.get(name).is_some()),
            Source::Gguf { metadata, prefix } => key
                .gguf
                .is_some_and(|suffix| metadata.contains(&format!("{prefix}.{suffix}"))),
        }
    }

    /// Whether the class knows a field: those that it does have a default.
    pub(super) fn knows(&self, key: &Key) -> bool {
        key.hf
            .iter()
            .any(|name| self.arch.default_of(name).is_some())
    }

    pub(super) fn missing(&self, key: &Key) -> Error {
        let names = match key.hf {
            // Classes have their own names for it.
            [_, _, ..] if self.is_hf() => key.hf.join("` or `"),
            _ => self.name(key),
        };
        Error::invalid(format!("the model does not say its `{names}`"))
    }

    /// A count or width: a whole number from 1 to [`MAX_WIDTH`].
    pub(super) fn find_size(&self, key: &Key) -> Result<Option<usize>> {
        match self.find_number(key)? {
            None => Ok(None),
            Some(x) if x.fract() == 0.0 && (1.0..=MAX_WIDTH as f64).contains(&x) => {
                Ok(Some(x as usize))
            }
            Some(x) => {
                let name = self.name(key);
                Err(Error::invalid(format!(
                    "`{name}` is {x}, expected a whole number from 1 to {MAX_WIDTH}"
                )))
            }
        }
    }

    /// A whole number from 0 on, at most as large as any width.
    pub(super) fn find_count(&self, key: &Key) -> Result<Option<usize>> {
        match self.find_number(key)? {
            Some(0.0) => Ok(Some(0)),
            _ => self.find_size(key),
        }
    }

    pub(super) fn size(&self, key: &Key) -> Result<usize> {
        self.find_size(key)?.ok_or_else(|| self.missing(key))
    }

    pub(super) fn find_positive(&self, key: &Key) -> Result<Option<f64>> {
        match self.find_number(key)? {
            Some(x) if !(x.is_finite() && x > 0.0) => Err(Error::invalid(format!(
                "`{}` is {x}, expected a positive number",
                self.name(key)
            ))),
            other => Ok(other),
        }
    }

    /// A factor; zero and negative ones in GGUF files mean that it was not published.
    pub(super) fn find_multiplier(&self, key: &Key) -> Result<Option<f64>> {
        if self.is_hf() {
            return self.find_positive(key);
        }
        Ok(self.find_number(key)?.filter(|x| *x > 0.0))
    }

    /// [`Self::find_multiplier`] as the forward pass wants it: 1 without one.
    pub(super) fn multiplier(&self, key: &Key) -> Result<f32> {
        Ok(self.find_multiplier(key)?.unwrap_or(1.0) as f32)
    }

    pub(super) fn positive(&self, key: &Key) -> Result<f64> {
        self.find_positive(key)?.ok_or_else(|| self.missing(key))
    }
}
