//! The CPU's side of limits: which groups are limited, what they are charged, and what tasks of theirs count.

use super::{ROOT, RunQueue};
use crate::bandwidth::{Meter, Opened};
use crate::gates::Gates;
use crate::node::NONE;
use crate::timeline::Timeline;
use crate::units::Nanos;

impl<T, G: Gates> RunQueue<T, G> {
    /// How long the current task may run before some group's balance on this CPU is used up; `None` without a current
    /// task or a limit on its path. When that time is over, [`RunQueue::charge`] takes more from the pool if there is
    /// any, and [`RunQueue::should_resched`] says whether there was. O(depth).
    pub fn runtime_left(&self, now: Nanos) -> Option<Nanos> {
        if self.current == NONE {
            return None;
        }
        let uncharged = self.pending.saturating_add((now - self.last).0);
        let mut level = self.timelines[self.leaf as usize].limited;
        let mut least = None;
        while level != NONE {
            let timeline = &self.timelines[level as usize];
            let room = timeline
                .meter
                .as_ref()
                .map_or(u64::MAX, |meter| meter.room());
            let room = room.min(if self.scavenging.is_empty() {
                u64::MAX
            } else {
                self.publish_interval
            });
            least = Some(least.map_or(room, |least: u64| least.min(room)));
            level = self.limited_above(level);
        }
        least
            .filter(|&room| room < u64::MAX)
            .map(|room| Nanos(room.saturating_sub(uncharged)))
    }

    /// Ends the batch where the first balance on the chain does.
    #[inline(never)]
    pub(super) fn limit_by_budget(&mut self) {
        let mut least = u64::MAX;
        let mut level = self.timelines[self.leaf as usize].limited;
        self.overdrawn = false;
        while level != NONE {
            if let Some(meter) = self.timelines[level as usize].meter.as_deref() {
                let room = meter.room();
                self.overdrawn |= room < u64::MAX && meter.local.balance() <= 0;
                least = least.min(room);
            }
            level = self.limited_above(level);
        }
        self.budget = self.budget.min(least);
        self.limit = self.limit.min(least);
        if self.overdrawn || !self.scavenging.is_empty() {
            // One poll at a time.
            self.limit = 0;
        }
    }

    /// The nearest limited timeline above a timeline, or `NONE`.
    pub(super) fn limited_above(&self, level: u32) -> u32 {
        let parent = self.timelines[level as usize].parent;
        if parent == NONE {
            NONE
        } else {
            self.timelines[parent as usize].limited
        }
    }

    /// Charges the budget of one limited level.
    #[inline(never)]
    pub(super) fn debit(&mut self, level: u32, delta: u64) {
        let Some(meter) = self.timelines[level as usize].meter.as_deref() else {
            return;
        };
        if meter.opened == Opened::Scavenging {
            meter.bandwidth.add_overage(delta);
            return;
        }
        let mut delta = delta;
        if !meter.bandwidth.is_enabled() {
            // Lifted, which this CPU follows after this charge.
            delta = meter.bandwidth.limited_part(delta, self.last);
        }
        if meter.bandwidth.rules.expires_slices() {
            meter.local.expire(meter.bandwidth.period());
        }
        let left = meter.local.charge(delta);
        if left > 0
            || meter
                .bandwidth
                .take(&meter.local, delta, self.last, &self.changes.timers)
        {
            return;
        }
        if meter.room() == 0 {
            // A throttle is due: at the next choice, not in the middle of a poll.
            (self.throttle_due, self.repick) = (true, true);
        }
    }

    /// Whether a limited group may be chosen: it has a balance, or gets one, or is exempt.
    pub(super) fn may_enter(&self, level: u32) -> bool {
        let Some(meter) = self.timelines[level as usize].meter.as_deref() else {
            return true;
        };
        meter.local.balance() > 0
            || meter.opened != Opened::Scavenging
                && meter
                    .bandwidth
                    .take(&meter.local, 0, self.last, &self.changes.timers)
            || meter.room() > 0
    }

