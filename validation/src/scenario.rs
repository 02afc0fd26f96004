//! What is compared: groups with limits, weights and loads, written once for every host.

use std::time::Duration;

/// A cap on CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cap {
    /// CPU time a period.
    pub quota: Duration,
    /// Its period.
    pub period: Duration,
    /// Unused quota that may be carried over.
    pub burst: Duration,
    /// Whether Quotient refills it in small parts. The kernel cannot.
    pub smooth: bool,
}

impl Cap {
    /// `quota` and `period` in milliseconds, no burst.
    pub const fn ms(quota: u64, period: u64) -> Self {
        Self {
            quota: Duration::from_millis(quota),
            period: Duration::from_millis(period),
            burst: Duration::ZERO,
            smooth: false,
        }
    }

    /// The same, refilled in small parts.
    pub const fn smoothly(mut self) -> Self {
        self.smooth = true;
        self
    }

    /// The same with a burst in milliseconds.
    pub const fn with_burst_ms(mut self, burst: u64) -> Self {
        self.burst = Duration::from_millis(burst);
        self
    }

    /// CPUs that it allows in the long run.
    pub fn cpus(&self) -> f64 {
        self.quota.as_secs_f64() / self.period.as_secs_f64()
    }
}

/// What a group's tasks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Nothing of its own: a parent.
    None,
    /// So many tasks that compute all the time.
    Spinners(u32),
    /// So many tasks that compute and sleep in turns.
    Sleepers {
        /// How many.
        count: u32,
        /// CPU time of a piece of work.
        run: Duration,
        /// Sleep after it. Timers of the runtime count whole milliseconds.
        sleep: Duration,
    },
    /// One task that starts a job every so often.
    Jobs {
        /// CPU time of a job.
        work: Duration,
        /// Time between two starts.
        every: Duration,
    },
}

impl Load {
    /// How many tasks there are.
    pub fn tasks(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Spinners(count) | Self::Sleepers { count, .. } => count,
            Self::Jobs { .. } => 1,
        }
    }
}

/// One group.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// Path from the scenario's root; parents are listed before their children.
    pub path: &'static str,
    /// cgroup weight, 1..=10000.
    pub weight: u32,
    /// Its cap, if any.
    pub cap: Option<Cap>,
    /// Its own tasks; a group with children has none.
    pub load: Load,
}

impl GroupPlan {
    /// Path of the parent, if it is a group of the scenario.
    pub fn parent(&self) -> Option<&'static str> {
        self.path.rsplit_once('/').map(|(parent, _)| parent)
    }
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name in tables and JSON.
    pub name: String,
    /// Its groups, parents first.
    pub groups: Vec<GroupPlan>,
}

impl Scenario {
    /// One group with one cap and so many spinners.
    pub fn spin(spinners: u32, cap: Cap) -> Self {
        Self {
            name: format!(
                "spin {}x {}/{} ms{}",
                spinners,
                cap.quota.as_millis(),
                cap.period.as_millis(),
                if cap.smooth { " smooth" } else { "" }
            ),
            groups: vec![group("capped", 100, Some(cap), Load::Spinners(spinners))],
        }
    }

    /// The period after whose phase samples are taken: that of the first cap, or 100 ms.
    pub fn period(&self) -> Duration {
        let caps = self.groups.iter().filter_map(|group| group.cap);
        caps.map(|cap| cap.period)
            .next()
            .unwrap_or(Duration::from_millis(100))
    }

    /// Index of the group whose period timer gives the phase.
    pub fn focus(&self) -> usize {
        self.groups
            .iter()
            .position(|group| group.cap.is_some())
            .unwrap_or(0)
    }

    /// CPUs that an ideal machine with `cpus` CPUs gives each group in the long run, children included.
    pub fn ideal(&self, cpus: f64) -> Vec<f64> {
        let mut shares = vec![0.0; self.groups.len()];
        let tops = self.children(None);
        self.divide(&tops, cpus, &mut shares);
        shares
    }

    fn children(&self, parent: Option<&str>) -> Vec<usize> {
        (0..self.groups.len())
            .filter(|index| self.groups[*index].parent() == parent)
            .collect()
    }

    /// CPUs that a group would use if it had the machine for itself.
    fn demand(&self, index: usize) -> f64 {
        let group = &self.groups[index];
        let own = match group.load {
            Load::None => self
                .children(Some(group.path))
                .iter()
                .map(|child| self.demand(*child))
                .sum(),
            Load::Spinners(count) => f64::from(count),
            Load::Sleepers { count, run, sleep } => {
                f64::from(count) * run.as_secs_f64() / (run + sleep).as_secs_f64()
            }
            Load::Jobs { work, every } => work.as_secs_f64() / every.as_secs_f64(),
        };
        group.cap.map_or(own, |cap| own.min(cap.cpus()))
    }

