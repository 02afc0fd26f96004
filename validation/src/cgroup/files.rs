//! What the two versions call things: mounts, control files, their units.

use std::path::PathBuf;
use std::time::Duration;

use crate::scenario::Cap;

/// Which interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// `cpu.cfs_quota_us`, one hierarchy a controller.
    V1,
    /// `cpu.max`, one hierarchy for all.
    V2,
}

/// Where the version 1 cpu controller is mounted.
pub(super) fn v1_mount(mounts: &str) -> Option<PathBuf> {
    fields(mounts)
        .find(|(_, kind, options)| {
            *kind == "cgroup" && options.split(',').any(|name| name == "cpu")
        })
        .map(|(path, _, _)| path.into())
}

/// Where version 2 is mounted.
pub(super) fn v2_mount(mounts: &str) -> Option<PathBuf> {
    fields(mounts)
        .find(|(_, kind, _)| *kind == "cgroup2")
        .map(|(path, _, _)| path.into())
}

/// Path, type and options of every mount.
fn fields(mounts: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    mounts.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        Some((words.next()?, words.next()?, words.next()?))
    })
}

/// The own path in the hierarchy of `controller`; version 2's has no name.
pub(super) fn own_path<'a>(own: &'a str, controller: &str) -> Option<&'a str> {
    own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        names
            .split(',')
            .any(|name| name == controller)
            .then_some(path)
    })
}

/// The file that takes threads.
pub(super) fn threads(version: Version) -> &'static str {
    match version {
        Version::V1 => "tasks",
        Version::V2 => "cgroup.threads",
    }
}

/// File and text that set a weight.
pub(super) fn weight(version: Version, weight: u32) -> (&'static str, String) {
    match version {
        // 100 stands for 1024 shares.
        Version::V1 => ("cpu.shares", (weight * 1024 / 100).to_string()),
        Version::V2 => ("cpu.weight", weight.to_string()),
    }
}

/// Files and texts that set a cap, in the order in which a group without one takes them.
pub(super) fn cap(version: Version, cap: Option<Cap>) -> Vec<(&'static str, String)> {
    match (version, cap) {
        (Version::V1, None) => vec![("cpu.cfs_quota_us", "-1".into())],
        (Version::V1, Some(cap)) => vec![
            ("cpu.cfs_period_us", cap.period.as_micros().to_string()),
            ("cpu.cfs_quota_us", cap.quota.as_micros().to_string()),
        ],
        (Version::V2, None) => vec![("cpu.max", "max".into())],
        (Version::V2, Some(cap)) => vec![(
            "cpu.max",
            format!("{} {}", cap.quota.as_micros(), cap.period.as_micros()),
        )],
    }
}

/// File and text that set a burst.
pub(super) fn burst(version: Version, burst: Duration) -> (&'static str, String) {
    let file = match version {
        Version::V1 => "cpu.cfs_burst_us",
        Version::V2 => "cpu.max.burst",
    };
    (file, burst.as_micros().to_string())
}

/// What `cpu.stat` says about a group's bandwidth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Periods that passed while the timer was active.
    pub nr_periods: u64,
    /// Periods in which something was throttled.
    pub nr_throttled: u64,
    /// Time for which something was throttled, summed over CPUs.
    pub throttled: Duration,
    /// Periods in which burst was used.
    pub nr_bursts: u64,
    /// CPU time taken above the quota.
    pub burst: Duration,
}

impl Counters {
    /// Reads `cpu.stat`; names that are not there count as zero.
    pub(super) fn parse(version: Version, text: &str) -> Self {
        let value = |wanted: &str| {
            text.lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(name, _)| *name == wanted)
                .and_then(|(_, value)| value.trim().parse::<u64>().ok())
                .unwrap_or(0)
        };
        let time = |v1: &str, v2: &str| match version {
            Version::V1 => Duration::from_nanos(value(v1)),
            Version::V2 => Duration::from_micros(value(v2)),
        };
        Self {
            nr_periods: value("nr_periods"),
            nr_throttled: value("nr_throttled"),
            throttled: time("throttled_time", "throttled_usec"),
            nr_bursts: value("nr_bursts"),
            burst: time("burst_time", "burst_usec"),
        }
    }

    /// What was added since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            nr_periods: self.nr_periods.saturating_sub(earlier.nr_periods),
            nr_throttled: self.nr_throttled.saturating_sub(earlier.nr_throttled),
            throttled: self.throttled.saturating_sub(earlier.throttled),
            nr_bursts: self.nr_bursts.saturating_sub(earlier.nr_bursts),
            burst: self.burst.saturating_sub(earlier.burst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
        cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
        cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";

    #[test]
    fn mounts_are_told_apart() {
        assert_eq!(v1_mount(MOUNTS), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(v2_mount(MOUNTS), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(v1_mount("cgroup /c cgroup rw,cpuset 0 0\n"), None);
    }

    #[test]
    fn the_own_path_is_that_of_the_controller() {
        let own = "3:cpuset:/a\n2:cpu,cpuacct:/b:c\n0::/d\n";
        assert_eq!(own_path(own, "cpu"), Some("/b:c"));
        assert_eq!(own_path(own, ""), Some("/d"));
        assert_eq!(own_path(own, "memory"), None);
    }

    #[test]
    fn both_versions_word_a_cap() {
        let limit = Some(Cap::ms(20, 100));
        assert_eq!(
            cap(Version::V1, limit),
            [
                ("cpu.cfs_period_us", "100000".to_owned()),
                ("cpu.cfs_quota_us", "20000".to_owned())
            ]
        );
        assert_eq!(
            cap(Version::V2, limit),
            [("cpu.max", "20000 100000".to_owned())]
        );
        assert_eq!(weight(Version::V1, 300), ("cpu.shares", "3072".to_owned()));
    }

    #[test]
    fn counters_have_their_versions_units() {
        let v1 = "nr_periods 7\nnr_throttled 3\nthrottled_time 5000\nnr_bursts 1\nburst_time 9\n";
        let v2 = "usage_usec 1\nnr_periods 7\nnr_throttled 3\nthrottled_usec 5\n";
        let (one, two) = (
            Counters::parse(Version::V1, v1),
            Counters::parse(Version::V2, v2),
        );
        assert_eq!(one.throttled, two.throttled);
        assert_eq!((one.nr_periods, one.nr_bursts, two.nr_bursts), (7, 1, 0));
        assert_eq!(one.since(two).nr_throttled, 0);
    }
}
