//! An engine without a model: it answers with tokens that a test wrote down. Token ids are bytes.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use oxydllm::engine::{
    Engine, EngineInfo, Event, FinishReason, Request, Submission, TokenLogprobs, Usage,
};
use oxydllm::error::Error;
use oxydllm::host::Model;
use oxydllm::text::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};

/// A token, its log-probability, and those of the best tokens.
pub type Scored = (u32, f32, Vec<(u32, f32)>);

/// What the engine does next.
#[derive(Debug)]
pub enum Step {
    /// Gives these tokens, one event each.
    Tokens(Vec<u32>),
    /// Gives these tokens with their log-probability and those of the best, one event each.
    Scored(Vec<Scored>),
    /// Says that this many prompt tokens were in the prefix cache.
    Started(usize),
    /// Computes for that long, deaf to everything.
    Work(Duration),
    /// Gives a token again and again until nobody wants more.
    Forever(u32),
    /// Ends regularly.
    Done(FinishReason),
    /// Ends by failure.
    Fail(Error),
    /// Dies.
    Vanish,
}

/// The tokens of a text.
pub fn bytes(text: &str) -> Step {
    Step::Tokens(text.bytes().map(u32::from).collect())
}

/// How a request ended for the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All steps were done.
    Complete,
    /// The request was cancelled.
    Cancelled,
    /// The receiver was dropped.
    Abandoned,
}

/// A request that the engine has seen.
#[derive(Debug, Clone)]
pub struct Seen {
    pub request: Request,
    pub end: End,
}

/// All requests so far.
pub type Log = Arc<Mutex<Vec<Seen>>>;

/// Starts an engine that answers each request by the steps that `script` gives for it.
pub fn engine(
    max_context: usize,
    script: impl FnMut(&Request) -> Vec<Step> + Send + 'static,
) -> (Engine, Log) {
    let log = Log::default();
    let (engine, _) = engine_with_queue(max_context, 8, Arc::clone(&log), script);
    (engine, log)
}

/// The same with a queue of `max_queued`, a log that may be shared, and the worker's thread.
pub fn engine_with_queue(
    max_context: usize,
    max_queued: usize,
    seen: Log,
    mut script: impl FnMut(&Request) -> Vec<Step> + Send + 'static,
) -> (Engine, thread::JoinHandle<()>) {
    let (queue, submissions) = mpsc::channel::<Submission>();
    let worker = thread::spawn(move || {
        for mut submission in submissions {
            submission.slot = None;
            let steps = script(&submission.request);
            let end = play(&submission, steps);
            let request = submission.request.clone();
            drop(submission);
            seen.lock().unwrap().push(Seen { request, end });
        }
    });
    let info = EngineInfo {
        vocab_size: 300,
        max_context,
        weight_bytes: 3 << 20,
        kv_bytes: 1 << 20,
        num_blocks: 64,
        max_num_seqs: 1,
        max_queued,
    };
    (Engine::from_queue(queue, info, Arc::default()), worker)
}

fn play(submission: &Submission, steps: Vec<Step>) -> End {
    let request = &submission.request;
    let (mut sent, mut cached) = (0, 0);
    let mut send = |event| {
        if request.cancel.is_cancelled() {
            return Err(End::Cancelled);
        }
        sent += usize::from(matches!(event, Event::Token { .. }));
        submission.events.send(event).map_err(|_| End::Abandoned)?;
        Ok(sent)
    };
    let run = || {
        for step in steps {
            match step {
                Step::Tokens(ids) => {
                    for id in ids {
                        send(Event::Token { id, logprobs: None })?;
                    }
                }
                Step::Scored(tokens) => {
                    for (id, chosen, top) in tokens {
                        let logprobs = Some(TokenLogprobs { chosen, top });
                        send(Event::Token { id, logprobs })?;
                    }
                }
                Step::Started(cached_tokens) => {
                    cached = cached_tokens;
                    let queue_s = 0.001;
                    send(Event::Started {
                        cached_tokens,
                        queue_s,
                    })?;
                }
                Step::Work(time) => thread::sleep(time),
                Step::Forever(id) => {
                    // Ten seconds are for ever enough, and a test that fails comes to an end.
                    for _ in 0..1000 {
                        send(Event::Token { id, logprobs: None })?;
                        thread::sleep(Duration::from_millis(10));
                    }
                }
                Step::Done(reason) => {
                    let usage = Usage {
                        prompt_tokens: request.tokens.len(),
                        cached_tokens: cached,
                        completion_tokens: 7,
                        prefill_s: 0.5,
                        decode_s: 3.0,
                        ..Usage::default()
                    };
                    send(Event::Done { reason, usage })?;
                }
                Step::Fail(error) => {
                    send(Event::Failed(error))?;
                }
                Step::Vanish => return Ok(()),
            }
        }
        Ok(())
    };
    run().err().unwrap_or(End::Complete)
}

/// A model around `engine` whose tokenizer maps bytes to ids; its prompts are `<role>content` lines.
pub fn model(engine: Engine) -> Model {
    model_with(
        engine,
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ '\\n' }}{% endfor %}<assistant>",
    )
}

/// The same with another template.
pub fn model_with(engine: Engine, template: &str) -> Model {
    let template = ChatTemplate::new(template).unwrap();
    Model::new(engine, tokenizer(), Some(template), [0])
}

/// The same without a chat template.
pub fn base_model(engine: Engine) -> Model {
    Model::new(engine, tokenizer(), None, [0])
}

/// The beginning-of-text token, which the tokenizer puts before plain texts.
pub const BOS: u32 = 256;

/// A byte-level tokenizer without merges, in which every byte is its own id.
fn tokenizer() -> Arc<Tokenizer> {
    let vocab: serde_json::Map<String, Value> = (0..=255_u8)
        .map(|byte| (spelling(byte).to_string(), Value::from(byte)))
        .collect();
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false,
    });
    let bos = json!({
        "id": BOS, "content": "<bos>", "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    });
    let post_processor = json!({
        "type": "TemplateProcessing",
        "single": [
            { "SpecialToken": { "id": "<bos>", "type_id": 0 } },
            { "Sequence": { "id": "A", "type_id": 0 } },
        ],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
        "special_tokens": { "<bos>": { "id": "<bos>", "ids": [BOS], "tokens": ["<bos>"] } },
    });
    let json = json!({
        "version": "1.0",
        "added_tokens": [bos],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": post_processor,
        "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    Arc::new(Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap())
}

/// How GPT-2's alphabet writes a byte: itself when it is printable, else the next free character from U+0100 on.
fn spelling(byte: u8) -> char {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(&byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !printable(byte)).count();
    char::from_u32(0x100 + u32::try_from(before).unwrap()).unwrap()
}
