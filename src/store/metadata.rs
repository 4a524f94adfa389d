//! The little that `list` needs from inside a model's files.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;

use super::scan::{LocalModel, Weights, read_small_file};
use crate::formats::MappedBytes;
use crate::formats::gguf::Metadata;
use crate::formats::gguf::header::{self, Value};
use crate::formats::gguf::meta::HeaderBytes;
use crate::formats::mmap::Mapping;
use crate::formats::safetensors::is_shard_name;

/// `architectures[0]` of the folder's `config.json`.
pub fn config_architecture(dir: &Path) -> Option<String> {
    let config: Json = serde_json::from_slice(&read_small_file(&dir.join("config.json"))?).ok()?;
    Some(printable(config.get("architectures")?.get(0)?.as_str()?))
}

/// The shards and the `total_size` that the folder's safetensors index names. `None` where the loader will not use the index:
/// it goes by a single file, and refuses paths that lead elsewhere, which no download can bring.
pub fn safetensors_index(dir: &Path) -> Option<(BTreeSet<String>, u64)> {
    if dir.join("model.safetensors").exists() {
        return None;
    }
    let index: Json =
        serde_json::from_slice(&read_small_file(&dir.join("model.safetensors.index.json"))?)
            .ok()?;
    let shards: BTreeSet<String> = index
        .get("weight_map")?
        .as_object()?
        .values()
        .filter_map(|shard| shard.as_str().map(str::to_owned))
        .collect();
    if !shards.iter().all(|shard| is_shard_name(shard)) {
        return None;
    }
    let total = index
        .get("metadata")
        .and_then(|metadata| metadata.get("total_size"))
        .and_then(Json::as_u64);
    Some((shards, total.unwrap_or(0)))
}

/// `general.architecture` of a GGUF file.
pub fn gguf_architecture(file: &Path) -> Option<String> {
    let mapping = Mapping::open(file).ok()?;
    let header = header::parse(mapping.as_slice()).ok()?;
    let (_, value) = header
        .entries
        .iter()
        .find(|(key, _)| key == "general.architecture")?;
    match value {
        Value::String(range) => Some(printable(
            std::str::from_utf8(mapping.as_slice().get(range.clone())?).ok()?,
        )),
        _ => None,
    }
}

/// Text from a file, safe to print on a terminal: no control characters, not endless.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

/// What `list` shows of a model's inside without loading it; 0 where the files do not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Geometry {
    /// Rows of the embedding table.
    pub vocab_size: u64,
    /// Layers.
    pub num_layers: u64,
}

impl Geometry {
    /// Reads the headers of `model`.
    pub fn of(model: &LocalModel) -> Self {
        match &model.weights {
            Weights::Safetensors(_) => Self::of_folder(&model.dir),
            Weights::Gguf { files, .. } => files.first().and_then(|file| Self::of_gguf(file)),
        }
        .unwrap_or_default()
    }

    fn of_folder(dir: &Path) -> Option<Self> {
        let config: Json =
            serde_json::from_slice(&read_small_file(&dir.join("config.json"))?).ok()?;
        // Models with a tower for images keep the language model's fields one level down.
        let field = |name: &str| {
            let number = |config: &Json| config.get(name)?.as_u64();
            number(&config).or_else(|| number(config.get("text_config")?))
        };
        Some(Self {
            vocab_size: field("vocab_size").unwrap_or(0),
            num_layers: field("num_hidden_layers").unwrap_or(0),
        })
    }

    fn of_gguf(file: &Path) -> Option<Self> {
        let mapping = Mapping::open(file).ok()?;
        let header = header::parse(mapping.as_slice()).ok()?;
        let embedding = |tensor: &&header::TensorEntry| tensor.name == "token_embd.weight";
        let rows = header.tensors.iter().find(embedding)?.dims.last().copied();
        let bytes = MappedBytes::new(Arc::clone(&mapping), 0, mapping.as_slice().len()).ok()?;
        let metadata = Metadata::new(HeaderBytes::Mapped(bytes), &header);
        let architecture = metadata.find_str("general.architecture").ok()??;
        let layers = metadata.find_u64(&format!("{architecture}.block_count"));
        Some(Self {
            vocab_size: rows.unwrap_or(0) as u64,
            num_layers: layers.ok().flatten().unwrap_or(0),
        })
    }
}
