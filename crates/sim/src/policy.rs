//! Another policy in the simulator: who runs next on a CPU, decided by a few functions instead of by the scheduler core.
//!
//! A [`Policy`] is asked by the engine at every wake-up, choice, tick and departure, and knows nothing of machines, costs, affinity or
//! hot-plugging, which stay the engine's: so does moving waiting tasks to CPUs that have less to do, for which it only gives one away.
//! Limits are the core's, so that a plan that has any is refused with another policy. To try one: implement the trait, put a
//! [`Plugin`] into [`crate::Settings::plugin`], run the plan. [`WeightedRoundRobin`] is the example, by that name in scenario files too:
//! `policy = "weighted-round-robin"`.

use core::fmt;
use quotient_core::{Nanos, Weight};
use std::collections::VecDeque;

/// A task as a policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its number.
    pub task: u32,
    /// Its weight within its group.
    pub weight: Weight,
    /// Its group: 0 is the root, n + 1 the group n of [`crate::Plan::groups`].
    pub group: u32,
    /// The weight of that group, as of now.
    pub group_weight: Weight,
}

/// Who runs next on one CPU. Every CPU has one of its own. A task is with the policy from [`Policy::enqueue`] until it is given away
/// or put back for good; the one that [`Policy::pick`] has returned runs until it is put back.
pub trait Policy: Send {
    /// A task wants to run here: it was woken, has begun, or comes from another CPU. Returns whether the one that runs now, if any,
    /// shall give way at once.
    fn enqueue(&mut self, candidate: Candidate, now: Nanos) -> bool;

    /// Chooses who runs next, and takes it out of those who wait.
    fn pick(&mut self, now: Nanos) -> Option<u32>;

    /// The one that was picked has run for `ran` and leaves the CPU; if `wants_more` it waits from now on.
    fn put(&mut self, candidate: Candidate, ran: Nanos, wants_more: bool, now: Nanos);

    /// A tick: whether the one that was picked, and has run for `ran`, shall give way.
    fn tick(&mut self, ran: Nanos, now: Nanos) -> bool;

    /// Gives away one that waits, for another CPU.
    fn give(&mut self) -> Option<u32>;

    /// How many wait.
    fn waiting(&self) -> usize;
}

/// A policy by its name. Two are equal if their names are.
#[derive(Clone, Copy)]
pub struct Plugin {
    /// What it is called.
    pub name: &'static str,
    /// Makes the policy of a CPU.
    pub make: fn(cpu: u32) -> Box<dyn Policy>,
}

impl Plugin {
    /// [`WeightedRoundRobin`].
    pub const WEIGHTED_ROUND_ROBIN: Plugin = Plugin {
        name: "weighted-round-robin",
        make: |_| Box::new(WeightedRoundRobin::default()),
    };
}

impl fmt::Debug for Plugin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl PartialEq for Plugin {
    fn eq(&self, other: &Plugin) -> bool {
        self.name == other.name
    }
}

impl Eq for Plugin {}

/// CPU time of a turn of a group of weight 100, ns: 4 ms, a tick at HZ=250, since turns end at ticks.
const TURN: u64 = 4_000_000;

/// The example: groups take turns, each for as long as its weight says (4 ms for weight 100), and within its turn a group's tasks run
/// one after another until they sleep or, at a tick, others of the group wait. A turn that ended late is made up for: the group
/// sits out until its turns have paid for it. Nobody is preempted by a wake-up.
#[derive(Debug, Default)]
pub struct WeightedRoundRobin {
    /// Groups with a task here, the one whose turn it is first.
    ring: VecDeque<Turn>,
    waiting: usize,
}

#[derive(Debug)]
struct Turn {
    group: u32,
    /// What is left of its turn, and how long a whole one is, ns.
    left: i64,
    whole: i64,
    /// Its waiting tasks.
    tasks: VecDeque<u32>,
    runs: bool,
}

impl WeightedRoundRobin {
    fn place_of(&self, group: u32) -> Option<usize> {
        self.ring.iter().position(|turn| turn.group == group)
    }

    /// Adds a waiting task, and its group at the end of the ring if it has none here.
    fn add(&mut self, candidate: Candidate) {
        // At most 400 ms, for weights are at most 10,000.
        let whole = (TURN * u64::from(candidate.group_weight.get()) / 100) as i64;
        let place = self.place_of(candidate.group).unwrap_or_else(|| {
            self.ring.push_back(Turn {
                group: candidate.group,
                left: whole,
                whole,
                tasks: VecDeque::new(),
                runs: false,
            });
            self.ring.len() - 1
        });
        let turn = &mut self.ring[place];
        turn.whole = whole;
        turn.tasks.push_back(candidate.task);
        self.waiting += 1;
    }

    /// Groups without a task leave, and take nothing with them.
    fn forget_empty(&mut self) {
        self.ring.retain(|turn| turn.runs || !turn.tasks.is_empty());
    }
}

