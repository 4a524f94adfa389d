//! [`Guarded`]: a twin of a tokenizer that does not see control tokens in text, unless they are spelled with a prefix that only
//! this process knows.
//!
//! A copy of the tokenizer treats every control token's text as plain text and knows an alias for each: the same text behind a
//! random prefix of private-use characters. So one call encodes a prompt in which some control tokens are meant and others are
//! quoted, with the same normaliser, pre-tokenizer and first-word rules as ever. Built when first needed: it is only needed
//! when outside text spells a control token.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use super::{PairTokens, encode_error};
use crate::error::Result;

/// The twin.
pub(super) struct Guarded {
    inner: tokenizers::Tokenizer,
    nonce: String,
    real_ids: HashMap<u32, u32>,
}

impl Guarded {
    pub(super) fn new(original: &tokenizers::Tokenizer) -> Self {
        let nonce = fresh_nonce();
        let mut inner = original.clone();
        inner.set_encode_special_tokens(true);
        let specials: Vec<_> = original
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special)
            .collect();
        let alias = |text: &str| format!("{nonce}{text}");
        let aliases: Vec<_> = specials
            .iter()
            .map(|(_, token)| {
                let mut alias_token = token.clone();
                alias_token.content = alias(&token.content);
                alias_token.special = false;
                alias_token
            })
            .collect();
        inner.add_tokens(&aliases);
        let real_ids = specials
            .iter()
            .filter_map(|(id, token)| Some((inner.token_to_id(&alias(&token.content))?, *id)))
            .collect();
        Self {
            inner,
            nonce,
            real_ids,
        }
    }

    /// What to write before a control token that is meant.
    pub(super) fn nonce(&self) -> &str {
        &self.nonce
    }

    pub(super) fn encode(&self, text: &str, frame: bool) -> Result<Vec<u32>> {
        let encoding = self
            .inner
            .encode_fast(text, frame)
            .map_err(|error| encode_error(&*error))?;
        Ok(self.real_ids(encoding.get_ids()))
    }

    pub(super) fn encode_pair(&self, first: &str, second: &str) -> Result<PairTokens> {
        let encoding = self
            .inner
            .encode_fast((first, second), true)
            .map_err(|error| encode_error(&*error))?;
        Ok(PairTokens {
            ids: self.real_ids(encoding.get_ids()),
            type_ids: encoding.get_type_ids().to_vec(),
        })
    }

    fn real_ids(&self, ids: &[u32]) -> Vec<u32> {
        let real = |id: &u32| self.real_ids.get(id).copied().unwrap_or(*id);
        ids.iter().map(real).collect()
    }
}

/// Four characters of private plane 15, 64 random bits from the same source that protects hash maps.
fn fresh_nonce() -> String {
    let mut bits = RandomState::new().build_hasher().finish();
    let mut nonce = String::new();
    for _ in 0..4 {
        nonce.extend(char::from_u32(0xF_0000 + (bits as u32 & 0xFFFF) % 0xFFFE));
        bits >>= 16;
    }
    nonce
}
