//! OpenAI's endpoints over real HTTP: shapes, streams, refusals. The engines are scripted.

use oxydllm::engine::{FinishReason, Request};
use oxydllm::error::Error;
use oxydllm::host::SamplingDefaults;
use serde_json::{Value, json};

use crate::support::api::{Api, Call, Scripted, chat_body};
use crate::support::scripted::{Step, bytes};

/// The same with what changes from run to run replaced.
fn stable(mut body: Value) -> Value {
    let id = body["id"].as_str().unwrap();
    let random = id.strip_prefix("chatcmpl-").unwrap();
    assert_eq!(random.len(), 32, "{id}");
    body["id"] = "chatcmpl-ID".into();
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    body["created"] = 0.into();
    let fingerprint = body["system_fingerprint"].as_str().unwrap();
    assert!(fingerprint.len() == 15 && fingerprint.starts_with("fp_"));
    body["system_fingerprint"] = "fp_ID".into();
    body
}

/// Events as lines; they share their head.
fn lines(events: Vec<Value>) -> String {
    let mut heads: Vec<[Value; 4]> = events
        .iter()
        .filter(|event| event["error"].is_null())
        .map(|event| {
            ["id", "created", "model", "system_fingerprint"].map(|name| event[name].clone())
        })
        .collect();
    heads.dedup();
    assert_eq!(heads.len(), 1, "{heads:?}");
    let line = |event: Value| {
        if !event["error"].is_null() {
            return event.to_string();
        }
        let mut event = stable(event);
        assert_eq!(event["object"], "chat.completion.chunk");
        let fields = event.as_object_mut().unwrap();
        for name in ["id", "object", "created", "model", "system_fingerprint"] {
            fields.shift_remove(name);
        }
        event.to_string()
    };
    events.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// The text of choice `index` in a stream.
fn text_of(events: &[Value], index: u64) -> String {
    events
        .iter()
        .flat_map(|event| event["choices"].as_array().into_iter().flatten())
        .filter(|choice| choice["index"] == index)
        .filter_map(|choice| choice["delta"]["content"].as_str())
        .collect()
}

/// Says the number of the choice first.
fn numbered(request: &Request) -> Vec<Step> {
    let choice = u32::from(b'0') + request.sampling.choice;
    // The first computes the prompt but for four tokens, the others find it.
    let cached = if request.sampling.choice == 0 { 4 } else { 19 };
    vec![
        Step::Started(cached),
        Step::Tokens(vec![choice]),
        bytes(" of many"),
        Step::Done(FinishReason::Stop),
    ]
}

#[test]
fn a_whole_answer_has_openais_shape_and_is_not_trimmed() {
    let api = Api::start(&[Scripted::saying("m", " Hi\n there \n")]);
    let reply = api.chat(json!({})).ok();
    assert_eq!(reply.header("content-type"), Some("application/json"));
    insta::assert_snapshot!(format!("{:#}", stable(reply.json())), @r#"
    {
      "id": "chatcmpl-ID",
      "object": "chat.completion",
      "created": 0,
      "model": "m",
      "system_fingerprint": "fp_ID",
      "choices": [
        {
          "index": 0,
          "message": {
            "role": "assistant",
            "content": " Hi\n there \n"
          },
          "logprobs": null,
          "finish_reason": "stop"
        }
      ],
      "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 7,
        "total_tokens": 27,
        "prompt_tokens_details": {
          "cached_tokens": 0
        }
      }
    }
    "#);
}

#[test]
fn a_stream_gives_role_content_finish_usage_and_done() {
    let api = Api::start(&[Scripted::new("m", |_| {
        vec![
            Step::Started(2),
            bytes("é!"),
            Step::Done(FinishReason::Length),
        ]
    })]);
    let reply = api.chat(json!({ "stream": true })).ok();
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header("x-accel-buffering"), Some("no"));
    insta::assert_snapshot!(lines(reply.events()), @r#"
    {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"content":"é"},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{"content":"!"},"logprobs":null,"finish_reason":null}]}
    {"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}
    "#);
    let with_usage = json!({ "stream": true, "stream_options": { "include_usage": true } });
    insta::assert_snapshot!(lines(api.chat(with_usage).ok().events()), @r#"
    {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{"content":"é"},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{"content":"!"},"logprobs":null,"finish_reason":null}],"usage":null}
    {"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],"usage":null}
    {"choices":[],"usage":{"prompt_tokens":20,"completion_tokens":7,"total_tokens":27,"prompt_tokens_details":{"cached_tokens":2}}}
    "#);
}

