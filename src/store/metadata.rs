//! The little that `list` needs from inside a model's files.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::scan::read_small_file;

/// `architectures[0]` of the folder's `config.json`.
pub fn config_architecture(dir: &Path) -> Option<String> {
    let config: Value = serde_json::from_slice(&read_small_file(&dir.join("config.json"))?).ok()?;
    Some(printable(config.get("architectures")?.get(0)?.as_str()?))
}

/// The shards and the `total_size` that the folder's safetensors index names.
pub fn safetensors_index(dir: &Path) -> Option<(BTreeSet<String>, u64)> {
    let index: Value =
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
        .and_then(Value::as_u64);
    Some((shards.collect(), total.unwrap_or(0)))
}

/// `general.architecture` of a GGUF file.
pub fn gguf_architecture(_file: &Path) -> Option<String> {
    None
}

/// Text from a file, safe to print on a terminal: no control characters, not endless.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

/// Checks that a file is GGUF at all.
///
/// # Errors
/// `Invalid` when it is not.
pub fn check_gguf(file: &Path) -> crate::error::Result<()> {
    use std::io::Read;

    use crate::error::Error;
    let mut magic = [0; 4];
    let read = std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut magic));
    match read {
        Ok(()) if &magic == b"GGUF" => Ok(()),
        Err(cause) if cause.kind() != std::io::ErrorKind::UnexpectedEof => {
            Err(Error::io("read", file, cause))
        }
        _ => Err(Error::invalid(format!(
            "`{}` is not a GGUF file: it does not begin with `GGUF`",
            file.display()
        ))),
    }
}
