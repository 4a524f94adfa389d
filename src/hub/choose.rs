//! Which files of a repository make up a model, and which variants there are to choose from.

use std::collections::BTreeMap;

use super::{Listing, RemoteFile};
use crate::error::{Error, Result};
use crate::store::{group_variants, is_companion, is_wanted_file};

/// Preferred GGUF variants, best first: small enough for most machines, good enough for most uses.
const RECOMMENDED: [&str; 8] = [
    "Q4_K_M", "Q4_K_S", "Q4_K", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "Q5_K_M",
];

/// The label of the safetensors set of a repository that also has GGUF files.
const SAFETENSORS: &str = "safetensors";

/// One thing to choose: a set of weight files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// `Q4_K_M`, `safetensors`, or the file's name when that says no more.
    pub label: String,
    /// Whether it is GGUF.
    pub is_gguf: bool,
    /// The weight files.
    pub files: Vec<RemoteFile>,
}

impl Variant {
    /// Bytes of all files, where all are known.
    pub fn size(&self) -> Option<u64> {
        self.files.iter().map(|file| file.size).sum()
    }

    /// A short remark on the quality.
    pub fn remark(&self) -> &'static str {
        if !self.is_gguf {
            return "original weights";
        }
        let label = self.label.strip_prefix("UD-").unwrap_or(&self.label);
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| label.starts_with(prefix));
        if starts(&["F32", "FP32", "BF16", "F16", "FP16"]) {
            "unquantised"
        } else if starts(&["Q8", "Q6"]) {
            "hardly any loss"
        } else if starts(&["Q5"]) {
            "very small loss"
        } else if starts(&["Q4", "IQ4", "MXFP4"]) {
            "small loss"
        } else if starts(&["Q3", "IQ3"]) {
            "noticeable loss"
        } else if starts(&["Q2", "IQ2", "Q1", "IQ1", "TQ"]) {
            "large loss"
        } else {
            ""
        }
    }
}

/// A repository, sorted out.
#[derive(Debug, Clone)]
pub struct Contents {
    /// Files that come with every variant: configuration, tokenizer, template.
    pub shared: Vec<RemoteFile>,
    /// What there is to choose from, at least one; safetensors first, then GGUF in order of their labels.
    pub variants: Vec<Variant>,
}

impl Contents {
    /// Sorts the files of a repository.
    ///
    /// # Errors
    /// `Unsupported` when it holds only weights that this program does not read, `NotFound` when it holds none.
    pub fn of(listing: &Listing) -> Result<Self> {
        let wanted: Vec<&RemoteFile> = listing
            .files
            .iter()
            .filter(|file| is_wanted_file(&file.path))
            .collect();
        let is_safetensors =
            |file: &&&RemoteFile| file.path.ends_with(".safetensors") && !file.path.contains('/');
        let mut safetensors: Vec<RemoteFile> = wanted
            .iter()
            .filter(is_safetensors)
            .map(|&file| file.clone())
            .collect();
        // The same weights once more, in another layout.
        if safetensors.iter().any(|file| !is_consolidated(file)) {
            safetensors.retain(|file| !is_consolidated(file));
        }
        let mut variants = Vec::new();
        if !safetensors.is_empty() {
            variants.push(Variant {
                label: SAFETENSORS.to_owned(),
                is_gguf: false,
                files: safetensors,
            });
        }
        variants.extend(gguf_variants(&wanted));
        if variants.is_empty() {
            return Err(no_weights(listing));
        }
        let is_weight = |file: &RemoteFile| {
            file.path.to_lowercase().ends_with(".gguf") || is_safetensors(&&file)
        };
        let shared = wanted
            .into_iter()
            .filter(|file| !is_weight(file))
            .cloned()
            .collect();
        Ok(Self { shared, variants })
    }

    /// The files to have for `variant`: small ones first.
    pub fn files_for(&self, variant: &Variant) -> Vec<RemoteFile> {
        let is_for_safetensors = |file: &&RemoteFile| file.path.contains(".safetensors");
        let shared = self
            .shared
            .iter()
            .filter(|file| !variant.is_gguf || !is_for_safetensors(file));
        let mut files: Vec<RemoteFile> = shared.cloned().collect();
        files.sort_by_key(|file| (!file.path.ends_with(".json"), file.path.clone()));
        files.extend(variant.files.iter().cloned());
        files
    }
}

fn is_consolidated(file: &RemoteFile) -> bool {
    file.path == "consolidated.safetensors"
}

