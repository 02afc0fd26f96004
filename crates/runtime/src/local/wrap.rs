//! `in_group` on this thread: who is charged, and for how much.
//!
//! # Wall time and CPU time
//! A wrap's poll is measured by the scheduler's clock, which also runs while the host gives the processor to others, or while
//! the poll blocks. Over a stretch longer than [`SUSPICIOUS`] that is compared with the thread's CPU clock, which costs a system
//! call: nobody is billed more than the thread has used since the last *reading* of that clock. A reading serves the next stretch
//! if it was just now, or is young and long polls are not to be expected; so short polls pay for one in
//! [`RECONCILE_INTERVAL`], and long ones, which expect their like, are billed what they used, exactly. The first long poll after short
//! ones may also be billed what the thread did outside of wraps since the reading, but never more than its wall time. What wraps were billed
//! since then is kept with the reading, and taken off. (It used not to be: where the host takes the processor away between hundreds of short
//! polls, each absence was billed as what the polls before it had used, and were billed for: 1.4 to 1.9 times what the thread used.)
//!
//! Short polls that sleep, or wait for a processor, are found when the reading is made anew: if more was billed since the last one than the thread has
//! used, by a sixteenth, the group that begins is looked at from [`CLOSE`] on, with readings of its own, as after a long poll, until a poll
//! so looked at was not absent. (Polls that compute for 50 us and sleep for 300 were billed 6 times what they used.)
//!
//! # Nesting
//! `excluded` is the wall time of the current poll (or wrap) that others inside account for, `absent` the part of it in which the
//! thread did not run: who accounts for the rest must not count that absence as its own. Of a poll on a virtual CPU that time is the outer
//! task's turn all the same (`held`), which it pays for in virtual time: nobody computes in it, and nobody else has the virtual CPU. (A tenant
//! that slept in `in_group` for all of its polls left an equal one 0.006 of a CPU for 0.5.)

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::Nanos;

use super::{Charged, LOCAL, Local};
use crate::clock::{RECONCILE_INTERVAL, thread_cpu_time};
use crate::cpu_clock::OwnTime;
use crate::group::GroupShared;
use crate::meter::Meter;
use crate::preempt::{Around, begins_for_others, shown_for_others};
use crate::shared::Shared;

/// Time that is believed without the thread's CPU clock. Unit: nanoseconds. Default 500 us, as for polls of tasks: no host gives a
/// preempted thread its processor back sooner than that often, and two clock reads cost less than 0.1 % of it.
const SUSPICIOUS: Nanos = Nanos(500_000);
/// The same where the thread was found not to run. Unit: nanoseconds. 50 us: the shortest sleep takes longer.
const CLOSE: Nanos = Nanos(50_000);
/// Billed since a reading for so many parts of what was used, and one more, it is time to look.
const BILLED_PARTS: u64 = 16;
/// Age of a reading that is as good as none. Unit: nanoseconds. Default 20 us: what the thread did for others in that time is
/// within what the two clocks differ by anyway.
const FRESH: Nanos = Nanos(20_000);
/// A difference between wall and CPU time that counts as none. Unit: nanoseconds. Default 20 us, as for polls of tasks:
/// interrupts and reading skew stay below.
const ABSENCE_FLOOR: Nanos = Nanos(20_000);

/// A reading of the thread's CPU clock, and on which scheduler's clock that was when. It outlives the scheduler, so that an address
/// would not do as its name: another one is made there, whose clock begins at zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    scheduler: u64,
    time: OwnTime,
    /// What wraps that have ended since then were billed; no more than the time since then.
    billed: Nanos,
}

impl Reading {
    /// Whether more than the thread has used since then was billed, as it is at `cpu` now.
    fn has_billed_too_much(self, cpu: Nanos) -> bool {
        let used = cpu.saturating_sub(self.time.cpu);
        let part = Nanos(used.as_nanos() / BILLED_PARTS);
        self.billed > used.saturating_add(part.max(ABSENCE_FLOOR))
    }
}

/// Whether polls of the group are to be looked at closely.
fn note_absence(group: &GroupShared, is_absent: bool) {
    if group.absent_wraps.load(Ordering::Relaxed) != is_absent {
        group.absent_wraps.store(is_absent, Ordering::Relaxed);
    }
}

