//! A look into a GGUF header or a `config.json` before the download: what this build cannot run is refused before it costs
//! gigabytes.

use std::collections::BTreeMap;

use super::{Hub, Listing, RemoteFile};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::gguf::header::{self, Header, HeaderError, Value};
use crate::model::{arch, check_supported};
use crate::quant::Encoding;

/// The first window, and the largest: headers grow with the vocabulary and stay far below.
const FIRST_WINDOW: u64 = 1 << 20;
const LARGEST_WINDOW: u64 = 96 << 20;

/// What a header says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checked {
    /// It was read, and this build can read the file: one line about it.
    Readable(String),
    /// It could not be read; the download may go on. Why.
    Unknown(String),
}

/// Checks the header of `file`.
///
/// # Errors
/// `Unsupported` or `Invalid` when it is certain that this build cannot read the file.
pub fn check_gguf(hub: &Hub, listing: &Listing, file: &RemoteFile) -> Result<Checked> {
    let url = hub.file_url(listing, &file.path);
    let mut window = FIRST_WINDOW;
    loop {
        let bytes = match hub.client().prefix(hub.target(&url, &file.path), window) {
            Ok(bytes) => bytes,
            Err(error) => return Ok(Checked::Unknown(error.chain())),
        };
        match header::parse(&bytes) {
            Ok(header) => {
                return describe(&header, &bytes)
                    .map(Checked::Readable)
                    .map_err(|error| error.context(format!("`{}`", file.path)));
            }
            Err(HeaderError::Bad(error)) => {
                return Err(error.context(format!("`{}` cannot be used", file.path)));
            }
            Err(HeaderError::Incomplete { need }) => {
                let is_whole_file = (bytes.len() as u64) < window;
                if is_whole_file || need > LARGEST_WINDOW || window == LARGEST_WINDOW {
                    return Ok(Checked::Unknown(
                        "its header is longer than what was looked at".to_owned(),
                    ));
                }
                window = need.max(window * 4).min(LARGEST_WINDOW);
            }
        }
    }
}

/// Checks the `config.json` that comes with safetensors, which are `shared` files of the repository.
///
/// # Errors
/// `Unsupported` when it is certain that this build cannot run the model.
pub fn check_config(hub: &Hub, listing: &Listing, shared: &[RemoteFile]) -> Result<Checked> {
    let unknown = |why: String| Ok(Checked::Unknown(why));
    let Some(file) = shared.iter().find(|file| file.path == "config.json") else {
        return unknown("there is no `config.json`".to_owned());
    };
    let url = hub.file_url(listing, &file.path);
    let bytes = match hub
        .client()
        .prefix(hub.target(&url, &file.path), FIRST_WINDOW)
    {
        Ok(bytes) => bytes,
        Err(error) => return unknown(error.chain()),
    };
    let json = match serde_json::from_slice(&bytes) {
        Ok(json) => json,
        Err(error) => return unknown(format!("`config.json` is not JSON: {error}")),
    };
    let has_modules = shared.iter().any(|file| file.path == "modules.json");
    match check_supported(&json, has_modules) {
        Ok(name) => Ok(Checked::Readable(name.to_owned())),
        Err(error) if error.kind() == ErrorKind::Unsupported => Err(error.context("`config.json`")),
        Err(error) => unknown(error.chain()),
    }
}

fn describe(header: &Header, bytes: &[u8]) -> Result<String> {
    if let Some(architecture) = architecture(header, bytes) {
        arch::find_gguf(architecture)?;
    }
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut refused: Vec<String> = Vec::new();
    for tensor in &header.tensors {
        match Encoding::from_ggml(tensor.ggml_type) {
            Ok(encoding) => *counts.entry(encoding.name()).or_default() += 1,
            Err(error) => refused.push(error.to_string()),
        }
    }
    refused.sort();
    refused.dedup();
    if !refused.is_empty() {
        return Err(Error::unsupported(format!(
            "this build cannot read it: {}",
            refused.join("; ")
        ))
        .with_hint("choose another variant with `--variant`, such as Q4_K_M or Q8_0"));
    }
    let encoding_of = |name: &str| {
        let tensor = header.tensors.iter().find(|tensor| tensor.name == name)?;
        Some(Encoding::from_ggml(tensor.ggml_type).ok()?.name())
    };
    let types: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    let embedding = encoding_of("token_embd.weight").unwrap_or("none");
    let output =
        encoding_of("output.weight").map_or_else(|| format!("{embedding} (tied)"), str::to_owned);
    Ok(format!(
        "{} tensors ({}), embedding {embedding}, output {output}",
        header.tensors.len(),
        types.join(", ")
    ))
}

fn architecture<'a>(header: &Header, bytes: &'a [u8]) -> Option<&'a str> {
    let (_, value) = header
        .entries
        .iter()
        .find(|(key, _)| key == "general.architecture")?;
    match value {
        Value::String(range) => std::str::from_utf8(bytes.get(range.clone())?).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::gguf::header::TensorEntry;

    fn header(tensors: &[(&str, u32)]) -> Header {
        Header {
            version: 3,
            entries: Vec::new(),
            tensors: tensors
                .iter()
                .map(|&(name, ggml_type)| TensorEntry {
                    name: name.into(),
                    dims: vec![32],
                    ggml_type,
                    offset: 0,
                })
                .collect(),
            alignment: 32,
            data_start: 0,
        }
    }

    #[test]
    fn the_line_counts_types_and_names_embedding_and_output() {
        let line = describe(
            &header(&[("token_embd.weight", 14), ("a", 12), ("b", 12), ("c", 0)]),
            &[],
        )
        .unwrap();
        assert_eq!(
            line,
            "4 tensors (1 F32, 2 Q4_K, 1 Q6_K), embedding Q6_K, output Q6_K (tied)"
        );
        let line = describe(
            &header(&[("token_embd.weight", 12), ("output.weight", 14)]),
            &[],
        )
        .unwrap();
        assert!(line.ends_with("embedding Q4_K, output Q6_K"), "{line}");
    }

    #[test]
    fn a_type_that_cannot_be_decoded_is_refused_by_name() {
        let error = describe(&header(&[("a", 12), ("b", 16), ("c", 16)]), &[]).unwrap_err();
        assert!(error.to_string().contains("IQ2_XXS"), "{error}");
    }

    #[test]
    fn an_architecture_that_is_not_served_is_refused_by_name() {
        let bytes = b"llamavoodoo";
        let named = |range| Header {
            entries: vec![("general.architecture".into(), Value::String(range))],
            ..header(&[])
        };
        assert!(describe(&named(0..5), bytes).is_ok());
        let error = describe(&named(5..11), bytes).unwrap_err();
        assert!(error.to_string().contains("voodoo"), "{error}");
    }
}
