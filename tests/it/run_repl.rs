//! `run` in a real terminal: editing, history, commands, Ctrl-C, a full context.
//!
//! The program in the terminal is this test binary itself, told by a variable to become `run` with a scripted engine.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use oxydllm::cli::Printer;
use oxydllm::cli::args::{Cli, Command};
use oxydllm::cli::run;
use oxydllm::engine::{FinishReason, Request};
use oxydllm::error::Error;

use crate::support::scripted::{self, BOS, Step, bytes};
use crate::support::terminal::Terminal;

/// Arguments of `run` for the child, separated by a character that no argument has.
const ARGUMENTS: &str = "RUN_CHILD_ARGUMENTS";
/// Tokens that the child's context holds.
const CONTEXT: &str = "RUN_CHILD_CONTEXT";

/// Not a test: what the other tests start in a terminal.
#[test]
#[ignore = "started by other tests"]
fn child() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let words = ["oxydllm", "run"].into_iter().chain(arguments.split('|'));
    let Command::Run(args) = Cli::parse_from(words).command else {
        unreachable!()
    };
    let context = std::env::var(CONTEXT).map_or(4000, |text| text.parse().unwrap());
    let printer = Printer::from_environment();
    let loaded = run::execute_with(&args, &printer, |_| {
        let (engine, _) = scripted::engine(context, answer);
        Ok(match &*args.model {
            "base" => scripted::base_model(engine),
            _ => scripted::model(engine),
        })
    });
    let code = match loaded {
        Ok(code) if code == ExitCode::SUCCESS => 0,
        Ok(code) if code == ExitCode::from(130) => 130,
        Ok(_) => 99,
        Err(error) => {
            printer.error(&error);
            i32::from(error.exit_code())
        }
    };
    std::process::exit(code);
}

/// The scripted model: repeats the newest message, unless that is one of a few words.
fn answer(request: &Request) -> Vec<Step> {
    let tokens = request.tokens.iter().filter(|&&id| id != BOS);
    let prompt: Vec<u8> = tokens.map(|&id| id as u8).collect();
    let prompt = String::from_utf8(prompt).unwrap();
    let newest = prompt
        .rsplit_once("<user>")
        .map_or(&*prompt, |(_, text)| text);
    let newest = newest.trim_end_matches("<assistant>");
    let newest = newest.strip_suffix('\n').unwrap_or(newest);
    let system = prompt
        .split_once("<system>")
        .map_or("", |(_, text)| text.lines().next().unwrap());
    let done = Step::Done(FinishReason::Stop);
    match newest {
        "long" => vec![bytes("It begins"), Step::Forever(46)],
        "slow" => vec![Step::Work(Duration::from_secs(5)), done],
        "emoji" => vec![bytes("👩‍👩‍👧‍👦 naïve 日本"), done],
        "escape" => vec![bytes("\x1b]0;owned\x07red"), done],
        "fail" => vec![
            bytes("half"),
            Step::Fail(Error::internal("NaN in the logits")),
        ],
        "limit" => vec![bytes("cut"), Step::Done(FinishReason::Length)],
        "system?" => vec![bytes(&format!("system={system};")), done],
        "count?" => vec![
            bytes(&format!("users={};", prompt.matches("<user>").count())),
            done,
        ],
        "all?" => vec![bytes(&format!("prompt={prompt:?};")), done],
        _ => vec![bytes(&format!("you said: {newest:?};")), done],
    }
}

/// A shell command line that runs the child.
pub fn command_line() -> String {
    let program = std::env::current_exe().unwrap();
    format!(
        "'{}' --exact run_repl::child --ignored --nocapture -q",
        program.display()
    )
}

/// The variables that turn the child into `run` with `arguments` (joined by `|`).
pub fn variables<'a>(home: &'a Path, arguments: &'a str) -> Vec<(&'static str, &'a str)> {
    vec![("HOME", home.to_str().unwrap()), (ARGUMENTS, arguments)]
}

fn chat_in(home: &Path, arguments: &str, more: &[(&str, &str)]) -> Option<Terminal> {
    let variables = [&variables(home, arguments)[..], more].concat();
    let mut terminal = Terminal::start(&command_line(), &variables)?;
    terminal.wait_for(">>> ");
    Some(terminal)
}

fn home() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn a_message_is_answered_and_end_of_input_leaves() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    chat.send("hello\r");
    chat.wait_for("you said: \"hello\";");
    chat.wait_for(">>> ");
    chat.send("   \r");
    chat.wait_for(">>> ");
    chat.send("count?\r");
    chat.wait_for("users=2;");
    chat.wait_for(">>> ");
    chat.send("\x04");
    assert_eq!(chat.wait().0, 0);
}

