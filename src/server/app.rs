//! What every handler shares: the host, the metrics, the settings, and how far the server's life has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Settings;
use super::clock::Clock;
use super::error::ApiError;
use super::guard::Guard;
use super::record::Record;
use crate::error::Error;
use crate::host::{Host, Lease, wrong_kind};
use crate::model::ModelKind;
use crate::telemetry::Metrics;

/// The shared state.
pub(super) struct App {
    host: Arc<Host>,
    metrics: Arc<Metrics>,
    settings: Settings,
    guard: Guard,
    life: Life,
    sequences: AtomicU64,
    large_bodies: Semaphore,
}

/// Large bodies that are parsed at once: JSON takes many times its size in memory meanwhile.
const LARGE_BODIES: usize = 2;

/// From serving over draining to the end.
#[derive(Debug, Default)]
pub(super) struct Life {
    draining: CancellationToken,
    aborted: CancellationToken,
    requests: TaskTracker,
}

impl App {
    pub(super) fn new(
        host: Arc<Host>,
        metrics: Arc<Metrics>,
        settings: Settings,
        guard: Guard,
    ) -> Arc<Self> {
        Arc::new(Self {
            host,
            metrics,
            settings,
            guard,
            life: Life::default(),
            sequences: AtomicU64::new(1),
            large_bodies: Semaphore::new(LARGE_BODIES),
        })
    }

    pub(super) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    pub(super) fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    pub(super) fn life(&self) -> &Life {
        &self.life
    }

    /// Held while a large body is parsed.
    pub(super) fn large_bodies(&self) -> &Semaphore {
        &self.large_bodies
    }

    /// A number for a sequence, for logs.
    pub(super) fn next_sequence(&self) -> u64 {
        self.sequences.fetch_add(1, Ordering::Relaxed)
    }

    /// The model that a request names, loaded if need be; the time that takes does not count. A model that is not of the `wanted`
    /// kind is not loaded.
    ///
    /// # Errors
    /// 404 when there is none, 400 when the name fits several or the model is of another kind, 507 when it cannot fit, and what
    /// loading ends with.
    pub(super) async fn lease(
        self: &Arc<Self>,
        name: &str,
        wanted: ModelKind,
        clock: &mut Clock,
    ) -> Result<(Lease, Record), ApiError> {
        let (host, typed) = (Arc::clone(&self.host), name.to_owned());
        let resolve = move || {
            let id = host.resolve(&typed)?;
            let kind = host.kind(&id);
            Ok((id, kind))
        };
        let (id, kind) = tokio::task::spawn_blocking(resolve)
            .await
            .unwrap_or_else(|_| Err(Error::internal("the look-up of the model failed")))
            .map_err(|error| ApiError::unresolved(&error))?;
        let mut record = Record::open(self, &id);
        if kind != wanted {
            let error = ApiError::wrong_kind(&wrong_kind(kind, wanted));
            record.ended_by(&error);
            return Err(error);
        }
        match clock.pause(self.host.acquire(&id)).await {
            Ok(lease) => Ok((lease, record)),
            Err(error) => {
                let error = ApiError::load_failed(&error);
                record.ended_by(&error);
                Err(error)
            }
        }
    }
}

impl Life {
    /// Keeps the server from ending as long as the token lives.
    pub(super) fn request(&self) -> TaskTrackerToken {
        self.requests.token()
    }

    /// Whether new requests are turned away.
    pub(super) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Turns new requests away from now on.
    pub(super) fn drain(&self) {
        self.draining.cancel();
        self.requests.close();
    }

    /// Waits until no request is being worked on.
    pub(super) async fn idle(&self) {
        self.requests.wait().await;
    }

    /// Ends the requests that are being worked on.
    pub(super) fn abort(&self) {
        self.aborted.cancel();
    }

    /// Waits until requests must end.
    pub(super) async fn aborted(&self) {
        self.aborted.cancelled().await;
    }
}
