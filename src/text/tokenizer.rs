//! [`Tokenizer`]: text to token ids and back, from `tokenizer.json` or from GGUF metadata.
//!
//! Wraps the `tokenizers` crate. On top of it: control tokens in outside text stay text (`guard.rs`), every id's bytes are
//! known beforehand (`table.rs`), and hostile files end in an error, not in a panic. Building from a folder is in `folder.rs`,
//! from GGUF in `gguf.rs` with its pre-tokenizer table in `pre_types.rs`; which ids end an answer is in `ends.rs`.

mod ends;
mod folder;
mod gguf;
mod guard;
mod pre_types;
mod spm;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

pub use ends::EndTokens;
pub(crate) use folder::read_json;
pub use gguf::{GgufTokenizerData, TokenType};
use guard::Guarded;
pub(crate) use table::Decoding;
use table::TokenTable;

use crate::error::{Error, Result};
use crate::text::specials::SpecialTexts;
use crate::text::template::Rendered;

/// What to make of text that spells a control token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// It is the control token: for prompts written by a template or by the operator.
    Parse,
    /// It is text like any other: for everything that comes from outside.
    Plain,
}

/// Ids with a role, as the tokenizer's own files state them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Roles {
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    unk: Option<u32>,
    /// Ends of answers beside `eos`.
    ends: Vec<u32>,
}

/// Who adds the beginning and end tokens to raw text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// The post-processor of `tokenizer.json`.
    PostProcessor,
    /// `tokenizer.ggml.add_bos_token` and `add_eos_token`.
    Flags { bos: bool, eos: bool },
}

/// The tokens of a pair of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PairTokens {
    /// The ids, those between and around the texts included.
    pub ids: Vec<u32>,
    /// Which text each belongs to, as the post-processor says: 0 or 1.
    pub type_ids: Vec<u32>,
}

/// A tokenizer; cheap to share behind an `Arc`, all methods take `&self`.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    guarded: OnceLock<Guarded>,
    table: TokenTable,
    specials: SpecialTexts,
    roles: Roles,
    frame: Frame,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("ids", &self.table.len())
            .field("roles", &self.roles)
            .finish_non_exhaustive()
    }
}

impl Tokenizer {
    fn assemble(
        inner: tokenizers::Tokenizer,
        table: TokenTable,
        roles: Roles,
        frame: Frame,
    ) -> Self {
        let added = inner.get_added_tokens_decoder();
        let specials = SpecialTexts::new(
            added
                .into_values()
                .filter(|token| token.special)
                .map(|token| token.content),
        );
        Self {
            inner,
            guarded: OnceLock::new(),
            table,
            specials,
            roles,
            frame,
        }
    }

