//! The program as a person meets it: help, mistakes, environment, the local store.

use std::io::Read;
use std::process::Stdio;

use crate::support::program::Home;

#[test]
fn the_version_is_semver_and_build_date_under_every_name() {
    let home = Home::new();
    let version = home.run(&["--version"]).ok().stdout;
    let (name, rest) = version.trim_end().split_once(' ').unwrap();
    let (semver, date) = rest.split_once('+').unwrap();
    assert_eq!((name, semver), ("oxydllm", env!("CARGO_PKG_VERSION")));
    assert!(
        date.len() == 8 && date.starts_with("20") && date.bytes().all(|byte| byte.is_ascii_digit()),
        "{date}"
    );
    for words in [["-v"], ["-V"], ["version"]] {
        assert_eq!(home.run(&words).ok().stdout, version);
    }
}

#[test]
fn help_that_was_asked_for_is_data_and_no_arguments_are_a_mistake() {
    let home = Home::new();
    let help = home.run(&["--help"]).ok();
    assert_eq!(help.stderr, "");
    for command in [
        "pull", "list", "rm", "run", "start", "bench", "eval", "version",
    ] {
        assert!(
            help.stdout
                .lines()
                .any(|line| line.trim_start().starts_with(&format!("{command} "))),
            "{command}"
        );
    }
    assert_eq!(
        home.run(&["-h"]).ok().stdout,
        home.run(&["help"]).ok().stdout
    );
    let nothing = home.run(&[]).failed();
    assert_eq!(
        (nothing.stdout.as_str(), nothing.stderr.as_str()),
        ("", help.stdout.as_str())
    );
    for command in [
        "pull", "list", "rm", "remove", "run", "start", "bench", "eval",
    ] {
        assert!(
            home.run(&[command, "--help"])
                .ok()
                .stdout
                .contains("Usage: oxydllm "),
            "{command}"
        );
    }
}

