//! Charging: the task at once, the groups above it in batches.

use super::catch_up::CATCH_UP_INTERVAL;
use super::{ROOT, RunQueue};
use crate::bandwidth::rules::CHARGE_MAX;
use crate::config::Policy;
use crate::gates::Gates;
use crate::node::NONE;
use crate::units::{Nanos, to_service, to_virtual};

/// What is charged at once is taken for a poll that nobody can interrupt up to this long, where nobody waits beside it. Unit: nanoseconds. Default 10 ms, a
/// tick at 100 Hz: where CPUs that run one task do not tick, they are charged for as long as that was all, and a second of it, taken for a poll, kept what a
/// heavy group cannot use from being cut for as long.
const GRAIN_ALONE_MAX: u64 = 10_000_000;

impl<T, G: Gates> RunQueue<T, G> {
    /// Charges the current task and every group above it up to `now`. Returns what was charged; zero without a
    /// current task. O(depth).
    pub fn charge(&mut self, now: Nanos) -> Nanos {
        self.charge_except(now, Nanos::ZERO)
    }

    /// As [`RunQueue::charge`], but `excluded` of the interval since the last charge belongs to somebody else (a
    /// nested wrap of another group, blocked time, steal). Excluding more than the interval charges nothing.
    pub fn charge_except(&mut self, now: Nanos, excluded: Nanos) -> Nanos {
        if self.current == NONE {
            return Nanos::ZERO;
        }
        let delta = self.charge_task(now, excluded.0);
        self.charge_groups();
        Nanos(delta)
    }

    /// Charges the groups with what was collected for them.
    #[inline]
    fn charge_groups(&mut self) {
        self.follow_limits();
        self.flush();
        self.renew_limit();
    }

    /// As [`RunQueue::charge`], for who needs the clocks to be complete: groups pay at the next switch, as for a poll that goes on, unless their turn
    /// is over by now. O(1) but then.
    pub fn charge_clocks(&mut self, now: Nanos) {
        if self.current == NONE {
            return;
        }
        self.charge_task(now, 0);
        if self.pending >= self.limit {
            self.charge_groups();
        }
    }

    /// Charges the current task and every group above it with `extra` that was spent elsewhere on its behalf, 2^42
    /// (73 minutes) at most. Nothing without a current task. O(depth).
    pub fn charge_extra(&mut self, extra: Nanos) {
        if self.current == NONE {
            return;
        }
        self.charge_time(extra.0.min(CHARGE_MAX));
        self.follow_limits();
        self.flush();
        self.set_limit();
    }

    /// As [`RunQueue::charge_extra`], for time that clocks and budgets have been charged with already
    /// ([`crate::Group::show_foreign_cpu_time`], [`crate::Group::charge_foreign_budget`]): the task and its groups pay in virtual
    /// time only, here and as service published to other CPUs. Nothing without a current task. O(depth).
    pub fn charge_turn(&mut self, extra: Nanos) {
        if self.current == NONE {
            return;
        }
        self.follow_limits();
        self.flush();
        self.charge_service(extra.0.min(CHARGE_MAX));
        self.flush_levels::<false>();
        self.set_limit();
    }

    /// As [`RunQueue::charge_turn`], for time that the task's groups have paid for in virtual time as well
    /// ([`crate::Group::add_foreign_cpu_time`]): only the task itself pays, among what competes inside its group. Nothing without
    /// a current task. O(1).
    pub fn charge_within(&mut self, extra: Nanos) {
        if self.current == NONE {
            return;
        }
        let extra = extra.0.min(CHARGE_MAX);
        let timeline = &mut self.timelines[self.leaf as usize];
        let node = &mut self.slab.nodes[self.current as usize];
        let distance = to_virtual(extra, node.shares);
        node.sum_exec = node.sum_exec.wrapping_add(extra);
        node.v = node.v.plus(distance);
        timeline.average.advance(distance, node.shares);
        if self.service_clock.is_global() {
            self.serve_tasks(self.leaf, extra);
        }
    }

    /// The turn of the groups that the current task belongs to ends with its poll: the next choice starts at the root. For who
    /// knows that they are about to be charged from outside. O(1).
    pub fn end_groups_turn(&mut self) {
        self.repick |= self.leaf != ROOT;
    }

    /// Follows changes before the groups are charged, so that a limit finds what ran under it.
    #[inline]
    pub(super) fn follow_limits(&mut self) {
        if G::bandwidth() {
            self.follow_changes();
        }
    }

    /// Charges the task now and remembers what the groups still have to be charged.
    #[inline(always)]
    pub(super) fn charge_task(&mut self, now: Nanos, excluded: u64) -> u64 {
        let elapsed = (now - self.last).0;
        // The later of the two.
        self.last.0 += elapsed;
        let delta = elapsed.saturating_sub(excluded);
        self.charge_time(delta);
        delta
    }

    #[inline(always)]
    fn charge_time(&mut self, delta: u64) {
        self.charge_service(delta);
        self.clock.charge(delta);
    }

