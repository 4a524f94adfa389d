//! Who may ask the server, by which name, for which paths; and what it says about itself in headers, metrics and logs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oxydllm::engine::FinishReason;
use oxydllm::error::Error;
use oxydllm::server::{ApiKeys, Settings};
use serde_json::{Value, json};

use crate::support::api::{Api, Reply, Scripted, wait_until};
use crate::support::scripted::{Step, bytes};

fn with_keys() -> Api {
    let settings = Settings {
        api_keys: ApiKeys::new(["first-key", "second-key"]).unwrap(),
        ..Settings::default()
    };
    Api::with_settings(settings, &[Scripted::saying("m", "x")])
}

#[test]
fn a_key_locks_everything_but_health() {
    let api = with_keys();
    let get = |path: &str, headers: &[(&str, &str)]| api.send("GET", path, headers, b"").reply();
    assert_eq!(get("/health", &[]).status, 200);
    let locked = [
        "/metrics",
        "/v1/models",
        "/v1/models/running",
        "/v1/models/m",
        "/v1/nothing",
        "/v1",
    ];
    for path in locked {
        let refused = get(path, &[]);
        assert_eq!(
            refused.error(),
            "401 invalid_api_key invalid_api_key -",
            "{path}"
        );
        assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
        assert!(!refused.text().contains("-key"), "{}", refused.text());
    }
    assert_eq!(get("/nothing", &[]).status, 404);
    for headers in [
        [("authorization", "Bearer first-key")],
        [("authorization", "bearer second-key")],
        [("x-api-key", "second-key")],
    ] {
        assert_eq!(get("/v1/models", &headers).status, 200, "{headers:?}");
        assert_eq!(get("/metrics", &headers).status, 200, "{headers:?}");
    }
    let both = [
        ("authorization", "Bearer wrong"),
        ("x-api-key", "first-key"),
    ];
    assert_eq!(get("/v1/models", &both).status, 401);
    let other_scheme = [("authorization", "Basic abc"), ("x-api-key", "first-key")];
    assert_eq!(get("/v1/models", &other_scheme).status, 200);
    assert_eq!(api.chat(json!({})).status, 401);
    assert_eq!(api.host.running(), []);
}

#[test]
fn on_a_loopback_address_foreign_names_and_pages_are_refused() {
    let api = Api::start(&[Scripted::saying("m", "x")]);
    let named = |host: &str| {
        api.send("GET", "/v1/models", &[("host", host)], b"")
            .reply()
    };
    assert_eq!(named("localhost:11313").status, 200);
    assert_eq!(named("127.0.0.1").status, 200);
    let refused = named("evil.example");
    assert_eq!(
        refused.error(),
        "403 invalid_request_error forbidden_host -"
    );
    let from = |origin: &str| {
        let headers = [("content-type", "application/json"), ("origin", origin)];
        let body = crate::support::api::chat_body(json!({})).to_string();
        api.send("POST", "/v1/chat/completions", &headers, body.as_bytes())
            .reply()
    };
    let evil = from("https://evil.example");
    assert_eq!(evil.error(), "403 invalid_request_error forbidden_origin -");
    let local = from("http://localhost:3000").ok();
    for reply in [evil, local] {
        assert_eq!(reply.header("access-control-allow-origin"), None);
    }
    assert_eq!(api.host.running().len(), 1, "by the local page alone");
}

#[test]
fn allowed_hosts_and_origins_are_answered() {
    let settings = Settings {
        allowed_hosts: vec!["box.example".to_owned()],
        allowed_origins: vec!["https://chat.example".to_owned()],
        api_keys: ApiKeys::new(["key"]).unwrap(),
        ..Settings::default()
    };
    let api = Api::with_settings(settings, &[]);
    let ask = |method: &str, headers: &[(&str, &str)]| {
        let all = [&[("host", "box.example"), ("content-length", "0")], headers].concat();
        api.send(method, "/v1/chat/completions", &all, b"").reply()
    };
    let origin = ("origin", "https://chat.example");
    let preflight = ask(
        "OPTIONS",
        &[origin, ("access-control-request-method", "POST")],
    );
    assert_eq!(preflight.status, 200);
    let allowed = |reply: &Reply| {
        reply
            .header("access-control-allow-origin")
            .map(str::to_owned)
    };
    assert_eq!(allowed(&preflight).as_deref(), Some("https://chat.example"));
    let unauthorized = ask("POST", &[origin]);
    assert_eq!(unauthorized.status, 401);
    assert_eq!(
        allowed(&unauthorized).as_deref(),
        Some("https://chat.example")
    );
    let other = ask("OPTIONS", &[("origin", "https://evil.example")]);
    assert_eq!(allowed(&other), None);
}

