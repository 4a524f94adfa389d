//! What lies below the models directory: folders, their weight files, ids, sizes, what is incomplete.
//!
//! A folder is a model when it holds weights (`*.safetensors`, `*.gguf`), or a download of such that is not finished. Folders
//! are looked for one level deep and, as `user/model`, two. A model folder's own subfolders count only when they hold a
//! complete checkpoint themselves, so that `original/` of a cloned repository is no model. Hidden and unreadable folders are
//! skipped; symbolic links are followed for reading.

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::gguf_name::{GgufVariant, canonical_stem, group_variants, strip_extension};
use super::manifest::Manifest;
use super::metadata;
use crate::error::{Error, Result};
use crate::model::ModelKind;

/// Suffix of a file that is being downloaded.
pub const PART_SUFFIX: &str = ".part";

/// Largest JSON file that is read to describe a model.
const MAX_JSON_BYTES: u64 = 32 << 20;

/// The weights of a local model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Weights {
    /// The safetensors files of the folder.
    Safetensors(Vec<PathBuf>),
    /// One GGUF variant: its file, or its shards in order.
    Gguf {
        /// The files.
        files: Vec<PathBuf>,
        /// The name without shard suffix and extension, as on disk.
        stem: String,
    },
}

impl Weights {
    /// The files.
    pub fn files(&self) -> &[PathBuf] {
        match self {
            Self::Safetensors(files) | Self::Gguf { files, .. } => files,
        }
    }
}

/// One row of `list`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalModel {
    /// `user/model`, or namespace and file stem of a GGUF variant. Unique below the models directory.
    pub id: String,
    /// The folder below the models directory, with `/`.
    pub folder_id: String,
    /// The folder.
    pub dir: PathBuf,
    /// The weights.
    pub weights: Weights,
    /// `architectures[0]` of `config.json`, or `general.architecture` followed by ` (GGUF)`.
    pub architecture: String,
    /// Bytes on disk of the weight files.
    pub size_bytes: u64,
    /// What is missing of it; empty for a complete model.
    pub missing: Vec<String>,
}

impl LocalModel {
    /// What the loader is given: the folder of a safetensors model, the first file of a GGUF model.
    pub fn load_path(&self) -> PathBuf {
        match &self.weights {
            Weights::Safetensors(_) => self.dir.clone(),
            Weights::Gguf { files, .. } => files.first().unwrap_or(&self.dir).clone(),
        }
    }

    /// What it is for, by its files.
    pub fn kind(&self) -> ModelKind {
        match &self.weights {
            Weights::Safetensors(_) => ModelKind::of_folder(&self.dir),
            Weights::Gguf { .. } => ModelKind::Chat,
        }
    }

    /// Folder and stem: the longer name that tells apart two variants with the same id.
    pub fn qualified_id(&self) -> String {
        match &self.weights {
            Weights::Safetensors(_) => self.folder_id.clone(),
            Weights::Gguf { stem, .. } => format!("{}/{stem}", self.folder_id),
        }
    }
}

/// Whether a file holds weights that this program can read.
pub fn is_weight_file(name: &str) -> bool {
    name.ends_with(".safetensors") || strip_extension(name).is_some()
}

/// Whether a file of a repository or checkpoint folder belongs to a model, by its path in it.
pub fn is_wanted_file(path: &str) -> bool {
    const EXTENSIONS: [&str; 6] = [
        ".json",
        ".safetensors",
        ".gguf",
        ".model",
        ".tiktoken",
        ".jinja",
    ];
    match path.split_once('/') {
        // Embedding models keep their pooling and projection beside the weights.
        Some((folder, file)) => {
            let is_module = folder.starts_with(|c: char| c.is_ascii_digit())
                && (folder.ends_with("_Pooling")
                    || folder.ends_with("_Dense")
                    || folder.ends_with("_Normalize"));
            is_module && matches!(file, "config.json" | "model.safetensors")
        }
        None => {
            !path.starts_with('.')
                && EXTENSIONS
                    .iter()
                    .any(|extension| path.to_lowercase().ends_with(extension))
        }
    }
}

