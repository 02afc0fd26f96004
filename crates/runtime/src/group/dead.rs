//! The dead of limited groups; the protocol is in the header of `group::shared`.
//!
//! # What they cost others
//! A dead task of a throttled group leaves the group's queue for its seat in another's, and goes back if those before it have used up what the
//! dead may. All that is work which nobody's poll pays for. So it is bounded:
//! - *No more than [`SEATED_MAX`] of a limited group sit elsewhere at a time*: so many at most go back, and only these.
//! - *Once they have used up what they may, they wait until half of it is earned again*: of the 5 ms that come then, what goes back takes a
//!   hundredth.
//! - *The search for them* (`vcpu::release`) is paid for by the group, and takes no more than a twentieth of a virtual CPU that has other work.
//!
//! So a dead task is moved to its seat once, and back by one in some hundred.
//!
//! # What others leave them
//! Policy keeps the dead back by none of their group's budgets: they have what the limit earns, whoever else had it. So what others use beyond
//! their turns (guards, short turns: `preempt::overtime`) is theirs no more, up to three quarters of it, so that they get on in any case.
//! (64 groups of a tenant below one limit, whose functions were aborted all the time beside functions that compute without end, had 0.07 to
//! 0.12 CPUs of 0.05: the dead had all of the limit, and short turns of the functions came on top.)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use quotient_core::{Limit, Nanos};

use super::ahead::Ahead;
use super::shared::GroupShared;

/// How much CPU time the dead of a limited group may use ahead of what its limit earns. Unit: nanoseconds. Default 10 ms: thousands of
/// ordinary destructors, and 1 % of the budget that a limit of a fifth of a processor earns in five seconds.
const DEAD_ALLOWANCE: Nanos = Nanos::from_millis(10);
/// Once that is used up, how much of it they are ahead at most when they go on. Unit: nanoseconds. Half of it.
const GOES_ON_AT: Nanos = Nanos::from_millis(5);
/// What of the limit others, while they use it beyond their turns, take from the dead: three quarters, of a second at a time, so that the dead get on
/// in any case.
const OTHERS_PART: (u64, u64) = (3, 4);
/// How many of a limited group and below it sit elsewhere at once. Unit: tasks. As many as one part of a search finds.
const SEATED_MAX: u32 = 64;

/// What a limited group has of the dead in it and below it.
#[derive(Debug, Default)]
pub(super) struct Dead {
    ahead: Ahead,
    /// What others have used beyond their turns, of which the dead wait for [`OTHERS_PART`] of the limit.
    others: Ahead,
    /// They have used up what they may, and it is not half earned again.
    wait: AtomicBool,
    /// Those that sit in another group's place.
    seated: AtomicU32,
}

impl Dead {
    pub(super) fn set_limit(&self, limit: Option<Limit>, now: Nanos) {
        self.ahead.set_limit(limit, now);
        self.others.set_limit(limit, now);
    }

    /// Others have used `time` beyond their turns.
    fn make_way(&self, time: Nanos, now: Nanos) {
        let (part, of) = OTHERS_PART;
        let room = self.others.earns_in_a_second();
        let room = room.saturating_sub(self.others.at(now));
        let time = Nanos(room.as_nanos() / of * part).min(time);
        self.others.add(Nanos(time.as_nanos() / part * of), now);
        self.ahead.add(time, now);
    }

    /// Whether they wait for the limit.
    fn waits(&self, now: Nanos) -> bool {
        let ahead = self.ahead.at(now);
        if ahead == Nanos::ZERO && !self.wait.load(Ordering::Relaxed) {
            return false;
        }
        if ahead >= DEAD_ALLOWANCE {
            self.wait.store(true, Ordering::Relaxed);
        } else if ahead < GOES_ON_AT {
            self.wait.store(false, Ordering::Relaxed);
        }
        self.wait.load(Ordering::Relaxed)
    }

    /// How long they will.
    fn wait_at(&self, now: Nanos) -> Nanos {
        if !self.waits(now) {
            return Nanos::ZERO;
        }
        let more = self.ahead.at(now).saturating_sub(GOES_ON_AT);
        self.ahead.earned_in(more).saturating_add(Nanos(1))
    }
}

/// A dead task sits in another group's place while this lives.
#[derive(Debug)]
pub(crate) struct SeatOfTheDead(Arc<GroupShared>);