#[test]
fn paths_and_methods_that_are_not_there_are_told_in_shape() {
    let api = Api::start(&[]);
    let ask = |method: &str, path: &str| api.send(method, path, &[], b"").reply();
    for path in [
        "/",
        "/v1",
        "/v1/chat",
        "/v1/chat/completions/",
        "/v2/models",
        "/health/x",
    ] {
        assert_eq!(
            api.get(path).error(),
            "404 invalid_request_error unknown_url -",
            "{path}"
        );
    }
    for (method, path, allowed) in [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/v1/chat/completions", "POST"),
        ("POST", "/health", "GET,HEAD"),
        ("DELETE", "/v1/models/m", "GET,HEAD"),
    ] {
        let refused = ask(method, path);
        let told = refused.error();
        assert_eq!(
            told, "405 invalid_request_error method_not_allowed -",
            "{path}"
        );
        assert_eq!(refused.header("allow"), Some(allowed));
    }
    let options = ask("OPTIONS", "/v1/chat/completions");
    assert_eq!(
        (options.status, options.header("allow")),
        (204, Some("POST"))
    );
    assert_eq!(options.header("access-control-allow-origin"), None);
    let mut head = api.send("HEAD", "/health", &[("connection", "close")], b"");
    assert_eq!(head.head().status, 200);
    assert!(head.is_closed(), "no body follows");
}

