//! A recording as a workload of a plan: each task as it was, or all of their bursts shared out among a pool.

use super::{Burst, Demand, Loop, Recording};
use crate::plan::{Plan, RealTime, Source, TaskPlan, WorkloadPlan};
use crate::program::{Program, Step};
use crate::random::Span;
use crate::synthetic::GroupIndex;
use quotient_core::{Nanos, Weight};
use std::collections::BTreeMap;

/// For how long the real-time class may keep a CPU from everybody else, and in what: the kernel's defaults.
const RT_THROTTLING: (Nanos, Nanos) = (Nanos::from_millis(950), Nanos::from_millis(1_000));

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
        self.add_tasks(plan, name, (group, how, shift), |_| true);
    }

    /// Adds whoever ran beside what is asked about: as an open loop, in the groups where [`Seats`](super::Seats) put them. Who was in the real-time class comes
    /// before everybody, each time on the CPU where it ran, and for no longer than a kernel lets that class run by default.
    pub fn add_beside(&self, plan: &mut Plan, name: &str) {
        let above = self.tasks.iter().filter(|demand| demand.is_real_time);
        let cpus = plan.machine.cpus().max(1);
        let loads: Vec<RealTime> = above.flat_map(|demand| real_time(demand, cpus)).collect();
        if !loads.is_empty() {
            let throttling = &mut plan.settings.rt_throttling;
            throttling.get_or_insert(RT_THROTTLING);
        }
        plan.real_time.extend(loads);
        let how = (None, Loop::Open, Nanos::ZERO);
        self.add_tasks(plan, name, how, |demand| !demand.is_real_time);
    }

    fn add_tasks(
        &self,
        plan: &mut Plan,
        name: &str,
        (group, how, shift): (GroupIndex, Loop, Nanos),
        is_wanted: impl Fn(&Demand) -> bool,
    ) {
        let meter = plan.meter(name);
        let mut tasks = Vec::new();
        for demand in self.tasks.iter().filter(|demand| is_wanted(demand)) {
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
        let most = self.tasks.iter().max_by_key(|demand| demand.work());
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

/// A task of the real-time class, on each CPU where it ran.
fn real_time(demand: &Demand, cpus: u32) -> impl Iterator<Item = RealTime> {
    let mut by_cpu: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for burst in demand.bursts.iter().filter(|burst| burst.work > 0) {
        let all = by_cpu.entry(burst.cpu % cpus).or_default();
        all.push((burst.at, burst.work));
    }
    let name = format!("{} {}", demand.name, demand.id.0);
    by_cpu.into_iter().map(move |(cpu, mut all)| {
        all.sort_unstable();
        RealTime {
            name: name.clone(),
            cpus: vec![cpu],
            begin: Nanos::ZERO,
            period: Span::ZERO,
            work: Span::ZERO,
            times: all.iter().map(|(at, _)| Nanos(*at)).collect(),
            works: all.iter().map(|(_, work)| Nanos(*work)).collect(),
        }
    })
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

#[cfg(test)]
mod tests {
    use super::super::Selection;
    use super::super::lines::{line, switch, waking};
    use super::*;
    use crate::{Kernel, Machine, Simulation};
    use quotient_trace::Discard;

    /// Hazard: a real-time thread beside a service is played as one that is only very heavy, and the service gets in between.
    #[test]
    fn who_is_in_the_real_time_class_comes_before_everybody() {
        // Every 100 ms a thread of priority 50 has the CPU for 30 ms, and a millisecond after its begin `svc` is woken for 4.
        let real_time = |text: String| {
            text.replace("_pid=9 prev_prio=120", "_pid=9 prev_prio=49")
                .replace("_pid=9 next_prio=120", "_pid=9 next_prio=49")
                .replace("pid=9 prio=120", "pid=9 prio=49")
        };
        let mut text = String::from("# tracer: nop\n");
        for number in 0..40 {
            let at = 1_000_000 + number * 100_000;
            for (who, after, what) in [
                ("<idle>-0", 0, waking("rt", 9, 0)),
                ("<idle>-0", 5, switch(("swapper/0", 0, "R"), ("rt", 9))),
                ("<idle>-0", 1_000, waking("svc", 7, 0)),
                ("rt-9", 30_005, switch(("rt", 9, "S"), ("svc", 7))),
                ("svc-7", 34_005, switch(("svc", 7, "S"), ("swapper/0", 0))),
            ] {
                text += &real_time(line(who, 0, "d..2.", at + after, what));
            }
        }
        let whole = Recording::read(&mut text.as_bytes()).unwrap();
        let (own, beside) = whole.split(&Selection {
            names: vec!["svc".into()],
            ..Selection::default()
        });
        assert_eq!(own.real_time(), Nanos::ZERO);
        assert_eq!(beside.real_time(), beside.recorded);
        let mut plan = Plan::new(Machine::flat(1));
        Kernel::Linux6_18.apply(&mut plan);
        plan.duration = whole.length;
        own.add_to(&mut plan, "svc", None, Loop::Open);
        beside.add_beside(&mut plan, "beside");
        assert_eq!(plan.real_time[0].times.len(), 40);
        let mut simulation = Simulation::new(&plan, Discard).unwrap();
        simulation.run().unwrap();
        let times = simulation.outcome().meter("svc").unwrap().times;
        let expected = 330..=331;
        let millis = |nanos: u64| nanos / 100_000;
        assert!(times.count >= 39, "{times:?}");
        assert!(
            expected.contains(&millis(times.p50_ns)) && expected.contains(&millis(times.p99_ns)),
            "{times:?}"
        );
    }
}
