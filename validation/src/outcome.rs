//! What every host reports about a scenario, and the comparison with the kernel.

use serde::Serialize;

use crate::observe::{Observation, Watched};
use crate::scenario::Scenario;
use crate::window;

/// Who ran the scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Host {
    /// The real kernel.
    Kernel,
    /// Quotient's runtime, default rules.
    Quotient,
    /// Quotient's runtime, the kernel's rules.
    QuotientKernelMode,
    /// Quotient's simulator, the kernel's rules.
    Simulator,
}

/// Usage of single periods, as a part of the group's quota (of a CPU where it has none).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PerPeriod {
    /// Only 5 % of the periods used less.
    pub p5: f64,
    /// Half of the periods used less.
    pub p50: f64,
    /// Only 5 % of the periods used more.
    pub p95: f64,
}

/// One group of a scenario on one host.
#[derive(Clone, Debug, Serialize)]
pub struct GroupOutcome {
    /// Its path.
    pub path: &'static str,
    /// CPUs that its tasks used, by their own clocks, children included.
    pub cpus: f64,
    /// CPUs that an ideal machine gives it.
    pub ideal_cpus: f64,
    /// `cpus` against `ideal_cpus`, percent.
    pub error_pct: f64,
    /// CPUs that the host charged, where it says so.
    pub charged_cpus: Option<f64>,
    /// Periods while the timer was active.
    pub nr_periods: u64,
    /// Periods in which something was throttled.
    pub nr_throttled: u64,
    /// Throttled time, seconds; summed over CPUs by the kernel.
    pub throttled_s: f64,
    /// Periods in which burst was used.
    pub nr_bursts: u64,
    /// CPU seconds above the quota.
    pub burst_s: f64,
    /// CPU time in the fullest window of one period, wherever it begins, over the quota; where tasks say when they ran.
    pub worst_window_ratio: Option<f64>,
    /// Usage of single periods.
    pub per_period: Option<PerPeriod>,
    /// Median length of a job from its intended start, milliseconds.
    pub job_p50_ms: Option<f64>,
    /// Its 99th percentile, milliseconds; with few jobs the longest one.
    pub job_p99_ms: Option<f64>,
    /// The longest job, milliseconds.
    pub job_max_ms: Option<f64>,
}

/// A scenario on one host.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the scenario.
    pub scenario: String,
    /// Who ran it.
    pub host: Host,
    /// Wall seconds.
    pub seconds: f64,
    /// CPUs that other processes used meanwhile: above some percent the figures are disturbed.
    pub others_cpus: Option<f64>,
    /// Its groups, in the scenario's order.
    pub groups: Vec<GroupOutcome>,
}

impl Outcome {
    /// Puts an observation of `watched`, the scenario's groups in its order, into words.
    pub fn new<W: Watched>(
        host: Host,
        scenario: &Scenario,
        seen: &Observation,
        watched: &[W],
    ) -> Self {
        let wall = seen.wall().max(1e-9);
        let ideal = scenario.ideal(cpus());
        let period = scenario.period().as_secs_f64();
        let inside = |index: usize| -> Vec<usize> {
            let path = scenario.groups[index].path;
            (0..scenario.groups.len())
                .filter(|other| {
                    let rest = scenario.groups[*other].path.strip_prefix(path);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                })
                .collect()
        };
        let groups = scenario.groups.iter().enumerate().map(|(index, plan)| {
            let members = inside(index);
            let cpus = members.iter().map(|member| seen.used(*member)).sum::<f64>() / wall;
            let unit = plan.cap.map_or(period, |cap| cap.cpus() * period);
            let counters = seen.counters[index];
            let jobs = watched[index].jobs().seconds();
            let fullest = plan.cap.and_then(|cap| {
                let logs = members.iter().flat_map(|member| watched[*member].logs());
                let pieces: Vec<_> = logs.flat_map(|log| log.pieces()).collect();
                let fullest = window::fullest(&pieces, cap.period) / cap.quota.as_secs_f64();
                (!pieces.is_empty()).then_some(fullest)
            });
            GroupOutcome {
                path: plan.path,
                cpus,
                ideal_cpus: ideal[index],
                error_pct: (cpus / ideal[index].max(1e-9) - 1.0) * 100.0,
                charged_cpus: seen.charged(index).map(|charged| charged / wall),
                nr_periods: counters.nr_periods,
                nr_throttled: counters.nr_throttled,
                throttled_s: counters.throttled.as_secs_f64(),
                nr_bursts: counters.nr_bursts,
                burst_s: counters.burst.as_secs_f64(),
                worst_window_ratio: fullest,
                per_period: per_period(seen, &members, unit),
                job_p50_ms: quantile(&jobs, 0.5).map(|seconds| seconds * 1e3),
                job_p99_ms: quantile(&jobs, 0.99).map(|seconds| seconds * 1e3),
                job_max_ms: quantile(&jobs, 1.0).map(|seconds| seconds * 1e3),
            }
        });
        Self {
            scenario: scenario.name.clone(),
            host,
            seconds: wall,
            others_cpus: seen.others_cpus,
            groups: groups.collect(),
        }
    }
}