#[test]
fn several_choices_begin_with_their_roles_and_end_one_by_one() {
    let api = Api::start(&[Scripted::new("m", numbered)]);
    let n = json!({ "n": 3, "stream": true, "stream_options": { "include_usage": true } });
    let events = api.chat(n).ok().events();
    for (index, event) in events[..3].iter().enumerate() {
        assert_eq!(event["choices"][0]["index"], index);
        assert_eq!(event["choices"][0]["delta"]["role"], "assistant");
    }
    for index in 0..3 {
        assert_eq!(text_of(&events, index), format!("{index} of many"));
        let ends = events.iter().filter(|event| {
            event["choices"][0]["index"] == index && event["choices"][0]["finish_reason"] == "stop"
        });
        assert_eq!(ends.count(), 1);
    }
    let usage = &events.last().unwrap()["usage"];
    let prompt = "<user>hi\n<assistant>".len();
    assert_eq!(usage["prompt_tokens"], prompt, "counted once");
    assert_eq!(usage["completion_tokens"], 21);
    assert_eq!(usage["total_tokens"], prompt + 21);
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 4);

    let whole = api.chat(json!({ "n": 3 })).ok().json();
    assert_eq!(whole["usage"], *usage);
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(choice["message"]["content"], format!("{index} of many"));
    }
}

#[test]
fn log_probabilities_are_the_same_streamed_and_whole() {
    // The euro sign in three tokens between two letters.
    let api = Api::start(&[Scripted::new("m", |_| {
        let scored = [b'a', 0xe2, 0x82, 0xac, b'b'].map(|byte| {
            let id = u32::from(byte);
            let top = vec![(id, -0.25), (u32::from(b'z'), f32::NEG_INFINITY)];
            (id, -0.25, top)
        });
        vec![
            Step::Scored(scored.to_vec()),
            Step::Done(FinishReason::Stop),
        ]
    })]);
    let wanted = json!({ "logprobs": true, "top_logprobs": 2 });
    let whole = api.chat(wanted.clone()).ok().json();
    let logprobs = &whole["choices"][0]["logprobs"];
    insta::assert_snapshot!(logprobs["content"][1], @r#"{"token":"�","logprob":-0.25,"bytes":[226],"top_logprobs":[{"token":"�","logprob":-0.25,"bytes":[226]},{"token":"z","logprob":-9999.0,"bytes":[122]}]}"#);
    let mut streamed = wanted;
    streamed["stream"] = true.into();
    let events = api.chat(streamed).ok().events();
    assert_eq!(
        text_of(&events, 0),
        whole["choices"][0]["message"]["content"]
    );
    let mut tokens = Vec::new();
    for event in &events {
        let choice = &event["choices"][0];
        let content = choice["logprobs"]["content"].as_array();
        let content = content.cloned().unwrap_or_default();
        if let Some(text) = choice["delta"]["content"].as_str()
            && !text.is_empty()
        {
            let bytes: Vec<u8> = content
                .iter()
                .flat_map(|token| token["bytes"].as_array().unwrap())
                .map(|byte| u8::try_from(byte.as_u64().unwrap()).unwrap())
                .collect();
            assert_eq!(
                String::from_utf8(bytes).unwrap(),
                text,
                "tokens of the text"
            );
        }
        tokens.extend(content);
    }
    assert_eq!(&Value::from(tokens), &logprobs["content"]);
    assert_eq!(logprobs["refusal"], Value::Null);
    let without = api.chat(json!({})).ok().json();
    assert_eq!(without["choices"][0]["logprobs"], Value::Null);
}

#[test]
fn stop_texts_end_the_answer_and_cached_tokens_are_told_nevertheless() {
    let api = Api::start(&[Scripted::new("m", |_| {
        vec![
            Step::Started(5),
            bytes("one</e x</en"),
            bytes("d>never"),
            Step::Forever(u32::from(b'!')),
        ]
    })]);
    let stop = json!({ "stop": "</end>" });
    let whole = api.chat(stop).ok().json();
    assert_eq!(whole["choices"][0]["message"]["content"], "one</e x");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 5);
    assert_eq!(whole["usage"]["completion_tokens"], "one</e x</end>".len());
    let streamed = json!({ "stop": ["</end>"], "stream": true });
    assert_eq!(text_of(&api.chat(streamed).ok().events(), 0), "one</e x");
    assert_eq!(api.wait_seen(2).len(), 2, "the engine stopped as well");
}

