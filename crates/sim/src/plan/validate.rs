//! Whether a plan can be run: what is checked before anything happens.

use super::{Action, Plan, PlanError, TaskPlan};
use crate::program::{COUNTERS, Program, Step};
use quotient_core::{BandwidthRules, GroupTree, Limit, Nanos};

impl Plan {
    /// Checks that everything that is referred to is there.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn validate(&self) -> Result<(), PlanError> {
        self.machine.validate().map_err(PlanError::Machine)?;
        self.settings.config.validate().map_err(PlanError::Config)?;
        for group in &self.groups {
            GroupTree::check_path(&group.path).map_err(PlanError::Group)?;
            self.validate_limit(&group.path, group.limit)?;
        }
        for set in &self.cpusets {
            let last = set.last().copied();
            ensure(
                last.is_some_and(|last| last < self.machine.cpus()) && set.is_sorted(),
                || format!("cpus {set:?} of {}", self.machine.cpus()),
            )?;
        }
        let tasks: usize = self.workloads.iter().map(|load| load.tasks.len()).sum();
        ensure(tasks <= Plan::TASKS_MAX, || {
            format!("{tasks} tasks are more than {}", Plan::TASKS_MAX)
        })?;
        for workload in &self.workloads {
            for task in &workload.tasks {
                self.validate_task(&workload.name, task)?;
            }
        }
        for (index, program) in self.programs.iter().enumerate() {
            for step in &program.steps {
                self.validate_step(*step, program)
                    .map_err(|what| PlanError::Structure(format!("program {index}: {what}")))?;
            }
        }
        for change in &self.changes {
            ensure((change.group as usize) < self.groups.len(), || {
                format!("a change of group {}, which does not exist", change.group)
            })?;
            if let Action::Limit(limit) = change.action {
                self.validate_limit(&self.groups[change.group as usize].path, limit)?;
            }
        }
        self.validate_machine_events()?;
        for source in &self.sources {
            ensure(source.queue < self.queues && source.parts > 0, || {
                format!(
                    "a source of {} parts for queue {}",
                    source.parts, source.queue
                )
            })?;
            let advances = !source.times.is_empty() || source.gap.mean() > Nanos::ZERO;
            let fits = source.works.is_empty() || source.works.len() == source.times.len();
            let rises = source.times.is_sorted();
            ensure(fits && rises, || "a source whose times do not rise".into())?;
            ensure(advances, || "a source without time between requests".into())?;
        }
        Ok(())
    }

    fn validate_machine_events(&self) -> Result<(), PlanError> {
        let cpus = self.machine.cpus();
        for load in &self.real_time {
            ensure(load.cpus.iter().all(|&cpu| cpu < cpus), || {
                format!(
                    "real-time load {} on cpus {:?} of {cpus}",
                    load.name, load.cpus
                )
            })?;
            let advances = !load.times.is_empty() || load.period.mean() > Nanos::ZERO;
            ensure(advances, || {
                format!("real-time load {} without a period", load.name)
            })?;
            let fits = load.works.len() == load.times.len();
            ensure(fits && load.times.is_sorted(), || {
                format!("real-time load {} whose times do not rise", load.name)
            })?;
        }
        if let Some((runtime, period)) = self.settings.rt_throttling {
            let second = Nanos::from_secs(1);
            ensure(
                runtime <= period && period > Nanos::ZERO && period <= second,
                || format!("rt throttling of {runtime} in {period}, not of 0..=period in 1ns..=1s"),
            )?;
        }
        for event in &self.hotplug {
            ensure(event.cpu < cpus, || {
                format!("hotplug of cpu {} of {cpus}", event.cpu)
            })?;
        }
        let Some(plugin) = self.settings.plugin else {
            return Ok(());
        };
        let limited = self.groups.iter().any(|group| group.limit.is_some());
        let limits = self
            .changes
            .iter()
            .any(|change| matches!(change.action, Action::Limit(_)));
        ensure(!limited && !limits, || {
            format!(
                "policy {} has no limits: they are the scheduler core's",
                plugin.name
            )
        })
    }

    /// Ranges are checked here; ratios between levels are not: the kernel's older rules refuse some at the first run.
    fn validate_limit(&self, path: &str, limit: Option<Limit>) -> Result<(), PlanError> {
        let by_kernel = self.settings.config.bandwidth != BandwidthRules::Default;
        match limit.map(|limit| limit.validate(by_kernel)) {
            Some(Err(error)) => Err(PlanError::Limit(path.into(), Box::new(error))),
            _ => Ok(()),
        }
    }

    fn validate_task(&self, workload: &str, task: &TaskPlan) -> Result<(), PlanError> {
        let cpus = self.machine.cpus();
        ensure(task.cpu.is_none_or(|cpu| cpu < cpus), || {
            format!("workload {workload}: cpu {:?} of {cpus}", task.cpu)
        })?;
        let set = task.cpuset.map(|set| self.cpusets.get(set as usize));
        ensure(
            set.is_none_or(|set| {
                set.is_some_and(|set| task.cpu.is_none_or(|cpu| set.contains(&cpu)))
            }),
            || format!("workload {workload}: begins on a cpu that it may not run on"),
        )?;
        let group = task
            .group
            .is_none_or(|group| (group as usize) < self.groups.len());
        let program = (task.program as usize) < self.programs.len();
        ensure(group && program, || {
            format!("workload {workload}: a task without its group or program")
        })
    }

    fn validate_step(&self, step: Step, program: &Program) -> Result<(), String> {
        let within = |what: &str, index: u32, count: usize| {
            if (index as usize) < count {
                Ok(())
            } else {
                Err(format!("{what} {index} of {count}"))
            }
        };
        match step {
            Step::Post(index)
            | Step::PostOne(index)
            | Step::Signal(index)
            | Step::Broadcast(index)
            | Step::Wait(index) => within("channel", index, self.channels.len()),
            Step::Meet(index) => within("barrier", index, self.barriers.len()),
            Step::Take(index) => within("queue", index, self.queues as usize),
            Step::Ask { queue, reply, .. } => {
                within("queue", queue, self.queues as usize)?;
                within("channel", reply, self.channels.len())
            }
            Step::Finish(index)
            | Step::Lap(index)
            | Step::Count(index)
            | Step::Slack { meter: index, .. } => within("meter", index, self.meters.len()),
            Step::Open { request, .. } => within("request", request, self.requests.len()),
            Step::Close { request, meter } => {
                within("request", request, self.requests.len())?;
                within("meter", meter, self.meters.len())
            }
            Step::Jump(to) => within("step", to, program.steps.len() + 1),
            Step::Repeat { counter, to, .. } => {
                within("counter", u32::from(counter), COUNTERS)?;
                within("step", to, program.steps.len() + 1)
            }
            _ => Ok(()),
        }
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), PlanError> {
    if holds {
        Ok(())
    } else {
        Err(PlanError::Structure(what()))
    }
}
