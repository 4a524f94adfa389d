//! The little that `list` needs from inside a model's files.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value as Json;

use super::scan::read_small_file;
use crate::formats::gguf::header::{self, Value};
use crate::formats::mmap::Mapping;

/// `architectures[0]` of the folder's `config.json`.
pub fn config_architecture(dir: &Path) -> Option<String> {
    let config: Json = serde_json::from_slice(&read_small_file(&dir.join("config.json"))?).ok()?;
    Some(printable(config.get("architectures")?.get(0)?.as_str()?))
}

/// The shards and the `total_size` that the folder's safetensors index names.
pub fn safetensors_index(dir: &Path) -> Option<(BTreeSet<String>, u64)> {
    let index: Json =
        serde_json::from_slice(&read_small_file(&dir.join("model.safetensors.index.json"))?)
            .ok()?;
    let shards = index
        .get("weight_map")?
        .as_object()?
        .values()
        .filter_map(|shard| shard.as_str().map(str::to_owned));
    let total = index
        .get("metadata")
        .and_then(|metadata| metadata.get("total_size"))
        .and_then(Json::as_u64);
    Some((shards.collect(), total.unwrap_or(0)))
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
