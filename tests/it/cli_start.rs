//! `oxydllm start` as a person meets it: start-up log, flags and variables, signals.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Stdio};
use std::time::Duration;

use crate::support::program::Home;

/// A server that runs, with what it has logged so far.
struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
    log: String,
    address: SocketAddr,
}

impl Running {
    /// Starts the program and waits until it listens.
    fn start(home: &Home, words: &[&str]) -> Self {
        let words = [&["start"], words].concat();
        let mut child = home
            .command(&words)
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut log = String::new();
        // The last line of the announcement, or the warning after it.
        while !log.contains("/metrics") {
            let before = log.len();
            stderr.read_line(&mut log).unwrap();
            assert!(log.len() > before, "it ended: {log}");
        }
        let at = log.find("address=").unwrap() + "address=".len();
        let address = log[at..]
            .split_whitespace()
            .next()
            .unwrap()
            .parse()
            .unwrap();
        Self {
            child,
            stderr,
            log,
            address,
        }
    }

    fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sends a request and returns the whole answer.
    fn send(&self, request: &str, headers: &str, body: &str) -> String {
        let mut stream = self.connect();
        let length = body.len();
        write!(
            stream,
            "{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port())).unwrap()
    }

    /// Sends a request and returns the answer's first line.
    fn get(&self, path: &str, headers: &str) -> String {
        let answer = self.send(&format!("GET {path}"), headers, "");
        answer.lines().next().unwrap_or_default().to_owned()
    }

    /// Asks for a short answer; `fields` go into the body.
    fn chat(&self, model: &str, fields: &str) -> String {
        let body = format!(
            r#"{{"model": "{model}", "messages": [{{"role": "user", "content": "hi"}}], "max_tokens": 4, "seed": 1{fields}}}"#
        );
        let json = "Content-Type: application/json\r\n";
        self.send("POST /v1/chat/completions", json, &body)
    }

    /// A request whose body never comes: it is worked on until somebody ends it.
    fn hang(&self) -> TcpStream {
        let mut stream = self.connect();
        let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{";
        stream.write_all(head.as_bytes()).unwrap();
        // The server has seen it when it answers a later one.
        std::thread::sleep(Duration::from_millis(200));
        assert!(self.get("/health", "").contains("200"));
        stream
    }

    /// Reads the log until it says `text`.
    fn read_until(&mut self, text: &str) {
        while !self.log.contains(text) {
            let before = self.log.len();
            self.stderr.read_line(&mut self.log).unwrap();
            assert!(self.log.len() > before, "it ended: {}", self.log);
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = std::process::Command::new("kill")
            .args([name, &id])
            .status();
        assert!(sent.unwrap().success());
    }

    /// Waits for the end: exit code and the whole log.
    fn end(mut self) -> (Option<i32>, String) {
        let mut log = std::mem::take(&mut self.log);
        self.stderr.read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn stop(self) -> String {
        self.signal("-TERM");
        let (code, log) = self.end();
        assert_eq!(code, Some(0), "{log}");
        log
    }
}

#[test]
fn it_announces_itself_serves_and_ends_well_on_sigterm_and_sigint() {
    let home = Home::new();
    home.write(".oxydllm/models/u/m/model.safetensors", b"x");
    home.write(
        ".oxydllm/models/u/m/config.json",
        br#"{"architectures": ["LlamaForCausalLM"]}"#,
    );
    for signal in ["-TERM", "-INT"] {
        let server = Running::start(&home, &["--port", "0"]);
        assert!(server.address.ip().is_loopback(), "{}", server.log);
        for text in [
            "directory=~/.oxydllm/models found=1",
            "id=u/m architecture=LlamaForCausalLM",
            "15 min 00 s",
            "unlimited",
            "bounded by memory",
        ] {
            assert!(server.log.contains(text), "{text}: {}", server.log);
        }
        let url = format!("http://127.0.0.1:{}/v1/chat/completions", server.port());
        assert!(server.log.contains(&url), "{}", server.log);
        assert!(server.get("/health", "").contains("200"));
        assert!(server.get("/v1/models", "").contains("200"));
        server.signal(signal);
        let (code, log) = server.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(log.contains("stopping") && log.contains("stopped"), "{log}");
        assert!(!log.contains("WARN"), "{log}");
    }
}

#[test]
fn a_flag_wins_over_a_variable_and_a_variable_over_the_default() {
    let home = Home::new()
        .with_env("OXYDLLM_PORT", "0")
        .with_env("OXYDLLM_HOST", "127.0.0.1")
        .with_env("OXYDLLM_KEEP_ALIVE", "-1")
        .with_env("OXYDLLM_MEMORY_BUDGET", "2048")
        .with_env("OXYDLLM_MAX_CONTEXT_LEN", "4096")
        .with_env("OXYDLLM_API_KEY", " secret ");
    let server = Running::start(&home, &["--max-context-len", "8192"]);
    let log = &server.log;
    assert!(log.contains("for ever") && log.contains("2.00 GB"), "{log}");
    assert!(log.contains("8192") && !log.contains("4096"), "{log}");
    assert!(log.contains("required") && !log.contains("secret"), "{log}");
    assert!(server.get("/v1/models", "").contains("401"));
    let with_key = "Authorization: Bearer secret\r\n";
    assert!(server.get("/v1/models", with_key).contains("200"));
    server.stop();
}

#[test]
fn an_open_server_on_a_public_address_is_warned_about() {
    let home = Home::new();
    let open = Running::start(&home, &["--port=0", "--host=0.0.0.0"]).stop();
    assert!(
        open.contains("WARN") && open.contains("OXYDLLM_API_KEY"),
        "{open}"
    );
    let locked = Running::start(&home, &["--port=0", "--api-key=k"]);
    assert!(locked.address.ip().is_unspecified(), "{}", locked.log);
    let locked = locked.stop();
    assert!(!locked.contains("WARN"), "{locked}");
}

#[test]
fn a_port_that_is_taken_is_an_error_with_a_remedy() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = home.run(&["start", "--port", &port]).failed();
    assert!(
        ran.stderr
            .contains(&format!("Error: cannot listen on `127.0.0.1:{port}`")),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("hint: ") && ran.stderr.contains("--port"));
    assert_eq!(ran.stdout, "");
}

#[test]
fn the_models_directory_is_made_and_wrong_variables_are_named() {
    let home = Home::new();
    Running::start(&home, &["--port=0", "--models-dir", "new/models"]).stop();
    assert!(home.path().join("new/models").is_dir());
    for (name, value) in [
        ("OXYDLLM_PORT", "http"),
        ("OXYDLLM_HOST", "example.org"),
        ("OXYDLLM_KEEP_ALIVE", "soon"),
        ("OXYDLLM_MEMORY_BUDGET", "8G"),
        ("OXYDLLM_MAX_NUM_SEQS", "0"),
    ] {
        let ran = Home::new()
            .with_env(name, value)
            .run(&["start", "--port=0"])
            .failed();
        assert!(
            ran.stderr.contains(&format!("`{name}` is `{value}`")),
            "{}",
            ran.stderr
        );
    }
}

/// Copies a checkpoint of the fixtures into the home.
fn add_fixture(home: &Home, name: &str, id: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/models")
        .join(name);
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        if !file.starts_with("expected") {
            home.write(
                &format!(".oxydllm/models/{id}/{file}"),
                &std::fs::read(&path).unwrap(),
            );
        }
    }
}

#[test]
fn models_load_when_they_are_asked_for_and_leave_when_nobody_wants_them() {
    let home = Home::new();
    add_fixture(&home, "llama_plain", "u/plain");
    add_fixture(&home, "packed_q4_k", "u/packed");
    let server = Running::start(&home, &["--port=0", "--max-queued-requests=7"]);
    let running = || server.send("GET /v1/models/running", "", "");
    assert!(running().contains(r#""data":[]"#), "{}", running());
    let plain = server.chat("PLAIN", "");
    assert!(plain.contains("200 OK"), "{plain}");
    let packed = server.chat("u/packed/model", "");
    assert!(packed.contains("200 OK"), "{packed}");
    let both = running();
    assert!(
        both.contains("u/plain") && both.contains("u/model"),
        "{both}"
    );
    let last = server.chat("u/plain", r#", "keep_alive": 0"#);
    assert!(last.contains("200 OK"), "{last}");
    while running().contains("u/plain") {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(
        server.chat("u/plain", "").contains("200 OK"),
        "loaded again"
    );
    assert!(server.chat("../plain", "").contains("400"));
    assert!(server.chat("u/none", "").contains("404"));
    let log = server.stop();
    assert_eq!(log.matches(" loaded model=").count(), 3, "{log}");
    let registry = home.models().join(".oxydllm_registry.json");
    let registry = std::fs::read_to_string(registry).unwrap();
    assert!(
        registry.contains(r#""u/model""#) && registry.contains(r#""u/plain""#),
        "{registry}"
    );
}

#[test]
fn a_model_beyond_the_budget_is_refused_and_one_that_fits_is_served() {
    let home = Home::new();
    add_fixture(&home, "llama_plain", "u/plain");
    let words = ["--port=0", "--memory-budget=1"];
    let small = Running::start(&home, &words);
    let answer = small.chat("u/plain", "");
    assert!(answer.contains("507"), "{answer}");
    assert!(answer.contains("available 1.0 MB"), "{answer}");
    small.stop();
    let words = ["--port=0", "--memory-budget=64"];
    let large = Running::start(&home, &words);
    let answer = large.chat("u/plain", "");
    assert!(answer.contains("200 OK"), "{answer}");
    large.stop();
}

#[test]
fn requests_that_do_not_end_in_time_make_the_exit_code_1() {
    let home = Home::new();
    let server = Running::start(&home, &["--port=0", "--shutdown-timeout=1"]);
    let _request = server.hang();
    server.signal("-TERM");
    let (code, log) = server.end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("WARN"), "{log}");
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let home = Home::new();
    let mut server = Running::start(&home, &["--port=0", "--shutdown-timeout=600"]);
    let _request = server.hang();
    server.signal("-INT");
    server.read_until("stopping");
    server.signal("-TERM");
    let (code, log) = server.end();
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("stopped at once"), "{log}");
}

#[test]
fn the_log_can_be_json() {
    let home = Home::new().with_env("LOG_FORMAT", "json");
    let mut child = home
        .command(&["start", "--port=0"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(first["level"], "INFO");
    std::thread::sleep(Duration::from_millis(100));
    child.kill().unwrap();
    child.wait().unwrap();
}
