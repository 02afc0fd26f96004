//! The engine: moments in order, each handled on one CPU, with the unchanged scheduler core deciding who runs.
//!
//! ```text
//!   next moment ──► step of a task ends ──► interpret its program ──► sleep / exit ──► pick ──► start
//!        │                                          └─ wakes others ──► their CPUs are listed
//!        ├────────► tick: charge, give way?, balance
//!        └────────► timer: a sleeper wakes, a request arrives, a change ...
//!   then every listed CPU is looked at, in order, until none is listed; then the next moment
//! ```
//!
//! One moment may concern many CPUs, so whoever changes another CPU only *lists* it: nothing here recurses, and the
//! order is the order of listing. Time is integer nanoseconds; there is no global state; nothing is iterated whose
//! order is not fixed. A run is `Send`: many of them make a sweep.

mod affinity;
mod alone;
mod balance;
mod clocks;
mod emit;
mod hotplug;
mod idle_pull;
mod interpret;
mod limits;
mod prepare;
mod queue;
mod real_time;
mod requests;
pub(crate) mod state;
mod switch;
mod tick;
mod wake;

use crate::agenda::{Moments, NEVER, Timer, Timers};
use crate::costs::{Costs, Line};
use crate::machine::{Machine, Ticks};
use crate::meters::{Meter, Times};
use crate::outcome::Mechanisms;
use crate::plan::{Action, Change, Hotplug, Settings};
use crate::program::{COUNTERS, Step};
use crate::random::Random;
use core::fmt;
use quotient_core::{CpuId, CpuLoad, Detached, Group, GroupTree, Nanos, Topology, Weight};
use quotient_trace::{Discard, Sink};
use state::{
    Arrivals, Barrier, Channel, Cpu, IdleCpus, NONE, RequestQueue, Requests, Spanning, Task,
};
use std::collections::VecDeque;
use std::sync::Arc;
use tick::AverageState;

/// A run that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// Tasks keep doing things that take no time.
    Standstill {
        /// When.
        at: Nanos,
        /// The workload of the one that did the last; up to three that it may be where nobody was on a CPU.
        workload: String,
    },
    /// An invariant of the scheduler core does not hold: a bug of Quotient.
    Violation {
        /// When.
        at: Nanos,
        /// Which CPU.
        cpu: CpuId,
        /// What is wrong.
        what: String,
    },
}

impl fmt::Display for RunError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Standstill { at, workload } => write!(
                formatter,
                "time stands still at {at}: workload {workload} loops without computing or sleeping"
            ),
            RunError::Violation { at, cpu, what } => {
                write!(formatter, "invariant broken at {at} on {cpu}: {what}")
            }
        }
    }
}

impl std::error::Error for RunError {}

/// A workload on its way.
pub(crate) struct Load {
    pub(crate) name: String,
    pub(crate) tasks: core::ops::Range<u32>,
    pub(crate) ended: u32,
    /// Time from a wake-up to the first instruction, ns.
    pub(crate) latency: Times,
    /// Time spent runnable and not running, ns.
    pub(crate) run_delay: u64,
    pub(crate) finished_at: Option<u64>,
}

/// A run of a plan. `S` takes the events; with [`Discard`] nothing of that is left in the code.
pub struct Simulation<S: Sink = Discard> {
    pub(crate) now: u64,
    pub(crate) end: u64,
    pub(crate) machine: Machine,
    pub(crate) costs: Costs,
    pub(crate) settings: Settings,
    tree: GroupTree,
    /// The root, then the plan's groups.
    pub(crate) groups: Vec<Arc<Group>>,
    /// System time of each, without its descendants, ns.
    pub(crate) group_system: Vec<u64>,
    group_lines: Vec<Line>,
    /// Index of the nearest planned group above each; 0 is the root.
    parents: Vec<u32>,
    averages: Vec<AverageState>,
    /// The steps of all programs, one after another, each ended by [`Step::Exit`].
    steps: Vec<Step>,
    pub(crate) tasks: Vec<Task>,
    /// Which CPUs each may run on.
    affinity: affinity::Affinity,
    /// Loop counters of each.
    counters: Vec<[u32; COUNTERS]>,
    pub(crate) loads: Vec<Load>,
    channels: Vec<Channel>,
    barriers: Vec<Barrier>,
    queues: Vec<RequestQueue>,
    requests: Requests,
    /// Those of the plan.
    spanning: Vec<Spanning>,
    pub(crate) meters: Vec<Meter>,
    arrivals: Vec<Arrivals>,
    changes: Vec<Change>,
    pub(crate) cpus: Vec<Cpu>,
    published: Vec<Arc<CpuLoad>>,
    topology: Arc<Topology>,
    moments: Moments,
    timers: Timers,
    listed: VecDeque<u32>,
    idle: IdleCpus,
    /// The CPU whose task's program is being interpreted.
    interpreting: u32,
    /// Runnable tasks of each node.
    node_running: Vec<usize>,
    /// Tasks that wait for a CPU, over all.
    waiting: usize,
    sweeping: bool,
    /// When all CPUs that do not tick were charged last.
    caught_up_at: u64,
    tick_length: u64,
    balance_every: u64,
    moved: Vec<Detached<u32>>,
    woken: Vec<u32>,
    random: Random,
    /// When choices look whether to pull.
    looks: Random,
    /// Indices of the groups that have or had a limit.
    limited: Vec<u32>,
    above: real_time::Above,
    hotplug: Vec<Hotplug>,
    warmth: idle_pull::Warmth,
    /// Weights of tasks, where another policy wants to know them.
    weights: Vec<Weight>,
    /// Whether each of them may not run, on each CPU, as told to the sink; and the periods told.
    throttled: Vec<bool>,
    periods: Vec<u64>,
    kicked: Vec<u32>,
    alive: u32,
    steps_now: u64,
    standstill: u64,
    handled: u64,
    plans: u64,
    pub(crate) mechanisms: Mechanisms,
    pub(crate) sink: S,
}

