//! A tokenizer from a checkpoint folder: `tokenizer.json`, completed from `tokenizer_config.json` and
//! `special_tokens_map.json`.

use std::path::Path;

use serde_json::Value;
use tokenizers::AddedToken;

use super::table::{TokenRow, TokenTable, spelling_of};
use super::{Frame, Roles, Tokenizer, guard_panics};
use crate::error::{Error, Result};

/// A JSON file of a tokenizer larger than this is refused; the largest in use is 40 MB.
const MAX_JSON_BYTES: u64 = 512 << 20;

impl Tokenizer {
    /// Builds the tokenizer of the checkpoint folder `folder`.
    ///
    /// # Errors
    /// `NotFound` without `tokenizer.json`, `Invalid` for files that contradict themselves, `Io` when one cannot be read.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        let Some(json) = read_optional(&path)? else {
            return Err(missing(folder));
        };
        let config = read_json(&folder.join("tokenizer_config.json"))?;
        let special_map = read_json(&folder.join("special_tokens_map.json"))?;
        Self::build(&json, config.as_ref(), special_map.as_ref())
            .map_err(|error| error.context(format!("cannot use `{}`", path.display())))
    }

    /// Builds a tokenizer from the text of a `tokenizer.json` alone.
    ///
    /// # Errors
    /// `Invalid` when it is not one.
    pub fn from_json_bytes(json: &[u8]) -> Result<Self> {
        Self::build(json, None, None)
    }

    fn build(json: &[u8], config: Option<&Value>, special_map: Option<&Value>) -> Result<Self> {
        let parsed = guard_panics("read the tokenizer", || {
            tokenizers::Tokenizer::from_bytes(json)
        })?;
        let mut inner =
            parsed.map_err(|error| Error::invalid(format!("not a tokenizer: {error}")))?;
        guard_panics("build the tokenizer", move || {
            // Both are meant for training batches: prompts must neither be cut nor filled up.
            inner
                .with_truncation(None)
                .map_err(|error| Error::invalid(error.to_string()))?;
            inner.with_padding(None);
            add_configured_tokens(&mut inner, config);
            let roles = roles_of(&inner, config, special_map);
            let table = table_of(&inner)?;
            Ok(Self::assemble(inner, table, roles, Frame::PostProcessor))
        })?
    }
}

fn missing(folder: &Path) -> Error {
    let error = Error::not_found(format!(
        "cannot load the tokenizer: `{}` has no `tokenizer.json`",
        folder.display()
    ));
    let other = [
        "tekken.json",
        "tokenizer.model",
        "spiece.model",
        "vocab.json",
        "vocab.txt",
    ];
    match other.iter().find(|name| folder.join(name).exists()) {
        Some(name) => error.with_hint(format!(
            "the folder has `{name}`, a form this program does not read; save the tokenizer with transformers \
             (`AutoTokenizer.from_pretrained(folder).save_pretrained(folder)`) or use a GGUF of the model"
        )),
        None => error.with_hint("pull the model again, or copy `tokenizer.json` from the original model into the folder"),
    }
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    let size = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", path, error)),
    };
    if size > MAX_JSON_BYTES {
        return Err(Error::invalid(format!(
            "`{}` has {size} bytes, at most {MAX_JSON_BYTES} are expected",
            path.display()
        )));
    }
    std::fs::read(path)
        .map(Some)
        .map_err(|error| Error::io("read", path, error))
}

pub(crate) fn read_json(path: &Path) -> Result<Option<Value>> {
    let Some(bytes) = read_optional(path)? else {
        return Ok(None);
    };
    let parsed = serde_json::from_slice(&bytes);
    parsed
        .map(Some)
        .map_err(|error| Error::invalid(format!("`{}` is not JSON: {error}", path.display())))
}

/// Some checkpoints list tokens in `tokenizer_config.json` alone. They are added in the order of their ids, which is the order
/// in which the crate numbers them.
fn add_configured_tokens(inner: &mut tokenizers::Tokenizer, config: Option<&Value>) {
    let Some(listed) = config.and_then(|config| config["added_tokens_decoder"].as_object()) else {
        return;
    };
    let known = inner.get_added_tokens_decoder();
    let mut missing: Vec<(u32, AddedToken)> = Vec::new();
    for (id, entry) in listed {
        let (Ok(id), Some(content)) = (id.parse::<u32>(), entry["content"].as_str()) else {
            continue;
        };
        let flag = |key: &str| entry[key].as_bool().unwrap_or(false);
        if known.get(&id).is_none_or(|token| token.content != content) {
            let token = AddedToken::from(content, flag("special"))
                .single_word(flag("single_word"))
                .lstrip(flag("lstrip"))
                .rstrip(flag("rstrip"))
                .normalized(flag("normalized"));
            missing.push((id, token));
        }
    }
    missing.sort_by_key(|(id, _)| *id);
    for (id, token) in missing {
        let content = token.content.clone();
        inner.add_tokens(&[token]);
        let given = inner.token_to_id(&content);
        if given != Some(id) {
            tracing::warn!(
                token = content,
                listed = id,
                ?given,
                "added token has another id than its file lists"
            );
        }
    }
}

fn roles_of(
    inner: &tokenizers::Tokenizer,
    config: Option<&Value>,
    special_map: Option<&Value>,
) -> Roles {
    let find = |key: &str| {
        let sources = [config, special_map];
        sources.iter().flatten().find_map(|source| {
            let entry = &source[key];
            let text = entry.as_str().or_else(|| entry["content"].as_str())?;
            inner.token_to_id(text)
        })
    };
    Roles {
        bos: find("bos_token"),
        eos: find("eos_token"),
        pad: find("pad_token"),
        unk: find("unk_token"),
        ends: Vec::new(),
    }
}

fn table_of(inner: &tokenizers::Tokenizer) -> Result<TokenTable> {
    let decoder = inner.get_decoder().map(serde_json::to_value).transpose();
    let decoder = decoder.map_err(|error| Error::invalid(format!("not a decoder: {error}")))?;
    let spelling = spelling_of(decoder.as_ref());
    let added = inner.get_added_tokens_decoder();
    let mut rows: Vec<TokenRow> = inner
        .get_vocab(false)
        .into_iter()
        .filter(|(_, id)| !added.contains_key(id))
        .map(|(text, id)| TokenRow {
            id,
            text,
            added: false,
            special: false,
        })
        .collect();
    rows.extend(added.into_iter().map(|(id, token)| TokenRow {
        id,
        text: token.content,
        added: true,
        special: token.special,
    }));
    TokenTable::new(rows, spelling)
}
