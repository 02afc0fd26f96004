//! The watch: part of the tick thread that sees to the work of virtual CPUs which cannot look at it themselves.
//!
//! # Who cannot
//! - *stuck*: in a poll longer than [`STUCK`], blocking in place, or *absent*;
//! - *absent*: ready, but not polled by the host. Two reasons were seen: a worker of the host that polls something long (foreign or
//!   ours) while the virtual CPU waits behind it; and a virtual CPU that had deferred to a worker's own list of deferred wake-ups, to
//!   which that worker did not come for 90 ms because another virtual CPU kept its queue filled, while the other worker slept;
//! - *blocked*: stuck without use of a processor, because it said so ([`crate::block_in_place`]) or because the kernel says that its
//!   thread sleeps, at two looks in a row in the same poll, and until it computes again. So is a poll in tokio's own `block_in_place`, of
//!   which nobody tells us.
//!
//! # What is done, for any of them
//! 1. Absent for a tick: the host is asked again, from here, which puts the virtual CPU where every worker looks.
//! 2. Work waits at one that is stuck, and somebody idles: that one is woken, and relieves (`vcpu::migrate`).
//! 3. Nobody idles: whoever is awake and not stuck relieves at its next balancing, within a turn or its present poll.
//! 4. A stand-in comes for each that is blocked (its processor is free), up to the number of their slots, some 4 ms after the last; and one, the *spare*, if every regular one has been stuck
//!    for [`SPARE_AFTER`]. A spare competes with long polls for processors by the operating system's rules, not by weights: hence
//!    the delay, only one, and rule 8 of `vcpu`.
//! 5. A virtual CPU that stands back (rule 8) is woken at each look: polls that go on pay its tasks' debts.
//!
//! Nobody comes for a current-thread runtime whose thread is not in a poll of ours: it cannot be told from one that is not driven.
//!
//! Work is whatever waits in slot, inbox or queue, budget that waits in the mailbox, and places that are to be given back: all that
//! [`Shared::has_work`] counts. What is seen here is a hint; those who are woken look again under the proper locks.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use quotient_core::Nanos;

use crate::shared::Shared;
use crate::tick::TICK;
use crate::vcpu;

/// A poll this long is *stuck* if work waits behind it. Unit: nanoseconds. Default: two ticks.
pub(crate) const STUCK: Nanos = Nanos::from_micros(2_000);
/// How long all regular virtual CPUs must have been stuck before the spare comes. Unit: nanoseconds. Default 20 ms: polls up to that
/// keep their group's weight exactly, since nothing but the virtual CPUs polls tasks; and beyond it, people notice the delay.
pub(crate) const SPARE_AFTER: Nanos = Nanos::from_micros(20_000);

/// How often it is looked whether a poll that sleeps computes again. Unit: nanoseconds. Default 8 ms: with 256 of them that is some 15 us
/// in each millisecond.
const LOOK_AGAIN: Nanos = Nanos::from_micros(8_000);

/// What the watch remembers of one virtual CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Its count of turns, and since when that has stood still.
    turns: u64,
    since: Nanos,
    /// The poll (`polling_since`) whose thread was asleep at the last look.
    asleep: u64,
    /// When the kernel is asked again whether its thread sleeps.
    ask_at: Nanos,
    /// The processor time of the thread of a poll that sleeps, and when that was.
    used: Nanos,
    used_at: Nanos,
}

/// The watch over one scheduler.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    seen: Vec<Seen>,
}

impl Watch {
    /// One look at every virtual CPU; whether tasks wait anywhere. O(virtual CPUs), and one read of a small file for each stuck one
    /// while nobody serves.
    pub(crate) fn look(&mut self, shared: &Arc<Shared>, now: Nanos) -> bool {
        self.seen.resize(shared.slots_in_use(), Seen::default());
        let mut waiting = false;
        let mut needy = false;
        let mut stood_back = false;
        for index in 0..self.seen.len() {
            let vcpu = &shared.vcpus[index];
            let work = shared.has_work(index);
            waiting |= work;
            self.look_for_absence(shared, index, now);
            let since = vcpu.polling_since.load(Ordering::Relaxed);
            let long = since != 0 && now.saturating_sub(Nanos(since - 1)) >= TICK;
            if long {
                vcpu.resched.store(true, Ordering::Relaxed);
                shared.note_lasting(index, since);
                self.look_whether_it_computes(shared, index, since, now);
            }
            let stuck = shared.is_stuck(index, now);
            if shared.stands_back(index) {
                shared.wake_vcpu(index);
                stood_back = true;
            }
            needy |= work && (stuck || long);
        }
        if stood_back {
            // Behind polls that compute, it thinks.
            self.look_for_sleepers(shared, now);
        } else if needy && !shared.kick_idle(0) {
            self.look_for_sleepers(shared, now);
            vcpu::stand_in(shared);
        }
        self.send_home(shared, now);
        waiting
    }

