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

mod balance;
mod clocks;
mod emit;
mod interpret;
mod limits;
mod requests;
pub(crate) mod state;
mod switch;
mod tick;
mod wake;

use crate::agenda::{INDEX_MAX, Moments, NEVER, Timer, Timers};
use crate::costs::{Costs, Line};
use crate::machine::{Machine, Ticks};
use crate::meters::{Meter, histogram};
use crate::outcome::Mechanisms;
use crate::plan::{Action, Change, Plan, PlanError, Settings};
use crate::program::Program;
use crate::random::Random;
use core::fmt;
use hdrhistogram::Histogram;
use quotient_core::{CpuId, CpuLoad, Detached, Group, GroupTree, Nanos, TaskEntity, Topology};
use quotient_trace::{Discard, Sink};
use state::{
    Arrivals, Barrier, Channel, Cpu, IdleCpus, Life, NONE, RequestQueue, Requests, RunQueue, Task,
};
use std::collections::VecDeque;
use std::sync::Arc;
use tick::AverageState;

/// Steps without any time passing, beyond a thousand for each task, that mean that none ever will.
const STANDSTILL_MIN: u64 = 1_000_000;

/// A run that cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunError {
    /// Tasks keep doing things that take no time.
    Standstill {
        /// When.
        at: Nanos,
        /// The workload of the one that did the last.
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
    pub(crate) latency: Histogram<u64>,
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
    programs: Vec<Program>,
    pub(crate) tasks: Vec<Task>,
    pub(crate) loads: Vec<Load>,
    channels: Vec<Channel>,
    barriers: Vec<Barrier>,
    queues: Vec<RequestQueue>,
    requests: Requests,
    pub(crate) meters: Vec<Meter>,
    arrivals: Vec<Arrivals>,
    changes: Vec<Change>,
    pub(crate) cpus: Vec<Cpu>,
    published: Vec<Arc<CpuLoad>>,
    topology: Topology,
    moments: Moments,
    timers: Timers,
    listed: VecDeque<u32>,
    idle: IdleCpus,
    /// The CPU whose task's program is being interpreted.
    interpreting: u32,
    /// Tasks that wait for a CPU, over all.
    waiting: usize,
    sweeping: bool,
    tick_length: u64,
    balance_every: u64,
    moved: Vec<Detached<u32>>,
    woken: Vec<u32>,
    random: Random,
    /// Indices of the groups that have or had a limit.
    limited: Vec<u32>,
    /// Whether each of them may not run, on each CPU, as told to the sink; and the periods told.
    throttled: Vec<bool>,
    periods: Vec<u64>,
    kicked: Vec<u32>,
    alive: u32,
    steps_now: u64,
    standstill: u64,
    handled: u64,
    pub(crate) mechanisms: Mechanisms,
    pub(crate) sink: S,
}

