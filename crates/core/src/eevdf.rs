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
//!
//! # What a sleeper keeps
//! Who is owed something keeps it up to its slice and [`crate::Config::lag_limit`]. Who owes left at some v beyond V, and comes back to
//! the same CPU at `max(v, V)` ([`crate::Config::debts_fade`]): while others catch up, they get what it had too much of, and once they have
//! there is nothing left to pay. *Nothing is minted*: it never comes before V, nor before where it left, as long as that is no later than the debt
//! it left with and a sleeper's credit. (V goes back when others leave with debts, which is not its doing. But V also goes back while a sleeper
//! with credit is here. A task that owes and was placed by its lag alone, each time that such a sleeper was here, shed its debt.) The kernel since 6.12 gets there by leaving such a task in
//! its queue until it would be due and setting its lag to zero then. Kept out of the queue, a sleeper costs choices nothing, and is no part of
//! V meanwhile: V may be beyond v a little earlier than there. v is remembered with the CPU (`RunQueue::parting`): the virtual times of two
//! CPUs, or of two groups, do not compare, so who is moved owes what it owed.
//!
//! # Whose request goes on
//! Who comes back from a sleep begins a new request, since it asks anew. Two do not, as in the kernel since 6.12. Who is *moved* did not ask for
//! it, and keeps the distance from v to its deadline ([`crate::Config::moves_keep_requests`]): with a new request at each move the one that
//! others move most would have the latest deadline for it. And who comes back before its debt has faded goes on where it left, with the deadline
//! that it had there: it was gone for so short a time that nothing has become of its debt, and nothing becomes of its request.

use crate::entity::Rest;
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
        // Mostly nobody waits for V, or nobody's time has come, which takes no call.
        if !self.later.is_empty()
            && let Some((_, floor)) = self.later.peek()
            && self.average.is_eligible(floor)
        {
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
    #[inline(always)]
    pub(crate) fn place_eevdf<T>(
        &self,
        node: &mut Node<T>,
        lag: i64,
        request: Request,
        reference: VirtualTime,
    ) {
        // A sum of fewer than 2^32 shares below 2^21.
        let load = self.average.load().cast_signed();
        let with_node = load + i64::from(node.shares);
        // A quarter of the circle; real lags are limited to far less before they come here.
        const BOUND: i64 = 1 << 61;
        let inflated = if load == 0 || lag == 0 {
            // Nobody to be ahead of or behind, or neither.
            0
        } else if let Some(product) = lag.checked_mul(with_node) {
            // Nearly always: 64-bit division is several times faster.
            (product / load).clamp(-BOUND, BOUND)
        } else {
            let product = i128::from(lag) * i128::from(with_node) / i128::from(load);
            product.clamp(i128::from(-BOUND), i128::from(BOUND)) as i64
        };
        node.v = reference.offset(inflated.wrapping_neg());
        begin_request(node, request);
    }

    /// Where a task beside child groups starts: at the children's clock less its lag, whatever competes here.
    pub(crate) fn place_anchored<T>(&mut self, node: &mut Node<T>, lag: i64, request: Request) {
        node.v = self.anchor().offset(lag.wrapping_neg());
        begin_request(node, request);
        self.count_lag(lag, node.shares);
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
    /// Who comes was asleep, or is new, and was not moved here by others.
    pub(crate) wakes: bool,
}

impl Timeline {
    /// Whether `woken` should take the CPU from `current` at once.
    pub(crate) fn preempts_eevdf<T>(
        &self,
        nodes: &[Node<T>],
        (current, woken): (&Node<T>, &Node<T>),
        contest: &Contest,
        rules: &Rules,
    ) -> bool {
        let floor = VirtualTime(woken.v.0 >> rules.shift << rules.shift);
        if self.average.mean_is_before(floor, contest.extra) {
            return false;
        }
        let is_ahead = self
            .average
            .mean_is_before(contest.current_v, contest.extra);
        // A shorter request is what a latency-sensitive task asks for: parity does not protect against it. Nor does it protect who has had
        // more than is due, or one who sleeps for microseconds would have one turn a slice, whatever it is owed. By our rules that is for
        // who wakes only, and not where tasks stand beside groups: there V is this CPU's, and a task that each CPU in turn is ahead
        // with would be handed round.
        let is_for_the_due = !rules.parity_from_arrival || contest.wakes && !self.is_anchored;
        let is_protected = contest.current_v.is_before(self.protect)
            && woken.slice >= current.slice
            && !(is_ahead && is_for_the_due);
        if is_protected || !(is_ahead || woken.deadline.is_before(current.deadline)) {
            return false;
        }
        rules.parity_from_arrival || self.is_next(nodes, woken, contest)
    }

    /// Whether nobody who waits comes before `woken`. By the kernel's rules a wake-up interrupts for the sake of who woke and nobody else.
    /// Asks the one with the earliest deadline only, which nearly always is eligible.
    fn is_next<T>(&self, nodes: &[Node<T>], woken: &Node<T>, contest: &Contest) -> bool {
        self.ready.peek().is_none_or(|(index, _)| {
            let first = &nodes[index as usize];
            !first.deadline.is_before(woken.deadline)
                || self.average.mean_is_before(first.v, contest.extra)
        })
    }
}

/// The request with which an entity is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A new one.
    Whole,
    /// The first of a new task: half of one, so that it runs soon but cannot starve its spawner by being many.
    First,
    /// What is left of one that was begun elsewhere; a new one if that is nothing.
    Rest(Rest),
}

