//! Which figures there are, and where they come from.

use std::time::Duration;

use quotient::{Group, Histogram, Nanos, Scheduler};

use crate::labels_of;
use crate::text::{Page, escaped, integer, seconds};

/// What a family's samples are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// Only grows while its group lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, sum and count.
    Histogram,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A name, and what is meant by it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Family {
    /// Of every sample, but for the endings of a histogram's.
    pub name: &'static str,
    /// What its samples are.
    pub kind: Kind,
    /// One line.
    pub help: &'static str,
}

macro_rules! families {
    ($($id:ident $kind:ident $name:literal $help:literal)*) => {
        #[allow(clippy::upper_case_acronyms, non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum Id { $($id),* }

        /// Every family, in the order of the text.
        pub const FAMILIES: &[Family] = &[$(Family { name: $name, kind: Kind::$kind, help: $help }),*];
    };
}

families! {
    Usage Counter "container_cpu_usage_seconds_total" "CPU time of the group and its descendants."
    Periods Counter "container_cpu_cfs_periods_total" "Periods of the limit in which the group was active."
    ThrottledPeriods Counter "container_cpu_cfs_throttled_periods_total" "Periods in which the limit throttled the group."
    Throttled Counter "container_cpu_cfs_throttled_seconds_total" "Time for which the group was throttled, summed over virtual CPUs."
    Quota Gauge "container_spec_cpu_quota" "Quota of the limit in microseconds; groups without limit have none."
    Period Gauge "container_spec_cpu_period" "Period of the limit in microseconds."
    Shares Gauge "container_spec_cpu_shares" "Weight of the group in shares: 1024 for weight 100."
    Tasks Gauge "quotient_tasks" "Live tasks of the group itself."
    Polls Counter "quotient_polls_total" "Polls of the group's own tasks."
    Wall Counter "quotient_poll_seconds_total" "Wall time of those polls."
    Steal Counter "quotient_steal_seconds_total" "Wall time of those polls in which the host ran something else."
    Escaped Counter "quotient_escaped_spawns_total" "Tasks that left the groups by tokio::spawn (an estimate)."
    LongestPoll Gauge "quotient_longest_poll_seconds" "The longest poll since the group was made."
    Bursts Counter "quotient_burst_periods_total" "Periods in which more than the quota was used, thanks to burst."
    Burst Counter "quotient_burst_seconds_total" "What was used beyond the quota in them."
    Overage Counter "quotient_overage_seconds_total" "CPU time beyond a soft limit."
    Losses Counter "quotient_losses_total" "What was refused or dropped, by kind."
    RunDelay Histogram "quotient_run_delay_seconds" "Time from being woken to being polled."
    PollDuration Histogram "quotient_poll_duration_seconds" "Wall time of a poll."
    Vcpus Gauge "quotient_vcpus" "Virtual CPUs of the scheduler."
    Foreign Gauge "quotient_foreign_tasks" "Tasks of the tokio runtime outside the groups."
    Detached Counter "quotient_preempt_detached_total" "Polls that were preempted."
    Refused Counter "quotient_preempt_refused_total" "Polls that should have been preempted and ran on."
    Pauses Counter "quotient_preempt_pauses_total" "Times that a long poll was stopped."
    Rescues Counter "quotient_preempt_rescues_total" "Short turns of all stopped polls, because a virtual CPU did not get on."
    Borne Gauge "quotient_preempt_borne" "Long polls now."
}

/// Upper bounds of the buckets that are written: every second power of two of those that are kept: its exponent, in ns, and seconds.
const BOUNDS: [(u32, &str); 11] = [
    (12, "0.000004096"),
    (14, "0.000016384"),
    (16, "0.000065536"),
    (18, "0.000262144"),
    (20, "0.001048576"),
    (22, "0.004194304"),
    (24, "0.016777216"),
    (26, "0.067108864"),
    (28, "0.268435456"),
    (30, "1.073741824"),
    (32, "4.294967296"),
];

