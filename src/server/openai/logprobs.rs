//! Log-probabilities as OpenAI writes them.

use serde::Serialize;

use crate::chat::ScoredToken;
use crate::text::Tokenizer;

/// What stands for minus infinity, which JSON cannot write.
const FLOOR: f32 = -9999.0;

/// `logprobs` of a choice or of a chunk.
#[derive(Debug, Serialize)]
pub(super) struct Logprobs {
    content: Vec<TokenEntry>,
    /// Refusals are not told apart from other text.
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct TokenEntry {
    #[serde(flatten)]
    chosen: Entry,
    top_logprobs: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl Logprobs {
    /// Those of `tokens`.
    pub(super) fn new(tokens: &[ScoredToken], tokenizer: &Tokenizer) -> Self {
        let entry = |(id, logprob): (u32, f32)| Entry::new(id, logprob, tokenizer);
        let content = tokens.iter().map(|token| TokenEntry {
            chosen: entry((token.id, token.logprobs.chosen)),
            top_logprobs: token.logprobs.top.iter().copied().map(entry).collect(),
        });
        Self {
            content: content.collect(),
            refusal: None,
        }
    }
}

impl Entry {
    /// The bytes are the token's own, also when they are no whole character; the text is as near as text can be.
    fn new(id: u32, logprob: f32, tokenizer: &Tokenizer) -> Self {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        Self {
            token: String::from_utf8_lossy(bytes).into_owned(),
            logprob: if logprob.is_finite() { logprob } else { FLOOR },
            bytes: bytes.to_vec(),
        }
    }
}
