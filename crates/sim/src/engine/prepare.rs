//! From a plan to a run at time zero: groups, tasks, sources and limits in the engine's own form.

use super::Simulation;
use super::idle_pull::Warmth;
use super::queue::Queue;
use super::state::{
    Arrivals, Barrier, Channel, Cpu, IdleCpus, Life, NONE, RequestQueue, Requests, Spanning, Task,
};
use super::{Load, real_time, tick};
use crate::agenda::{INDEX_MAX, Moments, NEVER, Timer, Timers};
use crate::costs::Line;
use crate::meters::{Meter, Times};
use crate::outcome::Mechanisms;
use crate::plan::{Plan, PlanError};
use crate::program::{COUNTERS, Step};
use crate::random::Random;
use quotient_core::{Group, GroupTree, Nanos, TaskEntity, Weight};
use quotient_trace::Sink;
use std::collections::VecDeque;
use std::sync::Arc;

/// Steps without any time passing, beyond a thousand for each task, that mean that none ever will.
const STANDSTILL_MIN: u64 = 1_000_000;

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
        let groups = planned_groups(plan, &tree)?;
        let machines: Vec<Cpu> = (0..cpus)
            .map(|cpu| {
                let queue = Queue::new(&tree, cpu, plan.settings.plugin);
                let mut state = Cpu::new(queue, plan.machine.node_of(cpu));
                if !plan.settings.looks_at_choices || plan.settings.plugin.is_some() {
                    state.look_from = NEVER;
                }
                state
            })
            .collect();
        let published = machines
            .iter()
            .map(|cpu| Arc::clone(cpu.queue.load()))
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
            parents: parents_of(&groups),
            averages: tick::states(plan, groups.len()),
            groups,
            steps: Vec::new(),
            tasks: Vec::new(),
            affinity: super::affinity::Affinity::of(plan),
            counters: Vec::new(),
            loads: Vec::new(),
            channels: plan.channels.iter().map(channel).collect(),
            barriers: plan.barriers.iter().map(barrier).collect(),
            queues: (0..plan.queues).map(|_| RequestQueue::default()).collect(),
            requests: Requests::new(),
            spanning: plan.requests.iter().map(Spanning::new).collect(),
            meters: plan.meters.iter().map(|name| Meter::new(name)).collect(),
            arrivals: Vec::new(),
            changes: plan.changes.clone(),
            cpus: machines,
            published,
            topology: Arc::new(plan.machine.topology()),
            moments: Moments::new(cpus),
            timers: Timers::default(),
            listed: VecDeque::with_capacity(cpus as usize),
            idle: IdleCpus::all(cpus),
            interpreting: NONE,
            node_running: vec![0; plan.machine.nodes as usize],
            waiting: 0,
            sweeping: false,
            caught_up_at: 0,
            tick_length: plan.machine.tick_length(),
            balance_every: balance_interval(plan),
            moved: Vec::new(),
            woken: Vec::new(),
            random: Random::new(plan.seed, u64::MAX),
            looks: Random::new(plan.seed, u64::MAX - 1),
            limited: Vec::new(),
            above: real_time::Above::of(plan),
            hotplug: plan.hotplug.clone(),
            warmth: Warmth::new(
                &plan.settings,
                plan.workloads.iter().map(|load| load.tasks.len()).sum(),
                cpus,
            ),
            weights: weights_of(plan),
            throttled: Vec::new(),
            periods: Vec::new(),
            kicked: Vec::new(),
            alive: 0,
            steps_now: 0,
            standstill: 0,
            handled: 0,
            plans: 0,
            mechanisms: Mechanisms::default(),
            sink,
        };
        simulation.take_tasks(plan)?;
        simulation.take_sources(plan);
        simulation.define_all();
        simulation.take_limits(plan)?;
        Ok(simulation)
    }

    fn take_limits(&mut self, plan: &Plan) -> Result<(), PlanError> {
        for (index, group) in (1u32..).zip(&plan.groups) {
            if group.limit.is_some() {
                self.set_limit(index, group.limit)
                    .map_err(|error| PlanError::Limit(group.path.clone(), Box::new(error)))?;
            }
        }
        Ok(())
    }

    /// Puts the programs' steps into one list. Returns where each program begins.
    fn take_programs(&mut self, plan: &Plan) -> Result<Vec<u32>, PlanError> {
        let mut begins = Vec::with_capacity(plan.programs.len());
        for program in &plan.programs {
            let begin = u32::try_from(self.steps.len())
                .map_err(|_| PlanError::Structure("more than 2^32 steps".into()))?;
            begins.push(begin);
            self.steps
                .extend(program.steps.iter().map(|&step| match step {
                    Step::Jump(to) => Step::Jump(begin.saturating_add(to)),
                    Step::Repeat { counter, times, to } => Step::Repeat {
                        counter,
                        times,
                        to: begin.saturating_add(to),
                    },
                    other => other,
                }));
            self.steps.push(Step::Exit);
        }
        Ok(begins)
    }

    fn take_tasks(&mut self, plan: &Plan) -> Result<(), PlanError> {
        let begins = self.take_programs(plan)?;
        for (index, workload) in plan.workloads.iter().enumerate() {
            let first = self.tasks.len() as u32;
            for task in &workload.tasks {
                let number = self.tasks.len() as u32;
                self.timers.set(task.begin.0, Timer::Begin(number));
                self.tasks.push(Task {
                    entity: TaskEntity::new(task.weight, task.slice),
                    group: task.group.map_or(0, |group| group + 1),
                    step: begins[task.program as usize],
                    workload: index as u32,
                    cpu: task.cpu.unwrap_or(NONE),
                    remaining: 0,
                    ran: 0,
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
                latency: Times::new(),
                run_delay: 0,
                finished_at: None,
            });
        }
        self.counters = vec![[0; COUNTERS]; self.tasks.len()];
        self.alive = self.tasks.len() as u32;
        self.standstill = STANDSTILL_MIN + 1_000 * self.tasks.len() as u64;
        let indices = [
            self.tasks.len(),
            plan.sources.len(),
            plan.changes.len(),
            plan.hotplug.len(),
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
        for (index, event) in (0u32..).zip(&plan.hotplug) {
            self.timers.set(event.at.0, Timer::Hotplug(index));
        }
        self.prepare_above();
        if self.costs.noise_every > Nanos::ZERO {
            for cpu in 0..self.machine.cpus() {
                let first = self.random.exponential(self.costs.noise_every.0);
                self.timers.set(first, Timer::Noise(cpu));
            }
        }
    }
}

/// Weights of all tasks, if another policy is to know them.
fn weights_of(plan: &Plan) -> Vec<Weight> {
    let tasks = plan.workloads.iter().flat_map(|load| &load.tasks);
    match plan.settings.plugin {
        Some(_) => tasks.map(|task| task.weight).collect(),
        None => Vec::new(),
    }
}

/// How often a CPU looks whether to pull, ns: the plan's, or half a millisecond for every eight CPUs, so that the looks
/// of all CPUs at all others stay a bounded part of the work.
fn balance_interval(plan: &Plan) -> u64 {
    plan.settings.balance_every.map_or_else(
        || 500_000 * u64::from(plan.machine.cpus()).div_ceil(8),
        |interval| interval.0.max(1),
    )
}

/// The root, then the plan's groups.
fn planned_groups(plan: &Plan, tree: &GroupTree) -> Result<Vec<Arc<Group>>, PlanError> {
    let mut groups = vec![tree.root()];
    for group in &plan.groups {
        let made = tree.group(&group.path).map_err(PlanError::Group)?;
        made.set_weight(group.weight);
        made.set_idle(group.idle);
        groups.push(made);
    }
    Ok(groups)
}

fn parents_of(groups: &[Arc<Group>]) -> Vec<u32> {
    groups
        .iter()
        .map(|group| parent_index(groups, group))
        .collect()
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
