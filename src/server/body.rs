//! Reading a request's body as JSON, within a size, a depth and the time limit.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use serde_json::Value;

use super::app::App;
use super::clock::Clock;
use super::error::ApiError;

/// A body larger than this is parsed on a thread where that holds up nobody.
const LARGE_BYTES: usize = 64 << 10;

/// How much of a body that is too large is still read and thrown away, as a multiple of what is allowed. A client that is
/// still sending when the connection closes would not see the answer.
const DRAINED: usize = 8;

/// What `check` makes of the body of `request`.
///
/// # Errors
/// 400 without a content type and for what is not JSON, 415 for another content type, 413 when it is larger than the settings
/// allow, 408 when it does not come in time; those of `check`.
pub(super) async fn read_json<T: Send + 'static>(
    request: Request,
    app: &App,
    clock: &Clock,
    check: impl FnOnce(Value) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    check_media_type(request.headers())?;
    let limit = app.settings().max_body_bytes;
    let bytes = clock.limit(read(request, limit)).await??;
    if bytes.is_empty() {
        return Err(ApiError::body(
            "the request body is empty, expected a JSON object",
        ));
    }
    let is_large = bytes.len() > LARGE_BYTES;
    let _turn = if is_large {
        app.large_bodies().acquire().await.ok()
    } else {
        None
    };
    off_thread_if(is_large, move || check(parse(&bytes)?)).await
}

/// Runs `work` where it may take its time, when it is large.
pub(super) async fn off_thread_if<T: Send + 'static>(
    is_large: bool,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    if !is_large {
        return work();
    }
    let span = tracing::Span::current();
    let work = tokio::task::spawn_blocking(move || span.in_scope(work));
    work.await.unwrap_or_else(|_| Err(ApiError::panicked()))
}

fn check_media_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let encoding = headers.get(header::CONTENT_ENCODING);
    if let Some(encoding) = encoding.filter(|encoding| *encoding != "identity") {
        let encoding = String::from_utf8_lossy(encoding.as_bytes());
        return Err(ApiError::content_encoding(&super::fields::clipped(
            &encoding,
        )));
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else {
        return Err(ApiError::media_type(None));
    };
    let text = String::from_utf8_lossy(value.as_bytes());
    let media_type = text.split(';').next().unwrap_or_default().trim();
    let media_type = media_type.to_ascii_lowercase();
    let is_json = media_type == "application/json"
        || (media_type.starts_with("application/") && media_type.ends_with("+json"));
    if is_json {
        Ok(())
    } else {
        Err(ApiError::media_type(Some(&super::fields::clipped(&text))))
    }
}

async fn read(request: Request, limit: usize) -> Result<Vec<u8>, ApiError> {
    let announced = announced_len(request.headers());
    let waits_for_leave = request.headers().contains_key(header::EXPECT);
    let body = request.into_body();
    if announced.is_some_and(|len| len > limit) {
        if !waits_for_leave {
            drain(body, limit).await;
        }
        return Err(ApiError::too_large(limit));
    }
    // Not more than a little of what it merely says that it will send.
    let mut bytes = Vec::with_capacity(announced.unwrap_or(0).min(LARGE_BYTES));
    let mut stream = body.into_data_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|cause| {
            ApiError::body(format!("the request body could not be read: {cause}"))
        })?;
        if bytes.len() + piece.len() > limit {
            drop(bytes);
            drain(Body::from_stream(stream), limit).await;
            return Err(ApiError::too_large(limit));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn announced_len(headers: &HeaderMap) -> Option<usize> {
    let text = headers.get(header::CONTENT_LENGTH)?.to_str().ok()?;
    text.parse().ok()
}

async fn drain(body: Body, limit: usize) {
    let mut left = limit.saturating_mul(DRAINED);
    let mut stream = body.into_data_stream();
    while let Some(Ok(piece)) = stream.next().await {
        match left.checked_sub(piece.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// Nesting is bounded by the parser, at 128 levels.
fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    serde_json::from_slice(bytes)
        .map_err(|cause| ApiError::body(format!("the request body is not valid JSON: {cause}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        for open in ["[", "{\"a\":"] {
            let error = parse(open.repeat(100_000).as_bytes()).unwrap_err();
            assert!(error.message().contains("recursion limit"), "{error:?}");
        }
        let deep = format!("{}{}", "[".repeat(100), "]".repeat(100));
        assert!(parse(deep.as_bytes()).is_ok());
    }

    #[test]
    fn numbers_that_are_none_are_no_json() {
        for text in ["NaN", "Infinity", "-Infinity", "1e999", "01", "+1"] {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn only_json_media_types_pass() {
        let status = |value: Option<&str>| {
            let headers: HeaderMap = value
                .map(|value| (header::CONTENT_TYPE, value.parse().unwrap()))
                .into_iter()
                .collect();
            check_media_type(&headers).map_or_else(|error| error.status().as_u16(), |()| 200)
        };
        assert_eq!(status(None), 400);
        for fine in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/vnd.api+json",
        ] {
            assert_eq!(status(Some(fine)), 200, "{fine}");
        }
        for wrong in [
            "text/plain",
            "text/plain;application/json",
            "application/x-www-form-urlencoded",
            "application/jsonp",
            "",
        ] {
            assert_eq!(status(Some(wrong)), 415, "{wrong}");
        }
    }
}
