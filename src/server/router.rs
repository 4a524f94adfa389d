//! What is where, and what every request goes through: id and span, draining, host and origin, CORS, key, handler.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowOrigin, CorsLayer};
use tracing::{Instrument, debug, info, warn};

use super::app::App;
use super::clock::Clock;
use super::error::ApiError;
use super::openai::{chat, embeddings, models, rerank};
use super::request_id;
use crate::error::{Error, Result};
use crate::telemetry;
use crate::telemetry::metrics::{CONTENT_TYPE, ModelMemory};

/// All routes with all layers.
///
/// # Errors
/// `Invalid` when an allowed origin cannot be one.
pub(super) fn router(app: &Arc<App>) -> Result<Router> {
    let mut router = Router::new()
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .route("/v1/models", get(models::list))
        .route("/v1/models/running", get(models::running))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/rerank", post(rerank::rerank))
        .method_not_allowed_fallback(wrong_method)
        .fallback(unknown_path)
        .layer(from_fn_with_state(Arc::clone(app), check_key));
    if let Some(cors) = cors(&app.settings().allowed_origins)? {
        router = router.layer(cors);
    }
    Ok(router
        .layer(from_fn_with_state(Arc::clone(app), check_place))
        .layer(CatchPanicLayer::custom(|_| {
            ApiError::panicked().into_response()
        }))
        .layer(from_fn_with_state(Arc::clone(app), enter))
        .with_state(Arc::clone(app)))
}

async fn health() -> Response {
    Json(json!({ "status": "ok" })).into_response()
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let memory = app.host().running().into_iter().map(|model| ModelMemory {
        id: model.id,
        weight_bytes: model.weight_bytes,
        kv_bytes: model.kv_bytes,
    });
    let loaded: Vec<ModelMemory> = memory
        .filter(|model| model.weight_bytes + model.kv_bytes > 0)
        .collect();
    let page = app.metrics().render(&loaded);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response()
}

async fn unknown_path(request: Request) -> ApiError {
    ApiError::unknown_path(request.method().as_str(), request.uri().path())
}

/// The router adds `Allow`, which is all that `OPTIONS` asks for.
async fn wrong_method(request: Request) -> Response {
    if request.method() == Method::OPTIONS {
        return StatusCode::NO_CONTENT.into_response();
    }
    ApiError::wrong_method(request.method().as_str(), request.uri().path()).into_response()
}

/// The outermost layer: the request gets its id, its clock and a span that all its log lines are in.
async fn enter(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let id = request_id::of(request.headers());
    let span = telemetry::request_span(&id);
    let clock = Clock::start(app.settings().request_timeout);
    request.extensions_mut().insert(clock);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let work = async {
        let response = admit(&app, request, next).await;
        log(&method, &path, begin, &response);
        response
    };
    let mut response = work.instrument(span).await;
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(request_id::HEADER, id);
    }
    response
}

/// Turns requests away while the server drains, and ends those that are still there when it stops.
async fn admit(app: &Arc<App>, request: Request, next: Next) -> Response {
    let _in_progress = app.life().request();
    if app.life().is_draining() {
        return ApiError::shutting_down().into_response();
    }
    tokio::select! {
        biased;
        response = next.run(request) => response,
        () = app.life().aborted() => ApiError::shutting_down().into_response(),
    }
}

fn log(method: &Method, path: &str, begin: Instant, response: &Response) {
    let status = response.status().as_u16();
    let total_ms = begin.elapsed().as_millis() as u64;
    match response.extensions().get::<ApiError>() {
        None => debug!(%method, path, status, total_ms, "request answered"),
        Some(error) if error.status().is_server_error() => {
            let error = error.message();
            warn!(%method, path, status, total_ms, error, "request failed");
        }
        Some(error) => {
            let error = error.message();
            info!(%method, path, status, total_ms, error, "request refused");
        }
    }
}

async fn check_place(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    app.guard().check(method, uri, headers)?;
    Ok(next.run(request).await)
}

/// Everything below `/v1` and the metrics are behind the key, things that do not exist included.
async fn check_key(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let path = request.uri().path();
    let is_locked = path == "/metrics" || path == "/v1" || path.starts_with("/v1/");
    if is_locked && !app.settings().api_keys.admit(request.headers()) {
        return Err(ApiError::unauthorized());
    }
    Ok(next.run(request).await)
}

/// CORS headers for the allowed origins; `None` when there are none, which is the default.
fn cors(origins: &[String]) -> Result<Option<CorsLayer>> {
    if origins.is_empty() {
        return Ok(None);
    }
    let allowed = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        let parsed = origins.iter().map(|origin| {
            origin
                .parse::<HeaderValue>()
                .map_err(|_| Error::invalid(format!("`{origin}` is not an origin")))
        });
        AllowOrigin::list(parsed.collect::<Result<Vec<_>>>()?)
    };
    let headers = [
        header::AUTHORIZATION,
        header::CONTENT_TYPE,
        header::HeaderName::from_static("x-api-key"),
        header::HeaderName::from_static(request_id::HEADER),
    ];
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(headers)
        .expose_headers([header::HeaderName::from_static(request_id::HEADER)]);
    Ok(Some(layer))
}
