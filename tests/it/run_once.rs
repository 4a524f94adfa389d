//! `run` in a pipe: one prompt, one answer, clean output, exit codes.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::run_repl::{command_line, variables};

fn command(arguments: &str) -> (Command, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("exec {}", command_line())]);
    command.envs(variables(home.path(), arguments));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    (command, home)
}

/// Standard output without what the test harness writes before the child takes over.
fn stdout(output: &Output) -> String {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let text = text.strip_prefix("\nrunning 1 test\n").unwrap_or(&text);
    text.to_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn run(arguments: &str, input: &str) -> Output {
    let (mut command, _home) = command(arguments);
    let mut child = command.spawn().unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_piped_prompt_is_answered_on_clean_standard_output() {
    let output = run("m", "hi\n");
    assert_eq!(stdout(&output), "you said: \"hi\";\n");
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn argument_and_standard_input_make_one_prompt() {
    let output = run("m|summarise", "a\nb\n");
    assert_eq!(stdout(&output), "you said: \"summarise\\n\\na\\nb\";\n");
    let output = run("m|hi", "");
    assert_eq!(stdout(&output), "you said: \"hi\";\n");
}

#[test]
fn there_are_no_escape_codes_in_a_pipe_but_those_of_the_answer() {
    let output = run("m|--verbose", "limit");
    assert!(!stdout(&output).contains('\x1b') && !stderr(&output).contains('\x1b'));
    assert!(stderr(&output).contains("tok/s"));
    assert!(stderr(&output).contains("warning: the answer was cut off"));
    // Data is passed on as it is.
    assert_eq!(stdout(&run("m", "escape")), "\x1b]0;owned\x07red\n");
}

#[test]
fn failures_have_exit_code_one_and_keep_what_was_said() {
    let output = run("m", "fail");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "half\n");
    assert!(
        stderr(&output).contains("Error: NaN in the logits"),
        "{}",
        stderr(&output)
    );
    for (arguments, input) in [("m", " \n"), ("m", "")] {
        let output = run(arguments, input);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            stderr(&output).contains("the prompt is empty"),
            "{}",
            stderr(&output)
        );
    }
    let long = "x".repeat(5000);
    let output = run("m", &long);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("the context holds 4000"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_base_model_completes_with_a_warning() {
    let output = run("base", "Once upon");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stdout(&output), "you said: \"Once upon\";\n");
    assert!(
        stderr(&output).contains("warning: `base` has no chat template"),
        "{}",
        stderr(&output)
    );
    let output = run("base|--system|x", "Once upon");
    assert_eq!(output.status.code(), Some(1));
}

#[cfg(unix)]
#[test]
fn an_interrupt_stops_the_answer_with_130() {
    let (mut command, _home) = command("m|long");
    let mut child = command.spawn().unwrap();
    drop(child.stdin.take());
    std::thread::sleep(Duration::from_millis(800));
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(
        stdout(&output).starts_with("It begins..."),
        "{}",
        stdout(&output)
    );
}
