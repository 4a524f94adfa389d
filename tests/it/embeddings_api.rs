//! `/v1/embeddings` and `/v1/rerank` over HTTP, with real models loaded by the real loader.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use oxydllm::host::{LoadSettings, ModelLoader};
use oxydllm::ops::{Context, CpuLevel};
use oxydllm::threads::Pool;
use serde_json::{Value, json};

use crate::encoders::{copy_folder, folder};
use crate::support::api::{Api, Reply};

/// A server with all encoder fixtures as `enc/NAME`, and a chat model `enc/chat`.
fn start() -> Api {
    let models = tempfile::tempdir().unwrap();
    for name in [
        "bert_dense",
        "roberta_cls",
        "qwen3_last",
        "bert_rerank",
        "xlm_roberta_rerank",
    ] {
        copy_folder(&folder(name), &models.path().join("enc").join(name));
    }
    let chat = folder("").parent().unwrap().join("models/llama_plain");
    copy_folder(&chat, &models.path().join("enc/chat"));
    std::fs::remove_file(models.path().join("enc/chat/expected.safetensors")).unwrap();
    let ctx = Context::cpu(Arc::new(Pool::new(2)), CpuLevel::detect());
    let settings = LoadSettings {
        max_context_len: None,
        max_num_seqs: None,
        max_queued: 8,
    };
    Api::with_loader(
        models,
        Arc::new(ModelLoader::new(ctx, settings, Some(256 << 20))),
    )
}

fn post(api: &Api, path: &str, body: Value) -> Reply {
    api.begin(path, &body).reply()
}

fn embed(api: &Api, body: Value) -> Reply {
    post(api, "/v1/embeddings", body)
}

