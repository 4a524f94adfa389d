//! API keys: who may ask. Keys are kept and compared as hashes, so that a comparison tells neither content nor length.

use std::fmt;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::error::{Error, Result};

type Hash = [u8; 32];

/// The keys that open the server; with none it is open to everybody who reaches it.
#[derive(Clone, Default)]
pub struct ApiKeys(Vec<Hash>);

impl fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeys({} hashes)", self.0.len())
    }
}

impl ApiKeys {
    /// Accepts any of `keys`, white space around them apart.
    ///
    /// # Errors
    /// `Invalid` for a key that is empty or cannot be sent in a header: only visible ASCII without spaces can. The message does
    /// not repeat it.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Result<Self> {
        let hashed = |key: K| {
            let key = key.as_ref().trim();
            if key.is_empty() {
                return Err(Error::invalid("an API key is empty")
                    .with_hint("leave it out to serve without a key"));
            }
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Error::invalid(
                    "an API key holds characters that cannot be sent in a header",
                )
                .with_hint("use letters, digits and punctuation without spaces"));
            }
            Ok(hash(key.as_bytes()))
        };
        Ok(Self(keys.into_iter().map(hashed).collect::<Result<_>>()?))
    }

    /// Whether no key is needed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a request with these headers may pass. An `Authorization` header with the Bearer scheme is the only one that
    /// counts, even when it is wrong; with another scheme or without it, `X-API-Key` does.
    pub(super) fn admit(&self, headers: &HeaderMap) -> bool {
        self.is_empty() || sent_key(headers).is_some_and(|key| self.contains(key))
    }

    fn contains(&self, key: &[u8]) -> bool {
        let key = hash(key);
        let any = |found: Choice, known: &Hash| found | known.ct_eq(&key);
        self.0.iter().fold(Choice::from(0), any).into()
    }
}

fn hash(key: &[u8]) -> Hash {
    Sha256::digest(key).into()
}

fn sent_key(headers: &HeaderMap) -> Option<&[u8]> {
    let authorization = headers
        .get(header::AUTHORIZATION)
        .map(|value| value.as_bytes());
    authorization
        .and_then(bearer_token)
        .or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()))
        .map(|key| key.trim_ascii())
}

/// What follows the Bearer scheme, possibly nothing; `None` for another scheme.
fn bearer_token(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer";
    let (scheme, token) = value.split_at_checked(SCHEME.len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(SCHEME)
        && token.first().is_none_or(|byte| byte.is_ascii_whitespace());
    is_bearer.then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair =
            |(name, value): &(&'static str, &str)| (name.parse().unwrap(), value.parse().unwrap());
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn the_matrix_of_headers() {
        let keys = ApiKeys::new(["first", " second "]).unwrap();
        let cases: [(&[(&str, &str)], bool); 14] = [
            (&[], false),
            (&[("authorization", "Bearer first")], true),
            (&[("authorization", "bEaReR   second")], true),
            (&[("authorization", "Bearer firs")], false),
            (&[("authorization", "Bearer firstt")], false),
            (&[("authorization", "Bearer")], false),
            (&[("authorization", "first")], false),
            (&[("authorization", "Bearerfirst")], false),
            (&[("x-api-key", "first")], true),
            (&[("x-api-key", "FIRST")], false),
            (&[("x-api-key", "")], false),
            (
                &[("authorization", "Bearer wrong"), ("x-api-key", "first")],
                false,
            ),
            (
                &[("authorization", "Basic Zmlyc3Q="), ("x-api-key", "first")],
                true,
            ),
            (&[("authorization", "Basic first")], false),
        ];
        for (pairs, expected) in cases {
            assert_eq!(keys.admit(&headers(pairs)), expected, "{pairs:?}");
        }
        assert!(ApiKeys::default().admit(&headers(&[])));
    }

    #[test]
    fn keys_that_cannot_be_sent_are_refused_without_repeating_them() {
        for key in ["", "  ", "two words", "schlüssel", "line\nbreak"] {
            let error = ApiKeys::new([key]).unwrap_err();
            let told = format!("{error} {:?}", error.hint());
            assert!(
                key.trim().is_empty() || !told.contains(key),
                "{key}: {told}"
            );
        }
    }

    #[test]
    fn a_key_does_not_show_in_debug_output() {
        let keys = ApiKeys::new(["secret"]).unwrap();
        assert_eq!(format!("{keys:?}"), "ApiKeys(1 hashes)");
    }
}
