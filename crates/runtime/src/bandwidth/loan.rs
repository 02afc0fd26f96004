//! One loan: what of the poll in progress, in a lender's place, that pays for.
//!
//! The virtual CPU that polls the task begins it, under the lock of the deferral's books, and asks what it covers; who gives the lock back, on any thread, takes the lender out under the
//! same lock, and ends it after that. So no end is missed: who begins finds no lender, or the end comes after it. (One that comes late may be of the loan before: then the task's own group
//! pays for a poll that another should have paid.)

use std::sync::atomic::{AtomicU64, Ordering};

use quotient_core::Nanos;

/// What a task may use on loan for each time that it takes a lock. Unit: nanoseconds of CPU time. 250 ms: far more than a critical section, and no endless one.
pub(super) const LOAN_MAX: Nanos = Nanos::from_millis(250);
/// So much of a poll after its loan's end is still the lender's. Unit: nanoseconds. 10 us: to give a lock back and to queue for it again takes some microseconds, and a task
/// that does nothing else should owe nothing for it. (In a debug build it takes ten times that.)
const GRACE: Nanos = Nanos::from_micros(if cfg!(debug_assertions) { 100 } else { 10 });

/// One group's last wait for one lock. Of those before it nothing is known: who lends pays for no more than that one. (Only its end was known once, and who had come back in
/// the last moment of a poll paid for all of it: a second for the 0.17 that it waited, on a busy machine.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) since: Nanos,
    /// `None`: it waits.
    pub(super) until: Option<Nanos>,
}

impl Wait {
    /// How much of it is between `from` and `to`.
    pub(super) fn within(self, from: Nanos, to: Nanos) -> Nanos {
        let until = self.until.map_or(to, |until| until.min(to));
        until.saturating_sub(self.since.max(from))
    }
}

#[derive(Default)]
pub(super) struct Loan {
    /// What was used on loan in all. Unit: nanoseconds; 2^64 would wrap, after 584 years.
    used: AtomicU64,
    /// So much of the poll in progress the lender pays for at most. Unit: nanoseconds.
    left: AtomicU64,
    /// When who lends came to wait, if the loan has ended: it may have been away for a part of the poll. Unit: nanoseconds.
    wanted_from: AtomicU64,
    /// When the loan ended in the poll in progress; 0 if it did not. Unit: nanoseconds of the scheduler's clock.
    ended_at: AtomicU64,
}

impl Loan {
    /// What was used on loan in all. Unit: nanoseconds.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// `time` was used in a lender's place.
    pub(super) fn uses(&self, time: Nanos) {
        self.used.fetch_add(time.as_nanos(), Ordering::Relaxed);
    }

    /// A poll begins at `now`, of which the lender pays for `left` at most.
    pub(super) fn begins(&self, left: u64, now: Nanos) {
        self.ended_at.store(0, Ordering::Relaxed);
        self.wanted_from.store(0, Ordering::Relaxed);
        self.left.store(left, Ordering::Relaxed);
        if left == 0 {
            self.ends(now);
        }
    }

    /// It is about to end, and the lender has waited since then.
    pub(super) fn was_wanted(&self, since: Nanos) {
        self.wanted_from.store(since.as_nanos(), Ordering::Relaxed);
    }

    /// It ends at `now`, unless it has ended before.
    pub(super) fn ends(&self, now: Nanos) {
        let now = now.as_nanos().max(1);
        let _ = self
            .ended_at
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// What of the poll, on loan from `started` on, is the task's own affair at `now`: its loan has ended, and after [`GRACE`] it goes on still; or it has had all that there was, or who lends did
    /// not wait all the time (`waited`, of the time between the two).
    pub(super) fn own_part(
        &self,
        started: Nanos,
        now: Nanos,
        waited: impl FnOnce() -> Nanos,
    ) -> Nanos {
        let ended = match self.ended_at.load(Ordering::Relaxed) {
            0 => now,
            at => Nanos(at).max(started).min(now),
        };
        let from = started.max(Nanos(self.wanted_from.load(Ordering::Relaxed)));
        let lent = ended.saturating_sub(from);
        let lent = lent.min(Nanos(self.left.load(Ordering::Relaxed)));
        let lent = if ended == now && lent > GRACE {
            lent.min(waited())
        } else {
            lent
        };
        let all = now.saturating_sub(started);
        all.saturating_sub(lent.saturating_add(GRACE))
    }
}
