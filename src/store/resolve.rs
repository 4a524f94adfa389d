//! From what was typed to a model. Typed text is compared with ids; it becomes a path only where the caller asked for a file.

use std::path::{Path, PathBuf};

use super::scan::{LocalModel, scan, scan_folder};
use crate::error::{Error, Result};

/// A model to load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// A `.gguf` file (the first shard of several) or a checkpoint folder.
    pub path: PathBuf,
    /// The id, when it is a local model; `None` for a file or folder given on purpose.
    pub id: Option<String>,
    /// The other candidates, when the name was not unique: say which one was chosen.
    pub others: Vec<String>,
}

impl Located {
    /// What to call it when talking about it.
    pub fn name(&self) -> String {
        self.id
            .clone()
            .unwrap_or_else(|| self.path.display().to_string())
    }

    /// What to tell when the name was not unique.
    pub fn note(&self, typed: &str) -> Option<String> {
        if self.others.is_empty() {
            return None;
        }
        Some(format!(
            "`{typed}` matches {} models, using `{}` (not {})",
            self.others.len() + 1,
            self.name(),
            listed(&self.others)
        ))
    }
}

/// The model for commands that take partial names, files and folders: exact id, exact without regard to case, an existing
/// file or folder, beginning of the name, part of the name. Of several the first in list order.
///
/// # Errors
/// `NotFound` when nothing matches, `Invalid` when the model is incomplete.
pub fn resolve_for_run(models_dir: &Path, text: &str) -> Result<Located> {
    if is_explicit_path(text) {
        return locate_path(text);
    }
    let models = scan(models_dir)?;
    let mut found = matching(&models, text, &EXACT);
    if found.is_empty() && looks_like_model(Path::new(text)) {
        return locate_path(text);
    }
    if found.is_empty() {
        found = matching(&models, text, &PARTIAL);
    }
    locate_first(&found).unwrap_or_else(|| Err(not_found(models_dir, text, &models)))
}

/// The model with exactly this id (or the folder name of a folder with one model), for commands that must not guess.
///
/// # Errors
/// `NotFound` that lists candidates.
pub fn resolve_exact(models_dir: &Path, text: &str) -> Result<LocalModel> {
    let models = scan(models_dir)?;
    if let Some(model) = models
        .iter()
        .find(|model| model.id == text || model.qualified_id() == text)
    {
        return Ok(model.clone());
    }
    let in_folder: Vec<&LocalModel> = models
        .iter()
        .filter(|model| model.folder_id == text)
        .collect();
    if let [only] = in_folder[..] {
        return Ok(only.clone());
    }
    let candidates = if in_folder.is_empty() {
        let near = matching(&models, text, &EXACT);
        if near.is_empty() {
            matching(&models, text, &PARTIAL)
        } else {
            near
        }
    } else {
        in_folder
    };
    if candidates.is_empty() {
        return Err(not_found(models_dir, text, &models));
    }
    let ids: Vec<String> = candidates.iter().map(|model| model.id.clone()).collect();
    Err(Error::not_found(format!(
        "no model is called exactly `{text}`; similar: {}",
        listed(&ids)
    ))
    .with_hint("give the exact name, as `oxydllm list` prints it"))
}

/// The one model that `text` means, for requests from the network: exact id, exact without regard to case, beginning of the
/// name, part of the name; the first rule that fits anything decides. The text is checked before anything is read, and it
/// is only ever compared with ids.
///
/// # Errors
/// `Invalid` for a text that cannot be a name, that fits several models, or whose model is incomplete; `NotFound`.
pub fn resolve_unique(models: &[LocalModel], text: &str) -> Result<LocalModel> {
    check_requested(text)?;
    let mut found = matching(models, text, &EXACT);
    if found.is_empty() {
        found = matching(models, text, &PARTIAL);
    }
    let complete: Vec<&LocalModel> = found
        .iter()
        .copied()
        .filter(|model| model.missing.is_empty())
        .collect();
    match (&complete[..], found.first()) {
        ([only], _) => Ok((*only).clone()),
        // Where the models lie is no business of whoever asks from elsewhere.
        ([], None) => Err(with_remedy(
            Error::not_found(format!("there is no model `{}`", text.escape_debug())),
            text,
            models,
        )),
        ([], Some(first)) => Err(incomplete(first)),
        (several, _) => {
            let ids: Vec<String> = several.iter().map(|model| model.id.clone()).collect();
            Err(Error::invalid(format!(
                "`{text}` fits {} models: {}",
                ids.len(),
                listed(&ids)
            ))
            .with_hint("give one of these names in full"))
        }
    }
}

