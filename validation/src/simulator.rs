//! A scenario in the simulator, in virtual time, on a machine like this one with the kernel's rules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quotient_core::{BandwidthRules, Limit, Nanos, Weight};
use quotient_sim::{GroupPlan, Machine, Plan, Simulation, Ticks, synthetic};
use quotient_trace::Discard;

use crate::Problem;
use crate::cgroup::Counters;
use crate::load::{JobLog, Meter};
use crate::observe::{Observation, Sample, Watched};
use crate::outcome::{Host, Outcome, cpus};
use crate::scenario::{Load, Scenario};
use crate::window::RunLog;

/// Periods before the first sample, as on the other hosts.
const WARM_UP_PERIODS: u32 = 3;
/// Steps a period in which the phase is looked for.
const PHASE_STEPS: u32 = 100;
/// Samples are taken this part of a period before its end, as on the other hosts.
const LEAD: f64 = 0.05;

/// Simulates `scenario` for `length`; takes a fraction of that.
///
/// # Errors
/// When the simulator refuses the plan, or a run breaks an invariant.
pub fn run(scenario: &Scenario, length: Duration) -> Result<Outcome, Problem> {
    let plan = plan(scenario)?;
    let broken = || Problem::during::<quotient_sim::RunError>("the simulator");
    let mut simulation =
        Simulation::new(&plan, Discard).map_err(Problem::during("the simulator"))?;
    let period = scenario.period();
    let periods = u32::try_from(length.as_nanos().div_ceil(period.as_nanos().max(1)))
        .unwrap_or(u32::MAX)
        .max(1);
    let phase = find_phase(scenario, &mut simulation).map_err(broken())?;
    let start = Instant::now();
    let (mut samples, mut before) = (Vec::new(), Vec::new());
    for index in 0..=periods {
        let due = phase + period * (WARM_UP_PERIODS + index) - period.mul_f64(LEAD);
        simulation.advance(nanos(due)).map_err(broken())?;
        samples.push(Sample {
            at: start + due,
            punctual: true,
            seconds: own_seconds(scenario, &simulation),
            charged: vec![None; scenario.groups.len()],
        });
        if index == 0 {
            before = counters(scenario, &simulation);
        }
    }
    let counters = counters(scenario, &simulation);
    let seen = Observation {
        samples,
        counters: counters
            .iter()
            .zip(before)
            .map(|(after, before)| after.since(before))
            .collect(),
        others_cpus: None,
    };
    let silent: Vec<Silent> = scenario.groups.iter().map(|_| Silent::default()).collect();
    let mut outcome = Outcome::new(Host::Simulator, scenario, &seen, &silent);
    let found = simulation.outcome();
    for (plan, group) in scenario.groups.iter().zip(&mut outcome.groups) {
        let meter = found.meters.iter().find(|meter| meter.name == plan.path);
        if let Some(meter) = meter.filter(|_| matches!(plan.load, Load::Jobs { .. })) {
            group.job_p50_ms = Some(meter.times.p50_ns as f64 / 1e6);
            group.job_p99_ms = Some(meter.times.p99_ns as f64 / 1e6);
            group.job_max_ms = Some(meter.times.max_ns as f64 / 1e6);
        }
    }
    Ok(outcome)
}

/// When a period of the watched group begins: its counter moves. Without a limit any phase is as good.
fn find_phase(
    scenario: &Scenario,
    simulation: &mut Simulation<Discard>,
) -> Result<Duration, quotient_sim::RunError> {
    let step = scenario.period() / PHASE_STEPS;
    let mut now = Duration::ZERO;
    for _ in 0..PHASE_STEPS * 3 {
        now += step;
        simulation.advance(nanos(now))?;
        if counters(scenario, simulation)[scenario.focus()].nr_periods > 0 {
            break;
        }
    }
    Ok(now)
}

