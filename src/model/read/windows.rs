//! Sliding windows: which layers have one.

use serde_json::Value;

use super::source::{Reader, Source};
use crate::error::{Error, Result};
use crate::formats::gguf::Metadata;
use crate::model::arch::keys;
use crate::model::arch::rules::WindowRule;

impl Reader<'_> {
    /// The window of each layer, of which `rotates` tells whether it rotates.
    pub(super) fn windows(&self, rotates: &[bool]) -> Result<Vec<Option<usize>>> {
        let listed = match self.arch.window {
            WindowRule::Always => None,
            _ => self.layer_types(rotates.len())?,
        };
        let mut sliding: Vec<bool> = match listed {
            Some(types) => types,
            None => (0..rotates.len())
                .map(|layer| self.slides_by_rule(layer, rotates[layer]))
                .collect::<Result<_>>()?,
        };
        if self.arch.full_layers.is_some()
            && let Some(last) = sliding.last_mut()
        {
            // As Gemma4TextConfig, whatever the file says.
            *last = false;
        }
        if !sliding.contains(&true) {
            return Ok(vec![None; rotates.len()]);
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
        let Some(types) = self.hf_list("layer_types")? else {
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
            Some(kind) if Some(kind) == self.arch.recurrence.layer_type() => Ok(false),
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

    fn slides_by_rule(&self, layer: usize, rotates: bool) -> Result<bool> {
        let is_on = || Ok::<_, Error>(self.hf_flag("use_sliding_window")? == Some(true));
        // Converters write 0 for none; a `config.json` says `null`.
        let has_window = || {
            if self.is_hf() {
                return Ok(self.find_size(&keys::SLIDING_WINDOW)?.is_some());
            }
            let window = self.find_number(&keys::SLIDING_WINDOW)?;
            Ok(window.is_some_and(|w| w > 0.0))
        };
        match self.arch.window {
            WindowRule::None => Ok(false),
            WindowRule::Always => has_window(),
            WindowRule::SwitchedWithoutRope => Ok(!rotates && is_on()? && has_window()?),
            WindowRule::SwitchedAll => Ok(is_on()? && has_window()?),
            WindowRule::SwitchedAlternating => {
                let below = self.find_number(&keys::MAX_WINDOW_LAYERS)?;
                let below = below.is_none_or(|limit| (layer as f64) < limit);
                Ok(is_on()? && has_window()? && below && layer.is_multiple_of(2))
            }
            WindowRule::Switched => {
                // Below 0 and above all layers are both written in real files.
                let from = self.find_number(&keys::MAX_WINDOW_LAYERS)?.unwrap_or(0.0);
                Ok(is_on()? && self.hf("sliding_window").is_some() && layer as f64 >= from)
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
