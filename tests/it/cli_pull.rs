//! `pull` and the download client against servers with bad habits. No test leaves this machine.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oxydllm::error::Error;
use oxydllm::net::{Client, Download, Observer, Patience, Target};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::cli::tiny_gguf;
use crate::support::http::{Asked, Reply, Server};
use crate::support::program::Home;

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Bytes without a pattern, so that a wrong offset shows.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[derive(Default)]
struct Watch {
    positions: Vec<u64>,
    retries: usize,
}

impl Observer for Watch {
    fn have(&mut self, bytes: u64) {
        self.positions.push(bytes);
    }

    fn retry(&mut self, _why: &Error) {
        self.retries += 1;
    }
}

/// Downloads `/file` of `server` with little patience.
fn download(server: &Server, dir: &Path, content: &[u8]) -> (Result<Vec<u8>, Error>, Watch) {
    let patience = Patience {
        stall: Duration::from_millis(300),
        attempts: 3,
        pause: Duration::ZERO,
    };
    let url = format!("{}/file", server.url);
    let (path, part, sha256) = (dir.join("file"), dir.join("file.part"), sha256(content));
    let target = Target {
        url: &url,
        name: "file",
        token: None,
    };
    let download = Download {
        target,
        path: &path,
        part: &part,
        size: Some(content.len() as u64),
        sha256: Some(&sha256),
    };
    let mut watch = Watch::default();
    let outcome = Client::new(patience).download(&download, &mut watch);
    (outcome.map(|()| fs::read(&path).unwrap()), watch)
}

type Habit = Box<dyn Fn(&Asked) -> Reply + Send + Sync>;

/// Replies by a list, the last one for ever.
fn in_turn(replies: Vec<Habit>) -> Server {
    let count = AtomicUsize::new(0);
    Server::start(move |asked| {
        replies[count.fetch_add(1, Ordering::SeqCst).min(replies.len() - 1)](asked)
    })
}

#[test]
fn a_connection_that_breaks_often_is_resumed_without_reading_anything_twice() {
    let dir = tempfile::tempdir().unwrap();
    let content = noise(1_000_000);
    let served = content.clone();
    let server = Server::start(move |asked| Reply::ranged(asked, &served).cut_after(100_000));
    let (outcome, watch) = download(&server, dir.path(), &content);
    assert_eq!(outcome.unwrap(), content);
    assert!(
        watch.retries >= 9,
        "more often than the attempts without progress: {}",
        watch.retries
    );
    assert!(watch.positions.is_sorted(), "never went back");
    assert!(!dir.path().join("file.part").exists());
}

#[test]
fn a_stalled_connection_is_given_up_and_reopened() {
    let dir = tempfile::tempdir().unwrap();
    let content = noise(200_000);
    let (first, rest) = (content.clone(), content.clone());
    let server = in_turn(vec![
        Box::new(move |asked| {
            Reply::ranged(asked, &first)
                .cut_after(50_000)
                .then_silence(Duration::from_secs(20))
        }),
        Box::new(move |asked| Reply::ranged(asked, &rest)),
    ]);
    let begun = Instant::now();
    assert_eq!(download(&server, dir.path(), &content).0.unwrap(), content);
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(server.asked()[1].range(), Some((50_000, None)));
}

#[test]
fn a_part_on_disk_is_continued_and_one_that_is_complete_is_not_asked_for() {
    let content = noise(1000);
    for (have, requests) in [(400, 1), (1000, 0)] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file.part"), &content[..have]).unwrap();
        let served = content.clone();
        let server = Server::start(move |asked| Reply::ranged(asked, &served));
        assert_eq!(download(&server, dir.path(), &content).0.unwrap(), content);
        assert_eq!(server.asked().len(), requests);
    }
}

#[test]
fn servers_that_ignore_misread_or_refuse_ranges_still_deliver_the_right_file() {
    let content = noise(1000);
    let (a, b, c) = (content.clone(), content.clone(), content.clone());
    let habits: [(&str, Server); 3] = [
        (
            "ignores ranges",
            Server::start(move |_| Reply::new(200, a.clone())),
        ),
        (
            "answers another range",
            Server::start(move |asked| match asked.range() {
                Some(_) => Reply::new(206, &b[..10]).header("Content-Range", "bytes 0-9/1000"),
                None => Reply::new(200, b.clone()),
            }),
        ),
        (
            "refuses ranges",
            Server::start(move |asked| {
                if asked.range().is_some() {
                    Reply::new(416, "")
                } else {
                    Reply::new(200, c.clone())
                }
            }),
        ),
    ];
    for (habit, server) in habits {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file.part"), &content[..400]).unwrap();
        assert_eq!(
            download(&server, dir.path(), &content).0.unwrap(),
            content,
            "{habit}"
        );
    }
}

