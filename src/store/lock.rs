//! Locks between processes: one per model folder (pull, rm) and one for the registry file.
//!
//! The operating system drops them when the process dies, so a lock file that is left over locks nothing. Lock files are
//! never deleted: another process may just be opening them.

use std::fs::{self, File, TryLockError};
use std::path::Path;

use super::ModelName;
use crate::error::{Error, Result};

/// Held as long as it lives.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// What came of an attempt to lock without waiting.
#[derive(Debug)]
pub enum LockOutcome {
    /// It is ours.
    Locked(Lock),
    /// Another process has it.
    Busy,
}

impl Lock {
    /// Locks the model folder `name`, without waiting.
    ///
    /// # Errors
    /// `Io` when the lock file cannot be made.
    pub fn try_model(models_dir: &Path, name: &ModelName) -> Result<LockOutcome> {
        let path = models_dir.join(".oxydllm_locks").join(lock_file_name(name));
        let file = open(&path)?;
        match file.try_lock() {
            Ok(()) => Ok(LockOutcome::Locked(Self { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(LockOutcome::Busy),
            Err(TryLockError::Error(cause)) => Err(Error::io("lock", &path, cause)),
        }
    }

    /// Locks the model folder `name`, waiting for whoever has it.
    ///
    /// # Errors
    /// `Io` when the lock file cannot be made or locked.
    pub fn wait_model(models_dir: &Path, name: &ModelName) -> Result<Self> {
        Self::wait(&models_dir.join(".oxydllm_locks").join(lock_file_name(name)))
    }

    /// Locks the registry of `models_dir`, waiting for whoever has it.
    ///
    /// # Errors
    /// `Io` when the lock file cannot be made or locked.
    pub fn wait_registry(models_dir: &Path) -> Result<Self> {
        Self::wait(&models_dir.join(".oxydllm.lock"))
    }

    fn wait(path: &Path) -> Result<Self> {
        let file = open(path)?;
        file.lock()
            .map_err(|cause| Error::io("lock", path, cause))?;
        Ok(Self { _file: file })
    }
}

/// One file per folder; lower case, because the folders of `a/B` and `A/b` may be the same one.
fn lock_file_name(name: &ModelName) -> String {
    format!(
        "{}.lock",
        name.to_string().to_lowercase().replace('/', "--")
    )
}

fn open(path: &Path) -> Result<File> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(|cause| Error::io("create", dir, cause))?;
    }
    File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)
        .map_err(|cause| Error::io("open", path, cause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_of_the_same_model_is_busy_until_the_first_is_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let name = ModelName::parse("u/m").unwrap();
        let other = ModelName::parse("u/n").unwrap();
        let first = Lock::try_model(dir.path(), &name).unwrap();
        assert!(matches!(first, LockOutcome::Locked(_)));
        assert!(matches!(
            Lock::try_model(dir.path(), &name).unwrap(),
            LockOutcome::Busy
        ));
        assert!(matches!(
            Lock::try_model(dir.path(), &other).unwrap(),
            LockOutcome::Locked(_)
        ));
        drop(first);
        assert!(matches!(
            Lock::try_model(dir.path(), &name).unwrap(),
            LockOutcome::Locked(_)
        ));
    }
}
