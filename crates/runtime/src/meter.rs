//! Threads outside the scheduler that work for a group: their CPU time is billed while they do.
//!
//! # How a thread's time is read
//! The thread's CPU clock is exact and costs a system call (some 160 ns); the time-stamp counter costs 10 ns and also counts
//! what the host gives to others. So the counter is believed over gaps that are too short for a preemption to hide in
//! ([`GAP_MAX`] since the last look, at most [`RECONCILE_INTERVAL`] in all), and everything else is read from the thread's
//! CPU clock, which then corrects the estimate: what was billed too much is not taken back but not billed again. Entering
//! and leaving always read the thread's CPU clock. Time goes out in steps of at least [`RESOLUTION`].
//!
//! # Since when
//! A budget pays for time with what it could be refilled with while that was spent ([`quotient_core::Group::charge_foreign_cpu_time`]). A
//! thread that shares its processor has spent it in more time than it took, and one that slept has not: so of a thread that the
//! kernel never saw wait since the last payment, all the time that passed counts, else as much as it computed.
//!
//! # Where it goes
//! To the parts of the group's clock that belong to the processor on which the thread runs (`outside` in the core), at once;
//! and to what the group pays in virtual time and budget in batches of [`BATCH`].
//!
//! # Nesting
//! The innermost meter of a thread bills. A virtual CPU or an `in_group` that runs on a metered thread bills for itself; the
//! meter pauses meanwhile.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use quotient_core::Nanos;

use crate::clock::{RECONCILE_INTERVAL, thread_cpu_time};
use crate::cpu_clock::duration;
use crate::group::Group;
use crate::local::{self, Charged};
use crate::preempt::{Around, begins_for_others};

/// A gap between two looks within which the time-stamp counter is believed. Unit: nanoseconds. Default 20 us, what also counts
/// as no steal in a poll: a preemption costs the host more than that.
const GAP_MAX: Nanos = Nanos(20_000);
/// Time that is too short to be worth publishing. Unit: nanoseconds. Default 250 ns: less than one reading of the kernel's
/// clock takes, and a tight loop of readings then spares the locked additions at every level of the tree.
const RESOLUTION: Nanos = Nanos(250);
/// Time after which the group pays in virtual time. Unit: nanoseconds. Default 50 us, the core's publish interval.
const BATCH: Nanos = Nanos(50_000);
/// Time without a processor that is not worth asking whether the thread waited in it. Unit: nanoseconds. Default 100 us, some hundred
/// times what the question costs.
const AWAY_MIN: Nanos = Nanos(100_000);
/// Deepest nesting on one thread. Unit: meters. A bound on what a thread that never leaves can pile up.
const NESTED_MAX: usize = 64;

/// Why a thread was not metered, or a meter not left.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MeterError {
    /// This meter was left before.
    NotEntered,
    /// A meter that was entered later on this thread has not been left yet.
    InnerEntered,
    /// The caller runs in a task or inside `in_group`, whose time is billed already.
    AlreadyBilled,
    /// The group was removed.
    GroupRemoved {
        /// Its path while it lived.
        path: String,
    },
    /// Too many meters are entered on this thread.
    TooDeep {
        /// How many are allowed.
        max: usize,
    },
    /// The platform has no clock for the CPU time of a thread.
    NoThreadClock,
}

impl fmt::Display for MeterError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotEntered => formatter.write_str("the meter was left before"),
            Self::InnerEntered => {
                formatter.write_str("a meter that was entered later on this thread is not left yet")
            }
            Self::AlreadyBilled => formatter.write_str(
                "the caller runs in a task or inside `in_group`: its time is billed already",
            ),
            Self::GroupRemoved { path } => write!(formatter, "group {path:?} was removed"),
            Self::TooDeep { max } => write!(
                formatter,
                "more meters are entered on this thread than the {max} that are allowed"
            ),
            Self::NoThreadClock => {
                formatter.write_str("this platform has no clock for the CPU time of a thread")
            }
        }
    }
}

impl std::error::Error for MeterError {}