#[test]
fn a_longer_or_wrong_part_is_replaced() {
    let content = noise(1000);
    for part in [noise(1001), vec![0; 1000], vec![0; 500]] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file.part"), &part).unwrap();
        let served = content.clone();
        let server = Server::start(move |asked| Reply::ranged(asked, &served));
        assert_eq!(
            download(&server, dir.path(), &content).0.unwrap(),
            content,
            "{} bytes",
            part.len()
        );
    }
}

#[test]
fn content_with_a_wrong_checksum_or_length_never_gets_its_final_name() {
    let content = noise(1000);
    for wrong in [vec![0; 1000], noise(1100), noise(900)] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(move |asked| Reply::ranged(asked, &wrong));
        let error = download(&server, dir.path(), &content).0.unwrap_err();
        assert!(!dir.path().join("file").exists(), "{error}");
    }
}

#[test]
fn busy_servers_are_asked_again_and_missing_files_are_not() {
    let content = noise(100);
    let served = content.clone();
    let dir = tempfile::tempdir().unwrap();
    let server = in_turn(vec![
        Box::new(|_| Reply::new(503, "")),
        Box::new(|_| Reply::new(429, "")),
        Box::new(move |asked| Reply::ranged(asked, &served)),
    ]);
    assert_eq!(download(&server, dir.path(), &content).0.unwrap(), content);
    let server = Server::start(|_| Reply::new(404, ""));
    assert!(download(&server, dir.path(), &content).0.is_err());
    assert_eq!(server.asked().len(), 1);
}

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one repository, `user/tiny-GGUF`.
fn hub(files: &[(&str, Vec<u8>)]) -> Server {
    let files: Vec<(String, Vec<u8>)> = files
        .iter()
        .map(|(path, content)| ((*path).to_owned(), content.clone()))
        .collect();
    Server::start(move |asked| hub_reply(asked, &files))
}

fn hub_reply(asked: &Asked, files: &[(String, Vec<u8>)]) -> Reply {
    let path = asked.path.as_str();
    if path.starts_with("/api/models/user/tiny-GGUF") {
        let siblings: Vec<_> = files
            .iter()
            .map(|(path, content)| json!({"rfilename": path, "size": content.len(), "lfs": {"size": content.len(), "sha256": sha256(content)}}))
            .collect();
        return Reply::new(
            200,
            json!({"sha": COMMIT, "siblings": siblings}).to_string(),
        );
    }
    let file = path.strip_prefix(&format!("/user/tiny-GGUF/resolve/{COMMIT}/"));
    match file.and_then(|file| files.iter().find(|(path, _)| path == file)) {
        Some((_, content)) => Reply::ranged(asked, content),
        None => Reply::new(404, ""),
    }
}

fn home_at(server: &Server) -> Home {
    Home::new().with_env("HF_ENDPOINT", &server.url)
}

#[test]
fn a_repository_is_pulled_listed_and_not_pulled_twice() {
    let server = hub(&[
        ("README.md", b"hello".to_vec()),
        ("config.json", b"{}".to_vec()),
        ("tiny-q4_k_m.gguf", tiny_gguf()),
        ("tiny-q8_0.gguf", tiny_gguf()),
        ("mmproj-tiny-f16.gguf", tiny_gguf()),
    ]);
    let home = home_at(&server);
    let ran = home.run(&["pull", "user/tiny-GGUF"]).ok();
    assert!(
        ran.stderr.contains("Q4_K_M (no terminal to ask on"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("0 tensors"),
        "the header was checked: {}",
        ran.stderr
    );
    assert!(
        !ran.stderr.contains(['\r', '\x1b']),
        "no redrawing without a terminal: {:?}",
        ran.stderr
    );
    let dir = home.models().join("user/tiny-GGUF");
    let mut files: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            ".oxydllm_pull.json",
            "config.json",
            "gguf.index",
            "tiny-q4_k_m.gguf"
        ]
    );
    assert!(
        fs::read_to_string(dir.join(".oxydllm_pull.json"))
            .unwrap()
            .contains(COMMIT)
    );
    assert!(
        home.run(&["list"])
            .ok()
            .stdout
            .contains("  user/tiny-Q4_K_M llama (GGUF)")
    );

    let ran = home
        .run(&["pull", "user/tiny-GGUF", "--variant", "q4_k_m"])
        .failed();
    assert!(
        ran.stderr.contains("on disk already") && ran.stderr.contains("--force"),
        "{}",
        ran.stderr
    );
    home.run(&["pull", "user/tiny-GGUF", "--variant", "q4_k_m", "--force"])
        .ok();
    let ran = home.run(&["pull", "user/tiny-GGUF"]).ok();
    assert!(
        ran.stderr.contains("Q8_0 (no terminal"),
        "what is there is not offered: {}",
        ran.stderr
    );
    assert!(
        home.run(&["pull", "user/tiny-GGUF"])
            .failed()
            .stderr
            .contains("everything of this repository")
    );
    let ran = home
        .run(&["pull", "user/tiny-GGUF", "--variant", "Q5_0"])
        .failed();
    assert!(
        ran.stderr.contains("there are `Q4_K_M`, `Q8_0`"),
        "{}",
        ran.stderr
    );
}

