//! Accepting connections, and ending in an orderly way.
//!
//! At shutdown the listener closes. Connections that are open stay so while requests are being worked on, and new requests on
//! them are told to go elsewhere. Then, or when the grace is over, what is left is ended: streams with an error, other
//! requests with 503. Connections on which nothing happens keep nobody waiting.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::app::App;

/// How long a connection may be idle, and a client may take to send the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);

/// How long requests that were ended have to send their last words.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// After the system refused a connection, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Serves until `shutdown`; returns whether all requests finished within `grace` after it.
pub(super) async fn serve(
    app: &Arc<App>,
    router: Router,
    listener: TcpListener,
    shutdown: CancellationToken,
    grace: Duration,
) -> bool {
    let connections = TaskTracker::new();
    let closing = CancellationToken::new();
    // Ends connections whatever happens to this future.
    let _dropping = closing.clone().drop_guard();
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = accept(&listener, &router, &connections, &closing) => {}
    }
    drop(listener);
    app.life().drain();
    connections.close();
    let has_finished = timeout(grace, app.life().idle()).await.is_ok();
    if !has_finished {
        warn!("requests were still running when the time to shut down was over");
        app.life().abort();
        let _ = timeout(LAST_WORDS, app.life().idle()).await;
    }
    closing.cancel();
    // A client that does not read its answer is not waited for.
    let _ = timeout(LAST_WORDS, connections.wait()).await;
    has_finished
}

async fn accept(
    listener: &TcpListener,
    router: &Router,
    connections: &TaskTracker,
    closing: &CancellationToken,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.spawn(connection(stream, router.clone(), closing.clone()));
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionAborted | Kind::ConnectionRefused | Kind::ConnectionReset
    )
}

async fn connection(stream: TcpStream, router: Router, closing: CancellationToken) {
    // Small chunks must not wait for each other.
    let _ = stream.set_nodelay(true);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended early");
    }
}
