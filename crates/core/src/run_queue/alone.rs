//! Own tasks of a group that have a CPU for themselves, while child groups of the same group run elsewhere: what nobody can pay, or use, is
//! forgotten ([`crate::group_time`], *Tasks beside groups*).

use super::RunQueue;
use crate::gates::Gates;
use crate::group_time::{FORGET, Lone, OWED_MIN};
use crate::node::{NONE, Node};
use crate::timeline::Timeline;
use crate::units::to_virtual;
use crate::watched::Watched;

/// A task that has had so much since it came to be alone on its CPU is no sleeper that waits for a turn as often as not. Unit: nanoseconds. 20 ms, five
/// of the longest turns.
const ALONE_LONG: u32 = 20_000_000;

impl<T, G: Gates> RunQueue<T, G> {
    /// A task that is alone on its CPU can use no more than that, and is not owed more for it; what it was owed before, while something competed
    /// beside it, is forgotten at a part of `own`, its service since the last time. Nor can anybody be paid what it owes.
    pub(super) fn lone(&mut self, level: u32, own: u64) -> Lone {
        let found = self.owed_to_sole(level);
        let beside = self.running_beside(level);
        let timeline = &mut self.timelines[level as usize];
        let Some((shares, owed)) = found else {
            timeline.had_alone = 0;
            return beside;
        };
        let had = u32::try_from(own).unwrap_or(u32::MAX);
        timeline.had_alone = timeline.had_alone.saturating_add(had);
        let faded = to_virtual(own / FORGET, shares).cast_signed();
        let least = to_virtual(self.service_clock.credit, shares).cast_signed();
        let is_long = timeline.had_alone >= ALONE_LONG;
        let most = match timeline.may_be_owed {
            _ if !is_long && beside.shares == shares => beside.most,
            // It has just come to be alone.
            i64::MAX => i64::MAX,
            most => most.saturating_sub(faded).max(least),
        };
        Lone {
            shares,
            owed,
            most,
            least,
            for_long: most < i64::MAX || is_long,
        }
    }

    /// The own task at `level` that runs, and what it is owed by the children's clock, in virtual time.
    fn owed_to_current(&self, level: u32) -> Option<(&Node<T>, i64)> {
        let timeline = &self.timelines[level as usize];
        if self.leaf != level || self.current == NONE || !timeline.is_anchored {
            return None;
        }
        let node = self.slab.get(self.current);
        Some((node, timeline.anchor().since(node.v)))
    }

    /// An own task that runs beside others, and what it may be owed as it has not had a CPU for itself.
    fn running_beside(&self, level: u32) -> Lone {
        let Some((node, owed)) = self.owed_to_current(level) else {
            return Lone::default();
        };
        let watched = &self.timelines[level as usize].watched;
        let most = watched.may_be_owed(self.current, node, self.last);
        let least = to_virtual(self.service_clock.credit, node.shares).cast_signed();
        Lone {
            shares: node.shares,
            owed,
            most: most.max(least),
            least: i64::MAX,
            for_long: true,
        }
    }

    /// Remembers what the own task that runs is owed, if that is more than what is remembered of another one here.
    fn watch(&mut self, level: u32) {
        let Some((node, owed)) = self.owed_to_current(level) else {
            return;
        };
        let watched = self.timelines[level as usize].watched;
        let most = if watched.index == self.current {
            let slack = to_virtual(self.service_clock.credit, node.shares);
            let most = watched.may_be_owed(self.current, node, self.last);
            most.min(owed.saturating_add_unsigned(slack))
        } else if watched.index == NONE || watched.most < owed {
            owed
        } else {
            return;
        };
        self.timelines[level as usize].watched = Watched {
            index: self.current,
            sum_exec: node.sum_exec,
            most,
            at: self.last,
        };
    }

    /// The clock was told, and has `forgotten` that much of what the task is owed, in virtual time, or forgiven as much; `None`: it remembers
    /// all, whether the task can use it or not.
    pub(super) fn has_forgotten(&mut self, level: u32, forgotten: Option<i64>) {
        if let Some(forgotten) = forgotten {
            self.forget(level, forgotten);
        }
        let sole = self.owed_to_sole(level);
        let credit = self.service_clock.credit;
        self.timelines[level as usize].may_be_owed = match sole {
            Some((shares, owed)) if forgotten.is_some() => {
                owed.max(to_virtual(credit, shares).cast_signed())
            }
            _ => i64::MAX,
        };
        self.watch(level);
        self.publish_alone(level, sole);
    }

    /// Takes so much, in virtual time, off what the own task at `level` that runs is owed.
    fn forget(&mut self, level: u32, forgotten: i64) {
        let current = self.current;
        let is_sole = self.owed_to_sole(level).is_some();
        let timeline = &mut self.timelines[level as usize];
        if is_sole && timeline.groups() == 0 {
            timeline.offset = timeline.offset.wrapping_sub(forgotten);
        } else if let Some(node) = self.slab.nodes.get_mut(current as usize) {
            // The groups that wait beside it stay where they are.
            let distance = forgotten.max(0).unsigned_abs();
            node.v = node.v.plus(distance);
            node.deadline = node.deadline.plus(distance);
            timeline.average.advance(distance, node.shares);
        }
    }

    /// Tells this CPU's balancer what an own task is owed that has the CPU for itself: the `sole` one at `level`, and what that is.
    fn publish_alone(&self, level: u32, sole: Option<(u32, i64)>) {
        if level == self.leaf {
            let owed = sole.map(|(shares, owed)| {
                let noise = to_virtual(OWED_MIN.unsigned_abs(), shares).cast_signed();
                (shares, owed - owed.clamp(-noise, noise))
            });
            self.load.publish_alone(level, owed);
        }
    }

    /// The shares of the own task at `level` that has this CPU for itself, and what it is owed by the children's clock, in virtual time: one that is
    /// alone, or that runs while child groups wait beside it, as long as none of them is chosen.
    fn owed_to_sole(&self, level: u32) -> Option<(u32, i64)> {
        let timeline = &self.timelines[level as usize];
        if timeline.groups() == 0 {
            return timeline.owed_to_lone();
        }
        let (node, owed) = self.owed_to_current(level)?;
        let is_sole = timeline.tasks == 1 && !self.anything_beside(timeline.parent);
        is_sole.then_some((node.shares, owed))
    }
}

impl Timeline {
    /// The shares of its own task if that is alone on its CPU and measured by the children's clock, and what it is owed by that, in virtual time.
    fn owed_to_lone(&self) -> Option<(u32, i64)> {
        let shares = u32::try_from(self.average.load()).unwrap_or(u32::MAX);
        let is_alone = self.tasks > 0 && !self.told_crowded && self.groups() == 0;
        (is_alone && self.is_anchored && shares > 0)
            .then(|| (shares, self.offset.wrapping_sub(self.level_of_tasks())))
    }

    /// The offset with which own tasks, with whom no group competes here, would be owed nothing by the groups' clock on average.
    pub(super) fn level_of_tasks(&self) -> i64 {
        self.average.mean().since(self.group.time.now())
    }
}