    /// Ids of `text`, without beginning or end tokens.
    ///
    /// # Errors
    /// `Invalid` when the tokenizer's own rules fail on the text.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        self.encode_inner(text, specials, false)
    }

    /// Ids of `text` with the beginning and end tokens that the tokenizer's files ask for: for raw text, embeddings and
    /// perplexity. Never for a rendered template, which writes them itself.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_framed(&self, text: &str, specials: Specials) -> Result<Vec<u32>> {
        let Frame::Flags { bos, eos } = self.frame else {
            return self.encode_inner(text, specials, true);
        };
        let mut ids = self.encode_inner(text, specials, false)?;
        if let (true, Some(id)) = (bos, self.roles.bos) {
            ids.insert(0, id);
        }
        if let (true, Some(id)) = (eos, self.roles.eos) {
            ids.push(id);
        }
        Ok(ids)
    }

    /// Ids and types of a pair of texts with the tokens between and around them, as the post-processor of `tokenizer.json` says.
    ///
    /// # Errors
    /// As [`Self::encode`]; `Unsupported` for a tokenizer from GGUF, which has no rule for pairs.
    pub fn encode_pair(&self, first: &str, second: &str, specials: Specials) -> Result<PairTokens> {
        if self.frame != Frame::PostProcessor {
            return Err(Error::unsupported(
                "the tokenizer has no rule for a pair of texts",
            ));
        }
        let spells = |text| self.specials.occur_in(text);
        if specials == Specials::Plain && (spells(first) || spells(second)) {
            let guarded = self.guarded()?;
            return guard_panics("encode text", || guarded.encode_pair(first, second))?;
        }
        let encode = || self.inner.encode_fast((first, second), true);
        let encoding = guard_panics("encode text", encode)?;
        let encoding = encoding.map_err(|error| encode_error(&*error))?;
        Ok(PairTokens {
            ids: encoding.get_ids().to_vec(),
            type_ids: encoding.get_type_ids().to_vec(),
        })
    }

    /// Ids of a rendered template: control tokens that the template wrote are control tokens, those that came with the
    /// messages are text. Adds no beginning token.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_rendered(&self, rendered: &Rendered) -> Result<Vec<u32>> {
        match self.guarded_text(rendered) {
            None => self.encode(&rendered.text, Specials::Parse),
            Some(text) => {
                let guarded = self.guarded()?;
                guard_panics("encode text", || guarded.encode(&text, false))?
            }
        }
    }

    fn encode_inner(&self, text: &str, specials: Specials, frame: bool) -> Result<Vec<u32>> {
        if specials == Specials::Plain && self.specials.occur_in(text) {
            let guarded = self.guarded()?;
            return guard_panics("encode text", || guarded.encode(text, frame))?;
        }
        let encoding = guard_panics("encode text", || self.inner.encode_fast(text, frame))?;
        Ok(encoding
            .map_err(|error| encode_error(&*error))?
            .get_ids()
            .to_vec())
    }

    /// The text of `rendered` with every control token that is meant as one replaced by its alias, or `None` when no control
    /// token's text came from outside.
    fn guarded_text(&self, rendered: &Rendered) -> Option<String> {
        if !rendered.has_outside_specials(&self.specials) {
            return None;
        }
        let nonce = self.guarded().ok()?.nonce();
        let (text, bytes) = (&rendered.text, rendered.text.as_bytes());
        let (mut out, mut at, mut copied) = (String::with_capacity(text.len() + 64), 0, 0);
        while at < bytes.len() {
            let meant = self
                .specials
                .lengths_at(&bytes[at..])
                .filter(|len| !rendered.is_outside(at, at + len))
                .last();
            if let Some(len) = meant {
                out.push_str(&text[copied..at]);
                out.push_str(nonce);
                out.push_str(&text[at..at + len]);
                copied = at + len;
            }
            at += meant.unwrap_or(1);
        }
        out.push_str(&text[copied..]);
        Some(out)
    }

    fn guarded(&self) -> Result<&Guarded> {
        if let Some(guarded) = self.guarded.get() {
            return Ok(guarded);
        }
        let built = guard_panics("build the guarded tokenizer", || Guarded::new(&self.inner))?;
        Ok(self.guarded.get_or_init(|| built))
    }

    /// Text of generated ids: the first token keeps its leading space, control tokens are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        decode_with(crate::text::Detokenizer::new(self), ids)
    }

    /// Text of ids that are a whole text: the space that some tokenizers put before every text is taken away again.
    pub fn decode_from_start(&self, ids: &[u32], keep_special: bool) -> String {
        let detokenizer = crate::text::Detokenizer::at_start(self);
        decode_with(
            if keep_special {
                detokenizer.keep_special()
            } else {
                detokenizer
            },
            ids,
        )
    }

    /// Decodes by the crate, for decoders without fixed bytes per id.
    pub(crate) fn decode_whole(&self, ids: &[u32]) -> String {
        let decoded = guard_panics("decode ids", || self.inner.decode(ids, false));
        decoded.ok().and_then(Result::ok).unwrap_or_default()
    }

    pub(crate) fn decoding(&self) -> Decoding {
        self.table.decoding()
    }

    pub(crate) fn strips_leading_space(&self) -> bool {
        self.table.strips_leading_space()
    }

    /// One more than the largest id. A model's embedding may have more rows: those ids have no text.
    pub fn vocab_size(&self) -> usize {
        self.table.len()
    }

    /// The bytes `id` stands for in running text, if it has any. Control tokens have their text.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.table.bytes(id)
    }

    /// Whether `id` means anything: false for gaps, padding and ids beyond the vocabulary, which must not be sampled.
    pub fn has_text(&self, id: u32) -> bool {
        self.table.bytes(id).is_some()
    }

    /// Whether `id` is a control token, which is left out of text.
    pub fn is_special(&self, id: u32) -> bool {
        self.table.is_special(id)
    }

    /// The id of the token that is spelled `text` in the vocabulary.
    pub fn find_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// How the vocabulary spells `id`.
    pub fn find_token(&self, id: u32) -> Option<String> {
        self.table.bytes(id)?;
        self.inner.id_to_token(id)
    }

    /// The texts of all control tokens.
    pub fn special_texts(&self) -> &SpecialTexts {
        &self.specials
    }

    /// The beginning-of-text token.
    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// The end-of-text token.
    pub fn eos(&self) -> Option<u32> {
        self.roles.eos
    }

    /// The padding token.
    pub fn pad(&self) -> Option<u32> {
        self.roles.pad
    }

    /// The token for what has no other.
    pub fn unk(&self) -> Option<u32> {
        self.roles.unk
    }

    /// Whether [`Self::encode_framed`] puts the beginning token first.
    pub fn adds_bos(&self) -> bool {
        match self.frame {
            Frame::Flags { bos, .. } => bos && self.roles.bos.is_some(),
            Frame::PostProcessor => {
                let framed = self.encode_framed("", Specials::Plain).unwrap_or_default();
                self.roles.bos.is_some() && framed.first() == self.roles.bos.as_ref()
            }
        }
    }

    /// The tokens that end an answer as far as the tokenizer knows.
    pub fn end_tokens(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = self
            .roles
            .eos
            .iter()
            .chain(&self.roles.ends)
            .copied()
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

fn decode_with(mut detokenizer: crate::text::Detokenizer<&Tokenizer>, ids: &[u32]) -> String {
    let mut text = String::new();
    for &id in ids {
        text.push_str(&detokenizer.push(id));
    }
    text.push_str(&detokenizer.finish());
    text
}

/// Runs code of the `tokenizers` crate, which panics on some hostile files.
fn guard_panics<T>(attempt: &str, run: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let reason = panic.downcast_ref::<String>().map(String::as_str);
        let reason = reason
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("unknown reason");
        Error::invalid(format!(
            "cannot {attempt}: the tokenizer's rules contradict themselves ({reason})"
        ))
    })
}

fn encode_error(error: &(dyn std::error::Error + Send + Sync)) -> Error {
    Error::invalid(format!("cannot encode text: {error}"))
}
