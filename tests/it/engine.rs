//! The batched engine with real (tiny) models: an answer is the same bits alone and in any company, from the cache, in
//! chunks, after a preemption; and whatever happens to one request stays with it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oxydllm::engine::worker::{self, Forward, Running, TransformerForward, WorkerSettings};
use oxydllm::engine::{
    Cancel, Engine, Event, Events, FinishReason, Request, SamplingParams, TokenLogprobs, Usage,
};
use oxydllm::error::{Error, ErrorKind, Result};
use oxydllm::model::plan::Plan;
use oxydllm::model::{Batch, LoadOptions, Transformer, load};
use oxydllm::ops::{Context, CpuLevel, Tensor};
use oxydllm::threads::Pool;

fn fixture(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/models")
        .join(name);
    let gguf = folder.join("model.gguf");
    if gguf.exists() { gguf } else { folder }
}

fn context() -> Context {
    Context::cpu(Arc::new(Pool::new(2)), CpuLevel::detect())
}

fn transformer(ctx: &Context, name: &str) -> Transformer {
    load(ctx, &fixture(name), LoadOptions::default())
        .unwrap()
        .transformer
}

/// How an engine is set up.
#[derive(Clone, Copy)]
struct Setup {
    num_blocks: usize,
    /// For models with recurrent layers.
    num_slots: usize,
    max_num_seqs: usize,
    max_queued: usize,
    step_tokens: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            num_blocks: 512,
            num_slots: 80,
            max_num_seqs: 64,
            max_queued: 200,
            step_tokens: 512,
        }
    }
}

/// Context of all models here: what the smallest pool can hold.
const CONTEXT: usize = 160;

fn start(name: &str, setup: Setup) -> Running {
    start_with(name, setup, |forward| Box::new(forward))
}

/// Starts an engine whose steps go through what `wrap` makes of the model.
fn start_with(
    name: &str,
    setup: Setup,
    wrap: impl FnOnce(TransformerForward) -> Box<dyn Forward>,
) -> Running {
    let ctx = context();
    let transformer = transformer(&ctx, name);
    let vocab_size = transformer.config().vocab_size;
    let has_states = !transformer.config().cache_shape().states.is_empty();
    let plan = Plan {
        weight_bytes: 0,
        kv_bytes: 0,
        activation_bytes: 0,
        context: CONTEXT,
        num_blocks: setup.num_blocks,
        num_slots: if has_states { setup.num_slots } else { 0 },
        state_interval: 3,
        max_num_seqs: setup.max_num_seqs,
    };
    let settings = WorkerSettings {
        max_queued: setup.max_queued,
        step_tokens: setup.step_tokens,
        ..WorkerSettings::default()
    };
    let forward = wrap(TransformerForward::new(transformer, &plan));
    worker::start_with(ctx, forward, vocab_size, &plan, settings)
}

/// A request of its own kind: prompt, sampling and length depend on `n`.
fn request(n: usize) -> Request {
    let length = 1 + (n * 37) % 100;
    let tokens = (0..length)
        .map(|i| ((i * i + n * 13 + 7) % 90) as u32 + 3)
        .collect();
    Request {
        tokens,
        sampling: SamplingParams {
            temperature: if n.is_multiple_of(3) { 0.0 } else { 0.9 },
            top_p: if n.is_multiple_of(2) { 1.0 } else { 0.95 },
            repetition_penalty: 1.1,
            seed: n as u64,
            logprobs: Some(3),
            logit_bias: [PANIC, FAIL, NAN, SLOW].map(|id| (id, -100.0)).to_vec(),
            ..SamplingParams::default()
        },
        max_tokens: 12 + (n * 7) % 30,
        stop_tokens: Arc::default(),
        cancel: Cancel::default(),
    }
}

/// A token with the bits of its log-probability and of those of the best.
type TokenBits = (u32, u32, Vec<(u32, u32)>);

#[derive(Debug, Clone, PartialEq)]
struct Answer {
    tokens: Vec<TokenBits>,
    reason: FinishReason,
}

fn bits(id: u32, logprobs: TokenLogprobs) -> TokenBits {
    let top = logprobs.top.iter().map(|(id, p)| (*id, p.to_bits()));
    (id, logprobs.chosen.to_bits(), top.collect())
}