/// One `in_group` on this thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wrap {
    started: Nanos,
    /// The CPU time that its own is measured from: of a reading not after its start, and what wraps were billed in between.
    base: Option<Nanos>,
    /// What of its own time was charged already, because somebody read a clock.
    shown: Nanos,
    /// Own time in which the thread did not run, as far as somebody has looked.
    absent: Nanos,
}

/// What [`replace_group`] replaced.
pub(crate) struct Saved {
    /// The group was the running task's own.
    member: bool,
    group: Option<Charged>,
    excluded: Nanos,
    absent: Nanos,
    wrap: Option<Wrap>,
    meter: Option<Box<Meter>>,
    /// Of a thread that is charged by turns.
    around: Option<Around>,
}

/// Makes `group` the charged group of this thread, from `now`; give the result back to [`restore_group`]. `None` when the thread's
/// locals are gone (in the destructor of another local): nobody is the charged group there.
pub(crate) fn replace_group(
    shared: &Arc<Shared>,
    group: &Arc<GroupShared>,
    now: Nanos,
) -> Option<Saved> {
    let replace = |local: &Local| {
        let reading = local.reading_for(shared, group, now);
        // Before anybody else is at work: it looks at its own account.
        let meter = local.pause_meter();
        let base = reading.map(|known| known.time.cpu.saturating_add(known.billed));
        let around = reading.and_then(|known| {
            let OwnTime { wall, cpu } = known.time;
            let estimate = || cpu.saturating_add(now.saturating_sub(wall));
            begins_for_others(shared, group, estimate, local.polling.get())
        });
        Saved {
            around,
            member: local.keep_member(),
            group: local.set_group(Some((shared.clone(), group.clone()))),
            excluded: local.excluded.replace(Nanos::ZERO),
            absent: local.absent.replace(Nanos::ZERO),
            wrap: local.wrap.replace(Some(Wrap {
                started: now,
                base,
                shown: Nanos::ZERO,
                absent: Nanos::ZERO,
            })),
            meter,
        }
    };
    LOCAL.try_with(replace).ok()
}

/// Ends [`replace_group`] at `now`; returns the group's CPU time that is not charged yet, neither to somebody nested inside nor
/// because it was shown.
pub(crate) fn restore_group(saved: Saved, group: &GroupShared, now: Nanos) -> Nanos {
    LOCAL.with(|local| {
        let Some(mut wrap) = local.wrap.get() else {
            return Nanos::ZERO;
        };
        let elapsed = now.saturating_sub(wrap.started);
        let outermost = saved.around.and_then(|around| {
            let (charged, outermost) = around.ends(|| local.estimate(now));
            wrap.shown = wrap.shown.max(charged);
            outermost
        });
        let long = elapsed > SUSPICIOUS;
        let looks = long || elapsed > CLOSE && group.absent_wraps.load(Ordering::Relaxed);
        let (own, cpu) = local.own_time(&wrap, now, looks);
        if let Some((shared, _)) = &*local.group.borrow() {
            local.note_billed(shared.number, own, now, cpu);
        }
        if group.long_wraps.load(Ordering::Relaxed) != long {
            group.long_wraps.store(long, Ordering::Relaxed);
        }
        let wall = elapsed.saturating_sub(local.excluded.get());
        if cpu.is_some() {
            note_absence(group, own.saturating_add(ABSENCE_FLOOR) < wall);
        }
        let slept = wall.saturating_sub(own);
        let absent = local.absent.get() + slept;
        local.held.set(local.held.get().saturating_add(slept));
        drop(local.set_group(saved.group));
        if saved.member {
            drop(local.member.take());
        }
        local.wrap.set(saved.wrap);
        if let Some(outermost) = outermost {
            outermost.has_used(elapsed.saturating_sub(absent));
        }
        local.noted.set(true);
        local.excluded.set(saved.excluded.saturating_add(elapsed));
        local.absent.set(saved.absent.saturating_add(absent));
        local.resume_meter(saved.meter);
        own.saturating_sub(wrap.shown)
    })
}

