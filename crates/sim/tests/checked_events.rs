//! Random machines whose CPUs go and come, under tasks kept to sets of CPUs, judged by `check`: it finds nothing where every rule is kept.
//! `QUOTIENT_SWARM=2000 cargo test --release -p quotient-sim --test checked_events` tries more, from the seed in `QUOTIENT_SWARM_SEED`.

use quotient_core::{Limit, Nanos};
use quotient_sim::synthetic;
use quotient_sim::{Hotplug, Kernel, Machine, Plan, Random, Simulation, Span};
use quotient_trace::check::{Check, Options};

/// Cases by default: some seconds in a debug build.
const CASES: u64 = 30;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn exponential(micros: u64) -> Span {
    Span::Exponential {
        mean: Nanos::from_micros(micros),
    }
}

/// Some loads in groups, some of them kept to CPUs; with changes of the machine at random.
fn case(seed: u64) -> Plan {
    let random = &mut Random::new(seed, 11);
    let shapes = ["2", "4", "2x2", "8", "2x2x2"];
    let shape = shapes[random.below(shapes.len() as u64) as usize];
    let mut plan = Plan::new(Machine::parse(shape).expect("a shape"));
    let kernels = Kernel::ALL;
    kernels[random.below(kernels.len() as u64) as usize].apply(&mut plan);
    plan.seed = seed;
    plan.duration = Nanos::from_millis(400);
    let cpus = u64::from(plan.machine.cpus());
    for number in 0..1 + random.below(4) {
        let paths = ["", "a", "a/x", "b"];
        let group = plan.group(paths[random.below(4) as usize]);
        let name = format!("w{number}");
        let threads = 1 + random.below(4) as u32;
        match random.below(3) {
            0 => synthetic::spinners(&mut plan, &name, group, threads),
            1 => {
                let (work, think) = (exponential(3_000), exponential(4_000));
                synthetic::closed_loop(&mut plan, &name, group, threads, work, think);
            }
            _ => {
                let (work, think) = (exponential(20_000), exponential(300));
                synthetic::closed_loop(&mut plan, &name, group, threads, work, think);
            }
        }
        if random.below(2) > 0 {
            let mask = 1 + random.below((1 << cpus) - 1);
            let set = (0..plan.machine.cpus()).filter(|cpu| mask >> cpu & 1 > 0);
            let set = plan.cpuset(set.collect());
            let load = plan.workloads.last_mut().expect("it was added");
            for task in &mut load.tasks {
                task.cpuset = Some(set);
            }
        }
    }
    for group in &mut plan.groups {
        if random.below(4) == 0 {
            let quota = Nanos::from_millis(5 + random.below(30));
            group.limit = Some(Limit::new(quota, Nanos::from_millis(20)));
        }
    }
    let mut online = vec![true; cpus as usize];
    let mut at = 5 + random.below(40);
    while at < 390 {
        let cpu = random.below(cpus) as u32;
        let there = &mut online[cpu as usize];
        *there = !*there;
        plan.hotplug.push(Hotplug {
            at: Nanos::from_millis(at),
            cpu,
            online: *there,
        });
        at += 3 + random.below(60);
    }
    plan
}

#[test]
fn what_comes_and_goes_is_judged_rightly() {
    let first = number("QUOTIENT_SWARM_SEED", 0);
    let count = number("QUOTIENT_SWARM", CASES);
    let mut wrong = Vec::new();
    for seed in first..first + count {
        let plan = case(seed);
        let check = Check::new(Options::default());
        let mut simulation = Simulation::new(&plan, check).expect("a plan");
        simulation.run().expect("a run");
        let findings = simulation.into_sink().finish();
        if !findings.is_clean() {
            let told: Vec<String> = findings
                .breaches
                .iter()
                .take(2)
                .map(|breach| {
                    format!(
                        "{} at {}: {}",
                        breach.rule.name(),
                        breach.time_ns,
                        breach.message
                    )
                })
                .collect();
            wrong.push(format!("seed {seed}, {:?}: {told:?}", findings.counts));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