#[test]
fn the_same_command_goes_on_after_a_failure() {
    let content = {
        let mut content = tiny_gguf();
        content.extend(noise(300_000));
        content
    };
    let (files, broken) = (
        vec![("tiny-Q4_0.gguf".to_owned(), content.clone())],
        AtomicUsize::new(1),
    );
    let server = Server::start(move |asked| {
        let reply = hub_reply(asked, &files);
        let is_download =
            asked.path.ends_with(".gguf") && asked.range().is_none_or(|(_, end)| end.is_none());
        match is_download && broken.load(Ordering::SeqCst) > 0 {
            // The first connection brings a part, the next ones are refused for good.
            true if broken.fetch_add(1, Ordering::SeqCst) == 1 => reply.cut_after(100_000),
            true if broken.load(Ordering::SeqCst) > 3 => {
                broken.store(0, Ordering::SeqCst);
                Reply::new(410, "")
            }
            true => Reply::new(410, ""),
            false => reply,
        }
    });
    let home = home_at(&server);
    let ran = home.run(&["pull", "user/tiny-GGUF"]).failed();
    assert!(
        ran.stderr.contains("0 of 1 files are complete") && ran.stderr.contains("hint:"),
        "{}",
        ran.stderr
    );
    assert!(home.run(&["list"]).ok().stdout.contains("(incomplete)"));
    let run = home.run(&["run", "user/tiny-Q4_0", "hi"]).failed();
    assert!(!run.stderr.is_empty());
    while home.run(&["pull", "user/tiny-GGUF"]).code != Some(0) {}
    assert_eq!(
        fs::read(home.models().join("user/tiny-GGUF/tiny-Q4_0.gguf")).unwrap(),
        content
    );
    let starts: Vec<_> = server
        .asked_for(".gguf")
        .iter()
        .filter_map(|asked| asked.range())
        .filter(|(start, _)| *start > 0)
        .collect();
    assert!(
        starts.iter().all(|&(start, _)| start == 100_000) && !starts.is_empty(),
        "{starts:?}"
    );
    assert!(!home.run(&["list"]).ok().stdout.contains("(incomplete)"));
}

#[test]
fn the_token_goes_to_the_hub_and_not_along_redirects_to_other_origins() {
    let elsewhere = Server::start(|asked| Reply::ranged(asked, &tiny_gguf()));
    let target = elsewhere.url.clone();
    let files = vec![("tiny-Q4_0.gguf".to_owned(), tiny_gguf())];
    let server = Server::start(move |asked| match asked.path.strip_prefix("/moved") {
        Some(_) => Reply::new(302, "").header("Location", format!("{target}/signed?secret=1")),
        None if asked.path.contains("/resolve/") => {
            Reply::new(307, "").header("Location", format!("/moved{}", asked.path))
        }
        None => hub_reply(asked, &files),
    });
    let home = home_at(&server).with_env("HF_TOKEN", "hf_secret");
    let ran = home.run(&["pull", "user/tiny-GGUF"]).ok();
    assert!(!ran.stderr.contains("hf_secret"), "{}", ran.stderr);
    assert!(
        server
            .asked()
            .iter()
            .all(|asked| asked.header("Authorization") == Some("Bearer hf_secret"))
    );
    assert!(!elsewhere.asked().is_empty());
    assert!(
        elsewhere
            .asked()
            .iter()
            .all(|asked| asked.header("Authorization").is_none())
    );
}

