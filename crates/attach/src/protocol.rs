//! What is said over the socket.

use quotient::Group;
use serde::{Deserialize, Serialize};

/// The version of the protocol; a client of another does not go on.
pub const VERSION: u32 = 1;
/// Longest request. Unit: bytes, the end of the line included. Default 8 KiB: twice the longest path of a group.
pub const REQUEST_BYTES_MAX: usize = 8 * 1_024;
/// Most groups of a snapshot; the rest is counted. Unit: groups. Default 10,000, some 5 MB.
pub const GROUPS_MAX: usize = 10_000;
/// Longest trace. Unit: milliseconds. Default: a minute.
pub const TRACE_MILLIS_MAX: u64 = 60_000;

/// Most upper bounds of run delays that a client looks at. Default 256: a histogram of powers of two has at most 64.
const BOUNDS_MAX: usize = 256;

/// The server's first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hello {
    /// [`VERSION`] of the server.
    pub quotient: u32,
    /// Its process.
    pub pid: u32,
    /// Virtual CPUs of its scheduler.
    pub vcpus: usize,
    /// Whether changes are allowed.
    pub changes: bool,
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Request {
    /// The figures of all groups: a [`Snapshot`].
    Groups {},
    /// A group's weight or limit.
    Set(Change),
    /// Records events for so long, 1 to [`TRACE_MILLIS_MAX`], and sends them; one trace at a time.
    Trace {
        /// Unit: milliseconds.
        millis: u64,
    },
}

/// A change of one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Its path.
    pub group: String,
    /// The new weight, if it is to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The new limit as [`quotient::Max`] reads texts, if it is to change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<String>,
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// To [`Request::Groups`].
    Groups(Snapshot),
    /// The change is in force.
    Done {},
    /// Events follow, until the connection ends.
    Trace {},
    /// Why not; nothing has changed.
    Error(String),
}

/// All groups at about one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Snapshot {
    /// Time since the socket was opened. Unit: nanoseconds.
    pub at_ns: u64,
    /// Tasks of the tokio runtime outside the groups.
    pub foreign_tasks: u64,
    /// The groups, the root first.
    pub groups: Vec<GroupFigures>,
    /// Groups that were left out, beyond [`GROUPS_MAX`].
    pub more: u64,
}

/// One group. Counters count from its beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct GroupFigures {
    /// Empty for the root.
    pub path: String,
    /// The weight in force.
    pub weight: u32,
    /// The limit's quota, if there is one. Unit: microseconds.
    pub quota_us: Option<u64>,
    /// Its period. Unit: microseconds.
    pub period_us: Option<u64>,
    /// Whether it, or one above it, is frozen.
    pub frozen: bool,
    /// Live tasks of the group itself.
    pub tasks: u64,
    /// CPU time, descendants included. Unit: nanoseconds.
    pub cpu_ns: u64,
    /// Polls of its own tasks.
    pub polls: u64,
    /// Periods of the limit, and those in which it was throttled.
    pub periods: u64,
    /// See `periods`.
    pub throttled_periods: u64,
    /// Time for which it was throttled, summed over virtual CPUs. Unit: nanoseconds.
    pub throttled_ns: u64,
    /// How often its tasks waited less than so long, for each upper bound that occurred: (ns, times).
    pub run_delay: Vec<(u64, u64)>,
    /// The longest poll. Unit: nanoseconds.
    pub longest_poll_ns: u64,
    /// Where its task was spawned: `file:line:column`.
    pub longest_poll_at: Option<String>,
    /// What was refused or dropped.
    pub losses: u64,
}

impl GroupFigures {
    pub(crate) fn of(group: &Group) -> Self {
        let stats = group.stats();
        let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let limit = group.max();
        Self {
            path: group.path().to_owned(),
            weight: group.weight(),
            quota_us: limit.map(|limit| limit.quota.as_nanos() / 1_000),
            period_us: limit.map(|limit| limit.period.as_nanos() / 1_000),
            frozen: group.is_frozen(),
            tasks: stats.tasks as u64,
            cpu_ns: nanos(stats.cpu),
            polls: stats.polls,
            periods: stats.bandwidth.nr_periods,
            throttled_periods: stats.bandwidth.nr_throttled,
            throttled_ns: nanos(stats.bandwidth.throttled),
            run_delay: stats
                .run_delay
                .buckets()
                .filter(|(_, count)| *count > 0)
                .map(|(upper, count)| (nanos(upper), count))
                .collect(),
            longest_poll_ns: stats.longest_poll.map_or(0, |poll| nanos(poll.duration)),
            longest_poll_at: stats.longest_poll.map(|poll| poll.location.to_string()),
            losses: stats.losses.counts().into_iter().fold(0, u64::wrapping_add),
        }
    }

    /// The 99th percentile of the run delays since `before`, exact to a factor of two. Unit: nanoseconds.
    pub fn run_delay_p99_ns(&self, before: Option<&Self>) -> Option<u64> {
        let earlier = |bound: u64| {
            let known = before
                .into_iter()
                .flat_map(|before| before.run_delay.iter().take(BOUNDS_MAX));
            known
                .filter(|(upper, _)| *upper == bound)
                .fold(0_u64, |sum, (_, count)| sum.saturating_add(*count))
        };
        let counts = self
            .run_delay
            .iter()
            .take(BOUNDS_MAX)
            .map(|(upper, count)| (*upper, count.saturating_sub(earlier(*upper))));
        let counts: Vec<(u64, u64)> = counts.collect();
        let total = counts
            .iter()
            .fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
        let rank = total.saturating_sub(total / 100).max(1);
        let mut seen = 0_u64;
        for (upper, count) in counts {
            seen = seen.saturating_add(count);
            if count > 0 && seen >= rank {
                return Some(upper);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_percentile_is_of_what_came_since() {
        let before = GroupFigures {
            run_delay: vec![(8, 1_000), (16, 5)],
            ..Default::default()
        };
        let after = GroupFigures {
            run_delay: vec![(8, 1_099), (16, 5), (1_024, 1)],
            ..Default::default()
        };
        assert_eq!(after.run_delay_p99_ns(Some(&before)), Some(8));
        let later = GroupFigures {
            run_delay: vec![(8, 1_000), (16, 5), (1_024, 1)],
            ..Default::default()
        };
        assert_eq!(later.run_delay_p99_ns(Some(&before)), Some(1_024));
        assert_eq!(before.run_delay_p99_ns(Some(&before)), None);
    }

    /// Whoever answers may send anything: neither a sum that overflows nor work that grows with the square of what came.
    #[test]
    fn run_delays_of_a_hostile_answer_are_bounded() {
        let hostile = GroupFigures {
            run_delay: vec![(8, u64::MAX); 1_000_000],
            ..Default::default()
        };
        assert_eq!(hostile.run_delay_p99_ns(None), Some(8));
        assert_eq!(hostile.run_delay_p99_ns(Some(&hostile)), None);
    }
}
