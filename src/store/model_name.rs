//! [`ModelName`]: `name` or `user/name`, safe to become a path below the models directory on any system.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Longest part of a name in bytes, so that suffixes still fit into what file systems take (255).
const MAX_PART_BYTES: usize = 200;

/// Device names that Windows gives a meaning in every directory.
const RESERVED: [&str; 22] = [
    "CON", "PRN", "AUX", "NUL", "COM1", "COM2", "COM3", "COM4", "COM5", "COM6", "COM7", "COM8",
    "COM9", "LPT1", "LPT2", "LPT3", "LPT4", "LPT5", "LPT6", "LPT7", "LPT8", "LPT9",
];

/// The name of a model folder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ModelName {
    namespace: Option<String>,
    name: String,
}

impl ModelName {
    /// Parses `name` or `user/name`.
    ///
    /// # Errors
    /// `Invalid` for anything that could leave the models directory, hide, or not be a file name on some system.
    pub fn parse(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let wrong = |why: &str| {
            Error::invalid(format!(
                "`{}` is not a model name: {why}",
                text.escape_debug()
            ))
            .with_hint("a name is `name` or `user/name`")
        };
        for part in &parts {
            check_part(part).map_err(|why| wrong(&why))?;
        }
        match parts[..] {
            [name] => Ok(Self {
                namespace: None,
                name: name.to_owned(),
            }),
            [namespace, name] => Ok(Self {
                namespace: Some(namespace.to_owned()),
                name: name.to_owned(),
            }),
            _ => Err(wrong("it has more than two parts")),
        }
    }

    /// The part before the slash.
    pub fn namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The part after the slash.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder below `models_dir`.
    pub fn dir_in(&self, models_dir: &Path) -> PathBuf {
        match &self.namespace {
            Some(namespace) => models_dir.join(namespace).join(&self.name),
            None => models_dir.join(&self.name),
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Checks a relative file path from a remote file list: every part must be a plain, visible file name.
///
/// # Errors
/// `Invalid` for anything that could leave the folder it is put into.
pub fn check_file_name(path: &str) -> Result<()> {
    path.split('/').try_for_each(check_part).map_err(|why| {
        Error::invalid(format!(
            "the file name `{}` of the repository is not safe: {why}",
            path.escape_debug()
        ))
    })
}

fn check_part(part: &str) -> Result<(), String> {
    let stem = part.split('.').next().unwrap_or_default();
    let forbidden =
        |c: char| c.is_control() || matches!(c, '\\' | ':' | '<' | '>' | '"' | '|' | '?' | '*');
    if part.is_empty() {
        Err("a part is empty".to_owned())
    } else if part.starts_with('.') {
        Err(format!("`{part}` begins with a dot"))
    } else if part.ends_with(['.', ' ']) || part.starts_with(' ') {
        Err(format!(
            "`{part}` begins or ends with a space or ends with a dot"
        ))
    } else if let Some(c) = part.chars().find(|&c| forbidden(c)) {
        Err(format!("it contains `{}`", c.escape_debug()))
    } else if RESERVED
        .iter()
        .any(|reserved| reserved.eq_ignore_ascii_case(stem.trim_end()))
    {
        Err(format!("`{part}` is a device name on Windows"))
    } else if part.len() > MAX_PART_BYTES {
        Err(format!("a part is longer than {MAX_PART_BYTES} bytes"))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_a_namespace_are_taken() {
        for text in ["m", "Qwen/Qwen3-4B", "a.b/c_d-e 1.5", "名前/模型"] {
            assert_eq!(ModelName::parse(text).unwrap().to_string(), text);
        }
        let name = ModelName::parse("u/m").unwrap();
        assert_eq!(name.dir_in(Path::new("/d")), Path::new("/d/u/m"));
    }

    #[test]
    fn names_that_could_leave_hide_or_break_are_refused() {
        let long = "x".repeat(201);
        let cases = [
            "",
            "/",
            "a/",
            "/a",
            "a//b",
            "..",
            "../x",
            "a/..",
            "a/../b",
            ".",
            "a/.",
            ".hidden",
            "a/.b",
            "C:\\x",
            "C:x",
            "a\\b",
            "a\0b",
            "a\nb",
            "a\u{7f}b",
            "CON",
            "nul.txt",
            "a/Com1",
            "LPT9.gguf",
            "a.",
            "a ",
            " a",
            "a?b",
            "a*b",
            "a/b/c",
            &long,
        ];
        for text in cases {
            assert!(ModelName::parse(text).is_err(), "{text:?} was taken");
        }
    }

    #[test]
    fn remote_file_names_may_have_folders_but_not_leave() {
        assert!(check_file_name("1_Pooling/config.json").is_ok());
        for path in [
            "../config.json",
            "a/../../b",
            "/etc/passwd",
            "a\\..\\b",
            "a//b",
            ".gitattributes",
            "a/.b",
        ] {
            assert!(check_file_name(path).is_err(), "{path} was taken");
        }
    }
}
