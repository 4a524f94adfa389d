//! `eval` and `bench`: what they compute is within the model's context, and nothing to compute is an error.

use std::path::Path;

use serde_json::json;

use crate::support::program::Home;

fn fixture(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    root.join(path).to_str().unwrap().to_owned()
}

/// A file of prompts of these lengths.
fn prompts(home: &Home, lengths: &[usize]) -> String {
    let prompts: Vec<Vec<u32>> = lengths.iter().map(|n| vec![5; *n]).collect();
    let path = home.write(
        "prompts.json",
        json!({ "prompts": prompts }).to_string().as_bytes(),
    );
    path.to_str().unwrap().to_owned()
}

#[track_caller]
fn assert_refused(home: &Home, words: &[&str], expected: &[&str]) {
    let stderr = home.run(words).failed().stderr;
    for text in expected {
        assert!(stderr.contains(text), "{words:?}: no {text:?} in {stderr}");
    }
}

#[test]
fn eval_computes_up_to_the_context_and_refuses_what_is_behind_it() {
    let home = Home::new();
    let model = fixture("models/mixtral_plain"); // 256 tokens
    let fits = prompts(&home, &[1, 256]);
    let eval = |file: &str, more: &[&str]| {
        let words = ["eval", &model, "--tokens", file, "--logits", "out"];
        home.run(&[&words[..], more].concat())
    };
    eval(&fits, &[]).ok();
    let beyond = eval(&fits, &["--greedy", "1"]).failed().stderr;
    for text in [
        "prompt 1, of 256 tokens, with 1 behind it takes 257",
        "holds 256",
        "--greedy",
    ] {
        assert!(beyond.contains(text), "{beyond}");
    }
    let too_long = prompts(&home, &[1, 257]);
    for more in [&[][..], &["--reference"]] {
        let beyond = eval(&too_long, more).failed().stderr;
        for text in [
            "prompt 1 takes 257 tokens",
            "holds 256",
            "give a shorter prompt",
        ] {
            assert!(beyond.contains(text), "{beyond}");
        }
    }
    let text = home.write("text.txt", b"a b c d");
    let text = text.to_str().unwrap();
    assert_refused(
        &home,
        &["eval", &model, "--text", text],
        &["takes 512 tokens", "holds 256"],
    );
}

#[test]
fn the_contract_is_checked_up_to_the_end_of_the_context() {
    let home = Home::new();
    let model = fixture("models/mixtral_plain");
    let contract = |lengths: &[usize]| {
        let file = prompts(&home, lengths);
        home.run(&["eval", &model, "--contract", "--tokens", &file])
    };
    // With what is left for continuations: 256, 1 more than 255.
    let text = contract(&[256, 255]).ok().stdout;
    assert!(text.contains("keeps the contract"), "{text}");
    assert!(
        text.contains("equal  one token at a time          512 positions"),
        "{text}"
    );
    let stderr = contract(&[3, 257]).failed().stderr;
    assert!(stderr.contains("prompt 1 takes 257 tokens"), "{stderr}");
    assert!(stderr.contains("holds 256"), "{stderr}");
}

#[test]
fn bench_measures_nothing_behind_the_context() {
    let home = Home::new();
    let model = fixture("models/mixtral_plain");
    let bench = |words: &[&str]| {
        let base = ["bench", &model, "--repeat", "1"];
        home.run(&[&base[..], words].concat())
    };
    bench(&["-p", "256", "-n", "2", "-d", "254"]).ok();
    let prompt = bench(&["-p", "257", "-n", "1"]).failed().stderr;
    for text in ["the prompt test takes 257 tokens", "holds 256", "`-p`"] {
        assert!(prompt.contains(text), "{prompt}");
    }
    let depth = bench(&["-p", "0", "-n", "2", "-d", "255"]).failed().stderr;
    for text in [
        "generating 2 tokens behind 255 takes 257",
        "holds 256",
        "`-d`",
    ] {
        assert!(depth.contains(text), "{depth}");
    }
    // Depth matters to generation alone.
    bench(&["-p", "8", "-n", "0", "-d", "300"]).ok();
}

#[test]
fn an_empty_list_is_not_a_success() {
    let home = Home::new();
    let model = fixture("models/mixtral_plain");
    let file = prompts(&home, &[]);
    for more in [
        &["--contract"][..],
        &["--greedy", "2"],
        &["--logits", "out"],
    ] {
        let words = [&["eval", &model, "--tokens", &file][..], more].concat();
        assert_refused(&home, &words, &["`prompts`", "nothing to evaluate"]);
    }
    let encoder = fixture("encoders/bert_dense");
    assert_refused(
        &home,
        &["eval", &encoder, "--contract", "--tokens", &file],
        &["`prompts`", "nothing to evaluate"],
    );
    for (model, list) in [("bert_dense", "inputs"), ("bert_rerank", "pairs")] {
        let model = fixture(&format!("encoders/{model}"));
        let file = home.write("in.json", json!({ list: [] }).to_string().as_bytes());
        let words = ["eval", &model, "--inputs", file.to_str().unwrap()];
        assert_refused(
            &home,
            &words,
            &[&format!("`{list}`"), "nothing to evaluate"],
        );
    }
}

#[test]
fn a_text_that_is_too_long_is_named_by_its_number() {
    let home = Home::new();
    let long = "a ".repeat(400);
    let model = fixture("encoders/bert_dense");
    let inputs = json!({ "inputs": ["a", "b", long] });
    let file = home.write("in.json", inputs.to_string().as_bytes());
    let words = ["eval", &model, "--inputs", file.to_str().unwrap()];
    assert_refused(&home, &words, &["text 2 has ", "at most 160"]);
    let file = prompts(&home, &[1, 161]);
    let words = ["eval", &model, "--contract", "--tokens", &file];
    assert_refused(&home, &words, &["text 1 has 161 tokens", "at most 160"]);
}

#[test]
fn bench_says_that_it_measures_no_encoder() {
    let home = Home::new();
    for (model, what) in [
        ("bert_dense", "an embedding model"),
        ("qwen3_last", "an embedding model"),
        ("bert_rerank", "a reranker"),
    ] {
        let model = fixture(&format!("encoders/{model}"));
        assert_refused(
            &home,
            &["bench", &model],
            &[what, "`bench` measures models that generate text"],
        );
    }
}