fn collect(mut events: Events) -> Result<(Answer, Usage)> {
    let mut tokens = Vec::new();
    loop {
        match events.blocking_recv().expect("an answer has an end") {
            Event::Started { .. } => assert!(tokens.is_empty(), "it starts once, at the beginning"),
            Event::Token { id, logprobs } => tokens.push(bits(id, logprobs.unwrap())),
            Event::Done { reason, usage } => return Ok((Answer { tokens, reason }, usage)),
            Event::Failed(error) => return Err(error),
        }
    }
}

fn ask(engine: &Engine, request: Request) -> (Answer, Usage) {
    collect(engine.submit(request).unwrap()).unwrap()
}

/// Every answer alone, on an engine without a memory of others.
fn alone(name: &str, requests: impl Iterator<Item = Request>) -> Vec<Answer> {
    let ask_fresh = |request| ask(&start(name, Setup::default()).engine, request).0;
    requests.map(ask_fresh).collect()
}

/// All answers at once.
fn together(engine: &Engine, requests: impl Iterator<Item = Request>) -> Vec<Answer> {
    let events: Vec<Events> = requests
        .map(|request| engine.submit(request).unwrap())
        .collect();
    events.into_iter().map(|e| collect(e).unwrap().0).collect()
}

/// A short prompt with a long answer: it is admitted with one block and grows to seven.
fn growing(n: usize) -> Request {
    let mut request = request(n);
    request.tokens.truncate(12);
    request.max_tokens = 90;
    request
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Nothing runs, nothing waits, nobody holds a block.
fn is_idle(engine: &Engine) -> bool {
    let stats = engine.stats();
    (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
}

const FAMILIES: [&str; 7] = [
    "gguf_llama_rope3_bf16",
    "gemma3_six",
    "qwen3_bias",
    "packed_q4_k",
    "packed_mixed_k",
    "qwen3_5_plain",
    "gguf_lfm2_plain",
];

#[test]
fn thirty_two_at_once_each_get_their_lone_answer_bit_for_bit() {
    for name in FAMILIES {
        let alone = alone(name, (0..32).map(request));
        let running = start(name, Setup::default());
        for round in ["cold", "with everything in the cache"] {
            for (n, answer) in together(&running.engine, (0..32).map(request))
                .into_iter()
                .enumerate()
            {
                assert_eq!(answer, alone[n], "{name}, request {n}, {round}");
            }
        }
        wait_until("blocks are in use at idle", || is_idle(&running.engine));
    }
}

#[test]
fn preemption_small_steps_and_few_places_change_nothing() {
    for name in FAMILIES {
        let alone = alone(name, (0..12).map(growing));
        let tight = Setup {
            num_blocks: CONTEXT / 16 + 4,
            num_slots: 6,
            step_tokens: 24,
            ..Setup::default()
        };
        let running = start(name, tight);
        for (n, answer) in together(&running.engine, (0..12).map(growing))
            .into_iter()
            .enumerate()
        {
            assert_eq!(answer, alone[n], "{name}, request {n}, tight");
        }
        assert!(running.engine.stats().preemptions > 0, "{name}");
        wait_until("blocks are in use at idle", || is_idle(&running.engine));
        let narrow = Setup {
            max_num_seqs: 3,
            step_tokens: 7,
            ..Setup::default()
        };
        let running = start(name, narrow);
        for (n, answer) in together(&running.engine, (0..12).map(growing))
            .into_iter()
            .enumerate()
        {
            assert_eq!(answer, alone[n], "{name}, request {n}, narrow");
        }
    }
}

#[test]
fn a_second_turn_is_served_from_the_cache_with_the_same_bits() {
    for name in ["packed_q4_k", "qwen3_5_plain", "lfm2_bias"] {
        second_turn(name);
    }
}

fn second_turn(name: &str) {
    let first = request(2);
    let running = start(name, Setup::default());
    let (answer, usage) = ask(&running.engine, first.clone());
    assert_eq!(usage.cached_tokens, 0);
    let mut second = request(5);
    second.tokens = first.tokens.clone();
    second.tokens.extend(answer.tokens.iter().map(|t| t.0));
    second.tokens.extend([5, 6, 7]);
    let (warm, usage) = ask(&running.engine, second.clone());
    // All but the last token of the first turn was computed, in whole blocks.
    let computed = first.tokens.len() + answer.tokens.len() - 1;
    assert_eq!(usage.cached_tokens, computed / 16 * 16);
    let (cold, usage) = ask(&start(name, Setup::default()).engine, second);
    assert_eq!((usage.cached_tokens, cold), (0, warm));
}

#[test]
fn choices_of_one_prompt_share_its_computation_and_are_what_they_are_alone() {
    for name in ["gguf_llama_rope3_bf16", "gguf_qwen3_5_plain"] {
        choices(name);
    }
}

fn choices(name: &str) {
    let of_choice = |choice| {
        let mut request = request(1);
        request.tokens = (0..100).map(|i| i % 70 + 4).collect();
        request.sampling.choice = choice;
        request
    };
    let running = start(name, Setup::default());
    let all = running
        .engine
        .submit_all((0..4).map(of_choice).collect())
        .unwrap();
    let all: Vec<_> = all.into_iter().map(|e| collect(e).unwrap()).collect();
    let cached: Vec<usize> = all.iter().map(|(_, usage)| usage.cached_tokens).collect();
    assert_eq!(cached, [0, 96, 96, 96]);
    for (choice, (answer, _)) in all.iter().enumerate() {
        let fresh = start(name, Setup::default());
        let (alone, _) = ask(&fresh.engine, of_choice(choice as u32));
        assert_eq!(*answer, alone, "choice {choice}");
    }
    assert_ne!(all[0].0, all[1].0);
}

/// A model whose steps can be made to fail, to wait, or to give NaN.
struct Faulty {
    inner: TransformerForward,
    steps: Arc<AtomicUsize>,
}

/// In a prompt: the step that computes it panics, fails, or its logits are NaN.
const PANIC: u32 = 100;
const FAIL: u32 = 101;
const NAN: u32 = 102;
/// In a prompt: a step takes 30 ms.
const SLOW: u32 = 103;

impl Forward for Faulty {
    fn forward(&mut self, ctx: &Context, batch: &Batch) -> Result<Tensor> {
        self.steps.fetch_add(1, Ordering::SeqCst);
        let has = |token| batch.sequences.iter().any(|s| s.tokens.contains(&token));
        assert!(!has(PANIC), "injected");
        if has(FAIL) {
            return Err(Error::internal("injected failure"));
        }
        if has(SLOW) {
            thread::sleep(Duration::from_millis(30));
        }
        let mut logits = self.inner.forward(ctx, batch)?;
        let cols = logits.cols();
        let asked = batch.sequences.iter().filter(|s| s.num_logits > 0);
        for (row, sequence) in asked.enumerate() {
            if sequence.tokens.contains(&NAN) {
                logits.as_mut_slice()[row * cols + 5] = f32::NAN;
            }
        }
        Ok(logits)
    }
}

fn faulty(setup: Setup) -> (Running, Arc<AtomicUsize>) {
    let steps = Arc::<AtomicUsize>::default();
    let shared = Arc::clone(&steps);
    let running = start_with("qwen3_bias", setup, |inner| {
        Box::new(Faulty {
            inner,
            steps: shared,
        })
    });
    (running, steps)
}

fn with_token(token: u32) -> Request {
    let mut request = request(4);
    request.tokens = vec![5, token, 9];
    request
}

#[test]
fn a_panic_or_an_error_in_a_step_fails_its_requests_and_the_next_one_is_served() {
    let expected = alone("qwen3_bias", (0..3).map(request));
    for (token, words) in [(PANIC, "injected"), (FAIL, "injected failure")] {
        let (running, _) = faulty(Setup::default());
        let engine = &running.engine;
        let error = collect(engine.submit(with_token(token)).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        assert!(error.chain().contains(words), "{}", error.chain());
        for (n, expected) in expected.iter().enumerate() {
            assert_eq!(ask(engine, request(n)).0, *expected);
        }
        wait_until("blocks are in use at idle", || is_idle(engine));
    }
}

#[test]
fn a_request_that_waits_survives_a_panic_in_the_step_of_another() {
    let expected = alone("qwen3_bias", (0..3).map(request));
    let one_place = Setup {
        max_num_seqs: 1,
        ..Setup::default()
    };
    let (running, _) = faulty(one_place);
    let engine = &running.engine;
    let doomed = engine.submit(with_token(PANIC)).unwrap();
    let waiting = engine.submit(request(2)).unwrap();
    assert!(collect(doomed).is_err());
    assert_eq!(collect(waiting).unwrap().0, expected[2]);
}

#[test]
fn nan_in_one_sequence_fails_that_one_alone() {
    let expected = alone("qwen3_bias", (0..4).map(request));
    let (running, _) = faulty(Setup::default());
    let engine = &running.engine;
    let others: Vec<Events> = (0..4).map(|n| engine.submit(request(n)).unwrap()).collect();
    let error = collect(engine.submit(with_token(NAN)).unwrap()).unwrap_err();
    assert!(error.chain().contains("NaN"), "{}", error.chain());
    for (n, events) in others.into_iter().enumerate() {
        assert_eq!(collect(events).unwrap().0, expected[n]);
    }
}

#[test]
fn a_cancelled_or_abandoned_request_is_gone_after_the_step_in_progress() {
    let chunks_of_one = Setup {
        step_tokens: 1,
        ..Setup::default()
    };
    let mut slow = request(0);
    slow.tokens = vec![SLOW; 100];
    for abandon in [false, true] {
        let (running, steps) = faulty(chunks_of_one);
        let engine = &running.engine;
        let cancel = slow.cancel.clone();
        let events = engine.submit(slow.clone()).unwrap();
        wait_until("it does not start", || steps.load(Ordering::SeqCst) >= 2);
        let before = steps.load(Ordering::SeqCst);
        if abandon {
            drop(events);
        } else {
            cancel.cancel();
            let error = collect(events).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Cancelled);
        }
        wait_until("blocks are in use at idle", || is_idle(engine));
        let after = steps.load(Ordering::SeqCst);
        assert!(after <= before + 1, "{} steps more", after - before);
        slow.cancel = Cancel::default();
    }
}

#[test]
fn a_full_queue_refuses_at_once_and_a_group_takes_one_place() {
    let one_place = Setup {
        max_num_seqs: 1,
        max_queued: 2,
        ..Setup::default()
    };
    let (running, steps) = faulty(one_place);
    let engine = &running.engine;
    let mut long = request(0);
    long.tokens = vec![SLOW; 3];
    long.max_tokens = 40;
    let first = engine.submit(long).unwrap();
    wait_until("it does not start", || steps.load(Ordering::SeqCst) >= 1);
    let group = engine
        .submit_all(vec![request(1), request(2), request(3)])
        .unwrap();
    let second = engine.submit(request(4)).unwrap();
    let refused = engine.submit(request(5)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Overloaded);
    assert!(
        refused.to_string().contains("2 requests wait, at most 2"),
        "{refused}"
    );
    drop(first);
    for events in group.into_iter().chain([second]) {
        collect(events).unwrap();
    }
    ask(engine, request(5));
}

#[test]
fn what_can_never_fit_is_refused_before_it_is_queued() {
    let running = start("qwen3_bias", Setup::default());
    let engine = &running.engine;
    let of_length = |length| Request {
        tokens: vec![5; length],
        max_tokens: 1000,
        ..request(0)
    };
    let (answer, usage) = ask(engine, of_length(CONTEXT - 1));
    assert_eq!(
        (answer.tokens.len(), answer.reason),
        (1, FinishReason::Length)
    );
    assert_eq!(usage.prompt_tokens, CONTEXT - 1);
    let error = engine.submit(of_length(CONTEXT)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ContextLength);
    assert!(
        error.to_string().contains("has 160 tokens") && error.to_string().contains("holds 160"),
        "{error}"
    );
    let mut outside = request(0);
    outside.tokens[0] = 1 << 30;
    assert_eq!(
        engine.submit(outside).unwrap_err().kind(),
        ErrorKind::Invalid
    );
}

#[test]
fn the_worker_ends_with_its_last_handle_and_finishes_what_it_began() {
    let running = start("qwen3_bias", Setup::default());
    let events = running.engine.submit(request(3)).unwrap();
    drop(running.engine);
    assert!(collect(events).is_ok());
    running.thread.join().unwrap();
}
