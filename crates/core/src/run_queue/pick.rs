//! Choosing what runs next.

use super::{ROOT, RunQueue};
use crate::config::Policy;
use crate::gates::Gates;
use crate::node::{NONE, Node, Place};
use crate::timeline::Timeline;
use crate::units::{Nanos, VirtualTime, to_virtual};

/// How many candidates of one choice are corrected for service elsewhere. More would be exact but unbounded; what is
/// left uncorrected is corrected when it comes to the head again.
const CORRECTIONS_MAX: u32 = 32;

/// How many of those that V may have passed since the last choice are looked at for whether somebody better waits. More than one or two
/// have seldom been; what is overlooked is seen at the deadline.
const PASSED_MAX: u32 = 32;

impl<T, G: Gates> RunQueue<T, G> {
    /// Takes out the task that should run now and makes it current. `None` iff nothing is runnable or limits keep back all
    /// that is. The previous current task must have been put back.
    pub fn pick(&mut self, now: Nanos) -> Option<T> {
        debug_assert!(self.current == NONE, "put_prev_* comes before pick");
        self.last = Nanos(self.last.0.max(now.0));
        if self.current != NONE || self.nr == 0 && !self.find_work() {
            return None;
        }
        if self.repick || self.pending >= self.limit {
            self.settle(false);
        }
        let mut handle = self.descend(false);
        if handle.is_none() && self.find_work() {
            handle = self.descend(false);
        }
        self.publish_counts();
        handle
    }

    /// Chooses from the leaf of the chain down to a task.
    ///
    /// Limited groups that turn out to have no budget are throttled on the way, unless something `must` be chosen.
    pub(super) fn descend(&mut self, must: bool) -> Option<T> {
        if self.overdrawn
            && let Some((leaf, task)) = self.favoured()
        {
            return self.take_path(leaf, task);
        }
        loop {
            let chosen = self.choose(self.leaf)?;
            let owned = self.slab.get(chosen).owned;
            if owned == NONE {
                self.current = chosen;
                break;
            }
            // What was collected so far belongs to the shorter chain, and to limits that it may have got meanwhile.
            self.follow_limits();
            self.flush();
            self.leaf = owned;
            self.start_running(owned);
            self.limit = 0;
            if G::bandwidth()
                && self.timelines[owned as usize].meter.is_some()
                && let Some((leaf, task)) = self.enter_limited(owned, must)
            {
                return self.take_path(leaf, task);
            }
        }
        if self.limit == 0 {
            self.set_limit();
        }
        self.slab.get_mut(self.current).handle.take()
    }

    /// The group at `level`, which is not the root, is chosen, and waits no more but for what else is in it. (Said at its next charge only, a tick later,
    /// it seemed to wait for as long as it had a CPU beside one that owed; what it was owed and could not use was never cut, V stood for all others, and
    /// the one beside it had nothing for minutes.)
    #[inline]
    pub(super) fn start_running(&mut self, level: u32) {
        let timeline = &mut self.timelines[level as usize];
        timeline.began_at = self.last;
        timeline.turn_before = timeline.turn;
        timeline.turn = 0;
        timeline.cell.exec.start();
        let waits = timeline.nr > 1;
        timeline.cell.publish_waits(waits);
        let mut above = timeline.parent;
        while waits && above != ROOT && !self.timelines[above as usize].cell.waits() {
            self.timelines[above as usize].cell.publish_waits(true);
            above = self.timelines[above as usize].parent;
        }
    }

    /// The chain has come to a group that has a limit. A group without budget is throttled, and the choice goes on
    /// above it, unless something `must` be chosen; the path to a favoured task is returned. Apart, so that switches
    /// within a group do not keep registers for it.
    #[inline(never)]
    fn enter_limited(&mut self, owned: u32, must: bool) -> Option<(u32, u32)> {
        if !must && !self.may_enter(owned) {
            self.put_chain();
            self.throttle_if_dry(owned, self.last);
            return None;
        }
        if self.is_exempt(owned) {
            return self.favoured();
        }
        None
    }

    /// Chooses one entity of a timeline, takes it out of its queue and makes it the timeline's current.
    #[inline(always)]
    pub(super) fn choose(&mut self, level: u32) -> Option<u32> {
        let nodes = &mut self.slab.nodes[..];
        let timeline = &mut self.timelines[level as usize];
        let (best, floor) = timeline.best(nodes, &self.rules)?;
        let plain = nodes[best as usize].is_task() && !timeline.buddies.concern(best);
        if !plain {
            return self.choose_slowly(level, best, floor);
        }
        timeline.pop(nodes, best, floor);
        self.elect(level, best);
        Some(best)
    }

    /// Makes a node that was just taken out of its queue its timeline's current.
    #[inline(always)]
    pub(super) fn elect(&mut self, level: u32, chosen: u32) {
        let nodes = &mut self.slab.nodes[..];
        let timeline = &mut self.timelines[level as usize];
        nodes[chosen as usize].place = Place::Current;
        timeline.current = chosen;
        timeline.buddies.skip = NONE;
        timeline.protect(&nodes[chosen as usize], &self.rules);
        if self.rules.policy == Policy::Cfs {
            timeline.update_min(nodes, self.last);
        }
    }

    /// The choice where hints may replace the best, or a group may have been served elsewhere.
    #[inline(never)]
    fn choose_slowly(&mut self, level: u32, best: u32, floor: VirtualTime) -> Option<u32> {
        // Three functions, so that the short ones save no registers for the others.
        if !self.service_clock.is_global() {
            self.choose_locally(level, best, floor)
        } else if self.timelines[level as usize].nr == 1 {
            self.choose_only(level, best, floor)
        } else {
            self.choose_globally(level, best)
        }
    }

