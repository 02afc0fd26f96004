//! What came of a run: figures only, the same for everybody who runs the plan.

use crate::engine::Simulation;
use crate::meters::Percentiles;
use quotient_trace::Sink;
use serde::Serialize;

/// What system time is spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    Switch,
    Tick,
    LoadAverage,
    Ipi,
    Wake,
    Migration,
    Syscall,
    Kernel,
    Clock,
    Noise,
    Bandwidth,
}

/// Counts and times of the machine's mechanisms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mechanisms {
    /// What a trace of the run holds: switches, wake-ups, ticks, migrations and the rest.
    pub events: u64,
    /// Changes of the task on a CPU, to and from idle included.
    pub switches: u64,
    /// Tasks woken.
    pub wakeups: u64,
    /// Tasks moved by the balancer.
    pub migrations: u64,
    /// Ticks.
    pub ticks: u64,
    /// Those that found a task at work inside the kernel, and those that found one outside: what a kernel that samples its times
    /// at ticks divides them by.
    pub ticks_in_kernel: u64,
    /// See `ticks_in_kernel`.
    pub ticks_in_user: u64,
    /// Interrupts from one CPU to another.
    pub ipis: u64,
    /// Times that all other CPUs were interrupted and waited for.
    pub synchronizations: u64,
    /// Patched places times busy CPUs times how long they were in their way, ns.
    pub exposure_ns: u64,
    /// Averages computed and added to a group's sum.
    pub average_updates: u64,
    /// Requests refused because a queue was full, and limits that the rules refused.
    pub refused: u64,
    /// Switching, ns.
    pub switch_ns: u64,
    /// Ticks without averages, ns.
    pub tick_ns: u64,
    /// Averages at ticks, ns.
    pub load_average_ns: u64,
    /// Interrupts between CPUs, ns.
    pub ipi_ns: u64,
    /// Waking others, ns.
    pub wake_ns: u64,
    /// Cold caches after a move, ns.
    pub migration_ns: u64,
    /// Entering and leaving the kernel, ns.
    pub syscall_ns: u64,
    /// Work inside the kernel that tasks ask for, ns.
    pub kernel_ns: u64,
    /// Reading clocks, ns.
    pub clock_ns: u64,
    /// Disturbances, ns.
    pub noise_ns: u64,
    /// Bandwidth bookkeeping, ns.
    pub bandwidth_ns: u64,
    /// What a class above took of all CPUs, ns: part of no other figure.
    pub stolen_ns: u64,
    /// Times that a class above was held back for the rest of its period.
    pub rt_throttled: u64,
}

impl Mechanisms {
    #[inline]
    pub(crate) fn add(&mut self, mechanism: Mechanism, cost: u64) {
        let sum = match mechanism {
            Mechanism::Switch => &mut self.switch_ns,
            Mechanism::Tick => &mut self.tick_ns,
            Mechanism::LoadAverage => &mut self.load_average_ns,
            Mechanism::Ipi => &mut self.ipi_ns,
            Mechanism::Wake => &mut self.wake_ns,
            Mechanism::Migration => &mut self.migration_ns,
            Mechanism::Syscall => &mut self.syscall_ns,
            Mechanism::Kernel => &mut self.kernel_ns,
            Mechanism::Clock => &mut self.clock_ns,
            Mechanism::Noise => &mut self.noise_ns,
            Mechanism::Bandwidth => &mut self.bandwidth_ns,
        };
        *sum += cost;
    }

    /// All system time, ns.
    pub fn system_ns(&self) -> u64 {
        self.switch_ns
            + self.tick_ns
            + self.load_average_ns
            + self.ipi_ns
            + self.wake_ns
            + self.migration_ns
            + self.syscall_ns
            + self.kernel_ns
            + self.clock_ns
            + self.noise_ns
            + self.bandwidth_ns
    }
}

/// What a group got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupOutcome {
    /// Its path; empty for the root.
    pub path: String,
    /// CPU time with all descendants, ns.
    pub usage_ns: u64,
    /// The part of its own tasks' CPU time that is system time, ns, without descendants.
    pub system_ns: u64,
    /// Periods in which its timer was active.
    pub nr_periods: u64,
    /// Periods in which it was throttled somewhere.
    pub nr_throttled: u64,
    /// Time for which it was throttled, summed over CPUs, ns.
    pub throttled_ns: u64,
    /// Periods in which it used burst.
    pub nr_bursts: u64,
    /// Burst used, ns.
    pub burst_ns: u64,
}

/// What the tasks of a workload got.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkloadOutcome {
    /// Its name.
    pub name: String,
    /// Its tasks.
    pub tasks: u64,
    /// Those that have ended.
    pub ended: u64,
    /// When the last one ended, if all have, ns.
    pub finished_ns: Option<u64>,
    /// CPU time of all of them, ns.
    pub usage_ns: u64,
    /// The least and the most that one of them got, ns.
    pub usage_min_ns: u64,
    /// See `usage_min_ns`.
    pub usage_max_ns: u64,
    /// Time for which they were runnable and did not run, ns.
    pub run_delay_ns: u64,
    /// From wake-up to running.
    pub latency: Percentiles,
}

