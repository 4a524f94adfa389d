//! [`ChatCall`]: the body of `/v1/chat/completions`, checked as far as it can be without the model.

use serde_json::Value;

use super::messages::take_messages;
use super::sampling::{Sampling, take_logprobs, take_max_tokens, take_stop};
use crate::chat::Message;
use crate::host::KeepAlive;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, IntRange, Names, shown, unsupported};

const LATER: &str = "it comes in a later version";

/// Every field of a chat request that this program has heard of.
const CHAT: Names = Names {
    known: &[
        "model",
        "messages",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "n",
        "seed",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "repetition_window",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "enable_thinking",
        "keep_alive",
        "response_format",
        "modalities",
        "tools",
    ],
    harmless: &[
        "user",
        "store",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        // Without tools there are no calls.
        "parallel_tool_calls",
    ],
    unsupported: &[
        ("tool_choice", LATER),
        (
            "functions",
            "it is obsolete; `tools` takes its place in a later version",
        ),
        (
            "function_call",
            "it is obsolete; `tool_choice` takes its place in a later version",
        ),
        ("reasoning_effort", LATER),
        ("reasoning", LATER),
        ("chat_template_kwargs", LATER),
        ("audio", "it answers in text only"),
        ("prediction", ""),
        ("verbosity", ""),
        ("web_search_options", ""),
    ],
};

const STREAM_OPTIONS: Names = Names {
    known: &["include_usage"],
    // Asks for padding against eavesdroppers on encrypted connections.
    harmless: &["include_obfuscation"],
    unsupported: &[],
};

const RESPONSE_FORMAT: Names = Names {
    known: &["type", "json_schema"],
    harmless: &[],
    unsupported: &[],
};

/// A chat request.
#[derive(Debug, PartialEq)]
pub(super) struct ChatCall {
    /// As typed.
    pub model: String,
    /// At least one.
    pub messages: Vec<Message>,
    pub sampling: Sampling,
    /// How many alternatives of each token are reported; `None`: no log-probabilities.
    pub logprobs: Option<usize>,
    /// From 1 on.
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    /// From 1 on.
    pub num_choices: u32,
    pub stream: bool,
    /// The stream ends with a usage chunk.
    pub include_usage: bool,
    pub keep_alive: Option<KeepAlive>,
}

impl ChatCall {
    /// Reads a body.
    ///
    /// # Errors
    /// For the first thing that is wrong with it, in a fixed order.
    pub(super) fn parse(body: Value) -> Result<Self, ApiError> {
        let mut fields = Fields::new(body, "the request body", "", &CHAT)?;
        let messages = take_messages(&mut fields)?;
        let model = take_model(&mut fields)?;
        let range = IntRange {
            least: 1,
            most: 128,
        };
        let num_choices = fields.integer("n", range)?.unwrap_or(1) as u32;
        let sampling = Sampling::take(&mut fields)?;
        let max_tokens = take_max_tokens(&mut fields)?;
        let stop = take_stop(&mut fields)?;
        let logprobs = take_logprobs(&mut fields)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let include_usage = take_include_usage(&mut fields)?;
        let keep_alive = take_keep_alive(&mut fields)?;
        refuse_later_features(&mut fields)?;
        Ok(Self {
            model,
            messages,
            sampling,
            logprobs,
            max_tokens,
            stop,
            num_choices,
            stream,
            include_usage,
            keep_alive,
        })
    }
}

fn take_model(fields: &mut Fields) -> Result<String, ApiError> {
    const EXPECTED: &str = "the id of a model, as `/v1/models` lists it";
    match fields.text("model")? {
        None => Err(fields.missing("model", EXPECTED)),
        Some(model) if model.trim().is_empty() => Err(fields.invalid(
            "model",
            format!("`model` must be {EXPECTED}, got an empty string"),
        )),
        Some(model) => Ok(model),
    }
}

fn take_include_usage(fields: &mut Fields) -> Result<bool, ApiError> {
    let Some(options) = fields.take("stream_options") else {
        return Ok(false);
    };
    let what = "`stream_options`";
    let mut options = Fields::new(options, what, "stream_options.", &STREAM_OPTIONS)?;
    Ok(options.flag("include_usage")?.unwrap_or(false))
}

fn take_keep_alive(fields: &mut Fields) -> Result<Option<KeepAlive>, ApiError> {
    let range = IntRange {
        least: -1,
        most: i64::MAX.into(),
    };
    match fields.integer("keep_alive", range)? {
        None => Ok(None),
        Some(secs) => KeepAlive::from_secs(secs as i64)
            .map(Some)
            .map_err(|error| fields.invalid("keep_alive", error.to_string())),
    }
}

