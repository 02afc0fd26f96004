//! The averages of a task and of a queue.

use super::decay::{LOAD_AVG_MAX, Span, divisor};
use crate::units::Nanos;

/// The scale of `runnable` and `util`: one task that is always there.
const SCALE: u64 = 1024;

/// Averages as figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadAverages {
    /// Average of the runnable shares.
    pub load: u64,
    /// Average number of runnable tasks, times 1,024.
    pub runnable: u64,
    /// Average number of CPUs in use, times 1,024.
    pub util: u64,
}

/// What of a task's averages is kept while it sleeps; the time of the last update is when it fell asleep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskSums {
    runnable: u32,
    util: u32,
}

impl TaskSums {
    /// Of a task of which nothing is known.
    pub(crate) const NONE: TaskSums = TaskSums {
        runnable: 0,
        util: 0,
    };
}

/// The averages of one task: 16 bytes, so that they can travel with it.
///
/// Load and runnable differ by the factor of the shares alone, so one sum stands for both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskAverage {
    last: u64,
    /// At most `LOAD_AVG_MAX * SCALE`, which fits 26 bits.
    runnable: u32,
    util: u32,
}

impl TaskAverage {
    /// A task of which nothing is known, on a clock that shows `now`.
    pub const fn new(now: Nanos) -> TaskAverage {
        TaskAverage {
            last: now.0,
            runnable: 0,
            util: 0,
        }
    }

    /// The averages of a task that slept since `last`, when it kept `sums`.
    pub(crate) const fn restore(sums: TaskSums, last: Nanos) -> TaskAverage {
        TaskAverage {
            last: last.0,
            runnable: sums.runnable,
            util: sums.util,
        }
    }

    /// What is to be kept while the task sleeps.
    pub(crate) const fn sums(&self) -> TaskSums {
        TaskSums {
            runnable: self.runnable,
            util: self.util,
        }
    }

    /// The averages of a task of `shares`, as of the last update.
    pub fn figures(&self, shares: u32) -> LoadAverages {
        LoadAverages {
            load: self.load(shares),
            runnable: self.runnable(),
            util: self.util(),
        }
    }

    /// Accounts for the time since the last update, in which the task was `runnable` or not, and ran for `ran` of
    /// it. Running counts evenly over the interval; what was not runnable cannot have run. Less than a unit is left
    /// for the next update, which returns `false`. A clock that went back is followed, and the averages stay. O(1).
    #[inline]
    pub fn advance(&mut self, now: Nanos, runnable: bool, ran: Nanos) -> bool {
        let Some(span) = Span::between(self.last, now.0) else {
            if now.0 < self.last {
                self.rebase(now);
            }
            return false;
        };
        let interval = span.end - self.last.min(span.end);
        self.last = span.end;
        let level = if runnable { SCALE } else { 0 };
        let running = fraction(ran.0, interval).min(level);
        self.runnable = narrow(span.extend(u64::from(self.runnable), level));
        self.util = narrow(span.extend(u64::from(self.util), running));
        true
    }

    /// Moves the averages to a clock that shows `now`: the averages stay, the sums are what they are there.
    pub fn rebase(&mut self, now: Nanos) {
        let scale = |sum: u32| narrow(rescale(u64::from(sum), self.last, now.0));
        (self.runnable, self.util) = (scale(self.runnable), scale(self.util));
        self.last = now.0;
    }

    /// When the averages were last brought up to date, to the unit.
    pub const fn updated_at(&self) -> Nanos {
        Nanos(self.last)
    }

    /// Share of time in which the task was runnable, times `shares`.
    pub fn load(&self, shares: u32) -> u64 {
        u64::from(self.runnable) * u64::from(shares) / (divisor(self.last) * SCALE)
    }

    /// Share of time in which the task was runnable: 0..=1024.
    pub fn runnable(&self) -> u64 {
        capped(u64::from(self.runnable) / divisor(self.last))
    }

    /// Share of time in which the task ran: 0..=1024.
    pub fn util(&self) -> u64 {
        capped(u64::from(self.util) / divisor(self.last))
    }
}

/// What is in a queue, from one update to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueInput {
    /// Sum of the shares of the children that compete.
    pub load: u64,
    /// Runnable tasks, those of child groups included.
    pub runnable: u32,
    /// For how long tasks of the queue ran since the last update.
    pub ran: Nanos,
}

/// The averages of a queue: a group on one CPU, or all that a CPU has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueAverage {
    last: u64,
    load: u64,
    runnable: u64,
    util: u64,
}

impl QueueAverage {
    /// A queue that has been empty, on a clock that shows `now`.
    pub const fn new(now: Nanos) -> QueueAverage {
        QueueAverage {
            last: now.0,
            load: 0,
            runnable: 0,
            util: 0,
        }
    }

