//! Buddies: hints that a certain entity would better run next (or not next), honoured within bounds.
//!
//! A hint lives in one timeline and is looked at only when that timeline chooses among its own entities: a buddy
//! inside a group never makes the group itself be chosen (isolation). It is honoured only if the buddy is no further
//! than the wake-up granularity beyond V (EEVDF) or behind the rightful choice (CFS), so it moves a turn, not a share.

use crate::config::Policy;
use crate::node::{NONE, Node};
use crate::timeline::{Rules, Timeline};
use crate::units::to_virtual;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Buddies {
    /// Woken by the current task: likely to want what is in the cache.
    pub(crate) next: u32,
    /// CFS: preempted by a wake-up, with its cache still warm.
    pub(crate) last: u32,
    /// Interrupted, with a request that is not over, and dear to change.
    pub(crate) interrupted: u32,
    /// Has just yielded: anyone else within the granularity goes first.
    pub(crate) skip: u32,
    /// No hint: [`NONE`], or 0 where groups stand beside tasks, of which one may wait elsewhere, so that each choice takes the time to ask. Here
    /// since it is asked together with the others.
    asks: u32,
}

impl Default for Buddies {
    fn default() -> Buddies {
        Buddies {
            next: NONE,
            last: NONE,
            interrupted: NONE,
            skip: NONE,
            asks: NONE,
        }
    }
}

impl Buddies {
    /// Whether there is a hint that may replace the choice `best`, or groups stand beside tasks. (`NONE` is all ones.)
    #[inline]
    pub(crate) fn concern(&self, best: u32) -> bool {
        self.next & self.last & self.interrupted & self.asks != NONE || self.skip == best
    }

    /// Whether there is a hint that may replace the choice `best`.
    #[inline]
    pub(crate) fn hint_at(&self, best: u32) -> bool {
        self.next & self.last & self.interrupted != NONE || self.skip == best
    }

    /// Whether groups stand beside tasks from now on.
    pub(crate) fn ask_always(&mut self, always: bool) {
        self.asks = if always { 0 } else { NONE };
    }

    /// Forgets all hints.
    pub(crate) fn clear(&mut self) {
        *self = Buddies {
            asks: self.asks,
            ..Buddies::default()
        };
    }

    /// Forgets a node that leaves the timeline or was chosen.
    #[inline]
    pub(crate) fn forget(&mut self, index: u32) {
        if self.next & self.last & self.interrupted & self.skip == NONE {
            // Nearly always.
            return;
        }
        let hints = [
            &mut self.next,
            &mut self.last,
            &mut self.interrupted,
            &mut self.skip,
        ];
        for buddy in hints {
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
        let hints = self.buddies;
        self.buddies.clear();
        for buddy in [hints.next, hints.last] {
            if buddy != NONE && buddy != best && self.is_near(nodes, buddy, best, rules) {
                return buddy;
            }
        }
        let interrupted = hints.interrupted;
        if interrupted != NONE
            && interrupted != best
            && self.may_go_on(nodes, interrupted, best, rules)
        {
            return interrupted;
        }
        if hints.skip != best {
            return best;
        }
        if !self.can_wait(&nodes[best as usize], rules) {
            return best;
        }
        // The yielder would be chosen again: try whoever comes after it.
        self.unqueue(nodes, best, rules);
        let second = self.best(nodes, rules).map(|(index, _)| index);
        self.queue(nodes, best, rules);
        match second {
            Some(second) if self.may_follow(nodes, second, best, rules) => second,
            _ => best,
        }
    }

    /// Whether a yielder is owed so little that it may be passed over. Without this bound each of its peers in turn could
    /// get the granularity ahead of it, so that a polite task's lag would grow with their number.
    fn can_wait<T>(&self, yielder: &Node<T>, rules: &Rules) -> bool {
        let bound = to_virtual(rules.wakeup_granularity, yielder.shares).cast_signed();
        // Owed less than the bound: it would not be eligible any more with that much service.
        rules.policy == Policy::Cfs || !self.average.is_eligible(yielder.v.offset(bound))
    }

    /// Whether who comes after a yielder may have its turn: a task if it is near, a child group beside tasks only if its turn has come. All CPUs keep
    /// one clock there, and a group that owes by it would have a turn for each poll that ends here. (A group that owed 4 ms was chosen for
    /// what waited here, and with it its own task that was owed most was pulled here, just to see the yielder go on: from CPU to CPU at the end of
    /// each poll, without ever running.)
    fn may_follow<T>(&self, nodes: &[Node<T>], second: u32, best: u32, rules: &Rules) -> bool {
        let node = &nodes[second as usize];
        if self.is_anchored && !node.is_task() {
            return self.average.is_eligible(node.v);
        }
        self.is_near(nodes, second, best, rules)
    }

    /// Whether `buddy` waits here and is near enough: under EEVDF to being eligible, under CFS to the rightful choice.
    ///
    /// Exact eligibility would defeat the purpose: a task woken by a peer is placed at V, and when the peer then
    /// sleeps, having run ahead of V, V moves back by a hair and the woken task is not eligible any more.
    fn is_near<T>(&self, nodes: &[Node<T>], buddy: u32, best: u32, rules: &Rules) -> bool {
        let (candidate, rightful) = (&nodes[buddy as usize], &nodes[best as usize]);
        let bound = to_virtual(rules.wakeup_granularity, candidate.shares).cast_signed();
        candidate.place.is_queued()
            && match rules.policy {
                Policy::Eevdf => self.average.is_eligible(candidate.v.offset(-bound)),
                Policy::Cfs => candidate.v.since(rightful.v) <= bound,
            }
    }

    /// Whether who was interrupted may come to the end of its request before `best`, whose own is no shorter: who asks for less, for
    /// its latency, does not wait for that. It gets at most one request ahead.
    fn may_go_on<T>(&self, nodes: &[Node<T>], interrupted: u32, best: u32, rules: &Rules) -> bool {
        let (candidate, rightful) = (&nodes[interrupted as usize], &nodes[best as usize]);
        let request = to_virtual(u64::from(candidate.slice), candidate.shares).cast_signed();
        candidate.place.is_queued()
            && rightful.slice >= candidate.slice
            && match rules.policy {
                Policy::Eevdf => self.average.is_eligible(candidate.v.offset(-request)),
                Policy::Cfs => candidate.v.since(rightful.v) <= request,
            }
    }
}
