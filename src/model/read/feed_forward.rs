//! The feed-forward part.

use super::source::Reader;
use crate::error::{Error, Result};
use crate::model::arch::keys;
use crate::model::config::{DenseConfig, FeedForwardConfig};
use crate::ops::gated_act::Activation;

impl Reader<'_> {
    /// The feed-forward part of all layers.
    pub(super) fn feed_forward(&self) -> Result<FeedForwardConfig> {
        Ok(FeedForwardConfig::Dense(DenseConfig {
            intermediate: self.size(&keys::INTERMEDIATE_SIZE)?,
            activation: self.activation()?,
            bias: self.bias(self.arch.biases.feed_forward),
        }))
    }

    fn activation(&self) -> Result<Activation> {
        let keys = self.arch.activation_keys.iter();
        let own = keys.filter_map(|key| self.hf(key)).next();
        match own.map(|v| v.as_str().unwrap_or("?")) {
            None => Ok(self.arch.activation),
            // What the first Gemma files say and do not mean (GemmaConfig).
            Some("gelu") if self.arch.activation == Activation::GeluTanh => {
                Ok(Activation::GeluTanh)
            }
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
            Some(other) => Err(Error::unsupported(format!(
                "activation `{other}` is not supported"
            ))
            .with_hint("supported are `silu` and `gelu_pytorch_tanh`")),
        }
    }
}
