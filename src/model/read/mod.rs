//! From a container's own description (`config.json` or GGUF metadata) and the architecture table to a [`ModelConfig`].
//!
//! Generic over families: it reads the fields of `arch/keys.rs` by the rules of the row, and never compares names.
//!
//! | file | reads |
//! |---|---|
//! | `source.rs` | one field, whatever the container |
//! | `attention.rs`, `feed_forward.rs` | the parts of layers |
//! | `windows.rs` | which layers slide |
//! | `rope.rs` | rotations |

mod attention;
mod feed_forward;
mod rope;
mod source;
mod windows;

use std::path::Path;

use serde_json::Value;

use self::source::{Reader, Source};
use super::arch::keys;
use super::arch::{find_gguf, find_hf};
use super::config::{
    AttentionConfig, LayerConfig, MixerConfig, ModelConfig, NormConfig, RopeConfig,
};
use crate::error::{Error, Result};
use crate::formats::{TensorSource, Weights};

/// More layers than any model has; a bound for what a file may make us allocate.
const MAX_LAYERS: usize = 4096;

/// Reads the configuration of the model in `weights`; `folder` holds `config.json` when the weights are safetensors.
///
/// # Errors
/// `Unsupported` for an architecture or feature that this build does not run, `Invalid` for a field that is missing,
/// of the wrong type or impossible, `NotFound` without a `config.json`.
pub fn read_config(weights: &Weights, folder: &Path) -> Result<ModelConfig> {
    match weights {
        Weights::Gguf(file) => {
            let metadata = file.metadata();
            let name = metadata.find_str("general.architecture")?.ok_or_else(|| {
                Error::invalid("the GGUF file does not say its `general.architecture`")
            })?;
            let source = Source::Gguf {
                metadata,
                prefix: name.to_owned(),
            };
            Reader {
                source,
                arch: find_gguf(name)?,
                weights,
            }
            .config()
        }
        Weights::Safetensors(_) => {
            let path = folder.join("config.json");
            let bytes = std::fs::read(&path).map_err(|e| Error::io("read", &path, e))?;
            let json: Value = serde_json::from_slice(&bytes).map_err(|e| {
                Error::invalid(format!("`{}` is not JSON", path.display())).with_source(e)
            })?;
            let config = read_hf(json, weights);
            config.map_err(|e| e.context(format!("in `{}`", path.display())))
        }
    }
}

fn read_hf(json: Value, weights: &Weights) -> Result<ModelConfig> {
    let classes = json.get("architectures").and_then(Value::as_array);
    let classes = classes
        .ok_or_else(|| Error::invalid("no list `architectures`: the model's class is unknown"))?;
    let arch = find_hf(classes.iter().filter_map(Value::as_str))?;
    Reader {
        source: Source::Hf(merge_text_config(json)),
        arch,
        weights,
    }
    .config()
}

/// Multimodal files nest the language model's fields; they win over the root's.
fn merge_text_config(mut json: Value) -> Value {
    let text = json
        .as_object_mut()
        .and_then(|root| root.remove("text_config"));
    if let (Some(root), Some(Value::Object(text))) = (json.as_object_mut(), text) {
        root.extend(text);
    }
    json
}

impl Reader<'_> {
    fn config(&self) -> Result<ModelConfig> {
        let hidden_size = self.size(&keys::HIDDEN_SIZE)?;
        let (ropes, layers) = self.layers(hidden_size)?;
        Ok(ModelConfig {
            architecture: self.arch.name,
            names: self.arch.names,
            extra_stop_ids: self.arch.extra_stop_ids,
            vocab_size: self.vocab_size()?,
            hidden_size,
            max_context: self.size(&keys::MAX_CONTEXT)?,
            norm: self.norm()?,
            embedding_scale: if self.arch.scaled_embeddings {
                (hidden_size as f32).sqrt()
            } else {
                1.0
            },
            residual_scale: 1.0,
            logits_scale: 1.0,
            final_soft_cap: self.find_positive(&keys::FINAL_SOFT_CAP)?.map(|x| x as f32),
            tied_head: self.tied_head(),
            num_predict_layers: 0,
            ropes,
            layers,
        })
    }

    fn layers(&self, hidden_size: usize) -> Result<(Vec<RopeConfig>, Vec<LayerConfig>)> {
        let num_layers = self.size(&keys::NUM_LAYERS)?;
        if num_layers > MAX_LAYERS {
            return Err(Error::invalid(format!(
                "{num_layers} layers: at most {MAX_LAYERS} are believed"
            )));
        }
        let attention = self.attention(hidden_size, num_layers)?;
        let feed_forward = self.feed_forward()?;
        let ropes = self.ropes(attention.key_dim)?;
        let layer = |window: Option<usize>| LayerConfig {
            mixer: MixerConfig::Attention(AttentionConfig {
                window,
                rope: Some(usize::from(self.arch.local_rope && window.is_some())),
                ..attention.clone()
            }),
            feed_forward: feed_forward.clone(),
            norms: self.arch.norms,
        };
        let layers = self.windows(num_layers)?.into_iter().map(layer).collect();
        Ok((ropes, layers))
    }

    fn norm(&self) -> Result<NormConfig> {
        Ok(NormConfig {
            kind: self.arch.norm,
            eps: self.positive(&keys::RMS_NORM_EPS)? as f32,
            offset: if self.arch.zero_centred_norms && self.is_hf() {
                1.0
            } else {
                0.0
            },
        })
    }

    fn vocab_size(&self) -> Result<usize> {
        // The tensor's shape is the truth; a padded table is larger than the tokenizer.
        let name = if self.is_hf() {
            "embed_tokens.weight"
        } else {
            "token_embd.weight"
        };
        let table = self
            .weights
            .tensors()
            .iter()
            .find(|t| t.name.ends_with(name) && t.shape.len() == 2);
        match (table, self.is_hf()) {
            (Some(table), false) => Ok(table.shape[0]),
            (None, false) => Err(Error::invalid(
                "no tensor `token_embd.weight` `[vocab, hidden]` in the file",
            )),
            _ => self.size(&keys::VOCAB_SIZE),
        }
    }

    fn tied_head(&self) -> Option<bool> {
        self.is_hf().then(|| {
            self.hf("tie_word_embeddings")
                .and_then(Value::as_bool)
                .unwrap_or(self.arch.tied_by_default)
        })
    }
}
