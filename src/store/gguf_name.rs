//! What the names of GGUF files say: shards, quantisation label, companions, the canonical stem that becomes an id.

use std::collections::BTreeMap;

/// The files of one GGUF model: one file, or all its shards in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufVariant {
    /// The name without shard suffix and extension, as published.
    pub stem: String,
    /// The quantisation part of the name in upper case, such as `Q4_K_M`; `None` when the name has none.
    pub label: Option<String>,
    /// File names that exist, in shard order.
    pub files: Vec<String>,
    /// File names of shards that the names promise and that are not there.
    pub missing: Vec<String>,
}

/// Groups file names (others than `.gguf` are ignored) into variants, in order of their stems. Companions are left out.
pub fn group_variants<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<GgufVariant> {
    let mut groups: BTreeMap<(String, usize), Vec<(usize, String)>> = BTreeMap::new();
    for name in names {
        let Some(stem) = strip_extension(name) else {
            continue;
        };
        if is_companion(name) {
            continue;
        }
        let (base, shard) = split_shard(stem);
        let (number, total) = shard.unwrap_or((1, 0));
        groups
            .entry((base.to_owned(), total))
            .or_default()
            .push((number, name.to_owned()));
    }
    groups
        .into_iter()
        .map(|((stem, total), shards)| variant(stem, total, shards))
        .collect()
}

fn variant(stem: String, total: usize, mut shards: Vec<(usize, String)>) -> GgufVariant {
    shards.sort();
    let is_there = |number: usize| shards.iter().any(|(n, _)| *n == number);
    let missing = (1..=total)
        .filter(|&number| !is_there(number))
        .map(|number| shard_name(&stem, number, total))
        .collect();
    GgufVariant {
        label: label(&stem),
        files: shards.iter().map(|(_, name)| name.clone()).collect(),
        missing,
        stem,
    }
}

/// The name of shard `number` of `total`.
pub fn shard_name(stem: &str, number: usize, total: usize) -> String {
    format!("{stem}-{number:05}-of-{total:05}.gguf")
}

/// Whether a GGUF file accompanies a model without being one: a vision projector, an importance matrix.
pub fn is_companion(name: &str) -> bool {
    let name = name.to_lowercase();
    name.split(['-', '.', '_'])
        .any(|word| matches!(word, "mmproj" | "imatrix"))
}

/// The name without `.gguf` in any case.
pub fn strip_extension(name: &str) -> Option<&str> {
    let at = name.len().checked_sub(5)?;
    match name.get(at..) {
        Some(extension) if extension.eq_ignore_ascii_case(".gguf") && at > 0 => name.get(..at),
        _ => None,
    }
}

/// `x-00002-of-00003` is shard 2 of 3 of `x`.
pub fn split_shard(stem: &str) -> (&str, Option<(usize, usize)>) {
    // "-00001-of-00003" has 15 bytes.
    let Some(at) = stem
        .len()
        .checked_sub(15)
        .filter(|&at| at > 0 && stem.is_char_boundary(at))
    else {
        return (stem, None);
    };
    let suffix = &stem[at..];
    let digits = |range: std::ops::Range<usize>| {
        let text = suffix.get(range)?;
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            text.parse::<usize>().ok()
        } else {
            None
        }
    };
    match (
        suffix.starts_with('-'),
        suffix.get(6..10),
        digits(1..6),
        digits(10..15),
    ) {
        (true, Some("-of-"), Some(number), Some(total)) if (1..=total).contains(&number) => {
            (&stem[..at], Some((number, total)))
        }
        _ => (stem, None),
    }
}

/// The quantisation part of a stem, in upper case. Everything from the quantisation to the end belongs to it, so that
/// `Q6_K`, `Q6_K_XL` and `Q4_K_M-FP16` stay what their publisher told apart.
pub fn label(stem: &str) -> Option<String> {
    let mut words = Vec::new();
    let mut start = 0;
    for (at, _) in stem.match_indices(['-', '.']).chain([(stem.len(), "")]) {
        words.push(start..at);
        start = at + 1;
    }
    let last = words
        .iter()
        .rposition(|word| find_quantisation(&stem[word.clone()]).is_some())?;
    let mut first = last;
    while first > 0 && find_quantisation(&stem[words[first - 1].clone()]) == Some(0) {
        first -= 1;
    }
    let mut from = words[first].start + find_quantisation(&stem[words[first].clone()])?;
    // "UD" marks a publisher's own mixture; it is another file than the plain quantisation.
    if first > 0
        && from == words[first].start
        && stem[words[first - 1].clone()].eq_ignore_ascii_case("UD")
    {
        from = words[first - 1].start;
    }
    Some(stem[from..].to_uppercase())
}

/// Where in a word a quantisation begins: at its start, or after an underscore.
fn find_quantisation(word: &str) -> Option<usize> {
    let starts = std::iter::once(0).chain(word.match_indices('_').map(|(at, _)| at + 1));
    starts.into_iter().find(|&at| is_quantisation(&word[at..]))
}