#[test]
fn ctrl_c_stops_the_answer_and_keeps_the_chat() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    chat.send("long\r");
    chat.wait_for("It begins....");
    chat.send("\x03");
    chat.wait_for(">>> ");
    chat.send("all?\r");
    let prompt = chat.wait_for(";");
    assert!(
        prompt.contains("<user>long") && prompt.contains("<assistant>It begins..."),
        "{prompt}"
    );
    chat.wait_for(">>> ");
    chat.send("/exit\r");
    assert_eq!(chat.wait().0, 0);
}

#[test]
fn ctrl_c_works_at_once_while_the_engine_is_in_a_long_step() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    chat.send("slow\r");
    std::thread::sleep(Duration::from_millis(300));
    let begin = Instant::now();
    chat.send("\x03");
    chat.wait_for(">>> ");
    assert!(begin.elapsed() < Duration::from_secs(2));
}

#[test]
fn ctrl_c_twice_at_the_prompt_leaves_with_130() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    chat.send("half a mess\x03");
    chat.wait_for("Ctrl-C again leaves");
    chat.wait_for(">>> ");
    chat.send("hello\r");
    chat.wait_for("you said: \"hello\";");
    chat.wait_for(">>> ");
    chat.send("\x03");
    chat.wait_for("Ctrl-C again leaves");
    chat.wait_for(">>> ");
    chat.send("\x03");
    assert_eq!(chat.wait().0, 130);
}

#[test]
fn commands_work_and_unknown_ones_are_reported() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    chat.send("system?\r");
    chat.wait_for("system=;");
    chat.wait_for(">>> ");
    chat.send("/system Speak Latin\r");
    chat.wait_for(">>> ");
    chat.send("system?\r");
    chat.wait_for("system=Speak Latin;");
    chat.wait_for(">>> ");
    chat.send("/clear\r");
    chat.wait_for(">>> ");
    chat.send("count?\r");
    chat.wait_for("users=1;");
    chat.wait_for(">>> ");
    chat.send("/sytem x\r");
    chat.wait_for("there is no command `/sytem`");
    chat.wait_for(">>> ");
    chat.send("count?\r");
    chat.wait_for("users=2;");
    chat.wait_for(">>> ");
    chat.send("/help\r");
    chat.wait_for("/system TEXT");
    chat.wait_for(">>> ");
    chat.send("/quit\r");
    assert_eq!(chat.wait().0, 0);
}

#[test]
fn a_paste_of_two_hundred_lines_is_one_message_and_up_recalls_it_whole() {
    let home = home();
    let more = [(CONTEXT, "20000")];
    let Some(mut chat) = chat_in(home.path(), "m", &more) else {
        return;
    };
    let lines: Vec<String> = (0..200).map(|n| format!("line {n}")).collect();
    let expected = format!("you said: {:?};", lines.join("\n"));
    chat.send(&format!("\x1b[200~{}\x1b[201~", lines.join("\r")));
    chat.wait_for("line 199");
    chat.send("\r");
    chat.wait_for(&expected);
    let screen = chat.wait_for(">>> ");
    assert!(
        screen.contains("\x1b[?2004h"),
        "the terminal is not asked to mark pastes"
    );
    chat.send("\x1b[A");
    chat.wait_for("line 199");
    chat.send("\r");
    chat.wait_for(&expected);
    chat.wait_for(">>> ");
    chat.send("count?\r");
    chat.wait_for("users=3;");
}

#[test]
fn words_are_moved_over_and_killed_and_history_is_searched() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    // Ctrl-Left twice, type; End, Ctrl-W; Home, Alt-D.
    chat.send("one two three\x1b[1;5D\x1b[1;5Dx\x05\x17\x01\x1bd\r");
    chat.wait_for("you said: \" xtwo \";");
    chat.wait_for(">>> ");
    chat.send("日本 é👩 ok\x1b[D\x1b[D\x7f\x7f!\r");
    chat.wait_for("you said: \"日本 é!ok\";");
    chat.wait_for(">>> ");
    chat.send("other\r");
    chat.wait_for("you said: \"other\";");
    chat.wait_for(">>> ");
    chat.send("\x12xtw");
    chat.wait_for("xtwo");
    chat.send("\r");
    chat.wait_for("you said: \" xtwo \";");
    chat.wait_for(">>> ");
    chat.send("first\x1b\rsecond\r");
    chat.wait_for(r#"you said: "first\nsecond";"#);
}

