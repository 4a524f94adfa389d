//! What happens when there is too much, when it takes too long, when the client goes, and when the server goes.

use std::time::Duration;

use oxydllm::engine::FinishReason;
use oxydllm::server::Settings;
use serde_json::json;

use crate::support::api::{Api, Call, Reply, Scripted, wait_until};
use crate::support::scripted::{End, Step, bytes};

const SHORT: Duration = Duration::from_millis(150);
const LONG: Duration = Duration::from_secs(8);

/// Speaks for ever.
fn endless() -> Vec<Step> {
    vec![bytes("on and "), Step::Forever(u32::from(b'.'))]
}

/// Says nothing for a while.
fn slow(time: Duration) -> Vec<Step> {
    vec![
        Step::Work(time),
        bytes("at last"),
        Step::Done(FinishReason::Stop),
    ]
}

fn limited(limit: Duration) -> Settings {
    Settings {
        request_timeout: Some(limit),
        ..Settings::default()
    }
}

/// The text of a stream.
fn content(reply: &Reply) -> String {
    let events = reply.events();
    events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect()
}

fn depth(api: &Api) -> String {
    api.samples("oxydllm_queue_depth").remove(0)
}

/// Waits until so many sequences wait or run.
fn wait_depth(api: &Api, depth_wanted: usize) {
    wait_until(|| depth(api) == format!("oxydllm_queue_depth {depth_wanted}"));
}

