//! Rotary frequencies and the rules that stretch them to longer contexts.
//!
//! Source of every rule: `modeling_rope_utils.py` of the `transformers` package. A rule that this build does not know is
//! refused: skipping it gives fluent, wrong text.

use serde_json::Value;

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
    /// Each divided by its own divisor, from a tensor of a GGUF file.
    Divisors(Vec<f32>),
}

/// `theta^(-2i/dim)` for each pair, in the reference's F32 steps.
pub fn plain_frequencies(theta: f64, dim: usize) -> Vec<f32> {
    (0..dim / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / dim as f32;
            1.0 / libm::pow(theta, f64::from(exponent)) as f32
        })
        .collect()
}

/// Frequencies after scaling.
///
/// # Errors
/// `Invalid` when a divisor list has another length than the pairs.
pub fn scaled_frequencies(theta: f64, dim: usize, scaling: &RopeScaling) -> Result<Vec<f32>> {
    let plain = plain_frequencies(theta, dim);
    Ok(match scaling {
        RopeScaling::None => plain,
        RopeScaling::Linear { factor } => plain.iter().map(|f| f / *factor as f32).collect(),
        RopeScaling::Llama3 {
            factor,
            low,
            high,
            original,
        } => plain
            .into_iter()
            .map(|f| {
                llama3(
                    f,
                    *factor as f32,
                    *low as f32,
                    *high as f32,
                    *original as f32,
                )
            })
            .collect(),
        RopeScaling::Divisors(divisors) if divisors.len() == plain.len() => {
            plain.iter().zip(divisors).map(|(f, d)| f / d).collect()
        }
        RopeScaling::Divisors(divisors) => {
            let (found, expected) = (divisors.len(), plain.len());
            return Err(Error::invalid(format!(
                "`rope_freqs.weight` has {found} divisors, expected {expected}"
            )));
        }
    })
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

/// Reads a `rope_scaling` object, or a `rope_parameters` object that may hold a scaling too.
///
/// # Errors
/// `Unsupported` for an unknown rule, `Invalid` for one with a missing or impossible number.
pub fn read_scaling(object: Option<&Value>) -> Result<RopeScaling> {
    let Some(object) = object.filter(|o| !o.is_null()) else {
        return Ok(RopeScaling::None);
    };
    let kind = object
        .get("rope_type")
        .or_else(|| object.get("type"))
        .and_then(Value::as_str)
        .unwrap_or("default");
    let number = |key: &str| match object.get(key).and_then(Value::as_f64) {
        Some(x) if x.is_finite() && x > 0.0 => Ok(x),
        Some(x) => Err(Error::invalid(format!(
            "rope scaling `{kind}`: `{key}` is {x}, expected a positive number"
        ))),
        None => Err(Error::invalid(format!(
            "rope scaling `{kind}` has no number `{key}`"
        ))),
    };
    match kind {
        "default" | "none" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear {
            factor: number("factor")?,
        }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: number("original_max_position_embeddings")?,
        }),
        other => Err(
            Error::unsupported(format!("rope scaling `{other}` is not supported"))
                .with_hint("supported are `default`, `linear` and `llama3`"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
            scaled_frequencies(5e5, 128, &scaling).unwrap(),
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
                .iter()
                .all(|f| f.is_finite())
        );
    }

    #[test]
    fn an_unknown_rule_or_a_missing_number_is_refused() {
        let read = |v: Value| read_scaling(Some(&v)).unwrap_err().chain();
        assert_eq!(
            read(json!({"type": "su"})),
            "rope scaling `su` is not supported"
        );
        assert_eq!(
            read(json!({"rope_type": "linear"})),
            "rope scaling `linear` has no number `factor`"
        );
        assert!(
            read(json!({"rope_type": "linear", "factor": 0}))
                .contains("expected a positive number")
        );
        assert_eq!(read_scaling(Some(&Value::Null)).unwrap(), RopeScaling::None);
        assert_eq!(
            read_scaling(Some(&json!({"rope_theta": 1e4}))).unwrap(),
            RopeScaling::None
        );
    }
}