    /// Item 1.
    fn look_for_absence(&mut self, shared: &Shared, index: usize, now: Nanos) {
        let vcpu = &shared.vcpus[index];
        let seen = &mut self.seen[index];
        let turns = vcpu.turns.load(Ordering::Acquire);
        let ready = turns.is_multiple_of(2)
            && vcpu.online.load(Ordering::Relaxed)
            && !vcpu.park.is_sleeping();
        if turns != seen.turns || !ready {
            seen.turns = turns;
            seen.since = now;
            return;
        }
        if now.saturating_sub(seen.since) < TICK {
            return;
        }
        let gated = vcpu.gated_at.load(Ordering::Relaxed);
        if gated != 0 && now.saturating_sub(Nanos(gated - 1)) < STUCK && !shared.idle.any() {
            // What its thread does is the groups' work, and nobody could take over. Asked again, the host would poll it before the
            // yields that it has deferred, and it would choose from what is left.
            return;
        }
        if vcpu.absent.load(Ordering::Relaxed) == 0 {
            let since = seen.since.as_nanos().wrapping_add(1);
            vcpu.absent.store(since, Ordering::Relaxed);
            // Its turn may have begun meanwhile, and cleared the word before that.
            fence(Ordering::SeqCst);
            if vcpu.turns.load(Ordering::Relaxed) != turns {
                vcpu.absent.store(0, Ordering::Relaxed);
                return;
            }
        }
        vcpu.park.wake_host();
    }

    /// Whether polls that are stuck sleep in the kernel. The older a poll that computes, the more seldom the kernel is asked.
    fn look_for_sleepers(&mut self, shared: &Shared, now: Nanos) {
        for index in 0..self.seen.len() {
            let vcpu = &shared.vcpus[index];
            let poll = vcpu.polling_since.load(Ordering::Relaxed);
            if poll == 0 || shared.is_blocked(index) || !shared.is_stuck(index, now) {
                continue;
            }
            let seen = &mut self.seen[index];
            let age = now.saturating_sub(Nanos(poll - 1));
            // An old time of asking may belong to the poll before.
            if now < seen.ask_at && seen.ask_at.saturating_sub(now) < age {
                continue;
            }
            if !sleeps(vcpu.thread.load(Ordering::Relaxed)) {
                seen.asleep = 0;
                seen.ask_at = now.saturating_add(age.min(SPARE_AFTER));
            } else if seen.asleep == poll {
                seen.used = shared.processor_time_of(index);
                seen.used_at = now;
                vcpu.asleep.store(poll, Ordering::Relaxed);
            } else {
                seen.asleep = poll;
            }
        }
    }

    /// A poll that was seen to sleep and has computed for half of the time since the last look at it is not blocked any more: its processor
    /// is not free, and it counts among those that compute.
    fn look_whether_it_computes(&mut self, shared: &Shared, index: usize, poll: u64, now: Nanos) {
        let (vcpu, seen) = (&shared.vcpus[index], &mut self.seen[index]);
        let elapsed = now.saturating_sub(seen.used_at);
        let was_asleep = vcpu.asleep.load(Ordering::Relaxed) == poll;
        if !was_asleep || elapsed < LOOK_AGAIN || shared.preempt.is_some() {
            return;
        }
        let used = shared.processor_time_of(index);
        if used.saturating_sub(seen.used) >= Nanos(elapsed.0 / 2) {
            seen.asleep = 0;
            vcpu.asleep.store(0, Ordering::Relaxed);
        }
        seen.used = used;
        seen.used_at = now;
    }

    /// Stand-ins that sleep and are no longer wanted are woken, so that they end.
    fn send_home(&self, shared: &Shared, now: Nanos) {
        let stand_ins = shared.regular..shared.slots_in_use();
        let mut sleeping = stand_ins
            .filter(|index| {
                let vcpu = &shared.vcpus[*index];
                vcpu.online.load(Ordering::Relaxed) && vcpu.park.is_sleeping()
            })
            .peekable();
        if sleeping.peek().is_none() {
            return;
        }
        let wanted = shared.stand_ins_wanted(now);
        for index in sleeping.filter(|index| index - shared.regular >= wanted) {
            shared.wake_vcpu(index);
        }
    }
}

/// The calling thread's number, for [`sleeps`]; 0 where threads have none.
#[inline]
pub(crate) fn thread_number() -> u32 {
    #[cfg(target_os = "linux")]
    {
        thread_local! {
            static NUMBER: u32 = u32::try_from(rustix::thread::gettid().as_raw_pid()).unwrap_or(0);
        }
        NUMBER.try_with(|number| *number).unwrap_or(0)
    }
    #[cfg(not(target_os = "linux"))]
    0
}

/// Whether the kernel says that a thread of this process sleeps. False where that is not to be known.
fn sleeps(thread: u32) -> bool {
    let asleep = |thread| quotient_pause::is_thread_asleep(thread).unwrap_or(false);
    thread != 0 && i32::try_from(thread).is_ok_and(asleep)
}
