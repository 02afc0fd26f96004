//! The meters of one thread: what they have read, billed and paid.
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

use std::cell::Cell;
use std::time::Duration;

use quotient_core::Nanos;

use super::MeterError;
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
    pub(super) fn enter(slot: &Slot, group: &Group, pays: bool) -> Result<usize, MeterError> {
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
                    .then(|| begins_for_others(&group.shared, &group.inner, || cpu, false))
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
    pub(super) fn innermost(slot: &Slot, place: usize) -> Option<Group> {
        Self::billed(slot, place)?;
        let meter = slot.take()?;
        let is_innermost = meter.entries.len() == place;
        let group = meter.entries.last().map(|entry| entry.group.clone());
        slot.set(Some(meter));
        group.filter(|_| is_innermost)
    }

    pub(super) fn leave(slot: &Slot, place: usize) -> Result<Duration, MeterError> {
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

    pub(super) fn abandon(slot: &Slot, place: usize) {
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

    pub(super) fn billed(slot: &Slot, place: usize) -> Option<Duration> {
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
        let shared = &entry.group.shared;
        if shared.cpu_timers.are_armed() && shared.cpu_timers.mark_group(core) {
            shared.tick.hurry();
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
