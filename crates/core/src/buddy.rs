//! Buddies: hints that a certain entity would better run next (or not next), honoured within bounds.
//!
//! A hint lives in one timeline and is looked at only when that timeline chooses among its own entities: a buddy
//! inside a group never makes the group itself be chosen (isolation). It is honoured only if the buddy is eligible
//! and no further than the wake-up granularity behind the rightful choice, so it moves a turn, not a share.

use crate::config::Policy;
use crate::node::{NONE, Node};
use crate::timeline::{Rules, Timeline};
use crate::units::to_virtual;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buddies {
    /// Woken by the current task: likely to want what is in the cache.
    pub(crate) next: u32,
    /// Preempted by a wake-up: its cache is still warm.
    pub(crate) last: u32,
    /// Has just yielded: anyone else within the granularity goes first.
    pub(crate) skip: u32,
}

impl Default for Buddies {
    fn default() -> Buddies {
        Buddies {
            next: NONE,
            last: NONE,
            skip: NONE,
        }
    }
}

impl Buddies {
    /// Whether there is no hint at all. All three are `NONE`, which is all ones.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.next & self.last & self.skip == NONE
    }

    /// Forgets a node that leaves the timeline or was chosen.
    #[inline]
    pub(crate) fn forget(&mut self, index: u32) {
        if self.is_empty() {
            return;
        }
        for buddy in [&mut self.next, &mut self.last, &mut self.skip] {
            if *buddy == index {
                *buddy = NONE;
            }
        }
    }
}

impl Timeline {
    /// Replaces the rightful choice by a buddy if there is one within bounds. Hints are used up by a choice.
    pub(crate) fn apply_buddies<T>(
        &mut self,
        nodes: &mut [Node<T>],
        best: u32,
        rules: &Rules,
    ) -> u32 {
        let hints = core::mem::take(&mut self.buddies);
        for buddy in [hints.next, hints.last] {
            if buddy != NONE && buddy != best && self.is_near(nodes, buddy, best, rules) {
                return buddy;
            }
        }
        if hints.skip != best {
            return best;
        }
        // The yielder would be chosen again: try whoever comes after it.
        self.unqueue(nodes, best, rules);
        let second = self.best(nodes, rules);
        self.queue(nodes, best, rules);
        match second {
            Some(second) if self.is_near(nodes, second, best, rules) => second,
            _ => best,
        }
    }

    /// Whether `buddy` waits here, may run, and is at most the granularity behind `best`.
    fn is_near<T>(&self, nodes: &[Node<T>], buddy: u32, best: u32, rules: &Rules) -> bool {
        let (candidate, rightful) = (&nodes[buddy as usize], &nodes[best as usize]);
        let may_run = rules.policy == Policy::Cfs || self.is_eligible(candidate.v, rules);
        let bound = to_virtual(rules.wakeup_granularity, candidate.shares);
        let behind = candidate.v.since(rightful.v);
        candidate.place.is_queued() && may_run && behind <= bound.cast_signed()
    }
}