impl Policy for WeightedRoundRobin {
    fn enqueue(&mut self, candidate: Candidate, _: Nanos) -> bool {
        self.add(candidate);
        false
    }

    fn pick(&mut self, _: Nanos) -> Option<u32> {
        self.forget_empty();
        // Nobody owes more than a turn of weight 100, so that this ends after a hundred rounds even for weight 1.
        while let Some(mut turn) = self.ring.pop_front() {
            if turn.left > 0 {
                turn.runs = true;
                let task = turn.tasks.pop_front();
                self.ring.push_front(turn);
                self.waiting -= 1;
                return task;
            }
            turn.left += turn.whole;
            self.ring.push_back(turn);
        }
        None
    }

    fn put(&mut self, candidate: Candidate, ran: Nanos, wants_more: bool, _: Nanos) {
        if let Some(turn) = self.ring.front_mut() {
            turn.runs = false;
            // What it ran on for while nobody waited is no debt.
            turn.left = (turn.left - ran.0 as i64).max(-(TURN as i64));
        }
        if wants_more {
            self.add(candidate);
        }
        self.forget_empty();
    }

    fn tick(&mut self, ran: Nanos, _: Nanos) -> bool {
        let running = self.ring.front().filter(|turn| turn.runs);
        running.is_some_and(|turn| !turn.tasks.is_empty() || turn.left <= ran.0 as i64)
            && self.waiting > 0
    }

    fn give(&mut self) -> Option<u32> {
        let last = self.ring.iter_mut().rev();
        let turn = last.into_iter().find(|turn| !turn.tasks.is_empty())?;
        let task = turn.tasks.pop_back();
        self.waiting -= 1;
        self.forget_empty();
        task
    }

    fn waiting(&self) -> usize {
        self.waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Plan, Simulation, Span, synthetic};
    use quotient_core::Limit;
    use quotient_trace::Discard;

    fn plan(shape: &str) -> Plan {
        let mut plan = Plan::new(Machine::parse(shape).unwrap());
        plan.settings.plugin = Some(Plugin::WEIGHTED_ROUND_ROBIN);
        plan.duration = Nanos::from_secs(10);
        plan
    }

    fn run(plan: &Plan) -> crate::Outcome {
        let mut simulation = Simulation::new(plan, Discard).unwrap();
        simulation.run().unwrap();
        simulation.outcome()
    }

    #[test]
    fn turns_are_as_long_as_weights_say_however_many_tasks_a_group_has() {
        let mut plan = plan("1");
        for (path, weight, hogs) in [("a", 50, 1), ("b", 100, 5), ("c", 250, 2)] {
            let group = plan.group(path);
            plan.groups.last_mut().unwrap().weight = Weight::new(weight).unwrap();
            synthetic::spinners(&mut plan, path, group, hogs);
        }
        let outcome = run(&plan);
        assert_eq!(outcome.busy_ns, 10_000_000_000);
        for (path, expected) in [("a", 1_250), ("b", 2_500), ("c", 6_250)] {
            let used = outcome.group(path).unwrap().usage_ns / 1_000_000;
            assert!(
                used.abs_diff(expected) <= 30,
                "{path}: {used} of {expected}"
            );
        }
        let hogs = outcome.workload("b").unwrap();
        assert!(
            hogs.usage_max_ns - hogs.usage_min_ns <= 20_000_000,
            "{hogs:?}"
        );
    }

    #[test]
    fn nobody_is_lost_between_cpus_sleeps_and_turns() {
        let mut plan = plan("2x2");
        plan.settings.check = true;
        let (web, batch) = (plan.group("web"), plan.group("batch"));
        let mean = Span::Exponential {
            mean: Nanos::from_millis(1),
        };
        synthetic::closed_loop(&mut plan, "web", web, 9, mean, mean);
        synthetic::spinners(&mut plan, "batch", batch, 5);
        synthetic::once(&mut plan, "once", None, 7, mean);
        let outcome = run(&plan);
        assert_eq!(outcome.workload("once").unwrap().ended, 7);
        assert_eq!(
            outcome.busy_ns, 40_000_000_000,
            "five hogs keep four CPUs busy"
        );
        let served = outcome.meter("web").unwrap().done;
        assert!(served > 9 * 1_000, "{served}");
        // Time is told by tasks, and the sum over groups is all of it.
        let groups: u64 = ["web", "batch"]
            .map(|path| outcome.group(path).unwrap().usage_ns)
            .iter()
            .sum();
        assert_eq!(
            groups + outcome.workload("once").unwrap().usage_ns,
            outcome.busy_ns
        );
    }

    #[test]
    fn a_plan_with_limits_is_refused() {
        let mut plan = plan("1");
        plan.group("a");
        plan.groups[0].limit = Some(Limit::new(Nanos::from_millis(10), Nanos::from_millis(100)));
        let error = plan.validate().unwrap_err().to_string();
        assert!(
            error.contains("weighted-round-robin") && error.contains("limit"),
            "{error}"
        );
    }
}