/// Bills the CPU time of the calling thread to a group, from [`ThreadMeter::enter`] to [`ThreadMeter::leave`] or drop: for
/// jobs of rayon, blocking pools, threads of other libraries.
///
/// Only CPU time counts, not sleep nor what other threads did on the processor. The group's clock includes it while it runs:
/// up to date (to 250 ns) for readers on the same thread, for others as of the last reading there or [`ThreadMeter::publish`]. The
/// operating system schedules the thread: the group's weight and limit do not hold for it, but its tasks pay for it. Under
/// [`crate::Builder::preempt`] both hold in [`ThreadMeter::run`], and from one [`ThreadMeter::checkpoint`] to the next.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let scheduler = quotient::Scheduler::builder().build()?;
/// let acme = scheduler.group("tenants/acme")?.create()?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let _meter = quotient::ThreadMeter::enter(&acme);
///         (0..1_000_000_u64).map(std::hint::black_box).sum::<u64>()
///     });
/// });
/// assert!(!acme.cpu_time().is_zero());
/// # scheduler.shutdown().await;
/// # Ok(())
/// # }
/// ```
///
/// Meanwhile the group is the thread's: [`Group::current`] is the group of the innermost meter, and [`crate::spawn`] and
/// [`crate::spawn_blocking`] inherit it.
///
/// A thread that ends inside a meter is billed up to its end.
#[derive(Debug)]
#[must_use = "the thread is metered for as long as this lives"]
pub struct ThreadMeter {
    /// Place in the thread's nest, from 1; 0 once it was left.
    place: usize,
    billed: Duration,
    _not_send: PhantomData<*mut ()>,
}

impl ThreadMeter {
    /// The calling thread works for `group` from now on. Nests: until the inner one is left, the outer is not billed. One
    /// reading of the thread's CPU clock.
    ///
    /// # Errors
    /// [`MeterError::AlreadyBilled`], [`MeterError::GroupRemoved`], [`MeterError::TooDeep`], [`MeterError::NoThreadClock`];
    /// nothing has changed then.
    pub fn enter(group: &Group) -> Result<Self, MeterError> {
        Self::check(group)?;
        Self::enter_within(group)
    }

    /// Whether the calling thread can be metered for the group.
    fn check(group: &Group) -> Result<(), MeterError> {
        if local::is_billed() {
            return Err(MeterError::AlreadyBilled);
        }
        if group.inner.is_removed() {
            let path = group.path().to_owned();
            return Err(MeterError::GroupRemoved { path });
        }
        if thread_cpu_time().is_none() {
            return Err(MeterError::NoThreadClock);
        }
        Ok(())
    }

    /// As [`ThreadMeter::enter`], for callers that see to it that nobody else bills the time. Without a clock for threads nothing is
    /// billed, but the thread works for the group all the same.
    pub(crate) fn enter_within(group: &Group) -> Result<Self, MeterError> {
        Self::enter_as(group, true)
    }

    /// As [`ThreadMeter::enter_within`]; the time is counted and the group does not pay for it, since it pays otherwise.
    pub(crate) fn enter_unbilled(group: &Group) -> Result<Self, MeterError> {
        Self::enter_as(group, false)
    }

    fn enter_as(group: &Group, pays: bool) -> Result<Self, MeterError> {
        let place = local::with_meter(|slot| Meter::enter(slot, group, pays));
        Ok(Self {
            place: place.unwrap_or(Err(MeterError::NoThreadClock))?,
            billed: Duration::ZERO,
            _not_send: PhantomData,
        })
    }

    /// Runs `job` for `group` on the calling thread, billed as after [`ThreadMeter::enter`]. Under [`crate::Builder::preempt`] the thread
    /// also takes turns with the group's tasks: it stands while the group is out of budget or others are ahead of it, at whatever
    /// instruction it is at, and the group's weight holds for it. So for jobs of rayon and of other pools a limit is a limit.
    ///
    /// The group is charged by turns then, some milliseconds later than by a meter. A job that starts in a group with a
    /// limit waits for its first turn. What the scheduler's end does not do is wait for it: from then on the thread is free. On a thread that
    /// `quotient_pause` knows already, and beyond [`crate::Preempt::max_borne`] at once, it is only metered.
    ///
    /// # Errors
    /// As [`ThreadMeter::enter`]; `job` was not run.
    pub fn run<R>(group: &Group, job: impl FnOnce() -> R) -> Result<R, MeterError> {
        Self::check(group)?;
        Ok(crate::preempt::run_by_turns(group, job))
    }

