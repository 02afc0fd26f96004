//! What a poll is charged: the CPU time of the thread that ran it.
//!
//! # The rule
//! *Every part of a poll is charged by the CPU clock of the thread that ran it, between two readings of that clock, and of two parts that
//! follow each other the second begins with the reading that the first has ended with.* Wall time, which is cheap, is the estimate until
//! there is a reading: of a poll that returned within [`SUSPICIOUS_POLL`] it stays the charge ([`INTRUDED_POLL`] while a long poll shares the
//! processor, or the thread was found not to run, see below).
//!
//! | part | run by | from | to | charged |
//! |---|---|---|---|---|
//! | a poll that returns | the carrier | the [`Reference`] | its end | its wall time, less what the thread did not run since the reference ([`absence`]) |
//! | a poll that is detached, until then | the carrier | the reference | the *parting* | the same, by the thread that takes over |
//! | from then on | the same thread, now a bearer | the parting | the end of each of its turns | the difference of the readings |
//! | the last turn | the bearer | the reading before | its last (E1 of `preempt`) | the same |
//! | code beyond the poll (destructors, timers) | the carrier | the poll's end | [`Vcpu::bill_beyond`] | as a poll that returns |
//!
//! *The parting* is one reading of both clocks, which the watch makes while it holds the poll back from its end: there is a thread then to
//! read the clock of. (The thread that took over used to make it, by when the poll might have ended, and its thread, too: of a thread that is
//! no more nothing is read, which was taken for zero, and its task charged with all that the thread had ever used. One in twelve of
//! detached polls of a millisecond ended so soon, and groups were charged 1.2 to 2.6 times what the process used.)
//!
//! # The reference
//! A point where both clocks were read together, at most [`RECONCILE_INTERVAL`] ago when a turn starts. What the thread did for others while
//! the virtual CPU slept makes an absence look smaller, never larger; and the time that it slept, or napped for a bearer's turn, is taken
//! off by moving the reference on. It belongs to who turns the virtual CPU, on whose seat it lies for the thread that takes over:
//! written between polls only, so the region's begin and the watch's look at it order the two.
//!
//! # Short polls in which the thread does not run
//! A poll of 400 us may sleep for 300 of them, or wait for a processor on a busy machine, and its wall time says nothing of that. (Groups whose polls
//! sleep so were charged up to six times what they used, and all groups together 1.2 to 1.6 times what the process did.) Whenever the
//! reference is read anew between turns, the thread's absence since the one before is known: if that was more than one in [`ABSENT_PART`] of
//! the time, polls are compared from [`INTRUDED_POLL`] on for [`CLOSE`], and for as long again after each such poll that was absent. So
//! what is billed by the wall is what polls did in the [`RECONCILE_INTERVAL`] before the first such reading.
//!
//! Where the kernel tells whether a thread has lost its processor ([`quotient_pause::has_stayed`]), none of that is needed: a poll in which
//! it has not is billed by the wall, and any other that took longer than [`STEAL_FLOOR`] is compared. What is left to the rule above is what a
//! hypervisor takes, of which the guest's kernel knows nothing. (By that rule each poll of 50 us beside a long one was compared, at a
//! microsecond each.)
//!
//! # What others pay for
//! `PollNotes::excluded` is wall time of the poll that others account for by themselves (an `in_group`, a meter), `absent` the part of it in
//! which the thread did not run: so `excluded - absent` is the CPU time of this thread that is theirs, and what is taken off an absence is
//! `absent`.
//! A bearer is charged in the middle of its poll, by another thread, and clocks do not go back: so its carrier says what is theirs as it comes
//! (`preempt::others`: from the outermost part's begin, by an estimate of the CPU clock from the last reading, to its end, when it is known), and
//! each charge is all that the bearer has used since the parting, less all that is theirs, less what was charged before: what was wrong
//! for once is made good by the next. What is theirs is paid for in virtual time, as it was had by turns; clocks and limits are
//! charged by those who account for it. (The whole of it used to be charged by turns as well, and was taken off what was open at the end: polls inside an
//! `in_group` were charged twice, 1.9 times in all.) Threads of other pools say so in the same way.
//! They account for it at their end, which may not come: so whoever charges the bearer also charges the innermost of them what that has used
//! by then. (An endless poll inside an `in_group` used to be charged to nobody: 1.8 CPUs of a limit of 0.2.)

