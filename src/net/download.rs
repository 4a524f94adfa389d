//! A download: into a `.part` file, resumed by range, retried, verified by size and SHA-256, renamed when it is whole.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use ureq::Body;
use ureq::http::{HeaderMap, Response};

use super::{Client, Failure, Target, broken, refused};
use crate::error::{Error, ErrorKind, Result};

/// A connection that brought this much was worth it: it does not count against the number of attempts.
const WORTHWHILE_BYTES: u64 = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;

/// What to download and what is known about it.
#[derive(Debug, Clone, Copy)]
pub struct Download<'a> {
    /// From where.
    pub target: Target<'a>,
    /// To where. Until it is whole it lies under `part`.
    pub path: &'a Path,
    /// The name of the unfinished file.
    pub part: &'a Path,
    /// Its size, where known.
    pub size: Option<u64>,
    /// Its SHA-256 in hexadecimal, where known.
    pub sha256: Option<&'a str>,
}

/// Is told how a download gets on.
pub trait Observer {
    /// So many bytes of the file are on disk. May be less than before, when the file is started again.
    fn have(&mut self, bytes: u64);
    /// A connection broke; it is tried again.
    fn retry(&mut self, why: &Error);
}

impl Client {
    /// Downloads one file. On failure the bytes on disk stay, so that the same call goes on from there.
    ///
    /// # Errors
    /// `Io` when the network or the disk fails, `Invalid` when the content is not what was announced.
    pub fn download(&self, download: &Download<'_>, observer: &mut dyn Observer) -> Result<()> {
        let mut file = PartFile::open(download)?;
        let (mut failures, mut restarts) = (0, 0);
        loop {
            let before = file.length;
            let failure = match self.attempt(download, &mut file, observer) {
                Ok(()) => match file.verify(download) {
                    Ok(()) => return file.finish(download),
                    Err(error) if restarts > 0 => {
                        file.restart()?;
                        return Err(error);
                    }
                    Err(error) => {
                        restarts += 1;
                        file.restart()?;
                        Failure::again(error)
                    }
                },
                Err(failure) => failure,
            };
            failures = if file.length >= before + WORTHWHILE_BYTES {
                0
            } else {
                failures + 1
            };
            if failure.is_final || failures >= self.patience.attempts {
                return Err(failure.error);
            }
            observer.retry(&failure.error);
            std::thread::sleep(self.patience.pause);
        }
    }

    /// One connection: from the bytes on disk to the end of the file, or as far as it gets.
    fn attempt(
        &self,
        download: &Download<'_>,
        file: &mut PartFile,
        observer: &mut dyn Observer,
    ) -> Result<(), Failure> {
        if download.size.is_some_and(|size| file.length > size) {
            file.restart().map_err(Failure::end)?;
        }
        observer.have(file.length);
        if download.size == Some(file.length) {
            return Ok(());
        }
        let range = (file.length > 0).then_some((file.length, None));
        let answer = self.get(download.target, range)?;
        let name = download.target.name;
        match answer.status().as_u16() {
            206 if range.is_some() && starts_at(answer.headers(), file.length) => {}
            // The server ignored the range, or answered another one: the file comes from its beginning.
            200 => file.restart().map_err(Failure::end)?,
            // Longer than what the server has, or another file: from the beginning next time.
            206 | 416 => {
                file.restart().map_err(Failure::end)?;
                return Err(Failure::again(Error::invalid(format!(
                    "the server has no bytes to continue `{name}` with"
                ))));
            }
            _ => return Err(refused(answer.status(), name)),
        }
        observer.have(file.length);
        receive(download, answer, file, observer)
    }
}

fn starts_at(headers: &HeaderMap, position: u64) -> bool {
    let range = headers
        .get("Content-Range")
        .and_then(|value| value.to_str().ok());
    let start = range.and_then(|range| {
        range
            .strip_prefix("bytes ")?
            .split('-')
            .next()?
            .trim()
            .parse()
            .ok()
    });
    start == Some(position)
}

fn receive(
    download: &Download<'_>,
    answer: Response<Body>,
    file: &mut PartFile,
    observer: &mut dyn Observer,
) -> Result<(), Failure> {
    let name = download.target.name;
    let announced = answer
        .body()
        .content_length()
        .map(|length| file.length + length);
    let mut body = answer.into_body().into_reader();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let count = body
            .read(&mut buffer)
            .map_err(|cause| Failure::again(broken(name).with_source(cause)))?;
        if count == 0 {
            break;
        }
        if let Some(size) = download
            .size
            .filter(|&size| file.length + count as u64 > size)
        {
            file.restart().map_err(Failure::end)?;
            return Err(Failure::again(Error::invalid(format!(
                "`{name}` is longer than the {size} bytes that were announced"
            ))));
        }
        file.append(&buffer[..count]).map_err(Failure::end)?;
        observer.have(file.length);
    }
    match download.size.or(announced) {
        Some(size) if file.length < size => {
            let message = format!(
                "the connection for `{name}` ended after {} of {size} bytes",
                file.length
            );
            Err(Failure::again(Error::new(ErrorKind::Io, message)))
        }
        _ => Ok(()),
    }
}

/// The unfinished file with the running hash of what is in it.
struct PartFile {
    path: PathBuf,
    file: File,
    length: u64,
    hasher: Option<Sha256>,
}

impl PartFile {
    fn open(download: &Download<'_>) -> Result<Self> {
        let path = download.part.to_owned();
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(|cause| Error::io("create", dir, cause))?;
        }
        let opened = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mut file = opened.map_err(|cause| Error::io("open", &path, cause))?;
        let mut hasher = download.sha256.map(|_| Sha256::new());
        let length = match &mut hasher {
            Some(hasher) => hash_file(&mut file, hasher),
            None => file.seek(SeekFrom::End(0)),
        };
        let length = length.map_err(|cause| Error::io("read", &path, cause))?;
        Ok(Self {
            path,
            file,
            length,
            hasher,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|cause| {
            Error::io("write", &self.path, cause)
                .with_hint("what is on disk already is kept: run the same command again")
        })?;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(bytes);
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        let cut = self
            .file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cut.map_err(|cause| Error::io("write", &self.path, cause))?;
        self.length = 0;
        self.hasher = self.hasher.as_ref().map(|_| Sha256::new());
        Ok(())
    }

    fn verify(&self, download: &Download<'_>) -> Result<()> {
        let (Some(expected), Some(hasher)) = (download.sha256, &self.hasher) else {
            return Ok(());
        };
        let found: String = hasher
            .clone()
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if found.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "`{}` has the SHA-256 checksum {found}, but {expected} was announced: its content is wrong",
            download.target.name
        ))
        .with_hint("the file was not kept; try again later or from another network"))
    }

    fn finish(self, download: &Download<'_>) -> Result<()> {
        self.file
            .sync_all()
            .map_err(|cause| Error::io("write", &self.path, cause))?;
        drop(self.file);
        fs::rename(&self.path, download.path)
            .map_err(|cause| Error::io("rename to", download.path, cause))
    }
}

fn hash_file(file: &mut File, hasher: &mut Sha256) -> std::io::Result<u64> {
    let (mut length, mut buffer) = (0, vec![0; BUFFER_BYTES]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(length),
            count => {
                hasher.update(&buffer[..count]);
                length += count as u64;
            }
        }
    }
}
