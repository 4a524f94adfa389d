//! Server-sent events: one `data:` line per event, comments while nothing happens, an end when the client goes.

use std::convert::Infallible;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{FutureExt, Stream};
use serde::Serialize;
use tokio::sync::mpsc;
use tracing::Instrument;

use super::app::App;

/// Events that wait for a slow client; more than that, and whoever makes them waits.
const BUFFERED: usize = 32;

/// A client that takes nothing for so long has gone.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where events go.
#[derive(Debug, Clone)]
pub(super) struct Events(mpsc::Sender<Event>);

/// The client takes no events any more.
#[derive(Debug)]
pub(super) struct Gone;

impl Events {
    /// Sends `payload` as JSON, once there is room.
    pub(super) async fn json(&self, payload: &impl Serialize) -> Result<(), Gone> {
        let event = Event::default().json_data(payload).map_err(|_| Gone)?;
        self.send(event).await
    }

    /// Sends a line as it is.
    pub(super) async fn text(&self, line: &str) -> Result<(), Gone> {
        self.send(Event::default().data(line)).await
    }

    async fn send(&self, event: Event) -> Result<(), Gone> {
        match tokio::time::timeout(PATIENCE, self.0.send(event)).await {
            Ok(Ok(())) => Ok(()),
            _ => Err(Gone),
        }
    }
}

/// A response whose events `work` makes. When the client goes away `work` is dropped, wherever it is; when it panics,
/// `last_words` are sent.
pub(super) fn response<W, F, L, E>(app: &Arc<App>, work: W, last_words: L) -> Response
where
    W: FnOnce(Events) -> F,
    F: Future<Output = Result<(), Gone>> + Send + 'static,
    L: FnOnce(Events) -> E + Send + 'static,
    E: Future<Output = Result<(), Gone>> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(BUFFERED);
    let events = Events(sender.clone());
    let work = AssertUnwindSafe(work(events.clone())).catch_unwind();
    let in_progress = app.life().request();
    let task = async move {
        tokio::select! {
            biased;
            () = sender.closed() => {}
            done = work => if done.is_err() {
                tracing::error!("an answer was cut short by a panic");
                let _ = last_words(events).await;
            },
        }
        drop(in_progress);
    };
    tokio::spawn(task.instrument(tracing::Span::current()));
    let keep_alive = KeepAlive::new()
        .interval(app.settings().sse_keep_alive)
        .text("keep-alive");
    let mut response = Sse::new(Received(receiver))
        .keep_alive(keep_alive)
        .into_response();
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

/// The receiver as a stream.
struct Received(mpsc::Receiver<Event>);

impl Stream for Received {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(Ok))
    }
}