/// What a meter has measured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MeterOutcome {
    /// Its name.
    pub name: String,
    /// Pieces of work done.
    pub done: u64,
    /// When the last one was done, ns.
    pub last_ns: u64,
    /// Times of those that were timed.
    pub times: Percentiles,
    /// The same by their places, so that runs can be put together.
    #[serde(skip)]
    pub(crate) parts: Vec<(u32, u64)>,
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// How long the run took in its own time, ns.
    pub elapsed_ns: u64,
    /// CPUs of the machine.
    pub cpus: u32,
    /// CPU time of all tasks, ns.
    pub busy_ns: u64,
    /// The part of it that is system time, ns.
    pub system_ns: u64,
    /// Mechanisms.
    pub mechanisms: Mechanisms,
    /// Groups, the root first, then in the plan's order.
    pub groups: Vec<GroupOutcome>,
    /// Workloads in the plan's order.
    pub workloads: Vec<WorkloadOutcome>,
    /// Meters in the plan's order.
    pub meters: Vec<MeterOutcome>,
}

impl Outcome {
    /// System time as a kernel shows it that looks at ticks who is interrupted (`TICK_CPU_ACCOUNTING`, and the times of tasks scaled to
    /// what they ran): a tick's own work counts as the mode that it interrupts. In ns, 0 without ticks; the rest of `busy_ns` is user time.
    pub fn sampled_system_ns(&self) -> f64 {
        let ticks = &self.mechanisms;
        let all = ticks.ticks_in_kernel + ticks.ticks_in_user;
        self.busy_ns as f64 * ticks.ticks_in_kernel as f64 / all.max(1) as f64
    }

    /// The group of that path.
    pub fn group(&self, path: &str) -> Option<&GroupOutcome> {
        self.groups.iter().find(|group| group.path == path)
    }

    /// The workload of that name.
    pub fn workload(&self, name: &str) -> Option<&WorkloadOutcome> {
        self.workloads.iter().find(|load| load.name == name)
    }

    /// The meter of that name.
    pub fn meter(&self, name: &str) -> Option<&MeterOutcome> {
        self.meters.iter().find(|meter| meter.name == name)
    }
}

impl<S: Sink> Simulation<S> {
    /// The figures so far. O(tasks).
    pub fn outcome(&self) -> Outcome {
        Outcome {
            elapsed_ns: self.now,
            cpus: self.machine.cpus(),
            busy_ns: self.group_usage(0),
            system_ns: self.mechanisms.system_ns(),
            mechanisms: self.mechanisms,
            groups: (0..self.groups.len())
                .map(|index| self.group_outcome(index))
                .collect(),
            workloads: (0..self.loads.len())
                .map(|index| self.workload_outcome(index))
                .collect(),
            meters: self
                .meters
                .iter()
                .map(|meter| MeterOutcome {
                    name: meter.name.clone(),
                    done: meter.count,
                    last_ns: meter.last_at,
                    times: Percentiles::of(&meter.times),
                    parts: meter.times.parts(),
                })
                .collect(),
        }
    }

    /// CPU time of a group with all below it, ns: its clock, or where another policy decides the sum over its tasks. O(1), or O(tasks x depth).
    fn group_usage(&self, index: usize) -> u64 {
        if self.settings.plugin.is_none() {
            return self.groups[index].cpu_time().0;
        }
        let group = &self.groups[index];
        let within = |task: &u32| {
            let mut level = Some(&self.groups[self.tasks[*task as usize].group as usize]);
            while let Some(at) = level {
                if std::sync::Arc::ptr_eq(at, group) {
                    return true;
                }
                level = at.parent();
            }
            false
        };
        let tasks = 0..self.tasks.len() as u32;
        tasks.filter(within).map(|task| self.task_usage(task)).sum()
    }

    fn group_outcome(&self, index: usize) -> GroupOutcome {
        let group = &self.groups[index];
        let stats = group.bandwidth_stats();
        GroupOutcome {
            path: group.path().into(),
            usage_ns: self.group_usage(index),
            system_ns: self.group_system[index],
            nr_periods: stats.nr_periods,
            nr_throttled: stats.nr_throttled,
            throttled_ns: stats.throttled_time.0,
            nr_bursts: stats.nr_bursts,
            burst_ns: stats.burst_time.0,
        }
    }

    fn workload_outcome(&self, index: usize) -> WorkloadOutcome {
        let load = &self.loads[index];
        let usages = || load.tasks.clone().map(|task| self.task_usage(task));
        WorkloadOutcome {
            name: load.name.clone(),
            tasks: u64::from(load.tasks.end - load.tasks.start),
            ended: u64::from(load.ended),
            finished_ns: load.finished_at,
            usage_ns: usages().sum(),
            usage_min_ns: usages().min().unwrap_or(0),
            usage_max_ns: usages().max().unwrap_or(0),
            run_delay_ns: load.run_delay,
            latency: Percentiles::of(&load.latency),
        }
    }
}
