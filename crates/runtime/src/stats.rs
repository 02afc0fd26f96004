//! What a group and a task have consumed; read at any time without stopping anybody.
//!
//! Every figure has one writer: the virtual CPU that runs the group. It owns one [`GroupCpu`] for each (group, virtual CPU),
//! made when the group first runs there, and stores relaxed atomics on lines of its own. (Polls that are taken off their virtual CPUs end on threads of their own, which write to one part of the group
//! in turns.) A reader sums them. At quiescence
//! the sums are exact; while tasks run they lag by at most the polls in progress.

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use quotient_core::{Limit, Nanos};
use quotient_pause::in_one_step;

use crate::gates;
use crate::histogram::{AtomicHistogram, Histogram};
use crate::loss::Losses;
use crate::per_vcpu::PerVcpu;
use crate::task::Id;

/// The longest poll seen and where its task was spawned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LongPoll {
    /// How long the poll took, wall time.
    pub duration: Duration,
    /// Where the task was spawned.
    pub location: &'static Location<'static>,
}

/// Figures of one group; children are included in `cpu` alone, which is charged at every level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupStats {
    /// CPU time of the group and all its descendants, exact at quiescence.
    pub cpu: Duration,
    /// The part of `cpu` that was spent outside the virtual CPUs, descendants included: blocking functions, metered threads, futures
    /// that are `in_group` in tasks of `tokio::spawn`. Functions that take turns under preemption are charged by turn, and not in here.
    pub foreign_cpu: Duration,
    /// Wall time that polls of the group's own tasks took. Of one that was interrupted, from its beginning to its end, and what it stood meanwhile with it.
    pub wall: Duration,
    /// The part of `wall` in which the host ran something else on the worker's processor; not billed.
    pub steal: Duration,
    /// Polls of the group's own tasks.
    pub polls: u64,
    /// Time from being woken to being polled, of the group's own tasks; see [`crate::Scheduler::set_histograms`].
    pub run_delay: Histogram,
    /// Durations of polls of the group's own tasks, wall time; empty unless [`crate::Scheduler::set_poll_histograms`] is on.
    pub poll_duration: Histogram,
    /// The longest poll of the group's own tasks, one that has not returned and has lasted for 10 ms included.
    pub longest_poll: Option<LongPoll>,
    /// Live tasks of the group itself.
    pub tasks: usize,
    /// Tasks that left the groups through `tokio::spawn` during polls of this group: by how much the number of the host's live
    /// tasks grew across them. An estimate: short polls are not looked at, and what other threads spawned meanwhile counts too.
    pub escaped_spawns: u64,
    /// What was refused to the group or dropped from it.
    pub losses: Losses,
    /// The group's own limit, as [`crate::Group::max`].
    pub max: Option<Limit>,
    /// What the group's own limit did; all zero if it never had one.
    pub bandwidth: BandwidthStats,
}

/// What a limit did to its group: the figures of cgroup v2's `cpu.stat`, and what they leave out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BandwidthStats {
    /// Periods in which the group was active.
    pub nr_periods: u64,
    /// Those periods in which the group was throttled on some virtual CPU.
    pub nr_throttled: u64,
    /// Time for which the group was throttled, summed over virtual CPUs; counted when each throttle ends.
    pub throttled: Duration,
    /// Lengths of the throttles.
    pub throttle_length: Histogram,
    /// The most throttled periods in a row.
    pub longest_throttled_run: u64,
    /// Periods in which more than the quota was used, thanks to burst.
    pub nr_bursts: u64,
    /// CPU time used beyond the quota in those periods.
    pub burst: Duration,
    /// CPU time beyond a soft limit.
    pub overage: Duration,
}

impl From<quotient_core::BandwidthStats> for BandwidthStats {
    fn from(stats: quotient_core::BandwidthStats) -> Self {
        let duration = |time: Nanos| Duration::from_nanos(time.as_nanos());
        Self {
            nr_periods: stats.nr_periods,
            nr_throttled: stats.nr_throttled,
            throttled: duration(stats.throttled_time),
            throttle_length: Histogram::from_microseconds(
                &stats.throttle_lengths,
                stats.throttled_time,
            ),
            longest_throttled_run: stats.longest_throttled_run,
            nr_bursts: stats.nr_bursts,
            burst: duration(stats.burst_time),
            overage: duration(stats.overage),
        }
    }
}

/// Figures of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskStats {
    /// The task's id, unique in the process.
    pub id: Id,
    /// What [`crate::task::Builder::name`] called it.
    pub name: Option<Arc<str>>,
    /// CPU time billed to the task.
    pub cpu: Duration,
    /// Number of polls.
    pub polls: u64,
    /// Sum of the times from being woken to being polled.
    pub run_delay: Duration,
    /// The part of that time in which the task's group, or one above, was throttled.
    pub throttled: Duration,
    /// The longest poll and where the task was spawned.
    pub longest_poll: LongPoll,
}

/// One group on one virtual CPU.
#[derive(Debug, Default)]
pub(crate) struct GroupCpu {
    wall: AtomicU64,
    steal: AtomicU64,
    polls: AtomicU64,
    escaped: AtomicU64,
    longest: AtomicU64,
    longest_at: Mutex<Option<&'static Location<'static>>>,
    run_delay: AtomicHistogram,
    /// Made when one is recorded first: few programs ask for it.
    poll_duration: OnceLock<Box<AtomicHistogram>>,
}

