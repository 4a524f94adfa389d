//! The feed-forward part; `moe.rs` reads the one with experts.

use super::source::Reader;
use crate::error::{Error, Result};
use crate::formats::TensorSource;
use crate::model::arch::keys;
use crate::model::arch::rules::{Beside, FeedForwardWidth};
use crate::model::config::{
    BiasPresence, DenseConfig, FeedForwardConfig, KvSource, MixerConfig, TwofoldConfig,
};
use crate::ops::gated_act::Activation;

impl Reader<'_> {
    /// The feed-forward part of each layer, of which `mixers` tells whose keys it reads.
    pub(super) fn feed_forward(&self, mixers: &[MixerConfig]) -> Result<Vec<FeedForwardConfig>> {
        let moe = self.moe()?;
        let sparse = match &moe {
            Some(_) => self.sparse_layers(mixers.len())?,
            None => vec![false; mixers.len()],
        };
        let beside = self.arch.moe.map_or(Beside::Nothing, |rule| rule.beside);
        if beside == Beside::Nothing && !sparse.contains(&false) {
            let moe = moe.expect("some layer is sparse");
            return Ok(vec![FeedForwardConfig::Moe(moe); mixers.len()]);
        }
        let activation = self.activation()?;
        let widths = self.feed_forward_widths(mixers)?;
        let of = |(width, is_sparse)| {
            let dense = self.dense_of(width, activation)?;
            Ok(match (&moe, beside) {
                (Some(moe), Beside::Nothing) if is_sparse => FeedForwardConfig::Moe(moe.clone()),
                (Some(moe), Beside::Dense) if is_sparse => {
                    let moe = moe.clone();
                    FeedForwardConfig::Twofold(TwofoldConfig { dense, moe })
                }
                _ => FeedForwardConfig::Dense(dense),
            })
        };
        widths.into_iter().zip(sparse).map(of).collect()
    }

    fn feed_forward_widths(&self, mixers: &[MixerConfig]) -> Result<Vec<usize>> {
        if let Some(widths) = self.per_layer(&keys::INTERMEDIATE_SIZE, mixers.len())? {
            if widths.contains(&0) {
                return Err(Error::unsupported(format!(
                    "`{}` is 0 in some layers, which is not supported",
                    self.name(&keys::INTERMEDIATE_SIZE)
                )));
            }
            return Ok(widths);
        }
        let width = self.feed_forward_width()?;
        let is_double = self.arch.feed_forward_width == FeedForwardWidth::DoubleWithoutKeys
            && self.hf_flag("use_double_wide_mlp")? == Some(true);
        let of = |mixer: &MixerConfig| match mixer.kv_source() {
            Some(KvSource::Layer(_)) if is_double => 2 * width,
            _ => width,
        };
        Ok(mixers.iter().map(of).collect())
    }

    /// A gated block of the width `intermediate`.
    pub(super) fn dense_of(
        &self,
        intermediate: usize,
        activation: Activation,
    ) -> Result<DenseConfig> {
        let bias: BiasPresence = self.bias(self.arch.biases.feed_forward)?;
        Ok(DenseConfig {
            intermediate,
            activation,
            bias,
        })
    }

    fn feed_forward_width(&self) -> Result<usize> {
        if self.arch.feed_forward_width != FeedForwardWidth::TwoThirds || !self.is_hf() {
            return self.intermediate_size();
        }
        let width = match self.find_size(&keys::BLOCK_FF_DIM)? {
            Some(width) => width,
            None => self.size(&keys::INTERMEDIATE_SIZE)?,
        };
        if self.hf_flag("block_auto_adjust_ff_dim")? == Some(false) {
            return Ok(width);
        }
        // As Lfm2MLP: without a multiplier nothing is rounded either.
        let width = 2 * width / 3;
        match self.find_positive(&keys::FFN_MULTIPLIER)? {
            None => Ok(width),
            Some(factor) => {
                let multiple = self.size(&keys::FFN_MULTIPLE_OF)?;
                let width = (factor * width as f64).clamp(1.0, f64::from(1 << 24)) as usize;
                Ok(width.next_multiple_of(multiple))
            }
        }
    }

    /// GGUF files of the older kind leave the width out; the shape of down knows it.
    fn intermediate_size(&self) -> Result<usize> {
        match self.find_size(&keys::INTERMEDIATE_SIZE)? {
            Some(size) => Ok(size),
            None => match self.weights.find("blk.0.ffn_down.weight") {
                Some(down) if !self.is_hf() && down.info.shape.len() == 2 => Ok(down.info.shape[1]),
                _ => self.size(&keys::INTERMEDIATE_SIZE),
            },
        }
    }

    pub(super) fn activation(&self) -> Result<Activation> {
        let mut own = None;
        for key in self.arch.activation_keys {
            own = own.or(self.hf_name(key)?.map(|name| (*key, name)));
        }
        match own {
            None => Ok(self.arch.activation),
            // What the first Gemma files say and do not mean (GemmaConfig).
            Some(("hidden_act", "gelu")) if self.arch.activation == Activation::GeluTanh => {
                Ok(Activation::GeluTanh)
            }
            Some((_, "silu" | "swish")) => Ok(Activation::Silu),
            Some((_, "gelu_pytorch_tanh" | "gelu_new" | "gelu_fast")) => Ok(Activation::GeluTanh),
            Some((_, other)) => Err(Error::unsupported(format!(
                "activation `{other}` is not supported"
            ))
            .with_hint("supported are `silu` and `gelu_pytorch_tanh`")),
        }
    }
}
