//! Comparison with reference implementations. The fixtures under `tests/fixtures/text` run always; what `scripts/check-text`
//! writes (real vocabularies and templates, which are not part of the source) runs with `--ignored`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::formats::MappedBytes;
use crate::formats::gguf::Metadata;
use crate::formats::gguf::header;
use crate::formats::gguf::meta::HeaderBytes;
use crate::formats::mmap::Mapping;

/// Where `scripts/check-text` puts its cases.
const CASES: &str = "OXYDLLM_TEST_TEXT_CASES";

/// The metadata alone: vocabulary files have no tensors, and other files may have any.
fn metadata(path: &Path) -> Metadata {
    let mapping = Mapping::open(path).unwrap();
    let header = header::parse(mapping.as_slice()).unwrap();
    let len = mapping.as_slice().len();
    Metadata::new(
        HeaderBytes::Mapped(MappedBytes::new(mapping, 0, len).unwrap()),
        &header,
    )
}

fn load(path: &Path) -> Tokenizer {
    let loaded = match path.extension().and_then(|extension| extension.to_str()) {
        Some("gguf") => Tokenizer::from_metadata(&metadata(path)),
        Some("json") => Tokenizer::from_json_bytes(&std::fs::read(path).unwrap()),
        _ => Tokenizer::from_folder(path),
    };
    loaded.unwrap_or_else(|error| panic!("{}: {}", path.display(), error.chain()))
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_u64().unwrap() as u32)
        .collect()
}

/// Streams `ids` and compares with decoding at once.
fn check_stream(tokenizer: &Tokenizer, ids: &[u32]) {
    let mut detokenizer = Detokenizer::new(tokenizer);
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text.push_str(&detokenizer.finish());
    assert_eq!(text, tokenizer.decode(ids));
}

/// Cases of raw text: `{text, ids, framed?, decoded?}`; prints and counts differences.
fn check_cases(name: &str, tokenizer: &Tokenizer, cases: &[Value]) -> usize {
    let mut failures = 0;
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let specials = if case["plain"] == true {
            Specials::Plain
        } else {
            Specials::Parse
        };
        let found = match case["framed"] == true {
            true => tokenizer.encode_framed(text, specials).unwrap(),
            false => tokenizer.encode(text, specials).unwrap(),
        };
        let expected = ids(&case["ids"]);
        if found != expected {
            failures += 1;
            if failures <= 5 {
                let at = found
                    .iter()
                    .zip(&expected)
                    .take_while(|(a, b)| a == b)
                    .count();
                let show = |ids: &[u32]| {
                    let tokens = ids.iter().skip(at.saturating_sub(2)).take(8);
                    tokens
                        .map(|&id| tokenizer.find_token(id).unwrap_or_default())
                        .collect::<Vec<_>>()
                };
                println!(
                    "{name}: {text:?}\n  found    {:?}\n  expected {:?}",
                    show(&found),
                    show(&expected)
                );
            }
        }
        check_stream(tokenizer, &found);
        if let Some(decoded) = case["decoded"].as_str() {
            if tokenizer.decode_from_start(&expected, true) != decoded {
                failures += 1;
                println!(
                    "{name}: decoded {:?} not {decoded:?}",
                    tokenizer.decode_from_start(&expected, true)
                );
            }
        }
    }
    println!("{name}: {} cases, {failures} differ", cases.len());
    failures
}

/// `expected.json` of a reference checkpoint: `tokenizer_cases` and `chat_cases`.
fn check_checkpoint(folder: &Path) -> usize {
    let expected = read(&folder.join("expected.json"));
    let gguf = folder.join("model.gguf");
    let is_gguf = gguf.exists();
    let tokenizer = load(if is_gguf { &gguf } else { folder });
    let name = folder.file_name().unwrap().to_string_lossy().into_owned();
    let mut failures = 0;
    let mut check = |what: &str, found: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug| {
        if format!("{found:?}") != format!("{expected:?}") {
            failures += 1;
            println!("{name} {what}:\n  found    {found:?}\n  expected {expected:?}");
        }
    };
    for case in expected["tokenizer_cases"].as_array().into_iter().flatten() {
        let text = case["text"].as_str().unwrap();
        let framed = ids(&case["ids"]);
        check(
            "framed",
            &tokenizer.encode_framed(text, Specials::Parse).unwrap(),
            &framed,
        );
        let plain = ids(&case["ids_no_special"]);
        check(
            "ids",
            &tokenizer.encode(text, Specials::Parse).unwrap(),
            &plain,
        );
        if let Some(decoded) = case["decoded"].as_str() {
            check(
                "decoded",
                &tokenizer.decode_from_start(&framed, true),
                &decoded,
            );
        }
        if let Some(decoded) = case["decoded_skip_special"].as_str() {
            check(
                "decoded",
                &tokenizer.decode_from_start(&framed, false),
                &decoded,
            );
        }
        check_stream(&tokenizer, &framed);
    }
    let sources = match is_gguf {
        true => TemplateSources::from_metadata(&metadata(&gguf)).unwrap(),
        false => TemplateSources::from_folder(folder).unwrap(),
    };
    let template = sources.compile().unwrap();
    for case in expected["chat_cases"].as_array().into_iter().flatten() {
        let rendered = render(template.as_ref().unwrap(), &tokenizer, case).unwrap();
        check("rendered", &rendered.text, &case["text"].as_str().unwrap());
        check(
            "prompt",
            &tokenizer.encode_rendered(&rendered).unwrap(),
            &ids(&case["ids"]),
        );
    }
    failures
}