fn gguf_variants(wanted: &[&RemoteFile]) -> Vec<Variant> {
    let find = |name: &str| {
        wanted
            .iter()
            .find(|file| file.path == name)
            .map(|&file| file.clone())
    };
    let mut groups = group_variants(
        wanted
            .iter()
            .map(|file| file.path.as_str())
            .filter(|path| !path.contains('/')),
    );
    groups.retain(|group| group.missing.is_empty());
    // Files of another model in the same repository (a draft model, a projector under an unusual name).
    let family = |stem: &str| stem.split('-').next().unwrap_or_default().to_lowercase();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for group in &groups {
        *counts.entry(family(&group.stem)).or_default() += 1;
    }
    let most = counts.values().copied().max().unwrap_or(0);
    groups.retain(|group| counts[&family(&group.stem)] == most);
    if groups.iter().any(|group| group.label.is_some()) {
        groups.retain(|group| group.label.is_some());
    }
    let mut labels: BTreeMap<Option<String>, usize> = BTreeMap::new();
    for group in &groups {
        *labels.entry(group.label.clone()).or_default() += 1;
    }
    let mut variants: Vec<Variant> = groups
        .into_iter()
        .map(|group| Variant {
            is_gguf: true,
            files: group.files.iter().filter_map(|name| find(name)).collect(),
            label: match group.label {
                Some(label) if labels[&Some(label.clone())] == 1 => label,
                _ => group.stem,
            },
        })
        .collect();
    variants.sort_by(|one, other| one.label.cmp(&other.label));
    variants
}

fn no_weights(listing: &Listing) -> Error {
    let has = |extensions: &[&str]| {
        listing
            .files
            .iter()
            .any(|file| extensions.iter().any(|end| file.path.ends_with(end)))
    };
    let repository = &listing.repository;
    if has(&[".bin", ".pth", ".pt"]) {
        Error::unsupported(format!(
            "`{repository}` has its weights only as PyTorch files (`.bin`, `.pth`)"
        ))
        .with_hint("look for a repository of the same model with `.safetensors` or `.gguf` files")
    } else if listing
        .files
        .iter()
        .any(|file| file.path.ends_with(".gguf") && !is_companion(&file.path))
    {
        Error::unsupported(format!("`{repository}` has its `.gguf` files only in subfolders or without all their shards"))
            .with_hint("download the files of one variant into a folder and add it with `oxydllm pull ./folder`")
    } else {
        Error::not_found(format!(
            "`{repository}` holds no `.safetensors` and no `.gguf` files"
        ))
    }
}

/// The variant that is taken without a question: the recommendation, else the first.
pub fn choose_default<'a>(variants: impl IntoIterator<Item = &'a Variant>) -> Option<&'a Variant> {
    let variants: Vec<&Variant> = variants.into_iter().collect();
    let recommended = RECOMMENDED
        .iter()
        .find_map(|label| variants.iter().find(|variant| variant.label == *label));
    recommended.or(variants.first()).copied()
}

