//! Earliest eligible virtual deadline first.
//!
//! An entity i with weight w_i asks for requests of r_i ns. Its virtual time v_i advances by 1/w_i for each ns of
//! service; V is the weighted mean of all v_i ([`crate::average`]); its lag, in virtual time, is V - v_i. It is
//! *eligible* iff v_i <= V: it has had no more than its share. Its deadline is d_i = v_i + r_i / w_i, set when a
//! request begins. Among the eligible, the earliest deadline runs. Since sum(w_i (V - v_i)) = 0, someone always is.
//!
//! The search "least deadline among v <= V" is done with two queues. Entities wait in `later`, by v, until V has
//! passed them, then in `ready`, by deadline. V moves backwards only when entities come or go; then the head of
//! `ready` may have become ineligible, and is sent back. Every entity that is looked at and not chosen thereby
//! changes queues, which happens O(1) times a request, so a choice costs O(log n) amortized, O(1) with buckets.

use crate::node::Node;
use crate::timeline::{Rules, Timeline};
use crate::units::{VirtualTime, to_virtual};

impl Timeline {
    /// The eligible node with the earliest deadline, still queued, with its key. `None` only if nothing is queued.
    #[inline(always)]
    pub(crate) fn best_eevdf<T>(
        &mut self,
        nodes: &mut [Node<T>],
        rules: &Rules,
    ) -> Option<(u32, VirtualTime)> {
        if !self.later.is_empty() {
            self.promote(nodes);
        }
        while let Some((index, floor)) = self.ready.peek() {
            let v = nodes[index as usize].v;
            if self.is_eligible(v, rules) {
                return Some((index, floor));
            }
            self.ready.pop(nodes, index, floor);
            self.later.push(nodes, index, v);
        }
        // Only if everyone queued is ahead of V, which takes a current entity that is not (and is not asked here).
        self.later.peek()
    }

    /// Moves those that V has passed.
    #[inline(never)]
    fn promote<T>(&mut self, nodes: &mut [Node<T>]) {
        while let Some((index, floor)) = self.later.peek() {
            if !self.average.is_eligible(floor) {
                break;
            }
            let deadline = nodes[index as usize].deadline;
            self.later.pop(nodes, index, floor);
            self.ready.push(nodes, index, deadline);
        }
    }

    /// Where an entity with that lag starts: at V - lag (W + w) / W, so that the lag is what was asked for once the
    /// entity's own weight counts in V.
    pub(crate) fn place_eevdf<T>(
        &self,
        node: &mut Node<T>,
        lag: i64,
        fresh: bool,
        reference: VirtualTime,
    ) {
        let load = i128::from(self.average.load());
        let inflated = if load == 0 {
            // Nobody to be ahead of or behind.
            0
        } else {
            let product = i128::from(lag) * (load + i128::from(node.shares)) / load;
            // A quarter of the circle; real lags are limited to far less before they come here.
            product.clamp(-(1 << 61), 1 << 61) as i64
        };
        node.v = reference.offset(inflated.wrapping_neg());
        let request = to_virtual(u64::from(node.slice), node.shares);
        // A new task gets half a request, so that it runs soon but cannot starve its spawner by being many.
        node.deadline = node.v.plus(if fresh { request / 2 } else { request });
    }

    /// Changes a node's weight in place, keeping V and `shares * lag`; the node must not be queued.
    pub(crate) fn reweight<T>(&mut self, node: &mut Node<T>, shares: u32) {
        let mean = self.average.mean();
        self.average.remove(node.v, node.shares);
        let (old, new) = (i128::from(node.shares), i128::from(shares));
        let scale =
            |point: VirtualTime| mean.offset((i128::from(point.since(mean)) * old / new) as i64);
        (node.v, node.deadline) = (scale(node.v), scale(node.deadline));
        node.shares = shares;
        self.average.add(node.v, shares);
    }
}

/// What a waking entity is compared with: the current one as it will be once charged up to now.
pub(crate) struct Contest {
    /// Virtual time of the current entity, uncharged service included.
    pub(crate) current_v: VirtualTime,
    /// Uncharged service times shares.
    pub(crate) extra: i128,
}

impl Timeline {
    /// Whether `woken` should take the CPU from `current` at once.
    pub(crate) fn preempts_eevdf<T>(
        &self,
        current: &Node<T>,
        woken: &Node<T>,
        contest: &Contest,
        rules: &Rules,
    ) -> bool {
        let mean = self.average.mean_after(contest.extra);
        if mean.is_before(VirtualTime(woken.v.0 >> rules.shift << rules.shift)) {
            return false;
        }
        // A shorter request is what a latency-sensitive task asks for: parity does not protect against it.
        let shorter = woken.slice < current.slice;
        if !shorter && contest.current_v.is_before(self.protect) {
            return false;
        }
        mean.is_before(contest.current_v) || woken.deadline.is_before(current.deadline)
    }
}
