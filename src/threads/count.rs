//! How many threads to compute with: affinity and control groups.

use std::path::Path;

use crate::cgroup::{Groups, Version};

/// How many threads this process should compute with: `requested`, else the CPUs it may run on, capped by the CPU quota
/// of its control group (version 1 or 2, rounded down, at least 1).
pub fn num_threads(requested: Option<usize>) -> usize {
    requested.unwrap_or_else(|| {
        // Honours the affinity mask (and on Linux already looks at the quota, which does no harm).
        let affinity = std::thread::available_parallelism().map_or(1, usize::from);
        let quota = cgroup_cpus(&Groups::of_this_process());
        affinity.min(quota.unwrap_or(usize::MAX)).max(1)
    })
}

/// The tightest CPU quota on the way from this process's control group to the root, in whole CPUs.
fn cgroup_cpus(groups: &Groups) -> Option<usize> {
    groups
        .folders("cpu")
        .iter()
        .filter_map(|(version, folder)| match version {
            Version::V2 => quota_v2(folder),
            Version::V1 => quota_v1(folder),
        })
        .min_by(f64::total_cmp)
        .map(|cpus| (cpus.floor() as usize).max(1))
}

fn quota_v2(folder: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota.parse().ok()?, period.parse().ok()?)
}

fn quota_v1(folder: &Path) -> Option<f64> {
    let read = |name: &str| {
        std::fs::read_to_string(folder.join(name))
            .ok()?
            .trim()
            .parse::<f64>()
            .ok()
    };
    ratio(read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
}

fn ratio(quota: f64, period: f64) -> Option<f64> {
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_both_control_group_versions_are_rounded_down_and_inherited() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("a/cpu.max", "250000 100000\n");
        write("a/b/cpu.max", "max 100000\n");
        write("tiny/cpu.max", "50000 100000\n");
        write("cpu/old/cpu.cfs_quota_us", "300000\n");
        write("cpu/old/cpu.cfs_period_us", "100000\n");
        write("cpu/free/cpu.cfs_quota_us", "-1\n");
        write("cpu/free/cpu.cfs_period_us", "100000\n");
        let cpus = |own: &str| cgroup_cpus(&Groups::at(root.path(), own));
        assert_eq!(cpus("0::/a/b\n"), Some(2));
        assert_eq!(cpus("0::/tiny\n"), Some(1));
        assert_eq!(cpus("4:cpu,cpuacct:/old\n3:memory:/old\n"), Some(3));
        assert_eq!(cpus("4:cpu,cpuacct:/free\n"), None);
        assert_eq!(cpus("0::/nowhere\n"), None);
    }
}
