//! `start`: serves the local models until it is told to stop.

mod args;

use std::io::ErrorKind as Io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use args::StartArgs;

use super::list::abbreviate;
use super::{Printer, load};
use crate::env;
use crate::error::{Error, ErrorKind, Result};
use crate::host::{Host, KeepAlive, ModelLoader};
use crate::server::Server;
use crate::store;
use crate::telemetry::Metrics;
use crate::units::{format_duration, format_size};
use args::Settings;

/// Threads that read and write sockets; what computes has threads of its own.
const IO_THREADS: usize = 2;

/// How long models have to leave memory when the server ends. The system takes it back in any case.
const UNLOAD_TIME: Duration = Duration::from_secs(5);

/// Runs the command.
///
/// # Errors
/// Those of flags and variables, of choosing a device, and of listening.
pub fn execute(args: &StartArgs, _printer: &Printer) -> Result<ExitCode> {
    let settings = args.resolve()?;
    let dir = &settings.host.models_dir;
    std::fs::create_dir_all(dir).map_err(|cause| Error::io("create", dir, cause))?;
    // Before listening: a machine that cannot compute must not look like one that serves.
    let ctx = load::context(&args.device, &args.threads, |text| warn!("{text}"))?;
    let loader = ModelLoader::new(ctx, settings.load, settings.host.memory_budget);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(IO_THREADS)
        .thread_name("io")
        .enable_all()
        .build()
        .map_err(|cause| Error::new(ErrorKind::Io, "cannot start threads").with_source(cause))?;
    let code = runtime.block_on(serve(settings, loader));
    // A load that is still in progress cannot be stopped, and nobody waits for it any more.
    runtime.shutdown_background();
    code
}

async fn serve(settings: Settings, loader: ModelLoader) -> Result<ExitCode> {
    let shutdown = stop_on_signals()?;
    let listener = TcpListener::bind(settings.address)
        .await
        .map_err(|cause| cannot_listen(settings.address, cause))?;
    let address = listener.local_addr().unwrap_or(settings.address);
    announce(&settings, address)?;
    let host = Host::new(settings.host, Arc::new(loader), Arc::new(()));
    let server = Server {
        host: Arc::clone(&host),
        metrics: Arc::new(Metrics::new()),
        settings: settings.server,
    };
    let has_finished = server
        .serve(listener, shutdown, settings.shutdown_timeout)
        .await?;
    let _ = tokio::time::timeout(UNLOAD_TIME, host.shutdown()).await;
    if has_finished {
        info!("stopped");
        Ok(ExitCode::SUCCESS)
    } else {
        warn!("stopped before all requests were answered");
        Ok(ExitCode::FAILURE)
    }
}

/// What somebody who looks at the log wants to know first.
fn announce(settings: &Settings, address: SocketAddr) -> Result<()> {
    let models = store::scan(&settings.host.models_dir)?;
    let dir = abbreviate(&settings.host.models_dir, &env::home_dir());
    info!(directory = %dir, found = models.len(), "models");
    for model in &models {
        let state = if model.missing.is_empty() {
            "complete"
        } else {
            "incomplete"
        };
        info!(id = %model.id, architecture = %model.architecture, size = %format_size(model.size_bytes), state, "model");
    }
    if models.is_empty() {
        info!("there are no models yet: download one with `oxydllm pull user/model`");
    }
    let keep_alive = match settings.host.keep_alive {
        KeepAlive::After(time) => format_duration(time),
        KeepAlive::Forever => "for ever".to_owned(),
    };
    let budget = settings.host.memory_budget.map(format_size);
    let context = settings.load.max_context_len.map(|n| n.to_string());
    info!(
        keep_alive,
        memory_budget = budget.as_deref().unwrap_or("unlimited"),
        context = context
            .as_deref()
            .unwrap_or("the models' own, bounded by memory"),
        "settings"
    );
    let has_key = !settings.server.api_keys.is_empty();
    info!(%address, api_key = if has_key { "required" } else { "none" }, "listening");
    let base = base_url(address);
    info!("chat: {base}/v1/chat/completions");
    info!("models: {base}/v1/models, loaded ones: {base}/v1/models/running");
    info!("health: {base}/health, metrics: {base}/metrics");
    if !has_key && !address.ip().is_loopback() {
        warn!(
            "{address} can be reached from other machines and no API key is needed: set OXYDLLM_API_KEY, or listen on 127.0.0.1"
        );
    }
    Ok(())
}

/// The address for somebody on this machine.
fn base_url(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        format!("http://localhost:{}", address.port())
    } else {
        format!("http://{address}")
    }
}

fn cannot_listen(address: SocketAddr, cause: std::io::Error) -> Error {
    let error = Error::new(ErrorKind::Io, format!("cannot listen on `{address}`"));
    let error = match cause.kind() {
        Io::AddrInUse => error.with_hint(
            "another program has this port, perhaps an oxydllm that runs already; choose another with --port",
        ),
        Io::PermissionDenied => {
            error.with_hint("ports below 1024 need special rights; choose another with --port")
        }
        Io::AddrNotAvailable => {
            error.with_hint("no interface of this machine has that address; see --host")
        }
        _ => error,
    };
    error.with_source(cause)
}

/// A token that is cancelled by the first signal to stop; the second one ends the process at once.
fn stop_on_signals() -> Result<CancellationToken> {
    let shutdown = CancellationToken::new();
    let mut signals = Signals::install().map_err(|cause| {
        Error::new(ErrorKind::Io, "cannot install the handlers for signals").with_source(cause)
    })?;
    let token = shutdown.clone();
    tokio::spawn(async move {
        signals.next().await;
        info!(
            "stopping: running requests are finished first; a second signal ends the server at once"
        );
        token.cancel();
        signals.next().await;
        warn!("stopped at once");
        std::process::exit(1);
    });
    Ok(shutdown)
}

/// The signals that mean: stop.
#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn install() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The signals that mean: stop.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
