//! Random machines with sleepers against a machine of fluid: `cargo run --release -p quotient-sim --example fluid_search -- [SET-UPS] [SEED] [NUMBER]`.
//!
//! Prints what part of its share the least task of each workload gets, by our rules and by those after Linux 6.18: means, and how many have less than
//! 0.4, 0.7 and 0.9 of it; a workload that has more than its part counts as one. Against two shares: that of the machine of fluid, where nobody is owed
//! anything for sleep, and the lesser of that and what is max-min fair in the long run, where whoever sleeps may have later what it did not use. (Ours
//! owe a group for what it did not use, up to a bound; so a light one beside heavy sleepers has what those leave, not what it had by fluid.)
//! Of each set-up where ours is below half of both it prints the number; with a NUMBER only that set-up is run, and printed as a scenario. It asserts
//! nothing: it is a measure, not a bar (docs/fairness.md).

mod fluid;
mod setup;

use quotient_sim::Simulation;
use quotient_sim::scenario::{Folder, Scenario};
use quotient_trace::Discard;
use setup::Setup;
use std::path::Path;

const RULES: [&str; 2] = ["ours", "6.18"];
const SHARES: [&str; 2] = ["fluid", "the lesser"];
/// Workloads whose part is less are not counted, in CPUs: they have few turns in 20 s.
const LEAST_PART: f64 = 0.002;

fn main() -> Result<(), String> {
    let number = |index: usize| {
        std::env::args()
            .nth(index)
            .map(|text| {
                text.parse::<u64>()
                    .map_err(|error| format!("{text}: {error}"))
            })
            .transpose()
    };
    let (count, seed) = (number(1)?.unwrap_or(100), number(2)?.unwrap_or(1));
    let only = number(3)?;
    let numbers = only.map_or(0..count, |only| only..only + 1);
    println!("seed {seed}, set-ups {numbers:?}");
    // By share, then by rules.
    let mut parts = [const { [Vec::new(), Vec::new()] }; SHARES.len()];
    let mut moves = [0.0; RULES.len()];
    for index in numbers.clone() {
        let setup = Setup::draw(seed, index);
        let (fluid, long_run) = (fluid::shares(&setup), fluid::long_run(&setup));
        let got = run(&setup)?;
        for (workload, (fluid, long_run)) in fluid.iter().zip(&long_run).enumerate() {
            let dues = [*fluid, fluid.min(*long_run)];
            let part = |due: f64, rules: usize| (got[rules].0[workload] / due).min(1.0);
            for (parts, due) in parts.iter_mut().zip(dues) {
                if due > LEAST_PART {
                    (0..RULES.len()).for_each(|rules| parts[rules].push(part(due, rules)));
                }
            }
            let (ours, theirs) = (part(dues[1], 0), part(dues[1], 1));
            let is_low = dues[1] > LEAST_PART && ours < 0.5 && theirs > 2.0 * ours;
            if only.is_some() || is_low {
                let (ours, theirs) = (got[0].0[workload], got[1].0[workload]);
                println!(
                    "{index} w{workload}: {ours:.4} of {fluid:.4} (in the long run {long_run:.4}), 6.18 {theirs:.4}"
                );
            }
        }
        (0..RULES.len()).for_each(|rules| moves[rules] += got[rules].1);
        if only.is_some() {
            println!("{}", setup.scenario());
        }
    }
    for (share, parts) in SHARES.iter().zip(&parts) {
        for (rules, parts) in RULES.iter().zip(parts) {
            println!("{share}, {rules}: {}", summary(parts));
        }
    }
    for (rules, moves) in RULES.iter().zip(moves) {
        let each = moves / numbers.clone().count().max(1) as f64;
        println!("{rules}: {each:.0} moves a second");
    }
    Ok(())
}

fn summary(parts: &[f64]) -> String {
    let below = |bar: f64| parts.iter().filter(|part| **part < bar).count();
    let mean = parts.iter().sum::<f64>() / parts.len().max(1) as f64;
    let (low, less, little) = (below(0.4), below(0.7), below(0.9));
    format!(
        "{} workloads, mean {mean:.4}, below 0.4 {low}, 0.7 {less}, 0.9 {little}",
        parts.len()
    )
}

/// What the least task of each workload gets, in CPUs, and moves a second; by each of the rules.
fn run(setup: &Setup) -> Result<Vec<(Vec<f64>, f64)>, String> {
    let mut files = Folder::of(Path::new("."));
    let scenario = Scenario::parse("set-up", &setup.scenario(), &mut files);
    let scenario = scenario.map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    for run in 0..RULES.len() {
        let plan = scenario.plan(run, None, None, &mut files);
        let plan = plan.map_err(|error| error.to_string())?;
        let mut simulation = Simulation::new(&plan, Discard).map_err(|error| error.to_string())?;
        simulation.run().map_err(|error| error.to_string())?;
        let outcome = simulation.outcome();
        let elapsed = outcome.elapsed_ns as f64;
        let workloads = outcome.workloads.iter();
        let got = workloads.map(|workload| workload.usage_min_ns as f64 / elapsed);
        let moves = outcome.mechanisms.migrations as f64 / (elapsed / 1e9);
        all.push((got.collect(), moves));
    }
    Ok(all)
}