fn render(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    case: &Value,
) -> crate::error::Result<Rendered> {
    let messages = case["messages"].as_array().cloned().unwrap_or_default();
    let mut extra = case.as_object().unwrap().clone();
    extra.retain(|name, _| {
        ![
            "messages",
            "tools",
            "add_generation_prompt",
            "name",
            "text",
            "ids",
        ]
        .contains(&name.as_str())
    });
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.find_token(id));
    let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
    template.render(&RenderInput {
        messages: &messages,
        tools: case["tools"].as_array().map(Vec::as_slice),
        add_generation_prompt: case["add_generation_prompt"] != false,
        bos_token: bos.as_deref(),
        eos_token: eos.as_deref(),
        extra: Some(&extra),
        now: None,
        specials: Some(tokenizer.special_texts()),
    })
}

fn files(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(suffix));
    files.sort();
    files
}

#[test]
#[ignore = "needs the cases of scripts/check-text"]
fn reference_tokenizers_give_the_same_ids() {
    let folder = PathBuf::from(std::env::var(CASES).unwrap());
    let mut failures = 0;
    for file in files(&folder, ".tokens.json") {
        let cases = read(&file);
        let tokenizer = load(Path::new(cases["tokenizer"].as_str().unwrap()));
        failures += check_cases(
            &file.file_name().unwrap().to_string_lossy(),
            &tokenizer,
            cases["cases"].as_array().unwrap(),
        );
    }
    assert_eq!(failures, 0);
}

#[test]
#[ignore = "needs the cases of scripts/check-text"]
fn reference_checkpoints_give_the_same_ids_and_prompts() {
    let folder = PathBuf::from(std::env::var(CASES).unwrap());
    let list = read(&folder.join("checkpoints.json"));
    let folders = list.as_array().unwrap();
    let failures: usize = folders
        .iter()
        .map(|path| check_checkpoint(Path::new(path.as_str().unwrap())))
        .sum();
    println!("{} checkpoints, {failures} differences", folders.len());
    assert_eq!(failures, 0);
}

#[test]
#[ignore = "needs the cases of scripts/check-text"]
fn reference_templates_render_the_same_text() {
    let folder = PathBuf::from(std::env::var(CASES).unwrap());
    let (mut failures, mut count) = (0, 0);
    for file in files(&folder, ".template.json") {
        let (failed, total) = check_template(&file);
        failures += failed;
        count += total;
    }
    println!("{count} renders, {failures} differ");
    assert_eq!(failures, 0);
}

/// Cases of `{template, now, cases: [{messages, tools, extra, text | error}]}`; counts differences and cases.
fn check_template(file: &Path) -> (usize, usize) {
    let cases = read(file);
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let list = cases["cases"].as_array().unwrap();
    let template = match ChatTemplate::new(cases["template"].as_str().unwrap()) {
        Ok(template) => template,
        Err(error) => {
            println!("{name}: {}", error.chain());
            return (list.len(), list.len());
        }
    };
    let mut failures = 0;
    for case in list {
        let messages = case["messages"].as_array().cloned().unwrap_or_default();
        let input = RenderInput {
            messages: &messages,
            tools: case["tools"].as_array().map(Vec::as_slice),
            add_generation_prompt: case["add_generation_prompt"] != false,
            bos_token: case["bos_token"].as_str(),
            eos_token: case["eos_token"].as_str(),
            extra: case["extra"].as_object(),
            now: Some(
                std::time::UNIX_EPOCH
                    + std::time::Duration::from_secs(cases["now"].as_u64().unwrap_or(0)),
            ),
            specials: None,
        };
        let found = template
            .render_as_given(&input)
            .map(|rendered| rendered.text);
        let same = match (&found, case["text"].as_str()) {
            (Ok(found), Some(expected)) => found == expected,
            (Err(_), None) => true,
            // What Python cannot render for its own reasons (a list method on `None`) may render here.
            (Ok(_), None) => !case["error"]
                .as_str()
                .is_some_and(|error| error.starts_with("TemplateError")),
            _ => false,
        };
        if !same {
            failures += 1;
            let found = found.unwrap_or_else(|error| format!("ERROR {}", error.chain()));
            let expected = case["text"].as_str().unwrap_or("an error").to_string();
            let at = found
                .bytes()
                .zip(expected.bytes())
                .take_while(|(a, b)| a == b)
                .count();
            let show = |text: &str| {
                String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(40)..])
                    .chars()
                    .take(160)
                    .collect::<String>()
            };
            println!(
                "{name} [{}]: at byte {at}\n  found    {:?}\n  expected {:?} {}",
                case["name"],
                show(&found),
                show(&expected),
                case["error"]
            );
        }
    }
    (failures, list.len())
}

#[test]
fn fixtures_give_the_recorded_ids_and_prompts() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/text");
    let mut failures = 0;
    let tokenizers = files(&root, ".tokens.json");
    let templates = files(&root, ".template.json");
    assert!(!tokenizers.is_empty() && !templates.is_empty());
    for file in tokenizers {
        let cases = read(&file);
        let tokenizer = load(&root.join(cases["tokenizer"].as_str().unwrap()));
        failures += check_cases(
            &file.to_string_lossy(),
            &tokenizer,
            cases["cases"].as_array().unwrap(),
        );
    }
    failures += templates
        .iter()
        .map(|file| check_template(file).0)
        .sum::<usize>();
    assert_eq!(failures, 0);
}
