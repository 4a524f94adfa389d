//! [`SpecialTexts`]: the texts of control tokens, searchable at every position of a text in time that hardly depends on their
//! number (Gemma has six thousand of them).

/// A set of control-token texts.
#[derive(Debug, Clone, Default)]
pub struct SpecialTexts {
    sorted: Vec<String>,
    max_len: usize,
}

impl SpecialTexts {
    /// A set of `texts`; empty ones are left out.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Self {
        let mut sorted: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        let max_len = sorted.iter().map(String::len).max().unwrap_or(0);
        Self { sorted, max_len }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// The texts in byte order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.sorted.iter().map(String::as_str)
    }

    /// Lengths of all control-token texts that start exactly at the start of `text`, shortest first.
    pub fn lengths_at<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
        let mut candidates = &self.sorted[..];
        let mut len = 0;
        std::iter::from_fn(move || {
            while len < text.len() && !candidates.is_empty() {
                candidates = narrow(candidates, len, text[len]);
                len += 1;
                if candidates.first().is_some_and(|first| first.len() == len) {
                    return Some(len);
                }
            }
            None
        })
    }

    /// Byte ranges of all occurrences in `text`, overlapping ones included, in order of their start.
    pub fn occurrences(&self, text: &str) -> Vec<(usize, usize)> {
        let bytes = text.as_bytes();
        (0..bytes.len())
            .flat_map(|at| self.lengths_at(&bytes[at..]).map(move |len| (at, at + len)))
            .collect()
    }

    /// Whether `text` contains a control token's text.
    pub fn occur_in(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        (0..bytes.len()).any(|at| self.lengths_at(&bytes[at..]).next().is_some())
    }

    /// Whether `text` ends with the beginning of a control token's text, so that following text could complete it.
    pub fn could_continue(&self, text: &str) -> bool {
        let bytes = text.as_bytes();
        let first = bytes.len().saturating_sub(self.max_len.saturating_sub(1));
        (first..bytes.len()).any(|at| {
            let mut candidates = &self.sorted[..];
            for (len, &byte) in bytes[at..].iter().enumerate() {
                candidates = narrow(candidates, len, byte);
            }
            candidates
                .last()
                .is_some_and(|longest| longest.len() > bytes.len() - at)
        })
    }
}

/// Of `candidates`, which agree in their first `len` bytes, those whose next byte is `byte`.
fn narrow(candidates: &[String], len: usize, byte: u8) -> &[String] {
    let next = |text: &String| text.as_bytes().get(len).copied();
    let start = candidates.partition_point(|text| next(text) < Some(byte));
    let end = candidates.partition_point(|text| next(text) <= Some(byte));
    &candidates[start..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(texts: &[&str]) -> SpecialTexts {
        SpecialTexts::new(texts.iter().map(ToString::to_string))
    }

    #[test]
    fn every_occurrence_is_found_also_inside_another() {
        let specials = set(&["<|a|>", "<|a", "|>", "é"]);
        assert_eq!(
            specials.occurrences("x<|a|>é"),
            [(1, 4), (1, 6), (4, 6), (6, 8)]
        );
        assert!(specials.occur_in("..|>"));
        assert!(!specials.occur_in("<|b|"));
    }

    #[test]
    fn a_text_that_ends_in_a_beginning_could_continue() {
        let specials = set(&["<|im_end|>", "[INST]"]);
        for text in ["a <|im_end|", "<", "a[", "[INST"] {
            assert!(specials.could_continue(text), "{text}");
        }
        for text in ["", "a", "<|im_end|>", "[INST] ", "<|im_end| "] {
            assert!(!specials.could_continue(text), "{text}");
        }
    }
}