#[test]
fn the_help_of_rm_reads_like_this() {
    insta::assert_snapshot!(Home::new().run(&["rm", "--help"]).ok().stdout, @r"
    Delete a local model

    Usage: oxydllm rm [OPTIONS] <MODEL>

    Arguments:
      <MODEL>  Exact name, as `oxydllm list` prints it

    Options:
          --models-dir <DIR>  Directory of the local models [env: OXYDLLM_MODELS_DIR] [default:
                              ~/.oxydllm/models]
      -f, --force             Do not ask
      -h, --help              Print help
    ");
}

#[test]
fn a_mistake_is_one_error_line_then_the_usage_of_its_command() {
    let home = Home::new();
    let cases: [(&[&str], &str, &str); 8] = [
        (
            &["frobnicate"],
            "Error: unknown command `frobnicate`",
            "Usage: oxydllm <COMMAND>",
        ),
        (
            &["list", "--all"],
            "Error: unexpected argument '--all' found",
            "Usage: oxydllm list",
        ),
        (
            &["list", "--models-dir"],
            "Error: a value is required for '--models-dir <DIR>'",
            "Usage: oxydllm list",
        ),
        (
            &["pull"],
            "Error: the following required arguments were not provided: <MODEL>",
            "Usage: oxydllm pull",
        ),
        (
            &["rm", "a", "b"],
            "Error: unexpected argument 'b' found",
            "Usage: oxydllm rm",
        ),
        (
            &["run", "m", "--top-p", "0"],
            "Error: invalid value '0' for '--top-p <P>': expected a number above 0",
            "Usage: oxydllm run",
        ),
        (
            &["run", "m", "-t", "hot"],
            "Error: invalid value 'hot' for '--temperature <X>'",
            "Usage: oxydllm run",
        ),
        (
            &["bench", "m", "--threads", "0"],
            "Error: invalid value '0' for '--threads <N>'",
            "Usage: oxydllm bench",
        ),
    ];
    for (words, error, usage) in cases {
        let ran = home.run(words).failed();
        assert_eq!(ran.stdout, "", "{words:?}");
        assert!(ran.stderr.starts_with(error), "{words:?}: {}", ran.stderr);
        assert!(
            ran.stderr
                .lines()
                .nth(1)
                .is_some_and(|line| line.is_empty() || line.starts_with("hint:")),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains(usage), "{words:?}: {}", ran.stderr);
    }
}

#[test]
fn a_wrong_variable_stops_every_command_and_an_empty_one_is_not_set() {
    for (name, value) in [
        ("OXYDLLM_THREADS", "many"),
        ("OXYDLLM_CPU_LEVEL", "mmx"),
        ("HF_ENDPOINT", "hub"),
        ("RUST_LOG", "oxydllm=loud"),
    ] {
        let ran = Home::new().with_env(name, value).run(&["list"]).failed();
        assert!(
            ran.stderr.starts_with("Error: ")
                && ran.stderr.contains(&format!("`{name}` is `{value}`")),
            "{}",
            ran.stderr
        );
        Home::new().with_env(name, " ").run(&["list"]).ok();
        Home::new().with_env(name, value).run(&["--version"]).ok();
    }
}

#[test]
fn the_models_directory_comes_from_flag_then_variable_then_home() {
    let home = Home::new().with_env("OXYDLLM_MODELS_DIR", "from-variable");
    assert!(
        home.run(&["list"])
            .ok()
            .stdout
            .contains("No models found in from-variable (it does not exist)")
    );
    assert!(
        home.run(&["list", "--models-dir", "from-flag"])
            .ok()
            .stdout
            .contains("No models found in from-flag")
    );
    let home = Home::new().with_env("OXYDLLM_MODELS_DIR", "");
    assert!(
        home.run(&["list"])
            .ok()
            .stdout
            .contains("No models found in ~/.oxydllm/models")
    );
}

#[test]
fn adding_listing_and_deleting_a_local_file_work_together() {
    let home = Home::new();
    let original = home.write("downloads/Tiny.Q4_0.gguf", &tiny_gguf());
    let added = home
        .run(&["pull", "./downloads/Tiny.Q4_0.gguf", "--name", "me/tiny"])
        .ok();
    assert!(
        added.stderr.contains("oxydllm run me/tiny"),
        "{}",
        added.stderr
    );
    insta::assert_snapshot!(home.run(&["list"]).ok().stdout, @r"

      NAME    ARCHITECTURE      SIZE
      ──────────────────────────────
      me/tiny llama (GGUF)      96 B

      1 model(s) in ~/.oxydllm/models
    ");
    let refused = home.run(&["rm", "tiny", "--force"]).failed();
    assert!(
        refused
            .stderr
            .contains("no model is called exactly `tiny`; similar: `me/tiny`"),
        "{}",
        refused.stderr
    );
    let refused = home.run(&["rm", "me/tiny"]).failed();
    assert!(
        refused.stderr.contains("no terminal") && refused.stderr.contains("hint: add `--force`"),
        "{}",
        refused.stderr
    );
    home.run(&["remove", "me/tiny", "--force"]).ok();
    assert!(original.exists() && !home.models().join("me").exists());
}

#[test]
fn rm_does_not_read_its_answer_from_a_pipe() {
    let home = Home::new();
    home.write(".oxydllm/models/m/m.gguf", &tiny_gguf());
    let mut child = home
        .command(&["rm", "m"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may be gone already, as it does not read.
    let _ = std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"y\n");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(home.models().join("m/m.gguf").exists());
}

#[test]
fn a_name_that_leaves_the_models_directory_is_refused() {
    let home = Home::new();
    home.write("m.gguf", &tiny_gguf());
    for name in ["../m", "/m", "a/../../m", "C:\\m", "CON", "a//m", ".."] {
        let ran = home.run(&["pull", "./m.gguf", "--name", name]).failed();
        assert!(
            ran.stderr.contains("is not a model name"),
            "{name}: {}",
            ran.stderr
        );
    }
    assert!(!home.path().join(".oxydllm").exists());
}

#[cfg(unix)]
#[test]
fn a_reader_that_goes_away_is_no_error_but_a_full_disk_is() {
    let home = Home::new();
    home.write(".oxydllm/models/m/m.gguf", &tiny_gguf());
    let mut child = home
        .command(&["list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let code = child.wait().unwrap().code();
    let mut talk = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut talk)
        .unwrap();
    assert_eq!((code, talk.as_str()), (Some(0), ""));
    if let Ok(full) = std::fs::File::options().write(true).open("/dev/full") {
        let output = home.command(&["list"]).stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
    }
}

#[test]
fn logs_are_json_lines_on_standard_error_when_asked_for() {
    let home = Home::new().with_env("LOG_FORMAT", "json");
    home.write(".oxydllm/models/.oxydllm_registry.json", b"{torn");
    home.write(".oxydllm/models/m/m.gguf", &tiny_gguf());
    let ran = home.run(&["rm", "m", "--force"]).ok();
    let log = ran
        .stderr
        .lines()
        .find(|line| line.starts_with('{'))
        .unwrap();
    let log: serde_json::Value = serde_json::from_str(log).unwrap();
    assert_eq!(log["level"], "WARN");
    assert!(ran.stdout.is_empty());
}

/// A GGUF file with an architecture and no tensors.
pub fn tiny_gguf() -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend([0u64, 1].map(u64::to_le_bytes).concat());
    for (text, value_type) in [("general.architecture", Some(8u32)), ("llama", None)] {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(value_type.map(u32::to_le_bytes).into_iter().flatten());
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes
}