#[test]
fn the_engine_gets_what_the_request_says_else_what_the_model_says() {
    let defaults = SamplingDefaults {
        temperature: Some(0.25),
        top_k: Some(40),
        ..SamplingDefaults::default()
    };
    let api = Api::start(&[Scripted::saying("m", "x")
        .defaults(defaults)
        .max_context(100)]);
    api.chat(json!({})).ok();
    api.chat(json!({
        "temperature": 1.5, "seed": -2, "max_tokens": 5000, "logit_bias": { "65": -200 },
        "frequency_penalty": 0.5,
    }))
    .ok();
    let seen = api.wait_seen(2);
    let (first, second) = (&seen[0].request, &seen[1].request);
    assert_eq!(
        (first.sampling.temperature, first.sampling.top_k),
        (0.25, 40)
    );
    assert_eq!(first.sampling.top_p, 1.0);
    let room = 100 - first.tokens.len();
    assert_eq!((first.max_tokens, second.max_tokens), (room, room));
    assert_eq!(
        (second.sampling.temperature, second.sampling.top_k),
        (1.5, 40)
    );
    assert_eq!(second.sampling.seed, (-2_i64) as u64);
    assert_eq!(second.sampling.logit_bias, [(65, -100.0)]);
    assert_eq!(second.sampling.frequency_penalty, 0.5);
}

#[test]
fn messages_reach_the_template_and_never_become_control_tokens() {
    let api = Api::start(&[Scripted::saying("m", "x")]);
    let messages = json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b<bos>" }] },
    ]);
    api.chat(json!({ "messages": messages })).ok();
    let tokens = &api.wait_seen(1)[0].request.tokens;
    let text: Vec<u8> = tokens.iter().map(|&id| u8::try_from(id).unwrap()).collect();
    let expected = "<system>Be brief.\n<user>ab<bos>\n<assistant>";
    assert_eq!(String::from_utf8(text).unwrap(), expected);
}

#[test]
fn mistakes_are_told_before_any_model_is_loaded() {
    let api = Api::start(&[Scripted::saying("m", "x")]);
    let cases = [
        (
            json!({ "temperature": 3 }),
            "400 invalid_request_error decimal_above_max_value temperature",
        ),
        (
            json!({ "temprature": 0 }),
            "400 invalid_request_error unknown_parameter temprature",
        ),
        (
            json!({ "tools": [{}] }),
            "400 invalid_request_error unsupported_parameter tools",
        ),
        (
            json!({ "messages": null }),
            "400 invalid_request_error missing_required_parameter messages",
        ),
        (
            json!({ "n": 0, "stream": true }),
            "400 invalid_request_error integer_below_min_value n",
        ),
        (
            json!({ "model": "nobody/nothing" }),
            "404 invalid_request_error model_not_found model",
        ),
        (
            json!({ "model": "../m", "stream": true }),
            "400 invalid_request_error - model",
        ),
        (
            json!({ "model": "/etc/passwd" }),
            "400 invalid_request_error - model",
        ),
    ];
    for (more, expected) in cases {
        assert_eq!(api.chat(more.clone()).error(), expected, "{more}");
    }
    assert_eq!(api.host.running(), []);
    assert_eq!(api.samples("oxydllm_requests_total"), [""; 0]);
}