impl Drop for SeatOfTheDead {
    fn drop(&mut self) {
        for group in self.0.lineage() {
            group.dead.seated.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl GroupShared {
    /// Where a dead task of a limited group is queued: in the lowest group above it that no limit holds. The root group has none. `None` if
    /// they have used too much, or as many sit there as may: then it waits for its own group's turn.
    pub(crate) fn seat_of_the_dead(
        self: &Arc<Self>,
        now: Nanos,
    ) -> Option<(Arc<Self>, SeatOfTheDead)> {
        if !self.has_seats_for_the_dead() || self.dead_are_in_debt(now) {
            return None;
        }
        let mut above = std::iter::successors(Some(self), |group| group.parent.as_ref());
        let seat = above.find(|group| !group.is_limited()).cloned()?;
        for group in self.lineage() {
            group.dead.seated.fetch_add(1, Ordering::Relaxed);
        }
        Some((seat, SeatOfTheDead(self.clone())))
    }

    /// Whether another of the group's dead may sit elsewhere. O(depth).
    pub(crate) fn has_seats_for_the_dead(self: &Arc<Self>) -> bool {
        self.lineage()
            .all(|group| group.dead.seated.load(Ordering::Relaxed) < SEATED_MAX)
    }

    /// Whether the dead of the group, or of one above it with a limit, have used more than they may ahead of it. O(depth).
    pub(crate) fn dead_are_in_debt(self: &Arc<Self>, now: Nanos) -> bool {
        self.lineage().any(|group| group.dead.waits(now))
    }

    /// How long that will be so. O(depth).
    pub(crate) fn dead_wait_for(self: &Arc<Self>, now: Nanos) -> Nanos {
        let waits = self.lineage().map(|group| group.dead.wait_at(now));
        waits.max().unwrap_or(Nanos::ZERO)
    }

    /// The group pays for `time` that was used up to `now` on the virtual CPU `place`, in no turn of its own. O(depth).
    pub(crate) fn pay_elsewhere(&self, time: Nanos, place: usize, now: Nanos) {
        self.core.show_foreign_cpu_time(place, time);
        self.core.charge_foreign_cpu_time(time, now);
    }

    /// A dead task of the group used `time` in the place of another group, up to `now`, on the virtual CPU `place`. O(depth).
    #[cold]
    pub(crate) fn pay_for_the_dead(self: &Arc<Self>, time: Nanos, place: usize, now: Nanos) {
        self.pay_elsewhere(time, place, now);
        self.dead_have_used(time, now);
    }

    /// Others than the dead used `time` of the group beyond their turns (`preempt::overtime`): the dead have that much less. O(depth).
    pub(crate) fn dead_make_way(self: &Arc<Self>, time: Nanos, now: Nanos) {
        for group in self.lineage() {
            group.dead.make_way(time, now);
        }
    }

    /// The dead of the group used `time` that is paid for otherwise. O(depth).
    pub(crate) fn dead_have_used(self: &Arc<Self>, time: Nanos, now: Nanos) {
        for group in self.lineage() {
            group.dead.ahead.add(time, now);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_others_use_beyond_their_turns_is_the_deads_too() {
        let millis = Nanos::from_millis;
        let dead = || {
            let dead = Dead::default();
            dead.set_limit(Some(Limit::new(millis(5), millis(100))), millis(0));
            dead
        };
        // How many milliseconds the dead have in 100 seconds, of 5,000, beside others who use `beside` in each period of 100 ms.
        let has = |beside: u64| {
            let (dead, mut used) = (dead(), Nanos::ZERO);
            for now in (0..100_000).map(millis) {
                if now.as_nanos() % millis(100).as_nanos() == 0 {
                    dead.make_way(millis(beside), now);
                }
                if !dead.waits(now) {
                    dead.ahead.add(millis(1), now);
                    used = used.saturating_add(millis(1));
                }
            }
            used.as_nanos() / millis(1).as_nanos()
        };
        assert!((5_000..=5_011).contains(&has(0)), "{}", has(0));
        assert!((3_000..=3_011).contains(&has(2)), "{}", has(2));
        // They get on nevertheless, and what was had at once is not held against them for long.
        assert!((1_200..=1_290).contains(&has(5)), "{}", has(5));
        assert!((1_200..=1_290).contains(&has(500)), "{}", has(500));
        let dead = dead();
        dead.make_way(millis(100_000), millis(0));
        assert!(dead.waits(millis(0)) && !dead.waits(millis(1_000)));
    }
}