    /// All of a charge but the clocks.
    #[inline(always)]
    fn charge_service(&mut self, delta: u64) {
        let timeline = &mut self.timelines[self.leaf as usize];
        let node = &mut self.slab.nodes[self.current as usize];
        let distance = to_virtual(delta, node.shares);
        node.sum_exec = node.sum_exec.wrapping_add(delta);
        node.v = node.v.plus(distance);
        timeline.average.advance(distance, node.shares);
        self.pending += delta;
    }

    /// Charges the collected service to every level of the chain. O(depth), nothing if there is none.
    pub(crate) fn flush(&mut self) {
        self.flush_levels::<true>();
    }

    /// [`RunQueue::flush`], with or without the budgets.
    #[inline(always)]
    fn flush_levels<const BUDGETS: bool>(&mut self) {
        let delta = core::mem::take(&mut self.pending);
        if delta == 0 {
            return;
        }
        let (mut level, mut waits) = (self.leaf, false);
        if self.service_clock.is_global() {
            self.serve_tasks(level, delta);
            self.timelines[level as usize].owed_inside = false;
        }
        while level != ROOT {
            if BUDGETS && G::bandwidth() && self.timelines[level as usize].meter.is_some() {
                self.debit(level, delta);
            }
            let timeline = &mut self.timelines[level as usize];
            waits |= timeline.nr > 1;
            let (node, parent) = (timeline.node, timeline.parent);
            let node = &mut self.slab.nodes[node as usize];
            let distance = to_virtual(delta, node.shares);
            node.v = node.v.plus(distance);
            self.timelines[parent as usize]
                .average
                .advance(distance, node.shares);
            // Looked at here as well as at the choice: a group that runs alone is never chosen anew.
            self.serve_group(level, delta, waits);
            let index = self.timelines[level as usize].node;
            let node = &mut self.slab.nodes[index as usize];
            let parent_timeline = &mut self.timelines[parent as usize];
            if parent_timeline.nr == 1 && !node.v.is_before(node.deadline) {
                // Alone: requests follow each other without anybody being asked.
                node.deadline = node.v.plus(to_virtual(u64::from(node.slice), node.shares));
            }
            if self.rules.policy == Policy::Cfs {
                parent_timeline.update_min(&self.slab.nodes, self.last);
            }
            self.timelines[level as usize].average.recentre();
            level = parent;
        }
        self.timelines[ROOT as usize].average.recentre();
        if self.service_clock.cpus > 1 {
            let most = if self.nr_queued() > 0 {
                u64::MAX
            } else {
                GRAIN_ALONE_MAX
            };
            self.load.publish_grain(delta.min(most));
            if self.last - self.caught_up_at >= CATCH_UP_INTERVAL {
                self.catch_up();
            }
        }
        self.average_chain();
    }

    /// Computes how long the chain may go on. Call with nothing pending.
    pub(super) fn set_limit(&mut self) {
        let mut budget = u64::MAX;
        let mut timeline = &self.timelines[self.leaf as usize];
        let is_limited = timeline.limited != NONE;
        // The root's, and only the root's, has none above it.
        while timeline.parent != NONE {
            let parent = &self.timelines[timeline.parent as usize];
            if parent.nr > 1 {
                let node = self.slab.get(timeline.node);
                let left = parent.protect.since(node.v).max(0).unsigned_abs();
                budget = budget.min(to_service(left, u64::from(node.shares)));
            }
            timeline = parent;
        }
        self.budget = budget;
        self.limit = budget.min(self.publish_interval);
        if G::bandwidth() && is_limited {
            self.limit_by_budget();
        } else {
            self.overdrawn = false;
        }
        self.load.publish_leaf(self.leaf);
    }

    /// [`RunQueue::set_limit`], unless the chain is to be put back at the next chance whatever that comes to: the next chain sets it anew,
    /// and until then everybody who asks for it asks for `repick` first.
    #[inline]
    pub(super) fn renew_limit(&mut self) {
        if self.repick && self.timelines[self.leaf as usize].limited == NONE {
            self.overdrawn = false;
            self.load.publish_leaf(self.leaf);
        } else {
            self.set_limit();
        }
    }

    /// Charges the groups, and puts the chain back if its time is up or somebody better came.
    #[cold]
    ///
    /// With nothing that `must` run, groups that have used up their budget are throttled.
    pub(super) fn settle(&mut self, must: bool) {
        self.follow_changes();
        if G::bandwidth() && self.load.mailbox.is_filled() {
            self.empty_mailbox(self.last);
        }
        self.flush();
        self.refresh_parts(self.leaf);
        self.renew_limit();
        let scavenged = !must && !self.scavenging.is_empty();
        if self.repick || self.budget == 0 || scavenged {
            let leaf = self.leaf;
            self.put_chain();
            if scavenged {
                self.stop_scavenging();
            }
            if !must && core::mem::take(&mut self.throttle_due) {
                self.throttle_chain(leaf, self.last);
            }
        } else if self.service_clock.is_global() {
            self.note_debts();
        }
    }
}