    /// Counts tasks that become runnable (or cease to be) in a timeline, as far up as nothing keeps them back. O(1) as long as
    /// it is always below the same limits.
    #[inline]
    pub(super) fn count_active(&mut self, level: u32, by: i32) {
        let limited = self.timelines[level as usize].limited;
        if limited == self.counting {
            // Without a limit this goes nowhere, which is cheaper than to ask.
            self.uncounted = self.uncounted.wrapping_add(by);
        } else if limited != NONE {
            return self.count_elsewhere(limited, by);
        }
        self.nr = self.nr.wrapping_add_signed(by);
    }

    /// Counts tasks below another limited level than `counting`. That level becomes `counting`, for which later counts are collected,
    /// unless it or a level above it is throttled.
    #[inline(never)]
    fn count_elsewhere(&mut self, limited: u32, by: i32) {
        if !self.is_kept_back(limited) {
            self.settle_counts();
            (self.counting, self.uncounted) = (limited, by);
            self.nr = self.nr.wrapping_add_signed(by);
            return;
        }
        self.nr_throttled = self.nr_throttled.wrapping_add_signed(by);
        let mut level = limited;
        while level != NONE {
            if let Some(meter) = self.timelines[level as usize].meter.as_deref_mut() {
                meter.active = meter.active.wrapping_add_signed(by);
                if meter.throttled {
                    return;
                }
            }
            level = self.limited_above(level);
        }
    }

    /// Brings the counts of all limited levels up to date. To be called before one of them is throttled, or limited no more, or
    /// counted anew. The count of a throttled level is always right: nothing is collected for it. O(depth).
    pub(super) fn settle_counts(&mut self) {
        let by = core::mem::take(&mut self.uncounted);
        let mut level = core::mem::replace(&mut self.counting, NONE);
        while level != NONE {
            if let Some(meter) = self.timelines[level as usize].meter.as_deref_mut() {
                meter.active = meter.active.wrapping_add_signed(by);
            }
            level = self.limited_above(level);
        }
    }

    /// What is yet to be added to the count of a limited level.
    pub(crate) fn uncounted(&self, level: u32) -> i32 {
        let mut at = self.counting;
        while at != NONE && at != level {
            at = self.limited_above(at);
        }
        if at == NONE { 0 } else { self.uncounted }
    }

    /// Counts a runnable task that defers throttles, at all limited levels.
    pub(super) fn count_deferring(&mut self, leaf: u32, by: i32) {
        let timeline = &mut self.timelines[leaf as usize];
        timeline.deferring = timeline.deferring.wrapping_add_signed(by);
        let mut level = timeline.limited;
        while level != NONE {
            if let Some(meter) = self.timelines[level as usize].meter.as_deref_mut() {
                meter.deferring = meter.deferring.wrapping_add_signed(by);
            }
            level = self.limited_above(level);
        }
    }

    /// Follows a change of a group's limit: begins or ends to charge its budget here. What the current task (and those before
    /// it that are not charged yet) ran is charged with the time for which there was a limit.
    pub(super) fn follow_limit(&mut self, level: u32) {
        let metered = self.timelines[level as usize].meter.is_some();
        match (self.has_limit(level), metered) {
            (true, false) => self.attach_meter(level, false),
            (false, true) => self.detach_meter(level),
            // Balances and debts may be others now.
            (true, true) if self.is_on_chain(level) => {
                self.flush();
                self.set_limit();
            }
            (false, false) if self.is_on_chain(level) => {
                // Set and lifted within one poll.
                let missed = self.limited_pending(level);
                if let Some(bandwidth) = self.timelines[level as usize].group.bandwidth.get()
                    && missed > 0
                {
                    bandwidth.charge_belated(missed, &self.changes.timers);
                }
            }
            _ => {}
        }
    }

