//! One HTTP client: JSON, the beginning of a file, and downloads that resume, retry and verify (`net/download.rs`).
//!
//! Redirects are followed here rather than by the HTTP library, because a token may only go to the origin (scheme, host and
//! port) that it was meant for, and an encrypted connection must not become a plain one. Messages never contain addresses
//! that a server sent (they may be signed) nor tokens.

mod download;

use std::io::Read;
use std::time::Duration;

use serde::de::DeserializeOwned;
use ureq::http::{StatusCode, Uri};
use ureq::{Agent, Body};

use crate::error::{Error, ErrorKind, Result};

pub use download::{Download, Observer};

const MAX_REDIRECTS: usize = 10;
const MAX_JSON_BYTES: u64 = 64 << 20;

/// How patient the client is.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// A connection that brings nothing for so long is broken.
    pub stall: Duration,
    /// Connections per file that bring nothing new before giving up.
    pub attempts: u32,
    /// Pause between them.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            stall: Duration::from_secs(60),
            attempts: 5,
            pause: Duration::from_secs(2),
        }
    }
}

/// What to ask for.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// The address.
    pub url: &'a str,
    /// What to call it in messages.
    pub name: &'a str,
    /// Bearer token for the address's origin.
    pub token: Option<&'a str>,
}

/// An HTTP client with a connection pool.
#[derive(Debug, Clone)]
pub struct Client {
    agent: Agent,
    patience: Patience,
}

impl Client {
    /// A client; proxies come from the usual environment variables.
    pub fn new(patience: Patience) -> Self {
        let config = Agent::config_builder()
            .user_agent(concat!("oxydllm/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(Duration::from_secs(30).min(patience.stall)))
            .timeout_connect(Some(Duration::from_secs(30).min(patience.stall)))
            .timeout_recv_response(Some(patience.stall))
            .timeout_per_read(Some(patience.stall))
            .build();
        Self {
            agent: config.new_agent(),
            patience,
        }
    }

    /// A JSON document.
    ///
    /// # Errors
    /// As [`Client::prefix`], and `Invalid` when the answer is not the expected JSON.
    pub fn json<T: DeserializeOwned>(&self, target: Target<'_>) -> Result<T> {
        let mut answer = self.with_retries(|| {
            let answer = self.get(target, None)?;
            if answer.status().is_success() {
                Ok(answer)
            } else {
                Err(refused(answer.status(), target.name))
            }
        })?;
        answer
            .body_mut()
            .with_config()
            .limit(MAX_JSON_BYTES)
            .read_json()
            .map_err(|cause| {
                Error::invalid(format!(
                    "the answer about `{}` is not the JSON that was expected",
                    target.name
                ))
                .with_source(cause)
            })
    }

    /// The first `length` bytes of a file, or all of a shorter one, also from servers that ignore ranges.
    ///
    /// # Errors
    /// `Io` when the network fails, `NotFound` or `Invalid` for what the server refuses.
    pub fn prefix(&self, target: Target<'_>, length: u64) -> Result<Vec<u8>> {
        self.with_retries(|| {
            let answer = self.get(target, Some((0, Some(length))))?;
            if !answer.status().is_success() {
                return Err(refused(answer.status(), target.name));
            }
            let mut bytes = Vec::new();
            let read = answer
                .into_body()
                .into_reader()
                .take(length)
                .read_to_end(&mut bytes);
            read.map_err(|cause| Failure::again(broken(target.name).with_source(cause)))?;
            Ok(bytes)
        })
    }

    fn with_retries<T>(&self, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T> {
        let mut failures = 0;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Failure {
                    error,
                    is_final: true,
                }) => return Err(error),
                Err(Failure { error, .. }) => {
                    failures += 1;
                    // Questions are cheap to repeat by hand; a person waits for them.
                    if failures >= self.patience.attempts.min(3) {
                        return Err(error);
                    }
                    tracing::info!(error = error.chain(), "asking again");
                    std::thread::sleep(self.patience.pause);
                }
            }
        }
    }

    /// One request with its redirects. `range` is first byte and length.
    fn get(
        &self,
        target: Target<'_>,
        range: Option<(u64, Option<u64>)>,
    ) -> Result<ureq::http::Response<Body>, Failure> {
        let bad = || {
            Failure::end(Error::invalid(format!(
                "the address of `{}` is malformed",
                target.name
            )))
        };
        let origin: Uri = target.url.parse().map_err(|_| bad())?;
        let mut uri = origin.clone();
        for _ in 0..=MAX_REDIRECTS {
            // A compressed answer has other byte positions than the file.
            let mut request = self
                .agent
                .get(uri.clone())
                .header("Accept-Encoding", "identity");
            if let Some(token) = target.token.filter(|_| is_same_origin(&origin, &uri)) {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            if let Some((start, length)) = range {
                let end = length.map_or(String::new(), |length| {
                    (start + length.max(1) - 1).to_string()
                });
                request = request.header("Range", format!("bytes={start}-{end}"));
            }
            let answer = request
                .call()
                .map_err(|cause| Failure::from_call(target.name, cause))?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let location = answer
                .headers()
                .get("Location")
                .and_then(|value| value.to_str().ok());
            let next = location
                .and_then(|location| redirect_target(&uri, location))
                .ok_or_else(bad)?;
            if uri.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                let message = format!(
                    "`{}` is redirected to an unencrypted address, not following",
                    target.name
                );
                return Err(Failure::end(Error::invalid(message)));
            }
            uri = next;
        }
        Err(Failure::end(Error::invalid(format!(
            "`{}` is redirected more than {MAX_REDIRECTS} times",
            target.name
        ))))
    }
}