/// Adds to a counter that only this thread writes; wraps after 584 years of nanoseconds.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, amount: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(amount),
        Ordering::Relaxed,
    );
}

impl GroupCpu {
    /// One poll of `wall` after a wait of `delay`.
    #[inline(always)]
    pub(crate) fn record_poll(
        &self,
        wall: Nanos,
        delay: Nanos,
        location: &'static Location<'static>,
    ) {
        bump(&self.polls, 1);
        bump(&self.wall, wall.as_nanos());
        if gates::histograms() {
            self.run_delay.record(delay);
        }
        if gates::poll_histograms() {
            self.poll_duration.get_or_init(Box::default).record(wall);
        }
        if wall.as_nanos() > self.longest.load(Ordering::Relaxed) {
            self.record_longest(wall, location);
        }
    }

    #[cold]
    fn record_longest(&self, wall: Nanos, location: &'static Location<'static>) {
        self.longest.store(wall.as_nanos(), Ordering::Relaxed);
        *self
            .longest_at
            .lock()
            .unwrap_or_else(|poison| poison.into_inner()) = Some(location);
    }

    /// The part of a poll that was over when it handed over its virtual CPU; what follows is in no figure but the task's own.
    pub(crate) fn record_wall(&self, wall: Nanos) {
        bump(&self.polls, 1);
        bump(&self.wall, wall.as_nanos());
    }

    /// Wall time that the host gave to somebody else.
    pub(crate) fn record_steal(&self, steal: Nanos) {
        bump(&self.steal, steal.as_nanos());
    }

    /// Tasks that were seen to leave the groups.
    pub(crate) fn record_escapes(&self, count: u64) {
        bump(&self.escaped, count);
    }
}

/// Polls of a group that ended on threads without a virtual CPU.
#[derive(Debug, Default)]
struct Beside {
    /// Held by the thread that writes: any may.
    writer: Mutex<()>,
    figures: GroupCpu,
}

/// The figures of a group on the virtual CPUs that it has run on, and of what was taken off them.
#[derive(Debug)]
pub(crate) struct GroupCpus {
    on: PerVcpu<std::sync::Arc<GroupCpu>>,
    /// Made with the first.
    beside: OnceLock<Box<Beside>>,
}

impl GroupCpus {
    pub(crate) fn new(vcpus: usize) -> Self {
        Self {
            on: PerVcpu::new(vcpus),
            beside: OnceLock::new(),
        }
    }

    /// The figures of the group on one virtual CPU; made on first use.
    #[inline]
    pub(crate) fn on(&self, vcpu: usize) -> &std::sync::Arc<GroupCpu> {
        self.on.of(vcpu)
    }

    /// A poll that has lost its virtual CPU is over, on its own thread.
    #[cold]
    pub(crate) fn record_beside(
        &self,
        wall: Nanos,
        delay: Nanos,
        location: &'static Location<'static>,
    ) {
        in_one_step(|| {
            let beside = self.beside.get_or_init(Box::default);
            let writer = beside.writer.lock();
            let _writer = writer.unwrap_or_else(|poison| poison.into_inner());
            beside.figures.record_poll(wall, delay, location);
        });
    }

    fn all(&self) -> impl Iterator<Item = &GroupCpu> {
        let on = self.on.iter().map(|cpu| &**cpu);
        on.chain(self.beside.get().map(|beside| &beside.figures))
    }

    /// Sums what is counted, in place of what `stats` said.
    pub(crate) fn counters_into(&self, stats: &mut GroupStats) {
        let (mut wall, mut steal, mut polls, mut escaped) = (0_u64, 0_u64, 0_u64, 0_u64);
        for cpu in self.all() {
            for (sum, counter) in [
                (&mut wall, &cpu.wall),
                (&mut steal, &cpu.steal),
                (&mut polls, &cpu.polls),
                (&mut escaped, &cpu.escaped),
            ] {
                *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
            }
        }
        stats.wall = Duration::from_nanos(wall);
        stats.steal = Duration::from_nanos(steal);
        (stats.polls, stats.escaped_spawns) = (polls, escaped);
    }

    /// Looks for the longest poll, in place of what `stats` said.
    pub(crate) fn longest_into(&self, stats: &mut GroupStats) {
        let lengths = self.all().map(|cpu| {
            let length = cpu.longest.load(Ordering::Relaxed);
            (length, cpu)
        });
        let longest = lengths.max_by_key(|(length, _)| *length);
        stats.longest_poll = longest.and_then(|(length, cpu)| {
            let location = *cpu
                .longest_at
                .lock()
                .unwrap_or_else(|poison| poison.into_inner());
            let duration = Duration::from_nanos(length);
            location.map(|location| LongPoll { duration, location })
        });
    }

    /// Sums the histograms, in place of what `stats` said.
    pub(crate) fn histograms_into(&self, stats: &mut GroupStats) {
        stats.run_delay = Histogram::default();
        stats.poll_duration = Histogram::default();
        for cpu in self.all() {
            cpu.run_delay.add_to(&mut stats.run_delay);
            if let Some(durations) = cpu.poll_duration.get() {
                durations.add_to(&mut stats.poll_duration);
            }
        }
    }
}