    /// The thread works for the group no more. Returns what was billed to it through this meter.
    ///
    /// # Errors
    /// [`MeterError::NotEntered`] if it was left before, [`MeterError::InnerEntered`] if a later one was not: nothing has
    /// changed then.
    pub fn leave(&mut self) -> Result<Duration, MeterError> {
        if self.place == 0 {
            return Err(MeterError::NotEntered);
        }
        let left = local::with_meter(|slot| Meter::leave(slot, self.place));
        // Without the thread's locals the thread is about to end, and was settled by their end.
        self.billed = left.unwrap_or(Err(MeterError::NotEntered))?;
        self.place = 0;
        Ok(self.billed)
    }

    /// What was billed through this meter, up to date if it is the innermost one of the thread; after it was left, in all.
    pub fn cpu_time(&self) -> Duration {
        let billed = local::with_meter(|slot| Meter::billed(slot, self.place));
        billed.flatten().unwrap_or(self.billed)
    }

    /// Under [`crate::Builder::preempt`]: waits until the group would be let run, as a job in [`ThreadMeter::run`] does before its first
    /// instruction. While the group is out of budget, frozen, or ahead of others the thread sleeps, and policy counts it as a task of
    /// the group meanwhile. So a thread that only has a guard keeps a limit to what it computes between two calls, and its group's
    /// weight holds for it; one that never calls this is only billed, whatever the limit says.
    ///
    /// Without preemption, in a group that is not [`preemptible`](crate::GroupBuilder::preemptible), inside `run`, or if this is not the
    /// thread's innermost meter, it only publishes. Some 50 us where nobody is to be waited for: call it every millisecond or less
    /// often, and never with a lock held that tasks of the group need.
    pub fn checkpoint(&self) {
        let group = local::with_meter(|slot| Meter::innermost(slot, self.place));
        if let Some(group) = group.flatten() {
            crate::preempt::wait_for_turn(&group);
        }
    }

    /// Brings the clocks of the groups up to date for readers elsewhere. Some 20 ns if the last time was just now.
    pub fn publish(&self) {
        let _ = self.cpu_time();
    }
}

impl Drop for ThreadMeter {
    fn drop(&mut self) {
        if self.place != 0 {
            let place = self.place;
            // Dropped before an inner one: that one goes on, and this one ends with it.
            let _ = local::with_meter(|slot| Meter::abandon(slot, place));
        }
    }
}

/// One entered meter.
struct Entry {
    group: Group,
    /// Billed so far.
    billed: Nanos,
    /// Billed, and not yet paid in virtual time.
    unpaid: Nanos,
    /// Its guard is gone, out of order.
    abandoned: bool,
    /// What is billed is charged to the group; if not, it is charged by turns.
    pays: bool,
    /// Of a meter that pays, on a thread that is charged by turns: what is around it there.
    around: Option<Around>,
    /// The thread's CPU time when it was entered.
    began: Nanos,
}

/// All meters of one thread, the innermost last. Never empty while it lies in its slot.
pub(crate) struct Meter {
    entries: Vec<Entry>,
    /// Whether the platform tells the thread's CPU time; if not, nothing is billed.
    has_clock: bool,
    /// The thread's CPU clock at the last correction.
    base: Nanos,
    /// Time since then by the counter, gap by gap.
    estimate: Nanos,
    /// Time since then that was billed.
    shown: Nanos,
    /// The scheduler's clock at the last look.
    looked: Nanos,
    /// The processor at the last correction.
    processor: usize,
    /// The scheduler's clock when the innermost group had paid last, or began to be worked for.
    paid_at: Nanos,
    /// How often the thread had waited then or before; nothing if nobody asked, since no limit was in force.
    waits: Option<u64>,
}

/// Where a thread keeps its meter.
pub(crate) type Slot = Cell<Option<Box<Meter>>>;

/// The group that the thread works for, if it is in a meter that bills.
pub(crate) fn group(slot: &Slot) -> Option<Charged> {
    let meter = slot.take()?;
    let group = meter.entries.last().map(|entry| {
        let group = &entry.group;
        (group.shared.clone(), group.inner.clone())
    });
    slot.set(Some(meter));
    group
}

