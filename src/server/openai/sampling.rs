//! The fields that say how tokens are chosen, common to the endpoints that generate text.

use serde_json::Value;
use uuid::Uuid;

use crate::engine::SamplingParams;
use crate::host::SamplingDefaults;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, IntRange, Range, shown};
use crate::text::StopMatcher;

/// Most entries of a logit bias.
const MAX_BIASES: usize = 8192;
/// A bias beyond this is cut to it; it already decides everything.
const MAX_BIAS: f32 = 100.0;

/// The sampling settings of a request. What is `None` was not said: then the model's own settings hold, else OpenAI's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sampling {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    repetition_window: Option<usize>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    seed: Option<u64>,
    logit_bias: Vec<(u32, f32)>,
}

impl Sampling {
    /// Takes the sampling fields.
    ///
    /// # Errors
    /// For a value out of range or of the wrong type.
    pub(super) fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let share = Range::Between(0.0, 1.0);
        let penalty = Range::Between(-2.0, 2.0);
        let seeds = IntRange {
            least: i64::MIN.into(),
            most: u64::MAX.into(),
        };
        Ok(Self {
            temperature: fields.number("temperature", Range::Between(0.0, 2.0))?,
            top_p: fields.number("top_p", share)?,
            top_k: fields.count("top_k", 0)?,
            min_p: fields.number("min_p", share)?,
            repetition_penalty: fields.number("repetition_penalty", Range::Above(0.0))?,
            repetition_window: fields.count("repetition_window", 0)?,
            frequency_penalty: fields.number("frequency_penalty", penalty)?,
            presence_penalty: fields.number("presence_penalty", penalty)?,
            // A negative seed is as good as the positive one with the same bits.
            seed: fields.integer("seed", seeds)?.map(|seed| seed as u64),
            logit_bias: take_bias(fields)?,
        })
    }

    /// The settings for a model: what was said, else the model's own, else OpenAI's. Without a seed a random one is drawn.
    pub(super) fn for_model(
        &self,
        model: &SamplingDefaults,
        logprobs: Option<usize>,
    ) -> SamplingParams {
        let open = SamplingParams::default();
        SamplingParams {
            temperature: self
                .temperature
                .or(model.temperature)
                .unwrap_or(open.temperature),
            top_p: self.top_p.or(model.top_p).unwrap_or(open.top_p),
            top_k: self.top_k.or(model.top_k).unwrap_or(open.top_k),
            min_p: self.min_p.or(model.min_p).unwrap_or(open.min_p),
            repetition_penalty: self
                .repetition_penalty
                .or(model.repetition_penalty)
                .unwrap_or(open.repetition_penalty),
            repetition_window: self.repetition_window.unwrap_or(open.repetition_window),
            frequency_penalty: self.frequency_penalty.unwrap_or(open.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(open.presence_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(random_seed),
            choice: 0,
            logprobs,
        }
    }

    /// Checks what only the loaded model can tell: the ids of the bias.
    ///
    /// # Errors
    /// For an id outside of the vocabulary.
    pub(super) fn check_vocabulary(&self, vocab_size: usize) -> Result<(), ApiError> {
        let outside = |(id, _): &&(u32, f32)| *id as usize >= vocab_size;
        match self.logit_bias.iter().find(outside) {
            None => Ok(()),
            Some((id, _)) => Err(bias_error(format!(
                "`logit_bias` names token id {id}, the model's vocabulary has the ids 0 to {}",
                vocab_size.saturating_sub(1)
            ))),
        }
    }
}

fn random_seed() -> u64 {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    // Neither half is fully random: version and variant are fixed.
    high ^ low.rotate_left(32)
}

fn bias_error(message: String) -> ApiError {
    ApiError::field("logit_bias", "invalid_value", message)
}

fn take_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>, ApiError> {
    let map = match fields.take("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(other) => {
            return Err(fields.wrong_type(
                "logit_bias",
                "an object of token ids and numbers",
                &other,
            ));
        }
    };
    if map.len() > MAX_BIASES {
        return Err(bias_error(format!(
            "`logit_bias` must have at most {MAX_BIASES} entries, got {}",
            map.len()
        )));
    }
    let entry = |(key, value): (&String, &Value)| {
        let Ok(id) = key.parse::<u32>() else {
            let key = shown(&Value::from(key.as_str()));
            return Err(bias_error(format!(
                "the keys of `logit_bias` must be token ids, got {key}"
            )));
        };
        match value.as_f64() {
            Some(bias) => Ok((id, (bias as f32).clamp(-MAX_BIAS, MAX_BIAS))),
            None => Err(bias_error(format!(
                "the value of token id {id} in `logit_bias` must be a number between -100 and 100, got {}",
                shown(value)
            ))),
        }
    };
    map.iter().map(entry).collect()
}

/// Takes `stop`: a text or a list of texts, without the empty ones.
///
/// # Errors
/// For another type, too many or too long texts.
pub(super) fn take_stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const EXPECTED: &str = "a string or an array of strings";
    let texts = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => {
            let text = |item: Value| match item {
                Value::String(text) => Ok(text),
                other => Err(fields.wrong_type("stop", EXPECTED, &other)),
            };
            items.into_iter().map(text).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(fields.wrong_type("stop", EXPECTED, &other)),
    };
    let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    StopMatcher::new(texts.clone()).map_err(|error| fields.invalid("stop", error.to_string()))?;
    Ok(texts)
}

/// Takes the limit of an answer: `max_completion_tokens`, else `max_tokens`.
///
/// # Errors
/// For another type, or less than 1, in either.
pub(super) fn take_max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let older = fields.count("max_tokens", 1)?;
    Ok(fields.count("max_completion_tokens", 1)?.or(older))
}

/// Takes `logprobs` and `top_logprobs`: how many alternatives of each token are reported, `None` for no report.
///
/// # Errors
/// For another type, out of range, or `top_logprobs` without `logprobs`.
pub(super) fn take_logprobs(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let range = IntRange { least: 0, most: 20 };
    match fields.integer("top_logprobs", range)? {
        Some(_) if !wanted => {
            Err(fields.invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true"))
        }
        top => Ok(wanted.then_some(top.unwrap_or(0) as usize)),
    }
}