use std::cell::Cell;
use std::sync::atomic::Ordering;

use quotient_core::{Gates, Nanos};

use super::Vcpu;
use super::limits::look_at_refill;
use crate::clock::{RECONCILE_INTERVAL, thread_cpu_time, thread_run_delay};
use crate::cpu_clock::OwnTime;
use crate::gates::RuntimeGates;
use crate::local::Entered;
use crate::preempt::{Parting, Seat, nothing_for_others};
use crate::shared::{Shared, VcpuShared};

/// A poll longer than this is compared with the thread's CPU clock. Unit: nanoseconds. Default 500 us: no host gives a
/// preempted thread its processor back sooner than that often, and the two clock reads cost 0.06 %.
const SUSPICIOUS_POLL: Nanos = Nanos(500_000);
/// The same while a bearer may run beside the carrier: the kernel gives it a tenth of their processor (nice 10), in slices of 100 us
/// (`quotient_pause::demote`), in the middle of whatever poll is under way. Unit: nanoseconds. 50 us, half such a slice: a shorter poll
/// holds none, and the clock read is 0.6 % of a longer one. (Billed to the polls that it interrupted, what one endless poll had that way
/// cost a tenant of short polls a tenth of its share: 0.41 of 0.48 CPUs in the demo.)
const INTRUDED_POLL: Nanos = Nanos(50_000);
/// Of the time since the reference before, absent for more than one such part, the thread is looked at closely. 16: what is billed wrongly stays
/// below a sixteenth where it is not.
const ABSENT_PART: u64 = 16;
/// For how long. Unit: nanoseconds. Default 50 ms: a clock read for each poll of 50 us and longer, 0.6 % at most.
const CLOSE: Nanos = Nanos::from_millis(50);
/// Difference between wall and CPU time that counts as steal. Unit: nanoseconds. Default 20 us: interrupts and reading skew stay below.
const STEAL_FLOOR: Nanos = Nanos(20_000);
/// User's code beyond a poll that is not looked at: what it took is paid by whoever runs next. Unit: nanoseconds. Default 250 us: to
/// wake a sleeping thread took up to 90 us of processor time on a virtual machine, and a group is to have what its tasks had, to the
/// nanosecond, unless there is reason.
const BEYOND_FLOOR: Nanos = Nanos(250_000);

thread_local! {
    /// How long this thread had waited for a processor when it was asked last; none when it began. Of the thread, whichever virtual CPU it carries: who
    /// blocks in place ends each poll on another one. (Kept by virtual CPUs, it was not known after such a poll, whose sleep nobody paid for: an equal tenant had 0.018
    /// of a CPU for 0.5.)
    static RUN_DELAY: Cell<Nanos> = const { Cell::new(Nanos::ZERO) };
    /// What polls were absent since then, none of whose it was to sleep: for want of a processor, if the kernel's books say as much.
    static UNASKED: Cell<Nanos> = const { Cell::new(Nanos::ZERO) };
}

/// See the module's header.
pub(super) struct Reference {
    thread: usize,
    /// The reading, its wall time moved on by the time that the virtual CPU has slept since.
    at: OwnTime,
    read_at: Nanos,
    /// How often the thread had waited by then ([`quotient_pause::waits`]), or by a reading before, and outside of polls since: asked again only
    /// where it was absent, or has waited by our own doing.
    waits: Option<u64>,
}

impl Reference {
    /// Whether the thread, which has waited `waits` times by now, has waited in a poll since it was asked last; true where that is not told.
    fn has_waited(&mut self, waits: Option<u64>) -> bool {
        let before = std::mem::replace(&mut self.waits, waits);
        waits.is_none() || waits != before
    }
}