    /// The same on one CPU, or where each CPU has weights of its own.
    #[inline(never)]
    fn choose_locally(&mut self, level: u32, mut best: u32, mut floor: VirtualTime) -> Option<u32> {
        for _ in 0..CORRECTIONS_MAX {
            if self.slab.get(best).is_task() || !self.correct(level, best) {
                break;
            }
            (best, floor) =
                self.timelines[level as usize].best(&mut self.slab.nodes, &self.rules)?;
        }
        let (timeline, nodes) = (
            &mut self.timelines[level as usize],
            &mut self.slab.nodes[..],
        );
        // Hints are about others, of which there may be none.
        if timeline.nr > 1 && timeline.buddies.hint_at(best) {
            best = timeline.apply_buddies(nodes, best, &self.rules);
            timeline.unqueue(nodes, best, &self.rules);
        } else {
            timeline.pop(nodes, best, floor);
        }
        self.elect(level, best);
        Some(best)
    }

    /// The same where groups have one time on all CPUs.
    #[inline(never)]
    fn choose_globally(&mut self, level: u32, mut best: u32) -> Option<u32> {
        for _ in 0..CORRECTIONS_MAX {
            if self.slab.get(best).is_task() || !self.correct(level, best) {
                break;
            }
            (best, _) = self.timelines[level as usize].best(&mut self.slab.nodes, &self.rules)?;
        }
        if !self.slab.get(best).is_task() {
            best = self.pass_over_promised(level, best);
        }
        let raised = self.passed_over(level);
        match raised {
            Some(index) => best = index,
            None => self.suggest_pull(level, best),
        }
        // Not as it is elected, which choices among tasks alone would pay for.
        self.slab.get_mut(best).passed_over = 0;
        let (timeline, nodes) = (
            &mut self.timelines[level as usize],
            &mut self.slab.nodes[..],
        );
        if raised.is_none() && timeline.buddies.hint_at(best) {
            best = timeline.apply_buddies(nodes, best, &self.rules);
        }
        // Not the first any more, perhaps.
        timeline.unqueue(nodes, best, &self.rules);
        self.elect(level, best);
        // Not before it has left those who wait, and it is known who goes: who was put back may be the one.
        self.note_put_back(level, best);
        self.promise(level, best);
        if raised.is_some()
            && let Some(inside) = self.timelines.get_mut(self.slab.get(best).owned as usize)
        {
            // Others would have used the time, whatever it owes: they are not to lose what they are owed for it.
            inside.knowingly = false;
        }
        Some(best)
    }

    /// The same for who has nobody beside it: it is compared with nobody, and what it got elsewhere does not change its place, which takes
    /// two moves in the queue less. Two in three choices of a nested tree are such.
    #[inline(never)]
    fn choose_only(&mut self, level: u32, only: u32, floor: VirtualTime) -> Option<u32> {
        let nodes = &mut self.slab.nodes[..];
        let timeline = &mut self.timelines[level as usize];
        timeline.pop(nodes, only, floor);
        let owned = nodes[only as usize].owned;
        if owned != NONE {
            // Whoever was put back is this one, or has left.
            timeline.put_back = NONE;
            let distance = self.distance_to_target(level, only);
            if distance > 0 {
                let node = &mut self.slab.nodes[only as usize];
                let above = &mut self.timelines[level as usize];
                let service = above.charge_elsewhere(node, distance.unsigned_abs());
                self.timelines[owned as usize].missed += service;
            }
        }
        self.slab.get_mut(only).passed_over = 0;
        self.suggest_pull(level, only);
        self.elect(level, only);
        self.promise(level, only);
        Some(only)
    }

    /// Whether the current task should give way at `now`: its request is over (or its protection, and somebody
    /// better waits), its group's turn is over, or a better group woke up. O(1): of those that have become eligible since the last choice a
    /// bounded number is looked at. True if nothing is current but something waits.
    pub fn should_resched(&self, now: Nanos) -> bool {
        if self.current == NONE {
            return self.nr > 0;
        }
        let running = (now - self.last).0;
        if self.repick || self.pending.saturating_add(running) >= self.budget {
            return true;
        }
        let timeline = &self.timelines[self.leaf as usize];
        if timeline.nr < 2 {
            return false;
        }
        let node = self.slab.get(self.current);
        let v = node.v.plus(to_virtual(running, node.shares));
        if v.is_before(timeline.protect) {
            return false;
        }
        if self.rules.policy == Policy::Cfs || !v.is_before(node.deadline) {
            return true;
        }
        let waiting = timeline
            .ready
            .peek()
            .map(|(index, _)| self.slab.get(index).deadline);
        waiting.is_some_and(|deadline| deadline.is_before(node.deadline))
            || self.has_passed_better(timeline, node, running)
    }

    /// Whether V, with `running` ns that `node` is not charged yet, has passed somebody since the last choice who has an earlier deadline. Only
    /// the next choice moves them to those that are ready.
    fn has_passed_better(&self, timeline: &Timeline, node: &Node<T>, running: u64) -> bool {
        let extra = i128::from(to_virtual(running, node.shares)) * i128::from(node.shares);
        let is_passed = |v: VirtualTime| !timeline.average.mean_is_before(v, extra);
        let Some((_, floor)) = timeline.later.peek() else {
            return false;
        };
        if !is_passed(floor) {
            return false;
        }
        let (mut found, mut left) = (false, PASSED_MAX);
        timeline.later.visit(&self.slab.nodes, |index| {
            let waiting = self.slab.get(index);
            let v = VirtualTime(waiting.v.0 >> self.rules.shift << self.rules.shift);
            found = waiting.deadline.is_before(node.deadline) && is_passed(v);
            left -= 1;
            !found && left > 0
        });
        found
    }
}
