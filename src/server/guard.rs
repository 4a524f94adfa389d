//! Against web pages that reach for a server on their visitor's machine.
//!
//! A page can make a browser send requests to a local address, directly or through a name of its own that it lets resolve to
//! 127.0.0.1 (DNS rebinding). The browser then sends that name as `Host`, and the page's address as `Origin`: what names
//! another place is refused. Reading answers from another origin takes CORS headers, which are only sent to allowed origins.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Method, Uri, header};

use super::error::ApiError;

/// The names that the server answers to, and the origins that may use it from a browser.
#[derive(Debug, Clone, Default)]
pub(super) struct Guard {
    /// Names are checked at all.
    checks_hosts: bool,
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// Stands for every host or every origin.
const ANY: &str = "*";

impl Guard {
    /// A server on a loopback address answers to loopback names, addresses and `allowed_hosts`; elsewhere names are checked
    /// only when there are allowed ones.
    pub(super) fn new(
        on_loopback: bool,
        allowed_hosts: &[String],
        allowed_origins: &[String],
    ) -> Self {
        let any_host = allowed_hosts.iter().any(|host| host == ANY);
        Self {
            checks_hosts: !any_host && (on_loopback || !allowed_hosts.is_empty()),
            hosts: allowed_hosts
                .iter()
                .map(|host| name_of(host.trim()))
                .collect(),
            origins: allowed_origins.to_vec(),
        }
    }

    /// Refuses a request that was meant for another host, or that a foreign page sent.
    pub(super) fn check(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), ApiError> {
        let host = requested_host(uri, headers)?;
        if let Some(host) = &host
            && self.checks_hosts
            && !is_local(host)
            && !self.hosts.contains(host)
        {
            return Err(ApiError::forbidden(
                "forbidden_host",
                format!(
                    "this server does not answer to the host name `{host}`: use `localhost`, an address, or a name \
                     given to `--allowed-hosts`"
                ),
            ));
        }
        let changes = !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        match headers.get(header::ORIGIN) {
            Some(origin) if changes => self.check_origin(origin.as_bytes(), host.as_deref()),
            _ => Ok(()),
        }
    }

    fn check_origin(&self, origin: &[u8], host: Option<&str>) -> Result<(), ApiError> {
        let origin = String::from_utf8_lossy(origin);
        let allowed = |known: &String| known == ANY || known.eq_ignore_ascii_case(&origin);
        if self.origins.iter().any(allowed) {
            return Ok(());
        }
        let web = ["http://", "https://"]
            .iter()
            .find_map(|scheme| origin.strip_prefix(scheme));
        let is_fine = match web {
            Some(place) => {
                let name = name_of(place);
                is_local(&name) || Some(name.as_str()) == host || self.hosts.contains(&name)
            }
            // Programs with a scheme of their own are no web pages. `null` is what pages in a sandbox send.
            None => origin != "null",
        };
        if is_fine {
            return Ok(());
        }
        Err(ApiError::forbidden(
            "forbidden_origin",
            format!("pages of `{origin}` may not use this server"),
        ))
    }
}

/// The name that the request is for: of the URI when it has one, else of the one `Host` header. HTTP/1.0 knows neither.
fn requested_host(uri: &Uri, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut sent = headers.get_all(header::HOST).iter();
    let (first, second) = (sent.next(), sent.next());
    if second.is_some() {
        return Err(ApiError::body(
            "the request has more than one `Host` header",
        ));
    }
    let wrong = || ApiError::body("the `Host` header is no host name");
    let of_header = match first {
        Some(value) => {
            let text = value.to_str().map_err(|_| wrong())?;
            let authority: Authority = text.parse().map_err(|_| wrong())?;
            Some(name_of(authority.as_str()))
        }
        None => None,
    };
    Ok(uri.host().map(name_of).or(of_header))
}

/// The name in `name:port`, in lower case, without brackets and final dot.
fn name_of(place: &str) -> String {
    let name = match place.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => match place.rsplit_once(':') {
            // More than one colon: an IPv6 address without brackets.
            Some((name, _)) if !name.contains(':') => name,
            _ => place,
        },
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Names and addresses that no foreign page can have: those of this machine, and numbers, which do not resolve.
fn is_local(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(on_loopback: bool, hosts: &[&str], origins: &[&str]) -> Guard {
        let owned = |texts: &[&str]| -> Vec<String> {
            texts.iter().map(|text| (*text).to_owned()).collect()
        };
        Guard::new(on_loopback, &owned(hosts), &owned(origins))
    }

    fn status(guard: &Guard, method: Method, uri: &str, pairs: &[(&'static str, &str)]) -> u16 {
        let pair =
            |(name, value): &(&'static str, &str)| (name.parse().unwrap(), value.parse().unwrap());
        let headers: HeaderMap = pairs.iter().map(pair).collect();
        let checked = guard.check(&method, &uri.parse().unwrap(), &headers);
        checked.map_or_else(|error| error.status().as_u16(), |()| 200)
    }

    #[test]
    fn on_loopback_only_local_and_allowed_names_are_answered() {
        let guard = guard(true, &["Box.example:8080"], &[]);
        let of = |host: &str| status(&guard, Method::GET, "/", &[("host", host)]);
        let fine = [
            "localhost",
            "LOCALHOST:11313",
            "localhost.",
            "app.localhost:1",
            "127.0.0.1",
            "127.0.0.1:11313",
            "192.168.1.2",
            "[::1]",
            "[::1]:11313",
            "box.example",
        ];
        for host in fine {
            assert_eq!(of(host), 200, "{host}");
        }
        let refused = [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "evil-localhost",
            "notbox.example:8080",
        ];
        for host in refused {
            assert_eq!(of(host), 403, "{host}");
        }
        let twice = [("host", "localhost"), ("host", "evil.example")];
        let mut headers = HeaderMap::new();
        for (name, value) in twice {
            headers.append(name, value.parse().unwrap());
        }
        let uri: Uri = "/".parse().unwrap();
        assert!(guard.check(&Method::GET, &uri, &headers).is_err());
        let proxied = "http://evil.example/v1/models";
        assert_eq!(
            status(&guard, Method::GET, proxied, &[("host", "localhost")]),
            403
        );
        assert_eq!(status(&guard, Method::GET, "/", &[]), 200);
    }

    #[test]
    fn elsewhere_any_name_is_fine_unless_some_are_given() {
        let of = |guard: &Guard| status(guard, Method::GET, "/", &[("host", "my.example")]);
        assert_eq!(of(&guard(false, &[], &[])), 200);
        assert_eq!(of(&guard(false, &["other.example"], &[])), 403);
        assert_eq!(of(&guard(true, &["*"], &[])), 200);
    }

    #[test]
    fn foreign_pages_may_not_post() {
        let guard = guard(true, &[], &["https://chat.example"]);
        let of = |method: Method, origin: &str| {
            let headers = [("host", "localhost:11313"), ("origin", origin)];
            status(&guard, method, "/", &headers)
        };
        let fine = [
            "https://chat.example",
            "http://localhost:3000",
            "http://127.0.0.1",
            "http://[::1]:5173",
            "vscode-webview://abc",
        ];
        for origin in fine {
            assert_eq!(of(Method::POST, origin), 200, "{origin}");
        }
        for origin in ["https://evil.example", "http://evil.example:80", "null"] {
            assert_eq!(of(Method::POST, origin), 403, "{origin}");
            assert_eq!(of(Method::GET, origin), 200, "{origin}");
        }
    }
}
