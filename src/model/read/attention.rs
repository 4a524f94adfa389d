//! Attention: heads, their sizes, scale, biases.

use serde_json::Value;

use super::source::{Reader, Source};
use crate::error::{Error, Result};
use crate::formats::TensorSource;
use crate::model::arch::keys;
use crate::model::arch::table::BiasRule;
use crate::model::config::{AttentionConfig, BiasPresence, KvSource};

impl Reader<'_> {
    /// What the attention of all layers has in common; `hidden` is the width of the residual stream.
    pub(super) fn attention(&self, hidden: usize, num_layers: usize) -> Result<AttentionConfig> {
        let heads = self.size(&keys::NUM_HEADS)?;
        let kv_heads = self.find_size(&keys::NUM_KV_HEADS)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(Error::invalid(format!(
                "{heads} query heads cannot share {kv_heads} key/value heads"
            )));
        }
        let key_dim = match self.find_size(&keys::HEAD_DIM)? {
            Some(size) => size,
            None => self.head_dim_from_shapes(hidden, heads)?,
        };
        self.check_value_dim(key_dim)?;
        let query_scalar = self.query_scalar(key_dim, hidden, heads, num_layers)?;
        let (qkv_bias, o_bias) = self.attention_biases();
        Ok(AttentionConfig {
            heads,
            kv_heads,
            key_dim,
            value_dim: key_dim,
            qk_norm: self.arch.qk_norm,
            qkv_bias,
            o_bias,
            qkv_clip: None,
            rope: None,
            query_scaling: None,
            scale: (1.0 / query_scalar.sqrt()) as f32,
            soft_cap: self.find_positive(&keys::ATTN_SOFT_CAP)?.map(|x| x as f32),
            window: None,
            output_gate: false,
            kv: KvSource::Own,
        })
    }

    /// GGUF files of the older kind leave the head size out; the shape of q knows it.
    fn head_dim_from_shapes(&self, hidden_size: usize, num_heads: usize) -> Result<usize> {
        if !self.is_hf()
            && let Some(q) = self.weights.find("blk.0.attn_q.weight")
            && q.info.shape[0].is_multiple_of(num_heads)
        {
            return Ok(q.info.shape[0] / num_heads);
        }
        if !hidden_size.is_multiple_of(num_heads) {
            let text = format!(
                "a hidden size of {hidden_size} is no multiple of {num_heads} heads, and no `head_dim` is given"
            );
            return Err(Error::invalid(text));
        }
        Ok(hidden_size / num_heads)
    }

    fn check_value_dim(&self, head_dim: usize) -> Result<()> {
        match self.find_size(&keys::VALUE_DIM)? {
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

    fn query_scalar(
        &self,
        head_dim: usize,
        hidden: usize,
        heads: usize,
        layers: usize,
    ) -> Result<f64> {
        if !self.arch.query_pre_attn_scalar {
            return Ok(head_dim as f64);
        }
        if self.is_hf() {
            return self.positive(&keys::QUERY_PRE_ATTN_SCALAR);
        }
        // Converters do not write the scalar. llama.cpp's loader (gemma3) knows that only the 27B model, of 62 layers,
        // has another one than the head size.
        let written = match &self.source {
            Source::Gguf { metadata, prefix } => metadata
                .find_f64(&format!("{prefix}.attention.query_pre_attn_scalar"))?
                .filter(|x| *x > 0.0),
            Source::Hf(_) => None,
        };
        Ok(written.unwrap_or(if layers == 62 {
            hidden as f64 / heads as f64
        } else {
            head_dim as f64
        }))
    }

    /// Biases on q, k and v, and on the output.
    fn attention_biases(&self) -> (BiasPresence, BiasPresence) {
        use BiasPresence::{Absent, Optional, Required};
        match (self.arch.biases, self.is_hf()) {
            (BiasRule::Qkv, _) => (Required, Absent),
            (BiasRule::Configured, true) => {
                let bias = self.configured_bias("attention_bias");
                (bias, bias)
            }
            (BiasRule::Configured, false) => (Optional, Optional),
        }
    }

    /// What a switch of a `config.json` says about a bias.
    pub(super) fn configured_bias(&self, key: &str) -> BiasPresence {
        match self.hf(key).and_then(Value::as_bool) {
            Some(true) => BiasPresence::Required,
            _ => BiasPresence::Absent,
        }
    }
}
