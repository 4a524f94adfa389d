//! Latent attention: ranks, sizes of heads, scale.

use super::source::{Reader, Source};
use crate::error::{Error, Result};
use crate::model::arch::keys;
use crate::model::config::{BiasPresence, MlaConfig, NormConfig, NormKind};
use crate::model::rope::{Yarn, scaling_kind};

/// Inside the root of the norms of latents: the classes DeepseekV2RMSNorm and DeepseekV3RMSNorm are made without the config's number
/// there, so that it is their default.
const LATENT_EPS: f32 = 1e-6;

impl Reader<'_> {
    /// The latent attention of all layers.
    pub(super) fn mla(&self) -> Result<MlaConfig> {
        self.check_mla()?;
        let rope_dim = self.size(&keys::ROPE_DIM)?;
        let nope_dim = self.nope_dim(rope_dim)?;
        let value_dim = match self.find_size(&keys::MLA_VALUE_DIM)? {
            Some(size) => size,
            None => self.size(&keys::VALUE_DIM)?,
        };
        let query_dim = (nope_dim + rope_dim) as f64;
        let mscale = self.score_mscale()?;
        // Biases are on what makes the latents, and on queries only when they have a latent.
        let latent_bias: BiasPresence = self.bias(self.arch.biases.qkv)?;
        Ok(MlaConfig {
            heads: self.size(&keys::NUM_HEADS)?,
            query_rank: self.find_size(&keys::QUERY_RANK)?,
            kv_rank: self.size(&keys::KV_RANK)?,
            nope_dim,
            rope_dim,
            value_dim,
            latent_norm: NormConfig {
                kind: NormKind::Rms,
                eps: LATENT_EPS,
                offset: 0.0,
            },
            latent_bias,
            o_bias: self.bias(self.arch.biases.o)?,
            rope: 0,
            scale: (query_dim.powf(-0.5) * mscale * mscale) as f32,
        })
    }

    /// GGUF files have the size of both parts of a query together, older ones under the name that it has elsewhere.
    fn nope_dim(&self, rope_dim: usize) -> Result<usize> {
        if self.is_hf() {
            return self.size(&keys::NOPE_DIM);
        }
        let both = match self.find_size(&keys::MLA_KEY_DIM)? {
            Some(both) => both,
            None => self.size(&keys::HEAD_DIM)?,
        };
        match both.checked_sub(rope_dim) {
            Some(nope @ 1..) => Ok(nope),
            _ => Err(Error::invalid(format!(
                "keys of {both} elements of which {rope_dim} are rotated: some others are expected"
            ))),
        }
    }

    fn check_mla(&self) -> Result<()> {
        let name = self.arch.name;
        if self
            .find_number(&keys::QUERY_SCALING)?
            .is_some_and(|x| x != 0.0)
        {
            return Err(Error::unsupported(format!(
                "queries that grow with their position are not supported for {name}"
            )));
        }
        let heads = self.size(&keys::NUM_HEADS)?;
        // GGUF files say 1, since all heads see the same latent.
        match self.find_size(&keys::NUM_KV_HEADS)? {
            Some(other) if self.is_hf() && other != heads => Err(Error::unsupported(format!(
                "{other} key/value heads beside {heads} query heads are not supported for {name}"
            ))),
            _ => Ok(()),
        }
    }

    /// What YaRN multiplies scores with, twice (`yarn_apply_mscale` of the reference).
    fn score_mscale(&self) -> Result<f64> {
        let (factor, all_dim) = match &self.source {
            Source::Hf(_) => {
                let Some(object) = self.rope_object()? else {
                    return Ok(1.0);
                };
                if scaling_kind(object)? == "default" {
                    return Ok(1.0);
                }
                (object.number("factor")?, object.number("mscale_all_dim")?)
            }
            Source::Gguf { metadata, prefix } => {
                let number = |key: &str| metadata.find_f64(&format!("{prefix}.rope.scaling.{key}"));
                // The converter multiplies it by 0.1 for this architecture alone.
                let all_dim = number("yarn_log_multiplier")?.map(|x| x / 0.1);
                (number("factor")?, all_dim)
            }
        };
        match (all_dim.filter(|x| *x != 0.0), factor) {
            (None, _) => Ok(1.0),
            (Some(all_dim), Some(factor)) => Ok(Yarn::mscale(factor, all_dim)),
            (Some(_), None) => Err(Error::invalid(
                "the rope scaling has `mscale_all_dim` and no number `factor`",
            )),
        }
    }
}
