//! The CPU limit that a recording is made under: `advise` has to know, for what a limit cut off is not in the trace.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quotient_core::Nanos;
use quotient_trace::{NotedChange, NotedLimit, NotedThrottles};
use rustix::time::{ClockId, clock_gettime};

use super::members::Hierarchy;

/// A limit of a cgroup, in microseconds as the kernel says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) quota_us: u64,
    pub(super) period_us: u64,
    pub(super) burst_us: u64,
    /// Whose it is, as `/proc/PID/cgroup` names it.
    cgroup: String,
}

impl Limit {
    /// As the trace notes it, for `advise`.
    pub(super) fn noted(&self) -> NotedLimit {
        NotedLimit {
            quota: Nanos(self.quota_us.saturating_mul(1_000)),
            period: Nanos(self.period_us.saturating_mul(1_000)),
            burst: Nanos(self.burst_us.saturating_mul(1_000)),
            cgroup: self.cgroup.clone(),
        }
    }

    /// Counts its periods from now on; `None` if the kernel does not say.
    pub(super) fn count(&self, hierarchy: &Hierarchy) -> Option<Count> {
        let file = hierarchy.folder(&self.cgroup)?.join("cpu.stat");
        let before = counted(&fs::read_to_string(&file).ok()?)?;
        Some(Count { file, before })
    }

    /// CPUs, in millionths.
    fn ratio(&self) -> u64 {
        self.quota_us.saturating_mul(1_000_000) / self.period_us.max(1)
    }

    /// That of a cgroup's folder: `cpu.max` and `cpu.max.burst` of version 2, three files of version 1. Kernels before 5.14 have no bursts.
    fn of_folder(folder: &Path, cgroup: &str) -> Option<Limit> {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let (quota, period, burst) = match read("cpu.max") {
            Some(text) => {
                let (quota, period) = text.trim().split_once(' ')?;
                (quota.to_owned(), period.to_owned(), read("cpu.max.burst"))
            }
            None => (
                read("cpu.cfs_quota_us")?,
                read("cpu.cfs_period_us")?,
                read("cpu.cfs_burst_us"),
            ),
        };
        // `max`, and -1, are none.
        Some(Limit {
            quota_us: quota.trim().parse().ok()?,
            period_us: period.trim().parse().ok().filter(|period| *period > 0)?,
            burst_us: burst.and_then(|text| text.trim().parse().ok()).unwrap_or(0),
            cgroup: cgroup.to_owned(),
        })
    }
}

/// Between two looks whether a limit or a weight is another one. Default 1 s: `advise` needs to know that it was changed, not when to the millisecond.
pub(super) const LOOKS: Duration = Duration::from_secs(1);

/// Looks after a limit while it is recorded under.
pub(super) struct Watch {
    last: Option<Limit>,
    next: Instant,
    changes: Vec<NotedChange>,
}

impl Watch {
    /// From now on, with the limit as it is now.
    pub(super) fn new(limit: Option<Limit>, now: Instant) -> Watch {
        Watch {
            last: limit,
            next: now + LOOKS,
            changes: Vec::new(),
        }
    }

    /// Notes another limit, if it is time to look, or the last time.
    pub(super) fn look(
        &mut self,
        now: Instant,
        is_last: bool,
        limit: impl FnOnce() -> Option<Limit>,
    ) {
        if now < self.next && !is_last {
            return;
        }
        self.next = now + LOOKS;
        let limit = limit();
        if limit != self.last {
            self.changes.push(NotedChange {
                at: clock(),
                limit: limit.as_ref().map(Limit::noted),
            });
            self.last = limit;
        }
    }

    /// What was seen.
    pub(super) fn changes(&self) -> &[NotedChange] {
        &self.changes
    }
}

/// The clock of the events: `mono` in tracefs.
pub(super) fn clock() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Nanos(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// The kernel's count of a limit's periods, from a moment on.
#[derive(Clone, Debug)]
pub(super) struct Count {
    file: PathBuf,
    before: NotedThrottles,
}

impl Count {
    /// What was counted until now; `None` if the cgroup is gone, or was made anew.
    pub(super) fn so_far(&self) -> Option<NotedThrottles> {
        let now = counted(&fs::read_to_string(&self.file).ok()?)?;
        let periods = now.periods.checked_sub(self.before.periods)?;
        let throttled = now.throttled.checked_sub(self.before.throttled)?;
        // The two are not read at one moment of the limit's timer.
        let throttled = throttled.min(periods);
        Some(NotedThrottles { throttled, periods })
    }
}

/// What a `cpu.stat` of either version says.
fn counted(text: &str) -> Option<NotedThrottles> {
    let figure = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse().ok()
    };
    Some(NotedThrottles {
        throttled: figure("nr_throttled ")?,
        periods: figure("nr_periods ")?,
    })
}

