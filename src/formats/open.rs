//! [`open`]: the weights at a path, whatever the container.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::formats::gguf::{GgufFile, ShardName};
use crate::formats::safetensors::{self, SafetensorsFolder};
use crate::formats::source::{TensorInfo, TensorSource, TensorView};

/// Opened weights of either container.
#[derive(Debug)]
pub enum Weights {
    /// A GGUF file or split set.
    Gguf(GgufFile),
    /// A safetensors checkpoint.
    Safetensors(SafetensorsFolder),
}

impl Weights {
    fn source(&self) -> &dyn TensorSource {
        match self {
            Self::Gguf(file) => file,
            Self::Safetensors(folder) => folder,
        }
    }
}

impl TensorSource for Weights {
    fn tensors(&self) -> &[TensorInfo] {
        self.source().tensors()
    }

    fn find(&self, name: &str) -> Option<TensorView> {
        self.source().find(name)
    }
}

/// Opens the weights at `path`: a `.gguf` or `.safetensors` file, or a folder that holds one model in one of these formats.
/// What else lies in the folder (a `config.json` beside GGUF files, a `.safetensors` file of another name) does not matter.
///
/// # Errors
/// `NotFound` when there are no weights, `Invalid` when there are several models or the files are wrong.
pub fn open(path: &Path) -> Result<Weights> {
    let kind = std::fs::metadata(path).map_err(|error| Error::io("open", path, error))?;
    if !kind.is_dir() {
        return match extension(path) {
            "gguf" => GgufFile::open(path).map(Weights::Gguf),
            "safetensors" => SafetensorsFolder::open(path).map(Weights::Safetensors),
            _ => open_unnamed(path),
        };
    }
    let gguf = gguf_files(path)?;
    let safetensors = safetensors::find_checkpoint(path)?;
    match (gguf.is_empty(), safetensors.is_empty()) {
        (true, false) => SafetensorsFolder::open(path).map(Weights::Safetensors),
        (false, true) => GgufFile::open(only_model(path, &gguf)?).map(Weights::Gguf),
        (true, true) => Err(
            Error::not_found(format!("no model weights in `{}`", path.display())).with_hint(
                format!(
                    "expected a `.gguf` file or {}",
                    safetensors::CHECKPOINT_NAMES
                ),
            ),
        ),
        (false, false) => {
            let all: Vec<&PathBuf> = gguf.iter().chain(&safetensors).collect();
            Err(several(path, &all))
        }
    }
}

fn extension(path: &Path) -> &str {
    path.extension()
        .and_then(|extension| extension.to_str())
        .unwrap_or_default()
}

/// A file without a telling name, such as a blob of a cache: its first bytes decide.
fn open_unnamed(path: &Path) -> Result<Weights> {
    use std::io::Read;
    let mut magic = [0; 4];
    let mut file = std::fs::File::open(path).map_err(|error| Error::io("open", path, error))?;
    match file.read_exact(&mut magic) {
        Ok(()) if &magic == b"GGUF" => GgufFile::open(path).map(Weights::Gguf),
        _ => Err(Error::unsupported(format!(
            "`{}` is neither a GGUF nor a `.safetensors` file",
            path.display()
        ))),
    }
}

/// The `.gguf` files of a folder, sorted.
fn gguf_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let read = |error| Error::io("list", folder, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if extension(&path) == "gguf" {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The one file, or the first of the one split set.
fn only_model<'a>(folder: &Path, files: &'a [PathBuf]) -> Result<&'a Path> {
    let set_of = |path: &PathBuf| {
        let shard = ShardName::parse(path.file_name()?.to_str()?)?;
        Some((shard.prefix, shard.total))
    };
    let set = set_of(&files[0]);
    if files.len() == 1 || (set.is_some() && files.iter().all(|file| set_of(file) == set)) {
        Ok(&files[0])
    } else {
        Err(several(folder, &files.iter().collect::<Vec<_>>()))
    }
}

fn several(folder: &Path, files: &[&PathBuf]) -> Error {
    let shown: Vec<String> = files
        .iter()
        .take(8)
        .filter_map(|file| file.file_name())
        .map(|name| format!("`{}`", name.display()))
        .collect();
    let more = if files.len() > 8 { ", …" } else { "" };
    Error::invalid(format!(
        "`{}` holds more than one model: {}{more}",
        folder.display(),
        shown.join(", ")
    ))
    .with_hint("name the file to use")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    /// A GGUF file without tensors, and a safetensors file without tensors.
    const GGUF: &[u8] = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    const SAFETENSORS: &[u8] = b"\x02\0\0\0\0\0\0\0{}";

    fn open_folder(files: &[(&str, &[u8])]) -> Result<&'static str> {
        let folder = tempfile::tempdir().unwrap();
        files
            .iter()
            .for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
        open(folder.path()).map(|weights| match weights {
            Weights::Gguf(_) => "gguf",
            Weights::Safetensors(_) => "safetensors",
        })
    }

    #[test]
    fn weight_files_decide_what_a_folder_is() {
        let config = ("config.json", b"{}".as_slice());
        assert_eq!(open_folder(&[("a.gguf", GGUF), config]).unwrap(), "gguf");
        assert_eq!(
            open_folder(&[("a.gguf", GGUF), ("expected.safetensors", SAFETENSORS)]).unwrap(),
            "gguf"
        );
        assert_eq!(
            open_folder(&[("model.safetensors", SAFETENSORS), config]).unwrap(),
            "safetensors"
        );
        let set = [
            ("a-00001-of-00002.gguf", GGUF),
            ("a-00002-of-00002.gguf", GGUF),
        ];
        assert_eq!(open_folder(&set).unwrap(), "gguf");
    }

    #[test]
    fn a_folder_with_none_or_several_models_is_refused_with_what_is_there() {
        let none = open_folder(&[("config.json", b"{}")]).unwrap_err();
        assert_eq!(none.kind(), ErrorKind::NotFound);
        assert!(none.hint().unwrap().contains("`model.safetensors`"));
        let two = open_folder(&[("a.gguf", GGUF), ("b.gguf", GGUF)]).unwrap_err();
        assert!(
            two.to_string()
                .ends_with("holds more than one model: `a.gguf`, `b.gguf`"),
            "{two}"
        );
        let both =
            open_folder(&[("a.gguf", GGUF), ("model.safetensors", SAFETENSORS)]).unwrap_err();
        assert!(
            both.to_string().ends_with("`a.gguf`, `model.safetensors`"),
            "{both}"
        );
        let sets = open_folder(&[
            ("a-00001-of-00001.gguf", GGUF),
            ("b-00001-of-00001.gguf", GGUF),
        ]);
        assert_eq!(sets.unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn a_file_without_a_telling_name_is_known_by_its_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("sha256-1234");
        std::fs::write(&blob, GGUF).unwrap();
        assert!(matches!(open(&blob), Ok(Weights::Gguf(_))));
        std::fs::write(&blob, b"PK").unwrap();
        assert_eq!(open(&blob).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
