//! A recording as a workload of a plan: each task as it was, or all of their bursts shared out among a pool.

use super::{Burst, Demand, Loop, Recording};
use crate::plan::{Plan, Source, TaskPlan, WorkloadPlan};
use crate::program::{Program, Step};
use crate::random::Span;
use crate::synthetic::GroupIndex;
use quotient_core::{Nanos, Weight};

impl Recording {
    /// Adds the recording to a plan as one workload with one meter, both called `name`: every task as it was, in
    /// `group`, or in the root where [`Seats`](super::Seats) gave it no other. The meter's times are those of bursts, from their wake-up to their end.
    pub fn add_to(&self, plan: &mut Plan, name: &str, group: GroupIndex, how: Loop) {
        self.add_later(plan, name, group, how, Nanos::ZERO);
    }

    /// The same, but a closed loop begins later by `shift`. Open ones have sources, which can be moved in the plan.
    pub fn add_later(
        &self,
        plan: &mut Plan,
        name: &str,
        group: GroupIndex,
        how: Loop,
        shift: Nanos,
    ) {
        let meter = plan.meter(name);
        let mut tasks = Vec::new();
        for demand in &self.tasks {
            let program = match how {
                Loop::Open => {
                    let queue = self.source(plan, core::slice::from_ref(demand));
                    serve(queue, meter)
                }
                Loop::Closed => closed(demand, meter, self.length.0),
            };
            let program = plan.program(program);
            let mut task = task(group.or(demand.seat), program, demand.weight);
            if how == Loop::Closed {
                task.begin = shift;
            }
            tasks.push(task);
        }
        plan.workloads.push(WorkloadPlan {
            name: name.into(),
            tasks,
        });
    }

    /// Adds the recording to a plan as `threads` tasks that share all bursts in the order in which they came.
    pub fn add_pooled(&self, plan: &mut Plan, name: &str, group: GroupIndex, threads: u32) {
        let meter = plan.meter(name);
        let queue = self.source(plan, &self.tasks);
        let program = plan.program(serve(queue, meter));
        plan.workloads.push(WorkloadPlan {
            name: name.into(),
            tasks: vec![task(group, program, self.common_weight()); threads as usize],
        });
    }

    /// The weight of the task that wanted most: a pool is of one kind.
    fn common_weight(&self) -> Weight {
        let work = |demand: &&Demand| demand.bursts.iter().map(|burst| burst.work).sum::<u64>();
        let most = self.tasks.iter().max_by_key(work);
        most.map_or(Weight::DEFAULT, |demand| demand.weight)
    }

    fn source(&self, plan: &mut Plan, demands: &[Demand]) -> u32 {
        let mut bursts: Vec<Burst> = demands
            .iter()
            .flat_map(|demand| demand.bursts.iter().copied())
            .filter(|burst| burst.work > 0)
            .collect();
        bursts.sort_by_key(|burst| burst.at);
        let queue = plan.queue();
        plan.sources.push(Source {
            queue,
            begin: Nanos::ZERO,
            gap: Span::ZERO,
            parts: 1,
            times: bursts.iter().map(|burst| Nanos(burst.at)).collect(),
            works: bursts.iter().map(|burst| Nanos(burst.work)).collect(),
        });
        queue
    }
}

pub(super) fn task(group: GroupIndex, program: u32, weight: Weight) -> TaskPlan {
    TaskPlan {
        group,
        program,
        weight,
        slice: None,
        begin: Nanos::ZERO,
        cpu: None,
        cpuset: None,
    }
}

pub(super) fn serve(queue: u32, meter: u32) -> Program {
    Program::forever([Step::Take(queue), Step::Serve, Step::Finish(meter)])
}

/// Sleeps and bursts as they were, over and over: without the limit or the machine of before it may come to its end early, and nobody stops asking for
/// that.
fn closed(demand: &Demand, meter: u32, length: u64) -> Program {
    let mut steps = Vec::new();
    let mut last = 0;
    for burst in &demand.bursts {
        steps.extend([
            Step::Sleep(Nanos(burst.at.saturating_sub(last)).into()),
            Step::StampWoken,
            Step::Run(Nanos(burst.work).into()),
            Step::Lap(meter),
        ]);
        last = burst.end;
    }
    again(steps, length.saturating_sub(last))
}

/// Those steps, then what is left of the recording, and so on.
pub(super) fn again(mut steps: Vec<Step>, rest: u64) -> Program {
    if steps.is_empty() {
        return Program::default();
    }
    if rest > 0 {
        steps.push(Step::Sleep(Nanos(rest).into()));
    }
    Program::forever(steps)
}
