//! `config.json` of an encoder → [`EncoderConfig`].

use std::path::Path;

use serde_json::Value;

use super::config::{EncoderClass, EncoderConfig, Family, Positions, class_of};
use crate::error::{Error, Result};
use crate::model::ModelKind;
use crate::model::fields::Fields;
use crate::ops::activate::Function;

/// A bound for what a file may make us allocate.
const MAX_SIZE: u64 = 1 << 24;
/// More layers than any model has.
const MAX_LAYERS: usize = 4096;

/// The configuration of the encoder in `folder`; `None` when the model there is none.
///
/// # Errors
/// `Unsupported` for a feature that this program does not have, `Invalid` for a field that is missing, of the wrong type or
/// impossible.
pub fn read_encoder_config(folder: &Path) -> Result<Option<EncoderConfig>> {
    let path = folder.join("config.json");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", &path, error)),
    };
    let json: Value = serde_json::from_slice(&bytes)
        .map_err(|e| Error::invalid(format!("`{}` is not JSON", path.display())).with_source(e))?;
    let has_modules = folder.join("modules.json").is_file();
    describe_encoder(&json, has_modules)
        .map_err(|error| error.context(format!("in `{}`", path.display())))
}

/// The configuration of the encoder that a `config.json` describes; `None` when it describes none. `has_modules`: a `modules.json`
/// lies beside it.
///
/// # Errors
/// As [`read_encoder_config`].
pub(in crate::model) fn describe_encoder(
    json: &Value,
    has_modules: bool,
) -> Result<Option<EncoderConfig>> {
    class_of(json, has_modules)
        .map(|class| Reader { json, class }.config(has_modules))
        .transpose()
}

struct Reader<'a> {
    json: &'a Value,
    class: &'static EncoderClass,
}

