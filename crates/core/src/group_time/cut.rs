//! Cutting lag that a group cannot use ([`super`], *Weights that cannot be used*).

use super::clock::Clock;
use super::{GroupTime, Service};
use crate::group::Group;
use crate::units::{VIRTUAL_SHIFT, VirtualTime, to_service_lag, to_virtual};
use core::sync::atomic::Ordering::Relaxed;

/// What part of its service a group that nothing waits of loses of the credit it had saved up: 1/16 lets go of what can
/// never be used within 16 times its length, and costs a group that works its credit off 6 % of it. Likewise of an own task of the parent that is
/// alone on its CPU.
pub(crate) const FORGET: u64 = 16;

/// Who waits beside a group, with its slack; `None` is an own task of the parent.
pub(crate) type Beside<'a> = Option<(&'a GroupTime, i64)>;

/// What a CPU that publishes is asked only where a group is owed much.
pub(crate) trait Here {
    /// What the group may be owed before it is cut for what siblings got that owed, ns.
    fn slack(&self) -> i64;
    /// v of the first sibling that waits on this CPU, as it was before its last turn if it was owed a sleeper's credit then.
    fn first(&self) -> Option<VirtualTime>;
    /// Those that wait on this CPU beside the group. False if there are too many to be shown: then they are not all.
    fn for_each_waiting(&self, act: &mut dyn FnMut(Beside<'_>)) -> bool;
}

/// From where nothing waits that is known of.
pub(crate) struct Nowhere;

impl Here for Nowhere {
    fn slack(&self) -> i64 {
        i64::MAX
    }

    fn first(&self) -> Option<VirtualTime> {
        None
    }

    fn for_each_waiting(&self, _: &mut dyn FnMut(Beside<'_>)) -> bool {
        true
    }
}

impl GroupTime {
    /// Cuts what the group is owed beyond its credit and cannot use, or beyond its slack and siblings got for want of others. Returns what
    /// is left of `lag`, ns.
    pub(super) fn cut_useless(
        &self,
        group: &Group,
        clock: &mut Clock,
        service: Service,
        lag: i64,
        here: &impl Here,
    ) -> i64 {
        let bound = self
            .ceiling
            .load(Relaxed)
            .saturating_sub_unsigned(service.own / FORGET)
            .max(service.credit.cast_signed());
        let surplus = match clock.surplus.cast_signed() {
            0 => 0,
            surplus => lag.saturating_sub(here.slack()).min(surplus),
        };
        if lag <= bound && surplus <= 0 {
            return lag;
        }
        let useless = if group.cells.anything_waits() {
            surplus
        } else {
            lag - bound
        };
        if useless <= 0 {
            return lag;
        }
        // Not beyond who waits where it runs: level with that one, it can use what it is owed. And a turn of that one is worth as many of its
        // own as it is heavier, which it has to be given first: cut level, the two would have turns of equal length.
        let level = here.first().map_or(0, |v| {
            to_service_lag(clock.now.since(v), self.weight.load(Relaxed))
        });
        let kept = (lag - useless).max(level).min(lag);
        if kept < lag {
            self.cut(clock, self.weight.load(Relaxed), kept);
            clock.surplus = clock.surplus.saturating_sub((lag - kept).unsigned_abs());
        }
        if kept > lag - surplus && clock.surplus > 0 {
            return self.cut_together(clock, kept, here);
        }
        kept
    }

    /// Cuts the group and those that wait where it runs by one and the same virtual time, which leaves them as they are to each other. Returns what
    /// is left of `lag`, ns.
    #[cold]
    fn cut_together(&self, clock: &mut Clock, lag: i64, here: &impl Here) -> i64 {
        let weight = self.weight.load(Relaxed);
        let beyond = |time: &GroupTime, slack: i64| {
            let weight = time.weight.load(Relaxed);
            let kept = to_virtual(slack.max(0).unsigned_abs(), weight).cast_signed();
            clock.now.since(time.v()).saturating_sub(kept)
        };
        let (mut distance, mut all) = (beyond(self, here.slack()), u64::from(weight));
        let is_all = here.for_each_waiting(&mut |waiting| match waiting {
            Some((time, slack)) => {
                distance = distance.min(beyond(time, slack));
                all += u64::from(time.weight.load(Relaxed));
            }
            None => distance = 0,
        });
        let surplus = i128::from(clock.surplus) << VIRTUAL_SHIFT;
        let others = i128::from(clock.weight) - i128::from(all);
        let distance = i128::from(distance).min(surplus / i128::from(all.max(1)));
        if distance <= 0 || others <= 0 || !is_all {
            return lag;
        }
        let total = distance * i128::from(all);
        let further = u64::try_from(total / others).unwrap_or(0);
        let step = u64::try_from(distance).unwrap_or(0).saturating_add(further);
        clock.go_on(further);
        let move_on = |time: &GroupTime| time.v.store(time.v().plus(step).0, Relaxed);
        move_on(self);
        here.for_each_waiting(&mut |waiting| {
            if let Some((time, _)) = waiting {
                move_on(time);
            }
        });
        clock.deficit -= i128::from(step) * i128::from(all);
        let spent = u64::try_from(total >> VIRTUAL_SHIFT).unwrap_or(u64::MAX);
        clock.surplus = clock.surplus.saturating_sub(spent);
        clock.settle();
        to_service_lag(clock.now.since(self.v()), weight)
    }

    /// Cuts what the group is owed down to `bound` ns and gives the rest to its siblings.
    fn cut(&self, clock: &mut Clock, weight: u32, bound: i64) {
        let kept = to_virtual(bound.unsigned_abs(), weight);
        let excess = (clock.now.since(self.v()) - kept.cast_signed()).max(0);
        let others = i128::from(clock.weight) - i128::from(weight);
        let distance = i128::from(excess) * i128::from(weight) / others.max(1);
        clock.go_on(u64::try_from(distance).unwrap_or(0));
        let before = self.v();
        self.v
            .store(clock.now.offset(-kept.cast_signed()).0, Relaxed);
        // Nothing but rounding.
        clock.deficit -= i128::from(self.v().since(before)) * i128::from(weight);
        clock.settle();
    }
}
