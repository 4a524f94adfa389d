//! Rotations: which layers rotate, by what frequencies.

use serde_json::Value;

use super::source::{Reader, Source, finite};
use crate::error::{Error, Result};
use crate::formats::TensorSource;
use crate::formats::gguf::Metadata;
use crate::model::arch::keys::{self, Key};
use crate::model::arch::rules::RopeLayers;
use crate::model::config::{LongRope, RopeConfig};
use crate::model::fields::Fields;
use crate::model::rope::{
    Context, RopeScaling, Yarn, read_scaling, scaled_frequencies, scaling_kind,
};
use crate::ops::rope::Pairing;

/// The rotation of full and of sliding layers.
#[derive(Clone, Copy)]
enum Kind {
    Full,
    Sliding,
}

impl Kind {
    /// Its name in `rope_parameters` of newer files.
    fn name(self) -> &'static str {
        match self {
            Self::Full => "full_attention",
            Self::Sliding => "sliding_attention",
        }
    }

    fn theta(self) -> &'static Key {
        match self {
            Self::Full => &keys::ROPE_THETA,
            Self::Sliding => &keys::ROPE_LOCAL_THETA,
        }
    }
}

impl Reader<'_> {
    /// The rotation of most layers, and behind it that of sliding ones where it is another.
    /// `full` and `sliding` are their head sizes.
    pub(super) fn ropes(&self, full: usize, sliding: usize) -> Result<Vec<RopeConfig>> {
        let mut ropes = vec![self.rope(Kind::Full, full)?];
        if self.arch.local_rope {
            ropes.push(self.rope(Kind::Sliding, sliding)?);
        }
        Ok(ropes)
    }

    /// Which layers rotate, as far as that does not hang on their window.
    pub(super) fn rotating_layers(&self, num_layers: usize) -> Result<Vec<bool>> {
        if self.arch.rope_layers != RopeLayers::Listed {
            return Ok(vec![true; num_layers]);
        }
        let Some(list) = self.hf_list("no_rope_layers")? else {
            let interval = self.size(&keys::NO_ROPE_INTERVAL)?;
            let rotates = |layer: usize| !(layer + 1).is_multiple_of(interval);
            return Ok((0..num_layers).map(rotates).collect());
        };
        if list.len() < num_layers {
            return Err(Error::invalid(format!(
                "`no_rope_layers` has {} entries for {num_layers} layers",
                list.len()
            )));
        }
        let flag = |value: &Value| match value.as_i64() {
            Some(0) => Ok(false),
            Some(1) => Ok(true),
            _ => Err(Error::invalid(format!(
                "`no_rope_layers` holds {value}, expected 0 or 1"
            ))),
        };
        list[..num_layers].iter().map(flag).collect()
    }

    /// A number in `rope_scaling` or `rope_parameters`, which is not split by layer type.
    pub(super) fn rope_number(&self, key: &str) -> Result<Option<f64>> {
        for name in ["rope_scaling", "rope_parameters"] {
            if let Some(object) = self.hf_object(name)?
                && let Some(number) = object.number(key)?
            {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The context before it was stretched. As in the reference, a field of the whole model (or its class's default) wins over one
    /// among the rotary parameters.
    pub(super) fn original_context(&self) -> Result<usize> {
        let original = self.scaling_context()?.original_in(self.rope_object()?)?;
        if original.fract() != 0.0 || !(1.0..=1e12).contains(&original) {
            return Err(Error::invalid(format!(
                "the original context is {original}, expected a number of tokens"
            )));
        }
        Ok(original as usize)
    }

    pub(super) fn rope_object(&self) -> Result<Option<Fields<'_>>> {
        let older = self.hf_object("rope_scaling")?;
        let newer = self.hf_object("rope_parameters")?;
        Ok(older.or(newer))
    }

    fn scaling_context(&self) -> Result<Context> {
        Ok(Context {
            original: self.find_positive(&keys::ORIGINAL_CONTEXT)?,
            longest: self.positive(&keys::MAX_CONTEXT)?,
        })
    }

    fn rope(&self, kind: Kind, head_dim: usize) -> Result<RopeConfig> {
        let all = self.hf_object("rope_parameters")?;
        // Newer files: one object, or one object per layer type.
        let nested = all.map_or(Ok(None), |all| all.nested(kind.name()))?;
        let parameters = nested.or(all);
        let scaled = matches!(kind, Kind::Full);
        let theta = self.theta(kind, parameters.filter(|_| scaled || nested.is_some()))?;
        let scaling = match &self.source {
            Source::Hf(_) if nested.is_some() => read_scaling(nested, &self.scaling_context()?)?,
            Source::Hf(_) if scaled => match (self.arch.full_layers, self.rope_object()?) {
                (Some(rule), None) => RopeScaling::Proportional {
                    share: rule.rotating_share,
                    factor: 1.0,
                },
                (_, object) => read_scaling(object, &self.scaling_context()?)?,
            },
            Source::Gguf { metadata, prefix } if scaled => self.gguf_scaling(metadata, prefix)?,
            _ => RopeScaling::None,
        };
        let share = parameters.map_or(Ok(None), |p| p.number("partial_rotary_factor"))?;
        let share = match share {
            // There the class knows a share in the proportional rule only.
            _ if self.arch.full_layers.is_some() => 1.0,
            // Plain frequencies are each class's own, and most know no share; the common rules that scale them do.
            _ if !self.knows(&keys::PARTIAL_ROTARY) && !self.has_common_rule(&scaling)? => 1.0,
            Some(share) => share,
            None => self.find_number(&keys::PARTIAL_ROTARY)?.unwrap_or(1.0),
        };
        let rotary_dim = match kind {
            Kind::Sliding if self.arch.full_layers.is_some() => &keys::SLIDING_ROTARY_DIM,
            _ => &keys::ROTARY_DIM,
        };
        let dim = match (self.find_size(rotary_dim)?, &scaling) {
            // The share is part of the rule, which rotates whole heads.
            (_, RopeScaling::Proportional { .. }) => head_dim,
            (Some(dim), _) => dim,
            (None, _) => (head_dim as f64 * share) as usize,
        };
        // The reference rounds an odd part of a head up to whole pairs.
        if !(1..=head_dim).contains(&dim) || dim.next_multiple_of(2) > head_dim {
            return Err(Error::invalid(format!(
                "{dim} rotated elements in a head of {head_dim}: expected whole pairs in it"
            )));
        }
        let rope = scaled_frequencies(theta, dim, &scaling)?;
        Ok(RopeConfig {
            frequencies: rope.frequencies,
            magnitude: rope.magnitude,
            long: rope
                .long
                .map(|(frequencies, above)| LongRope { frequencies, above }),
            pairing: if self.is_hf() {
                self.hf_pairing()?
            } else {
                self.arch.gguf_pairing
            },
        })
    }

    /// Whether one of the rules that classes share makes the frequencies; `dynamic` is one, though it changes none here.
    fn has_common_rule(&self, scaling: &RopeScaling) -> Result<bool> {
        let kind = self.rope_object()?.map_or(Ok("none"), scaling_kind)?;
        Ok(*scaling != RopeScaling::None || kind == "dynamic")
    }

    fn hf_pairing(&self) -> Result<Pairing> {
        let switch = self.arch.interleave_switch;
        Ok(match switch.map_or(Ok(None), |key| self.hf_flag(key))? {
            Some(false) => Pairing::HalfSplit,
            Some(true) => Pairing::Interleaved,
            None => self.arch.hf_pairing,
        })
    }

    fn theta(&self, kind: Kind, parameters: Option<Fields<'_>>) -> Result<f64> {
        // Older and newer places: both exist in real files, `rope_scaling` holds one now and then.
        let scaling = self
            .hf_object("rope_scaling")?
            .filter(|_| matches!(kind, Kind::Full));
        let mut found = None;
        for object in [scaling, parameters].into_iter().flatten() {
            found = found.or(object.number("rope_theta")?);
        }
        match found {
            Some(theta) if theta.is_finite() && theta > 0.0 => Ok(theta),
            Some(theta) => Err(Error::invalid(format!(
                "`rope_theta` is {theta}, expected a positive number"
            ))),
            None => match self.find_positive(kind.theta())? {
                Some(theta) => Ok(theta),
                // The common base stands in for one that the file does not speak of, not for a bad one.
                None if self.is_written(kind.theta()) => Err(self.missing(kind.theta())),
                None => self.positive(&keys::ROPE_THETA),
            },
        }
    }

    fn gguf_scaling(&self, metadata: &Metadata, prefix: &str) -> Result<RopeScaling> {
        if let Some(divisors) = self.rope_tensor("rope_freqs.weight")? {
            return Ok(RopeScaling::Divisors(divisors));
        }
        if self.arch.full_layers.is_some() {
            return Err(Error::invalid(
                "the file has no tensor `rope_freqs.weight`, which says what rotates in layers that see everything",
            ));
        }
        // Zero means that it was not published.
        let number = |key: &str| -> Result<Option<f64>> {
            let name = format!("{prefix}.rope.{key}");
            match finite(metadata, &name)? {
                Some(x) if x < 0.0 => Err(Error::invalid(format!(
                    "`{name}` is {x}, expected a positive number"
                ))),
                found => Ok(found.filter(|x| *x > 0.0)),
            }
        };
        let magnitude = number("scaling.attn_factor")?;
        let context = self.scaling_context()?;
        let short = self.rope_tensor("rope_factors_short.weight")?;
        let long = self.rope_tensor("rope_factors_long.weight")?;
        if let (Some(short), Some(long)) = (short, long) {
            return Ok(RopeScaling::Long {
                short,
                long,
                original: context.original_in(None)?,
                magnitude: magnitude.unwrap_or(1.0) as f32,
            });
        }
        let kind = metadata.find_str(&format!("{prefix}.rope.scaling.type"))?;
        let older = number("scale_linear")?;
        match (kind, number("scaling.factor")?.or(older)) {
            (None | Some("none" | "linear"), None) | (Some("none"), _) => Ok(RopeScaling::None),
            (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
            (Some("yarn"), Some(factor)) => {
                // llama.cpp's loader: the multiplier is `mscale_all_dim`, beside an `mscale` of 1; beside one that is equal in
                // models with latent attention.
                let all_dim = number("scaling.yarn_log_multiplier")?;
                let own_and_all = |all| (if self.arch.mla { all } else { 1.0 }, all);
                Ok(RopeScaling::Yarn(Yarn {
                    factor,
                    original: context.original_in(None)?,
                    beta_fast: number("scaling.yarn_beta_fast")?.unwrap_or(32.0),
                    beta_slow: number("scaling.yarn_beta_slow")?.unwrap_or(1.0),
                    truncate: self.arch.gguf_yarn_truncate,
                    magnitude: (Yarn::magnitude(factor, all_dim.map(own_and_all))
                        * magnitude.unwrap_or(1.0)) as f32,
                }))
            }
            (Some(other), _) => Err(Error::unsupported(format!(
                "rope scaling `{other}` without its numbers is not supported"
            ))
            .with_hint("supported are `linear`, `yarn`, and the factors of Llama 3 and LongRoPE")),
        }
    }

    /// A list of numbers that a GGUF file keeps as a tensor.
    fn rope_tensor(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.weights.find(name) else {
            return Ok(None);
        };
        let mut values = vec![0.0; tensor.info.num_elements()];
        let bytes = tensor.bytes.as_slice();
        tensor.info.encoding.decode_row(bytes, &mut values)?;
        if values.iter().any(|x| !(x.is_finite() && *x > 0.0)) {
            return Err(Error::invalid(format!(
                "`{name}` holds a number that is not positive"
            )));
        }
        Ok(Some(values))
    }
}