#[test]
fn what_only_the_model_can_tell_is_a_status_too_streamed_or_not() {
    let api = Api::start(&[
        Scripted::saying("m", "x").max_context(20),
        Scripted::saying("strict", "x").template("{{ raise_exception('roles must alternate') }}"),
        Scripted::saying("broken", "x").template("{{ messages[0].content.nothing() }}"),
        Scripted::saying("odd", "x")
            .failing(|| Error::unsupported("encoding `X9` is not supported")),
        Scripted::saying("gone", "x").failing(|| Error::not_found("tensor `w` was not found")),
        Scripted::saying("huge", "x").failing(|| Error::out_of_memory("needs 9 GB, has 1 GB")),
    ]);
    for stream in [false, true] {
        let error = |mut more: Value| {
            more["stream"] = stream.into();
            api.chat(more).error()
        };
        let cases = [
            (
                json!({}),
                "400 invalid_request_error context_length_exceeded messages",
            ),
            (
                json!({ "messages": [{ "role": "user", "content": "" }], "logit_bias": { "300": 1 } }),
                "400 invalid_request_error invalid_value logit_bias",
            ),
            (
                json!({ "model": "strict" }),
                "400 invalid_request_error - messages",
            ),
            (
                json!({ "model": "broken" }),
                "500 template_render_failed - -",
            ),
            (
                json!({ "model": "odd" }),
                "400 invalid_request_error model_not_supported model",
            ),
            (
                json!({ "model": "gone" }),
                "500 server_error model_load_failed -",
            ),
            (
                json!({ "model": "huge" }),
                "507 server_error insufficient_memory -",
            ),
        ];
        for (more, expected) in cases {
            assert_eq!(error(more.clone()), expected, "{more}");
        }
    }
    // Mistakes of the client are no failed requests.
    assert_eq!(
        api.samples("oxydllm_requests_total"),
        [
            r#"oxydllm_requests_total{model="broken",status="error"} 2"#,
            r#"oxydllm_requests_total{model="gone",status="error"} 2"#,
            r#"oxydllm_requests_total{model="huge",status="error"} 2"#,
        ]
    );
    let message = api.chat(json!({})).json()["error"]["message"].clone();
    let message = message.as_str().unwrap();
    assert!(
        message.contains("20 tokens") && message.contains("holds 20"),
        "{message}"
    );
}

#[test]
fn a_prompt_that_leaves_one_place_is_answered() {
    let api = Api::start(&[Scripted::saying("m", "x").max_context(21)]);
    api.chat(json!({})).ok();
    assert_eq!(api.wait_seen(1)[0].request.max_tokens, 1);
}