fn per_period(seen: &Observation, members: &[usize], unit: f64) -> Option<PerPeriod> {
    let mut sums: Vec<f64> = Vec::new();
    for member in members {
        let periods = seen.per_period(*member);
        sums.resize(periods.len(), 0.0);
        for (sum, used) in sums.iter_mut().zip(periods) {
            *sum += used / unit;
        }
    }
    Some(PerPeriod {
        p5: quantile(&sums, 0.05)?,
        p50: quantile(&sums, 0.5)?,
        p95: quantile(&sums, 0.95)?,
    })
}

/// The value below which that part of `values` lies, by nearest rank; `None` without values.
pub fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[(part.clamp(0.0, 1.0) * last as f64).round() as usize])
}

/// CPUs that this process may use.
pub fn cpus() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

/// One group of a scenario: the kernel twice, and the others against it.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Name of the scenario.
    pub scenario: String,
    /// Path of the group.
    pub group: &'static str,
    /// CPUs that an ideal machine gives it.
    pub ideal_cpus: f64,
    /// CPUs under the kernel, first run.
    pub kernel_cpus: f64,
    /// The kernel's second run against its first, percent of the first: its own spread.
    pub kernel_spread_pct: f64,
    /// Other hosts' CPUs, and by how much they differ from the mean of the kernel's runs, percent.
    pub others: Vec<Difference>,
}

/// One other host against the kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Who.
    pub host: Host,
    /// CPUs used.
    pub cpus: f64,
    /// Against the mean of the kernel's runs, percent.
    pub from_kernel_pct: f64,
    /// Throttled periods out of 20, and the kernel's.
    pub throttled_in_20: f64,
    /// The same for the kernel's first run.
    pub kernel_throttled_in_20: f64,
}

/// Compares other hosts with two runs of the kernel, group by group.
pub fn compare(kernel: &[Outcome; 2], others: &[Outcome]) -> Vec<Comparison> {
    let [first, second] = kernel;
    let in_20 = |group: &GroupOutcome| {
        20.0 * group.nr_throttled as f64 / (group.nr_periods as f64).max(1.0)
    };
    let groups = first.groups.iter().zip(&second.groups).enumerate();
    groups
        .map(|(index, (one, two))| Comparison {
            scenario: first.scenario.clone(),
            group: one.path,
            ideal_cpus: one.ideal_cpus,
            kernel_cpus: one.cpus,
            kernel_spread_pct: (two.cpus / one.cpus.max(1e-9) - 1.0) * 100.0,
            others: others
                .iter()
                .map(|other| {
                    let group = &other.groups[index];
                    let mean = f64::midpoint(one.cpus, two.cpus).max(1e-9);
                    Difference {
                        host: other.host,
                        cpus: group.cpus,
                        from_kernel_pct: (group.cpus / mean - 1.0) * 100.0,
                        throttled_in_20: in_20(group),
                        kernel_throttled_in_20: in_20(one),
                    }
                })
                .collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Counters;
    use crate::observe::Sample;
    use crate::scenario::{self, Cap};
    use crate::simulator::Silent;
    use std::time::{Duration, Instant};

    fn silent(count: usize) -> Vec<Silent> {
        (0..count).map(|_| Silent::default()).collect()
    }

    fn observation(groups: usize, used: f64) -> Observation {
        let start = Instant::now();
        let sample = |number: u32| Sample {
            at: start + Duration::from_millis(100) * number,
            punctual: true,
            seconds: vec![used * f64::from(number); groups],
            charged: vec![None; groups],
        };
        Observation {
            samples: (0..=10).map(sample).collect(),
            counters: vec![Counters::default(); groups],
            others_cpus: None,
        }
    }

    #[test]
    fn usage_is_that_of_the_group_and_its_children() {
        let scenario = scenario::nested_parent_binds();
        let mut seen = observation(3, 0.01);
        for sample in &mut seen.samples {
            sample.seconds[0] = 0.0;
        }
        let outcome = Outcome::new(Host::Kernel, &scenario, &seen, &silent(3));
        let [parent, a, _] = &outcome.groups[..] else {
            panic!("three groups")
        };
        assert!((parent.cpus - 0.2).abs() < 1e-6 && (a.cpus - 0.1).abs() < 1e-6);
        assert!(parent.error_pct.abs() < 0.01 && parent.job_p50_ms.is_none());
        let per_period = parent.per_period.expect("ten periods");
        assert!((per_period.p50 - 1.0).abs() < 1e-6, "{per_period:?}");
    }

    #[test]
    fn the_spread_stands_beside_the_error() {
        let scenario = Scenario::spin(1, Cap::ms(20, 100));
        let of = |host, used| Outcome::new(host, &scenario, &observation(1, used), &silent(1));
        let kernel = [of(Host::Kernel, 0.020), of(Host::Kernel, 0.022)];
        let rows = compare(&kernel, &[of(Host::Quotient, 0.021)]);
        assert!((rows[0].kernel_spread_pct - 10.0).abs() < 0.01);
        assert!(rows[0].others[0].from_kernel_pct.abs() < 0.01);
    }

    #[test]
    fn quantiles_are_nearest_ranks() {
        assert_eq!(quantile(&[3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
