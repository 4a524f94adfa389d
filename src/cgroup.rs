//! Control groups of Linux: where the limits of this process stand.

use std::path::{Path, PathBuf};

/// Version of the interface that a folder speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy per controller.
    V1,
    /// One for all.
    V2,
}

/// The hierarchy of control groups and the place of a process in it.
#[derive(Debug, Clone)]
pub struct Groups {
    root: PathBuf,
    /// Lines `number:controllers:path`.
    own: String,
}

impl Groups {
    /// Those of this process; none where there are no control groups.
    pub fn of_this_process() -> Self {
        Self {
            root: PathBuf::from("/sys/fs/cgroup"),
            own: std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
        }
    }

    /// A hierarchy at `root`, for a process whose `/proc/self/cgroup` says `own`.
    pub fn at(root: &Path, own: &str) -> Self {
        Self {
            root: root.to_owned(),
            own: own.to_owned(),
        }
    }

    /// The folders of `controller` from this process's own group up to the root: every one of them may hold a limit.
    pub fn folders(&self, controller: &str) -> Vec<(Version, PathBuf)> {
        let mut folders = Vec::new();
        for line in self.own.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next().unwrap_or("");
            let path = fields.next().unwrap_or("/");
            let (version, base) = if controllers.is_empty() {
                (Version::V2, self.root.clone())
            } else if controllers.split(',').any(|name| name == controller) {
                (Version::V1, self.root.join(controller))
            } else {
                continue;
            };
            let mut folder: PathBuf = base.components().collect();
            folder.extend(Path::new(path.trim_start_matches('/')).components());
            loop {
                folders.push((version, folder.clone()));
                if folder == base || !folder.pop() {
                    break;
                }
            }
        }
        folders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_the_root_is_listed_for_the_controller_that_was_asked_for() {
        let root = Path::new("/cg");
        let folders = |own: &str| {
            let groups = Groups::at(root, own);
            groups
                .folders("memory")
                .into_iter()
                .map(|(version, folder)| (version, folder.display().to_string()))
                .collect::<Vec<_>>()
        };
        let v2 = |path: &str| (Version::V2, path.to_owned());
        let v1 = |path: &str| (Version::V1, path.to_owned());
        assert_eq!(
            folders("0::/a/b\n"),
            [v2("/cg/a/b"), v2("/cg/a"), v2("/cg")]
        );
        assert_eq!(
            folders("4:cpu,cpuacct:/x\n3:memory:/old\n"),
            [v1("/cg/memory/old"), v1("/cg/memory")]
        );
        assert_eq!(folders("0::/\n"), [v2("/cg")]);
        assert_eq!(folders(""), []);
    }
}
