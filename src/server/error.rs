//! [`ApiError`]: what a client is told when a request fails. The only place that knows status codes of failures.
//!
//! Kinds of [`Error`] decide the status, never words of a message; where one kind means different things (a missing model is
//! the client's mistake, a missing file of a model is not) the caller says which by the constructor it takes. The body is
//! OpenAI's; another dialect can shape one of its own from the same parts.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind};
use crate::telemetry::metrics::Outcome;
use crate::units::format_size;

/// Seconds after which a client that was turned away may try again.
const RETRY_AFTER: Header = ("retry-after", "1");

/// The connection ends with the answer.
const CLOSE: Header = ("connection", "close");

/// A header with its value.
type Header = (&'static str, &'static str);

/// The kind of failure of bad requests.
pub const INVALID_REQUEST: &str = "invalid_request_error";
/// The kind of failures on this side.
pub const SERVER_ERROR: &str = "server_error";

/// A failed request: status, OpenAI's `type`, `code`, `param` and `message`, and headers that belong to it.
#[derive(Debug, Clone)]
pub struct ApiError {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    header: Option<Header>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code: None,
            param: None,
            message: message.into(),
            header: None,
        }
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
    }

    fn server(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, SERVER_ERROR, message)
    }

    /// The same with OpenAI's `code`.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The same, blamed on the field `param`.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    fn with_header(mut self, header: Header) -> Self {
        self.header = Some(header);
        self
    }

    /// A field has a value that it must not have.
    pub fn field(param: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self::bad_request(message).with_param(param).with_code(code)
    }

    /// The body is not what it should be, as a whole.
    pub fn body(message: impl Into<String>) -> Self {
        Self::bad_request(message)
    }

    /// The body has another media type, `found` if any was given.
    pub fn media_type(found: Option<&str>) -> Self {
        const EXPECTED: &str = "expected `Content-Type: application/json`";
        match found {
            None => Self::bad_request(format!("the request has no content type, {EXPECTED}")),
            Some(found) => Self::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                INVALID_REQUEST,
                format!("the content type is `{found}`, {EXPECTED}"),
            ),
        }
    }

    /// The body is compressed.
    pub fn content_encoding(found: &str) -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            INVALID_REQUEST,
            format!("the request body is encoded as `{found}`, expected it as it is"),
        )
    }

    /// The body is larger than `limit` bytes.
    pub fn too_large(limit: usize) -> Self {
        let limit = format_size(limit as u64);
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            INVALID_REQUEST,
            format!("the request body is too large, at most {limit} are allowed"),
        )
        .with_header(CLOSE)
    }

    /// There is nothing at `path`.
    pub fn unknown_path(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            INVALID_REQUEST,
            format!("there is nothing at `{method} {path}`"),
        )
        .with_code("unknown_url")
    }

    /// What is at `path` does not understand `method`. The router adds what is allowed.
    pub fn wrong_method(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            INVALID_REQUEST,
            format!("`{path}` does not answer `{method}`"),
        )
        .with_code("method_not_allowed")
    }

    /// No key, or a wrong one.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "invalid_api_key",
            "missing or invalid API key: send `Authorization: Bearer <key>` or `X-API-Key: <key>`",
        )
        .with_code("invalid_api_key")
        .with_header(("www-authenticate", "Bearer"))
    }

    /// The request comes from where none may come from.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, INVALID_REQUEST, message).with_code(code)
    }

    /// The time limit passed.
    pub fn timeout(limit: Duration) -> Self {
        let limit = limit.as_secs_f64();
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "request_timeout",
            format!("the request took longer than the time limit of {limit} s"),
        )
        .with_code("request_timeout")
    }

    /// The server is going away.
    pub fn shutting_down() -> Self {
        Self::server(
            StatusCode::SERVICE_UNAVAILABLE,
            "the server is shutting down",
        )
        .with_code("server_shutting_down")
        .with_header(CLOSE)
    }

    /// A panic, already logged.
    pub fn panicked() -> Self {
        Self::server(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the server failed while it worked on this request",
        )
    }

    /// A model name did not lead to one model.
    pub fn unresolved(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::NotFound => {
                Self::new(StatusCode::NOT_FOUND, INVALID_REQUEST, with_hint(error))
                    .with_code("model_not_found")
                    .with_param("model")
            }
            ErrorKind::Invalid => Self::bad_request(with_hint(error)).with_param("model"),
            _ => Self::from(error),
        }
    }

    /// A model that exists cannot be loaded. Whatever is wrong with its files is not the client's mistake.
    pub fn load_failed(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Unsupported => Self::bad_request(with_hint(error))
                .with_code("model_not_supported")
                .with_param("model"),
            ErrorKind::NotFound | ErrorKind::Invalid | ErrorKind::ContextLength => {
                Self::server(StatusCode::INTERNAL_SERVER_ERROR, with_hint(error))
                    .with_code("model_load_failed")
            }
            _ => Self::from(error),
        }
    }

    /// A model is not made for what it was asked.
    pub fn wrong_kind(error: &Error) -> Self {
        Self::bad_request(with_hint(error))
            .with_code("model_not_supported")
            .with_param("model")
    }

    /// A conversation could not be made a prompt of.
    pub fn no_prompt(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Invalid => Self::bad_request(with_hint(error)).with_param("messages"),
            ErrorKind::Unsupported => Self::bad_request(with_hint(error)).with_param("model"),
            ErrorKind::Internal => Self::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "template_render_failed",
                with_hint(error),
            ),
            _ => Self::from(error),
        }
    }

    /// How the metrics count it; `None` for mistakes of the client, which they leave out.
    pub fn outcome(&self) -> Option<Outcome> {
        match self.status {
            StatusCode::REQUEST_TIMEOUT => Some(Outcome::Timeout),
            StatusCode::TOO_MANY_REQUESTS => Some(Outcome::Rejected),
            status if status.is_server_error() && self.code == Some("server_shutting_down") => {
                Some(Outcome::Cancelled)
            }
            status if status.is_server_error() => Some(Outcome::Error),
            _ => None,
        }
    }

    /// What happened, for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The status.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// `{"error": {"message", "type", "param", "code"}}`.
    pub fn to_openai(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl From<&Error> for ApiError {
    fn from(error: &Error) -> Self {
        use StatusCode as Status;
        let message = with_hint(error);
        match error.kind() {
            ErrorKind::Invalid | ErrorKind::Unsupported => Self::bad_request(message),
            ErrorKind::ContextLength => Self::bad_request(message)
                .with_code("context_length_exceeded")
                .with_param("messages"),
            ErrorKind::NotFound => Self::new(Status::NOT_FOUND, INVALID_REQUEST, message),
            ErrorKind::OutOfMemory => {
                Self::server(Status::INSUFFICIENT_STORAGE, message).with_code("insufficient_memory")
            }
            ErrorKind::Overloaded => {
                Self::new(Status::TOO_MANY_REQUESTS, "rate_limit_error", message)
                    .with_code("rate_limit_exceeded")
                    .with_header(RETRY_AFTER)
            }
            ErrorKind::Unavailable => {
                Self::server(Status::SERVICE_UNAVAILABLE, message).with_header(RETRY_AFTER)
            }
            _ => Self::server(Status::INTERNAL_SERVER_ERROR, message),
        }
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

/// Message, causes and what to do about it, in one line.
fn with_hint(error: &Error) -> String {
    match error.hint() {
        Some(hint) => format!("{} ({hint})", error.chain()),
        None => error.chain(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_openai())).into_response();
        if let Some((name, value)) = self.header {
            let name = HeaderName::from_static(name);
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        // For the log: the body is gone by then.
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status and body in one line.
    fn line(error: &ApiError) -> String {
        format!("{} {}", error.status().as_u16(), error.to_openai())
    }

    #[test]
    fn every_failure_has_one_shape() {
        let model = |kind| Error::new(kind, "words such as not found").with_hint("do this");
        let errors = [
            ApiError::field("top_p", "invalid_value", "`top_p` is odd"),
            ApiError::body("the body is not JSON"),
            ApiError::media_type(None),
            ApiError::media_type(Some("text/plain")),
            ApiError::too_large(32 << 20),
            ApiError::unknown_path("GET", "/x"),
            ApiError::wrong_method("PUT", "/health"),
            ApiError::unauthorized(),
            ApiError::forbidden("forbidden_host", "not here"),
            ApiError::timeout(Duration::from_millis(1500)),
            ApiError::shutting_down(),
            ApiError::panicked(),
            ApiError::unresolved(&model(ErrorKind::NotFound)),
            ApiError::unresolved(&model(ErrorKind::Invalid)),
            ApiError::load_failed(&model(ErrorKind::NotFound)),
            ApiError::load_failed(&model(ErrorKind::Unsupported)),
            ApiError::load_failed(&model(ErrorKind::OutOfMemory)),
            ApiError::no_prompt(&model(ErrorKind::Invalid)),
            ApiError::no_prompt(&model(ErrorKind::Internal)),
            ApiError::from(model(ErrorKind::ContextLength)),
            ApiError::from(model(ErrorKind::Overloaded)),
            ApiError::from(model(ErrorKind::Unavailable)),
            ApiError::from(model(ErrorKind::Io)),
        ];
        let lines: Vec<String> = errors.iter().map(line).collect();
        insta::assert_snapshot!(lines.join("\n"), @r#"
        400 {"error":{"message":"`top_p` is odd","type":"invalid_request_error","param":"top_p","code":"invalid_value"}}
        400 {"error":{"message":"the body is not JSON","type":"invalid_request_error","param":null,"code":null}}
        400 {"error":{"message":"the request has no content type, expected `Content-Type: application/json`","type":"invalid_request_error","param":null,"code":null}}
        415 {"error":{"message":"the content type is `text/plain`, expected `Content-Type: application/json`","type":"invalid_request_error","param":null,"code":null}}
        413 {"error":{"message":"the request body is too large, at most 32.0 MB are allowed","type":"invalid_request_error","param":null,"code":null}}
        404 {"error":{"message":"there is nothing at `GET /x`","type":"invalid_request_error","param":null,"code":"unknown_url"}}
        405 {"error":{"message":"`/health` does not answer `PUT`","type":"invalid_request_error","param":null,"code":"method_not_allowed"}}
        401 {"error":{"message":"missing or invalid API key: send `Authorization: Bearer <key>` or `X-API-Key: <key>`","type":"invalid_api_key","param":null,"code":"invalid_api_key"}}
        403 {"error":{"message":"not here","type":"invalid_request_error","param":null,"code":"forbidden_host"}}
        408 {"error":{"message":"the request took longer than the time limit of 1.5 s","type":"request_timeout","param":null,"code":"request_timeout"}}
        503 {"error":{"message":"the server is shutting down","type":"server_error","param":null,"code":"server_shutting_down"}}
        500 {"error":{"message":"the server failed while it worked on this request","type":"server_error","param":null,"code":null}}
        404 {"error":{"message":"words such as not found (do this)","type":"invalid_request_error","param":"model","code":"model_not_found"}}
        400 {"error":{"message":"words such as not found (do this)","type":"invalid_request_error","param":"model","code":null}}
        500 {"error":{"message":"words such as not found (do this)","type":"server_error","param":null,"code":"model_load_failed"}}
        400 {"error":{"message":"words such as not found (do this)","type":"invalid_request_error","param":"model","code":"model_not_supported"}}
        507 {"error":{"message":"words such as not found (do this)","type":"server_error","param":null,"code":"insufficient_memory"}}
        400 {"error":{"message":"words such as not found (do this)","type":"invalid_request_error","param":"messages","code":null}}
        500 {"error":{"message":"words such as not found (do this)","type":"template_render_failed","param":null,"code":null}}
        400 {"error":{"message":"words such as not found (do this)","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}
        429 {"error":{"message":"words such as not found (do this)","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}
        503 {"error":{"message":"words such as not found (do this)","type":"server_error","param":null,"code":null}}
        500 {"error":{"message":"words such as not found (do this)","type":"server_error","param":null,"code":null}}
        "#);
    }

    #[test]
    fn mistakes_of_the_client_are_not_counted_as_failures() {
        let outcome = |error: ApiError| error.outcome();
        assert_eq!(outcome(ApiError::body("x")), None);
        assert_eq!(outcome(ApiError::shutting_down()), Some(Outcome::Cancelled));
        assert_eq!(outcome(ApiError::panicked()), Some(Outcome::Error));
        assert_eq!(
            outcome(ApiError::from(Error::overloaded("x"))),
            Some(Outcome::Rejected)
        );
        assert_eq!(
            outcome(ApiError::timeout(Duration::ZERO)),
            Some(Outcome::Timeout)
        );
    }
}