/// Refuses what can only be an attempt to name something outside the models directory, or nothing at all.
///
/// # Errors
/// `Invalid`, with what is wrong with it.
pub fn check_requested(text: &str) -> Result<()> {
    /// Namespace, folder and file stem, each as long as a file name can be.
    const MAX_BYTES: usize = 3 * 256;
    let why = if text.trim().is_empty() {
        "it is empty"
    } else if text.len() > MAX_BYTES {
        "it is longer than a name can be"
    } else if text.chars().any(|c| c.is_control() || c == '\\') {
        "it contains a backslash or a control character"
    } else if text.split('/').any(|part| part.trim().is_empty()) {
        "a part of it is empty"
    } else if text.split('/').any(|part| part == "." || part == "..") {
        "it contains `.` or `..`"
    } else {
        return Ok(());
    };
    let shown: String = text.escape_debug().take(80).collect();
    Err(
        Error::invalid(format!("`{shown}` is not a model name: {why}"))
            .with_hint("a name is `name` or `user/name`, as `oxydllm list` prints it"),
    )
}

type Rule = fn(typed: &str, name: &str) -> bool;

/// Tried in this order; the first that matches anything decides.
const EXACT: [Rule; 2] = [
    |typed, name| typed == name,
    |typed, name| typed.to_lowercase() == name.to_lowercase(),
];
const PARTIAL: [Rule; 2] = [
    |typed, name| name.to_lowercase().starts_with(&typed.to_lowercase()),
    |typed, name| name.to_lowercase().contains(&typed.to_lowercase()),
];

fn matching<'a>(models: &'a [LocalModel], typed: &str, rules: &[Rule]) -> Vec<&'a LocalModel> {
    if typed.trim().is_empty() {
        return Vec::new();
    }
    for rule in rules {
        // An id before the name of the folder it lies in, which may hold several.
        let sets: [fn(&LocalModel) -> Vec<String>; 2] = [
            |model| vec![model.id.clone(), model.qualified_id()],
            |model| vec![model.folder_id.clone()],
        ];
        for names in sets {
            let found: Vec<&LocalModel> = models
                .iter()
                .filter(|model| {
                    names(model)
                        .iter()
                        .any(|name| matches_name(*rule, typed, name))
                })
                .collect();
            if !found.is_empty() {
                return found;
            }
        }
    }
    Vec::new()
}

/// A name with a namespace is compared whole, one without also with the part after the namespace.
fn matches_name(rule: Rule, typed: &str, name: &str) -> bool {
    let last = name.split_once('/').map_or(name, |(_, last)| last);
    rule(typed, name) || (!typed.contains('/') && rule(typed, last))
}

fn locate_first(found: &[&LocalModel]) -> Option<Result<Located>> {
    let complete = || found.iter().filter(|model| model.missing.is_empty());
    let Some(first) = complete().next() else {
        return found.first().map(|model| Err(incomplete(model)));
    };
    let others = complete().skip(1).map(|model| model.id.clone()).collect();
    Some(Ok(Located {
        path: first.load_path(),
        id: Some(first.id.clone()),
        others,
    }))
}

fn incomplete(model: &LocalModel) -> Error {
    Error::invalid(format!(
        "the model `{}` is incomplete: {} missing",
        model.id,
        listed(&model.missing)
    ))
    .with_hint("pull it again: what is there already is kept")
}

fn is_explicit_path(text: &str) -> bool {
    Path::new(text).is_absolute()
        || text == "."
        || text == ".."
        || text.starts_with("./")
        || text.starts_with("../")
}