impl Hierarchy {
    /// The tightest limit of a cgroup and those above it.
    pub(super) fn limit_of(&self, path: &str) -> Option<Limit> {
        let mut path = path.trim_matches('/');
        let mut tightest: Option<Limit> = None;
        loop {
            let limit = self
                .folder(path)
                .and_then(|folder| Limit::of_folder(&folder, path));
            if let Some(limit) = limit
                && tightest
                    .as_ref()
                    .is_none_or(|other| limit.ratio() < other.ratio())
            {
                tightest = Some(limit);
            }
            match path.rsplit_once('/') {
                Some((above, _)) => path = above,
                None if path.is_empty() => return tightest,
                None => path = "",
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn the_tightest_limit_above_counts_in_both_versions() {
        let root = std::env::temp_dir().join(format!("quotient-limit-{}", std::process::id()));
        let web = root.join("a/web");
        fs::create_dir_all(&web).unwrap();
        let hierarchy = Hierarchy::at(&root);
        assert_eq!(hierarchy.limit_of("/a/web"), None);
        let write = |file: &str, text: &str| fs::write(root.join(file), text).unwrap();
        write("a/web/cpu.max", "60000 100000\n");
        write("a/cpu.max", "max 100000\n");
        write("a/web/cpu.max.burst", "7000\n");
        let limit = hierarchy.limit_of("/a/web").expect("a limit");
        assert_eq!((limit.quota_us, limit.period_us), (60_000, 100_000));
        assert_eq!(limit.burst_us, 7_000);
        write("a/cpu.max", "10000 20000\n");
        let limit = hierarchy.limit_of("a/web").expect("a limit");
        assert_eq!((limit.quota_us, limit.cgroup.as_str()), (10_000, "a"));
        fs::remove_file(root.join("a/cpu.max")).unwrap();
        fs::remove_file(root.join("a/web/cpu.max")).unwrap();
        write("a/web/cpu.cfs_quota_us", "-1\n");
        write("a/web/cpu.cfs_period_us", "100000\n");
        assert_eq!(hierarchy.limit_of("a/web"), None);
        write("a/web/cpu.cfs_quota_us", "84000\n");
        write("a/web/cpu.cfs_burst_us", "0\n");
        let limit = hierarchy.limit_of("a/web").expect("a limit");
        assert_eq!(
            limit.noted().to_string(),
            "# recorded under the limit of /a/web: 84000 us in every 100000 us"
        );
        assert!(limit.count(&hierarchy).is_none());
        let stat = |periods: u64, throttled: u64| {
            let text =
                format!("nr_periods {periods}\nnr_throttled {throttled}\nthrottled_time 9\n");
            write("a/web/cpu.stat", &text);
        };
        stat(100, 40);
        let count = limit.count(&hierarchy).expect("a count");
        stat(160, 47);
        let counted = NotedThrottles {
            throttled: 7,
            periods: 60,
        };
        assert_eq!(count.so_far(), Some(counted));
        stat(10, 0);
        assert_eq!(count.so_far(), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_limit_that_is_changed_meanwhile_is_noted_with_its_time() {
        let limit = |quota_us| {
            Some(Limit {
                quota_us,
                period_us: 100_000,
                burst_us: 0,
                cgroup: "web".into(),
            })
        };
        let begin = Instant::now();
        let mut watch = Watch::new(limit(50_000), begin);
        let looks = Cell::new(0);
        let mut look = |millis: u64, is_last: bool, now: Option<Limit>| {
            watch.look(begin + Duration::from_millis(millis), is_last, || {
                looks.set(looks.get() + 1);
                now
            });
        };
        look(10, false, limit(60_000));
        assert_eq!(looks.get(), 0);
        look(1_010, false, limit(50_000));
        look(2_020, false, limit(60_000));
        look(2_030, false, None);
        look(2_040, true, None);
        assert_eq!(looks.get(), 3);
        let changes = watch.changes();
        let quotas: Vec<Option<u64>> = changes
            .iter()
            .map(|change| change.limit.as_ref().map(|limit| limit.quota.0))
            .collect();
        assert_eq!(quotas, [Some(60_000_000), None]);
        assert!(changes[0].at <= changes[1].at && changes[0].at > Nanos::ZERO);
    }
}
