//! The HTTP server in this process, on port 0, with scripted engines behind it; and a client that can be as rude as a test
//! wants.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use oxydllm::engine::{FinishReason, Request};
use oxydllm::error::{Error, Result};
use oxydllm::host::{Host, HostSettings, KeepAlive, Loaded, Loader, SamplingDefaults};
use oxydllm::server::{Server, Settings};
use oxydllm::store::LocalModel;
use oxydllm::telemetry::Metrics;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::scripted::{self, Log, Seen, Step};

/// How long anything may take before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(20);

type Script = Arc<dyn Fn(&Request) -> Vec<Step> + Send + Sync>;

/// A model that a test made up.
#[derive(Clone)]
pub struct Scripted {
    id: String,
    script: Script,
    template: Option<String>,
    max_context: usize,
    max_queued: usize,
    loading: Duration,
    failure: Option<fn() -> Error>,
    defaults: SamplingDefaults,
}

impl Scripted {
    pub fn new(id: &str, script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Self {
        Self {
            id: id.to_owned(),
            script: Arc::new(script),
            template: None,
            max_context: 1000,
            max_queued: 8,
            loading: Duration::ZERO,
            failure: None,
            defaults: SamplingDefaults::default(),
        }
    }

    /// A model that always says `text`.
    pub fn saying(id: &str, text: &'static str) -> Self {
        Self::new(id, move |_| {
            vec![scripted::bytes(text), Step::Done(FinishReason::Stop)]
        })
    }

    pub fn template(mut self, template: &str) -> Self {
        self.template = Some(template.to_owned());
        self
    }

    pub fn max_context(mut self, tokens: usize) -> Self {
        self.max_context = tokens;
        self
    }

    pub fn max_queued(mut self, requests: usize) -> Self {
        self.max_queued = requests;
        self
    }

    /// Loading takes that long.
    pub fn loading(mut self, time: Duration) -> Self {
        self.loading = time;
        self
    }

    /// Loading fails.
    pub fn failing(mut self, failure: fn() -> Error) -> Self {
        self.failure = Some(failure);
        self
    }

    pub fn defaults(mut self, defaults: SamplingDefaults) -> Self {
        self.defaults = defaults;
        self
    }
}

struct ScriptedLoader {
    models: HashMap<String, Scripted>,
    log: Log,
}

impl Loader for ScriptedLoader {
    fn plan(&self, _: &LocalModel) -> Result<u64> {
        Ok(4 << 20)
    }

    fn load(&self, local: &LocalModel) -> Result<Loaded> {
        let scripted = &self.models[&local.id];
        thread::sleep(scripted.loading);
        if let Some(failure) = scripted.failure {
            return Err(failure());
        }
        let script = Arc::clone(&scripted.script);
        let (engine, ended) = scripted::engine_with_queue(
            scripted.max_context,
            scripted.max_queued,
            Arc::clone(&self.log),
            move |request| script(request),
        );
        let model = match &scripted.template {
            Some(template) => scripted::model_with(engine, template),
            None => scripted::model(engine),
        };
        let model = model.with_sampling_defaults(scripted.defaults);
        let model = model.into();
        Ok(Loaded { model, ended })
    }
}

/// A running server.
pub struct Api {
    pub address: SocketAddr,
    pub host: Arc<Host>,
    log: Log,
    shutdown: CancellationToken,
    served: Option<JoinHandle<Result<bool>>>,
    runtime: Runtime,
    _models_dir: tempfile::TempDir,
}

impl Api {
    /// A server with these models.
    pub fn start(models: &[Scripted]) -> Self {
        Self::with_settings(Settings::default(), models)
    }

    pub fn with_settings(settings: Settings, models: &[Scripted]) -> Self {
        Self::with_grace(settings, Duration::from_secs(5), models)
    }

    pub fn with_grace(settings: Settings, grace: Duration, models: &[Scripted]) -> Self {
        let models_dir = tempfile::tempdir().unwrap();
        for model in models {
            let dir = models_dir.path().join(&model.id);
            std::fs::create_dir_all(&dir).unwrap();
            let config = json!({ "architectures": ["ScriptedForCausalLM"] });
            std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
            std::fs::write(dir.join("model.safetensors"), "12345").unwrap();
        }
        let log = Log::default();
        let by_id = models.iter().map(|model| (model.id.clone(), model.clone()));
        let loader = ScriptedLoader {
            models: by_id.collect(),
            log: Arc::clone(&log),
        };
        Self::serve(settings, grace, models_dir, Arc::new(loader), log)
    }

    /// A server with the models in a directory, as `loader` loads them.
    pub fn with_loader(models_dir: tempfile::TempDir, loader: Arc<dyn Loader>) -> Self {
        let grace = Duration::from_secs(5);
        Self::serve(
            Settings::default(),
            grace,
            models_dir,
            loader,
            Log::default(),
        )
    }

    fn serve(
        settings: Settings,
        grace: Duration,
        models_dir: tempfile::TempDir,
        loader: Arc<dyn Loader>,
        log: Log,
    ) -> Self {
        let host_settings = HostSettings {
            models_dir: models_dir.path().to_owned(),
            keep_alive: KeepAlive::Forever,
            memory_budget: None,
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let host = Host::new(host_settings, loader, Arc::new(()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let server = Server {
            host: Arc::clone(&host),
            metrics: Arc::new(Metrics::new()),
            settings,
        };
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let served = runtime.spawn(server.serve(listener, shutdown.clone(), grace));
        drop(_inside);
        Self {
            address,
            host,
            log,
            shutdown,
            served: Some(served),
            runtime,
            _models_dir: models_dir,
        }
    }

    /// Begins to shut down.
    pub fn stop(&self) {
        self.shutdown.cancel();
    }

    /// Whether all requests finished in time; waits for the end.
    pub fn wait(&mut self) -> bool {
        let served = self.served.take().unwrap();
        let served = async { tokio::time::timeout(PATIENCE, served).await };
        self.runtime.block_on(served).unwrap().unwrap().unwrap()
    }

    /// Unloads all models.
    pub fn unload(&self) {
        self.runtime.block_on(self.host.shutdown());
    }

    /// Sends a request; its answer may be read at leisure.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Call {
        let mut call = Call::connect(self.address);
        call.send(method, path, headers, body);
        call
    }

    pub fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"").reply()
    }

