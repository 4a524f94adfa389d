//! The feed-forward part.

use super::source::Reader;
use crate::error::{Error, Result};
use crate::model::arch::keys;
use crate::model::arch::table::BiasRule;
use crate::model::config::{BiasPresence, DenseConfig, FeedForwardConfig};
use crate::ops::gated_act::Activation;

impl Reader<'_> {
    /// The feed-forward part of all layers.
    pub(super) fn feed_forward(&self) -> Result<FeedForwardConfig> {
        let bias = match (self.arch.biases, self.is_hf()) {
            (BiasRule::Qkv, _) => BiasPresence::Absent,
            (BiasRule::Configured, true) => self.configured_bias("mlp_bias"),
            (BiasRule::Configured, false) => BiasPresence::Optional,
        };
        Ok(FeedForwardConfig::Dense(DenseConfig {
            intermediate: self.size(&keys::INTERMEDIATE_SIZE)?,
            activation: self.activation()?,
            bias,
        }))
    }

    fn activation(&self) -> Result<Activation> {
        // Gemma's classes read `hidden_activation` and ignore a `hidden_act` that older files carry.
        let own = match self.arch.activation {
            Activation::GeluTanh => self.hf("hidden_activation"),
            Activation::Silu => self
                .hf("hidden_act")
                .or_else(|| self.hf("hidden_activation")),
        };
        match own.map(|v| v.as_str().unwrap_or("?")) {
            None => Ok(self.arch.activation),
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
            Some(other) => Err(Error::unsupported(format!(
                "activation `{other}` is not supported"
            ))
            .with_hint("supported are `silu` and `gelu_pytorch_tanh`")),
        }
    }
}