/// The deadline of who was just placed.
#[inline(always)]
fn begin_request<T>(node: &mut Node<T>, request: Request) {
    let rest = match request {
        Request::Rest(rest) => rest.distance(node.shares),
        Request::Whole | Request::First => None,
    };
    let length = rest.unwrap_or_else(|| {
        let whole = to_virtual(u64::from(node.slice), node.shares);
        whole >> u32::from(request == Request::First)
    });
    node.deadline = node.v.plus(length);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::moved::Moved;
    use crate::node::{NONE, Place, Traits};
    use crate::run_queue::RunQueue;
    use crate::tree::GroupTree;
    use crate::units::{CpuId, Nanos, to_virtual};
    use proptest::prelude::*;

    /// A timeline by itself, with all of its nodes queued.
    struct Bench {
        timeline: Timeline,
        nodes: Vec<Node<()>>,
        rules: Rules,
    }

    impl Bench {
        fn new(quantum: u64) -> Bench {
            let config = Config {
                quantum: Nanos(quantum),
                ..Config::new(1)
            };
            let tree = GroupTree::new(config);
            let root = tree.root();
            let cell = root.cells.of(CpuId(0), Default::default);
            let rules = RunQueue::<()>::new(&tree, CpuId(0)).rules;
            let timeline = Timeline::new(root, cell, NONE, rules.shift);
            Bench {
                timeline,
                nodes: Vec::new(),
                rules,
            }
        }

        fn add(&mut self, shares: u32, slice: u32, lag: i64) -> u32 {
            let mut node = Node {
                v: VirtualTime(0),
                deadline: VirtualTime(0),
                sum_exec: 0,
                handle: Some(()),
                slice,
                shares,
                next: NONE,
                prev: NONE,
                timeline: 0,
                owned: NONE,
                moved: Moved::NEVER,
                place: Place::Off,
                traits: Traits::default(),
                passed_over: 0,
            };
            let reference = self.timeline.average.mean();
            self.timeline
                .place_eevdf(&mut node, lag, Request::Whole, reference);
            self.nodes.push(node);
            let index = self.nodes.len() as u32 - 1;
            self.join(index);
            index
        }

        fn join(&mut self, index: u32) {
            let node = &self.nodes[index as usize];
            self.timeline.average.add(node.v, node.shares);
            self.timeline.nr += 1;
            self.timeline.queue(&mut self.nodes, index, &self.rules);
        }

        fn quit(&mut self, index: u32) {
            self.timeline.unqueue(&mut self.nodes, index, &self.rules);
            let node = &self.nodes[index as usize];
            self.timeline.average.remove(node.v, node.shares);
            self.timeline.nr -= 1;
        }

        fn queued(&self) -> Vec<u32> {
            let all = 0..self.nodes.len() as u32;
            all.filter(|&index| self.nodes[index as usize].place.is_queued())
                .collect()
        }

        fn lags(&self) -> Vec<i64> {
            let mean = self.timeline.average.mean();
            self.queued()
                .iter()
                .map(|&index| mean.since(self.nodes[index as usize].v))
                .collect()
        }

        /// The definition, by looking at everybody: the least deadline bucket among those whose bucket has begun.
        fn least_eligible_deadline(&self) -> Option<u64> {
            let bucket = |time: VirtualTime| time.0 >> self.rules.shift;
            let nodes = self
                .queued()
                .into_iter()
                .map(|index| &self.nodes[index as usize]);
            let eligible = nodes.filter(|node| self.timeline.is_eligible(node.v, &self.rules));
            eligible.map(|node| bucket(node.deadline)).min()
        }
    }

    fn entities() -> impl Strategy<Value = Vec<(u32, u32, i64)>> {
        let entity = (
            1..=102_400u32,
            100_000..5_000_000u32,
            -2_000_000_000..2_000_000_000i64,
        );
        prop::collection::vec(entity, 1..60)
    }

    proptest! {
        /// Whatever V does, forwards or backwards, the two queues find what a search of everybody would.
        #[test]
        fn the_choice_is_the_earliest_eligible_deadline(
            entities in entities(),
            quantum in prop_oneof![Just(0u64), Just(1_000), Just(50_000)],
            steps in prop::collection::vec((any::<usize>(), 0..3_000_000u64, 0..4u8), 1..100),
        ) {
            let mut bench = Bench::new(quantum);
            // Far from zero, so that nothing wraps by accident; wrapping has its own test.
            bench.timeline.average.add(VirtualTime(1 << 50), 1024);
            bench.timeline.average.remove(VirtualTime(1 << 50), 1024);
            for (shares, slice, lag) in entities {
                bench.add(shares, slice, lag);
            }
            for (which, service, action) in steps {
                let Some((chosen, _)) = bench.timeline.best(&mut bench.nodes, &bench.rules) else {
                    prop_assert!(bench.queued().is_empty());
                    break;
                };
                let node = &bench.nodes[chosen as usize];
                prop_assert!(bench.timeline.is_eligible(node.v, &bench.rules));
                let found = node.deadline.0 >> bench.rules.shift;
                prop_assert_eq!(Some(found), bench.least_eligible_deadline());
                let queued = bench.queued();
                match action {
                    // Somebody leaves: V may move either way.
                    0 => bench.quit(queued[which % queued.len()]),
                    1 => {
                        bench.add(1024, 700_000, (which % 4_000_000) as i64 - 2_000_000);
                    }
                    _ => {
                        bench.timeline.unqueue(&mut bench.nodes, chosen, &bench.rules);
                        let node = &mut bench.nodes[chosen as usize];
                        let distance = to_virtual(service, node.shares);
                        node.v = node.v.plus(distance);
                        bench.timeline.average.advance(distance, node.shares);
                        node.deadline = node.v.plus(to_virtual(u64::from(node.slice), node.shares));
                        bench.timeline.queue(&mut bench.nodes, chosen, &bench.rules);
                    }
                }
            }
        }

        /// Invariant 11: leaving and coming back at equal lag changes nobody's lag by more than rounding.
        #[test]
        fn leaving_and_returning_with_the_same_lag_leaves_the_others_alone(
            entities in entities(),
            which in any::<usize>(),
        ) {
            let mut bench = Bench::new(0);
            for &(shares, slice, lag) in &entities {
                bench.add(shares, slice, lag);
            }
            prop_assume!(entities.len() > 1);
            let index = (which % entities.len()) as u32;
            let before = bench.lags();
            let lag = before[index as usize];
            bench.quit(index);
            let reference = bench.timeline.average.mean();
            let mut node = bench.nodes.remove(index as usize);
            bench.timeline.place_eevdf(&mut node, lag, Request::Whole, reference);
            // V and the lag are both rounded to a unit, and the lag is inflated by what the entity weighs.
            let load = bench.timeline.average.load();
            let rounding = 3 + (u64::from(node.shares) / load).cast_signed();
            bench.timeline.average.add(node.v, node.shares);
            let mean = bench.timeline.average.mean();
            prop_assert!((mean.since(node.v) - lag).abs() <= rounding);
            let others = before.iter().enumerate().filter(|(at, _)| *at != index as usize);
            for ((_, &lag), node) in others.zip(&bench.nodes) {
                prop_assert!((mean.since(node.v) - lag).abs() <= rounding, "{lag} {}", mean.since(node.v));
            }
        }

        /// Invariant 11: a new weight keeps `weight x lag` and V.
        #[test]
        fn reweighting_keeps_weighted_lag_and_v(
            entities in entities(),
            which in any::<usize>(),
            shares in 1..=102_400u32,
        ) {
            let mut bench = Bench::new(0);
            for &(shares, slice, lag) in &entities {
                bench.add(shares, slice, lag);
            }
            let index = (which % entities.len()) as u32;
            let mean = bench.timeline.average.mean();
            let weighted = |node: &Node<()>, mean: VirtualTime| {
                i128::from(mean.since(node.v)) * i128::from(node.shares)
            };
            let before = weighted(&bench.nodes[index as usize], mean);
            bench.timeline.unqueue(&mut bench.nodes, index, &bench.rules);
            bench.timeline.reweight(&mut bench.nodes[index as usize], shares);
            let after = weighted(&bench.nodes[index as usize], mean);
            // The lag is rounded to a unit of the new weight.
            prop_assert!((before - after).abs() <= i128::from(shares), "{before} {after}");
            prop_assert!(bench.timeline.average.mean().since(mean).abs() <= 1 + i64::from(shares));
        }
    }
}
