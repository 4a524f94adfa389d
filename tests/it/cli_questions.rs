//! The questions of `pull` and `rm`, asked in a real terminal.

use serde_json::json;

use crate::cli::tiny_gguf;
use crate::support::http::{Reply, Server};
use crate::support::program::Home;
use crate::support::terminal::Terminal;

/// The program in a terminal.
fn start(home: &Home, arguments: &str, endpoint: &str) -> Option<Terminal> {
    let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_oxydllm"));
    let path = home.path().to_str().unwrap();
    Terminal::start(
        &command,
        &[
            ("HOME", path),
            ("HF_ENDPOINT", endpoint),
            ("OXYDLLM_MODELS_DIR", ""),
        ],
    )
}

/// A hub with three variants of one model.
fn hub() -> Server {
    Server::start(|asked| {
        if asked.path.starts_with("/api/") {
            let file = |name: &str| json!({"rfilename": name, "size": tiny_gguf().len()});
            let files = [
                file("m-Q2_K.gguf"),
                file("m-Q4_K_M.gguf"),
                file("m-Q8_0.gguf"),
            ];
            return Reply::new(200, json!({"siblings": files}).to_string());
        }
        Reply::ranged(asked, &tiny_gguf())
    })
}

#[test]
fn the_variant_question_takes_a_number_asks_again_and_has_a_default() {
    let (home, server) = (Home::new(), hub());
    let Some(mut terminal) = start(&home, "pull u/m", &server.url) else {
        return;
    };
    let table = terminal.wait_for("[1-3, default 2] ");
    for part in ["1   Q2_K", "2 ★ Q4_K_M", "3   Q8_0", "small loss"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    for wrong in ["0\n", "4\n", "q8\n"] {
        terminal.send(wrong);
        terminal.wait_for("from 1 to 3");
        terminal.wait_for("default 2] ");
    }
    terminal.send("\n");
    terminal.wait_for("oxydllm run u/m-Q4_K_M");
    assert_eq!(terminal.wait().0, 0);

    let Some(mut terminal) = start(&home, "pull u/m", &server.url) else {
        return;
    };
    let table = terminal.wait_for("[1-2, default 1] ");
    assert!(
        table.contains("✓   Q4_K_M") && table.contains("2   Q8_0"),
        "{table}"
    );
    terminal.send("2\n");
    terminal.wait_for("oxydllm run u/m-Q8_0");
    assert_eq!(terminal.wait().0, 0);
    assert!(!home.models().join("u/m/m-Q2_K.gguf").exists());
}

#[test]
fn the_end_of_input_at_the_question_aborts_instead_of_downloading() {
    let (home, server) = (Home::new(), hub());
    let Some(mut terminal) = start(&home, "pull u/m", &server.url) else {
        return;
    };
    terminal.wait_for("default 2] ");
    terminal.send("\x04");
    terminal.wait_for("Aborted");
    assert_eq!(terminal.wait().0, 0);
    assert!(server.asked_for(".gguf").is_empty() && !home.models().join("u").exists());
}

#[test]
fn rm_deletes_on_yes_only() {
    let home = Home::new();
    let file = home.write(".oxydllm/models/m/m.gguf", &tiny_gguf());
    for (answer, is_deleted) in [
        ("\n", false),
        ("yeah\n", false),
        ("\x04", false),
        ("Yes\n", true),
    ] {
        let Some(mut terminal) = start(&home, "rm m", "") else {
            return;
        };
        terminal.wait_for("[y/N] ");
        terminal.send(answer);
        terminal.wait_for(if is_deleted { "Deleted m" } else { "Aborted" });
        assert_eq!(
            (terminal.wait().0, file.exists()),
            (0, !is_deleted),
            "{answer:?}"
        );
    }
}