/// What the calling thread has done for its innermost group is on the clocks and paid for, exactly; it goes on.
pub(crate) fn settle_here() {
    let _ = local::with_meter(|slot| {
        if let Some(mut meter) = slot.take() {
            meter.stop();
            slot.set(Some(meter));
        }
    });
}

impl Meter {
    fn enter(slot: &Slot, group: &Group, pays: bool) -> Result<usize, MeterError> {
        let clock = thread_cpu_time();
        let cpu = clock.unwrap_or(Nanos::ZERO);
        let mut meter = match slot.take() {
            Some(mut meter) => {
                meter.correct(cpu);
                meter
            }
            None => Box::new(Self {
                has_clock: clock.is_some(),
                entries: Vec::with_capacity(1),
                base: cpu,
                estimate: Nanos::ZERO,
                shown: Nanos::ZERO,
                looked: Nanos::ZERO,
                processor: 0,
                paid_at: Nanos::ZERO,
                waits: None,
            }),
        };
        let result = if meter.entries.len() < NESTED_MAX {
            meter.settle_top();
            group.inner.core.join_outside();
            meter.entries.push(Entry {
                group: group.clone(),
                billed: Nanos::ZERO,
                unpaid: Nanos::ZERO,
                abandoned: false,
                pays,
                began: cpu,
                around: pays
                    .then(|| begins_for_others(&group.inner, || cpu, false))
                    .flatten(),
            });
            meter.restart(cpu);
            Ok(meter.entries.len())
        } else {
            Err(MeterError::TooDeep { max: NESTED_MAX })
        };
        slot.set(Some(meter));
        result
    }

    /// The group of the meter at `place`, brought up to date, if that is the innermost one.
    fn innermost(slot: &Slot, place: usize) -> Option<Group> {
        Self::billed(slot, place)?;
        let meter = slot.take()?;
        let is_innermost = meter.entries.len() == place;
        let group = meter.entries.last().map(|entry| entry.group.clone());
        slot.set(Some(meter));
        group.filter(|_| is_innermost)
    }

    fn leave(slot: &Slot, place: usize) -> Result<Duration, MeterError> {
        let Some(mut meter) = slot.take() else {
            return Err(MeterError::NotEntered);
        };
        let result = if meter.entries.len() == place {
            meter.stop();
            let billed = meter.pop();
            meter.pop_abandoned();
            Ok(billed)
        } else {
            Err(MeterError::InnerEntered)
        };
        if !meter.entries.is_empty() {
            slot.set(Some(meter));
        }
        result
    }

    fn abandon(slot: &Slot, place: usize) {
        let Some(mut meter) = slot.take() else { return };
        if let Some(entry) = place
            .checked_sub(1)
            .and_then(|index| meter.entries.get_mut(index))
        {
            entry.abandoned = true;
        }
        if meter.entries.len() == place {
            meter.stop();
            meter.pop_abandoned();
        }
        if !meter.entries.is_empty() {
            slot.set(Some(meter));
        }
    }

    fn billed(slot: &Slot, place: usize) -> Option<Duration> {
        let mut meter = slot.take()?;
        if meter.entries.len() == place {
            meter.look();
        }
        let entry = place
            .checked_sub(1)
            .and_then(|index| meter.entries.get(index));
        let billed = entry.map(|entry| duration(entry.billed));
        slot.set(Some(meter));
        billed
    }

    /// Brings the innermost group up to date if it counts for `reading`.
    #[inline]
    pub(crate) fn look_for(&mut self, reading: &quotient_core::Group) {
        let counts = self
            .entries
            .last()
            .is_some_and(|entry| entry.group.inner.core.is_within(reading));
        if counts {
            self.look();
        }
    }

    /// Brings the innermost group up to date.
    #[inline]
    fn look(&mut self) {
        let Some(entry) = self.entries.last() else {
            return;
        };
        let now = entry.group.shared.now();
        let gap = now.saturating_sub(self.looked);
        if gap < RESOLUTION || !self.has_clock {
            return;
        }
        self.looked = now;
        let estimate = self.estimate.saturating_add(gap);
        if gap <= GAP_MAX && estimate <= RECONCILE_INTERVAL {
            self.estimate = estimate;
            self.bill(estimate);
        } else {
            self.correct_now();
        }
    }

    #[cold]
    fn correct_now(&mut self) {
        if let Some(cpu) = thread_cpu_time() {
            self.processor = processor();
            self.correct(cpu);
        }
    }

