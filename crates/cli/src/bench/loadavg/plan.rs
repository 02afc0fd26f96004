//! What is runnable when: a plan for each (group, vCPU) pair, the same in every run.

use quotient_core::{NICE_0_SHARES, Nanos};
use serde::Serialize;

/// How the load of a (group, vCPU) pair goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// 1 to 4 tasks for 5 to 50 ms, then none for as long, and so on.
    Varying,
    /// Two tasks that never pause.
    Steady,
}

impl Workload {
    /// Both, the harder one first.
    pub const ALL: [Workload; 2] = [Workload::Varying, Workload::Steady];

    /// As in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Varying => "varying",
            Workload::Steady => "steady",
        }
    }
}

/// One stretch after another of a (group, vCPU) pair.
#[derive(Debug, Clone)]
pub struct Plan {
    workload: Workload,
    state: u64,
    /// When the current stretch ends.
    pub until: Nanos,
    /// Tasks of ordinary weight runnable in it.
    pub tasks: u32,
}

impl Plan {
    /// The plan of a pair.
    pub fn new(workload: Workload, group: usize, cpu: u32) -> Plan {
        let mut plan = Plan {
            workload,
            state: (group as u64) << 32 | u64::from(cpu),
            until: Nanos::ZERO,
            tasks: 0,
        };
        if plan.random() % 2 == 1 {
            // Starts asleep.
            plan.next();
        }
        plan.next();
        plan
    }

    /// Shares of the tasks in the current stretch.
    pub fn load(&self) -> u64 {
        u64::from(self.tasks) * u64::from(NICE_0_SHARES)
    }

    /// Goes on to the next stretch.
    pub fn next(&mut self) {
        if self.workload == Workload::Steady {
            (self.tasks, self.until) = (2, Nanos::MAX);
            return;
        }
        let random = self.random();
        let microseconds = 5_000 + random % 45_001;
        self.tasks = if self.tasks > 0 {
            0
        } else {
            1 + (random >> 40) as u32 % 4
        };
        self.until += Nanos::from_micros(microseconds);
    }

    /// SplitMix64: every seed is a good one.
    fn random(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_the_same_each_time_and_differs_between_vcpus() {
        let ends = |cpu| {
            let mut plan = Plan::new(Workload::Varying, 3, cpu);
            (0..100)
                .map(|_| {
                    plan.next();
                    (plan.until, plan.tasks)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(ends(1), ends(1));
        assert_ne!(ends(1), ends(2));
        let plan = ends(1);
        assert!(
            plan.windows(2)
                .all(|pair| (pair[0].1 == 0) != (pair[1].1 == 0))
        );
        let lengths = plan.windows(2).map(|pair| pair[1].0 - pair[0].0);
        assert!(
            lengths
                .into_iter()
                .all(|length| (5_000_000..=50_000_000).contains(&length.0))
        );
    }

    #[test]
    fn steady_is_steady() {
        let plan = Plan::new(Workload::Steady, 0, 0);
        assert_eq!((plan.load(), plan.until), (2048, Nanos::MAX));
    }
}
