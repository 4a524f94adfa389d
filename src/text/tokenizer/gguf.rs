//! A tokenizer from GGUF metadata: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`).

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::{NFC, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper};

use super::pre_types::PreType;
use super::spm::merges_of_scores;
use super::table::{Spelling, TokenRow, TokenTable};
use super::{Frame, Roles, Tokenizer, guard_panics};
use crate::error::{Error, Result};
use crate::formats::gguf::Metadata;

/// `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Made by merging.
    Normal,
    /// Stands for what has no other token.
    Unknown,
    /// A control token.
    Control,
    /// Matched in text as a whole, but text.
    UserDefined,
    /// A row without meaning, such as padding of the vocabulary.
    Unused,
    /// One byte, spelled `<0xE2>`.
    Byte,
}

impl TokenType {
    fn from_number(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// What GGUF metadata say about a tokenizer.
#[derive(Debug, Clone, Default)]
pub struct GgufTokenizerData {
    /// `tokenizer.ggml.model`: `gpt2`, `llama`, …
    pub model: String,
    /// `tokenizer.ggml.pre`: the rule that divides text into words.
    pub pre: Option<String>,
    /// Every token as spelled.
    pub tokens: Vec<String>,
    /// Scores of SentencePiece tokens.
    pub scores: Vec<f32>,
    /// Kinds; empty if the file has none.
    pub token_types: Vec<TokenType>,
    /// Merges, best first, as "left right".
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`, `eom_token_id`, `eos_token_ids`.
    pub other_ends: Vec<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `ignore_merges`.
    pub ignore_merges: Option<bool>,
}

impl GgufTokenizerData {
    /// Reads the metadata of a GGUF file.
    ///
    /// # Errors
    /// `NotFound` when the file holds no tokenizer, `Invalid` when it contradicts itself.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        let ggml = |key: &str| format!("tokenizer.ggml.{key}");
        let text = |key: &str| metadata.find_str(key).map(|text| text.map(str::to_string));
        let id = |key: &str| -> Result<Option<u32>> {
            let id = metadata.find_u64(&ggml(key))?;
            // Writers store a missing id as the largest 32-bit number.
            Ok(id
                .and_then(|id| u32::try_from(id).ok())
                .filter(|&id| id != u32::MAX))
        };
        let Some(model) = text(&ggml("model"))? else {
            return Err(Error::not_found(
                "the file has no tokenizer: `tokenizer.ggml.model` is missing",
            ));
        };
        let strings = |key: &str| -> Result<Vec<String>> {
            let strings = metadata.find_str_array(&ggml(key))?.unwrap_or_default();
            Ok(strings.into_iter().map(str::to_string).collect())
        };
        let mut other_ends: Vec<u32> = [id("eot_token_id")?, id("eom_token_id")?]
            .into_iter()
            .flatten()
            .collect();
        let eos_ids = metadata
            .find_u64_array(&ggml("eos_token_ids"))?
            .unwrap_or_default();
        other_ends.extend(eos_ids.into_iter().filter_map(|id| u32::try_from(id).ok()));
        let token_types = metadata
            .find_i32_array(&ggml("token_type"))?
            .unwrap_or_default();
        Ok(Self {
            model,
            pre: text(&ggml("pre"))?,
            tokens: strings("tokens")?,
            scores: metadata
                .find_f32_array(&ggml("scores"))?
                .unwrap_or_default(),
            token_types: token_types
                .into_iter()
                .map(TokenType::from_number)
                .collect(),
            merges: strings("merges")?,
            bos: id("bos_token_id")?,
            eos: id("eos_token_id")?,
            other_ends,
            unk: id("unknown_token_id")?,
            pad: id("padding_token_id")?,
            add_bos: metadata.find_bool(&ggml("add_bos_token"))?,
            add_eos: metadata.find_bool(&ggml("add_eos_token"))?,
            add_space_prefix: metadata.find_bool(&ggml("add_space_prefix"))?,
            ignore_merges: metadata.find_bool(&ggml("ignore_merges"))?,
        })
    }

    fn token_type(&self, index: usize) -> TokenType {
        self.token_types
            .get(index)
            .copied()
            .unwrap_or(TokenType::Normal)
    }

    fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        if count == 0 {
            return Err(Error::invalid(
                "cannot build the tokenizer: `tokenizer.ggml.tokens` is empty or missing",
            ));
        }
        for (key, len) in [
            ("token_type", self.token_types.len()),
            ("scores", self.scores.len()),
        ] {
            if len != 0 && len < count {
                return Err(Error::invalid(format!(
                    "cannot build the tokenizer: `tokenizer.ggml.{key}` has {len} entries for {count} tokens"
                )));
            }
        }
        for (key, id) in [
            ("bos_token_id", self.bos),
            ("eos_token_id", self.eos),
            ("unknown_token_id", self.unk),
            ("padding_token_id", self.pad),
        ] {
            if let Some(id) = id.filter(|id| *id as usize >= count) {
                tracing::warn!(
                    "`tokenizer.ggml.{key}` is {id}, but the file has {count} tokens: it is passed over"
                );
            }
        }
        Ok(())
    }

    fn vocab(&self) -> Vocab {
        self.tokens
            .iter()
            .enumerate()
            .map(|(id, token)| (token.clone(), id as u32))
            .collect()
    }

    /// Tokens that are found in text as a whole.
    fn added_tokens(&self) -> Vec<AddedToken> {
        // Phi-3's tokens swallow the spaces that follow; the files do not say so, but its vocabulary is known.
        let spelled =
            |id: usize, text: &str| self.tokens.get(id).is_some_and(|token| token == text);
        let is_phi3 = spelled(32_000, "<|endoftext|>") && spelled(32_001, "<|assistant|>");
        let mut added = Vec::new();
        for (index, token) in self.tokens.iter().enumerate() {
            let token_type = self.token_type(index);
            let special = matches!(token_type, TokenType::Control | TokenType::Unknown);
            if special || token_type == TokenType::UserDefined {
                let strips = is_phi3 && !matches!(&**token, "<unk>" | "<s>" | "<|endoftext|>");
                added.push(
                    AddedToken::from(token.clone(), special)
                        .normalized(false)
                        .rstrip(strips),
                );
            }
        }
        added
    }

    fn table(&self, spelling: Spelling) -> Result<TokenTable> {
        let rows = self.tokens.iter().enumerate().filter_map(|(index, token)| {
            let token_type = self.token_type(index);
            let special = matches!(token_type, TokenType::Control | TokenType::Unknown);
            let added = special || token_type == TokenType::UserDefined;
            let row = TokenRow {
                id: index as u32,
                text: token.clone(),
                added,
                special,
            };
            (token_type != TokenType::Unused && !token.is_empty()).then_some(row)
        });
        TokenTable::new(rows.collect(), spelling)
    }

    fn roles(&self, defaults: [Option<u32>; 3]) -> Roles {
        let known = |id: &u32| (*id as usize) < self.tokens.len();
        let [bos, eos, unk] = defaults;
        let mut ends = self.other_ends.clone();
        ends.extend(self.spelled_ends());
        ends.retain(known);
        Roles {
            bos: self.bos.or(bos).filter(known),
            eos: self.eos.or(eos).filter(known),
            pad: self.pad.filter(known),
            unk: self.unk.or(unk).filter(known),
            ends,
        }
    }

    /// Control tokens that end a turn by their well-known spelling: many files name only the end of the text.
    fn spelled_ends(&self) -> Vec<u32> {
        const ENDS: &[&str] = &[
            "<|eot_id|>",
            "<|eom_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<turn|>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "<|return|>",
            "<|call|>",
            "<|END_OF_TURN_TOKEN|>",
            "<end_of_utterance>",
            "<｜end▁of▁sentence｜>",
        ];
        let control = |(index, token): (usize, &String)| {
            let ends = self.token_type(index) == TokenType::Control && ENDS.contains(&&**token);
            ends.then_some((index as u32, token.clone()))
        };
        let found: Vec<(u32, String)> =
            self.tokens.iter().enumerate().filter_map(control).collect();
        // In the harmony format `<|end|>` ends a message, after which the answer may go on.
        let harmony = found.iter().any(|(_, token)| token == "<|return|>");
        found
            .into_iter()
            .filter(|(_, token)| !(harmony && token == "<|end|>"))
            .map(|(id, _)| id)
            .collect()
    }
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file.
    ///
    /// # Errors
    /// `NotFound` without a tokenizer in the file, `Unsupported` for kinds this build does not implement, `Invalid` for data
    /// that contradict themselves.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self> {
        Self::from_gguf(&GgufTokenizerData::from_metadata(metadata)?)
    }

    /// Builds a tokenizer from what a GGUF file says.
    ///
    /// # Errors
    /// As [`Self::from_metadata`].
    pub fn from_gguf(data: &GgufTokenizerData) -> Result<Self> {
        data.check()?;
        guard_panics("build the tokenizer", || {
            match data.model.as_str() {
            "gpt2" => byte_level(data),
            "gemma4" => raw_bpe(data, PreType::by_name("gemma4")?),
            "llama" => sentence_piece(data),
            other => Err(Error::unsupported(format!(
                "cannot build the tokenizer: `tokenizer.ggml.model` is `{}`, known are `gpt2`, `llama` and `gemma4`",
                other.escape_debug()
            ))
            .with_hint("use the model's safetensors folder with its `tokenizer.json`")),
        }
        })?
    }
}

fn byte_level(data: &GgufTokenizerData) -> Result<Tokenizer> {
    let pre = data.pre.as_deref().filter(|pre| !pre.is_empty()).unwrap_or_else(|| {
        tracing::warn!("the file does not name its pre-tokenizer (`tokenizer.ggml.pre`); the oldest rule is used");
        "default"
    });
    let pre = PreType::by_name(pre)?;
    if pre.sentence_piece {
        return raw_bpe(data, pre);
    }
    let vocab = data.vocab();
    let merges = listed_merges(data, &vocab)?;
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(data.ignore_merges.unwrap_or(pre.ignore_merges));
    let mut inner =
        tokenizers::Tokenizer::new(model.build().map_err(|error| build_error(&*error))?);
    inner
        .with_normalizer(pre.nfc.then_some(NFC))
        .with_pre_tokenizer(Some(pre.pre_tokenizer()?));
    inner.with_decoder(Some(ByteLevel::new(true, true, true)));
    inner.add_tokens(&data.added_tokens());
    let frame = Frame::Flags {
        bos: data.add_bos.unwrap_or(pre.add_bos),
        eos: data.add_eos.unwrap_or(false),
    };
    Ok(Tokenizer::assemble(
        inner,
        data.table(Spelling::ByteLevel)?,
        data.roles([None; 3]),
        frame,
    ))
}

/// Listed merges over raw UTF-8, as Gemma 4 has them.
fn raw_bpe(data: &GgufTokenizerData, pre: &PreType) -> Result<Tokenizer> {
    let vocab = data.vocab();
    let merges = listed_merges(data, &vocab)?;
    let mut inner = raw_tokenizer(data, vocab, merges, false)?;
    inner.with_pre_tokenizer(Some(pre.pre_tokenizer()?));
    let spelling = Spelling::SentencePiece { strip_first: false };
    // Files of this family exist that deny the beginning token the model needs.
    let frame = Frame::Flags {
        bos: pre.add_bos || data.add_bos == Some(true),
        eos: data.add_eos.unwrap_or(false),
    };
    Ok(Tokenizer::assemble(
        inner,
        data.table(spelling)?,
        data.roles([None; 3]),
        frame,
    ))
}

fn sentence_piece(data: &GgufTokenizerData) -> Result<Tokenizer> {
    if data.scores.is_empty() && data.merges.is_empty() {
        return Err(Error::invalid(
            "cannot build the tokenizer: it has neither `scores` nor `merges`",
        ));
    }
    let pieces: Vec<(u32, &str, f32)> = data
        .tokens
        .iter()
        .enumerate()
        .filter(|(index, _)| {
            matches!(
                data.token_type(*index),
                TokenType::Normal | TokenType::UserDefined
            )
        })
        .map(|(index, token)| {
            (
                index as u32,
                token.as_str(),
                data.scores.get(index).copied().unwrap_or(0.0),
            )
        })
        .collect();
    let add_space = data.add_space_prefix.unwrap_or(true);
    let inner = raw_tokenizer(data, data.vocab(), merges_of_scores(&pieces), add_space)?;
    let spelling = Spelling::SentencePiece {
        strip_first: add_space,
    };
    let frame = Frame::Flags {
        bos: data.add_bos.unwrap_or(true),
        eos: data.add_eos.unwrap_or(false),
    };
    Ok(Tokenizer::assemble(
        inner,
        data.table(spelling)?,
        data.roles([Some(1), Some(2), Some(0)]),
        frame,
    ))
}

fn raw_tokenizer(
    data: &GgufTokenizerData,
    vocab: Vocab,
    merges: Vec<(String, String)>,
    add_space: bool,
) -> Result<tokenizers::Tokenizer> {
    let mut model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .byte_fallback(true)
        .fuse_unk(true);
    let unk = data
        .unk
        .or(Some(0))
        .and_then(|id| data.tokens.get(id as usize));
    if let Some(unk) = unk {
        model = model.unk_token(unk.clone());
    }
    let mut inner =
        tokenizers::Tokenizer::new(model.build().map_err(|error| build_error(&*error))?);
    let mut normalizers: Vec<NormalizerWrapper> = Vec::new();
    if add_space {
        normalizers.push(Prepend::new("▁".to_string()).into());
    }
    normalizers.push(
        Replace::new(" ", "▁")
            .map_err(|error| build_error(&*error))?
            .into(),
    );
    inner.with_normalizer(Some(Normalizers::new(normalizers)));
    let spaces = Replace::new("▁", " ").map_err(|error| build_error(&*error))?;
    let decoders: Vec<DecoderWrapper> = vec![
        spaces.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    inner.with_decoder(Some(Decoders::new(decoders)));
    inner.add_tokens(&data.added_tokens());
    Ok(inner)
}

/// The merges of the file. Those whose parts or result are no tokens can never apply and are left out.
fn listed_merges(data: &GgufTokenizerData, vocab: &Vocab) -> Result<Vec<(String, String)>> {
    if data.merges.is_empty() {
        return Err(Error::invalid(
            "cannot build the tokenizer: `tokenizer.ggml.merges` is empty or missing",
        ));
    }
    let mut merges = Vec::with_capacity(data.merges.len());
    let mut joined = String::new();
    for merge in &data.merges {
        // The separator is the first space that is not the first character.
        let after_first = merge.chars().next().map_or(0, char::len_utf8);
        let Some((left, right)) = merge[after_first..].find(' ').map(|at| {
            let at = after_first + at;
            (&merge[..at], &merge[at + 1..])
        }) else {
            return Err(Error::invalid(format!(
                "cannot build the tokenizer: merge `{}` is not two parts with a space between",
                merge.escape_debug()
            )));
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        if [left, right, &*joined]
            .iter()
            .all(|part| vocab.contains_key(*part))
        {
            merges.push((left.to_string(), right.to_string()));
        }
    }
    Ok(merges)
}

fn build_error(error: &(dyn std::error::Error + Send + Sync)) -> Error {
    Error::invalid(format!("cannot build the tokenizer: {error}"))
}