fn nanos(duration: Duration) -> Nanos {
    Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

fn plan(scenario: &Scenario) -> Result<Plan, Problem> {
    // Every busy CPU ticks, as the kernel's does: groups are looked at in the middle of a run, and are up to date as of
    // the last tick. A task alone on its CPU would not be charged before the end.
    let mut plan = Plan::new(Machine {
        ticks: Ticks::Busy,
        ..Machine::flat(cpus() as u32)
    });
    plan.settings.config.bandwidth = BandwidthRules::KERNEL;
    plan.duration = Nanos::from_secs(3_600);
    for (index, group) in scenario.groups.iter().enumerate() {
        let weight = Weight::new(group.weight).map_err(Problem::during(group.path))?;
        plan.groups.push(GroupPlan {
            path: group.path.into(),
            weight,
            idle: false,
            limit: group.cap.map(|cap| {
                Limit::new(nanos(cap.quota), nanos(cap.period)).with_burst(nanos(cap.burst))
            }),
        });
        let place = u32::try_from(index).ok();
        match group.load {
            Load::None => {}
            Load::Spinners(count) => synthetic::spinners(&mut plan, group.path, place, count),
            Load::Sleepers { count, run, sleep } => {
                let (work, think) = (nanos(run).into(), nanos(sleep).into());
                synthetic::closed_loop(&mut plan, group.path, place, count, work, think);
            }
            Load::Jobs { work, every } => {
                let (work, every) = (nanos(work).into(), nanos(every));
                synthetic::periodic(&mut plan, group.path, place, 1, work, every);
            }
        }
    }
    Ok(plan)
}

/// CPU seconds of each group without its children.
fn own_seconds(scenario: &Scenario, simulation: &Simulation<Discard>) -> Vec<f64> {
    let found = simulation.outcome();
    let usage = |path: &str| {
        let group = found.groups.iter().find(|group| group.path == path);
        group.map_or(0.0, |group| group.usage_ns as f64 / 1e9)
    };
    let own = |path: &'static str| {
        let children = scenario
            .groups
            .iter()
            .filter(|child| child.parent() == Some(path));
        usage(path) - children.map(|child| usage(child.path)).sum::<f64>()
    };
    scenario
        .groups
        .iter()
        .map(|group| own(group.path))
        .collect()
}

fn counters(scenario: &Scenario, simulation: &Simulation<Discard>) -> Vec<Counters> {
    let found = simulation.outcome();
    let of = |path: &str| {
        let group = found.groups.iter().find(|group| group.path == path);
        group.map_or_else(Counters::default, |group| Counters {
            nr_periods: group.nr_periods,
            nr_throttled: group.nr_throttled,
            throttled: Duration::from_nanos(group.throttled_ns),
            nr_bursts: group.nr_bursts,
            burst: Duration::from_nanos(group.burst_ns),
        })
    };
    scenario.groups.iter().map(|group| of(group.path)).collect()
}

/// A group that publishes nothing by itself.
#[derive(Default)]
pub(crate) struct Silent(JobLog);

impl Watched for Silent {
    fn meters(&self) -> &[Arc<Meter>] {
        &[]
    }

    fn logs(&self) -> &[Arc<RunLog>] {
        &[]
    }

    fn jobs(&self) -> &JobLog {
        &self.0
    }

    fn counters(&self) -> Result<Counters, Problem> {
        Ok(Counters::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;

    #[test]
    fn every_scenario_gets_what_an_ideal_machine_gives() {
        let length = Duration::from_secs(5);
        for scenario in scenario::all() {
            let outcome = run(&scenario, length).expect("a valid plan");
            for group in &outcome.groups {
                // Whoever has two CPUs and children shares by load, which is not exact; limits are.
                let bar = if scenario.groups.len() > 1 { 20.0 } else { 2.5 };
                // Limits act at ticks, and what was run too long is paid back: a look may find a hog a tick of 1/250 s
                // ahead of its quota, which is four times 1 ms.
                let tick = 1.0 / 250.0 / length.as_secs_f64();
                let near = (group.cpus - group.ideal_cpus).abs() <= tick;
                assert!(
                    group.ideal_cpus > cpus() || group.error_pct.abs() <= bar || near,
                    "{}: {group:?}",
                    scenario.name
                );
            }
        }
    }
}
