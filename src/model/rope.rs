//! Rotary frequencies and the rules that stretch them to longer contexts.
//!
//! Source of every rule: `modeling_rope_utils.py` of the `transformers` package, in its steps of F32. A rule that this build
//! does not know is refused: skipping it gives fluent, wrong text.

use serde_json::Value;

use super::fields::Fields;
use crate::error::{Error, Result};

/// How plain frequencies are changed.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: long wavelengths divided, short ones kept, a smooth blend between.
    Llama3 {
        /// The divisor.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Context before stretching.
        original: f64,
    },
    /// YaRN.
    Yarn(Yarn),
    /// LongRoPE: one list of divisors for short sequences and one for long ones.
    Long {
        /// Divisors up to `original` tokens.
        short: Vec<f32>,
        /// Divisors beyond.
        long: Vec<f32>,
        /// Context before stretching.
        original: f64,
        /// Multiplies cosine and sine.
        magnitude: f32,
    },
    /// Only the first share of the pairs rotates; frequencies are those of the whole head (Gemma 4).
    Proportional {
        /// The share.
        share: f64,
        /// Divides the frequencies.
        factor: f64,
    },
    /// Each divided by its own divisor, from a tensor of a GGUF file.
    Divisors(Vec<f32>),
}

/// YaRN: wavelengths that fit into the original context often are kept, those that hardly do are divided, a ramp between.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    /// The divisor.
    pub factor: f64,
    /// Context before stretching.
    pub original: f64,
    /// Pairs that turn more often than this in the original context are kept.
    pub beta_fast: f64,
    /// Pairs that turn less often than this are divided.
    pub beta_slow: f64,
    /// The ramp's ends are rounded to whole pairs.
    pub truncate: bool,
    /// Multiplies cosine and sine.
    pub magnitude: f32,
}

impl Yarn {
    /// The magnitude where a file does not state it: by the factor, or by `mscale` over `mscale_all_dim` when both are given.
    pub fn magnitude(factor: f64, scales: Option<(f64, f64)>) -> f64 {
        match scales {
            Some((own, all_dim)) => Self::mscale(factor, own) / Self::mscale(factor, all_dim),
            None => Self::mscale(factor, 1.0),
        }
    }

    /// How much flatter attention becomes when a context is stretched by `factor`, by the root that keys and queries each get.
    pub fn mscale(factor: f64, scale: f64) -> f64 {
        if factor <= 1.0 {
            1.0
        } else {
            0.1 * scale * libm::log(factor) + 1.0
        }
    }

    /// The pairs where the ramp begins and ends.
    fn range(&self, theta: f64, dim: usize) -> (f64, f64) {
        let pair = |turns: f64| {
            let inner = libm::log(self.original / (turns * 2.0 * std::f64::consts::PI));
            dim as f64 * inner / (2.0 * libm::log(theta))
        };
        let (mut low, mut high) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low.max(0.0), high.min(dim as f64 - 1.0))
    }
}

/// The lengths that a rule may depend on.
#[derive(Debug, Clone, Copy)]
pub struct Context {
    /// The original context where the whole model says it, which wins over what stands in the rule.
    pub original: Option<f64>,
    /// The longest context.
    pub longest: f64,
}

impl Context {
    /// The original context: the model's, the rule's own, or the longest there is.
    ///
    /// # Errors
    /// `Invalid` when the rule's own is no number.
    pub fn original_in(&self, rule: Option<Fields<'_>>) -> Result<f64> {
        let own = rule.map_or(Ok(None), |o| o.number("original_max_position_embeddings"))?;
        Ok(self.original.or(own).unwrap_or(self.longest))
    }
}

/// Frequencies after scaling.
#[derive(Debug, Clone, PartialEq)]
pub struct Frequencies {
    /// Radians per position, one per pair.
    pub frequencies: Vec<f32>,
    /// Multiplies cosine and sine.
    pub magnitude: f32,
    /// Those for sequences of more tokens than the number.
    pub long: Option<(Vec<f32>, usize)>,
}

/// `theta^(2i/dim)` for each pair, in the reference's F32 steps. An odd `dim` makes a last pair of its own.
fn wavelengths(theta: f64, dim: usize) -> Vec<f32> {
    (0..dim.div_ceil(2))
        .map(|i| {
            let exponent = (2 * i) as f32 / dim as f32;
            libm::pow(theta, f64::from(exponent)) as f32
        })
        .collect()
}

/// `theta^(-2i/dim)` for each pair.
pub fn plain_frequencies(theta: f64, dim: usize) -> Vec<f32> {
    wavelengths(theta, dim)
        .into_iter()
        .map(|w| 1.0 / w)
        .collect()
}