#[test]
fn refusals_of_the_hub_say_what_to_do() {
    for (status, expected) in [
        (401, "HF_TOKEN"),
        (403, "accept the licence"),
        (404, "does not exist"),
    ] {
        let server = Server::start(move |_| Reply::new(status, ""));
        let ran = home_at(&server)
            .with_env("HF_TOKEN", "hf_secret")
            .run(&["pull", "user/tiny-GGUF"])
            .failed();
        assert!(
            ran.stderr.contains(expected) && !ran.stderr.contains("hf_secret"),
            "{status}: {}",
            ran.stderr
        );
    }
}

#[test]
fn file_lists_that_leave_the_folder_are_refused_before_anything_is_written() {
    for path in [
        "../escape.json",
        "a/../../escape.json",
        "/tmp/escape.json",
        "..\\escape.json",
    ] {
        let server = hub(&[("tiny-Q4_0.gguf", tiny_gguf()), (path, b"{}".to_vec())]);
        let home = home_at(&server);
        let ran = home.run(&["pull", "user/tiny-GGUF"]).failed();
        assert!(ran.stderr.contains("is not safe"), "{path}: {}", ran.stderr);
        assert!(!home.models().exists());
    }
}

#[test]
fn files_that_this_build_cannot_read_are_refused_before_the_download() {
    let mut bad = tiny_gguf();
    bad[4] = 9;
    let server = hub(&[("tiny-Q4_0.gguf", bad)]);
    let home = home_at(&server);
    let ran = home.run(&["pull", "user/tiny-GGUF", "--force"]).failed();
    assert!(ran.stderr.contains("GGUF version 9"), "{}", ran.stderr);
    assert!(!home.models().join("user").exists());
    let server = hub(&[
        ("pytorch_model.bin", b"x".to_vec()),
        ("config.json", b"{}".to_vec()),
    ]);
    assert!(
        home_at(&server)
            .run(&["pull", "user/tiny-GGUF"])
            .failed()
            .stderr
            .contains("PyTorch")
    );
}

#[test]
fn a_changed_file_on_the_hub_replaces_the_old_part() {
    let (old, new) = (noise(500), [tiny_gguf(), noise(400)].concat());
    let server = hub(&[("tiny-Q4_0.gguf", new.clone())]);
    let home = home_at(&server);
    home.write(
        ".oxydllm/models/user/tiny-GGUF/tiny-Q4_0.gguf.part",
        &old[..200],
    );
    let known = json!({"files": {"tiny-Q4_0.gguf": {"size": new.len(), "sha256": sha256(&old)}}});
    home.write(
        ".oxydllm/models/user/tiny-GGUF/.oxydllm_pull.json",
        known.to_string().as_bytes(),
    );
    let ran = home.run(&["pull", "user/tiny-GGUF"]).ok();
    assert!(ran.stderr.contains("Continuing"), "{}", ran.stderr);
    assert_eq!(
        fs::read(home.models().join("user/tiny-GGUF/tiny-Q4_0.gguf")).unwrap(),
        new
    );
    assert!(
        server
            .asked_for(".gguf")
            .iter()
            .all(|asked| asked.range().is_none_or(|(start, _)| start == 0))
    );
}

