//! Recurrent layers: which they are, and their geometry.

use serde_json::Value;

use super::source::{Reader, Source};
use crate::error::{Error, Result};
use crate::model::arch::keys;
use crate::model::arch::rules::{Bias, Recurrence};
use crate::model::config::{DecayRates, DeltaNetConfig, MixerConfig, ShortConvConfig};
use crate::ops::delta_net::{DeltaShape, HeadSharing};

/// More inputs than any convolution of these kinds sees; a bound for what a file may make us allocate.
const MAX_KERNEL: usize = 256;

impl Reader<'_> {
    /// The mixer of each layer that has no attention.
    pub(super) fn recurrent(
        &self,
        num_layers: usize,
        hidden: usize,
    ) -> Result<Vec<Option<MixerConfig>>> {
        let mixer = match self.arch.recurrence {
            Recurrence::None => return Ok(vec![None; num_layers]),
            Recurrence::DeltaNet => MixerConfig::DeltaNet(self.delta_net()?),
            Recurrence::ShortConv => MixerConfig::ShortConv(self.short_conv(hidden)?),
        };
        let layers = self.recurrent_layers(num_layers)?.into_iter();
        Ok(layers
            .map(|is_recurrent| is_recurrent.then(|| mixer.clone()))
            .collect())
    }

    fn delta_net(&self) -> Result<DeltaNetConfig> {
        let key_heads = self.size(&keys::LINEAR_KEY_HEADS)?;
        let value_heads = self.size(&keys::LINEAR_VALUE_HEADS)?;
        if !value_heads.is_multiple_of(key_heads) {
            return Err(Error::invalid(format!(
                "{value_heads} value heads of a delta rule cannot share {key_heads} key heads"
            )));
        }
        let value_dim = if self.is_hf() {
            self.size(&keys::LINEAR_VALUE_DIM)?
        } else {
            let all = self.size(&keys::SSM_INNER_SIZE)?;
            if !all.is_multiple_of(value_heads) {
                let name = self.name(&keys::SSM_INNER_SIZE);
                return Err(Error::invalid(format!(
                    "`{name}` is {all}, expected a multiple of {value_heads} value heads"
                )));
            }
            all / value_heads
        };
        Ok(DeltaNetConfig {
            shape: DeltaShape {
                key_heads,
                value_heads,
                key_dim: self.size(&keys::LINEAR_KEY_DIM)?,
                value_dim,
                // llama.cpp's converter reorders value heads so that its broadcast of key heads fits them.
                sharing: if self.is_hf() {
                    HeadSharing::Grouped
                } else {
                    HeadSharing::Tiled
                },
            },
            conv_kernel: self.kernel(&keys::LINEAR_CONV_KERNEL)?,
            rates: if self.is_hf() {
                DecayRates::Logarithms
            } else {
                DecayRates::Plain
            },
        })
    }

    fn short_conv(&self, hidden: usize) -> Result<ShortConvConfig> {
        Ok(ShortConvConfig {
            channels: hidden,
            kernel: self.kernel(&keys::SHORT_CONV_KERNEL)?,
            bias: self.bias(Bias::Configured("conv_bias", false))?,
        })
    }

    fn kernel(&self, key: &keys::Key) -> Result<usize> {
        match self.size(key)? {
            kernel @ 1..=MAX_KERNEL => Ok(kernel),
            other => Err(Error::invalid(format!(
                "`{}` is {other}, expected at most {MAX_KERNEL}",
                self.name(key)
            ))),
        }
    }

    fn recurrent_layers(&self, num_layers: usize) -> Result<Vec<bool>> {
        let listed = match &self.source {
            Source::Hf(_) => self.layer_kinds(num_layers)?,
            Source::Gguf { metadata, prefix } => {
                let key = format!("{prefix}.attention.recurrent_layers");
                match metadata.find_array_len(&key).ok().flatten() {
                    Some(_) => metadata.find_bool_array(&key)?,
                    None => None,
                }
            }
        };
        match listed {
            Some(layers) if layers.len() < num_layers => Err(Error::invalid(format!(
                "{} layers are said to be recurrent or not, expected {num_layers}",
                layers.len()
            ))),
            Some(mut layers) => {
                layers.truncate(num_layers);
                Ok(layers)
            }
            None => (0..num_layers)
                .map(|layer| self.is_recurrent_by_rule(layer))
                .collect(),
        }
    }

    /// `layer_types`, where the file has it: true for recurrent layers.
    fn layer_kinds(&self, num_layers: usize) -> Result<Option<Vec<bool>>> {
        let Some(types) = self.hf_list("layer_types")? else {
            return Ok(None);
        };
        let own = self.arch.recurrence.layer_type();
        let one = |value: &Value| match value.as_str() {
            Some("full_attention") => Ok(false),
            Some(kind) if Some(kind) == own => Ok(true),
            _ => Err(Error::unsupported(format!(
                "layer type {value} is not supported in a {} model",
                self.arch.name
            ))),
        };
        let kinds = types.iter().take(num_layers).map(one);
        kinds.collect::<Result<_>>().map(Some)
    }

    fn is_recurrent_by_rule(&self, layer: usize) -> Result<bool> {
        match (self.arch.recurrence, &self.source) {
            (Recurrence::None, _) => Ok(false),
            (Recurrence::DeltaNet, _) => {
                let interval = self.size(&keys::FULL_ATTENTION_INTERVAL)?;
                Ok(!(layer + 1).is_multiple_of(interval))
            }
            (Recurrence::ShortConv, Source::Hf(_)) => {
                // Without a list all layers have attention.
                let list = self.hf_list("full_attn_idxs")?;
                let is_listed = |list: &[Value]| {
                    list.iter()
                        .any(|index| index.as_u64() == Some(layer as u64))
                };
                Ok(list.is_some_and(|list| !is_listed(list)))
            }
            (Recurrence::ShortConv, Source::Gguf { metadata, prefix }) => {
                // One count per layer, 0 for those without attention.
                let key = format!("{prefix}.attention.head_count_kv");
                let counts = metadata.find_u64_array(&key)?.unwrap_or_default();
                Ok(counts.get(layer) == Some(&0))
            }
        }
    }
}