fn expected(name: &str) -> Value {
    let text = std::fs::read(folder(name).join("expected.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn vector(value: &Value) -> Vec<f32> {
    let numbers = value.as_array().unwrap().iter();
    numbers.map(|x| x.as_f64().unwrap() as f32).collect()
}

fn assert_close(got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len());
    for (a, b) in got.iter().zip(want) {
        assert!((a - b).abs() < 1e-3, "{got:?} {want:?}");
    }
}

#[test]
fn vectors_are_the_references_in_every_form_of_input() {
    let api = start();
    let expected = expected("bert_dense");
    let cases: Vec<&Value> = expected["cases"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|case| case["prompt_name"].is_null())
        .collect();
    let texts: Vec<&Value> = cases.iter().map(|case| &case["text"]).collect();
    let reply = embed(
        &api,
        json!({ "model": "enc/bert_dense", "input": texts, "user": "me" }),
    )
    .ok()
    .json();
    assert_eq!(
        (reply["object"].as_str(), reply["model"].as_str()),
        (Some("list"), Some("enc/bert_dense"))
    );
    let data = reply["data"].as_array().unwrap();
    assert_eq!(data.len(), cases.len());
    let mut tokens = 0;
    for (index, (item, case)) in data.iter().zip(&cases).enumerate() {
        assert_eq!(
            (item["object"].as_str(), item["index"].as_u64()),
            (Some("embedding"), Some(index as u64))
        );
        assert_close(&vector(&item["embedding"]), &vector(&case["vector"]));
        tokens += case["ids"].as_array().unwrap().len();
    }
    assert_eq!(
        reply["usage"],
        json!({ "prompt_tokens": tokens, "total_tokens": tokens })
    );
    // One by one, as ids, as several lists of ids: the same bits.
    for (item, case) in data.iter().zip(&cases) {
        for input in [&case["text"], &case["ids"], &json!([case["ids"]])] {
            let own = embed(&api, json!({ "model": "bert_dense", "input": input }))
                .ok()
                .json();
            assert_eq!(own["data"][0]["embedding"], item["embedding"]);
        }
    }
}

#[test]
fn base64_dimensions_and_prompts_are_honoured() {
    let api = start();
    let ask = |more: Value| {
        let mut body =
            json!({ "model": "enc/bert_dense", "input": "The keeper counted the ships." });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        embed(&api, body)
    };
    let floats = vector(&ask(json!({})).ok().json()["data"][0]["embedding"]);
    let coded = ask(json!({ "encoding_format": "base64" })).ok().json();
    let bytes = STANDARD
        .decode(coded["data"][0]["embedding"].as_str().unwrap())
        .unwrap();
    let decoded: Vec<f32> = bytes
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    assert_eq!(decoded, floats, "the same bits");
    let short = vector(&ask(json!({ "dimensions": 4 })).ok().json()["data"][0]["embedding"]);
    let length = floats[..4].iter().map(|x| x * x).sum::<f32>().sqrt();
    let cut: Vec<f32> = floats[..4].iter().map(|x| x / length).collect();
    assert_close(&short, &cut);
    let expected = expected("bert_dense");
    let with_prompt = expected["cases"]
        .as_array()
        .unwrap()
        .iter()
        .find(|case| case["prompt_name"] == "query")
        .unwrap();
    let query = ask(json!({ "prompt_name": "query" })).ok().json();
    assert_close(
        &vector(&query["data"][0]["embedding"]),
        &vector(&with_prompt["vector"]),
    );
    assert_ne!(vector(&query["data"][0]["embedding"]), floats);
    // A decoder, whose default prompt is used without being asked for.
    let qwen = expected_case("qwen3_last");
    let reply = embed(
        &api,
        json!({ "model": "enc/qwen3_last", "input": qwen["text"] }),
    )
    .ok()
    .json();
    assert_close(
        &vector(&reply["data"][0]["embedding"]),
        &vector(&qwen["vector"]),
    );
}

/// The first case of a fixture.
fn expected_case(name: &str) -> Value {
    expected(name)["cases"][0].clone()
}

#[test]
fn documents_come_in_the_order_of_their_scores() {
    let api = start();
    for name in ["bert_rerank", "xlm_roberta_rerank"] {
        let expected = expected(name);
        let cases: Vec<&Value> = expected["cases"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|case| case["query"] == "where is the boat")
            .collect();
        let documents: Vec<&Value> = cases.iter().map(|case| &case["document"]).collect();
        let ask = |more: Value| {
            let mut body = json!({ "model": format!("enc/{name}"), "query": "where is the boat", "documents": documents });
            for (name, value) in more.as_object().unwrap() {
                body[name] = value.clone();
            }
            post(&api, "/v1/rerank", body)
        };
        let reply = ask(json!({})).ok().json();
        let results = reply["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        let scores: Vec<f64> = results
            .iter()
            .map(|result| result["relevance_score"].as_f64().unwrap())
            .collect();
        assert!(scores[0] >= scores[1]);
        for result in results {
            assert!(result.get("document").is_none());
            let logit = cases[result["index"].as_u64().unwrap() as usize]["score"]
                .as_f64()
                .unwrap();
            let score = result["relevance_score"].as_f64().unwrap();
            assert!(
                (score - 1.0 / (1.0 + (-logit).exp())).abs() < 1e-4,
                "{score} {logit}"
            );
        }
        let tokens: usize = cases
            .iter()
            .map(|case| case["ids"].as_array().unwrap().len())
            .sum();
        assert_eq!(reply["usage"]["total_tokens"], tokens);
        let best = ask(json!({ "top_n": 1, "return_documents": true }))
            .ok()
            .json();
        let best = best["results"].as_array().unwrap();
        assert_eq!(best.len(), 1);
        assert_eq!(best[0]["index"], results[0]["index"]);
        let index = best[0]["index"].as_u64().unwrap() as usize;
        assert_eq!(best[0]["document"]["text"], *documents[index]);
    }
}

#[test]
fn a_model_is_asked_for_what_it_does_and_is_not_loaded_for_anything_else() {
    let api = start();
    let messages = json!([{ "role": "user", "content": "hi" }]);
    let chat = |model: &str| {
        post(
            &api,
            "/v1/chat/completions",
            json!({ "model": model, "messages": messages }),
        )
    };
    let rerank = |model: &str| {
        post(
            &api,
            "/v1/rerank",
            json!({ "model": model, "query": "q", "documents": ["d"] }),
        )
    };
    let vectors = |model: &str| embed(&api, json!({ "model": model, "input": "a" }));
    for (reply, place) in [
        (chat("enc/bert_dense"), "/v1/embeddings"),
        (chat("enc/qwen3_last"), "/v1/embeddings"),
        (chat("enc/bert_rerank"), "/v1/rerank"),
        (vectors("enc/chat"), "/v1/chat/completions"),
        (vectors("enc/bert_rerank"), "/v1/rerank"),
        (rerank("enc/bert_dense"), "/v1/embeddings"),
        (rerank("enc/chat"), "/v1/chat/completions"),
    ] {
        assert_eq!(
            reply.error(),
            "400 invalid_request_error model_not_supported model"
        );
        assert!(reply.text().contains(place), "{}", reply.text());
    }
    assert!(api.host.running().is_empty(), "nothing was loaded");
    assert_eq!(
        vectors("enc/nobody").error(),
        "404 invalid_request_error model_not_found model"
    );
}

#[test]
fn mistakes_that_only_the_model_can_tell_are_blamed_on_their_field() {
    let api = start();
    let ask = |more: Value| {
        let mut body = json!({ "model": "enc/roberta_cls", "input": "a" });
        for (name, value) in more.as_object().unwrap() {
            body[name] = value.clone();
        }
        embed(&api, body)
    };
    let long = ask(json!({ "input": ["a", "x ".repeat(300)] }));
    assert_eq!(
        long.error(),
        "400 invalid_request_error context_length_exceeded input"
    );
    assert!(long.text().contains("text 1 has"), "{}", long.text());
    assert_eq!(
        ask(json!({ "input": [1, 99_999] })).error(),
        "400 invalid_request_error - input"
    );
    assert_eq!(
        ask(json!({ "dimensions": 21 })).error(),
        "400 invalid_request_error integer_above_max_value dimensions"
    );
    assert_eq!(
        ask(json!({ "prompt_name": "query" })).error(),
        "400 invalid_request_error - prompt_name"
    );
    let long = post(
        &api,
        "/v1/rerank",
        json!({ "model": "enc/bert_rerank", "query": "q", "documents": ["x ".repeat(200)] }),
    );
    assert_eq!(
        long.error(),
        "400 invalid_request_error context_length_exceeded documents"
    );
    // The longest text that fits is read: 156 tokens and two around them.
    ask(json!({ "input": "x".repeat(156) })).ok();
    assert_eq!(ask(json!({ "input": "x".repeat(157) })).status, 400);
}

#[test]
fn lists_and_metrics_tell_the_kind_and_count_requests() {
    let api = start();
    let kind = |item: &Value| {
        (
            item["id"].as_str().unwrap().to_owned(),
            item["kind"].as_str().unwrap().to_owned(),
        )
    };
    let all: Vec<(String, String)> = api.get("/v1/models").ok().json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(kind)
        .collect();
    let kind_of = |id: &str| all.iter().find(|(found, _)| found == id).unwrap().1.clone();
    assert_eq!(kind_of("enc/bert_dense"), "embedding");
    assert_eq!(kind_of("enc/qwen3_last"), "embedding");
    assert_eq!(kind_of("enc/xlm_roberta_rerank"), "reranker");
    assert_eq!(kind_of("enc/chat"), "chat");
    embed(
        &api,
        json!({ "model": "enc/bert_dense", "input": ["storm", "storm"] }),
    )
    .ok();
    let running = api.get("/v1/models/running").ok().json();
    assert_eq!(running["data"][0]["kind"], "embedding");
    assert!(running["data"][0]["weights_size_bytes"].as_u64().unwrap() > 60_000);
    embed(
        &api,
        json!({ "model": "enc/bert_dense", "input": "x ".repeat(300) }),
    );
    assert_eq!(
        api.samples("oxydllm_requests_total{"),
        ["oxydllm_requests_total{model=\"enc/bert_dense\",status=\"ok\"} 1"]
    );
    let tokens = api.samples("oxydllm_prompt_tokens_total{");
    assert_eq!(
        tokens,
        ["oxydllm_prompt_tokens_total{model=\"enc/bert_dense\"} 6"]
    );
    assert_eq!(
        api.samples("oxydllm_queue_depth"),
        ["oxydllm_queue_depth 0"]
    );
}

#[test]
fn many_requests_at_once_share_one_load_and_have_the_bits_of_one() {
    let api = start();
    let texts: Vec<String> = (0..40)
        .map(|i| format!("{} the keeper {i}", "stone ".repeat(i % 7)))
        .collect();
    let one = embed(&api, json!({ "model": "enc/bert_dense", "input": texts }))
        .ok()
        .json();
    let calls: Vec<_> = (0..6)
        .map(|_| {
            api.begin(
                "/v1/embeddings",
                &json!({ "model": "enc/bert_dense", "input": texts }),
            )
        })
        .collect();
    for call in calls {
        assert_eq!(call.reply().ok().json()["data"], one["data"]);
    }
}
