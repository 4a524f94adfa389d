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
