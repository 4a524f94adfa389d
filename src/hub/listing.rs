//! The hub's address, and the file list of a repository.

use serde::Deserialize;

use crate::env;
use crate::error::{Error, Result};
use crate::net::{Client, Patience, Target, encode_path};
use crate::store::{ModelName, check_file_name};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// A hub to talk to.
#[derive(Debug, Clone)]
pub struct Hub {
    client: Client,
    endpoint: String,
    token: Option<String>,
}

/// One file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its path in the repository, checked to be safe below a folder.
    pub path: String,
    /// Its size.
    pub size: Option<u64>,
    /// SHA-256 in hexadecimal; large files have one.
    pub sha256: Option<String>,
}

/// What a repository holds at one commit.
#[derive(Debug, Clone)]
pub struct Listing {
    /// `user/model`.
    pub repository: ModelName,
    /// The commit, or the revision that was asked for when the hub does not tell.
    pub commit: String,
    /// Its files.
    pub files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Answer {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    size: Option<u64>,
    #[serde(alias = "oid")]
    sha256: Option<String>,
}

impl Hub {
    /// The hub at `HF_ENDPOINT`, else the public one.
    ///
    /// # Errors
    /// `Invalid` when `HF_ENDPOINT` is.
    pub fn from_environment(token: Option<String>) -> Result<Self> {
        let endpoint = env::HF_ENDPOINT
            .text()?
            .unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        if let Some(token) = &token
            && !token.chars().all(|c| c.is_ascii_graphic())
        {
            return Err(Error::invalid(
                "the hub token contains characters that no token has",
            ));
        }
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Ok(Self {
            client: Client::new(Patience::default()),
            endpoint,
            token,
        })
    }

    /// Whether requests carry a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn target<'a>(&'a self, url: &'a str, name: &'a str) -> Target<'a> {
        Target {
            url,
            name,
            token: self.token.as_deref(),
        }
    }

    /// The address of a file at the listed commit.
    pub(super) fn file_url(&self, listing: &Listing, path: &str) -> String {
        let commit = encode_path(&listing.commit).replace('/', "%2F");
        format!(
            "{}/{}/resolve/{commit}/{}",
            self.endpoint,
            encode_path(&listing.repository.to_string()),
            encode_path(path)
        )
    }

    /// Asks for the files of `repository` at `revision` (a branch, tag or commit).
    ///
    /// # Errors
    /// `NotFound`, `Invalid` (access denied, an unsafe file name) or `Io`.
    pub fn list(&self, repository: &ModelName, revision: &str) -> Result<Listing> {
        let name = repository.to_string();
        let mut url = format!("{}/api/models/{}", self.endpoint, encode_path(&name));
        if revision != "main" {
            url.push_str(&format!(
                "/revision/{}",
                encode_path(revision).replace('/', "%2F")
            ));
        }
        url.push_str("?blobs=true");
        let answer: Answer = self.client.json(self.target(&url, &name))?;
        Ok(Listing {
            repository: repository.clone(),
            commit: answer
                .sha
                .filter(|sha| is_hex(sha, 40))
                .unwrap_or_else(|| revision.to_owned()),
            files: answer
                .siblings
                .into_iter()
                .map(remote_file)
                .collect::<Result<_>>()?,
        })
    }
}

fn remote_file(sibling: Sibling) -> Result<RemoteFile> {
    let path = sibling.rfilename;
    // Files such as `.gitattributes` are never taken; any other odd name makes the whole list suspicious.
    let is_hidden = path
        .split('/')
        .any(|part| part.starts_with('.') && !part.starts_with(".."));
    if !is_hidden {
        check_file_name(&path)?;
    }
    let lfs = sibling.lfs;
    let sha256 = lfs.as_ref().and_then(|lfs| lfs.sha256.as_deref());
    let sha256 = sha256
        .map(|sha256| sha256.strip_prefix("sha256:").unwrap_or(sha256))
        .filter(|sha256| is_hex(sha256, 64));
    Ok(RemoteFile {
        path,
        size: lfs.as_ref().and_then(|lfs| lfs.size).or(sibling.size),
        sha256: sha256.map(str::to_ascii_lowercase),
    })
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str) -> Result<RemoteFile> {
        let json = format!(
            r#"{{"rfilename": {name:?}, "size": 130, "lfs": {{"size": 9, "oid": "sha256:{}"}}}}"#,
            "A".repeat(64)
        );
        remote_file(serde_json::from_str(&json).unwrap())
    }

    #[test]
    fn the_lfs_entry_gives_size_and_checksum() {
        let file = parse("m.gguf").unwrap();
        assert_eq!((file.size, file.sha256), (Some(9), Some("a".repeat(64))));
    }

    #[test]
    fn a_file_name_that_leaves_the_folder_spoils_the_list() {
        for name in [
            "../config.json",
            "a/../../x.json",
            "/etc/x.json",
            "a//b.json",
            "..",
            "CON.json",
        ] {
            assert!(parse(name).is_err(), "{name}");
        }
        assert!(parse(".gitattributes").is_ok());
    }
}