fn looks_like_model(path: &Path) -> bool {
    (path.is_file()
        && path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")))
        || (path.is_dir() && !models_in(path).is_empty())
}

fn models_in(dir: &Path) -> Vec<LocalModel> {
    let name = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    scan_folder(
        dir,
        None,
        &name.file_name().unwrap_or_default().to_string_lossy(),
    )
}

fn locate_path(text: &str) -> Result<Located> {
    let path = Path::new(text);
    let metadata =
        std::fs::metadata(path).map_err(|cause| Error::io("open the model", path, cause))?;
    if metadata.is_file() {
        return Ok(Located {
            path: path.to_owned(),
            id: None,
            others: Vec::new(),
        });
    }
    let models = models_in(path);
    let found: Vec<&LocalModel> = models.iter().collect();
    match locate_first(&found) {
        Some(located) => {
            let located = located?;
            let others = if located.path == path {
                Vec::new()
            } else {
                located.others
            };
            Ok(Located {
                path: located.path,
                id: None,
                others,
            })
        }
        None => Err(Error::not_found(format!(
            "the folder `{text}` holds no `.safetensors` and no `.gguf` file"
        ))),
    }
}

fn not_found(models_dir: &Path, text: &str, models: &[LocalModel]) -> Error {
    let error = Error::not_found(format!(
        "there is no model `{}` in `{}`",
        text.escape_debug(),
        models_dir.display()
    ));
    with_remedy(error, text, models)
}

fn with_remedy(error: Error, text: &str, models: &[LocalModel]) -> Error {
    if super::ModelName::parse(text).is_ok_and(|name| name.namespace().is_some()) {
        error.with_hint(format!("download it with `oxydllm pull {text}`"))
    } else if models.is_empty() {
        error.with_hint("there are no models yet; download one with `oxydllm pull user/model`")
    } else {
        error.with_hint("`oxydllm list` shows the models that are there")
    }
}

/// A few names for a message.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::error::ErrorKind;

    fn store(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, b"x").unwrap();
            if file.ends_with(".safetensors") {
                fs::write(path.with_file_name("config.json"), b"{}").unwrap();
            }
        }
        root
    }

    const FILES: [&str; 6] = [
        "Qwen/Qwen3-4B/model.safetensors",
        "Qwen/Qwen3-4B-Instruct-2507/model.safetensors",
        "Qwen/Qwen3-0.6B-GGUF/qwen3-0.6b-q4_k_m.gguf",
        "Qwen/Qwen3-0.6B-GGUF/qwen3-0.6b-q8_0.gguf",
        "other/Qwen3-4B-Tuned/model.safetensors",
        "flat/flat.gguf",
    ];

    #[test]
    fn names_resolve_in_the_documented_order() {
        let root = store(&FILES);
        let cases = [
            ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", 0),
            ("qwen/qwen3-4b", "Qwen/Qwen3-4B", 0),
            ("Qwen3-4B", "Qwen/Qwen3-4B", 0),
            ("qwen3-4b-inst", "Qwen/Qwen3-4B-Instruct-2507", 0),
            ("2507", "Qwen/Qwen3-4B-Instruct-2507", 0),
            ("tuned", "other/Qwen3-4B-Tuned", 0),
            ("other/qwen", "other/Qwen3-4B-Tuned", 0),
            ("Qwen/Qwen3-0.6B-Q8_0", "Qwen/Qwen3-0.6B-Q8_0", 0),
            ("qwen3-0.6b-q8_0", "Qwen/Qwen3-0.6B-Q8_0", 0),
            (
                "Qwen/Qwen3-0.6B-GGUF/qwen3-0.6b-q8_0",
                "Qwen/Qwen3-0.6B-Q8_0",
                0,
            ),
            ("Qwen/Qwen3-0.6B-GGUF", "Qwen/Qwen3-0.6B-Q4_K_M", 1),
            ("qwen3", "other/Qwen3-4B-Tuned", 4),
            ("flat", "flat", 0),
        ];
        for (typed, id, others) in cases {
            let located = resolve_for_run(root.path(), typed)
                .unwrap_or_else(|error| panic!("{typed}: {error}"));
            assert_eq!(
                (located.id.as_deref(), located.others.len()),
                (Some(id), others),
                "{typed}"
            );
        }
    }

    #[test]
    fn a_longer_name_never_resolves_to_a_shorter_model() {
        let root = store(&FILES);
        for typed in ["Qwen/Qwen3-4B-AWQ", "flat-Q4_0", "Qwen/Qwen3-0.6B-Q5_K_M"] {
            assert!(resolve_for_run(root.path(), typed).is_err(), "{typed}");
        }
    }

    #[test]
    fn traversal_by_name_finds_nothing() {
        let root = store(&["inside/u/m/model.safetensors", "secret/m/model.safetensors"]);
        let models = root.path().join("inside");
        for typed in [
            "u/../../secret/m",
            "..",
            "../secret/m",
            "u/../u/m",
            "",
            " ",
            "u//m",
            "/u/m",
            "u/m/",
            "C:\\u",
            "u\0m",
        ] {
            assert!(resolve_exact(&models, typed).is_err(), "{typed:?}");
        }
        for typed in ["u/../../secret/m", "u//m", "u\0m", "C:\\u"] {
            assert!(resolve_for_run(&models, typed).is_err(), "{typed:?}");
        }
    }

    #[test]
    fn exact_resolution_lists_candidates_instead_of_guessing() {
        let root = store(&FILES);
        assert_eq!(
            resolve_exact(root.path(), "Qwen/Qwen3-4B").unwrap().id,
            "Qwen/Qwen3-4B"
        );
        assert_eq!(resolve_exact(root.path(), "flat").unwrap().id, "flat");
        let error = resolve_exact(root.path(), "Qwen3-4B-I")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("similar: `Qwen/Qwen3-4B-Instruct-2507`"),
            "{error}"
        );
        let error = resolve_exact(root.path(), "qwen/qwen3-4b")
            .unwrap_err()
            .to_string();
        assert!(error.contains("similar: `Qwen/Qwen3-4B`"), "{error}");
        let error = resolve_exact(root.path(), "Qwen/Qwen3-0.6B-GGUF")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`Qwen/Qwen3-0.6B-Q4_K_M`, `Qwen/Qwen3-0.6B-Q8_0`"),
            "{error}"
        );
    }

    #[test]
    fn a_request_means_one_model_or_learns_which_it_could_mean() {
        let root = store(&[&FILES[..], &["u/part/part-Q4_0.gguf.part"]].concat());
        let models = scan(root.path()).unwrap();
        let unique = |text| resolve_unique(&models, text);
        for (typed, id) in [
            ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B"),
            ("qwen/qwen3-4b", "Qwen/Qwen3-4B"),
            ("Qwen3-4B", "Qwen/Qwen3-4B"),
            ("2507", "Qwen/Qwen3-4B-Instruct-2507"),
            (
                "Qwen/Qwen3-0.6B-GGUF/qwen3-0.6b-q8_0",
                "Qwen/Qwen3-0.6B-Q8_0",
            ),
        ] {
            assert_eq!(unique(typed).unwrap().id, id, "{typed}");
        }
        let several = unique("Qwen/Qwen3-0.6B").unwrap_err();
        assert_eq!(several.kind(), ErrorKind::Invalid);
        assert_eq!(
            several.to_string(),
            "`Qwen/Qwen3-0.6B` fits 2 models: `Qwen/Qwen3-0.6B-Q4_K_M`, `Qwen/Qwen3-0.6B-Q8_0`"
        );
        let absent = unique("Qwen/Qwen3-4B-AWQ").unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound, "{absent}");
        let incomplete = unique("part").unwrap_err();
        assert!(
            incomplete.to_string().contains("is incomplete"),
            "{incomplete}"
        );
    }

    #[test]
    fn a_request_that_is_no_name_is_refused_before_anything_is_read() {
        for typed in [
            "",
            " ",
            "..",
            ".",
            "a/../../b",
            "../../etc/passwd",
            "/etc/passwd",
            "a//b",
            "a/",
            "C:\\x",
            "a\0b",
            "a\nb",
            "a/ /b",
            &"x".repeat(1000),
        ] {
            let error = resolve_unique(&[], typed).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{typed:?}");
            assert!(error.to_string().contains("is not a model name"), "{error}");
        }
        assert!(check_requested("org/model-1.5B..v2").is_ok());
    }

    #[test]
    fn files_and_folders_given_on_purpose_are_taken() {
        let root = store(&FILES);
        let file = root.path().join("flat/flat.gguf");
        let located = resolve_for_run(Path::new("/nowhere"), &file.display().to_string()).unwrap();
        assert_eq!(
            (located.path.as_path(), located.id.as_deref()),
            (file.as_path(), None)
        );
        let folder = root.path().join("Qwen/Qwen3-4B");
        assert_eq!(
            resolve_for_run(Path::new("/nowhere"), &folder.display().to_string())
                .unwrap()
                .path,
            folder
        );
        let folder = root
            .path()
            .join("Qwen/Qwen3-0.6B-GGUF")
            .display()
            .to_string();
        let located = resolve_for_run(Path::new("/nowhere"), &folder).unwrap();
        assert!(located.path.ends_with("qwen3-0.6b-q4_k_m.gguf"));
        assert_eq!(located.others, ["Qwen3-0.6B-Q8_0"]);
        assert!(resolve_for_run(root.path(), "./nowhere.gguf").is_err());
    }

    #[test]
    fn an_incomplete_model_is_refused_and_a_complete_one_preferred() {
        let root = store(&["u/m/m-Q4_0.gguf.part", "u/n/n-Q4_0.gguf"]);
        let error = resolve_for_run(root.path(), "u/m-Q4_0").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("incomplete: `m-Q4_0.gguf` missing"),
            "{error}"
        );
        assert_eq!(
            resolve_for_run(root.path(), "Q4_0").unwrap().id.as_deref(),
            Some("u/n-Q4_0")
        );
    }
}