impl Reader<'_> {
    fn config(&self, has_modules: bool) -> Result<EncoderConfig> {
        self.refuse_what_is_not_there(has_modules)?;
        let (hidden_size, num_heads) =
            (self.size("hidden_size")?, self.size("num_attention_heads")?);
        if !hidden_size.is_multiple_of(num_heads) {
            return Err(Error::invalid(format!(
                "a hidden size of {hidden_size} is no multiple of {num_heads} heads"
            )));
        }
        let num_layers = self.size("num_hidden_layers")?;
        if num_layers > MAX_LAYERS {
            return Err(Error::invalid(format!(
                "{num_layers} layers: at most {MAX_LAYERS} are believed"
            )));
        }
        let num_positions = self.size("max_position_embeddings")?;
        let config = EncoderConfig {
            architecture: self.class.name,
            kind: self.class.kind,
            family: self.class.family,
            vocab_size: self.size("vocab_size")?,
            hidden_size,
            num_heads,
            intermediate_size: self.size("intermediate_size")?,
            num_layers,
            num_positions,
            positions: self.positions(num_positions)?,
            // Defaults of `BertConfig` and `RobertaConfig`.
            num_token_types: self.find_size("type_vocab_size")?.unwrap_or(2),
            norm_eps: self.norm_eps()?,
            activation: self.activation()?,
        };
        self.check_labels()?;
        Ok(config)
    }

    fn field(&self, name: &str) -> Option<&Value> {
        self.json.get(name).filter(|value| !value.is_null())
    }

    fn find_size(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.field(name) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(size @ 1..=MAX_SIZE) => Ok(Some(size as usize)),
            _ => Err(Error::invalid(format!(
                "`{name}` is {value}, expected a whole number from 1 to {MAX_SIZE}"
            ))),
        }
    }

    fn size(&self, name: &str) -> Result<usize> {
        self.find_size(name)?
            .ok_or_else(|| Error::invalid(format!("the model does not say its `{name}`")))
    }

    fn positions(&self, num_positions: usize) -> Result<Positions> {
        if self.class.family == Family::Bert {
            return Ok(Positions::FromZero);
        }
        // Default of `RobertaConfig` and `XLMRobertaConfig`.
        let pad = match self.field("pad_token_id") {
            None => 1,
            Some(value) => value.as_u64().ok_or_else(|| {
                Error::invalid(format!("`pad_token_id` is {value}, expected a token id"))
            })?,
        };
        if pad + 1 >= num_positions as u64 {
            return Err(Error::invalid(format!(
                "positions begin behind the padding id {pad}, and there are {num_positions} of them"
            )));
        }
        Ok(Positions::AfterPadding(pad as u32))
    }

    fn norm_eps(&self) -> Result<f32> {
        // Default of both configurations.
        let Some(value) = self.field("layer_norm_eps") else {
            return Ok(1e-12);
        };
        match value.as_f64() {
            Some(eps) if eps.is_finite() && eps >= 0.0 => Ok(eps as f32),
            _ => Err(Error::invalid(format!(
                "`layer_norm_eps` is {value}, expected a positive number"
            ))),
        }
    }

    /// By transformers' names (`activations.py`).
    fn activation(&self) -> Result<Function> {
        match self
            .field("hidden_act")
            .map(|value| value.as_str().unwrap_or("?"))
        {
            None | Some("gelu" | "gelu_python") => Ok(Function::Gelu),
            Some(
                "gelu_new" | "gelu_pytorch_tanh" | "gelu_python_tanh" | "gelu_fast"
                | "gelu_accurate",
            ) => Ok(Function::GeluTanh),
            Some("relu") => Ok(Function::Relu),
            Some("silu" | "swish") => Ok(Function::Silu),
            Some("tanh") => Ok(Function::Tanh),
            Some(other) => Err(Error::unsupported(format!(
                "activation `{other}` is not supported for {}",
                self.class.name
            ))
            .with_hint("supported are `gelu`, `gelu_new`, `relu`, `silu` and `tanh`")),
        }
    }

    fn refuse_what_is_not_there(&self, has_modules: bool) -> Result<()> {
        let name = self.class.name;
        if self.class.needs_modules && !has_modules {
            return Err(Error::unsupported(format!(
                "a {name} guesses hidden words, and nothing says how to make a vector of a text with it"
            ))
            .with_hint("an embedding model has a `modules.json` beside its weights"));
        }
        if let Some(kind) = self.field("position_embedding_type")
            && kind != "absolute"
        {
            return Err(Error::unsupported(format!(
                "`position_embedding_type` {kind} is not supported, only \"absolute\""
            )));
        }
        for flag in ["is_decoder", "add_cross_attention"] {
            if Fields::of(self.json).flag(flag)? == Some(true) {
                return Err(Error::unsupported(format!(
                    "`{flag}` is not supported for a {name}"
                )));
            }
        }
        Ok(())
    }

    /// A score is one number.
    fn check_labels(&self) -> Result<()> {
        if self.class.kind != ModelKind::Reranker {
            return Ok(());
        }
        let listed = self
            .field("id2label")
            .and_then(Value::as_object)
            .map(serde_json::Map::len);
        let counted = self.find_size("num_labels")?;
        // Without either there are two.
        match listed.or(counted).unwrap_or(2) {
            1 => Ok(()),
            labels => Err(Error::unsupported(format!(
                "the classifier has {labels} labels: it sorts texts and does not score them"
            ))
            .with_hint("a reranker has one label")),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(class: &str, more: Value) -> Result<EncoderConfig, String> {
        let mut config = json!({
            "architectures": [class],
            "vocab_size": 50, "hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 2,
            "intermediate_size": 20, "max_position_embeddings": 40
        });
        for (name, value) in more.as_object().unwrap() {
            config[name] = value.clone();
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        match read_encoder_config(folder.path()) {
            Ok(config) => Ok(config.expect("an encoder")),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_longest_text_is_the_position_table_without_what_lies_before_the_first_position() {
        assert_eq!(read("BertModel", json!({})).unwrap().max_tokens(), 40);
        assert_eq!(read("RobertaModel", json!({})).unwrap().max_tokens(), 38);
        let padded = read("XLMRobertaModel", json!({ "pad_token_id": 4 })).unwrap();
        assert_eq!(padded.max_tokens(), 35);
    }

    #[test]
    fn what_is_left_out_has_the_defaults_of_the_class() {
        let config = read("RobertaModel", json!({})).unwrap();
        assert_eq!(config.activation, Function::Gelu);
        assert_eq!((config.num_token_types, config.norm_eps), (2, 1e-12));
        assert_eq!(config.positions, Positions::AfterPadding(1));
    }

    #[test]
    fn what_this_program_does_not_compute_is_refused_by_name() {
        for (class, more, words) in [
            (
                "BertModel",
                json!({ "hidden_act": "mish" }),
                "activation `mish`",
            ),
            (
                "BertModel",
                json!({ "position_embedding_type": "relative_key" }),
                "relative_key",
            ),
            ("BertModel", json!({ "is_decoder": true }), "`is_decoder`"),
            (
                "BertModel",
                json!({ "is_decoder": "yes" }),
                "`is_decoder` is \"yes\", expected `true` or `false`",
            ),
            (
                "BertModel",
                json!({ "num_attention_heads": 5 }),
                "no multiple of 5 heads",
            ),
            (
                "BertModel",
                json!({ "hidden_size": 0 }),
                "`hidden_size` is 0",
            ),
            (
                "BertModel",
                json!({ "vocab_size": null }),
                "does not say its `vocab_size`",
            ),
            (
                "RobertaModel",
                json!({ "pad_token_id": 39 }),
                "behind the padding id 39",
            ),
            ("BertForMaskedLM", json!({}), "guesses hidden words"),
            ("BertForSequenceClassification", json!({}), "2 labels"),
            (
                "RobertaForSequenceClassification",
                json!({ "id2label": { "0": "a", "1": "b", "2": "c" } }),
                "3 labels",
            ),
        ] {
            let message = read(class, more).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
        assert!(read("BertForSequenceClassification", json!({ "num_labels": 1 })).is_ok());
    }
}
