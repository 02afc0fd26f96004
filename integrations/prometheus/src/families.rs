//! Which figures there are, and where they come from.

use std::time::Duration;

use quotient::{Group, GroupStats, Histogram, Losses, Nanos, Scheduler};

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
        pub(crate) enum Id { $($id),* }

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
    Unpaused Counter "quotient_preempt_unpaused_total" "Times that a long poll could not be stopped, so that no limit or freeze held inside it."
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

/// Labels of one series beside its group's.
type Labels = &'static [(&'static str, &'static str)];

/// Labels of a histogram's buckets; the last one has no bound.
const BUCKETS: [[(&str, &str); 1]; BOUNDS.len() + 1] = {
    let mut labels = [[("le", "+Inf")]; BOUNDS.len() + 1];
    let mut index = 0;
    while index < BOUNDS.len() {
        labels[index] = [("le", BOUNDS[index].1)];
        index += 1;
    }
    labels
};

/// Labels of what was lost, in the order in which it is visited.
const LOSSES: [[(&str, &str); 1]; Losses::KINDS.len()] = {
    let mut labels = [[("kind", "")]; Losses::KINDS.len()];
    let mut index = 0;
    while index < labels.len() {
        labels[index] = [("kind", Losses::KINDS[index])];
        index += 1;
    }
    labels
};

/// Labels of pressure, in the order in which it is visited.
const PRESSURES: [[(&str, &str); 2]; 6] = [
    [("kind", "some"), ("window", "10")],
    [("kind", "some"), ("window", "60")],
    [("kind", "some"), ("window", "300")],
    [("kind", "full"), ("window", "10")],
    [("kind", "full"), ("window", "60")],
    [("kind", "full"), ("window", "300")],
];

/// What a line of a group is: two bytes, so that a thousand groups' are compared in no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    family: u8,
    /// Which of the family's, 0 if there is one. Of a histogram: its buckets, sum and count.
    part: u8,
}

/// Parts of a histogram behind its buckets.
const SUM: usize = BUCKETS.len();
const COUNT: usize = BUCKETS.len() + 1;

impl Series {
    /// There are some thirty families, of 14 parts at most.
    const fn new(family: Id, part: usize) -> Self {
        Self {
            family: family as u8,
            part: part as u8,
        }
    }

    /// An index of [`FAMILIES`].
    pub(crate) fn family(self) -> usize {
        usize::from(self.family)
    }

    fn is_histogram(self) -> bool {
        FAMILIES[self.family()].kind == Kind::Histogram
    }

    /// What follows the family's name.
    pub(crate) fn suffix(self) -> &'static str {
        match usize::from(self.part) {
            _ if !self.is_histogram() => "",
            SUM => "_sum",
            COUNT => "_count",
            _ => "_bucket",
        }
    }

    pub(crate) fn labels(self) -> Labels {
        let (family, part) = (self.family(), usize::from(self.part));
        if self.is_histogram() {
            BUCKETS.get(part).map_or(&[], |labels| labels)
        } else if family == Id::Losses as usize {
            &LOSSES[part]
        } else if family == Id::Pressure as usize {
            &PRESSURES[part]
        } else {
            &[]
        }
    }

    /// Whether somebody has set the figure: it stays as it is, and needs no room to grow.
    pub(crate) fn is_setting(self) -> bool {
        [Id::Quota, Id::Period, Id::Shares, Id::Vcpus]
            .iter()
            .any(|id| *id as usize == self.family())
    }
}

/// As [`Sink`], line by line and for less: what is known beforehand is not handed over.
pub(crate) trait Lines {
    /// As [`Sink::group`].
    fn group(&mut self, path: &str);

    /// As [`Sink::scheduler`].
    fn scheduler(&mut self);

    /// A whole number.
    fn integer(&mut self, series: Series, value: u64);

    /// A time in nanoseconds, or a share of one.
    fn time(&mut self, series: Series, nanos: u64);

    /// The lines of a histogram; none of one without values.
    #[inline]
    fn histogram(&mut self, family: Id, histogram: &Histogram) {
        // The n-th bucket ends at the n-th power of two.
        let mut buckets = histogram.buckets().map(|(_, count)| count);
        let mut counts = [0_u64; BUCKETS.len()];
        let (mut count, mut seen) = (0_u64, 0);
        for (upto, (power, _)) in counts.iter_mut().zip(BOUNDS) {
            for _ in seen..=power {
                count = count.wrapping_add(buckets.next().unwrap_or(0));
            }
            (*upto, seen) = (count, power + 1);
        }
        let total = buckets.fold(count, u64::wrapping_add);
        counts[BOUNDS.len()] = total;
        if total == 0 {
            return;
        }
        for (part, count) in counts.into_iter().enumerate() {
            self.integer(Series::new(family, part), count);
        }
        self.time(Series::new(family, SUM), nanos(histogram.sum()));
        self.integer(Series::new(family, COUNT), total);
    }
}

/// Hands lines on to whoever asked for figures.
pub(crate) struct ToSink<'a, S>(pub(crate) &'a mut S);