/// All local models in the order of their ids without regard to case. A directory that does not exist holds none.
///
/// # Errors
/// `Io` when `models_dir` exists and cannot be read.
pub fn scan(models_dir: &Path) -> Result<Vec<LocalModel>> {
    match fs::read_dir(models_dir) {
        Ok(_) => {}
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(Error::io("read the models directory", models_dir, cause)),
    }
    let mut models = Vec::new();
    for name in subfolders(models_dir) {
        let dir = models_dir.join(&name);
        let own = scan_folder(&dir, None, &name);
        let is_namespace = own.is_empty();
        models.extend(own);
        for child in subfolders(&dir) {
            let found = scan_folder(&dir.join(&child), Some(&name), &child);
            models.extend(
                found
                    .into_iter()
                    .filter(|model| is_namespace || model.missing.is_empty()),
            );
        }
    }
    make_ids_unique(&mut models);
    models.sort_by_cached_key(|model| (model.id.to_lowercase(), model.id.clone()));
    Ok(models)
}

fn make_ids_unique(models: &mut [LocalModel]) {
    let mut seen = BTreeSet::new();
    let doubled: BTreeSet<String> = models
        .iter()
        .filter(|model| !seen.insert(model.id.to_lowercase()))
        .map(|model| model.id.to_lowercase())
        .collect();
    for model in models
        .iter_mut()
        .filter(|model| doubled.contains(&model.id.to_lowercase()))
    {
        model.id = model.qualified_id();
    }
}

fn subfolders(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') && dir.join(name).is_dir())
        .collect();
    names.sort();
    names
}

/// The files of a folder with their sizes (links followed), unfinished downloads included under their final name.
#[derive(Debug, Default)]
struct Folder {
    files: Vec<(String, u64)>,
    parts: BTreeSet<String>,
    manifest: Manifest,
}

impl Folder {
    fn read(dir: &Path) -> Option<Self> {
        let mut folder = Self {
            manifest: Manifest::load(dir).unwrap_or_default(),
            ..Self::default()
        };
        for entry in fs::read_dir(dir).ok()?.flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            let Ok(metadata) = fs::metadata(entry.path()) else {
                continue;
            };
            if !metadata.is_file() || name.starts_with('.') {
                continue;
            }
            match name.strip_suffix(PART_SUFFIX) {
                Some(name) => drop(folder.parts.insert(name.to_owned())),
                None => folder.files.push((name, metadata.len())),
            }
        }
        folder.files.sort();
        Some(folder)
    }

    fn size_of(&self, name: &str) -> Option<u64> {
        self.files
            .iter()
            .find(|(file, _)| file == name)
            .map(|(_, size)| *size)
    }

    /// Every file name that is here or is known to be wanted.
    fn known_names(&self) -> BTreeSet<&str> {
        let here = self.files.iter().map(|(name, _)| name.as_str());
        here.chain(self.parts.iter().map(String::as_str))
            .chain(self.manifest.files.keys().map(String::as_str))
            .collect()
    }

    /// Whether `name` is here whole, as far as can be told without reading it.
    fn is_whole(&self, name: &str) -> bool {
        let wanted = self.manifest.files.get(name).and_then(|file| file.size);
        self.size_of(name)
            .is_some_and(|size| wanted.is_none_or(|wanted| wanted == size))
    }
}

/// The models of one folder.
pub fn scan_folder(dir: &Path, namespace: Option<&str>, name: &str) -> Vec<LocalModel> {
    let Some(folder) = Folder::read(dir) else {
        return Vec::new();
    };
    let folder_id = match namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let known = folder.known_names();
    let mut models = Vec::new();
    if known
        .iter()
        .any(|name| name.ends_with(".safetensors") && !name.contains('/'))
    {
        models.push(safetensors_model(dir, &folder, &folder_id));
    }
    for variant in group_variants(known.iter().copied().filter(|name| !name.contains('/'))) {
        let stem = canonical_stem(&variant.stem, name);
        let id = namespace.map_or_else(|| stem.clone(), |namespace| format!("{namespace}/{stem}"));
        models.push(gguf_model(dir, &folder, &folder_id, id, variant));
    }
    models
}