impl<S: Sink> Simulation<S> {
    /// What has passed of the run.
    pub fn now(&self) -> Nanos {
        Nanos(self.now)
    }

    /// Whether the run is over: its duration has passed, or every task has ended.
    pub fn is_over(&self) -> bool {
        self.now >= self.end || self.alive == 0
    }

    /// The tree of the groups.
    pub fn tree(&self) -> &GroupTree {
        &self.tree
    }

    /// The groups: the root first, then the plan's in its order.
    pub fn groups(&self) -> &[Arc<Group>] {
        &self.groups
    }

    /// Events so far: what a trace of the run would hold.
    pub fn events(&self) -> u64 {
        self.mechanisms.events
    }

    /// Moments handled so far: ends of steps, of sleeps and of budgets, ticks, arrivals, refills.
    pub fn moments(&self) -> u64 {
        self.handled
    }

    /// Times that the balancer was asked whom to pull from, so far: each time it looks at all CPUs.
    pub fn plans(&self) -> u64 {
        self.plans
    }

    /// Gives the sink back, with what it has taken.
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run(&mut self) -> Result<(), RunError> {
        self.advance(Nanos(self.end))
    }

    /// Runs until `until` or the end, whichever comes first. In how many pieces a run is cut changes nothing. Clocks of
    /// groups are complete at the end only. Time never goes back: of an `until` that has passed nothing comes.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn advance(&mut self, until: Nanos) -> Result<(), RunError> {
        let until = until.0.min(self.end);
        while self.alive > 0 {
            let (moment, cpu) = self.moments.first();
            let timer = self.timers.next();
            let refill = self.next_refill();
            // What somebody asks for an instant that has passed is done now: whoever reads the time twice must not find it earlier.
            let next = moment.min(timer).min(refill).max(self.now);
            if next > until {
                break;
            }
            if next != self.now {
                self.now = next;
                self.steps_now = 0;
            }
            self.handled += 1;
            if refill <= next {
                self.refill();
            } else if timer <= moment {
                self.timer();
            } else {
                self.moment(cpu);
            }
            while let Some(cpu) = self.listed.pop_front() {
                self.look_at(cpu);
                self.steps_now += 1;
                if self.steps_now > self.standstill {
                    break;
                }
            }
            self.steps_now += 1;
            if self.steps_now > self.standstill {
                return Err(self.stand_still());
            }
            if self.settings.check {
                self.check()?;
            }
        }
        if self.alive > 0 {
            self.now = self.now.max(until);
        }
        if self.is_over() {
            self.settle();
        }
        Ok(())
    }

    #[cold]
    fn stand_still(&self) -> RunError {
        let running = self.cpus.iter().find(|cpu| cpu.current != NONE);
        // With no work and no pauses nobody may be on a CPU as it is noticed: then it is one of those that have not ended.
        let workload = running.map_or_else(
            || {
                let alive = self
                    .loads
                    .iter()
                    .filter(|load| load.ended < load.tasks.end - load.tasks.start);
                let names: Vec<&str> = alive.take(3).map(|load| load.name.as_str()).collect();
                names.join(" or ")
            },
            |cpu| {
                let load = self.tasks[cpu.current as usize].workload;
                self.loads[load as usize].name.clone()
            },
        );
        RunError::Standstill {
            at: Nanos(self.now),
            workload,
        }
    }

    /// Verifies every run queue. O(runnable tasks).
    ///
    /// # Errors
    /// [`RunError::Violation`], which is always a bug of Quotient.
    pub fn check(&self) -> Result<(), RunError> {
        for cpu in &self.cpus {
            cpu.queue.check().map_err(|violation| RunError::Violation {
                at: Nanos(self.now),
                cpu: cpu.queue.cpu(),
                what: violation.to_string(),
            })?;
        }
        Ok(())
    }

    /// Charges everything that runs up to now, so that clocks can be read.
    fn settle(&mut self) {
        let now = Nanos(self.now);
        for cpu in &mut self.cpus {
            cpu.queue.charge(now);
        }
    }

    #[inline]
    fn timer(&mut self) {
        match self.timers.pop() {
            Some(Timer::Wake(task)) => self.wake(task, NONE),
            Some(Timer::Begin(task)) => self.begin(task),
            Some(Timer::Arrive(source)) => self.arrive(source),
            Some(Timer::Change(change)) => self.change(change),
            Some(Timer::Sweep) => self.sweep(),
            Some(Timer::Noise(cpu)) => self.noise(cpu),
            Some(Timer::RealTime(load)) => self.above_due(load),
            Some(Timer::RealTimeEnd(cpu)) => self.above_ends(cpu),
            Some(Timer::Hotplug(event)) => self.plug(event),
            None => {}
        }
    }

    #[inline]
    fn moment(&mut self, cpu: u32) {
        let state = &self.cpus[cpu as usize];
        if state.work_end <= self.now {
            self.interpret(cpu);
        } else if state.next_tick <= self.now {
            self.tick(cpu);
        } else {
            self.spend_budget(cpu);
        }
    }

    /// Does what a listed CPU has to do.
    fn look_at(&mut self, cpu: u32) {
        let state = &mut self.cpus[cpu as usize];
        state.listed = false;
        if state.current == NONE {
            self.dispatch(cpu);
        } else if state.need_resched {
            self.preempt(cpu);
        } else if state.ready {
            self.interpret(cpu);
        }
    }

    /// Asks for a look at a CPU before time goes on.
    #[inline]
    pub(crate) fn list(&mut self, cpu: u32) {
        let state = &mut self.cpus[cpu as usize];
        if !state.listed && self.interpreting != cpu {
            state.listed = true;
            self.listed.push_back(cpu);
        }
    }

    /// Sets when a CPU has to be looked at next.
    #[inline]
    pub(crate) fn arm(&mut self, cpu: u32) {
        let state = &self.cpus[cpu as usize];
        let next = state.work_end.min(state.next_tick).min(state.budget_end);
        self.moments.set(cpu, next);
    }

    /// Counts the waiting and the runnable tasks of a CPU anew.
    #[inline(always)]
    pub(crate) fn count_waiting(&mut self, cpu: u32) {
        let state = &mut self.cpus[cpu as usize];
        let (waiting, running) = state.queue.counts();
        let more = running.wrapping_sub(state.running);
        if more != 0 {
            state.running = running;
            let on_node = &mut self.node_running[state.node as usize];
            *on_node = on_node.wrapping_add(more);
        }
        let more = waiting.wrapping_sub(state.waiting);
        if more == 0 {
            return;
        }
        state.waiting = waiting;
        self.waiting = self.waiting.wrapping_add(more);
        if !self.sweeping && self.waiting > 0 {
            self.begin_sweeping();
        }
    }

    /// Tasks wait, from now on: CPUs that do not tick have to look whether to pull.
    #[cold]
    fn begin_sweeping(&mut self) {
        if self.machine.ticks == Ticks::Needed && self.cpus.len() > 1 {
            self.sweeping = true;
            self.catch_up();
            let next = (self.now / self.tick_length + 1) * self.tick_length;
            self.timers.set(next, Timer::Sweep);
        }
    }

    fn change(&mut self, index: u32) {
        self.catch_up();
        let change = &self.changes[index as usize];
        let group = &self.groups[change.group as usize + 1];
        match change.action {
            Action::Weight(weight) => group.set_weight(weight),
            Action::Idle(idle) => group.set_idle(idle),
            Action::Limit(limit) => {
                let index = change.group + 1;
                if self.set_limit(index, limit).is_err() {
                    self.mechanisms.refused += 1;
                }
                return;
            }
        }
        self.note_change(index);
    }
}

const _: () = assert!(NEVER == u64::MAX);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::synthetic;

    /// Hazard: a queue asks for an instant that has passed, and the run goes back there.
    #[test]
    fn what_is_asked_for_an_instant_that_has_passed_comes_now() {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = Nanos::from_secs(3);
        synthetic::spinners(&mut plan, "w", None, 1);
        let mut simulation = Simulation::new(&plan, Discard).expect("a valid plan");
        let second = Nanos::from_secs(1);
        simulation.advance(second).expect("a run that goes on");
        simulation.timers.set(500_000_000, Timer::Sweep);
        simulation.moments.set(0, 600_000_000);
        simulation.advance(second).expect("a run that goes on");
        assert_eq!(simulation.caught_up_at, second.0, "swept now, not then");
        assert!(simulation.timers.next() > second.0 && simulation.moments.first().0 > second.0);
        let earlier = Nanos::from_millis(200);
        simulation.advance(earlier).expect("a run that goes on");
        assert_eq!(simulation.now(), second);
    }
}
