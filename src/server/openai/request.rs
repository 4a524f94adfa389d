//! [`ChatCall`]: the body of `/v1/chat/completions`, checked as far as it can be without the model.

use serde_json::Value;

use super::messages::take_messages;
use super::sampling::{Sampling, take_logprobs, take_max_tokens, take_stop};
use crate::chat::Message;
use crate::host::KeepAlive;
use crate::server::error::ApiError;
use crate::server::fields::{Fields, IntRange, Names, shown, unsupported, unsupported_value};

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

pub(super) fn take_model(fields: &mut Fields) -> Result<String, ApiError> {
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

pub(super) fn take_keep_alive(fields: &mut Fields) -> Result<Option<KeepAlive>, ApiError> {
    let range = IntRange {
        least: -1,
        most: i128::MAX,
    };
    match fields.integer("keep_alive", range)? {
        None => Ok(None),
        Some(secs) => KeepAlive::from_secs(i64::try_from(secs).unwrap_or(i64::MAX))
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
                return Err(unsupported_value("response_format.type", known, LATER));
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
            json!({ "keep_alive": -1.5 }),
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
        insta::assert_snapshot!(lines.join("\n"), @r#"
        "temperature" "decimal_below_min_value": `temperature` must be between 0 and 2, got -0.01
        "temperature" "decimal_above_max_value": `temperature` must be between 0 and 2, got 2.01
        "temperature" "invalid_type": `temperature` must be a number between 0 and 2, got "hot"
        "top_p" "decimal_below_min_value": `top_p` must be between 0 and 1, got -0.01
        "top_p" "decimal_above_max_value": `top_p` must be between 0 and 1, got 1.01
        "min_p" "decimal_below_min_value": `min_p` must be between 0 and 1, got -0.01
        "min_p" "decimal_above_max_value": `min_p` must be between 0 and 1, got 1.01
        "top_k" "integer_below_min_value": `top_k` must be at least 0, got -1
        "top_k" "invalid_type": `top_k` must be an integer of at least 0, got 1.5
        "frequency_penalty" "decimal_below_min_value": `frequency_penalty` must be between -2 and 2, got -2.01
        "frequency_penalty" "decimal_above_max_value": `frequency_penalty` must be between -2 and 2, got 2.01
        "presence_penalty" "decimal_below_min_value": `presence_penalty` must be between -2 and 2, got -2.01
        "presence_penalty" "decimal_above_max_value": `presence_penalty` must be between -2 and 2, got 2.01
        "repetition_penalty" "decimal_below_min_value": `repetition_penalty` must be more than 0, got 0
        "repetition_penalty" "decimal_above_max_value": `repetition_penalty` must be at most 3.4028235e38, got 1e+39
        "repetition_window" "integer_below_min_value": `repetition_window` must be at least 0, got -1
        "seed" "integer_below_min_value": `seed` must be between -9223372036854775808 and 18446744073709551615, got -9.3e+18
        "seed" "invalid_type": `seed` must be an integer between -9223372036854775808 and 18446744073709551615, got 1.5
        "max_tokens" "integer_below_min_value": `max_tokens` must be at least 1, got 0
        "max_completion_tokens" "integer_below_min_value": `max_completion_tokens` must be at least 1, got 0
        "max_tokens" "integer_below_min_value": `max_tokens` must be at least 1, got 0
        "n" "integer_below_min_value": `n` must be between 1 and 128, got 0
        "n" "integer_above_max_value": `n` must be between 1 and 128, got 129
        "keep_alive" "invalid_type": `keep_alive` must be an integer of at least -1, got -1.5
        "keep_alive" "integer_below_min_value": `keep_alive` must be at least -1, got -2
        "keep_alive" "invalid_type": `keep_alive` must be an integer of at least -1, got "5m"
        "stop" "invalid_type": `stop` must be a string or an array of strings, got 3
        "stop" "invalid_type": `stop` must be a string or an array of strings, got 3
        "stop" "invalid_value": `stop` has 257 entries, at most 256 are allowed
        "stop" "invalid_value": `stop` contains a string of 4097 bytes, at most 4096 are allowed
        "logprobs" "invalid_type": `logprobs` must be true or false, got 1
        "top_logprobs" "invalid_value": `top_logprobs` needs `logprobs` to be true
        "top_logprobs" "invalid_value": `top_logprobs` needs `logprobs` to be true
        "top_logprobs" "integer_above_max_value": `top_logprobs` must be between 0 and 20, got 21
        "top_logprobs" "integer_below_min_value": `top_logprobs` must be between 0 and 20, got -1
        "logit_bias" "invalid_type": `logit_bias` must be an object of token ids and numbers, got an array of 1
        "logit_bias" "invalid_value": the keys of `logit_bias` must be token ids, got "the"
        "logit_bias" "invalid_value": the keys of `logit_bias` must be token ids, got "-1"
        "logit_bias" "invalid_value": the value of token id 1 in `logit_bias` must be a number between -100 and 100, got "x"
        "stream" "invalid_type": `stream` must be true or false, got "yes"
        "stream_options" "invalid_type": `stream_options` must be a JSON object, got true
        "stream_options.include_usag" "unknown_parameter": unknown field `stream_options.include_usag`, did you mean `stream_options.include_usage`?
        "model" "invalid_value": `model` must be the id of a model, as `/v1/models` lists it, got an empty string
        "model" "missing_required_parameter": `model` is missing, expected the id of a model, as `/v1/models` lists it
        "model" "invalid_type": `model` must be a string, got 5
        "messages" "invalid_value": `messages` must be an array of at least one message, got an empty one
        "#);
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
        insta::assert_snapshot!(lines.join("\n"), @r#"
        "tools" "unsupported_parameter": this version of oxydllm does not support `tools`: it comes in a later version
        "tool_choice" "unsupported_parameter": this version of oxydllm does not support `tool_choice`: it comes in a later version
        "functions" "unsupported_parameter": this version of oxydllm does not support `functions`: it is obsolete; `tools` takes its place in a later version
        "function_call" "unsupported_parameter": this version of oxydllm does not support `function_call`: it is obsolete; `tool_choice` takes its place in a later version
        "response_format.type" "unsupported_value": `response_format.type` is `json_object`, which this version of oxydllm does not support: it comes in a later version
        "response_format.type" "unsupported_value": `response_format.type` is `json_schema`, which this version of oxydllm does not support: it comes in a later version
        "response_format.type" "invalid_value": `response_format.type` must be `text`, got "xml"
        "response_format.type" "invalid_value": `response_format.type` must be `text`, got null
        "reasoning_effort" "unsupported_parameter": this version of oxydllm does not support `reasoning_effort`: it comes in a later version
        "enable_thinking" "unsupported_parameter": this version of oxydllm does not support `enable_thinking`: it comes in a later version
        "chat_template_kwargs" "unsupported_parameter": this version of oxydllm does not support `chat_template_kwargs`: it comes in a later version
        "audio" "unsupported_parameter": this version of oxydllm does not support `audio`: it answers in text only
        "modalities" "unsupported_parameter": this version of oxydllm does not support `modalities`: it answers in text only
        "prediction" "unsupported_parameter": this version of oxydllm does not support `prediction`
        "temprature" "unknown_parameter": unknown field `temprature`, did you mean `temperature`?
        "guided_json" "unknown_parameter": unknown field `guided_json`
        "#);
    }

    #[test]
    fn the_documentation_names_every_field() {
        let page = include_str!("../../../docs/api.md");
        let unsupported = CHAT.unsupported.iter().map(|(name, _)| name);
        for name in CHAT.known.iter().chain(CHAT.harmless).chain(unsupported) {
            assert!(page.contains(&format!("`{name}`")), "{name}");
        }
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
