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

/// What is known of one group's wait for one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// It waits, since it came last.
    Since(Nanos),
    /// It has waited, up to then.
    Until(Nanos),
    Unknown,
}

impl Wait {
    /// For how much of the time from `from` to `to` it has waited, as far as is known.
    pub(super) fn within(self, from: Nanos, to: Nanos) -> Nanos {
        match self {
            Wait::Since(joined_at) => to.saturating_sub(joined_at.max(from)),
            Wait::Until(left_at) => left_at.min(to).saturating_sub(from),
            Wait::Unknown => Nanos::ZERO,
        }
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

    /// It is about to end, and this is what is known of the lender's wait.
    pub(super) fn was_wanted(&self, wait: Wait) {
        if let Wait::Since(from) = wait {
            self.wanted_from.store(from.as_nanos(), Ordering::Relaxed);
        }
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