fn safetensors_model(dir: &Path, folder: &Folder, folder_id: &str) -> LocalModel {
    let weights: Vec<&(String, u64)> = folder
        .files
        .iter()
        .filter(|(name, _)| name.ends_with(".safetensors"))
        .collect();
    let size_bytes = weights.iter().map(|(_, size)| size).sum();
    let mut missing: BTreeSet<String> = BTreeSet::new();
    let is_ours = |name: &&str| strip_extension(name).is_none();
    missing.extend(
        folder
            .manifest
            .files
            .keys()
            .map(String::as_str)
            .filter(is_ours)
            .filter(|name| {
                if name.contains('/') {
                    !dir.join(name).is_file()
                } else {
                    !folder.is_whole(name)
                }
            })
            .map(str::to_owned),
    );
    missing.extend(
        folder
            .parts
            .iter()
            .filter(|name| name.ends_with(".safetensors") && folder.size_of(name).is_none())
            .cloned(),
    );
    if folder.size_of("config.json").is_none() {
        missing.insert("config.json".to_owned());
    }
    if let Some((shards, total_size)) = metadata::safetensors_index(dir) {
        missing.extend(
            shards
                .into_iter()
                .filter(|name| folder.size_of(name).is_none()),
        );
        if missing.is_empty() && size_bytes < total_size {
            missing.insert(format!(
                "{} of weights",
                crate::units::format_size(total_size - size_bytes)
            ));
        }
    }
    LocalModel {
        id: folder_id.to_owned(),
        folder_id: folder_id.to_owned(),
        dir: dir.to_owned(),
        weights: Weights::Safetensors(weights.iter().map(|(name, _)| dir.join(name)).collect()),
        architecture: metadata::config_architecture(dir).unwrap_or_else(|| "Unknown".to_owned()),
        size_bytes,
        missing: missing.into_iter().collect(),
    }
}

fn gguf_model(
    dir: &Path,
    folder: &Folder,
    folder_id: &str,
    id: String,
    variant: GgufVariant,
) -> LocalModel {
    let (whole, broken): (Vec<String>, Vec<String>) = variant
        .files
        .into_iter()
        .partition(|name| folder.is_whole(name));
    let files: Vec<PathBuf> = whole.iter().map(|name| dir.join(name)).collect();
    let architecture = files
        .first()
        .and_then(|file| metadata::gguf_architecture(file));
    LocalModel {
        id,
        folder_id: folder_id.to_owned(),
        dir: dir.to_owned(),
        architecture: format!("{} (GGUF)", architecture.as_deref().unwrap_or("Unknown")),
        size_bytes: whole
            .iter()
            .chain(&broken)
            .filter_map(|name| folder.size_of(name))
            .sum(),
        missing: broken.into_iter().chain(variant.missing).collect(),
        weights: Weights::Gguf {
            files,
            stem: variant.stem,
        },
    }
}

/// Rewrites `gguf.index`: the names of all complete `.gguf` files of the folder, one a line.
///
/// # Errors
/// `Io` when it cannot be written.
pub fn write_gguf_index(dir: &Path) -> Result<()> {
    let Some(folder) = Folder::read(dir) else {
        return Ok(());
    };
    let names: Vec<&str> = folder
        .files
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| strip_extension(name).is_some())
        .collect();
    let path = dir.join("gguf.index");
    if names.is_empty() {
        return match fs::remove_file(&path) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                Err(Error::io("delete", &path, cause))
            }
            _ => Ok(()),
        };
    }
    super::manifest::write_atomically(
        &path,
        format!("# GGUF files of this folder\n{}\n", names.join("\n")).as_bytes(),
    )
}

