//! The three averages of a group over all CPUs, and one CPU's parts of them.

use super::contribution::Contribution;
use super::mode::SumRules;
use super::sum::GroupSum;
use crate::pelt::{LoadAverages, QueueAverage};
use crate::units::{CpuId, Nanos};
use std::sync::Arc;

/// The sums of a group.
#[derive(Debug)]
pub(crate) struct GroupAverages {
    load: Arc<GroupSum>,
    runnable: Arc<GroupSum>,
    util: Arc<GroupSum>,
}

impl GroupAverages {
    pub(crate) fn new(cpus: u32) -> GroupAverages {
        let sum = || Arc::new(GroupSum::new(cpus));
        GroupAverages {
            load: sum(),
            runnable: sum(),
            util: sum(),
        }
    }

    /// As readers outside of the scheduler see them.
    pub(crate) fn figures(&self, now: Nanos, rules: &SumRules) -> LoadAverages {
        LoadAverages {
            load: self.load.total(now, rules.mode),
            runnable: self.runnable.total(now, rules.mode),
            util: self.util.total(now, rules.mode),
        }
    }
}

/// One CPU's parts.
#[derive(Debug)]
pub(crate) struct GroupParts {
    load: Contribution,
    runnable: Contribution,
    util: Contribution,
}

impl GroupParts {
    /// `None` if the tree was configured for fewer CPUs.
    pub(crate) fn join(sums: &GroupAverages, cpu: CpuId, node: u32) -> Option<GroupParts> {
        Some(GroupParts {
            load: sums.load.join(cpu, node)?,
            runnable: sums.runnable.join(cpu, node)?,
            util: sums.util.join(cpu, node)?,
        })
    }

    /// Publishes a queue's averages; `empty` since when they only fade. In the shared modes, where nobody fades them, an
    /// empty queue contributes nothing.
    pub(crate) fn publish(
        &mut self,
        average: &QueueAverage,
        empty: Option<Nanos>,
        now: Nanos,
        rules: &SumRules,
    ) {
        let LoadAverages {
            load,
            runnable,
            util,
        } = average.figures();
        let update = |part: &mut Contribution, value| {
            part.tick(value, empty, now, rules);
            if empty.is_some() {
                part.leave_shared();
            }
        };
        update(&mut self.load, load);
        update(&mut self.runnable, runnable);
        update(&mut self.util, util);
    }

    /// What the other CPUs have: load, and runnable tasks times 1,024.
    pub(crate) fn others(&mut self, now: Nanos, rules: &SumRules) -> (u64, u64) {
        (
            self.load.others(now, rules).sum,
            self.runnable.others(now, rules).sum,
        )
    }
}