#[test]
fn a_failure_in_the_middle_is_a_chunk_and_ends_all_choices() {
    let api = Api::start(&[Scripted::new("m", |_| {
        vec![
            bytes("so far"),
            Step::Fail(Error::invalid("a logit is NaN")),
        ]
    })]);
    let streamed = json!({ "stream": true, "n": 2, "stream_options": { "include_usage": true } });
    let events = api.chat(streamed).ok().events();
    let (last, before) = events.split_last().unwrap();
    insta::assert_snapshot!(last, @r#"{"error":{"message":"a logit is NaN","type":"server_error","param":null,"code":null}}"#);
    assert!(before.iter().all(|event| event["error"].is_null()));
    assert!(
        before
            .iter()
            .all(|event| event["choices"][0]["finish_reason"].is_null())
    );
    assert_eq!(api.chat(json!({ "n": 2 })).error(), "500 server_error - -");
    assert_eq!(
        api.samples("oxydllm_requests_total"),
        [r#"oxydllm_requests_total{model="m",status="error"} 4"#]
    );
}

#[test]
fn an_engine_that_dies_is_a_server_error() {
    let api = Api::start(&[Scripted::new("m", |_| vec![bytes("a"), Step::Vanish])]);
    assert_eq!(api.chat(json!({})).error(), "500 server_error - -");
    let events = api.chat(json!({ "stream": true })).ok().events();
    assert_eq!(events.last().unwrap()["error"]["type"], "server_error");
}

#[test]
fn bodies_that_are_no_chat_request_are_refused_in_shape() {
    let api = Api::start(&[Scripted::saying("m", "x")]);
    let post = |headers: &[(&str, &str)], body: &[u8]| {
        api.send("POST", "/v1/chat/completions", headers, body)
            .reply()
            .error()
    };
    let json_type = [("content-type", "application/json")];
    let body = chat_body(json!({})).to_string();
    assert_eq!(post(&[], body.as_bytes()), "400 invalid_request_error - -");
    let compressed = [json_type[0], ("content-encoding", "gzip")];
    assert_eq!(
        post(&compressed, body.as_bytes()),
        "415 invalid_request_error - -"
    );
    for media_type in ["text/plain", "application/x-www-form-urlencoded"] {
        let refused = post(&[("content-type", media_type)], body.as_bytes());
        assert_eq!(refused, "415 invalid_request_error - -");
    }
    let deep = "[".repeat(100_000);
    for malformed in ["", "{", "hello", "[]", "3", "{\"temperature\": NaN}", &deep] {
        assert_eq!(
            post(&json_type, malformed.as_bytes()),
            "400 invalid_request_error - -",
            "{malformed:.20}"
        );
    }
    assert_eq!(
        post(&json_type, b"{\"model\": \"\xff\"}"),
        "400 invalid_request_error - -"
    );
}

#[test]
fn long_conversations_pass_and_endless_ones_get_413() {
    let api = Api::start(&[Scripted::saying("m", "x").max_context(8 << 20)]);
    let content = "x".repeat(5 << 20);
    let messages = json!([{ "role": "user", "content": content }]);
    api.chat(json!({ "messages": messages })).ok();
    let headers = [("content-type", "application/json")];
    let huge = vec![b' '; (32 << 20) + 1];
    let announced = api.send("POST", "/v1/chat/completions", &headers, &huge);
    assert_eq!(announced.reply().error(), "413 invalid_request_error - -");

    let mut call = Call::connect(api.address);
    call.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
          transfer-encoding: chunked\r\n\r\n",
    );
    for _ in 0..33 {
        call.write(b"100000\r\n");
        call.write(&vec![b' '; 1 << 20]);
        call.write(b"\r\n");
    }
    call.write(b"0\r\n\r\n");
    assert_eq!(call.reply().error(), "413 invalid_request_error - -");

    let patient = [
        ("content-type", "application/json"),
        ("content-length", "99999999"),
        ("expect", "100-continue"),
    ];
    let call = api.send("POST", "/v1/chat/completions", &patient, b"");
    assert_eq!(call.reply().error(), "413 invalid_request_error - -");
}

#[test]
fn models_are_listed_and_found_with_slashes_plain_and_encoded() {
    let api = Api::start(&[
        Scripted::saying("org/model-1", "x"),
        Scripted::saying("running", "y"),
    ]);
    let list = api.get("/v1/models").ok().json();
    assert_eq!(list["object"], "list");
    let mut item = list["data"][0].clone();
    assert!(item["created"].is_u64());
    item["created"] = 0.into();
    insta::assert_snapshot!(format!("{item:#}"), @r#"
    {
      "id": "org/model-1",
      "object": "model",
      "created": 0,
      "owned_by": "org",
      "architecture": "ScriptedForCausalLM",
      "kind": "chat",
      "vocab_size": 0,
      "num_layers": 0,
      "size_bytes": 5,
      "size_gb": 0.0,
      "last_used_secs": 0,
      "loadable": true
    }
    "#);
    let one = |path: &str| api.get(path).ok().json();
    assert_eq!(one("/v1/models/org/model-1"), list["data"][0]);
    assert_eq!(one("/v1/models/org%2Fmodel-1"), list["data"][0]);
    // The plain path is the list of what runs; any encoded letter makes it an id.
    assert_eq!(one("/v1/models/%72unning")["id"], "running");
    let absent = [
        "/v1/models/nothing",
        "/v1/models/ORG/model-1",
        "/v1/models/org/model-1/",
        "/v1/models/..%2Forg",
        "/v1/models/org/../../etc/passwd",
    ];
    for path in absent {
        let error = api.get(path).error();
        assert_eq!(
            error, "404 invalid_request_error model_not_found model",
            "{path}"
        );
    }
    assert_eq!(
        api.get("/v1/models/%ff").error(),
        "400 invalid_request_error - -"
    );
    api.chat(json!({ "model": "running" })).ok();
    let running = one("/v1/models/running");
    assert_eq!(running["data"][0]["id"], "running");
    assert_eq!(running["data"][0]["state"], "ready");
    assert_eq!(running["data"][0]["total_size_bytes"], 4 << 20);
    assert_eq!(running["total_loaded_bytes"], 4 << 20);
    assert!(running.get("memory_budget_bytes").is_none(), "{running}");
}
