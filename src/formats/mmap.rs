//! Mapped files: [`Mapping`], and what happens when a file shrinks under its map.
//!
//! Reading a page that a truncated file no longer backs raises SIGBUS, which by default ends the process without a word.
//! The first [`Mapping::open`] installs a handler that says what happened and exits; faults outside our maps go to whoever
//! handled them before.

#![allow(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

/// A read-only mapping of a whole file.
#[derive(Debug)]
pub struct Mapping {
    path: PathBuf,
    // Before `map`: a range is forgotten before its pages go away.
    #[cfg(any(target_os = "linux", target_os = "macos"))]
    _watched: truncation::WatchedRange,
    map: memmap2::Mmap,
}

impl Mapping {
    /// Maps the whole of the regular file `path`.
    ///
    /// # Errors
    /// `NotFound` or `Io` from the operating system, `Invalid` when `path` is not a regular file.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        let kind = std::fs::metadata(path).map_err(|error| Error::io("open", path, error))?;
        if !kind.is_file() {
            return Err(Error::invalid(format!(
                "cannot map `{}`: it is not a regular file",
                path.display()
            )));
        }
        let file = std::fs::File::open(path).map_err(|error| Error::io("open", path, error))?;
        // SAFETY: the map is read-only. Another process may still change the file, as with every mapped weight file: bytes
        // read are plain numbers without invalid values, and lengths come from a header that was copied out and checked
        // against the length of the map, which does not change. A truncated file raises SIGBUS, handled below.
        let map =
            unsafe { memmap2::Mmap::map(&file) }.map_err(|error| Error::io("map", path, error))?;
        Ok(Arc::new(Self {
            path: path.to_path_buf(),
            #[cfg(any(target_os = "linux", target_os = "macos"))]
            _watched: truncation::watch(map.as_ptr() as usize, map.len()),
            map,
        }))
    }

    /// The file's bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.map
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Tells the system that the whole pages inside `start..start + len` are not needed now. They stay readable and return
    /// from the file when read. Does nothing where the system has no such call or refuses it.
    pub fn release_pages(&self, start: usize, len: usize) {
        #[cfg(unix)]
        {
            let page = page_size();
            // A map starts on a page boundary, so offsets align as addresses do.
            let last = start.saturating_add(len).min(self.map.len()) / page * page;
            let first = start.div_ceil(page).saturating_mul(page);
            if first < last {
                // SAFETY: the map is shared and file-backed, so dropped pages read back from the file with the same bytes;
                // the range lies inside the map.
                let advised = unsafe {
                    self.map.unchecked_advise_range(
                        memmap2::UncheckedAdvice::DontNeed,
                        first,
                        last - first,
                    )
                };
                if let Err(error) = advised {
                    tracing::debug!(%error, path = %self.path.display(), "mapped pages were not released");
                }
            }
        }
        #[cfg(not(unix))]
        let _ = (start, len);
    }
}

#[cfg(unix)]
fn page_size() -> usize {
    // SAFETY: `sysconf` only reads a constant of the system.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size)
        .ok()
        .filter(|size| size.is_power_of_two())
        .unwrap_or(1 << 16)
}

/// The SIGBUS handler and the list of address ranges it speaks for.
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod truncation {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Mutex, Once, OnceLock, PoisonError};

    const MESSAGE: &[u8] =
        b"oxydllm: a model file was truncated or became unreadable while in use; stopping\n\
        hint: do not overwrite or move model files that are loaded, then start again\n";

    /// One mapped range. Slots form a list that only grows and are used again, so that the handler can walk it without a lock.
    #[derive(Debug)]
    struct Slot {
        start: AtomicUsize,
        /// Zero: free.
        len: AtomicUsize,
        next: OnceLock<&'static Slot>,
    }

    impl Slot {
        const fn new() -> Self {
            Self {
                start: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                next: OnceLock::new(),
            }
        }
    }

    static FIRST: Slot = Slot::new();
    static TAKING: Mutex<()> = Mutex::new(());
    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

    /// Keeps a range in the list until dropped.
    #[derive(Debug)]
    pub(super) struct WatchedRange(&'static Slot);

    impl Drop for WatchedRange {
        fn drop(&mut self) {
            self.0.len.store(0, Ordering::SeqCst);
        }
    }

    /// Adds a range, and installs the handler the first time.
    pub(super) fn watch(start: usize, len: usize) -> WatchedRange {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut slot = &FIRST;
        while slot.len.load(Ordering::SeqCst) != 0 {
            slot = slot.next.get_or_init(|| Box::leak(Box::new(Slot::new())));
        }
        slot.start.store(start, Ordering::SeqCst);
        // An empty file still takes a slot, or the next caller would share it.
        slot.len.store(len.max(1), Ordering::SeqCst);
        WatchedRange(slot)
    }

    fn is_watched(address: usize) -> bool {
        let mut slot = Some(&FIRST);
        while let Some(at) = slot {
            let (start, len) = (
                at.start.load(Ordering::SeqCst),
                at.len.load(Ordering::SeqCst),
            );
            if len != 0 && address.wrapping_sub(start) < len {
                return true;
            }
            slot = at.next.get().copied();
        }
        false
    }

    fn install() {
        // SAFETY: an all-zero `sigaction` is a valid value (default action, empty mask, no flags).
        let (mut previous, mut ours): (libc::sigaction, libc::sigaction) =
            unsafe { std::mem::zeroed() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_bus_error;
        ours.sa_sigaction = handler as *const () as libc::sighandler_t;
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both pointers are to live values; the old action is stored before ours can run.
        unsafe {
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) == 0 {
                let _ = PREVIOUS.set(previous);
                libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut());
            }
        }
    }

    /// Uses only what a signal handler may: atomics, `write`, `_exit`, `sigaction`, `raise`.
    extern "C" fn on_bus_error(
        signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        // SAFETY: with SA_SIGINFO the kernel passes a valid `siginfo_t`; SIGBUS fills its address.
        let (address, sent_by_process) =
            unsafe { ((*info).si_addr() as usize, (*info).si_code <= 0) };
        if !sent_by_process && is_watched(address) {
            // SAFETY: the buffer is a live constant; `_exit` ends the process without running anything.
            unsafe {
                libc::write(libc::STDERR_FILENO, MESSAGE.as_ptr().cast(), MESSAGE.len());
                libc::_exit(1);
            }
        }
        // SAFETY: the previous action is a value that `sigaction` returned; an all-zero one is the default action.
        unsafe {
            let default: libc::sigaction = std::mem::zeroed();
            if sent_by_process {
                // The standard library's handler, which usually came before ours, would wait for a fault that never comes.
                libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                libc::raise(signal);
            } else {
                // The fault happens again when this returns.
                libc::sigaction(
                    signal,
                    PREVIOUS.get().unwrap_or(&default),
                    std::ptr::null_mut(),
                );
            }
        }
    }
}