impl<S: Sink> Lines for ToSink<'_, S> {
    fn group(&mut self, path: &str) {
        self.0.group(path);
    }

    fn scheduler(&mut self) {
        self.0.scheduler();
    }

    fn integer(&mut self, series: Series, value: u64) {
        self.0.integer(series.family(), series.labels(), value);
    }

    fn time(&mut self, series: Series, nanos: u64) {
        let time = Duration::from_nanos(nanos);
        self.0.seconds(series.family(), series.labels(), time);
    }

    fn histogram(&mut self, family: Id, histogram: &Histogram) {
        self.0.histogram(family as usize, histogram);
    }
}

/// 584 years at most.
fn nanos(time: Duration) -> u64 {
    let whole = time.as_secs().saturating_mul(1_000_000_000);
    whole.saturating_add(u64::from(time.subsec_nanos()))
}

/// The samples of one group, of which `stats` was read.
#[inline]
pub(crate) fn add_group(lines: &mut impl Lines, group: &Group, wanted: Wanted, stats: &GroupStats) {
    lines.group(group.path());
    let one = |family| Series::new(family, 0);
    lines.time(one(Id::Usage), nanos(stats.cpu));
    if !stats.foreign_cpu.is_zero() {
        lines.time(one(Id::ForeignUsage), nanos(stats.foreign_cpu));
    }
    if wanted.pressure {
        add_pressure(lines, group);
    }
    let micros = |time: Nanos| time.as_nanos() / 1_000;
    let limit = stats.max;
    if let Some(limit) = limit {
        lines.integer(one(Id::Quota), micros(limit.quota));
        lines.integer(one(Id::Period), micros(limit.period));
    }
    let bandwidth = &stats.bandwidth;
    if limit.is_some() || bandwidth.nr_periods > 0 {
        lines.integer(one(Id::Periods), bandwidth.nr_periods);
        lines.integer(one(Id::ThrottledPeriods), bandwidth.nr_throttled);
        lines.time(one(Id::Throttled), nanos(bandwidth.throttled));
        lines.integer(one(Id::Bursts), bandwidth.nr_bursts);
        lines.time(one(Id::Burst), nanos(bandwidth.burst));
        lines.time(one(Id::Overage), nanos(bandwidth.overage));
    }
    let shares = (u64::from(group.weight()) * 1_024 + 50) / 100;
    lines.integer(one(Id::Shares), shares);
    lines.integer(one(Id::Tasks), stats.tasks as u64);
    lines.integer(one(Id::Polls), stats.polls);
    lines.time(one(Id::Wall), nanos(stats.wall));
    lines.time(one(Id::Steal), nanos(stats.steal));
    lines.integer(one(Id::Escaped), stats.escaped_spawns);
    if let Some(longest) = &stats.longest_poll {
        lines.time(one(Id::LongestPoll), nanos(longest.duration));
    }
    for (part, count) in stats.losses.counts().into_iter().enumerate() {
        if count > 0 {
            lines.integer(Series::new(Id::Losses, part), count);
        }
    }
    if wanted.histograms {
        lines.histogram(Id::RunDelay, &stats.run_delay);
        lines.histogram(Id::PollDuration, &stats.poll_duration);
    }
}

/// What PSI says of a control group.
fn add_pressure(lines: &mut impl Lines, group: &Group) {
    let pressure = group.pressure();
    let (some, full) = (pressure.some, pressure.full);
    lines.time(Series::new(Id::Waiting, 0), nanos(some.total));
    lines.time(Series::new(Id::Stalled, 0), nanos(full.total));
    let averages = [
        some.avg10,
        some.avg60,
        some.avg300,
        full.avg10,
        full.avg60,
        full.avg300,
    ];
    for (part, hundredths) in averages.into_iter().enumerate() {
        // Hundredths of a per cent: a share with four decimals.
        let share = u64::from(hundredths) * 100_000;
        lines.time(Series::new(Id::Pressure, part), share);
    }
}

/// The figures of the scheduler as a whole.
pub(crate) fn add_scheduler(lines: &mut impl Lines, scheduler: &Scheduler) {
    lines.scheduler();
    let mut integer = |family, value| lines.integer(Series::new(family, 0), value);
    integer(Id::Vcpus, scheduler.vcpus() as u64);
    integer(Id::Foreign, scheduler.foreign_tasks() as u64);
    if let Some(preempt) = scheduler.preempt_stats() {
        integer(Id::Detached, preempt.detached);
        integer(Id::Refused, preempt.refused);
        integer(Id::Pauses, preempt.pauses);
        integer(Id::Unpaused, preempt.unpaused);
        integer(Id::Rescues, preempt.rescues);
        integer(Id::Borne, preempt.borne as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_say_what_they_are() {
        let buckets: Vec<Duration> = Histogram::default()
            .buckets()
            .map(|(upper, _)| upper)
            .collect();
        for (power, text) in BOUNDS {
            let bound = Duration::from_nanos(1 << power);
            assert_eq!(buckets[power as usize], bound);
            assert_eq!(
                format!("{}.{:09}", bound.as_secs(), bound.subsec_nanos()),
                text
            );
        }
    }
}
