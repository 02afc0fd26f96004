//! Throttling on one CPU: taking a dry group's entity out of its parent's timeline and putting it back, with all of its
//! tasks left where they are. The protocol with pool and refill is in [`crate::bandwidth`].

use super::put::Leave;
use super::siblings::Return;
use super::{CALM_SHIFT, ROOT, RunQueue};
use crate::bandwidth::{Meter, Opened};
use crate::gates::Gates;
use crate::group::Group;
use crate::node::{NONE, Place, Traits};
use crate::units::Nanos;
use core::num::NonZeroU32;
use std::sync::Arc;

/// Most groups that one look into the mailbox handles: bounds the time for which the queue is held.
const UNTHROTTLES_MAX: usize = 64;

impl<T, G: Gates> RunQueue<T, G> {
    /// Puts back the groups that got budget. To be called when [`crate::GroupTree::refill`] or
    /// [`Group::set_limit`] kicked this CPU; a choice that finds nothing to run does it, too. Returns whether the current
    /// task should give way, or whether there is something to run now and nothing was.
    ///
    /// At most 64 groups at once; while there are more, [`crate::CpuLoad::has_unthrottles`] stays true. O(1) a group.
    pub fn unthrottle_pending(&mut self, now: Nanos) -> bool {
        let idle = self.current == NONE;
        self.empty_mailbox(now);
        self.publish_counts();
        self.repick && !idle || idle && self.nr > 0
    }

    /// Runnable tasks that limits keep back.
    pub fn nr_throttled(&self) -> usize {
        self.nr_throttled as usize
    }

    /// Whether the group, or one above it, is throttled on this CPU. O(depth).
    pub fn is_throttled(&self, group: &Arc<Group>) -> bool {
        self.known(group)
            .is_some_and(|level| self.is_kept_back(level))
    }

    /// Whether a task that is queued in the group here is likely to wait for budget: the group, or one above it, is throttled on this CPU, or has no budget left
    /// here nor in its pool. What other CPUs have of it is not looked at. O(depth).
    pub fn would_wait(&self, group: &Arc<Group>) -> bool {
        let path = core::iter::successors(Some(group), |group| group.parent());
        let Some(known) = path.into_iter().find_map(|group| self.known(group)) else {
            return false;
        };
        self.any_limit(known, |meter| {
            meter.throttled || meter.is_dry() && !meter.bandwidth.may_have_left()
        })
    }

    /// What competes in the group's own queue on this CPU: its tasks and the child groups that have something to run here,
    /// the current one included. O(1).
    pub fn nr_entities(&self, group: &Arc<Group>) -> usize {
        let level = self.known(group);
        level.map_or(0, |level| self.timelines[level as usize].nr as usize)
    }

    /// Whether the group itself is throttled on this CPU, whatever the groups above it are. O(1).
    pub fn is_throttled_itself(&self, group: &Arc<Group>) -> bool {
        self.known(group)
            .and_then(|level| self.timelines[level as usize].meter.as_deref())
            .is_some_and(|meter| meter.throttled)
    }

    /// For how long the group, or one above it, has been throttled on this CPU since the CPU met it. The difference over
    /// a task's wait is how long the task was throttled. O(depth).
    pub fn throttled_clock(&self, group: &Arc<Group>, now: Nanos) -> Nanos {
        self.known(group)
            .map_or(Nanos::ZERO, |level| self.throttled_clock_at(level, now))
    }

    /// The same by timeline: times of groups above each other overlap and are counted once.
    #[inline]
    pub(crate) fn throttled_clock_at(&self, level: u32, now: Nanos) -> Nanos {
        if self.was_closed {
            self.sum_throttled(level, now)
        } else {
            Nanos::ZERO
        }
    }

    fn sum_throttled(&self, level: u32, now: Nanos) -> Nanos {
        let timeline = &self.timelines[level as usize];
        if timeline.parent == NONE {
            return Nanos::ZERO;
        }
        let above = self.sum_throttled(timeline.parent, now);
        let mut own = timeline.throttled_past;
        if let Some(meter) = timeline.meter.as_deref().filter(|meter| meter.throttled) {
            // Without what the groups above were throttled meanwhile.
            own += (now - meter.since) - (above - meter.above);
        }
        above + own
    }