/// The samples of one group.
pub(crate) fn add_group(page: &mut Page, group: &Group, histograms: bool) {
    let labels = labels_of(group);
    let labels = labels.as_str();
    let stats = group.stats();
    page.seconds(Id::Usage as usize, labels, stats.cpu);
    let micros = |time: Nanos| time.as_nanos() / 1_000;
    if let Some(limit) = group.max() {
        page.integer(Id::Quota as usize, labels, micros(limit.quota));
        page.integer(Id::Period as usize, labels, micros(limit.period));
    }
    let bandwidth = &stats.bandwidth;
    if group.max().is_some() || bandwidth.nr_periods > 0 {
        page.integer(Id::Periods as usize, labels, bandwidth.nr_periods);
        page.integer(
            Id::ThrottledPeriods as usize,
            labels,
            bandwidth.nr_throttled,
        );
        page.seconds(Id::Throttled as usize, labels, bandwidth.throttled);
        page.integer(Id::Bursts as usize, labels, bandwidth.nr_bursts);
        page.seconds(Id::Burst as usize, labels, bandwidth.burst);
        page.seconds(Id::Overage as usize, labels, bandwidth.overage);
    }
    let shares = (u64::from(group.weight()) * 1_024 + 50) / 100;
    page.integer(Id::Shares as usize, labels, shares);
    page.integer(Id::Tasks as usize, labels, stats.tasks as u64);
    page.integer(Id::Polls as usize, labels, stats.polls);
    page.seconds(Id::Wall as usize, labels, stats.wall);
    page.seconds(Id::Steal as usize, labels, stats.steal);
    page.integer(Id::Escaped as usize, labels, stats.escaped_spawns);
    if let Some(longest) = &stats.longest_poll {
        page.seconds(Id::LongestPoll as usize, labels, longest.duration);
    }
    let losses = &stats.losses;
    for (kind, count) in [
        ("refused_tasks", losses.refused_tasks),
        ("killed_tasks", losses.killed_tasks),
        ("dropped_tasks", losses.dropped_tasks),
        ("refused_requests", losses.refused_requests),
        ("cut_bodies", losses.cut_bodies),
        ("refused_connections", losses.refused_connections),
        ("unplaced_requests", losses.unplaced_requests),
    ] {
        if count > 0 {
            let mut labels = labels.to_owned();
            labels.push_str(",kind=\"");
            escaped(kind, &mut labels);
            labels.push('"');
            page.integer(Id::Losses as usize, &labels, count);
        }
    }
    if histograms {
        add_histogram(page, Id::RunDelay as usize, labels, &stats.run_delay);
        add_histogram(
            page,
            Id::PollDuration as usize,
            labels,
            &stats.poll_duration,
        );
    }
}

/// The figures of the scheduler as a whole.
pub(crate) fn add_scheduler(page: &mut Page, scheduler: &Scheduler) {
    page.integer(Id::Vcpus as usize, "", scheduler.vcpus() as u64);
    page.integer(Id::Foreign as usize, "", scheduler.foreign_tasks() as u64);
    if let Some(preempt) = scheduler.preempt_stats() {
        page.integer(Id::Detached as usize, "", preempt.detached);
        page.integer(Id::Refused as usize, "", preempt.refused);
        page.integer(Id::Pauses as usize, "", preempt.pauses);
        page.integer(Id::Rescues as usize, "", preempt.rescues);
        page.integer(Id::Borne as usize, "", preempt.borne as u64);
    }
}

/// Nothing for one without values.
fn add_histogram(page: &mut Page, family: usize, labels: &str, histogram: &Histogram) {
    let mut bounds = BOUNDS.iter().peekable();
    let mut count = 0_u64;
    let total = histogram.count();
    if total == 0 {
        return;
    }
    for (upper, more) in histogram.buckets() {
        count = count.wrapping_add(more);
        let bound = bounds.next_if(|(power, _)| upper == Duration::from_nanos(1 << power));
        if let Some((_, le)) = bound {
            let line = page.part(family, "_bucket", labels, Some(le));
            integer(line, count);
            line.push('\n');
        }
    }
    let line = page.part(family, "_bucket", labels, Some("+Inf"));
    integer(line, total);
    line.push('\n');
    let line = page.part(family, "_sum", labels, None);
    seconds(line, histogram.sum());
    line.push('\n');
    let line = page.part(family, "_count", labels, None);
    integer(line, total);
    line.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_say_what_they_are() {
        for (power, text) in BOUNDS {
            let mut written = String::new();
            seconds(&mut written, Duration::from_nanos(1 << power));
            assert_eq!(written, text);
        }
    }
}