/// A failed attempt, and whether another one may help.
#[derive(Debug)]
struct Failure {
    error: Error,
    is_final: bool,
}

impl Failure {
    fn again(error: Error) -> Self {
        Self {
            error,
            is_final: false,
        }
    }

    fn end(error: Error) -> Self {
        Self {
            error,
            is_final: true,
        }
    }

    fn from_call(name: &str, cause: ureq::Error) -> Self {
        match cause {
            // Its text quotes the address.
            ureq::Error::BadUri(_) => Self::end(Error::invalid(format!(
                "the address of `{name}` is malformed"
            ))),
            cause => Self::again(broken(name).with_source(cause)),
        }
    }
}

fn broken(name: &str) -> Error {
    Error::new(
        ErrorKind::Io,
        format!("cannot get `{name}` over the network"),
    )
}

/// What a status that is no success means. Servers that are busy or broken may be asked again.
fn refused(status: StatusCode, name: &str) -> Failure {
    match status.as_u16() {
        401 => Failure::end(
            Error::invalid(format!("access to `{name}` needs a valid token (HTTP 401)")).with_hint(
                "check the spelling of the name; for a private or gated repository create a token in the settings of your hub \
                 account and give it with `--token` or in `HF_TOKEN`",
            ),
        ),
        403 => Failure::end(
            Error::invalid(format!("access to `{name}` is denied (HTTP 403)"))
                .with_hint("accept the licence on the model's page, with the account that the token belongs to"),
        ),
        404 => Failure::end(Error::not_found(format!("`{name}` does not exist (HTTP 404)"))),
        408 | 429 | 500..=599 => Failure::again(Error::new(
            ErrorKind::Io,
            format!("the server cannot deliver `{name}` now (HTTP {status})"),
        )),
        _ => Failure::end(Error::new(ErrorKind::Io, format!("the server answered the request for `{name}` with HTTP {status}"))),
    }
}

fn is_same_origin(one: &Uri, other: &Uri) -> bool {
    let origin = |uri: &Uri| {
        let default_port = if uri.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        let host = uri.host().unwrap_or_default().to_ascii_lowercase();
        (
            uri.scheme_str().map(str::to_ascii_lowercase),
            host,
            uri.port_u16().unwrap_or(default_port),
        )
    };
    origin(one) == origin(other)
}

/// Where `location`, sent by `base`, points: absolute, or relative to its scheme, host or folder.
fn redirect_target(base: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    let text = if location.starts_with("http://") || location.starts_with("https://") {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let folder = base
            .path()
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    text.split('#').next()?.parse().ok()
}

/// Encodes a path for an address; slashes stay.
pub fn encode_path(path: &str) -> String {
    let mut text = String::new();
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(byte))
            }
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let same =
            |one: &str, other: &str| is_same_origin(&one.parse().unwrap(), &other.parse().unwrap());
        assert!(same("https://Hub.example/a", "https://hub.example:443/b?c"));
        assert!(!same("https://hub.example/a", "http://hub.example/a"));
        assert!(!same("https://hub.example/a", "https://cdn.hub.example/a"));
        assert!(!same("http://127.0.0.1:1000/a", "http://127.0.0.1:1001/a"));
        assert!(!same(
            "https://hub.example/a",
            "https://hub.example@evil.example/a"
        ));
    }

    #[test]
    fn redirects_may_be_relative() {
        let base = "https://hub.example/a/b?c".parse().unwrap();
        let cases = [
            ("https://x.example/y", "https://x.example/y"),
            ("//x.example/y", "https://x.example/y"),
            ("/y?z", "https://hub.example/y?z"),
            ("y#part", "https://hub.example/a/y"),
        ];
        for (location, expected) in cases {
            assert_eq!(
                redirect_target(&base, location).unwrap().to_string(),
                expected
            );
        }
        assert!(redirect_target(&base, "https://").is_none());
    }

    #[test]
    fn paths_are_encoded_but_keep_their_slashes() {
        assert_eq!(encode_path("a b/c#d%é.gguf"), "a%20b/c%23d%25%C3%A9.gguf");
    }
}
