//! Memory of the machine and of this process, in bytes, as the system tells it.
//!
//! Limits of control groups count before what the machine has: a container must not plan with the host's memory.

use std::path::Path;

use crate::cgroup::{Groups, Version};

/// What this process could have in all if it gave back everything it holds: what nobody uses, plus what it holds itself.
/// Pages that are mapped from files count as unused, as the system takes them back when it needs them. `None` where the
/// system does not tell.
pub fn capacity() -> Option<u64> {
    let own = own_bytes();
    let machine = machine_available().map(|available| available.saturating_add(own));
    let groups = group_capacity(&Groups::of_this_process(), own);
    machine.into_iter().chain(groups).min()
}

/// What this process may still take.
pub fn available() -> Option<u64> {
    Some(capacity()?.saturating_sub(own_bytes()))
}

/// The most memory the process had resident so far, where the system tells.
pub fn peak() -> Option<u64> {
    own_status("VmHWM:")
}

/// Bytes of this process that no file backs.
fn own_bytes() -> u64 {
    own_status("RssAnon:").unwrap_or(0)
}

fn own_status(key: &str) -> Option<u64> {
    kib_field(&std::fs::read_to_string("/proc/self/status").ok()?, key)
}

#[cfg(not(target_os = "macos"))]
fn machine_available() -> Option<u64> {
    kib_field(
        &std::fs::read_to_string("/proc/meminfo").ok()?,
        "MemAvailable:",
    )
}

/// Three quarters of the physical memory: what is free says little where the system compresses and caches as it likes.
#[cfg(target_os = "macos")]
fn machine_available() -> Option<u64> {
    static PHYSICAL: std::sync::OnceLock<Option<u64>> = std::sync::OnceLock::new();
    let physical = PHYSICAL.get_or_init(|| {
        let output = std::process::Command::new("/usr/sbin/sysctl")
            .args(["-n", "hw.memsize"])
            .output()
            .ok()?;
        String::from_utf8(output.stdout).ok()?.trim().parse().ok()
    });
    physical.map(|bytes| bytes / 4 * 3)
}

/// The least that a group on the way to the root leaves to this process, which holds `own` bytes.
fn group_capacity(groups: &Groups, own: u64) -> Option<u64> {
    let left = |(version, folder): &(Version, std::path::PathBuf)| {
        let (limit, held) = match version {
            Version::V2 => ("memory.max", "anon"),
            Version::V1 => ("memory.limit_in_bytes", "total_rss"),
        };
        let limit = number(&folder.join(limit))?;
        let held = stat(&folder.join("memory.stat"), held).unwrap_or(0);
        Some(limit.saturating_sub(held.saturating_sub(own)))
    };
    groups.folders("memory").iter().filter_map(left).min()
}

/// The number in a file; `None` for `max`.
fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// A field of lines `name number`.
fn stat(path: &Path, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let value = |line: &str| line.strip_prefix(field)?.strip_prefix(' ')?.parse().ok();
    text.lines().find_map(value)
}

/// A field of lines `name: number kB`.
fn kib_field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_kibibytes() {
        let text = "MemTotal: 5 kB\nMemAvailable:   12 kB\n";
        assert_eq!(kib_field(text, "MemAvailable:"), Some(12 * 1024));
        assert_eq!(kib_field("MemTotal: 5 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn the_tightest_group_counts_with_what_others_in_it_hold() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("memory.max", "max\n");
        write("a/memory.max", "1000\n");
        write("a/memory.stat", "anon 700\nanon_thp 999\nfile 100\n");
        write("a/b/memory.max", "2000\n");
        write("memory/old/memory.limit_in_bytes", "500\n");
        write("memory/old/memory.stat", "rss 1\ntotal_rss 60\n");
        let left = |own: &str, bytes| group_capacity(&Groups::at(root.path(), own), bytes);
        // 700 of the group are held, 100 of them here: others leave 400 of 1000.
        assert_eq!(left("0::/a/b\n", 100), Some(400));
        assert_eq!(left("0::/a/b\n", 700), Some(1000));
        assert_eq!(left("0::/\n", 100), None, "no limit");
        assert_eq!(left("3:memory:/old\n", 10), Some(450));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory_and_this_process_takes_some() {
        let (capacity, available) = (capacity().unwrap(), available().unwrap());
        assert!(capacity > available, "{capacity} {available}");
        assert!(peak().unwrap() > 0);
    }
}