/// The content of a file of at most 32 MiB; `None` when it is not there, not readable or larger.
pub fn read_small_file(path: &Path) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    fs::File::open(path)
        .ok()?
        .take(MAX_JSON_BYTES + 1)
        .read_to_end(&mut content)
        .ok()?;
    (content.len() as u64 <= MAX_JSON_BYTES).then_some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, content: &[u8]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn ids(root: &Path) -> Vec<String> {
        scan(root)
            .unwrap()
            .into_iter()
            .map(|model| model.id)
            .collect()
    }

    const CONFIG: &[u8] = br#"{"architectures": ["Qwen3ForCausalLM"]}"#;

    #[test]
    fn folders_are_found_flat_and_in_namespaces_in_order_without_case() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "zeta/config.json", CONFIG);
        write(root.path(), "zeta/model.safetensors", b"12345");
        write(
            root.path(),
            "Qwen/Qwen3-4B-GGUF/qwen3-4b-q4_k_m.gguf",
            b"GGUF",
        );
        write(
            root.path(),
            "Qwen/Qwen3-4B-GGUF/qwen3-4b-q8_0.gguf",
            b"GGUF",
        );
        write(root.path(), "alpha/beta/config.json", CONFIG);
        write(root.path(), "alpha/beta/model.safetensors", b"1");
        write(root.path(), ".hidden/m/model.safetensors", b"1");
        write(root.path(), "notes/readme.txt", b"1");
        assert_eq!(
            ids(root.path()),
            [
                "alpha/beta",
                "Qwen/Qwen3-4B-Q4_K_M",
                "Qwen/Qwen3-4B-Q8_0",
                "zeta"
            ]
        );
        let models = scan(root.path()).unwrap();
        assert_eq!(
            (models[3].size_bytes, models[3].architecture.as_str()),
            (5, "Qwen3ForCausalLM")
        );
        assert!(models.iter().all(|model| model.missing.is_empty()));
    }

    #[test]
    fn both_kinds_of_weights_in_one_folder_are_both_listed() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "u/m/config.json", CONFIG);
        write(root.path(), "u/m/model.safetensors", b"1");
        write(root.path(), "u/m/m-Q4_0.gguf", b"1");
        write(root.path(), "u/m/m.gguf", b"1");
        assert_eq!(ids(root.path()), ["u/m", "u/m-Q4_0", "u/m/m"]);
    }

    #[test]
    fn a_config_beside_gguf_files_does_not_hide_them() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "u/m-GGUF/config.json", CONFIG);
        write(root.path(), "u/m-GGUF/m-Q4_0.gguf", b"1");
        assert_eq!(ids(root.path()), ["u/m-Q4_0"]);
    }

    #[test]
    fn two_folders_with_the_same_variant_get_two_ids() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "a/m-Q4_0.gguf", b"1");
        write(root.path(), "b/m-Q4_0.gguf", b"1");
        assert_eq!(ids(root.path()), ["a/m-Q4_0", "b/m-Q4_0"]);
    }

    #[test]
    fn a_namespace_that_is_a_model_itself_does_not_hide_its_complete_children() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "m/config.json", CONFIG);
        write(root.path(), "m/model.safetensors", b"1");
        write(root.path(), "m/original/consolidated.safetensors", b"1");
        write(root.path(), "m/child/config.json", CONFIG);
        write(root.path(), "m/child/model.safetensors", b"1");
        assert_eq!(ids(root.path()), ["m", "m/child"]);
    }

    #[test]
    fn what_is_missing_of_an_incomplete_model_is_named() {
        let root = tempfile::tempdir().unwrap();
        let index = br#"{"metadata": {"total_size": 100}, "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#;
        write(root.path(), "u/shard/config.json", CONFIG);
        write(root.path(), "u/shard/model.safetensors.index.json", index);
        write(root.path(), "u/shard/m-1.safetensors", &[0; 50]);
        write(root.path(), "u/short/config.json", CONFIG);
        write(root.path(), "u/short/model.safetensors.index.json", index);
        write(root.path(), "u/short/m-1.safetensors", &[0; 50]);
        write(root.path(), "u/short/m-2.safetensors", &[0; 40]);
        write(root.path(), "u/part/config.json", CONFIG);
        write(root.path(), "u/part/model.safetensors.part", b"1");
        write(root.path(), "u/gguf/gguf-Q4_0-00001-of-00002.gguf", b"1");
        write(
            root.path(),
            "u/gguf/gguf-Q4_0-00002-of-00002.gguf.part",
            b"1",
        );
        let missing: Vec<Vec<String>> = scan(root.path())
            .unwrap()
            .into_iter()
            .map(|model| model.missing)
            .collect();
        let expected = [
            vec!["gguf-Q4_0-00002-of-00002.gguf"],
            vec!["model.safetensors"],
            vec!["m-2.safetensors"],
            vec!["10 B of weights"],
        ];
        assert_eq!(missing, expected);
    }

    #[test]
    fn an_index_is_no_reason_to_miss_files_beside_a_single_file_or_outside_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let index = br#"{"metadata": {"total_size": 100}, "weight_map": {"a": "m-1.safetensors"}}"#;
        write(root.path(), "u/single/config.json", CONFIG);
        write(root.path(), "u/single/model.safetensors.index.json", index);
        write(root.path(), "u/single/model.safetensors", &[0; 50]);
        // No pull brings these: that the paths are not allowed is for the loader to say.
        for (model, path) in [("up", "../x.safetensors"), ("root", "/x.safetensors")] {
            let index = format!(
                r#"{{"metadata": {{"total_size": 100}}, "weight_map": {{"a": "{path}", "b": "m-1.safetensors"}}}}"#
            );
            let file = |name: &str| format!("u/{model}/{name}");
            write(root.path(), &file("config.json"), CONFIG);
            let index_file = file("model.safetensors.index.json");
            write(root.path(), &index_file, index.as_bytes());
            write(root.path(), &file("m-1.safetensors"), &[0; 50]);
        }
        for model in scan(root.path()).unwrap() {
            assert_eq!(model.missing, [""; 0], "{}", model.id);
        }
    }

    #[test]
    fn a_file_shorter_than_its_download_record_is_incomplete() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "u/m/m-Q4_0.gguf", b"12");
        let mut manifest = Manifest::default();
        manifest.files.insert(
            "m-Q4_0.gguf".into(),
            super::super::ManifestFile {
                size: Some(3),
                sha256: None,
            },
        );
        manifest.save(&root.path().join("u/m")).unwrap();
        assert_eq!(scan(root.path()).unwrap()[0].missing, ["m-Q4_0.gguf"]);
    }

    #[test]
    fn a_missing_directory_holds_no_models() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(scan(&root.path().join("nowhere")).unwrap(), []);
    }

    #[test]
    fn only_files_of_a_model_are_wanted() {
        let wanted = [
            "config.json",
            "a.safetensors",
            "A.GGUF",
            "tokenizer.model",
            "x.tiktoken",
            "chat_template.jinja",
        ];
        let module = [
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "2_Dense/config.json",
        ];
        for path in wanted.iter().chain(&module) {
            assert!(is_wanted_file(path), "{path}");
        }
        for path in [
            "README.md",
            ".gitattributes",
            "w.bin",
            "w.pth",
            "onnx/model.safetensors",
            "original/params.json",
            ".x.json",
        ] {
            assert!(!is_wanted_file(path), "{path}");
        }
    }

    #[test]
    fn the_index_lists_gguf_files_and_goes_away_with_the_last() {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), "b.gguf", b"1");
        write(root.path(), "a.gguf", b"1");
        write(root.path(), "c.gguf.part", b"1");
        write_gguf_index(root.path()).unwrap();
        let text = fs::read_to_string(root.path().join("gguf.index")).unwrap();
        assert_eq!(text, "# GGUF files of this folder\na.gguf\nb.gguf\n");
        fs::remove_file(root.path().join("a.gguf")).unwrap();
        fs::remove_file(root.path().join("b.gguf")).unwrap();
        write_gguf_index(root.path()).unwrap();
        assert!(!root.path().join("gguf.index").exists());
    }
}
