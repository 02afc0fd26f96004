//! Which figures there are, and where they come from.

use std::time::Duration;

use quotient::{Group, Histogram, Nanos, Scheduler};

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
    ForeignUsage Counter "quotient_foreign_cpu_seconds_total" "The part of it that was spent outside the virtual CPUs."
    Waiting Counter "container_pressure_cpu_waiting_seconds_total" "Time for which a task of the group or below it waited for a processor."
    Stalled Counter "container_pressure_cpu_stalled_seconds_total" "Time for which one waited and none ran."
    Pressure Gauge "quotient_pressure_cpu_ratio" "Share of the time in which some waited, or all (full), by averages over so many seconds."
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

/// Takes samples, one after the other. What is said of one group comes together, after its [`Sink::group`].
pub trait Sink {
    /// What follows is of the group at `path`; before the first such call and after [`Sink::scheduler`] of the scheduler as a whole.
    fn group(&mut self, path: &str);

    /// What follows is of the scheduler as a whole.
    fn scheduler(&mut self);

    /// A whole number, with labels beside the group's. `family` is an index of [`FAMILIES`].
    fn integer(&mut self, family: usize, labels: &[(&'static str, &'static str)], value: u64);

    /// A time, or a share of one.
    fn seconds(&mut self, family: usize, labels: &[(&'static str, &'static str)], value: Duration);

    /// The values of a histogram.
    fn histogram(&mut self, family: usize, histogram: &Histogram);
}

/// Which figures are asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) histograms: bool,
    pub(crate) pressure: bool,
}

/// Upper bounds of the buckets that are written: every second power of two of those that are kept: its exponent, in ns, and seconds.
pub(crate) const BOUNDS: [(u32, &str); 11] = [
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

/// Whether somebody has set the figure: it stays as it is, and needs no room to grow.
pub(crate) fn is_setting(family: usize) -> bool {
    [Id::Quota, Id::Period, Id::Shares, Id::Vcpus]
        .iter()
        .any(|id| *id as usize == family)
}

/// The samples of one group.
pub(crate) fn add_group(sink: &mut impl Sink, group: &Group, wanted: Wanted) {
    let stats = group.stats();
    sink.group(group.path());
    sink.seconds(Id::Usage as usize, &[], stats.cpu);
    if !stats.foreign_cpu.is_zero() {
        sink.seconds(Id::ForeignUsage as usize, &[], stats.foreign_cpu);
    }
    if wanted.pressure {
        add_pressure(sink, group);
    }
    let micros = |time: Nanos| time.as_nanos() / 1_000;
    let limit = group.max();
    if let Some(limit) = limit {
        sink.integer(Id::Quota as usize, &[], micros(limit.quota));
        sink.integer(Id::Period as usize, &[], micros(limit.period));
    }
    let bandwidth = &stats.bandwidth;
    if limit.is_some() || bandwidth.nr_periods > 0 {
        sink.integer(Id::Periods as usize, &[], bandwidth.nr_periods);
        sink.integer(Id::ThrottledPeriods as usize, &[], bandwidth.nr_throttled);
        sink.seconds(Id::Throttled as usize, &[], bandwidth.throttled);
        sink.integer(Id::Bursts as usize, &[], bandwidth.nr_bursts);
        sink.seconds(Id::Burst as usize, &[], bandwidth.burst);
        sink.seconds(Id::Overage as usize, &[], bandwidth.overage);
    }
    let shares = (u64::from(group.weight()) * 1_024 + 50) / 100;
    sink.integer(Id::Shares as usize, &[], shares);
    sink.integer(Id::Tasks as usize, &[], stats.tasks as u64);
    sink.integer(Id::Polls as usize, &[], stats.polls);
    sink.seconds(Id::Wall as usize, &[], stats.wall);
    sink.seconds(Id::Steal as usize, &[], stats.steal);
    sink.integer(Id::Escaped as usize, &[], stats.escaped_spawns);
    if let Some(longest) = &stats.longest_poll {
        sink.seconds(Id::LongestPoll as usize, &[], longest.duration);
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
            sink.integer(Id::Losses as usize, &[("kind", kind)], count);
        }
    }
    if wanted.histograms {
        sink.histogram(Id::RunDelay as usize, &stats.run_delay);
        sink.histogram(Id::PollDuration as usize, &stats.poll_duration);
    }
}

/// What PSI says of a control group.
fn add_pressure(sink: &mut impl Sink, group: &Group) {
    let pressure = group.pressure();
    sink.seconds(Id::Waiting as usize, &[], pressure.some.total);
    sink.seconds(Id::Stalled as usize, &[], pressure.full.total);
    for (kind, line) in [("some", pressure.some), ("full", pressure.full)] {
        for (window, hundredths) in [("10", line.avg10), ("60", line.avg60), ("300", line.avg300)] {
            // Hundredths of a per cent: a share with four decimals.
            let share = Duration::from_micros(u64::from(hundredths) * 100);
            let labels = [("kind", kind), ("window", window)];
            sink.seconds(Id::Pressure as usize, &labels, share);
        }
    }
}

/// The figures of the scheduler as a whole.
pub(crate) fn add_scheduler(sink: &mut impl Sink, scheduler: &Scheduler) {
    sink.scheduler();
    sink.integer(Id::Vcpus as usize, &[], scheduler.vcpus() as u64);
    sink.integer(Id::Foreign as usize, &[], scheduler.foreign_tasks() as u64);
    if let Some(preempt) = scheduler.preempt_stats() {
        sink.integer(Id::Detached as usize, &[], preempt.detached);
        sink.integer(Id::Refused as usize, &[], preempt.refused);
        sink.integer(Id::Pauses as usize, &[], preempt.pauses);
        sink.integer(Id::Rescues as usize, &[], preempt.rescues);
        sink.integer(Id::Borne as usize, &[], preempt.borne as u64);
    }
}