    /// Divides `amount` among siblings by weight; what one cannot use goes to the others.
    fn divide(&self, siblings: &[usize], amount: f64, shares: &mut [f64]) {
        let mut open: Vec<usize> = siblings.to_vec();
        let mut left = amount;
        // Every round fixes at least one sibling, or is the last.
        while !open.is_empty() {
            let weights: f64 = open
                .iter()
                .map(|index| f64::from(self.groups[*index].weight))
                .sum();
            let part = |index: usize| left * f64::from(self.groups[index].weight) / weights;
            let (full, hungry): (Vec<usize>, Vec<usize>) = open
                .iter()
                .partition(|index| self.demand(**index) <= part(**index));
            if full.is_empty() {
                for index in &hungry {
                    shares[*index] = part(*index);
                }
                break;
            }
            for index in &full {
                shares[*index] = self.demand(*index);
            }
            left -= full.iter().map(|index| shares[*index]).sum::<f64>();
            open = hungry;
        }
        for index in siblings {
            let children = self.children(Some(self.groups[*index].path));
            self.divide(&children, shares[*index], shares);
        }
    }
}

fn group(path: &'static str, weight: u32, cap: Option<Cap>, load: Load) -> GroupPlan {
    GroupPlan {
        path,
        weight,
        cap,
        load,
    }
}

/// The caps of the spinner scenarios: short and long periods, far below and above one CPU.
pub const CAPS: [Cap; 5] = [
    Cap::ms(2, 10),
    Cap::ms(5, 100),
    Cap::ms(20, 100),
    Cap::ms(50, 100),
    Cap::ms(150, 100),
];

/// The spinner counts: fewer than, as many as, and more than the CPUs of a small machine.
pub const SPINNERS: [u32; 3] = [1, 2, 8];

/// Every scenario.
pub fn all() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    for cap in CAPS {
        for spinners in SPINNERS {
            scenarios.push(Scenario::spin(spinners, cap));
        }
    }
    scenarios.extend([
        nested_child_binds(),
        nested_parent_binds(),
        weights_under_limit(),
        jobs("jobs 30 ms, no burst", 0),
        jobs("jobs 30 ms, burst 20 ms", 20),
    ]);
    scenarios.extend(group_time(crate::outcome::cpus() as u32));
    scenarios.extend(selftests());
    scenarios
}

/// What the kernel's own selftests of the cpu controller (test_cpu.c) set up, as far as it is about who gets how much.
pub fn selftests() -> [Scenario; 6] {
    let plain = |path, weight, load| group(path, weight, None, load);
    let scenario = |name: &str, groups| Scenario {
        name: format!("kselftest: {name}"),
        groups,
    };
    let by_weight = |hogs| {
        vec![
            plain("a", 100, Load::None),
            plain("a/b", 50, Load::Spinners(hogs)),
            plain("a/c", 100, Load::Spinners(hogs)),
            plain("a/d", 150, Load::Spinners(hogs)),
        ]
    };
    let nested = |hogs| {
        vec![
            plain("a", 100, Load::None),
            plain("a/b", 1_000, Load::Spinners(hogs)),
            plain("a/c", 1_000, Load::None),
            plain("a/c/d", 5_000, Load::Spinners(hogs)),
            plain("a/c/e", 5_000, Load::Spinners(hogs)),
        ]
    };
    let tiny = Cap::ms(1, 100);
    [
        scenario("stats", vec![plain("box", 100, Load::Spinners(1))]),
        scenario("weight_overprovisioned", by_weight(2)),
        scenario("nested_weight_overprovisioned", nested(2)),
        scenario("nested_weight_underprovisioned", nested(1)),
        scenario(
            "max",
            vec![group("box", 100, Some(tiny), Load::Spinners(1))],
        ),
        scenario(
            "max_nested",
            vec![
                group("box", 100, Some(tiny), Load::None),
                plain("box/child", 100, Load::Spinners(1)),
            ],
        ),
    ]
}

/// Groups by their weights alone, with tasks that sleep: what one virtual time a group is for. Twice as many spinners as CPUs (two at least) in
/// the heavy groups, and as many a leaf where weights are nested; light groups are the same on every machine.
pub fn group_time(cpus: u32) -> [Scenario; 5] {
    let cpus = cpus.max(2);
    let sleepers = |count, run, sleep| Load::Sleepers {
        count,
        run: Duration::from_micros(run),
        sleep: Duration::from_micros(sleep),
    };
    let plain = |path, weight, load| group(path, weight, None, load);
    let scenario = |name: &str, groups| Scenario {
        name: format!("weights: {name}"),
        groups,
    };
    [
        scenario(
            "sleepers 100:9900",
            vec![
                plain("light", 100, sleepers(2, 600, 500)),
                plain("heavy", 9_900, Load::Spinners(2 * cpus)),
            ],
        ),
        scenario(
            "a steady task beside a busy sibling",
            vec![
                plain("p", 100, Load::None),
                plain("p/a", 100, sleepers(2, 500, 1_500)),
                plain("p/b", 100, Load::Spinners(1)),
                plain("o", 700, Load::Spinners(2 * cpus)),
            ],
        ),
        scenario(
            "1:2:7 in 1:2:7",
            vec![
                plain("a", 100, Load::None),
                plain("a/x", 100, Load::Spinners(cpus)),
                plain("a/z", 700, Load::Spinners(cpus)),
                plain("b", 200, Load::Spinners(cpus)),
                plain("c", 700, Load::None),
                plain("c/x", 100, Load::Spinners(cpus)),
                plain("c/z", 700, Load::Spinners(cpus)),
            ],
        ),
        scenario(
            "sleeping mints nothing",
            vec![
                plain("gamer", 100, sleepers(cpus, 3_900, 100)),
                plain("honest", 100, Load::Spinners(2 * cpus)),
            ],
        ),
        scenario(
            "a light job beside heavy spinners",
            vec![
                plain(
                    "light",
                    100,
                    Load::Jobs {
                        work: Duration::from_micros(100),
                        every: Duration::from_millis(20),
                    },
                ),
                plain("heavy", 9_900, Load::Spinners(2 * cpus)),
            ],
        ),
    ]
}