/// For how long the thread that `reference` is of did not run between then and `now`.
pub(super) fn absence(reference: OwnTime, now: OwnTime) -> Nanos {
    let wall = now.wall.saturating_sub(reference.wall);
    wall.saturating_sub(now.cpu.saturating_sub(reference.cpu))
}

/// What of `absence` since the reference lies in a stretch of `open` time and is not accounted for by others, who were `absent` for their
/// part. A little is none.
pub(super) fn own_absence(absence: Nanos, absent: Nanos, open: Nanos) -> Nanos {
    let own = absence.saturating_sub(absent).min(open);
    if own < STEAL_FLOOR { Nanos::ZERO } else { own }
}

impl Vcpu {
    /// What the poll of `wall` time adds to the task's clock: less what others pay for or the host stole. (What a gate owes for
    /// polls elsewhere is on the clocks already.)
    /// Shown on the virtual CPU's clock, before the task's own: a group read after its task is not behind it.
    #[inline(always)]
    pub(super) fn bill(
        &mut self,
        shared: &Shared,
        me: &VcpuShared,
        wall: Nanos,
        now: Nanos,
    ) -> Nanos {
        let has_payer = self.payer.is_some();
        if wall > STEAL_FLOOR || self.notes.noted || has_payer || RuntimeGates::events() {
            return self.bill_closely(shared, me, wall, now);
        }
        me.clock.show(wall);
        wall
    }

    /// The same of a poll that is not short, or has something to say.
    #[inline(never)]
    fn bill_closely(&mut self, shared: &Shared, me: &VcpuShared, wall: Nanos, now: Nanos) -> Nanos {
        let notes = self.notes;
        let suspicious = wall > SUSPICIOUS_POLL;
        if suspicious || wall > STEAL_FLOOR && self.is_compared(shared, wall, now) {
            // What the poll has shown of itself on its clocks is not taken back.
            let open = wall.saturating_sub(me.clock.shown());
            let steal = self.steal(now, open.saturating_sub(notes.excluded), notes.absent);
            self.notes.excluded = notes.excluded.saturating_add(steal);
            let absent = steal.saturating_add(notes.held);
            if absent != Nanos::ZERO {
                self.notes.extra = self.slept(absent);
                self.robbed.lost(absent.saturating_sub(self.notes.extra));
            }
            if suspicious {
                me.resched.store(false, Ordering::Relaxed);
            }
            // Of a turn that may go on, or of what the task's end sets off (`completion`).
            self.move_reference(Nanos::ZERO);
            self.notes.noted |= suspicious || steal != Nanos::ZERO;
        }
        let excluded = self.notes.excluded;
        let billed = wall.saturating_sub(excluded);
        if RuntimeGates::events() {
            let paid = billed.saturating_add(notes.debt);
            shared.log.polled(self.index, paid, now);
        }
        if let Some(payer) = self.payer.take() {
            if let Some(preempting) = &shared.preempt {
                // The poll is over, so nobody takes it over any more.
                preempting.seats[self.index].take_payer();
            }
            // What the poll has shown of itself on the clocks of whoever lends the place stays there.
            let open = billed.saturating_sub(me.clock.shown());
            let began = now.saturating_sub(wall);
            let paid = payer.part_of(open, began, now);
            me.clock.show(billed.saturating_sub(paid));
            payer.has_used(billed.saturating_sub(paid));
            if paid != Nanos::ZERO {
                self.notes.excluded = self.notes.excluded.saturating_add(paid);
                self.notes.noted = true;
                payer.pays(paid, self.index, now);
                look_at_refill(shared);
            }
            return billed;
        }
        me.clock.show(billed);
        billed
    }

