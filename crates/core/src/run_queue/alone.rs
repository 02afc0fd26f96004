//! Own tasks of a group that are alone on their CPU, while child groups of the same group run elsewhere: what nobody can pay, or use, is
//! forgotten ([`crate::group_time`], *Tasks beside groups*).

use super::RunQueue;
use crate::gates::Gates;
use crate::group_time::{FORGET, Useless};
use crate::timeline::Timeline;
use crate::units::to_virtual;

/// A task that has had so much since it came to be alone on its CPU is no sleeper that waits for a turn as often as not. Unit: nanoseconds. 20 ms, five
/// of the longest turns.
const ALONE_LONG: u64 = 20_000_000;

impl<T, G: Gates> RunQueue<T, G> {
    /// A task that is alone on its CPU can use no more than that, and is not owed more for it; what it was owed before, while something competed
    /// beside it, is forgotten at a part of `own`, its service since the last time. Returns what it is owed beyond; nothing where it has just come to be
    /// alone.
    pub(super) fn useless_of_lone(&mut self, level: u32, own: u64) -> Useless {
        let timeline = &mut self.timelines[level as usize];
        let Some((shares, owed)) = timeline.owed_to_lone() else {
            timeline.had_alone = 0;
            return Useless::default();
        };
        timeline.had_alone = timeline.had_alone.saturating_add(own);
        let for_long = timeline.had_alone >= ALONE_LONG;
        if timeline.may_be_owed == i64::MAX {
            return Useless {
                for_long,
                ..Useless::default()
            };
        }
        let faded = to_virtual(own / FORGET, shares).cast_signed();
        let least = to_virtual(self.service_clock.credit, shares).cast_signed();
        let most = timeline.may_be_owed.saturating_sub(faded).max(least);
        Useless {
            distance: owed.saturating_sub(most),
            shares,
            for_long,
        }
    }

    /// The clock was told, and has `forgotten` that much, in virtual time; `None`: it remembers what the task is owed, whether it can use it or not.
    pub(super) fn has_forgotten(&mut self, level: u32, forgotten: Option<i64>) {
        let credit = self.service_clock.credit;
        let timeline = &mut self.timelines[level as usize];
        let Some(forgotten) = forgotten else {
            timeline.may_be_owed = i64::MAX;
            return;
        };
        timeline.offset = timeline.offset.wrapping_sub(forgotten);
        timeline.may_be_owed = match timeline.owed_to_lone() {
            Some((shares, owed)) => owed.max(to_virtual(credit, shares).cast_signed()),
            None => i64::MAX,
        };
    }

    /// What own tasks that share their CPU with nobody owe is forgotten here as far as the children's clock has forgotten it. (Left as it
    /// was, a task that ended after ten seconds took five along that nobody owed it.)
    pub(super) fn forget_locally(&mut self, level: u32) {
        let timeline = &self.timelines[level as usize];
        let time = &timeline.group.time;
        if timeline.groups() > 0 || timeline.told_crowded || time.remembers_debts() {
            return;
        }
        let (mean, owed) = self.mean_of_tasks(level);
        self.timelines[level as usize].offset = mean.wrapping_add(owed);
    }
}

impl Timeline {
    /// The shares of its own task if that is alone on its CPU and measured by the children's clock, and what it is owed by that, in virtual time.
    fn owed_to_lone(&self) -> Option<(u32, i64)> {
        let shares = u32::try_from(self.average.load()).unwrap_or(u32::MAX);
        let is_alone = self.tasks > 0 && !self.told_crowded && self.groups() == 0;
        let mean = self.average.mean().since(self.group.time.now());
        (is_alone && self.is_anchored && shares > 0)
            .then(|| (shares, self.offset.wrapping_sub(mean)))
    }
}