/// The variant called `label`, in any case.
///
/// # Errors
/// `NotFound` that lists what exists.
pub fn find_variant<'a>(variants: &'a [Variant], label: &str) -> Result<&'a Variant> {
    variants
        .iter()
        .find(|variant| variant.label.to_lowercase() == label.to_lowercase())
        .ok_or_else(|| {
            let labels: Vec<String> = variants
                .iter()
                .map(|variant| format!("`{}`", variant.label))
                .collect();
            Error::not_found(format!(
                "there is no variant `{label}`; there are {}",
                labels.join(", ")
            ))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ModelName;

    fn listing(paths: &[&str]) -> Listing {
        Listing {
            repository: ModelName::parse("u/m").unwrap(),
            commit: "main".into(),
            files: paths
                .iter()
                .map(|&path| RemoteFile {
                    path: path.into(),
                    size: Some(10),
                    sha256: None,
                })
                .collect(),
        }
    }

    fn labels(paths: &[&str]) -> Vec<String> {
        Contents::of(&listing(paths))
            .unwrap()
            .variants
            .into_iter()
            .map(|variant| variant.label)
            .collect()
    }

    #[test]
    fn variants_are_told_apart_and_companions_left_out() {
        let cases: [(&[&str], &[&str]); 8] = [
            (
                &["m-Q6_K.gguf", "m-Q6_K_M.gguf", "m-Q6_K_XL.gguf"],
                &["Q6_K", "Q6_K_M", "Q6_K_XL"],
            ),
            (
                &["m-Q4_K_M.gguf", "m-Q4_K_M-FP16.gguf"],
                &["Q4_K_M", "Q4_K_M-FP16"],
            ),
            (
                &["m-Q4_0.gguf", "mmproj-m-F16.gguf", "m-imatrix.gguf"],
                &["Q4_0"],
            ),
            (
                &["m-Q4_0.gguf", "m-Q8_0.gguf", "draft-Q4_0.gguf"],
                &["Q4_0", "Q8_0"],
            ),
            (&["m-q4_0.gguf", "m.gguf"], &["Q4_0"]),
            (&["model.gguf"], &["model"]),
            (
                &[
                    "m-Q8_0-00001-of-00002.gguf",
                    "m-Q8_0-00002-of-00002.gguf",
                    "m-Q4_0-00001-of-00002.gguf",
                ],
                &["Q8_0"],
            ),
            (
                &["model.safetensors", "config.json", "m-Q4_0.gguf"],
                &["safetensors", "Q4_0"],
            ),
        ];
        for (paths, expected) in cases {
            assert_eq!(labels(paths), expected, "{paths:?}");
        }
    }

    #[test]
    fn two_models_with_the_same_label_keep_their_names() {
        assert_eq!(
            labels(&["m-base-Q4_0.gguf", "m-chat-Q4_0.gguf"]),
            ["m-base-Q4_0", "m-chat-Q4_0"]
        );
    }

    #[test]
    fn the_recommendation_follows_the_list_and_falls_back_to_the_first() {
        let pick = |paths: &[&str]| {
            choose_default(&Contents::of(&listing(paths)).unwrap().variants)
                .unwrap()
                .label
                .clone()
        };
        assert_eq!(
            pick(&["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_0.gguf"]),
            "Q4_K_M"
        );
        assert_eq!(
            pick(&["m-Q8_0.gguf", "m-Q4_0.gguf", "m-Q5_K_M.gguf"]),
            "Q4_0"
        );
        assert_eq!(pick(&["m-Q8_0.gguf", "m-Q2_K.gguf"]), "Q2_K");
    }

    #[test]
    fn consolidated_weights_are_taken_only_when_they_are_the_only_ones() {
        let files = |paths: &[&str]| {
            let contents = Contents::of(&listing(paths)).unwrap();
            contents
                .files_for(&contents.variants[0])
                .into_iter()
                .map(|file| file.path)
                .collect::<Vec<_>>()
        };
        assert_eq!(
            files(&[
                "consolidated.safetensors",
                "model.safetensors",
                "config.json"
            ]),
            ["config.json", "model.safetensors"]
        );
        assert_eq!(
            files(&["consolidated.safetensors", "config.json"]),
            ["config.json", "consolidated.safetensors"]
        );
    }

    #[test]
    fn a_gguf_variant_brings_no_safetensors_companions() {
        let paths = [
            "model.safetensors",
            "model.safetensors.index.json",
            "2_Dense/model.safetensors",
            "tokenizer.json",
            "m-Q4_0.gguf",
        ];
        let contents = Contents::of(&listing(&paths)).unwrap();
        let files = |index: usize| {
            contents
                .files_for(&contents.variants[index])
                .into_iter()
                .map(|file| file.path)
                .collect::<Vec<_>>()
        };
        assert_eq!(files(1), ["tokenizer.json", "m-Q4_0.gguf"]);
        assert_eq!(files(0).len(), 4);
    }

    #[test]
    fn weights_of_other_kinds_are_refused_with_advice() {
        let error = Contents::of(&listing(&["pytorch_model.bin", "config.json"])).unwrap_err();
        assert!(
            error.to_string().contains("PyTorch") && error.hint().is_some(),
            "{error}"
        );
        assert!(Contents::of(&listing(&["config.json"])).is_err());
        assert!(
            Contents::of(&listing(&["Q4/m-Q4_0.gguf"]))
                .unwrap_err()
                .to_string()
                .contains("subfolders")
        );
    }

    #[test]
    fn variants_are_found_in_any_case_and_unknown_ones_list_what_exists() {
        let variants = Contents::of(&listing(&["m-Q4_0.gguf", "m-Q8_0.gguf"]))
            .unwrap()
            .variants;
        assert_eq!(find_variant(&variants, "q8_0").unwrap().label, "Q8_0");
        let error = find_variant(&variants, "Q5_0").unwrap_err().to_string();
        assert!(error.ends_with("there are `Q4_0`, `Q8_0`"), "{error}");
    }
}
