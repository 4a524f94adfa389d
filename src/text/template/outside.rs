//! Which parts of a rendered prompt came with the messages.
//!
//! Only what could become a control token matters. Before rendering, a mark (one private-use character that occurs nowhere in
//! the input) is put inside every control token's text in the messages, after its first character, and behind a text that ends
//! with the beginning of one; after rendering the marks are taken out and their places kept as barriers: a control token's text
//! across a barrier is not meant as one. All other text goes through the template untouched, so that templates that trim, split
//! or search contents do what they always do.

use std::collections::HashSet;

use minijinja::Value as Jinja;
use serde_json::Value;

use super::RenderInput;
use crate::text::specials::SpecialTexts;

/// A rendered prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub text: String,
    /// Byte offsets into `text`, ascending, that no control token spans.
    barriers: Vec<usize>,
}

impl From<String> for Rendered {
    /// Text that is trusted as a whole.
    fn from(text: String) -> Self {
        Self {
            text,
            barriers: Vec::new(),
        }
    }
}

impl Rendered {
    /// Whether a control token's text at bytes `start..end` came, at least in part, with the messages.
    pub fn is_outside(&self, start: usize, end: usize) -> bool {
        let next = self.barriers.partition_point(|&barrier| barrier <= start);
        self.barriers
            .get(next)
            .is_some_and(|&barrier| barrier < end)
    }

    /// Whether the text of any of `specials` came with the messages.
    pub fn has_outside_specials(&self, specials: &SpecialTexts) -> bool {
        let bytes = self.text.as_bytes();
        !self.barriers.is_empty()
            && (0..bytes.len()).any(|at| {
                specials
                    .lengths_at(&bytes[at..])
                    .any(|len| self.is_outside(at, at + len))
            })
    }

    /// Adds text of the program's own behind the prompt, such as the beginning of an answer.
    pub fn push_trusted(&mut self, text: &str) {
        self.text.push_str(text);
    }
}

/// Marks outside text.
pub(super) struct Marker<'a> {
    specials: Option<&'a SpecialTexts>,
    mark: char,
    /// The mark as `tojson(ensure_ascii=true)` writes it.
    escaped: String,
    input_bytes: usize,
}

impl<'a> Marker<'a> {
    pub(super) fn new(input: &RenderInput<'a>) -> Self {
        let mut scan = Scan::default();
        let tools = input.tools.unwrap_or_default();
        input
            .messages
            .iter()
            .chain(tools)
            .for_each(|value| scan.value(value));
        for (name, value) in input.extra.into_iter().flatten() {
            scan.text(name);
            scan.value(value);
        }
        let mark = ('\u{F0000}'..'\u{FFFFE}')
            .find(|mark| !scan.used.contains(mark))
            .unwrap_or('\u{F0000}');
        let mut units = [0; 2];
        let escaped = mark
            .encode_utf16(&mut units)
            .iter()
            .map(|unit| format!("\\u{unit:04x}"))
            .collect();
        Self {
            specials: input.specials.filter(|specials| !specials.is_empty()),
            mark,
            escaped,
            input_bytes: scan.bytes,
        }
    }

    pub(super) fn input_bytes(&self) -> usize {
        self.input_bytes
    }

    /// A message. The marks of reasoning in an assistant's own earlier words stay what they are: templates look for them.
    pub(super) fn message(&self, message: &Value) -> Jinja {
        self.convert(message, message["role"] == "assistant")
    }

    pub(super) fn value(&self, value: &Value) -> Jinja {
        self.convert(value, false)
    }

    fn convert(&self, value: &Value, own_words: bool) -> Jinja {
        match value {
            Value::Null => Jinja::from(()),
            Value::Bool(value) => Jinja::from(*value),
            Value::Number(number) => {
                let integer = number
                    .as_i64()
                    .map(Jinja::from)
                    .or_else(|| number.as_u64().map(Jinja::from));
                integer.unwrap_or_else(|| Jinja::from(number.as_f64().unwrap_or(f64::NAN)))
            }
            Value::String(text) => Jinja::from(self.marked(text, own_words)),
            Value::Array(items) => items
                .iter()
                .map(|item| self.convert(item, own_words))
                .collect(),
            Value::Object(fields) => {
                Jinja::from_pairs(fields.iter().map(|(name, value)| {
                    (self.marked(name, false), self.convert(value, own_words))
                }))
            }
        }
    }

    fn marked(&self, text: &str, own_words: bool) -> String {
        let Some(specials) = self.specials else {
            return text.to_string();
        };
        let mut marks: Vec<usize> = Vec::new();
        for (start, end) in specials.occurrences(text) {
            if own_words && text[start..end].to_ascii_lowercase().contains("think") {
                continue;
            }
            let first = text[start..end].chars().next().map_or(0, char::len_utf8);
            // A token of one character cannot be divided; none that is a control token exists.
            if start + first < end {
                marks.push(start + first);
            }
        }
        if specials.could_continue(text) {
            marks.push(text.len());
        }
        marks.sort_unstable();
        marks.dedup();
        let (mut out, mut copied) = (String::with_capacity(text.len() + 4 * marks.len()), 0);
        for at in marks {
            out.push_str(&text[copied..at]);
            out.push(self.mark);
            copied = at;
        }
        out.push_str(&text[copied..]);
        out
    }

    /// Takes the marks out of rendered text.
    pub(super) fn unmark(&self, marked: &str) -> Rendered {
        if self.specials.is_none() {
            return Rendered::from(marked.to_string());
        }
        let mut rendered = Rendered {
            text: String::with_capacity(marked.len()),
            barriers: Vec::new(),
        };
        let mut rest = marked;
        while let Some((at, len)) = self.find_mark(rest) {
            rendered.text.push_str(&rest[..at]);
            rendered.barriers.push(rendered.text.len());
            rest = &rest[at + len..];
        }
        rendered.text.push_str(rest);
        rendered
    }

    fn find_mark(&self, text: &str) -> Option<(usize, usize)> {
        let plain = text.find(self.mark).map(|at| (at, self.mark.len_utf8()));
        let escaped = text.find(&self.escaped).map(|at| (at, self.escaped.len()));
        plain.into_iter().chain(escaped).min()
    }
}

/// Which characters of private plane 15 occur in the input, as themselves or escaped.
#[derive(Default)]
struct Scan {
    used: HashSet<char>,
    bytes: usize,
}

impl Scan {
    fn value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(items) => items.iter().for_each(|item| self.value(item)),
            Value::Object(fields) => fields.iter().for_each(|(name, value)| {
                self.text(name);
                self.value(value);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => self.bytes += 8,
        }
    }

    fn text(&mut self, text: &str) {
        self.bytes += text.len();
        self.used.extend(
            text.chars()
                .filter(|c| ('\u{F0000}'..'\u{FFFFE}').contains(c)),
        );
        // "\udb80\udc00" and following are plane 15 in escaped form; block the whole high surrogate's first few characters.
        for (at, _) in text.match_indices("\\u") {
            let Some(pair) = text.get(at..at + 12) else {
                continue;
            };
            let unit = |digits: &str| u16::from_str_radix(digits, 16).ok();
            let units = [
                pair.get(2..6).and_then(unit),
                pair.get(8..12).and_then(unit),
            ];
            if let [Some(high), Some(low)] = units {
                self.used
                    .extend(char::decode_utf16([high, low]).filter_map(Result::ok));
            }
        }
    }
}
