//! From a container's own description (`config.json` or GGUF metadata) and the architecture table to a [`ModelConfig`].
//!
//! Generic over families: it reads the fields of `arch/keys.rs` by the rules of the row, and never compares names.
//!
//! | file | reads |
//! |---|---|
//! | `source.rs` | one field, whatever the container |
//! | `attention.rs`, `mla.rs`, `feed_forward.rs`, `moe.rs` | the parts of layers |
//! | `layer_kinds.rs` | how the attention of layers differs from layer to layer |
//! | `recurrent.rs` | which layers are recurrent, and their geometry |
//! | `windows.rs` | which layers slide |
//! | `rope.rs` | rotations |

mod attention;
mod feed_forward;
mod layer_kinds;
mod mla;
mod moe;
mod recurrent;
mod rope;
mod source;
mod windows;

use std::path::Path;

use serde_json::Value;

use self::source::{Reader, Source};
use super::arch::rules::{EmbeddingScale, LogitsScale};
use super::arch::{Architecture, find_gguf, keys};
use super::config::{
    BiasPresence, LayerConfig, MixerConfig, ModelConfig, NormConfig, NormKind, PerLayerConfig,
    RopeConfig,
};
use super::describe::check_description;
use crate::error::{Error, Result};
use crate::formats::{TensorSource, Weights};
use crate::ops::kv_write::KvElement;

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
    let arch = check_description(&json)?;
    let mut json = merge_text_config(json);
    assume_rope(&mut json, arch)?;
    Reader {
        source: Source::Hf(json),
        arch,
        weights,
    }
    .config()
}

/// Multimodal files nest the language model's fields; they win over the root's, but for the head, which is the outer class's.
fn merge_text_config(mut json: Value) -> Value {
    const OF_THE_ROOT: &str = "tie_word_embeddings";
    let text = json
        .as_object_mut()
        .and_then(|root| root.remove("text_config"));
    if let (Some(root), Some(Value::Object(mut text))) = (json.as_object_mut(), text) {
        if root.contains_key(OF_THE_ROOT) {
            text.remove(OF_THE_ROOT);
        }
        root.extend(text);
    }
    json
}

/// Adds the rotary parameters that the class assumes where there are none. As `PreTrainedConfig` does it, an empty older object
/// counts as none.
fn assume_rope(json: &mut Value, arch: &Architecture) -> Result<()> {
    let is_empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
    let older = json["rope_scaling"].is_null() || is_empty(&json["rope_scaling"]);
    if let Some(text) = arch.default_rope
        && older
        && json["rope_parameters"].is_null()
    {
        let parameters = serde_json::from_str(text).map_err(|e| {
            Error::internal(format!("the rotary parameters of {}", arch.name)).with_source(e)
        })?;
        json["rope_parameters"] = parameters;
        json["rope_scaling"] = Value::Null;
    }
    Ok(())
}

