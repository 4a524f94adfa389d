//! The id of a request: in the `X-Request-Id` header of its answer and in all its log lines.

use axum::http::HeaderMap;
use uuid::Uuid;

/// The header, in both directions.
pub(super) const HEADER: &str = "x-request-id";

/// Longest id that is taken from a client.
const MAX_LEN: usize = 128;

/// The client's own id when it sent a sane one, else a new UUID.
pub(super) fn of(headers: &HeaderMap) -> String {
    let sent = headers.get(HEADER).and_then(|value| value.to_str().ok());
    match sent {
        Some(id) if is_sane(id) => id.to_owned(),
        _ => Uuid::new_v4().to_string(),
    }
}

/// Short, and nothing in it that could forge a log line or needs quoting.
fn is_sane(id: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/+=@".contains(c);
    (1..=MAX_LEN).contains(&id.len()) && id.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sane_ids_are_taken_and_others_replaced() {
        let of = |sent: &str| {
            let headers = [(HEADER.parse().unwrap(), sent.parse().unwrap())];
            of(&headers.into_iter().collect())
        };
        for id in ["a", "req_01H-x.y:z", "5f2c/7+8==@host"] {
            assert_eq!(of(id), id);
        }
        let long = "x".repeat(MAX_LEN + 1);
        for id in ["", "two words", "a,b", "\"", "a\tb", &long] {
            let made = Uuid::parse_str(&of(id)).unwrap();
            assert_eq!(made.get_version_num(), 4, "{id}");
        }
        assert_ne!(super::of(&HeaderMap::new()), super::of(&HeaderMap::new()));
    }
}