    /// Whether a short poll is compared, too: one in which the thread has lost its processor, and where that is not told, any in whose middle a
    /// long poll may have run, or that comes soon after one in which the thread was found not to run.
    #[inline(never)]
    fn is_compared(&self, shared: &Shared, wall: Nanos, now: Nanos) -> bool {
        let stayed = quotient_pause::has_stayed();
        if stayed == Some(false) {
            return true;
        }
        let preempting = shared.preempt.as_ref();
        let is_intruded = || preempting.is_some_and(|preempting| preempting.has_chosen(self.index));
        wall > INTRUDED_POLL && (now < self.close_until || stayed.is_none() && is_intruded())
    }

    /// The user's code that ran since `polled`, when the poll was over: the destructor of an output that nobody wants, the wakers
    /// of the handle and of timers on CPU clocks. It is the group's (not the task's, which may be gone): the task is still the
    /// current one of the run queue, which charges it up to the time returned here. Otherwise it would be paid by whoever is polled
    /// next, or after a long poll by nobody.
    #[inline]
    pub(super) fn bill_beyond(
        &mut self,
        shared: &Shared,
        entered: &Entered,
        polled: Nanos,
    ) -> Nanos {
        let now = shared.now();
        let wall = now.saturating_sub(polled);
        let has_slept = || wall > STEAL_FLOOR && quotient_pause::has_stayed() == Some(false);
        if wall <= BEYOND_FLOOR && !has_slept() {
            return polled;
        }
        self.bill_long_beyond(shared, entered, polled, now)
    }

    #[cold]
    fn bill_long_beyond(
        &mut self,
        shared: &Shared,
        entered: &Entered,
        polled: Nanos,
        now: Nanos,
    ) -> Nanos {
        let wall = now.saturating_sub(polled);
        let notes = entered.end_task().unwrap_or_default();
        if self.is_preempting() && notes.excluded != Nanos::ZERO {
            nothing_for_others();
        }
        let open = wall.saturating_sub(notes.excluded);
        let steal = self.steal(now, open, notes.absent);
        let mut excluded = notes.excluded.saturating_add(steal);
        let absent = steal.saturating_add(notes.held);
        if absent != Nanos::ZERO {
            let slept = self.slept(absent);
            self.notes.extra = self.notes.extra.saturating_add(slept);
        }
        if wall.saturating_sub(excluded) <= BEYOND_FLOOR {
            // The host took the processor away, and what is left is too little again.
            excluded = wall;
        }
        if RuntimeGates::events() {
            let log = &shared.log;
            log.polled_beyond(self.index, excluded, notes.debt, now);
        }
        self.notes.excluded = self.notes.excluded.saturating_add(excluded);
        self.notes.debt = self.notes.debt.saturating_add(notes.debt);
        self.notes.leave |= notes.leave;
        self.notes.noted = true;
        now
    }

    /// The part of a long poll's `open` time in which the host ran something else, or the poll blocked; counted for its group. The
    /// thread was `absent` in what others account for.
    #[cold]
    fn steal(&mut self, now: Nanos, open: Nanos, absent: Nanos) -> Nanos {
        let stayed = quotient_pause::has_stayed();
        quotient_pause::begin_stay();
        let Some(cpu) = thread_cpu_time() else {
            return Nanos::ZERO;
        };
        let at = OwnTime { wall: now, cpu };
        let thread = thread_mark();
        let known = self.reference.as_ref();
        let known = known.filter(|before| before.thread == thread);
        let steal = known.map_or(Nanos::ZERO, |before| {
            own_absence(absence(before.at, at), absent, open)
        });
        let waits = known.map_or_else(quotient_pause::waits, |before| before.waits);
        self.reference = Some(Reference {
            thread,
            at,
            read_at: now,
            waits,
        });
        if steal == Nanos::ZERO {
            return steal;
        }
        if stayed != Some(false) {
            self.close_until = now.saturating_add(CLOSE);
        }
        if let Some((_, figures)) = &self.figures {
            figures.record_steal(steal);
        }
        steal
    }

    /// For how long the thread has not run since the point of reference, if this is the same thread still.
    #[cold]
    pub(super) fn stolen(&self, now: Nanos) -> Nanos {
        match (&self.reference, thread_cpu_time()) {
            (Some(before), Some(cpu)) if before.thread == thread_mark() => {
                absence(before.at, OwnTime { wall: now, cpu })
            }
            _ => Nanos::ZERO,
        }
    }