fn is_quantisation(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    let head = word.split('_').next().unwrap_or_default();
    if matches!(
        head,
        "F16" | "F32" | "F64" | "BF16" | "FP16" | "FP32" | "FP8" | "MXFP4" | "NVFP4"
    ) || word == "I2_S"
    {
        return true;
    }
    let digits = ["IQ", "TQ", "Q"]
        .iter()
        .find_map(|prefix| head.strip_prefix(prefix));
    digits.is_some_and(|digits| {
        (1..=2).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The stem as an id shows it: where it begins with the words of the folder's name (less `-GGUF`), the folder's spelling wins
/// and the rest is upper-cased; otherwise the stem as it is.
pub fn canonical_stem(stem: &str, folder: &str) -> String {
    let base = match folder
        .len()
        .checked_sub(5)
        .map(|at| (folder.get(..at), folder.get(at..)))
    {
        Some((Some(base), Some(suffix)))
            if !base.is_empty()
                && (suffix.eq_ignore_ascii_case("-gguf")
                    || suffix.eq_ignore_ascii_case("_gguf")) =>
        {
            base
        }
        _ => folder,
    };
    match (stem.get(..base.len()), stem.get(base.len()..)) {
        (Some(head), Some(rest))
            if head.to_lowercase() == base.to_lowercase()
                // Not `sm` of `small`: that is another name, and no part of it a quantisation.
                && (rest.is_empty() || rest.starts_with(['-', '_', '.'])) =>
        {
            format!("{base}{}", rest.to_uppercase())
        }
        _ => stem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_what_the_publisher_told_apart() {
        let cases = [
            ("Qwen3-4B-Q4_K_M", Some("Q4_K_M")),
            ("qwen3-4b-q4_k_m", Some("Q4_K_M")),
            ("SmolLM2-135M-Instruct.Q4_1", Some("Q4_1")),
            ("m-Q6_K", Some("Q6_K")),
            ("m-Q6_K_M", Some("Q6_K_M")),
            ("m-Q6_K_XL", Some("Q6_K_XL")),
            ("m-Q4_K_M-FP16", Some("Q4_K_M-FP16")),
            ("Qwen3-4B-UD-Q4_K_XL", Some("UD-Q4_K_XL")),
            ("m-IQ3_XXS", Some("IQ3_XXS")),
            ("m-TQ1_0", Some("TQ1_0")),
            ("gpt-oss-20b-mxfp4", Some("MXFP4")),
            ("Phi-3-mini-4k-instruct-q4", Some("Q4")),
            ("Phi-3-mini-4k-instruct-fp16", Some("FP16")),
            ("m-bf16", Some("BF16")),
            ("tiny_model_q8_0", Some("Q8_0")),
            ("x-BF16-tuned-Q5_0", Some("Q5_0")),
            ("m.Q4_K_M-imat", Some("Q4_K_M-IMAT")),
            ("Qwen2.5-1.5B-Instruct", None),
            ("model", None),
            ("", None),
            ("ünï-Q4_0", Some("Q4_0")),
        ];
        for (stem, expected) in cases {
            assert_eq!(label(stem).as_deref(), expected, "{stem}");
        }
    }

    #[test]
    fn shards_form_one_variant_and_missing_ones_are_named() {
        let names = [
            "m-Q8_0-00003-of-00003.gguf",
            "m-Q8_0-00001-of-00003.gguf",
            "m-Q4_0.gguf",
            "README.md",
        ];
        let variants = group_variants(names);
        assert_eq!(variants.len(), 2);
        assert_eq!(
            variants[1].files,
            ["m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"]
        );
        assert_eq!(variants[1].missing, ["m-Q8_0-00002-of-00003.gguf"]);
        assert_eq!(
            (variants[0].label.as_deref(), variants[0].missing.len()),
            (Some("Q4_0"), 0)
        );
    }

    #[test]
    fn things_that_only_look_like_shards_are_not() {
        for stem in [
            "-00001-of-00002",
            "m-00000-of-00002",
            "m-00003-of-00002",
            "m-0001-of-00002",
            "m-+0001-of-00002",
            "é",
        ] {
            assert_eq!(split_shard(stem), (stem, None));
        }
        assert_eq!(split_shard("m-00002-of-00002"), ("m", Some((2, 2))));
    }

    #[test]
    fn projectors_and_importance_matrices_are_no_variants() {
        let names = [
            "mmproj-model-f16.gguf",
            "model-Q4_0.gguf",
            "model.imatrix.gguf",
            "m-mmproj-BF16.gguf",
        ];
        let variants = group_variants(names);
        assert_eq!(
            variants.iter().map(|v| v.stem.as_str()).collect::<Vec<_>>(),
            ["model-Q4_0"]
        );
    }

    #[test]
    fn the_folder_gives_the_spelling_of_an_id() {
        let cases = [
            ("qwen3-4b-q4_k_m", "Qwen3-4B-GGUF", "Qwen3-4B-Q4_K_M"),
            ("qwen3-4b-q4_k_m", "Qwen3-4B_gguf", "Qwen3-4B-Q4_K_M"),
            ("Other-Q4_0", "Qwen3-4B-GGUF", "Other-Q4_0"),
            ("smollm2", "smollm2", "smollm2"),
            ("a", "-GGUF", "a"),
            ("éa-q4_0", "Éa-GGUF", "Éa-Q4_0"),
            ("tiny_q8_0", "Tiny", "Tiny_Q8_0"),
            ("tiny.q8_0", "Tiny", "Tiny.Q8_0"),
            // The folder's name is the beginning of a word only.
            ("small-model", "sm", "small-model"),
            (
                "SmolLM2-135M-Instruct.Q4_1",
                "smol",
                "SmolLM2-135M-Instruct.Q4_1",
            ),
            ("qwen3-4b-q4_0", "Qwen-GGUF", "qwen3-4b-q4_0"),
        ];
        for (stem, folder, expected) in cases {
            assert_eq!(canonical_stem(stem, folder), expected);
        }
    }
}
