//! How a model wants to be sampled, as its files say: what holds for an API request that does not say it itself.

use serde_json::Value;

use crate::error::Result;
use crate::formats::gguf::Metadata;

/// The sampling settings that a model comes with. What is `None` was not said.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SamplingDefaults {
    /// From `temperature`.
    pub temperature: Option<f32>,
    /// From `top_p`.
    pub top_p: Option<f32>,
    /// From `top_k`.
    pub top_k: Option<usize>,
    /// From `min_p`.
    pub min_p: Option<f32>,
    /// From `repetition_penalty`.
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Those of a `generation_config.json`. Values that make no sense are left out, and so are all of them when the file says
    /// that it does not sample.
    pub fn from_generation_config(config: &Value) -> Self {
        if config["do_sample"] == false {
            return Self::default();
        }
        let number = |name: &str| config[name].as_f64().map(|value| value as f32);
        Self {
            temperature: number("temperature"),
            top_p: number("top_p"),
            top_k: config["top_k"].as_u64().map(|value| value as usize),
            min_p: number("min_p"),
            repetition_penalty: number("repetition_penalty"),
        }
        .sensible()
    }

    /// Those of a GGUF file, which newer converters copy from `generation_config.json`.
    ///
    /// # Errors
    /// `Invalid` when a key has the wrong type.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let number = |name: &str| metadata.find_f32(&format!("general.sampling.{name}"));
        let top_k = metadata.find_i64("general.sampling.top_k")?;
        let defaults = Self {
            temperature: number("temp")?,
            top_p: number("top_p")?,
            top_k: top_k.and_then(|value| usize::try_from(value).ok()),
            min_p: number("min_p")?,
            repetition_penalty: number("penalty_repeat")?,
        };
        Ok(defaults.sensible())
    }

    fn sensible(self) -> Self {
        let share = |value: &f32| (0.0..=1.0).contains(value);
        let positive = |value: &f32| *value > 0.0 && value.is_finite();
        Self {
            temperature: self
                .temperature
                .filter(|value| positive(value) || *value == 0.0),
            top_p: self.top_p.filter(share),
            top_k: self.top_k,
            min_p: self.min_p.filter(share),
            repetition_penalty: self.repetition_penalty.filter(positive),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_generation_config_says_how_to_sample() {
        let read = |config: Value| SamplingDefaults::from_generation_config(&config);
        let qwen = json!({
            "do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05,
        });
        let expected = SamplingDefaults {
            temperature: Some(0.7),
            top_p: Some(0.8),
            top_k: Some(20),
            min_p: None,
            repetition_penalty: Some(1.05),
        };
        assert_eq!(read(qwen.clone()), expected);
        let mut greedy = qwen;
        greedy["do_sample"] = false.into();
        assert_eq!(read(greedy), SamplingDefaults::default());
        assert_eq!(read(Value::Null), SamplingDefaults::default());
    }

    #[test]
    fn senseless_values_are_left_out() {
        let config = json!({
            "temperature": -1, "top_p": 1.5, "top_k": "many", "min_p": null, "repetition_penalty": 0,
        });
        assert_eq!(
            SamplingDefaults::from_generation_config(&config),
            SamplingDefaults::default()
        );
    }
}
