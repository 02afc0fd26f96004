//! Choosing among groups that run on other CPUs as well: what a dispatch elsewhere is about to give a group counts before it is charged.
//! The sum of what is on its way is a word of the group ([`crate::group_time`], *Two CPUs choose at once*).

use super::RunQueue;
use crate::gates::Gates;
use crate::node::NONE;
use crate::units::{VirtualTime, to_virtual};

/// Most groups passed over in one choice for what they are about to get elsewhere: bounds the choice.
const PASSED_OVER_MAX: usize = 3;

impl<T, G: Gates> RunQueue<T, G> {
    /// The best choice but for groups that other CPUs are about to serve: those are passed over if that puts them behind
    /// the next one.
    pub(super) fn pass_over_promised(&mut self, level: u32, best: u32) -> u32 {
        if self.timelines[level as usize].nr == 1 {
            return best;
        }
        let mut aside = [(NONE, VirtualTime::default()); PASSED_OVER_MAX];
        let (mut next, mut count) = (best, 0);
        let (mut chosen, mut least) = (NONE, VirtualTime::default());
        loop {
            let expected = self.with_promised(next);
            if chosen == NONE || expected.is_before(least) {
                (chosen, least) = (next, expected);
            }
            if count == PASSED_OVER_MAX || expected == self.slab.get(next).v {
                break;
            }
            let nodes = &mut self.slab.nodes;
            let timeline = &mut self.timelines[level as usize];
            if timeline.nr as usize <= count + 1 {
                break;
            }
            timeline.unqueue(nodes, next, &self.rules);
            aside[count] = (next, expected);
            count += 1;
            let Some((following, _)) = timeline.best(nodes, &self.rules) else {
                break;
            };
            next = following;
            if !self.slab.get(next).is_task() {
                self.correct(level, next);
            }
        }
        for &(index, _) in &aside[..count] {
            self.timelines[level as usize].queue(&mut self.slab.nodes, index, &self.rules);
        }
        chosen
    }

    /// Tells other CPUs what a group is about to get here, and notes whether it is chosen in debt.
    pub(super) fn promise(&mut self, level: u32, chosen: u32) {
        let node = self.slab.get(chosen);
        let (expected, owned) = (node.slice, node.owned);
        if owned == NONE {
            return;
        }
        let (timeline, above) = (
            &self.timelines[owned as usize],
            &self.timelines[level as usize],
        );
        let owes = self.owes_much(timeline, above);
        let timeline = &mut self.timelines[owned as usize];
        timeline.knowingly = owes;
        timeline.promised = timeline.group.time.promise(expected);
    }

    /// What the child group that would have the next turn inside a waiting group is owed, ns; 0 if that is a task.
    fn lag_inside(&self, level: u32) -> i64 {
        let inside = &self.timelines[level as usize];
        let first = inside.ready.peek().or_else(|| inside.later.peek());
        let owned = first.map_or(NONE, |(index, _)| self.slab.get(index).owned);
        let child = self.timelines.get(owned as usize);
        child.map_or(0, |child| child.group.time.lag(&inside.group.time))
    }

    /// Where a node will stand with what it is about to get on other CPUs, and how much what it would run here needs the turn.
    fn with_promised(&self, index: u32) -> VirtualTime {
        let node = self.slab.get(index);
        if node.is_task() {
            return node.v;
        }
        let inside = &self.timelines[node.owned as usize];
        let pending = inside.group.time.pending();
        let promised = match pending {
            0 => node.v,
            pending => node.v.plus(to_virtual(pending, node.shares)),
        };
        if inside.groups() == 0 || inside.group.time.cpus() < 2 {
            return promised;
        }
        // On which of its CPUs the group has its turn is for who is inside: a turn's worth, which its time makes up for.
        let bound = i64::from(node.slice);
        let lag = self.lag_inside(node.owned).clamp(-bound, bound);
        let distance = to_virtual(lag.unsigned_abs(), node.shares).cast_signed();
        promised.offset(-distance * lag.signum())
    }
}
