//! The table of `tokenizer.ggml.pre`: how byte-level vocabularies of each family divide text into words before merging.
//!
//! GGUF files name the rule instead of carrying it, so it must be known exactly or the file refused: a wrong rule gives
//! different tokens without any error. The expressions are those of the families' own `tokenizer.json`. Names with the same
//! rule share a row; rows do not depend on each other.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::punctuation::Punctuation;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::error::{Error, Result};

/// One step of dividing text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Matches of an expression, and what lies between them, become pieces.
    Split(&'static str),
    /// Every digit is a piece of its own.
    EachDigit,
    /// Runs of digits are pieces.
    DigitRuns,
    /// Runs of punctuation are pieces.
    PunctuationRuns,
    /// GPT-2's expression, and bytes become the byte alphabet.
    Gpt2,
}

/// What one name of `tokenizer.ggml.pre` stands for.
#[derive(Debug)]
pub(super) struct PreType {
    names: &'static [&'static str],
    steps: &'static [Step],
    /// Text is put into Unicode's composed form first.
    pub(super) nfc: bool,
    /// A word that is a token is taken whole, without merging.
    pub(super) ignore_merges: bool,
    /// The beginning token is added unless `add_bos_token` says otherwise.
    pub(super) add_bos: bool,
    /// Raw UTF-8 with `▁` for spaces and `<0xE2>` for missing bytes, instead of the byte alphabet.
    pub(super) sentence_piece: bool,
}

const PLAIN: PreType = PreType {
    names: &[],
    steps: &[],
    nfc: false,
    ignore_merges: false,
    add_bos: false,
    sentence_piece: false,
};