#[cfg(test)]
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod tests {
    use std::io::Write;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    use super::*;

    fn file_of(pages: usize) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&vec![7; pages * page_size()]).unwrap();
        file
    }

    /// Runs the test `name` of this binary in a process of its own, with `OXYDLLM_TEST_CHILD` set.
    fn run_as_child(name: &str) -> Output {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([
            "--exact",
            &format!("formats::mmap::tests::{name}"),
            "--nocapture",
        ]);
        command.env("OXYDLLM_TEST_CHILD", "1").output().unwrap()
    }

    fn is_child() -> bool {
        std::env::var_os("OXYDLLM_TEST_CHILD").is_some()
    }

    #[test]
    fn a_file_truncated_under_the_map_ends_the_process_with_a_message() {
        if is_child() {
            let file = file_of(4);
            let _other = Mapping::open(file_of(1).path()).unwrap();
            let mapping = Mapping::open(file.path()).unwrap();
            file.as_file().set_len(0).unwrap();
            let byte = mapping.as_slice()[3 * page_size()];
            unreachable!("read {byte} from a page without a file");
        }
        let output = run_as_child("a_file_truncated_under_the_map_ends_the_process_with_a_message");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.contains("oxydllm: a model file was truncated"),
            "{stderr}"
        );
        assert!(!stderr.contains("unreachable"), "{stderr}");
    }

    #[test]
    fn a_fault_outside_our_maps_is_left_to_the_default_action() {
        if is_child() {
            let (closed, foreign) = (file_of(4), file_of(4));
            drop(Mapping::open(closed.path()).unwrap());
            // SAFETY: a test file nobody else writes; it is truncated to provoke the fault this test is about.
            let map = unsafe { memmap2::Mmap::map(foreign.as_file()) }.unwrap();
            foreign.as_file().set_len(0).unwrap();
            unreachable!("read {} from a page without a file", map[3 * page_size()]);
        }
        let output = run_as_child("a_fault_outside_our_maps_is_left_to_the_default_action");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{stderr}");
        assert!(!stderr.contains("model file"), "{stderr}");
    }

    #[test]
    fn a_bus_error_sent_by_another_process_still_ends_this_one() {
        if is_child() {
            let _mapping = Mapping::open(file_of(1).path()).unwrap();
            // SAFETY: sends a signal to this process, which is here to be killed by it.
            unsafe { libc::raise(libc::SIGBUS) };
            unreachable!("survived the signal");
        }
        let output = run_as_child("a_bus_error_sent_by_another_process_still_ends_this_one");
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGBUS),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    #[cfg(target_os = "linux")]
    fn resident_kib(mapping: &Mapping) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let ours = maps.split_once(mapping.path().to_str().unwrap()).unwrap().1;
        let line = ours.lines().find(|line| line.starts_with("Rss:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn released_pages_leave_memory_and_read_back_the_same() {
        let file = file_of(64);
        let mapping = Mapping::open(file.path()).unwrap();
        let sum = |mapping: &Mapping| {
            mapping
                .as_slice()
                .iter()
                .map(|&byte| usize::from(byte))
                .sum::<usize>()
        };
        let (before, page_kib) = (sum(&mapping), page_size() / 1024);
        assert_eq!(resident_kib(&mapping), 64 * page_kib);
        // The first and last pages are only touched in part, so they stay.
        mapping.release_pages(1, 64 * page_size() - 2);
        assert_eq!(resident_kib(&mapping), 2 * page_kib);
        assert_eq!(sum(&mapping), before);
        mapping.release_pages(usize::MAX - 1, 5);
        mapping.release_pages(5, usize::MAX);
        assert_eq!(resident_kib(&mapping), page_kib);
        assert_eq!(sum(&mapping), before);
    }

    #[test]
    fn only_regular_files_are_mapped_and_an_empty_one_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            Mapping::open(folder.path()).unwrap_err().kind(),
            crate::error::ErrorKind::Invalid
        );
        let missing = Mapping::open(&folder.path().join("x")).unwrap_err();
        assert_eq!(missing.kind(), crate::error::ErrorKind::NotFound);
        assert!(
            Mapping::open(file_of(0).path())
                .unwrap()
                .as_slice()
                .is_empty()
        );
    }
}
