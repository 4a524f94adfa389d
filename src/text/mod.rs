//! Strings: tokenizers, streaming detokenizer, chat templates, stop texts. Knows nothing of tensors.
//!
//! [`Tokenizer`] turns text into token ids and knows every id's bytes; [`Detokenizer`] turns a stream of ids into text that
//! never splits a character; [`StopMatcher`] cuts that text at stop strings; [`ChatTemplate`] turns messages into a prompt and
//! remembers which control-token texts came from outside, so that [`Tokenizer::encode_rendered`] leaves them plain text.
//! Read `tokenizer.rs` first, then `template.rs`.

#[cfg(test)]
mod conformance;
mod detokenize;
mod specials;
mod stops;
mod template;
#[cfg(test)]
mod tests;
mod tokenizer;

pub use detokenize::Detokenizer;
pub use specials::SpecialTexts;
pub use stops::{StopMatch, StopMatcher};
pub use template::{ChatTemplate, RenderInput, Rendered, TemplateSources};
pub use tokenizer::{EndTokens, GgufTokenizerData, PairTokens, Specials, TokenType, Tokenizer};
