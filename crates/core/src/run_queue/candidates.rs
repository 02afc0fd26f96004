//! Which of the tasks that wait goes where another CPU asks for one.
//!
//! Who may not leave its CPU goes after all others: it would come back. Of those that are owed as much, or where that does not count, one that has had nothing since it
//! came goes first, and of the others the one that has stayed longest, so that moves rotate. (By how long they had stayed only, a task that came to wait
//! behind another was the last to be asked for. Three spinners beside two heavier ones that sleep now and then, on three CPUs: at each tick one CPU took the third
//! spinner, which then waited there, and when that CPU's heavy task slept another was taken, for as long as the machine ran. And of the two tasks of a child that went
//! to another CPU and back one had its turn at either end, and the other nothing.)

use super::RunQueue;
use crate::gates::Gates;
use crate::node::NONE;
use crate::timeline::Timeline;
use crate::units::{CpuId, Nanos};

/// Entities among which the longest unmoved one is chosen: bounds the time for which the queue is held.
const CANDIDATES_MAX: usize = 32;

impl<T, G: Gates> RunQueue<T, G> {
    /// Whether neither the group at `level` nor one above it is throttled where its tasks would go to: they would only wait there.
    pub(super) fn is_open_on(&self, level: u32, to: CpuId) -> bool {
        let mut level = self.timelines[level as usize].limited;
        while level != NONE {
            if self.is_refused_by(level, to) {
                return false;
            }
            level = self.limited_above(level);
        }
        true
    }

    /// Whether the group at `level` itself is throttled there.
    fn is_refused_by(&self, level: u32, to: CpuId) -> bool {
        let meter = self.timelines[level as usize].meter.as_deref();
        meter.is_some_and(|meter| meter.bandwidth.is_throttled_on(to))
    }

    /// The waiting task, among a bounded number in a timeline or below it, that has stayed longest on its CPU (or is owed most there, and of equals has
    /// stayed longest, if `by_lag`) and would not be kept back on the other one: it is mostly a CPU on which limited groups are throttled that has
    /// nothing to run, and others wait beside those here.
    pub(super) fn candidate(
        &self,
        level: u32,
        to: Option<CpuId>,
        by_lag: bool,
        now: Nanos,
    ) -> Option<u32> {
        if to.is_some_and(|to| !self.is_open_on(level, to)) {
            return None;
        }
        let timeline = &self.timelines[level as usize];
        let mean = timeline.average.mean();
        let is_flat = self.service_clock.is_global() && !timeline.is_anchored;
        let (mut best, mut seen, mut refusals) = (None, 0, CANDIDATES_MAX);
        let mut consider = |entity: u32| {
            if let Some(index) = self.first_below(entity, to, &mut refusals) {
                let task = self.slab.get(index);
                let lag = if by_lag {
                    mean.since(self.slab.get(entity).v)
                } else {
                    0
                };
                let is_new = is_flat && !task.moved.had_turn(task.sum_exec);
                let rank = (task.moved.may_go(), lag, is_new, task.moved.age(now));
                if best.is_none_or(|(_, first)| rank > first) {
                    best = Some((index, rank));
                }
            }
            seen += 1;
            seen < CANDIDATES_MAX
        };
        timeline.ready.visit(&self.slab.nodes, &mut consider);
        timeline.later.visit(&self.slab.nodes, &mut consider);
        if timeline.current != NONE {
            consider(timeline.current);
        }
        best.map(|(index, _)| index)
    }

    /// The waiting task of the group itself, among a bounded number, that is owed most where child groups stand beside it, if anything is owed to
    /// one; elsewhere as [`RunQueue::candidate`]. (Were it whoever comes first there, child groups that nobody noted went where a task was wanted,
    /// away from the CPU where their parent would have had its turn: a child of a twentieth of its sibling's weight had a third of both.)
    pub(super) fn own_candidate(&self, level: u32, to: Option<CpuId>, now: Nanos) -> Option<u32> {
        let timeline = &self.timelines[level as usize];
        if !timeline.is_anchored {
            return self.candidate(level, to, false, now);
        }
        if to.is_some_and(|to| !self.is_open_on(level, to)) {
            return None;
        }
        let anchor = timeline.anchor();
        let (mut best, mut seen) = (None, 0);
        let mut consider = |index: u32| {
            let node = self.slab.get(index);
            let rank = (node.moved.may_go(), anchor.since(node.v));
            if node.is_task() && rank.1 > 0 && best.is_none_or(|(_, first)| rank > first) {
                best = Some((index, rank));
            }
            seen += 1;
            seen < CANDIDATES_MAX
        };
        timeline.ready.visit(&self.slab.nodes, &mut consider);
        timeline.later.visit(&self.slab.nodes, &mut consider);
        best.map(|(index, _)| index)
    }

    /// Who waits in a timeline and, as far as is known, may leave this CPU, among a bounded number; `first` if nobody does.
    fn one_that_may_go(&self, timeline: &Timeline, first: u32) -> u32 {
        if self.slab.get(first).moved.may_go() {
            return first;
        }
        let (mut found, mut seen) = (first, 0);
        let mut consider = |index: u32| {
            if found == first && self.slab.get(index).moved.may_go() {
                found = index;
            }
            seen += 1;
            found == first && seen < CANDIDATES_MAX
        };
        timeline.ready.visit(&self.slab.nodes, &mut consider);
        timeline.later.visit(&self.slab.nodes, &mut consider);
        found
    }

    /// The entity itself if it is a waiting task, or the first one that waits in the group that it is and is not throttled on CPU `to`.
    /// Where that is in a child that is throttled there, its siblings are looked at as well, until `refusals` such groups were met.
    fn first_below(&self, entity: u32, to: Option<CpuId>, refusals: &mut usize) -> Option<u32> {
        let node = self.slab.get(entity);
        if node.is_task() {
            return node.place.is_queued().then_some(entity);
        }
        if to.is_some_and(|to| self.is_refused_by(node.owned, to)) {
            *refusals = refusals.saturating_sub(1);
            return None;
        }
        let timeline = &self.timelines[node.owned as usize];
        let waiting = timeline.ready.peek().or_else(|| timeline.later.peek());
        let next = waiting.map(|(index, _)| self.one_that_may_go(timeline, index));
        // What waits in a group has something to run below it, so only the current child can be a dead end, and who is refused. Depth
        // is bounded by that of the tree.
        let current = (timeline.current != NONE).then_some(timeline.current);
        let before = *refusals;
        let mut first = next.and_then(|index| self.first_below(index, to, refusals));
        first = first.or_else(|| current.and_then(|at| self.first_below(at, to, refusals)));
        if first.is_none() && *refusals < before {
            let mut other = |index: u32| {
                if first.is_none() && *refusals > 0 && Some(index) != next {
                    first = self.first_below(index, to, refusals);
                }
                first.is_none() && *refusals > 0
            };
            timeline.ready.visit(&self.slab.nodes, &mut other);
            timeline.later.visit(&self.slab.nodes, &mut other);
        }
        first
    }
}