    /// What of `steal` the poll slept in the kernel: nobody used a processor, so no clock and no limit is charged, but it held the
    /// virtual CPU, so it is paid in virtual time, as part of the turn; otherwise a task that only sleeps would always be chosen
    /// next. What the thread waited for a processor since the last look is not the poll's doing; nor is anything, if the thread has never
    /// given its processor up since the reference. (What a hypervisor steals, and what a limit of the process's own cgroup takes, is no wait
    /// for a processor by the kernel's books. While it counted as sleep, one millisecond of it cost one of a thousand equal groups a tenth of
    /// five seconds' part. And what is waited for outside of polls, for the lock of a queue above all, whose holder lost its processor, is noted at once
    /// ([`Vcpu::note_own_wait`]): any such wait in the 4 ms before made sleep of all that was stolen, once 9 ms in a hundred seconds.)
    fn slept(&mut self, steal: Nanos) -> Nanos {
        let waits = quotient_pause::waits();
        let reference = self.reference.as_mut();
        let has_waited = reference.is_none_or(|reference| reference.has_waited(waits));
        what_was_slept(steal, has_waited, thread_run_delay)
    }

    /// The thread may have waited just now, for a lock or in the host, which is no poll's doing.
    #[cold]
    pub(super) fn note_own_wait(&mut self) {
        if let Some(reference) = &mut self.reference {
            reference.waits = quotient_pause::waits();
        }
    }

    /// The point of reference, for who reads a clock during a poll.
    pub(super) fn own_time(&self) -> Option<OwnTime> {
        self.reference.as_ref().map(|reference| reference.at)
    }

    /// Keeps a point of reference for [`Vcpu::steal`] that is young and of this thread.
    pub(super) fn refresh_reference(&mut self, now: Nanos) {
        let slept = now.saturating_sub(self.slept_at.take().unwrap_or(now));
        let thread = thread_mark();
        let good = matches!(&self.reference, Some(known)
            if known.thread == thread && now.saturating_sub(known.read_at) < RECONCILE_INTERVAL);
        let stayed = quotient_pause::has_stayed();
        quotient_pause::begin_stay();
        if !good {
            let at = thread_cpu_time().map(|cpu| OwnTime { wall: now, cpu });
            if let (Some(before), Some(at)) = (&self.reference, at)
                && before.thread == thread
                && stayed != Some(false)
                && was_absent(before.at, at, slept)
            {
                self.close_until = now.saturating_add(CLOSE);
            }
            self.reference = at.map(|at| Reference {
                thread,
                at,
                read_at: now,
                waits: quotient_pause::waits(),
            });
        }
        self.move_reference(if good { slept } else { Nanos::ZERO });
    }

    /// The thread has slept for `slept` since, in no poll; and who takes over finds where the reference is.
    pub(super) fn move_reference(&mut self, slept: Nanos) {
        let Some(reference) = &mut self.reference else {
            return;
        };
        reference.at.wall = reference.at.wall.saturating_add(slept);
        if let Some(preempting) = &self.shared.preempt {
            preempting.seats[self.index].refer_to(reference.at);
        }
    }
}

/// What of `steal` this thread slept by its own doing, given whether it has waited for anything at all, and how to ask for how long it has waited for a
/// processor so far.
fn what_was_slept(
    steal: Nanos,
    has_waited: bool,
    run_delay: impl FnOnce() -> Option<Nanos>,
) -> Nanos {
    if !has_waited {
        // What of it was for want of a processor is not asked, at a microsecond a time.
        UNASKED.set(UNASKED.get().saturating_add(steal));
        return Nanos::ZERO;
    }
    run_delay().map_or(Nanos::ZERO, |delay| {
        steal.saturating_sub(newly_delayed(delay))
    })
}

