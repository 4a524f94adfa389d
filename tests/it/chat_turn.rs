//! From tokens to text deltas: characters, stop texts, limits, failures, cancelling.

use std::time::{Duration, Instant};

use oxydllm::chat::{self, Answer, ChatRequest, Delta, Generation, Message, complete, turn};
use oxydllm::engine::{Cancel, FinishReason, SamplingParams};
use oxydllm::error::{Error, ErrorKind};
use oxydllm::host::Model;

use crate::support::scripted::{self, BOS, End, Log, Step, bytes};

const FAMILY: &str = "👩‍👩‍👧‍👦";

fn scripted(steps: impl Fn() -> Vec<Step> + Send + 'static) -> (Model, Log) {
    let (engine, log) = scripted::engine(100, move |_| steps());
    (scripted::model(engine), log)
}

fn says(text: &'static str) -> Model {
    scripted(|| vec![bytes(text), Step::Done(FinishReason::Stop)]).0
}

fn request(stop: &[&str]) -> ChatRequest {
    ChatRequest {
        messages: vec![Message::user("hi")],
        generation: Generation {
            stop: stop.iter().map(ToString::to_string).collect(),
            ..Generation::default()
        },
        ..ChatRequest::default()
    }
}

fn content(text: &str) -> Delta {
    Delta::Content {
        text: text.to_owned(),
        tokens: Vec::new(),
    }
}

/// The pieces of text, the text, and how it ended.
fn pieces(model: &Model, request: &ChatRequest) -> (Vec<String>, String, FinishReason) {
    let mut pieces = Vec::new();
    for delta in turn(model, request).unwrap() {
        assert!(pieces.len() < 1000, "the answer does not end");
        match delta.unwrap() {
            Delta::Content { text, .. } => pieces.push(text),
            Delta::Finish { reason, .. } => {
                let text = pieces.concat();
                return (pieces, text, reason);
            }
        }
    }
    panic!("the answer has no end")
}