impl Local {
    /// The thread's CPU clock, as far as can be told from the last reading.
    fn estimate(&self, now: Nanos) -> Nanos {
        self.reading.get().map_or(Nanos::ZERO, |known| {
            let OwnTime { wall, cpu } = known.time;
            cpu.saturating_add(now.saturating_sub(wall))
        })
    }

    /// A wrap ends at `now`, for which it is billed `own`: `cpu` is the thread's CPU clock, if it was looked at.
    fn note_billed(&self, scheduler: u64, own: Nanos, now: Nanos, cpu: Option<Nanos>) {
        let reading = match (cpu, self.reading.get()) {
            (Some(cpu), _) => Reading {
                scheduler,
                time: OwnTime { wall: now, cpu },
                billed: Nanos::ZERO,
            },
            (None, Some(known)) if known.scheduler == scheduler => {
                // It may have begun long before.
                let since = now.saturating_sub(known.time.wall);
                let billed = known.billed.saturating_add(own).min(since);
                Reading { billed, ..known }
            }
            _ => return,
        };
        self.reading.set(Some(reading));
    }

    /// The reading of the thread's CPU clock to measure from: the last one, or one that is made now.
    fn reading_for(&self, shared: &Shared, group: &GroupShared, now: Nanos) -> Option<Reading> {
        let scheduler = shared.number;
        let [long, absent] =
            [&group.long_wraps, &group.absent_wraps].map(|hint| hint.load(Ordering::Relaxed));
        let age_max = if long || absent {
            FRESH
        } else {
            RECONCILE_INTERVAL
        };
        let known = self.reading.get();
        let known = known.filter(|known| known.scheduler == scheduler);
        if let Some(known) = known
            && now.saturating_sub(known.time.wall) <= age_max
        {
            return Some(known);
        }
        let reading = Reading {
            scheduler,
            time: OwnTime {
                wall: now,
                cpu: thread_cpu_time()?,
            },
            billed: Nanos::ZERO,
        };
        if known.is_some_and(|known| known.has_billed_too_much(reading.time.cpu)) {
            note_absence(group, true);
        }
        self.reading.set(Some(reading));
        Some(reading)
    }

    /// The wrap's own CPU time so far, without what is nested in it; and the thread's CPU clock if it was to be looked at.
    fn own_time(&self, wrap: &Wrap, now: Nanos, look: bool) -> (Nanos, Option<Nanos>) {
        let elapsed = now.saturating_sub(wrap.started);
        let wall = elapsed.saturating_sub(self.excluded.get());
        let believed = wall.saturating_sub(wrap.absent);
        let cpu = if look { thread_cpu_time() } else { None };
        let (Some(base), Some(cpu)) = (wrap.base, cpu) else {
            return (believed.max(wrap.shown), None);
        };
        let nested = self.excluded.get().saturating_sub(self.absent.get());
        let used = cpu.saturating_sub(base).saturating_sub(nested);
        let own = if used.saturating_add(ABSENCE_FLOOR) >= wall {
            wall
        } else {
            used
        };
        (own.max(wrap.shown), Some(cpu))
    }

    /// Somebody reads a clock inside the innermost wrap, `group`'s: what it used so far is charged now.
    pub(super) fn show_wrap(&self, wrap: Wrap, group: &GroupShared, now: Nanos) {
        let elapsed = now.saturating_sub(wrap.started);
        let wall = elapsed.saturating_sub(self.excluded.get());
        let believed = wall.saturating_sub(wrap.absent);
        let suspicious = if group.absent_wraps.load(Ordering::Relaxed) {
            CLOSE
        } else {
            SUSPICIOUS
        };
        let look = believed.saturating_sub(wrap.shown) > suspicious;
        let (own, _) = self.own_time(&wrap, now, look);
        let due = shown_for_others(own, wrap.shown, self.polling.get());
        let due = due.unwrap_or(own.saturating_sub(wrap.shown));
        group.core.add_foreign_cpu_time(due, now);
        self.wrap.set(Some(Wrap {
            shown: own,
            absent: wall.saturating_sub(own),
            ..wrap
        }));
    }
}
