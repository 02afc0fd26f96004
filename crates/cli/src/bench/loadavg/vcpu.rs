//! One vCPU's averaging: what a scheduler does at a tick, for every group.

use std::hint::black_box;
use std::sync::Arc;

use quotient_core::group_weight::{WeightMode, weight};
use quotient_core::load_average::{Contribution, GroupSum, SumRules, UpdateMode, averaged_load};
use quotient_core::pelt::{QueueAverage, QueueInput};
use quotient_core::{CpuId, NICE_0_SHARES, Nanos};

use super::plan::{Plan, Workload};

/// The groups of a machine, each with its sum.
pub struct Groups {
    sums: Vec<Arc<GroupSum>>,
    cpus: u32,
}

impl Groups {
    /// `count` groups on `cpus` vCPUs.
    pub fn new(count: usize, cpus: u32) -> Groups {
        let sums = (0..count).map(|_| Arc::new(GroupSum::new(cpus))).collect();
        Groups { sums, cpus }
    }
}

/// What a vCPU noted.
#[derive(Debug, Default)]
pub struct Seen {
    /// How long each tick took, all groups together.
    pub tick_nanos: Vec<u64>,
    /// Group, time and what was taken for the sum over all vCPUs.
    pub believed: Vec<(usize, Nanos, u64)>,
    /// See the header of the benchmark.
    pub shared_writes: u64,
    pub own_writes: u64,
    pub lines_read: u64,
}

impl Seen {
    /// Room for so many ticks, so that none of them has to make some.
    pub fn with_capacity(ticks: usize, groups: usize) -> Seen {
        Seen {
            tick_nanos: Vec::with_capacity(ticks),
            believed: Vec::with_capacity(ticks * groups),
            ..Seen::default()
        }
    }

    /// Counts from now on; times and beliefs stay.
    pub fn forget_counts(&mut self) {
        (self.shared_writes, self.own_writes, self.lines_read) = (0, 0, 0);
    }
}

/// A queue of one group on one vCPU.
struct Queue {
    plan: Plan,
    average: QueueAverage,
    part: Contribution,
    /// What was last stored in the own cell.
    stored: u64,
}

/// A vCPU with its queues.
pub struct Vcpu {
    queues: Vec<Queue>,
    cpus: u32,
}

/// Brings an average up to `now` through all stretches of its plan.
pub fn follow(average: &mut QueueAverage, plan: &mut Plan, now: Nanos) {
    let input = |plan: &Plan| QueueInput {
        load: plan.load(),
        runnable: plan.tasks,
        ran: Nanos::ZERO,
    };
    while plan.until <= now {
        average.advance(plan.until, input(plan));
        plan.next();
    }
    average.advance(now, input(plan));
}

impl Vcpu {
    /// A vCPU that contributes to every group. `cpu` is one of the machine's.
    pub fn new(groups: &Groups, workload: Workload, cpu: CpuId, node: u32) -> Vcpu {
        let numbered = groups.sums.iter().enumerate();
        let queues = numbered.filter_map(|(group, sum)| {
            Some(Queue {
                plan: Plan::new(workload, group, cpu.0),
                average: QueueAverage::new(Nanos::ZERO),
                part: sum.join(cpu, node)?,
                stored: 0,
            })
        });
        Vcpu {
            queues: queues.collect(),
            cpus: groups.cpus,
        }
    }

    /// One tick of all groups. What is noted is noted for nothing in the cost: it does not depend on the mode.
    #[inline(never)]
    pub fn tick(&mut self, now: Nanos, rules: &SumRules, mut seen: Option<&mut Seen>) {
        for (group, queue) in self.queues.iter_mut().enumerate() {
            follow(&mut queue.average, &mut queue.plan, now);
            let average = queue.average.load();
            let load = queue.plan.load();
            let empty = (load == 0).then(|| queue.average.updated_at());
            let written = queue.part.tick(average, empty, now, rules);
            let others = queue.part.others(now, rules);
            let runnable = queue.average.runnable();
            let load = averaged_load(load, average, others.sum, runnable, self.cpus);
            black_box(weight(WeightMode::Smp, NICE_0_SHARES, load));
            let Some(seen) = seen.as_deref_mut() else {
                continue;
            };
            seen.believed.push((group, now, others.sum + average));
            seen.shared_writes += u64::from(written + others.shared_writes);
            seen.own_writes += u64::from(queue.stored != average);
            queue.stored = average;
            if others.looked {
                seen.lines_read += lines(self.cpus, rules.mode);
            }
        }
    }
}

/// Lines of others that one look at a sum reads.
fn lines(cpus: u32, mode: UpdateMode) -> u64 {
    use quotient_core::load_average::CLUSTER_CPUS;
    if mode != UpdateMode::OnDemand {
        return 1;
    }
    let cpus = cpus as usize;
    let clusters = cpus.div_ceil(CLUSTER_CPUS);
    (cpus.min(CLUSTER_CPUS) - 1 + (clusters - 1)) as u64
}
