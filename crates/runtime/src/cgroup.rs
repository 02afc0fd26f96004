//! What the control groups that the process is in let it use: the quota of a container, a pod or a service.
//!
//! A process is in one path of the unified hierarchy (`0::/path` in `/proc/self/cgroup`), or of the `cpu` controller's own one (version 1).
//! Every group on that path may have a limit; the least one counts. In a container the path may be that of the host and not
//! be there: then the root of what is mounted is the container's own group.

use std::path::{Path, PathBuf};

/// Most levels that are looked at. A bound on what a strange mount can cost.
const LEVELS_MAX: usize = 64;

/// How many CPUs the control groups of this process let it use: 1.5 for a quota of 150 ms in 100 ms. `None` without such a limit, and
/// off Linux. Reads a few small files; the limit may change at any time.
pub fn cgroup_quota() -> Option<f64> {
    let membership = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    quota_below(Path::new("/sys/fs/cgroup"), &membership)
}

/// The least limit on the way from the mounted root to the process's group.
fn quota_below(root: &Path, membership: &str) -> Option<f64> {
    let mut least: Option<f64> = None;
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let unified = number == "0" && controllers.is_empty();
        let folder = if unified {
            root.to_owned()
        } else if controllers.split(',').any(|name| name == "cpu") {
            // Mounted under its own name, and often under the whole list.
            let by_list = root.join(controllers);
            if by_list.is_dir() {
                by_list
            } else {
                root.join("cpu")
            }
        } else {
            continue;
        };
        for group in way(&folder, path) {
            let limit = if unified {
                unified_limit(&group)
            } else {
                old_limit(&group)
            };
            if let Some(limit) = limit {
                least = Some(least.map_or(limit, |least| least.min(limit)));
            }
        }
    }
    least
}

/// The group's folder, and those above it down from `root`. Names that lead elsewhere are left out.
fn way(root: &Path, path: &str) -> Vec<PathBuf> {
    let mut folder = root.to_owned();
    let mut folders = vec![folder.clone()];
    let names = path.split('/').filter(|name| !name.is_empty());
    for name in names.take(LEVELS_MAX) {
        if name == ".." {
            break;
        }
        folder.push(name);
        folders.push(folder.clone());
    }
    folders
}

/// `cpu.max`: quota or `max`, and period.
fn unified_limit(group: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(group.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    cpus(words.next()?.parse().ok()?, words.next()?.parse().ok()?)
}

/// `cpu.cfs_quota_us`, -1 for none, and `cpu.cfs_period_us`.
fn old_limit(group: &Path) -> Option<f64> {
    let read = |name| {
        std::fs::read_to_string(group.join(name))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    cpus(read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
}

fn cpus(quota: i64, period: i64) -> Option<f64> {
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

/// How many virtual CPUs use a quota up: rounded up, since one more is throttled seldom and one less never uses all.
pub(crate) fn vcpus_of(quota: f64) -> usize {
    // What is beyond the range is cut to it, and not a number is 0.
    (quota.ceil() as usize).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("quotient-cgroup-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn put(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_limit_of_a_group_above_is_overlooked() {
        let folder = Folder::new("unified");
        folder.put("kubepods/pod1/cpu.max", "150000 100000\n");
        folder.put("kubepods/pod1/container/cpu.max", "max 100000\n");
        folder.put("kubepods/cpu.max", "800000 100000\n");
        let quota = |path: &str| quota_below(&folder.0, &format!("0::{path}\n"));
        assert_eq!(quota("/kubepods/pod1/container"), Some(1.5));
        assert_eq!(quota("/kubepods"), Some(8.0));
        assert_eq!(quota("/"), None);
        // Inside a container the path is the host's, and the root that is mounted is the container's.
        folder.put("cpu.max", "50000 100000\n");
        assert_eq!(quota("/not/here"), Some(0.5));
        assert_eq!(quota("/../../other"), Some(0.5));
        assert_eq!((vcpus_of(1.5), vcpus_of(0.5), vcpus_of(8.0)), (2, 1, 8));
    }

    #[test]
    fn the_old_hierarchy_and_nonsense_are_read() {
        let folder = Folder::new("old");
        folder.put("cpu,cpuacct/docker/cpu.cfs_quota_us", "250000\n");
        folder.put("cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
        folder.put("cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        folder.put("cpu,cpuacct/cpu.cfs_period_us", "100000\n");
        let membership = "12:memory:/docker\n4:cpu,cpuacct:/docker\n";
        assert_eq!(quota_below(&folder.0, membership), Some(2.5));
        assert_eq!(quota_below(&folder.0, ""), None);
        assert_eq!(quota_below(&folder.0, "nonsense\n:::\n0::\n"), None);
        folder.put("cpu.max", "0 0\n");
        assert_eq!(quota_below(&folder.0, "0::/\n"), None);
    }
}
