//! What polls use although policy wants them to stand: under guards of `uninterrupted`, in short turns, between coming back from a block
//! and being stopped again, and where they cannot be stopped (the program has put another handler in place for the signal).
//!
//! # It is charged as it comes
//! A bearer is charged when its proxy's turn is over, and a group without budget has no turns: so what many of its bearers used meanwhile was
//! charged long after each of them had had it, and the group began more of the kind whenever it was refilled. (Tasks of 45 ms each under a guard
//! had 11 s of CPU time in 14 s under a limit of 5 %.) So the watch marks who is not standing although it should ([`Carrier::runs_over`]), and
//! the tick thread charges the budgets and clocks of its group by what it has used so far. They are in debt then, and nothing of theirs begins
//! until that is paid. Of a group that is frozen without a limit the clocks are charged, since its proxies are chosen no more. Virtual time is paid with the bearer's next charge, as what others account for is.
//! The watch cannot charge by itself: a budget's lock may be held by a poll that stands.
//!
//! # How much
//! Guards are good for [`GUARDED_MAX`] in a poll, and for as much ahead of what a limit earns in all polls of the limited group and below it
//! together (`GroupShared::overtime`): after that guards are no reason not to stand. Otherwise each of as many polls as can be borne had its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quotient_core::Nanos;
use quotient_pause::Pause;

use super::carrier::Carrier;
use super::{Preempting, lock};
use crate::group::GroupShared;
use crate::shared::Shared;
use crate::vcpu::look_at_refill;

/// What `uninterrupted` guards are good for in a poll, in all of it, and in all polls of a limited group ahead of its limit. Unit: nanoseconds
/// of CPU time. 50 ms, some thousand times a section that deserves one; a tenant that forgets its guard, or is hostile, has that much beyond its
/// turns in a poll, and pays for it.
pub(super) const GUARDED_MAX: Nanos = Nanos::from_micros(50_000);

/// For how long guards have kept a poll going that should stand. The watch's alone.
#[derive(Debug, Default)]
pub(super) struct Guarded {
    /// The region, by number.
    region: AtomicU64,
    /// Its thread's CPU time, plus 1, when that was seen last; 0 if it has stood since. Unit: nanoseconds.
    at: AtomicU64,
    /// How much of that time so far. Unit: nanoseconds.
    sum: AtomicU64,
    /// The watch has insisted, and does not know yet whether it was heard.
    insisted: AtomicBool,
}

impl Guarded {
    /// It goes on in this region, its thread at `cpu`: how much more that is since the last look, and how much in all.
    fn goes_on(&self, region: u64, cpu: Nanos) -> (Nanos, Nanos) {
        let now = cpu.as_nanos() + 1;
        if self.region.swap(region, Ordering::Relaxed) != region {
            self.sum.store(0, Ordering::Relaxed);
            self.at.store(0, Ordering::Relaxed);
        }
        let before = self.at.swap(now, Ordering::Relaxed);
        let since = if before == 0 { now } else { before };
        let more = now.saturating_sub(since);
        let sum = self.sum.load(Ordering::Relaxed) + more;
        self.sum.store(sum, Ordering::Relaxed);
        (Nanos(more), Nanos(sum))
    }

    /// It was asked to stop in spite of its guards.
    pub(super) fn has_insisted(&self) {
        self.insisted.store(true, Ordering::Relaxed);
    }

    /// It stands; whether that is since it was asked so.
    pub(super) fn stands(&self) -> bool {
        self.at.store(0, Ordering::Relaxed);
        self.insisted.swap(false, Ordering::Relaxed)
    }
}

impl Carrier {
    /// What should stand does not: whether it has had [`GUARDED_MAX`] of its thread's CPU time so in this region, or its group in all; of one that
    /// computes for a payer with a limit, that one.
    pub(super) fn is_guarded_for_long(&self, pause: &Pause, at: Nanos) -> bool {
        let region = pause.region().number();
        let now = self.cpu_time().unwrap_or_default();
        let (more, sum) = self.guarded().goes_on(region, now);
        let payers = self.others().with_payer(|payer, at| {
            let is_limited = payer.is_limited();
            is_limited.then(|| is_used_up(payer, more, at))
        });
        let own = || Some(is_used_up(self.group()?, more, at));
        let together = payers.flatten().or_else(own).unwrap_or(false);
        let is_long = sum >= GUARDED_MAX || together;
        if is_long {
            // Should it not be heard, not again at once.
            self.guarded().sum.store(0, Ordering::Relaxed);
        }
        is_long
    }
}

/// A poll of `group` went on for `time`, up to `now`, by a guard or after a loan; whether these are good for no more there. O(depth).
pub(crate) fn is_used_up(group: &Arc<GroupShared>, time: Nanos, now: Nanos) -> bool {
    group.lineage().fold(false, |used_up, group| {
        group.overtime.add(time, now);
        used_up || group.overtime.at(now) >= GUARDED_MAX
    })
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
/// is a limit, or a freeze that should have stopped it.
pub(super) fn charge_so_far(shared: &Shared, bearer: &Carrier) {
    let now = shared.now();
    if let Some(due) = bearer.take_charge_of_others() {
        due.charge();
    }
    let waits_for_long = |group: &&Arc<GroupShared>| group.is_limited() || group.is_held_inside();
    let Some(group) = bearer.group().filter(waits_for_long) else {
        return look_at_refill(shared);
    };
    let time = bearer.take_charge_so_far();
    if time != Nanos::ZERO {
        group.core.show_foreign_cpu_time(0, time);
        group.core.charge_foreign_budget(time, now);
        if !bearer.buries() {
            group.dead_make_way(time, now);
        }
    }
    look_at_refill(shared);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use quotient_core::Limit;

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
        above.overtime.set_limit(Some(limit), millis(1));
        assert!(!is_used_up(&below[0], millis(30), millis(1)));
        assert!(is_used_up(&below[1], millis(20), millis(1)), "together");
        // 200 ms earn 10.
        assert!(!is_used_up(&below[0], millis(1), millis(201)));
        assert!(!is_used_up(&below[0], millis(8), millis(201)));
        assert!(is_used_up(&below[0], millis(1), millis(201)));
        above.overtime.set_limit(None, millis(201));
        assert!(!is_used_up(&below[0], millis(1_000), millis(201)));
    }
}