/// For how long this thread, which has waited for a processor for `delay` in all, has done so since it was asked last, but for what is
/// known to have been of polls that did not sleep.
fn newly_delayed(delay: Nanos) -> Nanos {
    let since = delay.saturating_sub(RUN_DELAY.replace(delay));
    since.saturating_sub(UNASKED.take())
}

/// Whether the thread did not run for a good part of the time from `before` to `at`, less the `slept` time in which nothing was polled.
fn was_absent(mut before: OwnTime, at: OwnTime, slept: Nanos) -> bool {
    before.wall = before.wall.saturating_add(slept);
    let wall = at.wall.saturating_sub(before.wall);
    let part = Nanos(wall.as_nanos() / ABSENT_PART);
    absence(before, at) > part.max(STEAL_FLOOR)
}

/// Of a poll that began at `started` on the seat `seat`, up to its `parting`: what its task pays for, and what its thread did not run of it.
pub(super) fn before_parting(seat: &Seat, started: Nanos, parting: &Parting) -> (Nanos, Nanos) {
    let wall = parting.at.wall.saturating_sub(started);
    let absence = absence(seat.reference(), parting.at);
    let absent = own_absence(absence, Nanos::ZERO, wall);
    let used = wall.saturating_sub(absent);
    (used.saturating_sub(parting.theirs), absent)
}

/// Identifies the calling thread for as long as it lives.
pub(super) fn thread_mark() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_pays_for_a_processor_that_was_taken_from_the_whole_process() {
        std::thread::spawn(|| {
            let steal = Nanos::from_millis(3);
            let mut total = Nanos::ZERO;
            let mut slept = |delayed: Nanos, has_waited| {
                total = total.saturating_add(delayed);
                UNASKED.take();
                what_was_slept(steal, has_waited, || Some(total))
            };
            // A limit of the process's own cgroup, or a hypervisor: the kernel's books show no delay, and the thread has waited for nothing.
            assert_eq!(slept(Nanos::ZERO, false), Nanos::ZERO);
            assert_eq!(slept(Nanos::ZERO, true), steal);
            let delayed = Nanos::from_millis(2);
            assert_eq!(slept(delayed, true), Nanos::from_millis(1));
            assert_eq!(slept(steal + delayed, true), Nanos::ZERO);
            assert_eq!(what_was_slept(steal, true, || None), Nanos::ZERO);
        })
        .join()
        .expect("no panic");
    }

    /// Hazard: what polls that did not sleep had to wait for a processor, taken off what one slept.
    #[test]
    fn waits_for_a_processor_are_taken_off_once() {
        std::thread::spawn(|| {
            let millis = Nanos::from_millis;
            assert_eq!(newly_delayed(millis(5)), millis(5));
            assert_eq!(newly_delayed(millis(5)), Nanos::ZERO, "told already");
            UNASKED.set(millis(2));
            assert_eq!(newly_delayed(millis(9)), millis(2), "4 ms, 2 of others");
            assert_eq!(newly_delayed(millis(10)), millis(1), "no longer theirs");
            // A hypervisor's theft, which is not on the kernel's books.
            UNASKED.set(millis(3));
            assert_eq!(newly_delayed(millis(11)), Nanos::ZERO);
        })
        .join()
        .expect("no panic");
    }

    /// Hazard: a wait for the lock of a queue, before the poll, made sleep of what a hypervisor took from the poll.
    #[test]
    fn what_was_waited_for_outside_of_polls_is_no_polls_wait() {
        let at = OwnTime {
            wall: Nanos::ZERO,
            cpu: Nanos::ZERO,
        };
        let mut reference = Reference {
            thread: thread_mark(),
            at,
            read_at: Nanos::ZERO,
            waits: Some(3),
        };
        assert!(reference.has_waited(Some(4)), "in a poll");
        assert!(!reference.has_waited(Some(4)), "told already");
        reference.waits = Some(5);
        assert!(!reference.has_waited(Some(5)), "noted as our own");
        assert!(reference.has_waited(Some(6)));
        assert!(reference.has_waited(None), "not told");
    }
}
