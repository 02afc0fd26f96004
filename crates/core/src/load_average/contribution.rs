//! One CPU's part of a sum: when it is written, and what the CPU knows of the others'.

use super::mode::{SumRules, UpdateMode};
use super::sum::{CLUSTER_CPUS, GroupSum, REFRESH_INTERVAL};
use crate::units::{CpuId, Nanos};
use std::sync::Arc;

/// Rate-limited: at most one addition in this time. The kernel's figure.
const RATE_INTERVAL: Nanos = Nanos::from_millis(1);

/// Rate-limited: a change by less than this fraction of what was added is kept back. The kernel's figure.
const HYSTERESIS: u64 = 64;

/// A CPU's part of a [`GroupSum`], owned by that CPU. Withdraws itself when dropped.
#[derive(Debug)]
pub struct Contribution {
    sum: Arc<GroupSum>,
    cluster: usize,
    index: usize,
    node: u64,
    /// What is in the shared sum from here.
    published: u64,
    /// When it was last changed, ns; `None` if never.
    published_at: Option<Nanos>,
    /// What the others contributed when it was last looked at, and when.
    others: u64,
    others_at: Option<Nanos>,
}

/// What the other CPUs contribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Others {
    /// Their sum.
    pub sum: u64,
    /// Writes to memory that several CPUs write, in order to find out.
    pub shared_writes: u32,
    /// Whether memory of other CPUs was read.
    pub looked: bool,
}

impl Contribution {
    pub(crate) fn new(sum: Arc<GroupSum>, cpu: CpuId, node: u32) -> Contribution {
        Contribution {
            sum,
            cluster: cpu.index() / CLUSTER_CPUS,
            index: cpu.index() % CLUSTER_CPUS,
            node: u64::from(node),
            published: 0,
            published_at: None,
            others: 0,
            others_at: None,
        }
    }

    /// The sum that this is a part of.
    pub fn sum(&self) -> &Arc<GroupSum> {
        &self.sum
    }

    /// What is in the shared sum from here; 0 on demand.
    pub fn published(&self) -> u64 {
        self.published
    }

    /// A tick: this CPU's `average` is to get into the sum. `empty` says that nothing is runnable and since when the
    /// average only fades. Returns the number of writes to memory that several CPUs write. No lock, no wait; O(1).
    pub fn tick(
        &mut self,
        average: u64,
        empty: Option<Nanos>,
        now: Nanos,
        rules: &SumRules,
    ) -> u32 {
        self.sum
            .cluster(self.cluster)
            .cell(self.index)
            .publish(average, empty);
        if rules.mode == UpdateMode::OnDemand {
            return self.leave_shared();
        }
        if !self.is_due(average, now, rules) {
            return 0;
        }
        let total = self.add(average);
        self.published_at = Some(now);
        // Whoever added knows the sum without another look.
        self.others = total.saturating_sub(self.published);
        self.others_at = Some(now);
        1
    }

    fn is_due(&self, average: u64, now: Nanos, rules: &SumRules) -> bool {
        let Some(last) = self.published_at else {
            return true;
        };
        match rules.mode {
            UpdateMode::EveryTick => true,
            UpdateMode::NodeStaggered => {
                let (tick, last) = (rules.tick_at(now), rules.tick_at(last));
                let is_turn = tick & rules.period_mask == self.node & rules.period_mask;
                is_turn || tick.saturating_sub(last) > rules.period_mask + 1
            }
            UpdateMode::RateLimited => {
                let change = average.abs_diff(self.published);
                now - last >= RATE_INTERVAL && change > self.published / HYSTERESIS
            }
            UpdateMode::OnDemand => false,
        }
    }

    fn add(&mut self, average: u64) -> u64 {
        let difference = average
            .cast_signed()
            .wrapping_sub(self.published.cast_signed());
        self.published = average;
        self.sum.add(difference)
    }

    /// On demand nothing is in the shared sum; only after a change of mode there is something to take out.
    pub(super) fn leave_shared(&mut self) -> u32 {
        self.published_at = None;
        if self.published == 0 {
            return 0;
        }
        self.add(0);
        1
    }

    /// What the other CPUs contribute, by the rules of the mode: the part of the sum that is not known here anyway.
    /// O(1) in the shared modes; on demand once a [`REFRESH_INTERVAL`] O(cluster + CPUs / cluster).
    pub fn others(&mut self, now: Nanos, rules: &SumRules) -> Others {
        let age = self.others_at.map(|at| (now - at, rules.tick_at(at)));
        let is_fresh = match (rules.mode, age) {
            (_, None) => false,
            // What the addition of this very tick returned.
            (UpdateMode::EveryTick, Some((age, _))) => age == Nanos::ZERO,
            (UpdateMode::RateLimited, Some(_)) => false,
            (UpdateMode::NodeStaggered, Some((_, tick))) => {
                rules.tick_at(now).saturating_sub(tick) <= rules.period_mask
            }
            (UpdateMode::OnDemand, Some((age, _))) => age < REFRESH_INTERVAL,
        };
        if is_fresh {
            return Others {
                sum: self.others,
                shared_writes: 0,
                looked: false,
            };
        }
        let (sum, shared_writes) = if rules.mode == UpdateMode::OnDemand {
            self.sum.add_up_others(now, (self.cluster, self.index))
        } else {
            (self.sum.shared().saturating_sub(self.published), 0)
        };
        self.others = sum;
        self.others_at = Some(now);
        Others {
            sum,
            shared_writes,
            looked: true,
        }
    }

    /// The CPU goes away or stops ticking: its part leaves the sum, until the next tick. Returns the number of writes
    /// to memory that several CPUs write. O(1).
    pub fn withdraw(&mut self) -> u32 {
        self.sum
            .cluster(self.cluster)
            .cell(self.index)
            .publish(0, None);
        self.others_at = None;
        self.leave_shared()
    }
}

impl Drop for Contribution {
    fn drop(&mut self) {
        self.withdraw();
    }
}
