//! Split GGUF files: `NAME-00001-of-00003.gguf` and so on.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The place of a file in a split set, from its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardName {
    /// The file name before the numbers.
    pub(crate) prefix: String,
    /// Counted from 1.
    pub(crate) number: u32,
    /// Number of files in the set.
    pub(crate) total: u32,
}

impl ShardName {
    /// Reads `PREFIX-NNNNN-of-NNNNN.gguf`; `None` for any other name.
    pub(crate) fn parse(file_name: &str) -> Option<Self> {
        let stem = file_name.strip_suffix(".gguf")?;
        let (stem, total) = split_number(stem, "-of-")?;
        let (prefix, number) = split_number(stem, "-")?;
        (1..=total).contains(&number).then(|| Self {
            prefix: prefix.to_owned(),
            number,
            total,
        })
    }

    fn file_name(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.prefix, self.total)
    }
}

fn split_number<'a>(text: &'a str, separator: &str) -> Option<(&'a str, u32)> {
    let (rest, digits) = text.rsplit_once(separator)?;
    let five_digits = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    five_digits
        .then(|| digits.parse().ok())
        .flatten()
        .map(|number| (rest, number))
}

/// All files of the set that `path` belongs to, in the order of their names; `path` alone when it is not part of one.
///
/// # Errors
/// `NotFound` when a file of the set is missing.
pub(super) fn find_set(path: &Path) -> Result<Vec<PathBuf>> {
    let Some(shard) = path
        .file_name()
        .and_then(|name| name.to_str())
        .and_then(ShardName::parse)
    else {
        return Ok(vec![path.to_path_buf()]);
    };
    let mut files = Vec::new();
    for number in 1..=shard.total {
        let file = path.with_file_name(shard.file_name(number));
        if !file.exists() {
            let message = format!(
                "file {number} of {} of a split model is missing: `{}`",
                shard.total,
                file.display()
            );
            return Err(
                Error::not_found(message).with_hint("fetch every file of the set into one folder")
            );
        }
        files.push(file);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::formats::TensorSource;
    use crate::formats::gguf::GgufFile;
    use crate::formats::gguf::sample::{Sample, kind};

    /// A set of three files, written under the names of `order`.
    fn split_set(folder: &Path, order: [u16; 3]) {
        for (place, number) in order.into_iter().enumerate() {
            let mut shard = Sample::new();
            shard.entries.truncate(usize::from(number == 0) * 4);
            shard.tensors.clear();
            let shard = shard
                .entry("split.no", kind::I16, number.to_le_bytes())
                .entry("split.count", kind::I16, 3u16.to_le_bytes())
                .entry("split.tensors.count", kind::I32, 3i32.to_le_bytes())
                .tensor(&format!("t{number}"), &[1], 0, vec![number as u8; 4]);
            let name = format!("model-{:05}-of-00003.gguf", place + 1);
            std::fs::write(folder.join(name), shard.bytes()).unwrap();
        }
    }

    #[test]
    fn any_file_of_a_split_set_opens_all_of_it_in_split_order() {
        for order in [[0, 1, 2], [2, 0, 1]] {
            let folder = tempfile::tempdir().unwrap();
            split_set(folder.path(), order);
            for place in 1..=3 {
                let file = GgufFile::open(
                    &folder
                        .path()
                        .join(format!("model-{place:05}-of-00003.gguf")),
                )
                .unwrap();
                let names: Vec<&str> = file
                    .tensors()
                    .iter()
                    .map(|tensor| tensor.name.as_str())
                    .collect();
                assert_eq!(names, ["t0", "t1", "t2"]);
                assert_eq!(file.find("t2").unwrap().bytes.as_slice(), [2; 4]);
                assert_eq!(
                    file.metadata().find_u64("llama.block_count").unwrap(),
                    Some(2)
                );
                assert_eq!(file.paths().len(), 3);
            }
        }
    }

    #[test]
    fn a_split_set_that_is_not_whole_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        split_set(folder.path(), [0, 1, 2]);
        let first = folder.path().join("model-00001-of-00003.gguf");
        let second = folder.path().join("model-00002-of-00003.gguf");

        std::fs::copy(&first, &second).unwrap();
        let repeated = GgufFile::open(&first).unwrap_err();
        assert!(
            repeated
                .to_string()
                .contains("`split.no` is 0 here and in another"),
            "{repeated}"
        );

        std::fs::remove_file(&second).unwrap();
        let missing = GgufFile::open(&first).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(
            missing.to_string().contains("model-00002-of-00003.gguf"),
            "{missing}"
        );

        let renamed = folder.path().join("model.gguf");
        std::fs::rename(&first, &renamed).unwrap();
        let renamed = GgufFile::open(&renamed).unwrap_err();
        assert!(
            renamed.to_string().contains("one of 3 of a split set"),
            "{renamed}"
        );
    }

    #[test]
    fn a_tensor_in_two_files_of_a_set_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let shard = Sample::new().bytes();
        std::fs::write(folder.path().join("m-00001-of-00002.gguf"), &shard).unwrap();
        std::fs::write(folder.path().join("m-00002-of-00002.gguf"), &shard).unwrap();
        let error = GgufFile::open(&folder.path().join("m-00001-of-00002.gguf")).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("tensor `a.weight` exists more than once"),
            "{error}"
        );
    }

    #[test]
    fn shard_names_are_exact() {
        let shard = ShardName::parse("a-b-00002-of-00010.gguf").unwrap();
        assert_eq!(
            shard,
            ShardName {
                prefix: "a-b".into(),
                number: 2,
                total: 10
            }
        );
        for name in [
            "a-00000-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "a-1-of-2.gguf",
            "a-00001-of-00002",
            "a.gguf",
        ] {
            assert_eq!(ShardName::parse(name), None, "{name}");
        }
    }
}