#[test]
fn history_survives_and_only_its_owner_can_read_it() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    chat.send("\x1b[200~a secret\rof two lines\x1b[201~\r");
    chat.wait_for("you said");
    chat.wait_for(">>> ");
    chat.send("\x04");
    assert_eq!(chat.wait().0, 0);
    let file = home.path().join(".oxydllm/history");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    assert!(std::fs::read_to_string(&file).unwrap().contains("a secret"));
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    chat.send("\x1b[A\r");
    chat.wait_for(r#"you said: "a secret\nof two lines";"#);
}

#[test]
fn an_answer_reaches_the_screen_whole_and_cannot_steer_the_terminal() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    chat.send("emoji\r");
    chat.wait_for("👩‍👩‍👧‍👦 naïve 日本");
    chat.wait_for(">>> ");
    chat.send("escape\r");
    let screen = chat.wait_for("red");
    assert!(
        screen.contains("␛]0;owned␇red") && !screen.contains("\x1b]0;owned"),
        "{screen:?}"
    );
}

#[test]
fn a_failed_answer_is_reported_and_leaves_the_chat_as_it_was() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m", &[]) else {
        return;
    };
    chat.send("fail\r");
    chat.wait_for("NaN in the logits");
    chat.wait_for(">>> ");
    chat.send("count?\r");
    chat.wait_for("users=1;");
}

#[test]
fn limits_are_reported() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m|--max-tokens|7", &[]) else {
        return;
    };
    chat.send("limit\r");
    chat.wait_for("the answer was cut off at `--max-tokens` 7");
}

#[test]
fn a_full_context_forgets_the_oldest_and_says_so() {
    let home = home();
    let more = [(CONTEXT, "200")];
    let Some(mut chat) = chat_in(home.path(), "m|--system|S", &more) else {
        return;
    };
    for name in ["first", "second", "third"] {
        chat.send(&format!("{name} {}\r", "x".repeat(30)));
        if name == "third" {
            chat.wait_for("200 tokens is full: the oldest 2 messages are forgotten");
        }
        chat.wait_for("you said");
        chat.wait_for(">>> ");
    }
    chat.send("all?\r");
    let screen = chat.wait_for(";");
    assert!(
        !screen.contains("first") && screen.contains("<system>S"),
        "{screen}"
    );
    chat.wait_for(">>> ");
    chat.send(&format!("{}\r", "y".repeat(300)));
    chat.wait_for("the message is dropped");
    chat.wait_for(">>> ");
    chat.send("all?\r");
    let screen = chat.wait_for(";");
    assert!(!screen.contains("yyy"), "{screen}");
}

#[test]
fn verbose_shows_where_the_time_goes() {
    let home = home();
    let Some(mut chat) = chat_in(home.path(), "m|--verbose", &[]) else {
        return;
    };
    chat.send("hello\r");
    chat.wait_for("prefill");
    chat.wait_for("tok/s");
    chat.wait_for("decode");
    chat.wait_for("7 tokens in 3.00 s, 2.0 tok/s");
    chat.wait_for("memory");
}

#[test]
fn a_model_without_template_refuses_to_chat_and_says_what_it_can_do() {
    let home = home();
    let variables = variables(home.path(), "base");
    let Some(terminal) = Terminal::start(&command_line(), &variables) else {
        return;
    };
    let (code, screen) = terminal.wait();
    assert_eq!(code, 1);
    assert!(
        screen.contains("no chat template") && screen.contains("hint:"),
        "{screen}"
    );
}

#[test]
fn answers_can_go_to_a_file_while_the_prompt_stays_on_the_terminal() {
    let home = home();
    let file = home.path().join("answers");
    let line = format!("{} > '{}'", command_line(), file.display());
    let variables = variables(home.path(), "m");
    let Some(mut chat) = Terminal::start(&line, &variables) else {
        return;
    };
    chat.wait_for(">>> ");
    chat.send("hello\r");
    chat.wait_for(">>> ");
    chat.send("\x04");
    assert_eq!(chat.wait().0, 0);
    let text = std::fs::read_to_string(file).unwrap();
    assert!(
        text.ends_with("you said: \"hello\";\n") && !text.contains('\x1b'),
        "{text:?}"
    );
}

#[test]
fn no_color_means_no_color() {
    for (value, coloured) in [("", true), ("1", false)] {
        let home = home();
        let Some(mut chat) = chat_in(home.path(), "m", &[("NO_COLOR", value)]) else {
            return;
        };
        chat.send("/nonsense\r");
        let screen = chat.wait_for("there is no command");
        assert_eq!(screen.contains("\x1b[1;33m"), coloured, "{screen:?}");
    }
}