/// Frequencies after scaling.
///
/// # Errors
/// `Invalid` when a list of divisors has another length than the pairs.
pub fn scaled_frequencies(theta: f64, dim: usize, scaling: &RopeScaling) -> Result<Frequencies> {
    let plain = plain_frequencies(theta, dim);
    let (mut magnitude, mut long) = (1.0, None);
    let frequencies = match scaling {
        RopeScaling::None => plain,
        RopeScaling::Linear { factor } => plain.iter().map(|f| f / *factor as f32).collect(),
        RopeScaling::Llama3 {
            factor,
            low,
            high,
            original,
        } => {
            let [factor, low, high, original] = [*factor, *low, *high, *original].map(|x| x as f32);
            let scaled = plain
                .into_iter()
                .map(|f| llama3(f, factor, low, high, original));
            scaled.collect()
        }
        RopeScaling::Yarn(rule) => {
            magnitude = rule.magnitude;
            yarn(rule, theta, dim)
        }
        RopeScaling::Long {
            short,
            long: divisors,
            original,
            magnitude: own,
        } => {
            magnitude = *own;
            long = Some((divided(theta, dim, divisors)?, *original as usize));
            divided(theta, dim, short)?
        }
        RopeScaling::Proportional { share, factor } => {
            let rotated = (share * dim as f64 / 2.0) as usize;
            let still = |(i, f): (usize, f32)| if i < rotated { f / *factor as f32 } else { 0.0 };
            plain.into_iter().enumerate().map(still).collect()
        }
        RopeScaling::Divisors(divisors) => {
            check_length("`rope_freqs.weight`", divisors, plain.len())?;
            plain.iter().zip(divisors).map(|(f, d)| f / d).collect()
        }
    };
    Ok(Frequencies {
        frequencies,
        magnitude,
        long,
    })
}

fn check_length(name: &str, divisors: &[f32], expected: usize) -> Result<()> {
    if divisors.len() == expected {
        return Ok(());
    }
    let found = divisors.len();
    Err(Error::invalid(format!(
        "{name} has {found} divisors, expected {expected}"
    )))
}

/// `1 / (divisor * theta^(2i/dim))`.
fn divided(theta: f64, dim: usize, divisors: &[f32]) -> Result<Vec<f32>> {
    let waves = wavelengths(theta, dim);
    check_length("a list of LongRoPE", divisors, waves.len())?;
    Ok(waves
        .iter()
        .zip(divisors)
        .map(|(w, d)| 1.0 / (d * w))
        .collect())
}

fn llama3(frequency: f32, factor: f32, low: f32, high: f32, original: f32) -> f32 {
    let wavelength = 2.0 * std::f32::consts::PI / frequency;
    if wavelength > original / low {
        return frequency / factor;
    }
    // Equal factors leave no band to blend in (and would divide by zero).
    if wavelength < original / high || low == high {
        return frequency;
    }
    let smooth = (original / wavelength - low) / (high - low);
    (1.0 - smooth) * frequency / factor + smooth * frequency
}

fn yarn(rule: &Yarn, theta: f64, dim: usize) -> Vec<f32> {
    let (low, mut high) = rule.range(theta, dim);
    if low == high {
        high += 0.001; // As the reference: no division by zero.
    }
    let (low, width, factor) = (low as f32, (high - low) as f32, rule.factor as f32);
    let waves = wavelengths(theta, dim).into_iter().enumerate();
    let scaled = waves.map(|(i, wave)| {
        let kept = 1.0 - ((i as f32 - low) / width).clamp(0.0, 1.0);
        1.0 / (factor * wave) * (1.0 - kept) + 1.0 / wave * kept
    });
    scaled.collect()
}

/// The name of the rule of rotary parameters.
///
/// # Errors
/// `Invalid` when it is no text.
pub fn scaling_kind(object: Fields<'_>) -> Result<&str> {
    let name = |key: &str| object.text(key, "the name of a rotation");
    let found = match name("rope_type")? {
        None => name("type")?,
        found => found,
    };
    Ok(found.unwrap_or("default"))
}

/// Reads a `rope_scaling` object, or a `rope_parameters` object that may hold a scaling too.
///
/// # Errors
/// `Unsupported` for an unknown rule, `Invalid` for one with a missing or impossible number or a field of a wrong type.
pub fn read_scaling(object: Option<Fields<'_>>, context: &Context) -> Result<RopeScaling> {
    let Some(object) = object else {
        return Ok(RopeScaling::None);
    };
    let kind = scaling_kind(object)?;
    let rule = Rule { kind, object };
    let original = context.original_in(Some(object))?;
    let factor =
        || -> Result<f64> { Ok(rule.find("factor")?.unwrap_or(context.longest / original)) };
    // The first Phi 3 files call LongRoPE by other names.
    let is_long = kind == "longrope" || kind == "su" || object.get("long_factor").is_some();
    match kind {
        "default" | "none" | "mrope" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear {
            factor: rule.number("factor")?,
        }),
        // It changes frequencies beyond the longest context only, which no sequence exceeds here.
        "dynamic" => rule.number("factor").map(|_| RopeScaling::None),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: rule.number("factor")?,
            low: rule.number("low_freq_factor")?,
            high: rule.number("high_freq_factor")?,
            original,
        }),
        "proportional" => Ok(RopeScaling::Proportional {
            share: rule.find("partial_rotary_factor")?.unwrap_or(1.0),
            factor: rule.find("factor")?.unwrap_or(1.0),
        }),
        _ if is_long => rule.long(original, factor()?),
        "yarn" => rule.yarn(original, factor()?),
        other => Err(
            Error::unsupported(format!("rope scaling `{other}` is not supported")).with_hint(
                "supported are `default`, `linear`, `dynamic`, `llama3`, `yarn`, `longrope` and `proportional`",
            ),
        ),
    }
}