fn ended(log: &Log) -> End {
    let begin = Instant::now();
    loop {
        if let Some(seen) = log.lock().unwrap().last() {
            return seen.end;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(5),
            "the engine still works"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn characters_are_never_split_between_deltas() {
    let model = says(FAMILY);
    let (pieces, text, _) = pieces(&model, &request(&[]));
    assert_eq!(text, FAMILY);
    assert_eq!(pieces.len(), FAMILY.chars().count());
    assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')));
}

#[test]
fn an_invalid_byte_is_one_replacement_character_and_the_stream_goes_on() {
    let script = || {
        vec![
            Step::Tokens(vec![97, 0xff, 98]),
            Step::Done(FinishReason::Stop),
        ]
    };
    let (_, text, _) = pieces(&scripted(script).0, &request(&[]));
    assert_eq!(text, "a\u{fffd}b");
}

#[test]
fn a_character_cut_by_the_limit_is_delivered_once_at_the_end() {
    let script = || {
        vec![
            Step::Tokens(vec![97, 0xf0, 0x9f]),
            Step::Done(FinishReason::Length),
        ]
    };
    let (_, text, reason) = pieces(&scripted(script).0, &request(&[]));
    assert_eq!((text.as_str(), reason), ("a\u{fffd}", FinishReason::Length));
}

#[test]
fn streamed_and_whole_answers_are_the_same_text_with_its_white_space() {
    let model = says("  \n an answer \n\n");
    let request = request(&["</end>"]);
    let (_, streamed, reason) = pieces(&model, &request);
    let whole = Answer::collect(turn(&model, &request).unwrap()).unwrap();
    assert_eq!(whole.content, streamed);
    assert_eq!(whole.content, "  \n an answer \n\n");
    assert_eq!(whole.reason, reason);
}

#[test]
fn a_stop_text_over_several_tokens_never_shows() {
    let (model, log) = scripted(|| vec![bytes("yes</end>x"), Step::Forever(120)]);
    let (pieces, text, reason) = pieces(&model, &request(&["</end>"]));
    assert_eq!((text.as_str(), reason), ("yes", FinishReason::Stop));
    assert!(pieces.iter().all(|piece| !piece.contains('<')));
    assert_ne!(ended(&log), End::Complete, "the engine must be told");
}

#[test]
fn an_unfinished_stop_text_at_the_end_is_text() {
    let (_, text, reason) = pieces(&says("yes</en"), &request(&["</end>"]));
    assert_eq!((text.as_str(), reason), ("yes</en", FinishReason::Stop));
}

#[test]
fn many_overlapping_stop_texts_and_characters_of_several_bytes() {
    let stops: Vec<String> = (0..14).map(|n| format!("[stop{n}]")).collect();
    let mut stops: Vec<&str> = stops.iter().map(String::as_str).collect();
    stops.extend(["ab", "abc", "", "né"]);
    assert_eq!(pieces(&says("xxabcd"), &request(&stops)).1, "xx");
    assert_eq!(pieces(&says("x[stop13]y"), &request(&stops)).1, "x");
    assert_eq!(pieces(&says("un nénuphar"), &request(&stops)).1, "un ");
    assert_eq!(pieces(&says("un né"), &request(&["é", "[stop"])).1, "un n");
}

#[test]
fn a_stop_text_is_not_matched_across_the_end_of_the_prompt() {
    let model = says("nd> and on");
    let mut request = request(&["</end>"]);
    request.messages = vec![Message::user("x"), Message::assistant("</e")];
    assert_eq!(pieces(&model, &request).1, "nd> and on");
}

#[test]
fn usage_is_right_after_a_stop_text() {
    let (model, _) = scripted(|| vec![bytes("yes!!"), Step::Forever(120)]);
    let answer = Answer::collect(turn(&model, &request(&["!!"])).unwrap()).unwrap();
    assert_eq!(answer.usage.completion_tokens, 5);
    let prompt = chat::prompt(&model, &request(&[]).messages, &request(&[]).variables).unwrap();
    assert_eq!(answer.usage.prompt_tokens, prompt.len());
}

#[test]
fn cancelling_is_noticed_during_a_long_step_and_gives_what_was_held_back() {
    let (model, _) = scripted(|| vec![bytes("yes</e"), Step::Work(Duration::from_secs(3))]);
    let request = request(&["</end>"]);
    let mut deltas = turn(&model, &request).unwrap();
    for expected in ["y", "e", "s"] {
        assert_eq!(deltas.next().unwrap().unwrap(), content(expected));
    }
    let begin = Instant::now();
    let cancel = request.generation.cancel.clone();
    let canceller = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        cancel.cancel();
    });
    assert_eq!(deltas.next().unwrap().unwrap(), content("</e"));
    assert_eq!(
        deltas.next().unwrap().unwrap_err().kind(),
        ErrorKind::Cancelled
    );
    assert!(deltas.next().is_none());
    assert!(begin.elapsed() < Duration::from_secs(1));
    assert_eq!(deltas.usage().completion_tokens, 6);
    canceller.join().unwrap();
}

#[test]
fn dropping_the_deltas_ends_the_work() {
    let (model, log) = scripted(|| vec![Step::Forever(97)]);
    let mut deltas = turn(&model, &request(&[])).unwrap();
    assert!(deltas.next().unwrap().is_ok());
    drop(deltas);
    assert_eq!(ended(&log), End::Abandoned);
}

#[test]
fn a_failure_comes_after_the_text_before_it() {
    let fail = || {
        vec![
            bytes("half<"),
            Step::Fail(Error::internal("NaN in the logits")),
        ]
    };
    let (model, _) = scripted(fail);
    let mut deltas = turn(&model, &request(&["<end>"])).unwrap();
    let mut text = String::new();
    let error = loop {
        match deltas.next().unwrap() {
            Ok(Delta::Content { text: piece, .. }) => text.push_str(&piece),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(
        (text.as_str(), error.kind()),
        ("half<", ErrorKind::Internal)
    );
    assert!(deltas.next().is_none());
}

#[test]
fn a_worker_that_dies_is_an_error_and_not_an_end() {
    let (model, _) = scripted(|| vec![bytes("ab"), Step::Vanish]);
    let error = Answer::collect(turn(&model, &request(&[])).unwrap()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
}

#[test]
fn the_answer_is_limited_to_the_room_left() {
    let (model, log) = scripted(|| vec![Step::Done(FinishReason::Stop)]);
    let start = |prompt: usize, max_tokens| {
        let generation = Generation {
            max_tokens,
            ..Generation::default()
        };
        chat::start(&model, vec![65; prompt], &generation).map(|deltas| deltas.count())
    };
    for (prompt, asked, granted) in [(60, None, 40), (60, Some(10), 10), (99, Some(50), 1)] {
        start(prompt, asked).unwrap();
        ended(&log);
        assert_eq!(
            log.lock().unwrap().pop().unwrap().request.max_tokens,
            granted
        );
    }
    assert_eq!(
        start(100, None).unwrap_err().kind(),
        ErrorKind::ContextLength
    );
    assert_eq!(start(60, Some(0)).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn what_was_asked_for_reaches_the_engine() {
    let (model, log) = scripted(|| vec![Step::Done(FinishReason::Stop)]);
    let mut request = request(&[]);
    request.generation.sampling = SamplingParams {
        seed: 7,
        top_k: 3,
        ..SamplingParams::default()
    };
    request.generation.cancel = Cancel::default();
    Answer::collect(turn(&model, &request).unwrap()).unwrap();
    ended(&log);
    let seen = log.lock().unwrap().pop().unwrap().request;
    assert_eq!(seen.sampling, request.generation.sampling);
    assert_eq!(&*seen.stop_tokens, &[0]);
    request.generation.sampling.top_p = 3.0;
    assert_eq!(
        turn(&model, &request).err().unwrap().kind(),
        ErrorKind::Invalid
    );
}

#[test]
fn without_a_template_a_model_completes_but_does_not_chat() {
    let (engine, _) = scripted::engine(100, |_| {
        vec![bytes(" time"), Step::Done(FinishReason::Stop)]
    });
    let model = scripted::base_model(engine);
    assert_eq!(
        turn(&model, &request(&[])).err().unwrap().kind(),
        ErrorKind::Unsupported
    );
    let deltas = complete(&model, "Once upon a", &Generation::default()).unwrap();
    assert_eq!(Answer::collect(deltas).unwrap().content, " time");
}

#[test]
fn the_beginning_token_is_there_once_or_as_the_template_wants() {
    let prompt = |template: &str, content: &str| {
        let (engine, _) = scripted::engine(100, |_| Vec::new());
        let messages = [Message::user(content)];
        let model = scripted::model_with(engine, template);
        chat::prompt(&model, &messages, &serde_json::Map::new()).unwrap()
    };
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let with = "<bos>{{ messages[0].content }}";
    assert_eq!(prompt(with, "hi"), [vec![BOS], ids("hi")].concat());
    assert_eq!(prompt("{{ messages[0].content }}", "hi"), ids("hi"));
    // What spells a control token in a message is text.
    assert_eq!(prompt(with, "a<bos>"), [vec![BOS], ids("a<bos>")].concat());
    let model = scripted::base_model(scripted::engine(100, |_| Vec::new()).0);
    assert_eq!(
        model.plain_prompt("hi").unwrap(),
        [vec![BOS], ids("hi")].concat()
    );
}

#[test]
fn a_template_without_system_role_still_gets_the_system_text() {
    let (engine, _) = scripted::engine(100, |_| Vec::new());
    let template = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}\
                    {% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    let model = scripted::model_with(engine, template);
    let messages = [Message::system("Be brief."), Message::user("hi")];
    let prompt = chat::prompt(&model, &messages, &serde_json::Map::new()).unwrap();
    let text: String = prompt
        .into_iter()
        .map(|id| char::from(u8::try_from(id).unwrap()))
        .collect();
    assert_eq!(text, "[user]Be brief.\n\nhi");
}
