//! Sliding windows: which layers have one.

use serde_json::Value;

use super::source::{Reader, Source};
use crate::error::{Error, Result};
use crate::formats::gguf::Metadata;
use crate::model::arch::keys;
use crate::model::arch::table::WindowRule;

impl Reader<'_> {
    /// The window of each layer.
    pub(super) fn windows(&self, num_layers: usize) -> Result<Vec<Option<usize>>> {
        let sliding: Vec<bool> = match self.layer_types(num_layers)? {
            Some(types) => types,
            None => (0..num_layers)
                .map(|i| self.slides_by_rule(i))
                .collect::<Result<_>>()?,
        };
        if !sliding.contains(&true) {
            return Ok(vec![None; num_layers]);
        }
        if self.arch.window == WindowRule::None {
            return Err(Error::unsupported(format!(
                "`sliding_attention` layers in a {} model",
                self.arch.name
            )));
        }
        let window = self.size(&keys::SLIDING_WINDOW)?;
        Ok(sliding
            .into_iter()
            .map(|slides| slides.then_some(window))
            .collect())
    }

    /// `layer_types` (in GGUF a list `sliding_window_pattern`), where the file has it: true for sliding layers.
    fn layer_types(&self, num_layers: usize) -> Result<Option<Vec<bool>>> {
        if let Source::Gguf { metadata, prefix } = &self.source {
            return gguf_layer_types(metadata, prefix, num_layers);
        }
        let Some(types) = self.hf("layer_types").and_then(Value::as_array) else {
            return Ok(None);
        };
        if types.len() < num_layers {
            return Err(Error::invalid(format!(
                "`layer_types` has {} entries for {num_layers} layers",
                types.len()
            )));
        }
        let one = |value: &Value| match value.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(Error::unsupported(format!(
                "layer type {value} is not supported"
            ))),
        };
        types[..num_layers]
            .iter()
            .map(one)
            .collect::<Result<_>>()
            .map(Some)
    }

    fn slides_by_rule(&self, layer: usize) -> Result<bool> {
        match self.arch.window {
            WindowRule::None => Ok(false),
            WindowRule::Switched => {
                let on = self
                    .hf("use_sliding_window")
                    .and_then(Value::as_bool)
                    .unwrap_or(false);
                // Below 0 and above all layers are both written in real files.
                let from = self.find_number(&keys::MAX_WINDOW_LAYERS)?.unwrap_or(0.0);
                Ok(on && self.hf("sliding_window").is_some() && layer as f64 >= from)
            }
            WindowRule::EveryNthFull(default) => {
                let period = self.find_size(&keys::SLIDING_PATTERN)?.unwrap_or(default);
                Ok(!(layer + 1).is_multiple_of(period))
            }
        }
    }
}

/// `attention.sliding_window_pattern` as newer converters write it: one flag per layer, true for sliding ones.
fn gguf_layer_types(
    metadata: &Metadata,
    prefix: &str,
    num_layers: usize,
) -> Result<Option<Vec<bool>>> {
    let key = format!("{prefix}.attention.sliding_window_pattern");
    if metadata.find_array_len(&key).ok().flatten().is_none() {
        return Ok(None);
    }
    let flags = metadata.find_bool_array(&key)?.unwrap_or_default();
    if flags.len() < num_layers {
        return Err(Error::invalid(format!(
            "`{key}` has {} entries for {num_layers} layers",
            flags.len()
        )));
    }
    Ok(Some(flags[..num_layers].to_vec()))
}
