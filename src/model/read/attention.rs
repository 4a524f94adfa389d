//! Attention: heads, their sizes, scale, biases.

use super::source::{Reader, Source};
use crate::error::{Error, Result};
use crate::formats::TensorSource;
use crate::model::arch::keys::{self, Key};
use crate::model::arch::rules::{AttentionScale, Bias};
use crate::model::config::{
    AttentionConfig, BiasPresence, KvSource, QkNorm, QueryScaling, ValueSource,
};

impl Reader<'_> {
    /// What the attention of all layers has in common; `hidden` is the width of the residual stream.
    pub(super) fn attention(&self, hidden: usize, num_layers: usize) -> Result<AttentionConfig> {
        let heads = self.size(&keys::NUM_HEADS)?;
        let kv_heads = self.kv_heads(num_layers)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::invalid(format!(
                "{heads} query heads cannot share {kv_heads} key/value heads"
            )));
        }
        let (key_dim_key, value_dim_key) = self.head_dim_keys();
        let key_dim = match self.find_size(key_dim_key)? {
            Some(size) => size,
            None => self.head_dim_from_shapes(hidden, heads, kv_heads)?,
        };
        self.check_value_dim(key_dim, value_dim_key)?;
        if self.arch.full_layers.is_some() {
            let full = self.find_size(&keys::FULL_HEAD_DIM)?;
            self.check_value_dim(full.unwrap_or(key_dim), &keys::VALUE_DIM)?;
        }
        Ok(AttentionConfig {
            heads,
            kv_heads,
            key_dim,
            value_dim: key_dim,
            qk_norm: self.qk_norm()?,
            value_norm: self.arch.value_norm,
            values: ValueSource::Projection,
            qkv_bias: self.bias(self.arch.biases.qkv)?,
            o_bias: self.bias(self.arch.biases.o)?,
            qkv_clip: self.qkv_clip()?,
            rope: None,
            query_scaling: self.query_scaling()?,
            scale: self.attention_scale(key_dim, hidden, heads, num_layers)? as f32,
            soft_cap: self.find_positive(&keys::ATTN_SOFT_CAP)?.map(|x| x as f32),
            window: None,
            sinks: self.arch.sinks,
            output_gate: self.arch.output_gate,
            kv: KvSource::Own,
        })
    }

    /// In GGUF perhaps one number per layer, 0 for layers without attention.
    fn kv_heads(&self, num_layers: usize) -> Result<Option<usize>> {
        let Some(mut counts) = self.per_layer(&keys::NUM_KV_HEADS, num_layers)? else {
            return self.find_size(&keys::NUM_KV_HEADS);
        };
        counts.retain(|count| *count > 0);
        counts.dedup();
        match counts[..] {
            [] => Ok(None),
            [count] => Ok(Some(count)),
            // Layers say their own.
            [first, ..] if self.arch.full_layers.is_some() => Ok(Some(first)),
            _ => Err(Error::unsupported(format!(
                "`{}` differs between layers, which is not supported for {}",
                self.name(&keys::NUM_KV_HEADS),
                self.arch.name
            ))),
        }
    }

    /// Where the sizes of a key and a value stand: those of sliding layers, where full ones differ.
    fn head_dim_keys(&self) -> (&'static Key, &'static Key) {
        match self.arch.full_layers {
            Some(_) => (&keys::SLIDING_HEAD_DIM, &keys::SLIDING_VALUE_DIM),
            None => (&keys::HEAD_DIM, &keys::VALUE_DIM),
        }
    }

    /// The family's norm of q and k, where the file does not switch it off.
    fn qk_norm(&self) -> Result<QkNorm> {
        let is_on = match self.arch.qk_norm_switch {
            None => true,
            Some(key) if self.is_hf() => self.hf_flag(key)? == Some(true),
            Some(_) => self.weights.find("blk.0.attn_q_norm.weight").is_some(),
        };
        Ok(if is_on {
            self.arch.qk_norm
        } else {
            QkNorm::None
        })
    }

    fn qkv_clip(&self) -> Result<Option<f32>> {
        if !self.arch.qkv_clip {
            return Ok(None);
        }
        Ok(self.find_multiplier(&keys::QKV_CLIP)?.map(|x| x as f32))
    }

    /// GGUF files of the older kind leave the head size out; the shape of q, or of q, k and v together, knows it.
    fn head_dim_from_shapes(
        &self,
        hidden_size: usize,
        num_heads: usize,
        kv_heads: usize,
    ) -> Result<usize> {
        let fused = ("blk.0.attn_qkv.weight", num_heads + 2 * kv_heads);
        for (name, heads) in [("blk.0.attn_q.weight", num_heads), fused] {
            if !self.is_hf()
                && let Some(tensor) = self.weights.find(name)
                && let [rows, _] = tensor.info.shape[..]
                && rows.is_multiple_of(heads)
            {
                return Ok(rows / heads);
            }
        }
        if !hidden_size.is_multiple_of(num_heads) {
            let text = format!(
                "a hidden size of {hidden_size} is no multiple of {num_heads} heads, and no `head_dim` is given"
            );
            return Err(Error::invalid(text));
        }
        Ok(hidden_size / num_heads)
    }

    fn check_value_dim(&self, head_dim: usize, key: &Key) -> Result<()> {
        match self.find_size(key)? {
            Some(size) if size != head_dim => {
                let text = format!(
                    "values of {size} elements beside keys of {head_dim} are not supported for {}",
                    self.arch.name
                );
                Err(Error::unsupported(text))
            }
            _ => Ok(()),
        }
    }

    fn attention_scale(
        &self,
        head_dim: usize,
        hidden: usize,
        heads: usize,
        layers: usize,
    ) -> Result<f64> {
        let root = |x: f64| 1.0 / x.sqrt();
        match self.arch.attention_scale {
            AttentionScale::One => Ok(1.0),
            AttentionScale::HeadDim => Ok(root(head_dim as f64)),
            AttentionScale::Multiplier => {
                let own = self.find_multiplier(&keys::ATTENTION_MULTIPLIER)?;
                Ok(own.unwrap_or(root(head_dim as f64)))
            }
            AttentionScale::QueryScalar { .. } if self.is_hf() => {
                self.positive(&keys::QUERY_PRE_ATTN_SCALAR).map(root)
            }
            AttentionScale::QueryScalar { other_at } => {
                let written = match &self.source {
                    Source::Gguf { metadata, prefix } => metadata
                        .find_f64(&format!("{prefix}.attention.query_pre_attn_scalar"))?
                        .filter(|x| *x > 0.0),
                    Source::Hf(_) => None,
                };
                Ok(root(written.unwrap_or(if layers == other_at {
                    hidden as f64 / heads as f64
                } else {
                    head_dim as f64
                })))
            }
        }
    }

    /// Ministral 3: beta stands among the rotary parameters.
    fn query_scaling(&self) -> Result<Option<QueryScaling>> {
        if !self.arch.query_scaling {
            return Ok(None);
        }
        let beta = match self.rope_number("llama_4_scaling_beta")? {
            None => self.find_number(&keys::QUERY_SCALING)?,
            beta => beta,
        };
        let Some(beta) = beta.filter(|beta| *beta != 0.0) else {
            return Ok(None);
        };
        if !beta.is_finite() {
            return Err(Error::invalid(format!("queries grow by {beta}")));
        }
        Ok(Some(QueryScaling {
            beta: beta as f32,
            original: self.original_context()?,
        }))
    }

    /// Whether a bias must be there.
    pub(super) fn bias(&self, rule: Bias) -> Result<BiasPresence> {
        Ok(match rule {
            Bias::Never => BiasPresence::Absent,
            Bias::Always => BiasPresence::Required,
            Bias::Configured(..) if !self.is_hf() => BiasPresence::Optional,
            Bias::Configured(key, default) => match self.hf_flag(key)?.unwrap_or(default) {
                true => BiasPresence::Required,
                false => BiasPresence::Absent,
            },
        })
    }
}