    /// Replaces the estimate by the thread's CPU clock. What was billed beyond that stays billed, and counts for later.
    fn correct(&mut self, cpu: Nanos) {
        let used = cpu.saturating_sub(self.base);
        self.bill(used);
        self.shown = self.shown.saturating_sub(used);
        self.base = cpu;
        self.estimate = Nanos::ZERO;
    }

    /// Bills what of `used` since the last correction is not billed yet.
    #[inline]
    fn bill(&mut self, used: Nanos) {
        let time = used.saturating_sub(self.shown);
        let Some(entry) = self.entries.last_mut() else {
            return;
        };
        if time == Nanos::ZERO {
            return;
        }
        self.shown = self.shown.saturating_add(time);
        let core = &entry.group.inner.core;
        entry.billed = entry.billed.saturating_add(time);
        if !entry.pays {
            return;
        }
        let charged = entry.billed.saturating_sub(time);
        let due = entry.around.as_ref();
        let due = due.and_then(|around| around.shown(entry.billed, charged));
        let time = due.unwrap_or(time);
        core.show_foreign_cpu_time(self.processor, time);
        entry.unpaid = entry.unpaid.saturating_add(time);
        let is_due = entry.unpaid >= BATCH;
        if entry.group.shared.cpu_timers.are_armed() {
            entry.group.shared.cpu_timers.look_at_group(core);
        }
        if is_due {
            self.settle_top();
        }
    }

    /// The innermost group has paid everything.
    fn settle_top(&mut self) {
        let Some(entry) = self.entries.last_mut() else {
            return;
        };
        let unpaid = std::mem::replace(&mut entry.unpaid, Nanos::ZERO);
        let now = entry.group.shared.now();
        let passed = now.saturating_sub(std::mem::replace(&mut self.paid_at, now));
        let mut lasted = unpaid;
        if self.waits.is_some() && passed.saturating_sub(unpaid) >= AWAY_MIN {
            let waits = quotient_pause::waits();
            if waits == self.waits {
                lasted = passed;
            }
            self.waits = waits;
        }
        let core = &entry.group.inner.core;
        core.charge_foreign_cpu_time_over(unpaid, lasted, now);
    }

    /// From here on time is the innermost group's.
    fn restart(&mut self, cpu: Nanos) {
        self.base = cpu;
        self.estimate = Nanos::ZERO;
        self.shown = Nanos::ZERO;
        self.processor = processor();
        if let Some(entry) = self.entries.last() {
            self.looked = entry.group.shared.now();
            self.paid_at = self.looked;
            let asks = entry.pays && entry.group.inner.is_limited();
            self.waits = asks.then(quotient_pause::waits).flatten();
        }
    }

    /// Bills everything up to now, exactly.
    pub(crate) fn stop(&mut self) {
        self.correct_now();
        self.settle_top();
    }

    /// Goes on after [`Meter::stop`]; what passed in between is nobody's.
    pub(crate) fn resume(&mut self) {
        if let Some(cpu) = thread_cpu_time() {
            self.restart(cpu);
        }
    }

    fn pop(&mut self) -> Duration {
        let Some(entry) = self.entries.pop() else {
            return Duration::ZERO;
        };
        entry.group.inner.core.leave_outside();
        let cpu = self.base;
        let outermost = entry.around.and_then(|around| around.ends(|| cpu).1);
        if let Some(outermost) = outermost {
            outermost.has_used(cpu.saturating_sub(entry.began));
        }
        self.restart(cpu);
        duration(entry.billed)
    }

    /// Ends the innermost ones whose guards are gone.
    fn pop_abandoned(&mut self) {
        while self.entries.last().is_some_and(|entry| entry.abandoned) {
            self.pop();
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // The thread ends inside its meters; a meter that was left has no entries.
        if !self.entries.is_empty() {
            self.stop();
            while !self.entries.is_empty() {
                self.pop();
            }
        }
    }
}

/// The processor that the thread runs on: where it writes without disturbing others.
#[cfg(target_os = "linux")]
fn processor() -> usize {
    rustix::thread::sched_getcpu()
}

/// The processor that the thread runs on, where it can be told.
#[cfg(not(target_os = "linux"))]
fn processor() -> usize {
    0
}