#[test]
fn health_says_ok() {
    let api = Api::start(&[]);
    let reply = api.get("/health").ok();
    assert_eq!(reply.text(), r#"{"status":"ok"}"#);
    assert_eq!(reply.header("content-type"), Some("application/json"));
}

#[test]
fn every_answer_carries_a_request_id() {
    let api = Api::start(&[Scripted::saying("m", "x")]);
    let id = |reply: &Reply| reply.header("x-request-id").unwrap().to_owned();
    let (one, other) = (api.get("/health"), api.get("/nothing"));
    for reply in [&one, &other] {
        assert_eq!(uuid_version(&id(reply)), Some('4'));
    }
    assert_ne!(id(&one), id(&other));
    assert_eq!(
        uuid_version(&id(&api.chat(json!({ "stream": true })))),
        Some('4')
    );
    let with = |sent: &str| {
        id(&api
            .send("GET", "/health", &[("x-request-id", sent)], b"")
            .reply())
    };
    assert_eq!(with("trace-7:a"), "trace-7:a");
    assert_eq!(uuid_version(&with("two words")), Some('4'));
}

/// The digit of a UUID that says how it was made.
fn uuid_version(id: &str) -> Option<char> {
    (id.len() == 36).then(|| id.chars().nth(14).unwrap())
}

#[test]
fn metrics_are_there_before_the_first_request_and_say_what_happened() {
    let api = Api::start(&[Scripted::new("org/m", |_| {
        vec![
            Step::Started(3),
            bytes("four"),
            Step::Work(Duration::from_millis(5)),
            Step::Done(FinishReason::Stop),
        ]
    })]);
    let page = api.get("/metrics").ok();
    assert_eq!(
        page.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    for name in [
        "oxydllm_ttft_milliseconds",
        "oxydllm_tokens_per_second",
        "oxydllm_requests_total",
        "oxydllm_queue_depth",
        "oxydllm_prefix_cache_requests_total",
        "oxydllm_model_weights_bytes",
        "oxydllm_kv_cache_allocated_bytes",
        "oxydllm_vram_used_bytes",
    ] {
        for kind in ["HELP", "TYPE"] {
            assert!(page.text().contains(&format!("# {kind} {name} ")), "{name}");
        }
    }
    // However it is spelt, it counts under its id.
    api.chat(json!({ "model": "org/m", "n": 2 })).ok();
    let text = api.get("/metrics").ok().text();
    check_page(&text);
    for sample in [
        r#"oxydllm_requests_total{model="org/m",status="ok"} 2"#,
        r#"oxydllm_prefix_cache_requests_total{model="org/m",result="hit"} 1"#,
        r#"oxydllm_ttft_milliseconds_count{model="org/m"} 2"#,
        r#"oxydllm_tokens_per_second_count{model="org/m"} 2"#,
        r#"oxydllm_prompt_tokens_total{model="org/m"} 20"#,
        r#"oxydllm_completion_tokens_total{model="org/m"} 14"#,
        r#"oxydllm_model_weights_bytes{model="org/m"} 3145728"#,
        r#"oxydllm_kv_cache_allocated_bytes{model="org/m"} 1048576"#,
        "oxydllm_vram_used_bytes 4194304",
        "oxydllm_queue_depth 0",
    ] {
        assert!(text.lines().any(|line| line == sample), "{sample}\n{text}");
    }
    api.unload();
    let text = api.get("/metrics").ok().text();
    check_page(&text);
    assert!(!text.contains("oxydllm_model_weights_bytes{"), "{text}");
    assert!(
        !text.contains("oxydllm_kv_cache_allocated_bytes{"),
        "{text}"
    );
    assert!(text.contains("oxydllm_vram_used_bytes 0"), "{text}");
}

/// Lines that were logged, as JSON.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Logged {
    /// The messages that belong to a request, sorted; a line belongs to it when a span around it says so.
    fn of(&self, id: &str) -> Vec<String> {
        let bytes = self.0.lock().unwrap().clone();
        let lines = String::from_utf8(bytes).unwrap();
        let mut messages: Vec<String> = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter(|line| line["spans"][0]["request_id"] == id)
            .map(|line| line["fields"]["message"].as_str().unwrap().to_owned())
            .collect();
        messages.sort();
        messages
    }

    fn holds(&self, text: &str) -> bool {
        let bytes = self.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().contains(text)
    }
}

/// The one test that sees what the process logs; it tells its lines apart by their ids.
#[test]
fn every_log_line_of_a_request_has_its_id_and_none_has_the_prompt() {
    let logged = Logged::default();
    let writer = logged.clone();
    tracing_subscriber::fmt()
        .json()
        .with_max_level(tracing::Level::DEBUG)
        .with_writer(move || writer.clone())
        .init();
    let api = Api::start(&[
        Scripted::saying("m", "x"),
        Scripted::new("broken", |_| vec![Step::Fail(Error::internal("NaN"))]),
        Scripted::new("endless", |_| vec![bytes("x"), Step::Forever(46)]),
    ]);
    let ask = |id: &str, model: &str, stream: bool| {
        let headers = [("content-type", "application/json"), ("x-request-id", id)];
        let body = json!({
            "model": model, "stream": stream, "messages": [{ "role": "user", "content": "the secret" }],
        });
        api.send(
            "POST",
            "/v1/chat/completions",
            &headers,
            body.to_string().as_bytes(),
        )
    };
    let answered = [
        "first token emitted",
        "prompt prepared",
        "request answered",
        "request completed",
        "request enqueued",
    ];
    ask("whole", "m", false).reply().ok();
    assert_eq!(logged.of("whole"), answered);
    ask("streamed", "m", true).reply().ok();
    assert_eq!(logged.of("streamed"), answered);
    assert_eq!(ask("failed", "broken", false).reply().status, 500);
    let failed = [
        "prompt prepared",
        "request enqueued",
        "request failed",
        "request failed",
    ];
    assert_eq!(logged.of("failed"), failed);
    assert_eq!(ask("refused", "nobody", false).reply().status, 404);
    assert_eq!(logged.of("refused"), ["request refused"]);
    for stream in [false, true] {
        let id = format!("gone-{stream}");
        let call = ask(&id, "endless", stream);
        wait_until(|| logged.of(&id).contains(&"first token emitted".to_owned()));
        drop(call);
        wait_until(|| logged.of(&id).contains(&"request aborted".to_owned()));
    }
    assert!(!logged.holds("the secret"));
}

/// The text format: every sample belongs to the family above it, has no empty label, and a number.
fn check_page(text: &str) {
    let mut family = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# ") {
            family = rest.split(' ').nth(1).unwrap();
            continue;
        }
        assert!(line.starts_with(family), "{line} in {family}");
        assert!(!line.contains("=\"\""), "{line}");
        let (_, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap();
    }
}