    /// Posts JSON.
    pub fn begin(&self, path: &str, body: &Value) -> Call {
        let headers = [("content-type", "application/json")];
        self.send("POST", path, &headers, body.to_string().as_bytes())
    }

    /// Asks for a chat completion of `hi`, with further fields.
    pub fn begin_chat(&self, more: Value) -> Call {
        self.begin("/v1/chat/completions", &chat_body(more))
    }

    pub fn chat(&self, more: Value) -> Reply {
        self.begin_chat(more).reply()
    }

    /// What the engines have done with all requests that they are through with.
    pub fn seen(&self) -> Vec<Seen> {
        self.log.lock().unwrap().clone()
    }

    /// The same once there are `count`, with the time that took.
    pub fn wait_seen(&self, count: usize) -> Vec<Seen> {
        wait_until(|| self.seen().len() >= count);
        self.seen()
    }

    /// The sample lines of the metrics page that begin with `name`.
    pub fn samples(&self, name: &str) -> Vec<String> {
        let page = self.get("/metrics").ok();
        let text = String::from_utf8(page.body).unwrap();
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(str::to_owned).collect()
    }
}

/// The body of a chat request for model `m` with further fields; `null` takes one away.
pub fn chat_body(more: Value) -> Value {
    let mut body = json!({ "model": "m", "messages": [{ "role": "user", "content": "hi" }] });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// Waits until something holds, or fails.
#[track_caller]
pub fn wait_until(mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "it never happened");
        thread::sleep(Duration::from_millis(2));
    }
}

/// A connection with requests on it. Dropping it closes the connection.
pub struct Call {
    stream: BufReader<TcpStream>,
}

impl Call {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream: BufReader::new(stream),
        }
    }

    pub fn send(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str("host: localhost\r\n");
        }
        if !headers.iter().any(|(name, _)| *name == "content-length") && method != "GET" {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        self.write(format!("{head}\r\n").as_bytes());
        self.write(body);
    }

    /// Sends bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Reads status and headers.
    pub fn head(&mut self) -> Reply {
        let status = self.line();
        let status = status
            .split(' ')
            .nth(1)
            .unwrap_or_else(|| panic!("{status:?}"));
        let mut reply = Reply {
            status: status.parse().unwrap(),
            headers: Vec::new(),
            body: Vec::new(),
        };
        loop {
            let line = self.line();
            match line.split_once(':') {
                Some((name, value)) => {
                    let pair = (name.to_lowercase(), value.trim().to_owned());
                    reply.headers.push(pair);
                }
                None => return reply,
            }
        }
    }

    /// The next piece of a chunked body; empty at its end.
    pub fn chunk(&mut self) -> String {
        let len = usize::from_str_radix(&self.line(), 16).unwrap();
        let mut piece = vec![0; len + 2];
        self.stream.read_exact(&mut piece).unwrap();
        piece.truncate(len);
        String::from_utf8(piece).unwrap()
    }

    /// Reads the whole answer; the connection stays open.
    pub fn reply_on(&mut self) -> Reply {
        let mut reply = self.head();
        if reply.header("transfer-encoding") == Some("chunked") {
            loop {
                let chunk = self.chunk();
                if chunk.is_empty() {
                    return reply;
                }
                reply.body.extend_from_slice(chunk.as_bytes());
            }
        }
        let len = reply
            .header("content-length")
            .map_or(0, |len| len.parse().unwrap());
        reply.body.resize(len, 0);
        self.stream.read_exact(&mut reply.body).unwrap();
        reply
    }

    pub fn reply(mut self) -> Reply {
        self.reply_on()
    }

    /// Whether the server has closed the connection, waiting for it.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(header, _)| header == name);
        found.map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.status, 200, "{}", self.text());
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// Status, type, code, param: after a check that nothing else is in the error but a message.
    #[track_caller]
    pub fn error(&self) -> String {
        let body = self.json();
        let error = body["error"]
            .as_object()
            .unwrap_or_else(|| panic!("{body}"));
        assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
        let mut names: Vec<&String> = error.keys().collect();
        names.sort();
        assert_eq!(names, ["code", "message", "param", "type"], "{body}");
        assert!(!error["message"].as_str().unwrap().is_empty(), "{body}");
        assert_eq!(self.header("content-type"), Some("application/json"));
        let told = |name: &str| error[name].as_str().unwrap_or("-").to_owned();
        format!(
            "{} {} {} {}",
            self.status,
            told("type"),
            told("code"),
            told("param")
        )
    }

    /// The payloads of a stream, without comments; the last is `[DONE]`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let text = self.text();
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with(':'))
            .collect();
        let payload = |line: &&str| line.strip_prefix("data: ").unwrap().to_owned();
        let mut payloads: Vec<String> = lines.iter().map(payload).collect();
        assert_eq!(payloads.pop().as_deref(), Some("[DONE]"), "{text}");
        payloads
            .iter()
            .map(|payload| serde_json::from_str(payload).unwrap())
            .collect()
    }
}