    /// How much of what is collected on the chain ran under a limit of one of its groups, which is not metered here.
    fn limited_pending(&self, level: u32) -> u64 {
        let bandwidth = self.timelines[level as usize].group.bandwidth.get();
        match bandwidth {
            Some(bandwidth) if self.unfollowed > 0 && self.is_on_chain(level) => {
                bandwidth.limited_part(self.unfollowed, self.last)
            }
            _ => 0,
        }
    }

    /// Whether a group has a limit that this CPU should know.
    pub(super) fn has_limit(&self, level: u32) -> bool {
        let group = &self.timelines[level as usize].group;
        !group.is_removed()
            && group
                .bandwidth
                .get()
                .is_some_and(|bandwidth| bandwidth.is_enabled())
    }

    fn is_on_chain(&self, level: u32) -> bool {
        let mut at = self.leaf;
        while at != ROOT && at != level {
            at = self.timelines[at as usize].parent;
        }
        at == level
    }

    /// Starts to charge a group's budget. O(1) for a group without children or a `new` timeline, else O(timelines x depth).
    #[cold]
    pub(super) fn attach_meter(&mut self, level: u32, new: bool) {
        // What ran so far ran without a limit, but for the time since it was set.
        let limited = if new { 0 } else { self.limited_pending(level) };
        self.flush();
        let timeline = &mut self.timelines[level as usize];
        let Some(bandwidth) = timeline.group.bandwidth.get().cloned() else {
            return;
        };
        let local = bandwidth.local(self.cpu, &self.load.mailbox);
        if timeline.nr > 0 {
            local.set_busy();
        }
        local.set_throttled(false);
        let mut meter = Meter::new(bandwidth, local);
        (meter.active, meter.deferring) = (timeline.tasks, timeline.deferring);
        let alone = new || timeline.is_leaf();
        timeline.meter = Some(Box::new(meter));
        timeline.limited = level;
        if !alone {
            self.recount();
        }
        if limited > 0 {
            self.debit(level, limited);
        }
        self.set_limit();
    }

    /// Ceases to charge a group's budget; if it is throttled here, it is not any more.
    #[cold]
    pub(super) fn detach_meter(&mut self, level: u32) {
        self.flush();
        self.settle_counts();
        let runnable = self.end_throttle(level, self.last);
        let timeline = &mut self.timelines[level as usize];
        if let Some(meter) = timeline.meter.take() {
            // Nobody says so later.
            meter.local.clear_busy();
        }
        let alone = timeline.is_leaf();
        if alone && timeline.parent != NONE {
            let above = self.limited_above(level);
            self.timelines[level as usize].limited = above;
        } else {
            self.recount();
        }
        self.scavenging.retain(|&other| other != level);
        if runnable {
            self.put_back(level, self.last);
        }
        self.set_limit();
    }

    /// Finds every timeline's nearest limited one anew, and all counts that go by it.
    fn recount(&mut self) {
        self.settle_counts();
        for index in 0..self.timelines.len() as u32 {
            let limited = self.nearest_limited(index);
            let timeline = &mut self.timelines[index as usize];
            timeline.limited = limited;
            if let Some(meter) = timeline.meter.as_deref_mut() {
                (meter.active, meter.deferring) = (0, 0);
            }
        }
        (self.nr, self.nr_throttled) = (0, 0);
        for index in 0..self.timelines.len() as u32 {
            let Timeline {
                tasks,
                deferring,
                vacant,
                ..
            } = self.timelines[index as usize];
            if vacant || tasks == 0 {
                continue;
            }
            self.count_active(index, tasks.cast_signed());
            self.timelines[index as usize].deferring = 0;
            self.count_deferring(index, deferring.cast_signed());
        }
    }

    pub(crate) fn nearest_limited(&self, index: u32) -> u32 {
        let mut level = index;
        while level != NONE {
            let timeline = &self.timelines[level as usize];
            if timeline.meter.is_some() {
                return level;
            }
            level = timeline.parent;
        }
        NONE
    }
}