/// A rule as it stands in a file.
struct Rule<'a> {
    kind: &'a str,
    object: Fields<'a>,
}

impl Rule<'_> {
    fn find(&self, key: &str) -> Result<Option<f64>> {
        let kind = self.kind;
        match self.object.number(key)? {
            Some(x) if !(x.is_finite() && x > 0.0) => Err(Error::invalid(format!(
                "rope scaling `{kind}`: `{key}` is {x}, expected a positive number"
            ))),
            found => Ok(found),
        }
    }

    fn number(&self, key: &str) -> Result<f64> {
        let kind = self.kind;
        self.find(key)?
            .ok_or_else(|| Error::invalid(format!("rope scaling `{kind}` has no number `{key}`")))
    }

    fn list(&self, key: &str) -> Result<Vec<f32>> {
        let list = self.object.list(key)?;
        let numbers = list.and_then(|list| {
            let of = |value: &Value| value.as_f64().filter(|x| x.is_finite() && *x > 0.0);
            list.iter().map(|value| Some(of(value)? as f32)).collect()
        });
        numbers.ok_or_else(|| {
            let kind = self.kind;
            Error::invalid(format!(
                "rope scaling `{kind}` has no list `{key}` of positive numbers"
            ))
        })
    }

    fn long(&self, original: f64, factor: f64) -> Result<RopeScaling> {
        let by_factor = if factor <= 1.0 {
            1.0
        } else {
            (1.0 + libm::log(factor) / libm::log(original)).sqrt()
        };
        Ok(RopeScaling::Long {
            short: self.list("short_factor")?,
            long: self.list("long_factor")?,
            original,
            magnitude: self.find("attention_factor")?.unwrap_or(by_factor) as f32,
        })
    }

    fn yarn(&self, original: f64, factor: f64) -> Result<RopeScaling> {
        // Zero stands for absent, as in the reference.
        let scale = |key: &str| Ok::<_, Error>(self.object.number(key)?.filter(|x| *x != 0.0));
        let by_factor = Yarn::magnitude(factor, scale("mscale")?.zip(scale("mscale_all_dim")?));
        Ok(RopeScaling::Yarn(Yarn {
            factor,
            original,
            beta_fast: self.find("beta_fast")?.unwrap_or(32.0),
            beta_slow: self.find("beta_slow")?.unwrap_or(1.0),
            truncate: self.object.flag("truncate")?.unwrap_or(true),
            magnitude: self.find("attention_factor")?.unwrap_or(by_factor) as f32,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CONTEXT: Context = Context {
        original: None,
        longest: 4096.0,
    };

    #[test]
    fn llama3_keeps_short_waves_divides_long_ones_and_blends_between() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original: 8192.0,
        };
        let (plain, scaled) = (
            plain_frequencies(5e5, 128),
            scaled_frequencies(5e5, 128, &scaling).unwrap().frequencies,
        );
        assert_eq!(plain[0], scaled[0]);
        assert_eq!(plain[63] / 8.0, scaled[63]);
        let blended = (0..64)
            .filter(|&i| scaled[i] < plain[i] && scaled[i] > plain[i] / 8.0)
            .count();
        assert!(blended > 3, "{blended}");
    }

    #[test]
    fn equal_llama3_factors_give_no_nan() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low: 2.0,
            high: 2.0,
            original: 64.0,
        };
        assert!(
            scaled_frequencies(1e4, 64, &scaling)
                .unwrap()
                .frequencies
                .iter()
                .all(|f| f.is_finite())
        );
    }

    #[test]
    fn an_unknown_rule_or_a_missing_number_is_refused() {
        let read = |v: Value| {
            read_scaling(Some(Fields::of(&v)), &CONTEXT)
                .unwrap_err()
                .chain()
        };
        assert_eq!(
            read(json!({"type": "ntk"})),
            "rope scaling `ntk` is not supported"
        );
        assert_eq!(
            read(json!({"rope_type": "linear"})),
            "rope scaling `linear` has no number `factor`"
        );
        assert!(
            read(json!({"rope_type": "linear", "factor": 0}))
                .contains("expected a positive number")
        );
        let none =
            |v: Value| read_scaling(Some(Fields::of(&v)), &CONTEXT).unwrap() == RopeScaling::None;
        assert!(none(Value::Null));
        assert!(none(json!({"rope_theta": 1e4})));
    }
}