/// cl100k with digit runs of up to three, as Llama 3 uses it.
const LLAMA3: Step = Step::Split(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// The same with single digits.
const QWEN2: Step = Step::Split(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Combining marks belong to words.
const QWEN35: Step = Step::Split(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// o200k: words end where capitals begin.
const GPT4O: Step = Step::Split(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: Step = Step::Split(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const YOUTU: Step = Step::Split(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const DEEPSEEK_V3: &[Step] = &[
    Step::Split(r"\p{N}{1,3}"),
    Step::Split(r"[一-龥぀-ゟ゠-ヿ]+"),
    Step::Split(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
    ),
];
const BLOOM: Step = Step::Split(r" ?[^(\s|[.,!?…。，、।۔،])]+");
const CODE: &[Step] = &[Step::EachDigit, Step::Gpt2];
const NEWLINES: Step = Step::Split(r"[^\n]+|[\n]+");

/// Every name this build knows.
const TABLE: &[PreType] = &[
    PreType {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        steps: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreType {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        steps: &[LLAMA3],
        ..PLAIN
    },
    PreType {
        names: &["glm4", "glm5"],
        steps: &[LLAMA3],
        ignore_merges: true,
        ..PLAIN
    },
    PreType {
        names: &["jais-2"],
        steps: &[Step::Split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
        )],
        ..PLAIN
    },
    PreType {
        names: &["minicpm5"],
        steps: &[
            Step::Split(r"\p{N}{1,3}"),
            Step::Split(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            ),
        ],
        ignore_merges: true,
        ..PLAIN
    },
    PreType {
        names: &["qwen2", "deepseek-r1-qwen", "megrez"],
        steps: &[QWEN2],
        nfc: true,
        ..PLAIN
    },
    PreType {
        names: &[
            "kormo",
            "f2llmv2",
            "stablelm2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        steps: &[QWEN2],
        ..PLAIN
    },
    PreType {
        names: &["qwen35"],
        steps: &[QWEN35],
        nfc: true,
        ..PLAIN
    },
    PreType {
        names: &["laguna"],
        steps: &[NEWLINES, QWEN2],
        ..PLAIN
    },
    PreType {
        names: &["ufakzeka"],
        steps: &[Step::Split(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..PLAIN
    },
    PreType {
        names: &["seed-coder"],
        steps: &[Step::Split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        )],
        ..PLAIN
    },
    PreType {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        steps: &[Step::Split(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..PLAIN
    },
    PreType {
        names: &["exaone-moe"],
        steps: &[Step::Split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        )],
        ..PLAIN
    },
    PreType {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        steps: &[GPT4O],
        ..PLAIN
    },
    PreType {
        names: &["granite-embed-multi-97m"],
        steps: &[GPT4O],
        ignore_merges: true,
        ..PLAIN
    },
    PreType {
        names: &["tiny_aya", "cohere2moe"],
        steps: &[Step::Split(r"\d{1,3}(?=(?:\d{3})*\b)"), GPT4O],
        ..PLAIN
    },
    PreType {
        names: &["tekken"],
        steps: &[TEKKEN],
        ignore_merges: true,
        add_bos: true,
        ..PLAIN
    },
    PreType {
        names: &["youtu"],
        steps: &[
            Step::Split(r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"),
            YOUTU,
        ],
        ignore_merges: true,
        ..PLAIN
    },
    PreType {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        steps: DEEPSEEK_V3,
        ..PLAIN
    },
    PreType {
        names: &["spark2_5"],
        steps: &[
            Step::Split(r"\p{N}{1,3}"),
            Step::Split(r"[一-龥぀-ゟ゠-ヿ]+"),
            Step::Split(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
            ),
            Step::EachDigit,
        ],
        ..PLAIN
    },
    PreType {
        names: &["deepseek-llm"],
        steps: &[
            Step::Split(r"[\r\n]"),
            Step::Split(DEEPSEEK_LETTERS),
            Step::Split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            Step::Split(r"\s+$"),
            Step::Split("[一-龥ࠀ-一가-퟿]+"),
            Step::DigitRuns,
        ],
        ..PLAIN
    },
    PreType {
        names: &["deepseek-coder"],
        steps: &[
            Step::Split(r"[\r\n]"),
            Step::Split(r"\s?\p{L}+"),
            Step::Split(r"\s?\p{P}+"),
            Step::Split("[一-龥ࠀ-一가-퟿]+"),
            Step::EachDigit,
        ],
        ..PLAIN
    },
    PreType {
        names: &["falcon"],
        steps: &[
            Step::PunctuationRuns,
            Step::Gpt2,
            Step::DigitRuns,
            Step::Split("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    PreType {
        names: &["default"],
        steps: &[
            Step::Split(r"[\p{P}\$\+<=>\^~\|]+"),
            Step::Split(GPT2_EXPRESSION),
            Step::Split(r"\p{N}+"),
            Step::Split("[0-9][0-9][0-9]"),
        ],
        ..PLAIN
    },
    PreType {
        names: &["command-r"],
        steps: CODE,
        nfc: true,
        ..PLAIN
    },
    PreType {
        names: &[
            "starcoder",
            "refact",
            "smollm",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        steps: CODE,
        ..PLAIN
    },
    PreType {
        names: &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jais",
            "trillion",
            "exaone4",
            "granite-docling",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
        ],
        steps: &[Step::Gpt2],
        ..PLAIN
    },
    PreType {
        names: &["mpt", "olmo"],
        steps: &[Step::Gpt2],
        nfc: true,
        ..PLAIN
    },
    PreType {
        names: &["poro-chat", "bloom", "gpt3-finnish"],
        steps: &[BLOOM],
        ..PLAIN
    },
    PreType {
        names: &["viking"],
        steps: &[BLOOM, Step::EachDigit],
        ..PLAIN
    },
    PreType {
        names: &["superbpe"],
        steps: &[Step::Split(r"\p{N}+"), Step::Split(r"(?=(\d{3})+(?!\d))")],
        ..PLAIN
    },
    PreType {
        names: &["chameleon"],
        steps: &[
            Step::Split("<sentinel:[0-9]+>"),
            Step::Split("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            Step::Split(r"([\t\n]|    |  )"),
            Step::EachDigit,
            Step::Split(r"[\p{P}!-/:-@\[-`{-~]"),
            Step::Gpt2,
        ],
        add_bos: true,
        ..PLAIN
    },
    PreType {
        names: &["gemma4", "granite-embed-multi-311m"],
        steps: &[NEWLINES],
        ignore_merges: false,
        add_bos: true,
        sentence_piece: true,
        ..PLAIN
    },
    PreType {
        names: &["sarvam-moe"],
        steps: &[NEWLINES],
        sentence_piece: true,
        ..PLAIN
    },
];

const GPT2_EXPRESSION: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

impl PreType {
    /// The rule called `name`.
    ///
    /// # Errors
    /// `Unsupported` for a name this build does not know.
    pub(super) fn by_name(name: &str) -> Result<&'static Self> {
        TABLE
            .iter()
            .find(|row| row.names.contains(&name))
            .ok_or_else(|| {
                let mut known: Vec<&str> =
                    TABLE.iter().flat_map(|row| row.names).copied().collect();
                known.sort_unstable();
                Error::unsupported(format!(
                    "cannot build the tokenizer: unknown `tokenizer.ggml.pre` `{}`",
                    name.escape_debug()
                ))
                .with_hint(format!(
                    "known are {}; or use the model's safetensors folder with its `tokenizer.json`",
                    known.join(", ")
                ))
            })
    }

    /// The pre-tokenizer of the `tokenizers` crate.
    pub(super) fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for step in self.steps {
            steps.push(match *step {
                Step::Split(pattern) => split(pattern)?,
                Step::EachDigit => Digits::new(true).into(),
                Step::DigitRuns => Digits::new(false).into(),
                Step::PunctuationRuns => {
                    Punctuation::new(SplitDelimiterBehavior::Contiguous).into()
                }
                Step::Gpt2 => ByteLevel::new(false, true, true).into(),
            });
        }
        if !self.sentence_piece && !self.steps.contains(&Step::Gpt2) {
            steps.push(ByteLevel::new(false, true, false).into());
        }
        Ok(Sequence::new(steps).into())
    }
}

fn split(pattern: &str) -> Result<PreTokenizerWrapper> {
    let split = Split::new(
        SplitPattern::Regex(pattern.to_string()),
        SplitDelimiterBehavior::Isolated,
        false,
    );
    split.map(Into::into).map_err(|error| {
        Error::internal(format!(
            "cannot compile the expression `{pattern}`: {error}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn no_name_stands_in_two_rows_and_every_row_compiles() {
        let mut names: Vec<&str> = TABLE.iter().flat_map(|row| row.names).copied().collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for row in TABLE {
            row.pre_tokenizer().unwrap();
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = PreType::by_name("gpt-99").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.to_string().contains("gpt-99") && error.hint().unwrap().contains("llama-bpe")
        );
    }
}
