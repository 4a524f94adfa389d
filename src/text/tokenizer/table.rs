//! [`TokenTable`]: the bytes and the kind of every token id, worked out once from the vocabulary and the decoder.

use serde_json::Value;

use crate::error::{Error, Result};

/// How ids become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decoding {
    /// Every id has its bytes; they are put one after the other.
    Bytes,
    /// What an id becomes depends on its neighbours (WordPiece and the like): only the crate can tell.
    Whole,
}

/// How a vocabulary spells bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's alphabet: one printable character per byte.
    ByteLevel,
    /// SentencePiece: `▁` is a space, `<0xE2>` a byte.
    SentencePiece {
        /// A text's first space is not part of it.
        strip_first: bool,
    },
    /// Anything else.
    Other,
}

/// An id larger than this is a lie: no vocabulary comes near it.
const MAX_ID: u32 = 1 << 23;

const SPECIAL: u8 = 1;
const PRESENT: u8 = 2;

/// Bytes and flags of every id.
#[derive(Debug)]
pub(super) struct TokenTable {
    blob: Vec<u8>,
    /// Where the bytes of each id end; they start where those of the one before end.
    ends: Vec<u32>,
    flags: Vec<u8>,
    spelling: Spelling,
}

/// One row of the table to be.
pub(super) struct TokenRow {
    pub(super) id: u32,
    /// As spelled in the vocabulary.
    pub(super) text: String,
    /// Stands beside the vocabulary's own spelling: a control or user-defined token, spelled as it reads.
    pub(super) added: bool,
    pub(super) special: bool,
}

impl TokenTable {
    /// A table of `rows` in any order; of rows with the same id the last one counts.
    pub(super) fn new(mut rows: Vec<TokenRow>, spelling: Spelling) -> Result<Self> {
        rows.sort_by_key(|row| row.id);
        if let Some(last) = rows.last().filter(|row| row.id > MAX_ID) {
            return Err(Error::invalid(format!(
                "cannot use the tokenizer: token `{}` has the id {}, at most {MAX_ID} is expected",
                last.text.escape_debug(),
                last.id
            )));
        }
        let mut table = Self {
            blob: Vec::new(),
            ends: Vec::new(),
            flags: Vec::new(),
            spelling,
        };
        let mut rows = rows.into_iter().peekable();
        while let Some(row) = rows.next() {
            if rows.peek().is_some_and(|next| next.id == row.id) {
                continue;
            }
            while table.ends.len() < row.id as usize {
                table.push_row(&[], 0);
            }
            let bytes = spelled_bytes(&row.text, row.added, spelling);
            table.push_row(&bytes, PRESENT | if row.special { SPECIAL } else { 0 });
        }
        Ok(table)
    }

    fn push_row(&mut self, bytes: &[u8], flags: u8) {
        self.blob.extend_from_slice(bytes);
        self.ends.push(self.blob.len() as u32);
        self.flags.push(flags);
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let present = self.flags.get(id)? & PRESENT != 0;
        let start = if id == 0 {
            0
        } else {
            self.ends[id - 1] as usize
        };
        present.then(|| &self.blob[start..self.ends[id] as usize])
    }

    pub(super) fn is_special(&self, id: u32) -> bool {
        self.flags
            .get(id as usize)
            .is_some_and(|flags| flags & SPECIAL != 0)
    }

    pub(super) fn decoding(&self) -> Decoding {
        if self.spelling == Spelling::Other {
            Decoding::Whole
        } else {
            Decoding::Bytes
        }
    }

    pub(super) fn strips_leading_space(&self) -> bool {
        self.spelling == Spelling::SentencePiece { strip_first: true }
    }
}

fn spelled_bytes(text: &str, added: bool, spelling: Spelling) -> Vec<u8> {
    match spelling {
        Spelling::ByteLevel if !added => {
            let bytes: Option<Vec<u8>> = text.chars().map(byte_of_char).collect();
            bytes.unwrap_or_else(|| text.as_bytes().to_vec())
        }
        Spelling::SentencePiece { .. } => match byte_token(text) {
            Some(byte) if !added => vec![byte],
            _ => text.replace('▁', " ").into_bytes(),
        },
        Spelling::ByteLevel | Spelling::Other => text.as_bytes().to_vec(),
    }
}

/// The byte that a token spelled `<0xE2>` stands for.
pub(super) fn byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_hex = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex
        .then(|| u8::from_str_radix(digits, 16).ok())
        .flatten()
}

/// The byte that `c` stands for in GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100.
fn byte_of_char(c: char) -> Option<u8> {
    let code = c as u32;
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(code as u8),
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// What the decoder of a `tokenizer.json` amounts to.
pub(super) fn spelling_of(decoder: Option<&Value>) -> Spelling {
    let Some(decoder) = decoder else {
        return Spelling::Other;
    };
    let steps = match decoder["decoders"].as_array() {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(decoder),
    };
    let mut spelling = Spelling::Other;
    for step in steps {
        spelling = match (step["type"].as_str(), spelling) {
            (Some("ByteLevel"), Spelling::Other) => Spelling::ByteLevel,
            (Some("Replace"), Spelling::Other)
                if step["pattern"]["String"] == "▁" && step["content"] == " " =>
            {
                Spelling::SentencePiece { strip_first: false }
            }
            (Some("Metaspace"), Spelling::Other) if step["replacement"] == "▁" => {
                Spelling::SentencePiece {
                    strip_first: step["prepend_scheme"] != "never",
                }
            }
            (Some("ByteFallback" | "Fuse"), spelling) => spelling,
            (Some("Strip"), Spelling::SentencePiece { .. })
                if step["content"] == " " && step["start"] == 1 && step["stop"] == 0 =>
            {
                Spelling::SentencePiece { strip_first: true }
            }
            _ => return Spelling::Other,
        };
    }
    spelling
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_covers_every_byte_once() {
        let mut bytes: Vec<u8> = (0..0x200)
            .filter_map(|code| byte_of_char(char::from_u32(code)?))
            .collect();
        assert_eq!(bytes.len(), 256);
        bytes.sort_unstable();
        assert!(
            bytes
                .iter()
                .enumerate()
                .all(|(index, byte)| index == *byte as usize)
        );
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
    }

    #[test]
    fn only_two_hex_digits_are_a_byte_token() {
        assert_eq!(byte_token("<0xE2>"), Some(0xE2));
        for text in [
            "<0x-1>", "<0x+1>", "<0xé>", "<0x1>", "<0x100>", "0xE2", "<0xG0>",
        ] {
            assert_eq!(byte_token(text), None, "{text}");
        }
    }

    #[test]
    fn a_huge_id_is_refused_and_gaps_have_no_text() {
        let row = |id, text: &str| TokenRow {
            id,
            text: text.to_string(),
            added: false,
            special: false,
        };
        assert!(TokenTable::new(vec![row(u32::MAX, "x")], Spelling::ByteLevel).is_err());
        let table = TokenTable::new(vec![row(3, "Ġb"), row(1, "a")], Spelling::ByteLevel).unwrap();
        assert_eq!(table.len(), 4);
        assert_eq!(
            (table.bytes(0), table.bytes(1), table.bytes(3)),
            (None, Some(&b"a"[..]), Some(&b" b"[..]))
        );
        assert_eq!(
            (table.bytes(2), table.bytes(4), table.bytes(u32::MAX)),
            (None, None, None)
        );
    }
}
