//! Rotations.

use serde_json::Value;

use super::source::{Reader, Source};
use crate::error::{Error, Result};
use crate::formats::TensorSource;
use crate::formats::gguf::Metadata;
use crate::model::arch::keys::{self, Key};
use crate::model::config::RopeConfig;
use crate::model::rope::{RopeScaling, read_scaling, scaled_frequencies};
use crate::ops::rope::Pairing;

impl Reader<'_> {
    /// The rotation of most layers, and behind it that of sliding ones where it is another.
    pub(super) fn ropes(&self, head_dim: usize) -> Result<Vec<RopeConfig>> {
        let mut ropes = vec![self.rope("full_attention", &keys::ROPE_THETA, head_dim, true)?];
        if self.arch.local_rope {
            let key = &keys::ROPE_LOCAL_THETA;
            ropes.push(self.rope("sliding_attention", key, head_dim, false)?);
        }
        Ok(ropes)
    }

    /// The rotation of full or sliding layers.
    fn rope(
        &self,
        kind: &str,
        theta_key: &Key,
        head_dim: usize,
        scaled: bool,
    ) -> Result<RopeConfig> {
        let parameters = self.hf("rope_parameters");
        // Newer files: one object, or one object per layer type.
        let parameters = parameters.map(|p| p.get(kind).unwrap_or(p));
        let nested = self
            .hf("rope_parameters")
            .is_some_and(|p| p.get(kind).is_some());
        let theta = match parameters
            .and_then(|p| p.get("rope_theta"))
            .and_then(Value::as_f64)
        {
            Some(theta) if scaled || nested => theta,
            _ => self
                .positive(theta_key)
                .or_else(|_| self.positive(&keys::ROPE_THETA))?,
        };
        let scaling = match &self.source {
            Source::Hf(_) if nested => read_scaling(parameters)?,
            Source::Hf(_) if scaled => read_scaling(self.hf("rope_scaling").or(parameters))?,
            Source::Hf(_) => RopeScaling::None,
            Source::Gguf { metadata, prefix } => self.gguf_scaling(metadata, prefix, scaled)?,
        };
        let factor = parameters
            .and_then(|p| p.get("partial_rotary_factor"))
            .or_else(|| self.hf("partial_rotary_factor"))
            .and_then(Value::as_f64)
            .unwrap_or(1.0);
        let dim = self
            .find_size(&keys::ROTARY_DIM)?
            .unwrap_or((head_dim as f64 * factor) as usize);
        if dim == 0 || dim > head_dim || !dim.is_multiple_of(2) {
            return Err(Error::invalid(format!(
                "{dim} rotated elements in a head of {head_dim}: expected an even part"
            )));
        }
        let pairing = if self.is_hf() {
            Pairing::HalfSplit
        } else {
            self.arch.gguf_pairing
        };
        Ok(RopeConfig {
            frequencies: scaled_frequencies(theta, dim, &scaling)?,
            magnitude: 1.0,
            pairing,
        })
    }

    fn gguf_scaling(&self, metadata: &Metadata, prefix: &str, scaled: bool) -> Result<RopeScaling> {
        if !scaled {
            return Ok(RopeScaling::None);
        }
        if let Some(divisors) = self.weights.find("rope_freqs.weight") {
            let mut values = vec![0.0; divisors.info.num_elements()];
            divisors
                .info
                .encoding
                .decode_row(divisors.bytes.as_slice(), &mut values)?;
            return Ok(RopeScaling::Divisors(values));
        }
        let kind = metadata.find_str(&format!("{prefix}.rope.scaling.type"))?;
        let factor = metadata.find_f64(&format!("{prefix}.rope.scaling.factor"))?;
        let older = metadata.find_f64(&format!("{prefix}.rope.scale_linear"))?;
        match (kind, factor.or(older).filter(|f| *f > 0.0)) {
            (None | Some("none" | "linear"), None) | (Some("none"), _) => Ok(RopeScaling::None),
            (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
            (Some(other), _) => Err(Error::unsupported(format!(
                "rope scaling `{other}` is not supported"
            ))
            .with_hint("supported are `linear` and the factors of Llama 3")),
        }
    }
}
