//! Which tokens a piece of text is made of, for log-probabilities.

use std::collections::VecDeque;

use crate::engine::TokenLogprobs;

/// A token of the answer with its log-probabilities.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoredToken {
    /// Its id.
    pub id: u32,
    /// From the raw distribution.
    pub logprobs: TokenLogprobs,
}

/// Tokens whose text was not given out yet, because a character or a stop text may be incomplete.
///
/// A token goes out with the piece of text that holds its first byte, or with the next one when it has no text of its own
/// (the beginning of a character). Tokens of a stop text never go out.
#[derive(Debug, Default)]
pub(super) struct PendingTokens {
    /// With the place in the answer, in bytes, where the token's text begins.
    tokens: VecDeque<(usize, ScoredToken)>,
    /// Bytes of text decoded so far.
    decoded: usize,
    /// Bytes of text given out so far.
    given: usize,
}

impl PendingTokens {
    /// A token whose text begins where the text decoded so far ends.
    pub(super) fn push(&mut self, token: ScoredToken) {
        self.tokens.push_back((self.decoded, token));
    }

    /// More text was decoded.
    pub(super) fn decoded(&mut self, bytes: usize) {
        self.decoded += bytes;
    }

    /// More text goes out: its tokens.
    pub(super) fn give(&mut self, bytes: usize) -> Vec<ScoredToken> {
        self.given += bytes;
        let count = self
            .tokens
            .partition_point(|(begin, _)| *begin < self.given);
        self.tokens.drain(..count).map(|(_, token)| token).collect()
    }
}