/// Fields of which this version knows one value: the one that asks for nothing.
fn refuse_later_features(fields: &mut Fields) -> Result<(), ApiError> {
    if fields.flag("enable_thinking")? == Some(true) {
        return Err(unsupported("enable_thinking", LATER));
    }
    if let Some(format) = fields.take("response_format") {
        let what = "`response_format`";
        let mut format = Fields::new(format, what, "response_format.", &RESPONSE_FORMAT)?;
        match format.text("type")?.as_deref() {
            Some("text") => {}
            Some(known @ ("json_object" | "json_schema")) => {
                let advice = format!("`{known}` comes in a later version");
                return Err(unsupported("response_format", &advice));
            }
            other => {
                let found = shown(&Value::from(other));
                return Err(format.invalid(
                    "type",
                    format!("`response_format.type` must be `text`, got {found}"),
                ));
            }
        }
    }
    match fields.take("modalities") {
        None => {}
        Some(Value::Array(items)) if items.iter().all(|item| item == "text") => {}
        Some(_) => return Err(unsupported("modalities", "it answers in text only")),
    }
    match fields.take("tools") {
        None => Ok(()),
        Some(Value::Array(items)) if items.is_empty() => Ok(()),
        Some(_) => Err(unsupported("tools", LATER)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::engine::SamplingParams;
    use crate::host::SamplingDefaults;

    /// A minimal body with further fields.
    fn body(more: Value) -> Value {
        let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        body
    }

    fn read(more: Value) -> Result<ChatCall, String> {
        ChatCall::parse(body(more)).map_err(|error| {
            let told = &error.to_openai()["error"];
            format!("{} {}: {}", told["param"], told["code"], error.message())
        })
    }

    #[test]
    fn a_minimal_request_has_openais_defaults() {
        let call = read(json!({})).unwrap();
        assert_eq!((call.num_choices, call.stream), (1, false));
        assert_eq!((call.max_tokens, call.logprobs), (None, None));
        let params = call.sampling.for_model(&SamplingDefaults::default(), None);
        let expected = SamplingParams {
            seed: params.seed,
            ..SamplingParams::default()
        };
        assert_eq!(params, expected);
        let again = call.sampling.for_model(&SamplingDefaults::default(), None);
        assert_ne!(params.seed, again.seed, "a new seed each time");
    }

    #[test]
    fn the_request_wins_over_the_model_and_the_model_over_openai() {
        let model = SamplingDefaults {
            temperature: Some(0.7),
            top_p: Some(0.8),
            top_k: Some(20),
            min_p: Some(0.1),
            repetition_penalty: Some(1.05),
        };
        let call = read(json!({ "temperature": 0, "top_k": 0, "seed": -1 })).unwrap();
        let params = call.sampling.for_model(&model, Some(3));
        let expected = SamplingParams {
            temperature: 0.0,
            top_p: 0.8,
            top_k: 0,
            min_p: 0.1,
            repetition_penalty: 1.05,
            seed: u64::MAX,
            logprobs: Some(3),
            ..SamplingParams::default()
        };
        assert_eq!(params, expected);
    }

    #[test]
    fn everything_that_can_be_said_is_read() {
        let call = read(json!({
            "temperature": 2, "top_p": 0, "min_p": 1, "top_k": 7, "repetition_penalty": 1.5,
            "repetition_window": 64, "frequency_penalty": -2, "presence_penalty": 2, "seed": 5,
            "logit_bias": { "3": 500, "7": -1.5 }, "logprobs": true, "top_logprobs": 20,
            "max_tokens": 10, "max_completion_tokens": 5, "stop": ["a", "", "b"], "n": 128,
            "stream": true, "stream_options": { "include_usage": true, "include_obfuscation": false },
            "keep_alive": 30, "enable_thinking": false, "response_format": { "type": "text" },
            "modalities": ["text"], "tools": [], "parallel_tool_calls": true, "user": "me",
            "store": false, "metadata": {}, "service_tier": "auto", "tool_choice": null,
        }))
        .unwrap();
        assert_eq!(call.max_tokens, Some(5));
        assert_eq!(call.stop, ["a", "b"]);
        assert_eq!(call.num_choices, 128);
        assert!(call.stream && call.include_usage);
        assert_eq!(
            call.keep_alive,
            Some(KeepAlive::After(Duration::from_secs(30)))
        );
        assert_eq!(call.logprobs, Some(20));
        let params = call
            .sampling
            .for_model(&SamplingDefaults::default(), call.logprobs);
        assert_eq!(params.logit_bias, [(3, 100.0), (7, -1.5)]);
        assert_eq!(params.repetition_window, 64);
        assert!(call.sampling.check_vocabulary(8).is_ok());
        assert!(call.sampling.check_vocabulary(7).is_err());
    }

    #[test]
    fn both_ends_of_every_range_are_allowed() {
        let ends = [
            ("temperature", json!([0, 2])),
            ("top_p", json!([0, 1])),
            ("min_p", json!([0, 1])),
            ("top_k", json!([0, u64::MAX])),
            ("frequency_penalty", json!([-2, 2])),
            ("presence_penalty", json!([-2, 2])),
            ("repetition_penalty", json!([0.000_001, 1e30])),
            ("repetition_window", json!([0, u64::MAX])),
            ("seed", json!([i64::MIN, u64::MAX])),
            ("max_tokens", json!([1, u64::MAX])),
            ("max_completion_tokens", json!([1, u64::MAX])),
            ("n", json!([1, 128])),
            ("keep_alive", json!([-1, i64::MAX])),
            ("stop", json!(["", vec!["x"; 256]])),
            ("logit_bias", json!([{}, { "4294967295": 100 }])),
        ];
        for (name, values) in ends {
            for value in values.as_array().unwrap() {
                read(json!({ name: value })).unwrap();
            }
        }
        for top in [0, 20] {
            read(json!({ "logprobs": true, "top_logprobs": top })).unwrap();
        }
    }

    #[test]
    fn everything_outside_is_refused_with_field_range_and_value() {
        let cases = [
            json!({ "temperature": -0.01 }),
            json!({ "temperature": 2.01 }),
            json!({ "temperature": "hot" }),
            json!({ "top_p": -0.01 }),
            json!({ "top_p": 1.01 }),
            json!({ "min_p": -0.01 }),
            json!({ "min_p": 1.01 }),
            json!({ "top_k": -1 }),
            json!({ "top_k": 1.5 }),
            json!({ "frequency_penalty": -2.01 }),
            json!({ "frequency_penalty": 2.01 }),
            json!({ "presence_penalty": -2.01 }),
            json!({ "presence_penalty": 2.01 }),
            json!({ "repetition_penalty": 0 }),
            json!({ "repetition_penalty": 1e39 }),
            json!({ "repetition_window": -1 }),
            json!({ "seed": -9_300_000_000_000_000_000_f64 }),
            json!({ "seed": 1.5 }),
            json!({ "max_tokens": 0 }),
            json!({ "max_completion_tokens": 0, "max_tokens": 5 }),
            json!({ "max_completion_tokens": 5, "max_tokens": 0 }),
            json!({ "n": 0 }),
            json!({ "n": 129 }),
            json!({ "keep_alive": -2 }),
            json!({ "keep_alive": "5m" }),
            json!({ "stop": 3 }),
            json!({ "stop": ["a", 3] }),
            json!({ "stop": vec!["x"; 257] }),
            json!({ "stop": "x".repeat(4097) }),
            json!({ "logprobs": 1 }),
            json!({ "top_logprobs": 0 }),
            json!({ "logprobs": false, "top_logprobs": 5 }),
            json!({ "logprobs": true, "top_logprobs": 21 }),
            json!({ "logprobs": true, "top_logprobs": -1 }),
            json!({ "logit_bias": [1] }),
            json!({ "logit_bias": { "the": 1 } }),
            json!({ "logit_bias": { "-1": 1 } }),
            json!({ "logit_bias": { "1": "x" } }),
            json!({ "stream": "yes" }),
            json!({ "stream_options": true }),
            json!({ "stream_options": { "include_usag": true } }),
            json!({ "model": "" }),
            json!({ "model": null }),
            json!({ "model": 5 }),
            json!({ "messages": [] }),
        ];
        let lines: Vec<String> = cases
            .into_iter()
            .map(|more| read(more).unwrap_err())
            .collect();
        insta::assert_snapshot!(lines.join("\n"), @"");
    }

    #[test]
    fn what_comes_later_is_refused_by_name() {
        let cases = [
            json!({ "tools": [{ "type": "function", "function": { "name": "f" } }] }),
            json!({ "tool_choice": "auto" }),
            json!({ "functions": [] }),
            json!({ "function_call": "auto" }),
            json!({ "response_format": { "type": "json_object" } }),
            json!({ "response_format": { "type": "json_schema", "json_schema": {} } }),
            json!({ "response_format": { "type": "xml" } }),
            json!({ "response_format": {} }),
            json!({ "reasoning_effort": "low" }),
            json!({ "enable_thinking": true }),
            json!({ "chat_template_kwargs": {} }),
            json!({ "audio": {} }),
            json!({ "modalities": ["text", "audio"] }),
            json!({ "prediction": {} }),
            json!({ "temprature": 0 }),
            json!({ "guided_json": {} }),
        ];
        let lines: Vec<String> = cases
            .into_iter()
            .map(|more| read(more).unwrap_err())
            .collect();
        insta::assert_snapshot!(lines.join("\n"), @"");
    }

    #[test]
    fn an_unknown_field_is_named_even_when_nothing_else_is_there() {
        let error = ChatCall::parse(json!({ "temprature": 0 })).unwrap_err();
        assert_eq!(
            error.message(),
            "unknown field `temprature`, did you mean `temperature`?"
        );
    }
}
