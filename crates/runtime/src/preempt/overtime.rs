//! What polls use although policy wants them to stand: under guards of `uninterrupted`, in short turns, and between coming back from a block
//! and being stopped again.
//!
//! # It is charged as it comes
//! A bearer is charged when its proxy's turn is over, and a group without budget has no turns: so what many of its bearers used meanwhile was
//! charged long after each of them had had it, and the group began more of the kind whenever it was refilled. (Tasks of 45 ms each under a guard
//! had 11 s of CPU time in 14 s under a limit of 5 %.) So the watch marks who is not standing although it should ([`Carrier::runs_over`]), and
//! the tick thread charges the budgets and clocks of its group by what it has used so far. They are in debt then, and nothing of theirs begins
//! until that is paid. Virtual time is paid with the bearer's next charge, as what others account for is.
//! The watch cannot charge by itself: a budget's lock may be held by a poll that stands.
//!
//! # How much
//! Guards are good for [`GUARDED_MAX`] in a poll, and for as much ahead of what a limit earns in all polls of the limited group and below it
//! together ([`Overtime`]): after that guards are no reason not to stand. Otherwise each of as many polls as can be borne had its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quotient_core::{Limit, Nanos};

use super::carrier::Carrier;
use super::{Preempting, lock};
use crate::group::GroupShared;
use crate::shared::Shared;
use crate::vcpu::look_at_refill;

/// What `uninterrupted` guards are good for in a poll, in all of it, and in all polls of a limited group ahead of its limit. Unit: nanoseconds
/// of CPU time. 50 ms, some thousand times a section that deserves one; a tenant that forgets its guard, or is hostile, has that much beyond its
/// turns in a poll, and pays for it.
pub(super) const GUARDED_MAX: Nanos = Nanos::from_micros(50_000);

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;

/// What guards have kept going in one limited group and below it. Written by the watch, but for the rate.
#[derive(Debug, Default)]
pub(crate) struct Overtime {
    /// What the limit earns in a second. Unit: nanoseconds of CPU time; 0 without a limit.
    rate: AtomicU64,
    /// When the limit will have earned what guards have used, on the scheduler's clock. Unit: nanoseconds.
    until: AtomicU64,
}

impl Overtime {
    /// The group's own limit is this from now on.
    pub(crate) fn set_limit(&self, limit: Option<Limit>) {
        let earns = |limit: Limit| {
            let (quota, period) = (limit.quota.as_nanos(), limit.period.as_nanos().max(1));
            let rate = u128::from(quota) * SECOND / u128::from(period);
            u64::try_from(rate).unwrap_or(u64::MAX).max(1)
        };
        let rate = limit.map_or(0, earns);
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// A guard has kept a poll going for `time`, up to `now`; whether there is more ahead of the limit than guards are good for.
    fn add(&self, time: Nanos, now: Nanos) -> bool {
        let rate = u128::from(self.rate.load(Ordering::Relaxed));
        if rate == 0 {
            return false;
        }
        let until = Nanos(self.until.load(Ordering::Relaxed)).max(now);
        let earned_in = u128::from(time.as_nanos()) * SECOND / rate;
        let earned_in = Nanos(u64::try_from(earned_in).unwrap_or(u64::MAX));
        let until = until.saturating_add(earned_in);
        self.until.store(until.as_nanos(), Ordering::Relaxed);
        let ahead = u128::from(until.saturating_sub(now).as_nanos()) * rate / SECOND;
        ahead >= u128::from(GUARDED_MAX.as_nanos())
    }
}

/// A guard has kept a poll of `group` going for `time`, up to `now`; whether guards are good for no more there. O(depth).
pub(super) fn is_used_up(group: &Arc<GroupShared>, time: Nanos, now: Nanos) -> bool {
    let add = |used_up, group: &Arc<GroupShared>| group.overtime.add(time, now) || used_up;
    group.lineage().fold(false, add)
}

impl Preempting {
    /// The tick thread: who runs although it should stand pays for what it has used. O(bearers) if there is one.
    pub(super) fn charge_overtime(&self, shared: &Shared) {
        if !self.overtime.swap(false, Ordering::Relaxed) {
            return;
        }
        for index in 0.. {
            // Dropped without the lock, since it may be the last reference.
            let Some(bearer) = lock(&self.watch).bearer(index) else {
                return;
            };
            if bearer.takes_overtime() {
                charge_so_far(shared, &bearer);
            }
        }
    }
}

/// Charges the budgets and clocks of a bearer's group, and of who accounts for a part of its poll by itself, what it has used so far, if there
/// is a limit.
pub(super) fn charge_so_far(shared: &Shared, bearer: &Carrier) {
    let now = shared.now();
    if let Some((group, time)) = bearer.take_charge_of_others() {
        group.core.add_foreign_cpu_time(time, now);
    }
    let Some(group) = bearer.group().filter(|group| group.is_limited()) else {
        return look_at_refill(shared);
    };
    let time = bearer.take_charge_so_far();
    if time != Nanos::ZERO {
        group.core.show_foreign_cpu_time(0, time);
        group.core.charge_foreign_budget(time, now);
    }
    look_at_refill(shared);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn guards_of_many_polls_are_good_for_as_much_as_those_of_one() {
        let tree = quotient_core::GroupTree::new(quotient_core::Config::default());
        let core = |path| tree.group(path).expect("a path");
        let root = Arc::new(GroupShared::new(tree.root(), None, 1));
        let above = Arc::new(GroupShared::new(core("above"), Some(&root), 1));
        let below = ["above/a", "above/b"]
            .map(|path| Arc::new(GroupShared::new(core(path), Some(&above), 1)));
        let millis = Nanos::from_millis;
        // Nothing is limited.
        assert!(!is_used_up(&below[0], millis(1_000), millis(1)));
        let limit = Limit::new(millis(5), millis(100));
        above.overtime.set_limit(Some(limit));
        assert!(!is_used_up(&below[0], millis(30), millis(1)));
        assert!(is_used_up(&below[1], millis(20), millis(1)), "together");
        // 200 ms earn 10.
        assert!(!is_used_up(&below[0], millis(1), millis(201)));
        assert!(!is_used_up(&below[0], millis(8), millis(201)));
        assert!(is_used_up(&below[0], millis(1), millis(201)));
        above.overtime.set_limit(None);
        assert!(!is_used_up(&below[0], millis(1_000), millis(201)));
    }
}
