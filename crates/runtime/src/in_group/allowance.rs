//! What a group may compute in foreign tasks between two turns of its gates.
//!
//! A gate's way (a task, a choice, a wake-up, a return to the host) costs a microsecond or two, more than most futures that are ready
//! at once. So a turn is worth more than one poll: after its member was chosen, a group may go on in foreign tasks for as long as a
//! virtual CPU's turn lasts, without asking again, if what is left of that is there when a poll begins. A virtual CPU that has chosen
//! a task of the group would go on with it for as long.
//!
//! - *Weights:* such polls are charged to the group at once, as those behind gates are, and nobody but a virtual CPU's choice
//!   gives new allowance: a group that is ahead of its share is not chosen, and has none when the last is spent. A poll longer
//!   than the allowance is paid off by as many turns.
//! - *Long polls* gain nothing that could be measured: after one, the group waits for its turns until it has had a short one.
//! - *Limits:* a group with a limit, its own or one above, has no allowance. Nor has one that is frozen.
//! - *Bound:* what groups may have beyond their share at any moment is one allowance each, and the rest of a poll on each of the
//!   host's workers, since looking and spending are two steps.

use quotient_core::Nanos;

use crate::primitives::{AtomicU64, Ordering};

/// What one turn of a gate is worth. Unit: nanoseconds. Default 200 us: the length of a virtual CPU's turn of short polls.
const ALLOWANCE: Nanos = Nanos(200_000);

/// One group's allowance. Any thread may call anything.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    /// What was spent of it; beyond [`ALLOWANCE`] it is owed to later turns. Unit: nanoseconds; wraps after five centuries.
    spent: AtomicU64,
}

impl Allowance {
    /// Whether a poll may begin. One relaxed load.
    #[inline]
    pub(super) fn is_left(&self) -> bool {
        self.spent.load(Ordering::Relaxed) < ALLOWANCE.as_nanos()
    }

    /// A poll without a turn took `time`.
    #[inline]
    pub(super) fn spend(&self, time: Nanos) {
        self.spent.fetch_add(time.as_nanos(), Ordering::Relaxed);
    }

    /// A virtual CPU has chosen the group.
    #[inline]
    pub(super) fn renew(&self) {
        if self.spent.load(Ordering::Relaxed) != 0 {
            let less = |spent: u64| Some(spent.saturating_sub(ALLOWANCE.as_nanos()));
            let _ = self
                .spent
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_poll_beyond_the_allowance_is_paid_off_by_turns() {
        let allowance = Allowance::default();
        allowance.spend(Nanos(ALLOWANCE.as_nanos() - 1));
        assert!(allowance.is_left());
        allowance.spend(Nanos(1 + 3 * ALLOWANCE.as_nanos()));
        for _ in 0..3 {
            assert!(!allowance.is_left());
            allowance.renew();
        }
        assert!(!allowance.is_left());
        allowance.renew();
        assert!(allowance.is_left());
        // Turns that nothing was spent after are not saved up.
        allowance.renew();
        allowance.renew();
        allowance.spend(ALLOWANCE);
        assert!(!allowance.is_left());
    }
}
