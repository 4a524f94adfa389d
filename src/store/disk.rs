//! Free space, asked before the first byte is written.

use std::path::Path;

use crate::error::{Error, Result};
use crate::units::format_size;

/// Kept free beside what is written: file system bookkeeping, logs, somebody else's temporary file.
const RESERVE_BYTES: u64 = 64 << 20;

/// Bytes that this user may still write below `dir` (which exists), or `None` when the system does not say.
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// Checks that `needed` bytes fit below `dir`.
///
/// # Errors
/// `Io` that says how much is missing.
pub fn require_free(dir: &Path, needed: u64) -> Result<()> {
    match free_bytes(dir) {
        Some(free) => check_free(dir, needed, free),
        None => Ok(()),
    }
}

fn check_free(dir: &Path, needed: u64, free: u64) -> Result<()> {
    if needed == 0 || needed.saturating_add(RESERVE_BYTES) <= free {
        return Ok(());
    }
    let missing = needed.saturating_add(RESERVE_BYTES) - free;
    Err(Error::new(
        crate::error::ErrorKind::Io,
        format!(
            "not enough disk space below `{}`: {} needed, {} free, {} missing",
            dir.display(),
            format_size(needed),
            format_size(free),
            format_size(missing)
        ),
    )
    .with_hint("delete models with `oxydllm rm`, or use another disk with `--models-dir`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_all_three_numbers() {
        let error = check_free(Path::new("/d"), 10 << 30, 4 << 30)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("10.00 GB needed, 4.00 GB free, 6.06 GB missing"),
            "{error}"
        );
        assert!(check_free(Path::new("/d"), 10 << 30, 11 << 30).is_ok());
        assert!(check_free(Path::new("/d"), 0, 0).is_ok());
        assert!(check_free(Path::new("/d"), u64::MAX, 1).is_err());
    }

    #[test]
    fn the_system_tells_the_free_space_of_an_existing_directory() {
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).is_some_and(|free| free > 0));
        assert!(require_free(dir.path(), u64::MAX / 2).is_err());
    }
}
