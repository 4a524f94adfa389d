//! An embedding model or reranker as text sees it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use crate::engine::embed::EmbedEngine;
use crate::error::{Error, Result};
use crate::model::ModelKind;
use crate::model::encoder::{Family, TextTokens, read_encoder_config};
use crate::text::{Specials, Tokenizer};

/// Texts to tokens, as the files of an embedding model or reranker say.
pub struct EmbeddingText {
    tokenizer: Tokenizer,
    /// Texts in front of a text, by name.
    prompts: BTreeMap<String, String>,
    default_prompt: Option<String>,
    /// Texts are made lower case before anything else.
    lowercases: bool,
    /// The second text of a pair is told apart by its token type.
    has_types: bool,
}

impl EmbeddingText {
    /// Reads tokenizer, prompts and switches from `folder`.
    ///
    /// # Errors
    /// `NotFound` without a tokenizer, `Invalid` for files that are not what they should be.
    pub fn read(folder: &Path) -> Result<Self> {
        let json = |name: &str| read_json(&folder.join(name));
        let prompts = json("config_sentence_transformers.json")?;
        let (prompts, default_prompt) = read_prompts(&prompts)
            .map_err(|error| error.context("in `config_sentence_transformers.json`"))?;
        let sentence = json("sentence_bert_config.json")?;
        Ok(Self {
            tokenizer: Tokenizer::from_folder(folder)?,
            prompts,
            default_prompt,
            lowercases: sentence["do_lower_case"] == true,
            has_types: has_types(folder, &json("tokenizer_config.json")?)?,
        })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The text of the prompt called `name`, or of the model's default one.
    ///
    /// # Errors
    /// `Invalid`, with the names there are, for a name that the model does not have.
    pub fn prompt(&self, name: Option<&str>) -> Result<Option<&str>> {
        let Some(name) = name.or(self.default_prompt.as_deref()) else {
            return Ok(None);
        };
        match self.prompts.get(name) {
            Some(prompt) => Ok(Some(prompt)
                .filter(|text| !text.is_empty())
                .map(String::as_str)),
            None => {
                let known: Vec<String> = self
                    .prompts
                    .keys()
                    .map(|name| format!("`{name}`"))
                    .collect();
                let known = match known.is_empty() {
                    true => "it has none".to_owned(),
                    false => format!("it has {}", known.join(", ")),
                };
                Err(Error::invalid(format!(
                    "the model has no prompt `{name}`: {known}"
                )))
            }
        }
    }

    /// The tokens of `text` behind `prompt`, with those that stand at the beginning and end. Text that spells a control token stays
    /// text.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer fails on the text.
    pub fn tokens(&self, text: &str, prompt: Option<&str>) -> Result<TextTokens> {
        let Some(prompt) = prompt else {
            let ids = self
                .tokenizer
                .encode_framed(&self.cased(text), Specials::Plain)?;
            return Ok(TextTokens::of_ids(ids));
        };
        let all = format!("{prompt}{text}");
        let ids = self
            .tokenizer
            .encode_framed(&self.cased(&all), Specials::Plain)?;
        // The prompt alone, without the token that ends a text.
        let alone = self
            .tokenizer
            .encode_framed(&self.cased(prompt), Specials::Plain)?;
        let ends = alone
            .last()
            .is_some_and(|&id| self.tokenizer.is_special(id));
        Ok(TextTokens {
            ids,
            type_ids: Vec::new(),
            num_skipped: alone.len() - usize::from(ends),
        })
    }

    /// The tokens of a query and a document, with those between and around them.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer fails, `Unsupported` when it does not know pairs.
    pub fn pair(&self, query: &str, document: &str) -> Result<TextTokens> {
        let pair = self.tokenizer.encode_pair(
            &self.cased(query),
            &self.cased(document),
            Specials::Plain,
        )?;
        Ok(TextTokens {
            type_ids: if self.has_types {
                pair.type_ids
            } else {
                Vec::new()
            },
            ids: pair.ids,
            num_skipped: 0,
        })
    }

    fn cased<'t>(&self, text: &'t str) -> std::borrow::Cow<'t, str> {
        match self.lowercases {
            true => text.to_lowercase().into(),
            false => text.into(),
        }
    }
}

/// Prompts by name, and the name of the default one.
fn read_prompts(json: &Value) -> Result<(BTreeMap<String, String>, Option<String>)> {
    let mut prompts = BTreeMap::new();
    for (name, text) in json["prompts"].as_object().into_iter().flatten() {
        let text = text
            .as_str()
            .ok_or_else(|| Error::invalid(format!("the prompt `{name}` is no text")))?;
        prompts.insert(name.clone(), text.to_owned());
    }
    let default = json["default_prompt_name"].as_str().map(str::to_owned);
    match default {
        Some(name) if !prompts.contains_key(&name) => Err(Error::invalid(format!(
            "`default_prompt_name` is `{name}`, and there is no such prompt"
        ))),
        default => Ok((prompts, default)),
    }
}

/// Whether the model is told which text of a pair a token belongs to: BERT is, unless its tokenizer leaves that out; the tokenizers
/// of RoBERTa always do.
fn has_types(folder: &Path, tokenizer_config: &Value) -> Result<bool> {
    let Some(config) = read_encoder_config(folder)? else {
        return Ok(false);
    };
    let inputs = tokenizer_config["model_input_names"].as_array();
    let is_named = inputs.is_none_or(|names| names.iter().any(|name| name == "token_type_ids"));
    Ok(config.family == Family::Bert && config.num_token_types > 1 && is_named)
}

/// A JSON file, or null when there is none.
fn read_json(path: &Path) -> Result<Value> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| {
            Error::invalid(format!("`{}` is not JSON", path.display())).with_source(error)
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

/// An embedding model or reranker that can answer.
pub struct EmbeddingModel {
    kind: ModelKind,
    engine: EmbedEngine,
    text: Arc<EmbeddingText>,
}

impl EmbeddingModel {
    /// Puts the parts together.
    pub fn new(kind: ModelKind, engine: EmbedEngine, text: EmbeddingText) -> Self {
        Self {
            kind,
            engine,
            text: Arc::new(text),
        }
    }

    /// Vectors or scores.
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    /// The handle to the engine.
    pub fn engine(&self) -> &EmbedEngine {
        &self.engine
    }

    /// Texts to tokens.
    pub fn text(&self) -> &Arc<EmbeddingText> {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prompts_are_texts_and_the_default_one_is_there() {
        let read = |json: Value| read_prompts(&json).map_err(|error| error.to_string());
        let (prompts, default) = read(json!({
            "prompts": { "query": "q: ", "document": "" },
            "default_prompt_name": "query"
        }))
        .unwrap();
        assert_eq!(prompts["query"], "q: ");
        assert_eq!(default.as_deref(), Some("query"));
        assert_eq!(read(Value::Null).unwrap(), (BTreeMap::new(), None));
        assert!(
            read(json!({ "prompts": { "a": 3 } }))
                .unwrap_err()
                .contains("`a`")
        );
        let lost = read(json!({ "prompts": {}, "default_prompt_name": "x" }));
        assert!(lost.unwrap_err().contains("`x`"));
    }
}
