//! The feed-forward part; `moe.rs` reads the one with experts.

use super::source::Reader;
use crate::error::{Error, Result};
use crate::model::arch::keys;
use crate::model::arch::keys::Key;
use crate::model::config::{BiasPresence, DenseConfig, FeedForwardConfig};
use crate::ops::gated_act::Activation;

impl Reader<'_> {
    /// The feed-forward part of each layer.
    pub(super) fn feed_forward(&self, num_layers: usize) -> Result<Vec<FeedForwardConfig>> {
        let moe = self.moe()?;
        let sparse = match &moe {
            Some(_) => self.sparse_layers(num_layers)?,
            None => vec![false; num_layers],
        };
        let dense = match sparse.contains(&false) {
            true => Some(self.dense(&keys::INTERMEDIATE_SIZE)?),
            false => None,
        };
        let of = |is_sparse| match (is_sparse, &moe, &dense) {
            (true, Some(moe), _) => FeedForwardConfig::Moe(moe.clone()),
            (_, _, dense) => {
                FeedForwardConfig::Dense(dense.clone().expect("some layer is not sparse"))
            }
        };
        Ok(sparse.into_iter().map(of).collect())
    }

    /// A gated block of the width `size`.
    pub(super) fn dense(&self, size: &Key) -> Result<DenseConfig> {
        Ok(self.dense_of(self.size(size)?, self.activation()?))
    }

    pub(super) fn dense_of(&self, intermediate: usize, activation: Activation) -> DenseConfig {
        let bias: BiasPresence = self.bias(self.arch.biases.feed_forward);
        DenseConfig {
            intermediate,
            activation,
            bias,
        }
    }

    pub(super) fn activation(&self) -> Result<Activation> {
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