impl Reader<'_> {
    fn config(&self) -> Result<ModelConfig> {
        let hidden_size = self.size(&keys::HIDDEN_SIZE)?;
        let (ropes, layers) = self.layers(hidden_size)?;
        let vocab_size = self.vocab_size()?;
        Ok(ModelConfig {
            architecture: self.arch.name,
            names: self.arch.names,
            extra_stop_ids: self.arch.extra_stop_ids,
            vocab_size,
            hidden_size,
            max_context: self.size(&keys::MAX_CONTEXT)?,
            norm: self.norm()?,
            embedding_scale: match self.arch.embedding_scale {
                EmbeddingScale::One => 1.0,
                EmbeddingScale::RootHidden => (hidden_size as f32).sqrt(),
                EmbeddingScale::Multiplier => self.multiplier(&keys::EMBEDDING_MULTIPLIER)?,
            },
            residual_scale: if self.arch.residual_multiplier {
                self.multiplier(&keys::RESIDUAL_MULTIPLIER)?
            } else {
                1.0
            },
            logits_scale: match self.arch.logits_scale {
                LogitsScale::One => 1.0,
                LogitsScale::Times => self.logits_factor(&keys::LOGITS_MULTIPLIER)?,
                LogitsScale::Divided => 1.0 / self.logits_factor(&keys::LOGITS_DIVISOR)?,
            },
            final_soft_cap: self.find_positive(&keys::FINAL_SOFT_CAP)?.map(|x| x as f32),
            tied_head: self.tied_head()?,
            per_layer_inputs: self.per_layer_inputs(vocab_size)?,
            num_predict_layers: self.num_predict_layers()?,
            kv_element: KvElement::F16,
            ropes,
            layers,
        })
    }

    fn layers(&self, hidden_size: usize) -> Result<(Vec<RopeConfig>, Vec<LayerConfig>)> {
        let num_layers = self.num_layers()?;
        let (ropes, mixers) = self.mixers(hidden_size, num_layers)?;
        let feed_forward = self.feed_forward(&mixers)?;
        let layer = |(mixer, feed_forward)| LayerConfig {
            mixer,
            feed_forward,
            norms: self.arch.norms,
            output_scale: self.output_scale(),
        };
        let layers = mixers.into_iter().zip(feed_forward).map(layer).collect();
        Ok((ropes, layers))
    }

    fn mixers(
        &self,
        hidden: usize,
        num_layers: usize,
    ) -> Result<(Vec<RopeConfig>, Vec<MixerConfig>)> {
        if self.arch.mla {
            let mla = self.mla()?;
            let ropes = self.ropes(mla.rope_dim, mla.rope_dim)?;
            return Ok((ropes, vec![MixerConfig::Mla(mla); num_layers]));
        }
        let all = self.attention(hidden, num_layers)?;
        let rotates = self.rotating_layers(num_layers)?;
        let windows = self.windows(&rotates)?;
        let attention = self.attention_by_layer(&all, &windows, &rotates)?;
        let (full, sliding) = self.head_dims(&all, &attention)?;
        let ropes = self.ropes(full, sliding)?;
        let recurrent = self.recurrent(num_layers, hidden)?;
        let mixers = attention.into_iter().zip(recurrent);
        let mixers =
            mixers.map(|(attention, own)| own.unwrap_or(MixerConfig::Attention(attention)));
        Ok((ropes, mixers.collect()))
    }

    /// Safetensors files always have it; llama.cpp's loader lets it be left out.
    fn output_scale(&self) -> BiasPresence {
        match (self.arch.output_scale, self.is_hf()) {
            (false, _) => BiasPresence::Absent,
            (true, true) => BiasPresence::Required,
            (true, false) => BiasPresence::Optional,
        }
    }

    fn per_layer_inputs(&self, vocab_size: usize) -> Result<Option<PerLayerConfig>> {
        let size = match self.arch.per_layer_inputs {
            true => self.find_count(&keys::PER_LAYER_SIZE)?.unwrap_or(0),
            false => 0,
        };
        if size == 0 {
            return Ok(None);
        }
        let rows = if self.is_hf() {
            self.size(&keys::PER_LAYER_VOCAB_SIZE)?
        } else {
            let table = self.weights.find("per_layer_token_embd.weight");
            let rows = table.and_then(|table| table.info.shape.first().copied());
            rows.unwrap_or(vocab_size)
        };
        if rows < vocab_size {
            // A token without a row would end every sequence of its batch.
            return Err(Error::unsupported(format!(
                "a vocabulary of {vocab_size} with inputs per layer for {rows} of its tokens"
            )));
        }
        Ok(Some(PerLayerConfig {
            size,
            vocab_size: rows,
            activation: self.activation()?,
        }))
    }

    fn num_layers(&self) -> Result<usize> {
        let all = self.size(&keys::NUM_LAYERS)?;
        // GGUF counts layers that predict further tokens, `config.json` does not.
        let predict = if self.is_hf() {
            0
        } else {
            self.num_predict_layers()?
        };
        match all.checked_sub(predict) {
            Some(count @ 1..=MAX_LAYERS) => Ok(count),
            _ => Err(Error::invalid(format!(
                "{all} layers, {predict} of them to predict further tokens: between 1 and {MAX_LAYERS} others are believed"
            ))),
        }
    }

    fn num_predict_layers(&self) -> Result<usize> {
        match self.find_number(&keys::NUM_PREDICT_LAYERS)? {
            None => Ok(0),
            Some(count) if count.fract() == 0.0 && (0.0..=64.0).contains(&count) => {
                Ok(count as usize)
            }
            Some(count) => Err(Error::invalid(format!(
                "`{}` is {count}, expected a small number of layers",
                self.name(&keys::NUM_PREDICT_LAYERS)
            ))),
        }
    }

    /// A GGUF file that needs one always has it.
    fn logits_factor(&self, key: &keys::Key) -> Result<f32> {
        if !self.is_hf() && !self.is_written(key) {
            return Err(self.missing(key));
        }
        self.multiplier(key)
    }

    fn norm(&self) -> Result<NormConfig> {
        let key = match self.arch.norm {
            NormKind::Rms if self.knows(&keys::NORM_EPS) => &keys::NORM_EPS,
            NormKind::Rms => &keys::RMS_NORM_EPS,
            NormKind::Layer { .. } => &keys::LAYER_NORM_EPS,
        };
        let eps = self.positive(key)?;
        if !(eps as f32).is_normal() {
            let name = self.name(key);
            return Err(Error::invalid(format!(
                "`{name}` is {eps}, expected a number like 1e-5"
            )));
        }
        Ok(NormConfig {
            kind: self.arch.norm,
            eps: eps as f32,
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
        // Another table's name ends alike in GGUF files.
        let is_table = |found: &str| self.is_hf() || found == name;
        let table = self
            .weights
            .tensors()
            .iter()
            .find(|t| t.name.ends_with(name) && t.shape.len() == 2 && is_table(&t.name));
        match (table, self.is_hf()) {
            (Some(table), false) => Ok(table.shape[0]),
            (None, false) => Err(Error::invalid(
                "no tensor `token_embd.weight` `[vocab, hidden]` in the file",
            )),
            _ => self.size(&keys::VOCAB_SIZE),
        }
    }

    fn tied_head(&self) -> Result<Option<bool>> {
        if !self.is_hf() {
            return Ok(None);
        }
        // LFM2's class knows the first name too.
        let own = match self.hf("tie_embedding") {
            None => self.hf_flag("tie_word_embeddings")?,
            Some(_) => self.hf_flag("tie_embedding")?,
        };
        Ok(Some(own.unwrap_or(self.arch.tied_by_default)))
    }
}