impl<S: Sink> Simulation<S> {
    /// Prepares a run. Nothing has happened yet at time zero.
    ///
    /// # Errors
    /// [`PlanError`] says what is wrong with the plan.
    pub fn new(plan: &Plan, sink: S) -> Result<Simulation<S>, PlanError> {
        plan.validate()?;
        let cpus = plan.machine.cpus();
        let mut config = plan.settings.config;
        config.cpus = cpus;
        let tree = GroupTree::new(config);
        let mut groups = vec![tree.root()];
        for group in &plan.groups {
            let made = tree.group(&group.path).map_err(PlanError::Group)?;
            made.set_weight(group.weight);
            made.set_idle(group.idle);
            groups.push(made);
        }
        let machines: Vec<Cpu> = (0..cpus)
            .map(|cpu| Cpu::new(RunQueue::with_gates(&tree, CpuId(cpu))))
            .collect();
        let published = machines
            .iter()
            .map(|cpu| Arc::clone(cpu.queue.load()))
            .collect();
        let every = plan.settings.balance_every.map_or_else(
            || 500_000 * u64::from(cpus).div_ceil(8),
            |interval| interval.0.max(1),
        );
        let averages = tick::states(plan, groups.len());
        let parents = groups
            .iter()
            .map(|group| parent_index(&groups, group))
            .collect();
        let mut simulation = Simulation {
            now: 0,
            end: plan.duration.0,
            machine: plan.machine.clone(),
            costs: plan.costs,
            settings: plan.settings,
            tree,
            group_system: vec![0; groups.len()],
            group_lines: vec![Line::default(); groups.len()],
            parents,
            groups,
            averages,
            programs: plan.programs.clone(),
            tasks: Vec::new(),
            loads: Vec::new(),
            channels: plan.channels.iter().map(channel).collect(),
            barriers: plan.barriers.iter().map(barrier).collect(),
            queues: (0..plan.queues).map(|_| RequestQueue::default()).collect(),
            requests: Requests::new(),
            meters: plan.meters.iter().map(|name| Meter::new(name)).collect(),
            arrivals: Vec::new(),
            changes: plan.changes.clone(),
            cpus: machines,
            published,
            topology: plan.machine.topology(),
            moments: Moments::new(cpus),
            timers: Timers::default(),
            listed: VecDeque::with_capacity(cpus as usize),
            idle: IdleCpus::all(cpus),
            interpreting: NONE,
            waiting: 0,
            sweeping: false,
            tick_length: plan.machine.tick_length(),
            balance_every: every,
            moved: Vec::new(),
            woken: Vec::new(),
            random: Random::new(plan.seed, u64::MAX),
            limited: Vec::new(),
            throttled: Vec::new(),
            periods: Vec::new(),
            kicked: Vec::new(),
            alive: 0,
            steps_now: 0,
            standstill: 0,
            handled: 0,
            mechanisms: Mechanisms::default(),
            sink,
        };
        simulation.take_tasks(plan)?;
        simulation.take_sources(plan);
        simulation.define_all();
        for (index, group) in (1u32..).zip(&plan.groups) {
            if group.limit.is_some() {
                simulation
                    .set_limit(index, group.limit)
                    .map_err(|error| PlanError::Limit(group.path.clone(), Box::new(error)))?;
            }
        }
        Ok(simulation)
    }

    fn take_tasks(&mut self, plan: &Plan) -> Result<(), PlanError> {
        for (index, workload) in plan.workloads.iter().enumerate() {
            let first = self.tasks.len() as u32;
            for task in &workload.tasks {
                let number = self.tasks.len() as u32;
                self.timers.set(task.begin.0, Timer::Begin(number));
                self.tasks.push(Task {
                    entity: TaskEntity::new(task.weight, task.slice),
                    group: task.group.map_or(0, |group| group + 1),
                    program: task.program,
                    step: 0,
                    workload: index as u32,
                    cpu: task.cpu.unwrap_or(NONE),
                    remaining: 0,
                    ran: 0,
                    counters: [0; crate::program::COUNTERS],
                    began: 0,
                    stamp: 0,
                    request: NONE,
                    ready_at: 0,
                    life: Life::Unborn,
                    woken: false,
                    in_kernel: false,
                    random: Random::new(plan.seed, u64::from(number)),
                });
            }
            self.loads.push(Load {
                name: workload.name.clone(),
                tasks: first..self.tasks.len() as u32,
                ended: 0,
                latency: histogram(),
                run_delay: 0,
                finished_at: None,
            });
        }
        self.alive = self.tasks.len() as u32;
        self.standstill = STANDSTILL_MIN + 1_000 * self.tasks.len() as u64;
        let indices = [
            self.tasks.len(),
            plan.sources.len(),
            plan.changes.len(),
            self.groups.len(),
        ];
        if indices.iter().any(|&count| count > INDEX_MAX as usize) {
            return Err(PlanError::Structure(format!(
                "more than {INDEX_MAX} tasks, sources, changes or groups"
            )));
        }
        Ok(())
    }