#[test]
fn one_request_too_many_gets_429_at_once_and_the_others_are_answered() {
    let api = Api::start(&[Scripted::new("m", |_| slow(Duration::from_millis(400))).max_queued(2)]);
    let first = api.begin_chat(json!({}));
    wait_depth(&api, 1);
    // The engine works on the first; two wait, of which one counts for all its choices.
    let waiting = [
        api.begin_chat(json!({ "n": 2 })),
        api.begin_chat(json!({ "stream": true })),
    ];
    wait_depth(&api, 4);
    for more in [json!({}), json!({ "n": 3 }), json!({ "stream": true })] {
        let refused = api.chat(more);
        assert_eq!(
            refused.error(),
            "429 rate_limit_error rate_limit_exceeded -"
        );
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    wait_depth(&api, 4);
    for call in waiting.into_iter().chain([first]) {
        call.reply().ok();
    }
    let counted = api.samples("oxydllm_requests_total");
    assert_eq!(
        counted,
        [
            r#"oxydllm_requests_total{model="m",status="ok"} 4"#,
            r#"oxydllm_requests_total{model="m",status="rejected"} 3"#,
        ]
    );
}

#[test]
fn the_time_limit_gives_408_or_a_chunk_and_frees_the_engine() {
    let api = Api::with_settings(limited(SHORT), &[Scripted::new("m", |_| endless())]);
    let refused = api.chat(json!({}));
    assert_eq!(refused.error(), "408 request_timeout request_timeout -");
    let events = api.chat(json!({ "stream": true })).ok().events();
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last["error"]["type"], "request_timeout");
    assert_eq!(before[1]["choices"][0]["delta"]["content"], "o");
    let ends: Vec<End> = api.wait_seen(2).iter().map(|seen| seen.end).collect();
    assert!(!ends.contains(&End::Complete), "{ends:?}");
    wait_depth(&api, 0);
    assert_eq!(
        api.samples("oxydllm_requests_total"),
        [r#"oxydllm_requests_total{model="m",status="timeout"} 2"#]
    );
}

#[test]
fn the_time_limit_holds_in_the_queue_and_for_the_body_but_not_for_loading() {
    let model = Scripted::new("m", |request| {
        if request.max_tokens == 7 {
            slow(4 * SHORT)
        } else {
            slow(Duration::ZERO)
        }
    });
    let api = Api::with_settings(limited(2 * SHORT), &[model.loading(3 * SHORT)]);
    api.chat(json!({})).ok();
    let busy = api.begin_chat(json!({ "max_tokens": 7 }));
    wait_depth(&api, 1);
    let queued = api.begin_chat(json!({}));
    assert_eq!(busy.reply().status, 408);
    assert_eq!(queued.reply().status, 408);
    let headers = [
        ("content-type", "application/json"),
        ("content-length", "100"),
    ];
    let never = api.send("POST", "/v1/chat/completions", &headers, b"{\"model\":");
    assert_eq!(
        never.reply().error(),
        "408 request_timeout request_timeout -"
    );
}

#[test]
fn nothing_but_comments_comes_while_the_model_computes() {
    let settings = Settings {
        sse_keep_alive: Duration::from_millis(30),
        ..Settings::default()
    };
    let api = Api::with_settings(settings, &[Scripted::new("m", |_| slow(4 * SHORT))]);
    let reply = api.chat(json!({ "stream": true })).ok();
    let text = reply.text();
    let comments = text.lines().filter(|line| line.starts_with(':')).count();
    assert!(comments >= 3, "{text}");
    assert_eq!(content(&reply), "at last");
}

#[test]
fn pieces_come_as_soon_as_they_are_there() {
    let api = Api::start(&[Scripted::new("m", |_| {
        vec![bytes("a"), Step::Work(SHORT), bytes("b"), Step::Work(LONG)]
    })]);
    let mut call = api.begin_chat(json!({ "stream": true }));
    assert_eq!(call.head().status, 200);
    for expected in ["\"role\"", "\"a\"", "\"b\""] {
        let chunk = call.chunk();
        assert!(chunk.contains(expected), "{chunk}");
        assert_eq!(chunk.matches("data: ").count(), 1, "{chunk}");
    }
}

#[test]
fn a_client_that_goes_while_the_model_decodes_frees_everything() {
    for stream in [false, true] {
        let api = Api::start(&[Scripted::new("m", |_| endless())]);
        let mut call = api.begin_chat(json!({ "stream": stream, "n": 3 }));
        wait_depth(&api, 3);
        if stream {
            call.head();
        }
        drop(call);
        wait_depth(&api, 0);
        let ends: Vec<End> = api.wait_seen(3).iter().map(|seen| seen.end).collect();
        assert!(!ends.contains(&End::Complete), "{ends:?}");
        wait_until(|| {
            api.samples("oxydllm_requests_total")
                == [r#"oxydllm_requests_total{model="m",status="cancelled"} 3"#]
        });
    }
}

#[test]
fn a_client_that_goes_in_prefill_or_queue_frees_its_place_at_once() {
    for stream in [false, true] {
        let api = Api::start(&[Scripted::new("m", |_| slow(LONG))]);
        let computing = api.begin_chat(json!({ "stream": stream }));
        wait_depth(&api, 1);
        let queued = api.begin_chat(json!({ "stream": stream }));
        wait_depth(&api, 2);
        drop(queued);
        // Long before the engine looks up from its work.
        wait_depth(&api, 1);
        drop(computing);
        wait_depth(&api, 0);
        assert_eq!(api.seen().len(), 0);
    }
}

#[test]
fn a_client_that_goes_while_its_model_loads_asks_nothing_of_it() {
    let model = Scripted::saying("m", "x").loading(3 * SHORT);
    let api = Api::start(&[model]);
    let call = api.begin_chat(json!({}));
    std::thread::sleep(SHORT);
    drop(call);
    wait_until(|| {
        api.samples("oxydllm_requests_total")
            == [r#"oxydllm_requests_total{model="m",status="cancelled"} 1"#]
    });
    // The next request is the first that the engine sees.
    api.chat(json!({})).ok();
    assert_eq!(api.wait_seen(1).len(), 1);
}

#[test]
fn a_client_that_does_not_read_is_ended_by_the_time_limit() {
    // More than sockets and channels hold.
    let model = Scripted::new("m", |_| {
        let mut steps: Vec<Step> = (0..4000).map(|_| bytes(&"x".repeat(100))).collect();
        steps.push(Step::Forever(u32::from(b'.')));
        steps
    });
    let api = Api::with_settings(limited(3 * SHORT), &[model.max_context(1 << 20)]);
    let call = api.begin_chat(json!({ "stream": true }));
    wait_depth(&api, 1);
    let seen = api.wait_seen(1);
    assert_ne!(seen[0].end, End::Complete);
    drop(call);
    wait_depth(&api, 0);
}

#[test]
fn at_shutdown_running_requests_finish_and_later_ones_are_turned_away() {
    let mut api = Api::start(&[Scripted::new("m", |_| slow(2 * SHORT))]);
    let mut idle = Call::connect(api.address);
    idle.send("GET", "/health", &[], b"");
    assert_eq!(idle.reply_on().status, 200);
    let whole = api.begin_chat(json!({}));
    let streamed = api.begin_chat(json!({ "stream": true }));
    wait_depth(&api, 2);
    api.stop();
    wait_until(|| std::net::TcpStream::connect(api.address).is_err());
    idle.send("GET", "/health", &[], b"");
    let refused = idle.reply_on();
    assert_eq!(refused.error(), "503 server_error server_shutting_down -");
    assert_eq!(refused.header("connection"), Some("close"));
    assert!(idle.is_closed());
    whole.reply().ok();
    assert_eq!(content(&streamed.reply().ok()), "at last");
    assert!(api.wait(), "all in time");
}

#[test]
fn idle_connections_do_not_hold_up_the_shutdown() {
    let mut api = Api::with_grace(Settings::default(), LONG, &[]);
    let mut idle = Call::connect(api.address);
    idle.send("GET", "/health", &[], b"");
    idle.reply_on().ok();
    let mut silent = Call::connect(api.address);
    api.stop();
    assert!(api.wait());
    assert!(idle.is_closed());
    assert!(silent.is_closed());
}

#[test]
fn when_the_grace_is_over_streams_end_with_an_error_and_others_with_503() {
    let mut api = Api::with_grace(
        Settings::default(),
        SHORT,
        &[Scripted::new("m", |_| endless())],
    );
    let streamed = api.begin_chat(json!({ "stream": true }));
    let whole = api.begin_chat(json!({}));
    wait_depth(&api, 2);
    api.stop();
    assert!(!api.wait(), "not in time");
    let events = streamed.reply().ok().events();
    assert_eq!(
        events.last().unwrap()["error"]["code"],
        "server_shutting_down"
    );
    let refused = whole.reply();
    assert_eq!(refused.error(), "503 server_error server_shutting_down -");
    assert!(api.seen().iter().all(|seen| seen.end != End::Complete));
}