    /// Names the time since the last throttle on this CPU ended; `None` while a group is throttled. If the name is the same at
    /// two moments, no [`RunQueue::throttled_clock`] of this CPU has moved between them. Names repeat after 2^20 throttles,
    /// and on CPUs whose numbers differ by a multiple of 4096. O(1).
    #[inline]
    pub fn calm(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.calm)
    }

    fn note_closed(&mut self) {
        self.closed += 1;
        self.was_closed = true;
        self.calm = 0;
    }

    fn note_opened(&mut self) {
        self.closed -= 1;
        self.calms = self.calms.wrapping_add(1);
        if self.closed == 0 {
            let name = self.cpu.0 << CALM_SHIFT | self.calms & ((1 << CALM_SHIFT) - 1);
            self.calm = name.max(1);
        }
    }

    fn known(&self, group: &Arc<Group>) -> Option<u32> {
        let level = self.slots.get(group.id() as usize).copied()?;
        (level != NONE && Arc::ptr_eq(&self.timelines[level as usize].group, group))
            .then_some(level)
    }

    /// Whether the timeline or one above it is throttled here.
    pub(super) fn is_kept_back(&self, level: u32) -> bool {
        self.any_limit(level, |meter| meter.throttled)
    }

    /// Whether it is so of a limit on the timeline or above it. O(limits).
    #[inline]
    fn any_limit(&self, level: u32, is_so: impl Fn(&Meter) -> bool) -> bool {
        let mut level = self.timelines[level as usize].limited;
        while level != NONE {
            let meter = self.timelines[level as usize].meter.as_deref();
            if meter.is_some_and(&is_so) {
                return true;
            }
            level = self.limited_above(level);
        }
        false
    }

    /// Whether the timeline itself is throttled here.
    #[inline]
    pub(crate) fn is_closed(&self, level: u32) -> bool {
        let meter = self.timelines[level as usize].meter.as_deref();
        meter.is_some_and(|meter| meter.throttled)
    }

    pub(super) fn empty_mailbox(&mut self, now: Nanos) {
        for _ in 0..UNTHROTTLES_MAX {
            let Some((id, generation)) = self.load.mailbox.pop() else {
                break;
            };
            let level = self.slots.get(id as usize).copied().unwrap_or(NONE);
            if level != NONE && self.timelines[level as usize].group.generation() == generation {
                self.look_again(level, now);
            }
        }
    }

    /// Unthrottles a group that was posted, if it has a balance.
    fn look_again(&mut self, level: u32, now: Nanos) {
        let timeline = &self.timelines[level as usize];
        let Some(meter) = timeline.meter.as_deref() else {
            return;
        };
        // Before the look, so that whatever comes after it is posted again.
        meter.local.clear_posted();
        let wants = timeline.nr > 0 || meter.bandwidth.rules.is_kernel();
        let dry = wants && meter.bandwidth.is_enabled() && meter.local.balance() <= 0;
        let waits = dry
            && meter
                .bandwidth
                .wait(&meter.local, now, &self.changes.timers);
        if !waits {
            self.unthrottle(level, now);
        }
    }

    /// Ends a throttle, if there is one.
    pub(super) fn unthrottle(&mut self, level: u32, now: Nanos) {
        if self.end_throttle(level, now) {
            self.put_back(level, now);
        }
    }

    /// The first half of [`RunQueue::unthrottle`]: the group is not throttled any more, and returned is whether it is to be put
    /// back. A caller that takes its meter away does so in between, for putting it back asks the meter again, and another
    /// thread may have set the limit anew.
    pub(super) fn end_throttle(&mut self, level: u32, now: Nanos) -> bool {
        let runnable = self.lift(level, Opened::No, now);
        if let Some(meter) = self.timelines[level as usize].meter.as_deref_mut() {
            meter.opened = Opened::No;
            let length = core::mem::take(&mut meter.length);
            if length > Nanos::ZERO {
                meter.bandwidth.record_throttle(length);
            }
        }
        runnable
    }

    /// Throttles the dry groups on the chain that just was put back, from `leaf` up.
    pub(super) fn throttle_chain(&mut self, leaf: u32, now: Nanos) {
        let mut level = self.timelines[leaf as usize].limited;
        while level != NONE {
            self.throttle_if_dry(level, now);
            level = self.limited_above(level);
        }
    }

    /// Throttles a group unless it has, gets, or needs no balance. It must not be on the chain.
    pub(super) fn throttle_if_dry(&mut self, level: u32, now: Nanos) {
        let timeline = &self.timelines[level as usize];
        let Some(meter) = timeline.meter.as_deref() else {
            return;
        };
        // One that became empty as a child was throttled has nothing to wait for.
        let dry = timeline.nr > 0 && !meter.throttled && meter.room() == 0;
        if dry
            && meter
                .bandwidth
                .wait(&meter.local, now, &self.changes.timers)
        {
            self.close(level, now);
            self.publish_counts_of_choice();
        }
    }

    /// Takes a group out of what may run, whatever it holds. O(1) but for groups above that become empty.
    pub(super) fn close(&mut self, level: u32, now: Nanos) {
        let above = self.throttled_clock_at(self.timelines[level as usize].parent, now);
        self.settle_counts();
        let timeline = &mut self.timelines[level as usize];
        timeline.buddies.clear();
        let (node, parent) = (timeline.node, timeline.parent);
        let Some(meter) = timeline.meter.as_deref_mut() else {
            return;
        };
        (meter.throttled, meter.opened) = (true, Opened::No);
        (meter.since, meter.above) = (now, above);
        meter.local.set_throttled(true);
        let active = meter.active.cast_signed();
        if meter.bandwidth.is_soft() && !core::mem::replace(&mut meter.listed, true) {
            self.soft.push_back(level);
        }
        self.note_closed();
        self.count_active(parent, -active);
        self.nr_throttled = self.nr_throttled.wrapping_add_signed(active);
        self.average_path(parent, now);
        let below = self.timelines[level as usize].tasks_below.cast_signed();
        self.count_below(parent, -below);
        if self.slab.get(node).place == Place::Off {
            // Nothing of it was queued; this is how it is born dry.
            return;
        }
        debug_assert!(
            self.slab.get(node).place.is_queued(),
            "the chain was put back"
        );
        self.unlink(level, now);
        if self.timelines[parent as usize].nr == 0 {
            self.leave(parent, now);
        }
    }

    /// Takes a group's node out of the timeline above, keeping its lag.
    pub(super) fn unlink(&mut self, level: u32, now: Nanos) {
        let (node, parent) = {
            let timeline = &self.timelines[level as usize];
            (timeline.node, timeline.parent)
        };
        self.average_one(parent, now);
        let lag = self.withdraw(parent, node, Leave::Sleeps, 0);
        self.average_emptied(parent, now);
        let left_v = self.slab.get(node).v;
        let timeline = &mut self.timelines[level as usize];
        timeline.left_v = left_v;
        timeline.lag = lag;
        timeline.left_at = now.0;
        if self.service_clock.is_global() {
            self.leave_siblings(level);
        }
    }

    /// Lets a throttled group run again, or for the time being. Weights are brought up to date only here, as the
    /// hierarchy leaves its throttled state.
    pub(super) fn open(&mut self, level: u32, why: Opened, now: Nanos) {
        if self.lift(level, why, now) {
            self.put_back(level, now);
        }
    }

    /// Takes the mark of a throttled group away. Returns whether it was one and has something to run, which is then to be put
    /// back.
    fn lift(&mut self, level: u32, why: Opened, now: Nanos) -> bool {
        let past = self.throttled_clock_at(level, now)
            - self.throttled_clock_at(self.timelines[level as usize].parent, now);
        let timeline = &mut self.timelines[level as usize];
        let parent = timeline.parent;
        let Some(meter) = timeline
            .meter
            .as_deref_mut()
            .filter(|meter| meter.throttled)
        else {
            return false;
        };
        (meter.throttled, meter.opened) = (false, why);
        meter.length += now - meter.since;
        meter.local.set_throttled(false);
        let active = meter.active.cast_signed();
        timeline.throttled_past = past;
        let runnable = timeline.nr > 0;
        self.note_opened();
        self.nr_throttled = self.nr_throttled.wrapping_add_signed(-active);
        self.count_active(parent, active);
        self.average_path(parent, now);
        let below = self.timelines[level as usize].tasks_below.cast_signed();
        self.count_below(parent, below);
        runnable
    }

    /// Puts a group that was throttled, and has something to run, into the timeline above.
    pub(super) fn put_back(&mut self, level: u32, now: Nanos) {
        let (above, node) = self.link_up(level, Return::Unthrottled, now);
        self.refresh_parts(level);
        if self.current != NONE && self.contest(above, node, false, now) {
            self.repick = true;
        }
    }

    /// Looks for something to run where there seems to be nothing: budget that came in, limits that were lifted, and
    /// tasks of soft groups. Returns whether there is anything now.
    #[cold]
    pub(super) fn find_work(&mut self) -> bool {
        self.follow_changes();
        self.empty_mailbox(self.last);
        if self.nr == 0 && self.nr_throttled > 0 && self.scavenging.is_empty() {
            self.scavenge();
        }
        self.nr > 0
    }

    /// Opens the soft group that has waited longest, if all that are throttled above it are soft as well.
    fn scavenge(&mut self) {
        for _ in 0..self.soft.len() {
            let Some(level) = self.soft.pop_front() else {
                return;
            };
            let timeline = &mut self.timelines[level as usize];
            let runnable = timeline.nr > 0;
            let Some(meter) = timeline.meter.as_deref_mut() else {
                continue;
            };
            meter.listed = false;
            if !meter.throttled || !meter.bandwidth.is_soft() {
                continue;
            }
            meter.listed = true;
            self.soft.push_back(level);
            if !runnable {
                continue;
            }
            let Some(path) = self.soft_path(level) else {
                continue;
            };
            for level in path {
                self.open(level, Opened::Scavenging, self.last);
                self.scavenging.push(level);
            }
            if self.nr > 0 {
                return;
            }
        }
    }

    /// The throttled levels from one up, unless one of them is hard.
    fn soft_path(&self, level: u32) -> Option<Vec<u32>> {
        let mut path = Vec::new();
        let mut level = level;
        while level != NONE {
            let meter = self.timelines[level as usize].meter.as_deref()?;
            if meter.throttled && !meter.bandwidth.is_soft() {
                return None;
            }
            if meter.throttled {
                path.push(level);
            }
            level = self.limited_above(level);
        }
        Some(path)
    }

    /// Closes what was opened for one poll, unless it got budget meanwhile. Call with the chain put back.
    pub(super) fn stop_scavenging(&mut self) {
        for level in core::mem::take(&mut self.scavenging) {
            let meter = self.timelines[level as usize].meter.as_deref();
            let waits = meter
                .is_some_and(|meter| meter.opened == Opened::Scavenging && meter.local.is_queued());
            if waits {
                self.close(level, self.last);
            } else if let Some(meter) = self.timelines[level as usize].meter.as_deref_mut() {
                meter.opened = Opened::No;
            }
        }
    }

    /// The current task begins (or ends) to defer throttles: as long as a deferring task is runnable on a CPU, the groups
    /// on its path run on there without budget, up to 10 ms (or one quota) into debt, and it goes before its peers. The
    /// debt is paid from later refills before anything of the group runs again. Nothing without a current task. O(depth).
    pub fn defer_current(&mut self, defer: bool) {
        if self.current == NONE {
            return;
        }
        let node = self.slab.get_mut(self.current);
        if node.traits.has(Traits::DEFERRING) == defer {
            return;
        }
        node.traits = node.traits.with(Traits::DEFERRING, defer);
        self.flush();
        self.count_deferring(self.leaf, if defer { 1 } else { -1 });
        self.set_limit();
        if self.budget == 0 {
            (self.throttle_due, self.repick) = (true, true);
        }
    }

    /// Opens the throttled groups above a deferring task that was just queued, as far as their debts allow.
    pub(super) fn open_for_deferring(&mut self, leaf: u32, now: Nanos) {
        let mut level = self.timelines[leaf as usize].limited;
        while level != NONE {
            let meter = self.timelines[level as usize].meter.as_deref();
            if meter.is_some_and(|meter| meter.throttled && meter.is_exempt()) {
                self.open(level, Opened::Deferring, now);
            }
            level = self.limited_above(level);
        }
    }

    /// The deferring task that an overdrawn chain is open for: its timeline and node. O(slots), and only in debt.
    pub(super) fn favoured(&self) -> Option<(u32, u32)> {
        let nodes = (0u32..).zip(&self.slab.nodes);
        let waiting =
            nodes.filter(|(_, node)| node.traits.has(Traits::DEFERRING) && node.place.is_queued());
        let mut paths = waiting.map(|(index, node)| (node.timeline, index));
        paths.find(|&(leaf, _)| !self.is_kept_back(leaf) && self.is_overdrawn(leaf))
    }

    fn is_overdrawn(&self, leaf: u32) -> bool {
        self.any_limit(leaf, |meter| meter.local.balance() <= 0)
    }

    /// Whether a group may run only for the sake of deferring tasks.
    pub(super) fn is_exempt(&self, level: u32) -> bool {
        let meter = self.timelines[level as usize].meter.as_deref();
        meter.is_some_and(|meter| meter.local.balance() <= 0 && meter.is_exempt())
    }

    /// Makes a queued task and the groups above it the chain, whoever else waits, and takes the task out.
    pub(super) fn take_path(&mut self, leaf: u32, task: u32) -> Option<T> {
        self.flush();
        self.put_chain();
        let mut path = vec![(leaf, task)];
        let mut level = leaf;
        while level != ROOT {
            let timeline = &self.timelines[level as usize];
            path.push((timeline.parent, timeline.node));
            level = timeline.parent;
        }
        while let Some((level, node)) = path.pop() {
            let timeline = &mut self.timelines[level as usize];
            timeline.unqueue(&mut self.slab.nodes, node, &self.rules);
            timeline.buddies.clear();
            self.elect(level, node);
            if self.service_clock.is_global() {
                self.promise(level, node);
            }
            self.leaf = level;
            if level != ROOT {
                self.start_running(level);
            }
        }
        self.current = task;
        self.set_limit();
        self.slab.get_mut(task).handle.take()
    }
}