/// A child's own cap is the tighter one; its sibling takes the rest of the parent's.
pub fn nested_child_binds() -> Scenario {
    Scenario {
        name: "nested, child binds".into(),
        groups: vec![
            group("parent", 100, Some(Cap::ms(50, 100)), Load::None),
            group(
                "parent/capped",
                100,
                Some(Cap::ms(15, 100)),
                Load::Spinners(2),
            ),
            group("parent/free", 100, None, Load::Spinners(2)),
        ],
    }
}

/// The children's caps together exceed their parent's.
pub fn nested_parent_binds() -> Scenario {
    Scenario {
        name: "nested, parent binds".into(),
        groups: vec![
            group("parent", 100, Some(Cap::ms(20, 100)), Load::None),
            group("parent/a", 100, Some(Cap::ms(15, 100)), Load::Spinners(2)),
            group("parent/b", 100, Some(Cap::ms(15, 100)), Load::Spinners(2)),
        ],
    }
}

/// Weights 1:3 under one cap.
pub fn weights_under_limit() -> Scenario {
    Scenario {
        name: "weights 1:3 under a cap".into(),
        groups: vec![
            group("parent", 100, Some(Cap::ms(50, 100)), Load::None),
            group("parent/light", 100, None, Load::Spinners(2)),
            group("parent/heavy", 300, None, Load::Spinners(2)),
        ],
    }
}

/// A job every 200 ms needs one and a half quotas: without burst it waits for the next period.
fn jobs(name: &str, burst_ms: u64) -> Scenario {
    let load = Load::Jobs {
        work: Duration::from_millis(30),
        every: Duration::from_millis(200),
    };
    let cap = Cap::ms(20, 100).with_burst_ms(burst_ms);
    Scenario {
        name: name.into(),
        groups: vec![group("capped", 100, Some(cap), load)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(shares: &[f64], expected: &[f64]) -> bool {
        shares
            .iter()
            .zip(expected)
            .all(|(share, expected)| (share - expected).abs() < 1e-9)
    }

    #[test]
    fn caps_and_spinners_bound_the_ideal() {
        assert!(close(
            &Scenario::spin(8, Cap::ms(20, 100)).ideal(2.0),
            &[0.2]
        ));
        assert!(close(
            &Scenario::spin(1, Cap::ms(150, 100)).ideal(2.0),
            &[1.0]
        ));
        assert!(close(
            &Scenario::spin(8, Cap::ms(150, 100)).ideal(1.0),
            &[1.0]
        ));
    }

    #[test]
    fn what_a_capped_child_leaves_goes_to_its_sibling() {
        assert!(close(&nested_child_binds().ideal(2.0), &[0.5, 0.15, 0.35]));
        assert!(close(&nested_parent_binds().ideal(2.0), &[0.2, 0.1, 0.1]));
        assert!(close(
            &weights_under_limit().ideal(2.0),
            &[0.5, 0.125, 0.375]
        ));
    }

    #[test]
    fn parents_come_first_and_only_leaves_have_tasks() {
        for scenario in all() {
            for (index, group) in scenario.groups.iter().enumerate() {
                if let Some(parent) = group.parent() {
                    let found = scenario.groups[..index]
                        .iter()
                        .find(|other| other.path == parent);
                    assert_eq!(found.map(|parent| parent.load), Some(Load::None));
                }
            }
            assert!(scenario.ideal(2.0).iter().all(|share| *share > 0.0));
        }
    }

    #[test]
    fn version_1_would_accept_every_tree() {
        for scenario in all() {
            for group in &scenario.groups {
                let parent = scenario
                    .groups
                    .iter()
                    .find(|other| Some(other.path) == group.parent());
                if let (Some(cap), Some(parent)) = (group.cap, parent.and_then(|group| group.cap)) {
                    assert!(cap.cpus() <= parent.cpus(), "{}", scenario.name);
                }
                if let Some(cap) = group.cap {
                    assert!(cap.burst <= cap.quota);
                }
            }
        }
    }
}
