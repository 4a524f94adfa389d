//! [`Detokenizer`]: a stream of token ids becomes a stream of text, in time linear in the number of tokens.
//!
//! Every id stands for fixed bytes (see `tokenizer/table.rs`), so text is only held back while a character is incomplete.
//! Bytes that can never become a character give U+FFFD, one for each maximal invalid part as in [`String::from_utf8_lossy`]:
//! a lone byte gives one, and so does a character that breaks off. (The `ByteFallback` step of `tokenizer.json` replaces every
//! byte of a run that is invalid anywhere, which would make a stream take back what it said.)

use std::ops::Deref;

use crate::text::Tokenizer;
use crate::text::tokenizer::Decoding;

/// Decodes one sequence. Concatenated, the pieces are exactly [`Tokenizer::decode`] of the ids (or, for
/// [`Detokenizer::at_start`], [`Tokenizer::decode_from_start`]).
///
/// `T` points at the tokenizer: a reference, or an `Arc` where the decoder outlives the caller.
pub struct Detokenizer<T> {
    tokenizer: T,
    skip_special: bool,
    /// A leading space is dropped as long as this is set.
    strip_space: bool,
    /// The beginning of a character, at most three bytes, unless decoding goes through the crate.
    pending: Vec<u8>,
    /// For decoders without fixed bytes per id: all ids so far, and how many bytes of their text were given out.
    window: Vec<u32>,
    given: usize,
}

impl<T: Deref<Target = Tokenizer>> Detokenizer<T> {
    /// Decodes what follows a prompt: the first token keeps its leading space. Control tokens are skipped.
    pub fn new(tokenizer: T) -> Self {
        Self {
            tokenizer,
            skip_special: true,
            strip_space: false,
            pending: Vec::new(),
            window: Vec::new(),
            given: 0,
        }
    }

    /// Decodes a text from its beginning: tokenizers that put a space before every text lose it again.
    pub fn at_start(tokenizer: T) -> Self {
        Self {
            strip_space: tokenizer.strips_leading_space(),
            ..Self::new(tokenizer)
        }
    }

    /// Writes control tokens out instead of skipping them.
    #[must_use]
    pub fn keep_special(mut self) -> Self {
        self.skip_special = false;
        self
    }

    /// Whether `id` is a control token that gives no text.
    pub fn skips(&self, id: u32) -> bool {
        self.skip_special && self.tokenizer.is_special(id)
    }

    /// Takes the next id and gives the text that is complete now, often empty.
    pub fn push(&mut self, id: u32) -> String {
        if self.skips(id) {
            return String::new();
        }
        if self.tokenizer.decoding() == Decoding::Whole {
            return self.push_whole(id);
        }
        let mut bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        if self.strip_space && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.strip_space = false;
        }
        self.pending.extend_from_slice(bytes);
        take_complete(&mut self.pending)
    }

    /// The end of the stream: one U+FFFD if it broke off inside a character, else nothing.
    pub fn finish(&mut self) -> String {
        if self.tokenizer.decoding() == Decoding::Whole {
            return self.whole_rest(false);
        }
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }

    /// WordPiece and other decoders whose pieces depend on their neighbours. Quadratic; no chat model uses them.
    fn push_whole(&mut self, id: u32) -> String {
        self.window.push(id);
        self.whole_rest(true)
    }

    fn whole_rest(&mut self, hold_incomplete: bool) -> String {
        let text = self.tokenizer.decode_whole(&self.window);
        if hold_incomplete && text.ends_with(char::REPLACEMENT_CHARACTER) {
            return String::new();
        }
        let rest = text.get(self.given..).unwrap_or_default().to_string();
        self.given = self.given.max(text.len());
        rest
    }
}

/// Takes everything out of `pending` but an incomplete character at its end.
fn take_complete(pending: &mut Vec<u8>) -> String {
    let incomplete = incomplete_len(pending);
    let rest = pending.split_off(pending.len() - incomplete);
    let complete = std::mem::replace(pending, rest);
    String::from_utf8(complete)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// How many bytes at the end of `bytes` are a character that more bytes could complete.
fn incomplete_len(bytes: &[u8]) -> usize {
    for len in 1..=bytes.len().min(3) {
        let tail = &bytes[bytes.len() - len..];
        if tail[0] >= 0xC0 {
            return match std::str::from_utf8(tail) {
                Err(error) if error.error_len().is_none() => len,
                _ => 0,
            };
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unfinished_character_is_incomplete() {
        let cases: [(&[u8], usize); 9] = [
            (b"", 0),
            (b"a", 0),
            ("é".as_bytes(), 0),
            (b"a\xC3", 1),
            (b"\xE2\x82", 2),
            (b"\xF0\x9F\x98", 3),
            (b"\x80\x80", 0),
            (b"\xC0", 0),
            (b"\xED\xA0", 0),
        ];
        for (bytes, expected) in cases {
            assert_eq!(incomplete_len(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn any_division_gives_the_lossy_text() {
        let bytes = b"a\xC3\xA9\xE2\x82x\x80\x80\xF0\x9F\x98\x80\xED\xA0\x80\xF0\x9F";
        for cut in 1..bytes.len() {
            let (mut pending, mut text) = (Vec::new(), String::new());
            for part in bytes.chunks(cut) {
                pending.extend_from_slice(part);
                text.push_str(&take_complete(&mut pending));
            }
            text.push_str(&String::from_utf8_lossy(&pending));
            assert_eq!(text, String::from_utf8_lossy(bytes), "pieces of {cut}");
        }
    }
}