#[test]
fn two_pulls_of_one_model_wait_for_each_other() {
    let content = [tiny_gguf(), noise(200_000)].concat();
    let files = vec![("tiny-Q4_0.gguf".to_owned(), content.clone())];
    let server = Server::start(move |asked| {
        if asked.path.ends_with(".gguf") && asked.range().is_none() {
            std::thread::sleep(Duration::from_millis(1500));
        }
        hub_reply(asked, &files)
    });
    let home = home_at(&server);
    let pull = || {
        home.command(&["pull", "user/tiny-GGUF"])
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let (one, other) = (pull(), pull());
    let list = home.run(&["list"]).ok();
    assert!(
        list.stdout.contains("No models") || list.stdout.contains("incomplete"),
        "{}",
        list.stdout
    );
    for child in [one, other] {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    assert_eq!(
        fs::read(home.models().join("user/tiny-GGUF/tiny-Q4_0.gguf")).unwrap(),
        content
    );
    let downloads = server
        .asked_for(".gguf")
        .into_iter()
        .filter(|asked| asked.range().is_none_or(|(_, end)| end.is_none()));
    assert_eq!(
        downloads.count(),
        1,
        "the second pull reused what the first one fetched"
    );
}

#[test]
fn a_model_that_this_build_does_not_run_is_refused_before_its_weights_are_fetched() {
    let config = br#"{"architectures": ["MambaForCausalLM"]}"#.to_vec();
    let server = hub(&[("config.json", config), ("model.safetensors", noise(100))]);
    let home = home_at(&server);
    let stderr = home.run(&["pull", "user/tiny-GGUF"]).failed().stderr;
    assert!(
        stderr.contains("architecture `MambaForCausalLM` is not supported")
            && stderr.contains("hint: supported are `LlamaForCausalLM`"),
        "{stderr}"
    );
    let fetched = |name: &str| home.models().join("user/tiny-GGUF").join(name).exists();
    assert!(!fetched("model.safetensors") && !fetched("config.json"));
}

#[test]
fn encoders_are_pulled_and_what_they_lack_is_told_before_the_download() {
    let config = |class: &str| {
        format!(
            r#"{{"architectures": ["{class}"], "vocab_size": 50, "hidden_size": 12, "num_attention_heads": 3,
                "num_hidden_layers": 2, "intermediate_size": 20, "max_position_embeddings": 40}}"#
        )
        .into_bytes()
    };
    let server = hub(&[
        ("config.json", config("BertModel")),
        ("model.safetensors", noise(100)),
    ]);
    let home = home_at(&server);
    let pulled = home.run(&["pull", "user/tiny-GGUF", "--name", "bert"]).ok();
    assert!(
        pulled
            .stderr
            .contains("POST /v1/embeddings for the model bert")
            && !pulled.stderr.contains("Chat with it"),
        "{pulled:#?}"
    );
    let list = home.run(&["list"]).ok().stdout;
    assert!(
        list.contains("  bert BertModel") && !list.contains("not supported"),
        "{list}"
    );
    let server = hub(&[
        ("config.json", config("BertForMaskedLM")),
        ("model.safetensors", noise(100)),
    ]);
    let stderr = home_at(&server)
        .run(&["pull", "user/tiny-GGUF"])
        .failed()
        .stderr;
    assert!(stderr.contains("guesses hidden words"), "{stderr}");
}

#[test]
fn a_local_model_is_added_with_what_it_is_for() {
    let home = Home::new();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for (model, use_of_it) in [
        ("models/llama_plain", "Chat with it: oxydllm run m"),
        (
            "encoders/bert_dense",
            "Make embeddings with it: oxydllm start, then POST /v1/embeddings for the model m",
        ),
        ("encoders/qwen3_last", "POST /v1/embeddings for the model m"),
        (
            "encoders/bert_rerank",
            "Rerank documents with it: oxydllm start, then POST /v1/rerank for the model m",
        ),
    ] {
        let path = root.join(model);
        let words = ["pull", path.to_str().unwrap(), "--name", "m", "--force"];
        let stderr = home.run(&words).ok().stderr;
        assert!(stderr.contains(use_of_it), "{model}: {stderr}");
        assert_eq!(stderr.matches(" with it: ").count(), 1, "{model}: {stderr}");
    }
}

#[test]
fn a_safetensors_set_is_pulled_with_its_modules() {
    let weights = noise(100);
    let server = hub(&[
        (
            "config.json",
            br#"{"architectures": ["Qwen3ForCausalLM"]}"#.to_vec(),
        ),
        ("model.safetensors", weights.clone()),
        ("consolidated.safetensors", weights.clone()),
        ("1_Pooling/config.json", b"{}".to_vec()),
        ("onnx/model.onnx", b"x".to_vec()),
    ]);
    let home = home_at(&server);
    home.run(&["pull", "user/tiny-GGUF", "--name", "bert"]).ok();
    let dir = home.models().join("bert");
    assert_eq!(fs::read(dir.join("model.safetensors")).unwrap(), weights);
    assert!(
        dir.join("1_Pooling/config.json").exists()
            && !dir.join("consolidated.safetensors").exists()
            && !dir.join("onnx").exists()
    );
    let list = home.run(&["list"]).ok().stdout;
    assert!(
        list.contains("  bert Qwen3ForCausalLM") && !list.contains("incomplete"),
        "{list}"
    );
    assert!(
        home.run(&["pull", "user/tiny-GGUF", "--name", "bert"])
            .failed()
            .stderr
            .contains("--force")
    );
}
