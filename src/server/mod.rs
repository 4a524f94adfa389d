//! The HTTP server: requests in OpenAI's dialect, answers from the models of a [`Host`].
//!
//! Listener and shutdown signal are handed in. `router.rs` says what is where and in which order a request is checked,
//! `openai/chat.rs` is the main endpoint, `generation.rs` what happens between a request and its answer in any dialect,
//! `error.rs` how failures become statuses. Nothing here knows tokens' meaning or tensors.

mod app;
mod auth;
mod body;
mod clock;
mod connections;
mod embedding;
mod error;
mod fields;
mod generation;
mod guard;
mod openai;
mod record;
mod request_id;
mod router;
mod sse;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use auth::ApiKeys;

use crate::error::{Error, Result};
use crate::host::Host;
use crate::telemetry::Metrics;
use app::App;
use guard::Guard;

/// How the server treats requests.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The keys that open everything but `/health`; none: everybody may ask.
    pub api_keys: ApiKeys,
    /// How long a request may take, without the time that loading its model takes; `None`: as long as it likes.
    pub request_timeout: Option<Duration>,
    /// Host names that the server answers to besides loopback names and addresses; `*` for all. On a loopback address other
    /// names are refused; elsewhere they are when this is not empty.
    pub allowed_hosts: Vec<String>,
    /// Origins such as `https://chat.example` whose pages may use the server from a browser; `*` for all. They get CORS
    /// headers, others none.
    pub allowed_origins: Vec<String>,
    /// Most bytes of a request body.
    pub max_body_bytes: usize,
    /// A stream in which nothing happens gets a comment after so long.
    pub sse_keep_alive: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            api_keys: ApiKeys::default(),
            request_timeout: Some(Duration::from_secs(300)),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            max_body_bytes: 32 << 20,
            sse_keep_alive: Duration::from_secs(8),
        }
    }
}

/// A server that is ready to serve.
pub struct Server {
    /// The models.
    pub host: Arc<Host>,
    /// Where numbers are kept, and exported from at `/metrics`.
    pub metrics: Arc<Metrics>,
    /// How it treats requests.
    pub settings: Settings,
}

impl Server {
    /// Answers the connections of `listener` until `shutdown`, then lets running requests finish for `grace` at most; those
    /// that come meanwhile are turned away. Returns whether all of them finished. The models stay loaded.
    ///
    /// # Errors
    /// `Io` when the listener has no address; `Invalid` when an allowed origin is none.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: CancellationToken,
        grace: Duration,
    ) -> Result<bool> {
        let address = listener.local_addr().map_err(|cause| {
            Error::new(crate::error::ErrorKind::Io, "the listener has no address")
                .with_source(cause)
        })?;
        let Self {
            host,
            metrics,
            settings,
        } = self;
        let guard = Guard::new(
            address.ip().to_canonical().is_loopback(),
            &settings.allowed_hosts,
            &settings.allowed_origins,
        );
        let app = App::new(host, metrics, settings, guard);
        let router = router::router(&app)?;
        Ok(connections::serve(&app, router, listener, shutdown, grace).await)
    }
}