    /// Accounts for the time since the last update, during which `input` was there. Call it *before* what is in the
    /// queue changes. Less than a unit is left for the next update, which returns `false`. A clock that went back is
    /// followed, and the averages stay. O(1).
    #[inline]
    pub fn advance(&mut self, now: Nanos, input: QueueInput) -> bool {
        let Some(span) = Span::between(self.last, now.0) else {
            if now.0 < self.last {
                self.follow_back(now);
            }
            return false;
        };
        let interval = span.end - self.last.min(span.end);
        self.last = span.end;
        self.load = span.extend(self.load, input.load);
        self.runnable = span.extend(self.runnable, u64::from(input.runnable) * SCALE);
        self.util = span.extend(self.util, fraction(input.ran.0, interval));
        true
    }

    #[cold]
    fn follow_back(&mut self, now: Nanos) {
        let scale = |sum| rescale(sum, self.last, now.0);
        (self.load, self.runnable, self.util) =
            (scale(self.load), scale(self.runnable), scale(self.util));
        self.last = now.0;
    }

    /// A task comes from another queue with its history: this queue is as loaded as if it had always been here.
    /// Call [`TaskAverage::rebase`] on the task first.
    pub fn attach(&mut self, task: &TaskAverage, shares: u32) {
        let divisor = divisor(self.last);
        self.load = self.load.saturating_add(task.load(shares) * divisor);
        self.runnable = self.runnable.saturating_add(task.runnable() * divisor);
        self.util = (self.util.saturating_add(task.util() * divisor)).min(SCALE * divisor);
    }

    /// A task goes to another queue and takes its history along: the inverse of [`QueueAverage::attach`], at least
    /// zero.
    pub fn detach(&mut self, task: &TaskAverage, shares: u32) {
        let divisor = divisor(self.last);
        self.load = self.load.saturating_sub(task.load(shares) * divisor);
        self.runnable = self.runnable.saturating_sub(task.runnable() * divisor);
        self.util = self.util.saturating_sub(task.util() * divisor);
    }

    /// When the averages were last brought up to date, to the unit.
    pub const fn updated_at(&self) -> Nanos {
        Nanos(self.last)
    }

    /// The averages, as of the last update.
    pub fn figures(&self) -> LoadAverages {
        LoadAverages {
            load: self.load(),
            runnable: self.runnable(),
            util: self.util(),
        }
    }

    /// Average of the shares that competed.
    pub fn load(&self) -> u64 {
        self.load / divisor(self.last)
    }

    /// Average number of runnable tasks, times 1,024.
    pub fn runnable(&self) -> u64 {
        self.runnable / divisor(self.last)
    }

    /// Share of time in which tasks of the queue ran: 0..=1024.
    pub fn util(&self) -> u64 {
        capped(self.util / divisor(self.last))
    }

    /// Whether nothing is remembered any more.
    pub fn is_idle(&self) -> bool {
        self.load() == 0 && self.runnable() == 0 && self.util() == 0
    }
}

/// What an average of `value`, last brought up to date at `last`, has faded to at `now` if nothing was there since.
/// Within one unit of what an update would give. O(1).
pub(crate) fn faded(value: u64, last: Nanos, now: Nanos) -> u64 {
    match Span::between(last.0, now.0) {
        None => value,
        Some(span) => span.extend(value.saturating_mul(divisor(last.0)), 0) / divisor(span.end),
    }
}

/// The sum that stands for the same average at another position in a period.
fn rescale(sum: u64, from: u64, to: u64) -> u64 {
    let scaled = u128::from(sum) * u128::from(divisor(to)) / u128::from(divisor(from));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// A sum may be a few units of 47,742 above what is possible, from rounding at each update.
#[inline]
fn capped(average: u64) -> u64 {
    average.min(SCALE)
}

/// `part` of `whole` in 1,024ths, at most all of it.
#[inline]
fn fraction(part: u64, whole: u64) -> u64 {
    if part >= whole {
        return SCALE;
    }
    // Parts beyond 2^54 ns (208 days) in one interval lose their last bits, which nobody can see.
    match part.checked_mul(SCALE) {
        Some(scaled) => scaled / whole,
        None => part / (whole / SCALE),
    }
}

#[inline]
fn narrow(sum: u64) -> u32 {
    u32::try_from(sum).unwrap_or(u32::MAX)
}

const _: () = assert!(size_of::<TaskAverage>() <= 16);
// What `narrow` gets from a task always fits.
const _: () = assert!(LOAD_AVG_MAX * SCALE <= u32::MAX as u64);