    fn take_sources(&mut self, plan: &Plan) {
        for (index, source) in (0u32..).zip(&plan.sources) {
            let first = source.times.first().map_or(source.begin.0, |first| first.0);
            self.timers.set(first, Timer::Arrive(index));
            self.arrivals.push(Arrivals {
                queue: source.queue,
                gap: source.gap,
                parts: source.parts,
                times: source.times.iter().map(|time| time.0).collect(),
                works: source.works.iter().map(|work| work.0).collect(),
                next: 0,
                random: Random::new(plan.seed, (1 << 40) + u64::from(index)),
            });
        }
        for (index, change) in (0u32..).zip(&plan.changes) {
            self.timers.set(change.at.0, Timer::Change(index));
        }
        if self.costs.noise_every > Nanos::ZERO {
            for cpu in 0..self.machine.cpus() {
                let first = self.random.exponential(self.costs.noise_every.0);
                self.timers.set(first, Timer::Noise(cpu));
            }
        }
    }

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
    /// groups are complete at the end only.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn advance(&mut self, until: Nanos) -> Result<(), RunError> {
        let until = until.0.min(self.end);
        while self.alive > 0 {
            let (moment, cpu) = self.moments.first();
            let timer = self.timers.next();
            let refill = self.next_refill();
            let next = moment.min(timer).min(refill);
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
                self.cpus[cpu as usize].listed = false;
                self.look_at(cpu);
                self.steps_now += 1;
                if self.steps_now > self.standstill {
                    break;
                }
            }
            self.stand_still()?;
            if self.settings.check {
                self.check()?;
            }
        }
        if self.alive > 0 {
            self.now = until;
        }
        if self.is_over() {
            self.settle();
        }
        Ok(())
    }

    fn stand_still(&mut self) -> Result<(), RunError> {
        self.steps_now += 1;
        if self.steps_now <= self.standstill {
            return Ok(());
        }
        let running = self.cpus.iter().find(|cpu| cpu.current != NONE);
        let workload = running.map_or(String::new(), |cpu| {
            let load = self.tasks[cpu.current as usize].workload;
            self.loads[load as usize].name.clone()
        });
        Err(RunError::Standstill {
            at: Nanos(self.now),
            workload,
        })
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
        let state = &self.cpus[cpu as usize];
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

    /// Counts the waiting tasks of a CPU anew.
    #[inline]
    pub(crate) fn count_waiting(&mut self, cpu: u32) {
        let state = &mut self.cpus[cpu as usize];
        let waiting = state.queue.nr_queued();
        self.waiting = self.waiting + waiting - state.waiting;
        state.waiting = waiting;
        let wanted = self.waiting > 0 && !self.sweeping && self.machine.ticks == Ticks::Needed;
        if wanted && self.cpus.len() > 1 {
            self.sweeping = true;
            let next = (self.now / self.tick_length + 1) * self.tick_length;
            self.timers.set(next, Timer::Sweep);
        }
    }

    fn change(&mut self, index: u32) {
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

/// The nearest group above that is among those given; the root, which is the first, if there is none.
fn parent_index(groups: &[Arc<Group>], group: &Arc<Group>) -> u32 {
    let mut above = group.parent();
    while let Some(parent) = above {
        if let Some(index) = groups.iter().position(|known| Arc::ptr_eq(known, parent)) {
            return u32::try_from(index).unwrap_or(0);
        }
        above = parent.parent();
    }
    0
}

fn channel(tokens: &u32) -> Channel {
    Channel {
        tokens: u64::from(*tokens),
        waiting: VecDeque::new(),
    }
}

fn barrier(parties: &u32) -> Barrier {
    Barrier {
        parties: *parties,
        waiting: Vec::new(),
    }
}

const _: () = assert!(NEVER == u64::MAX);
