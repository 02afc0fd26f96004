//! Random machines with sleepers against a machine of fluid: `cargo run --release -p quotient-sim --example fluid_search -- [SET-UPS] [SEED] [NUMBER]`.
//!
//! Prints what part of its fluid share the least task of each workload gets, by our rules and by those after Linux 6.18: means, and how many have less than
//! 0.4, 0.7 and 0.9 of it; a workload that has more than its part counts as one. Of each set-up where ours is below half of both it prints the number; with
//! a NUMBER only that set-up is run, and printed as a scenario. It asserts nothing: it is a measure, not a bar (docs/fairness.md).

mod fluid;
mod setup;

use quotient_sim::Simulation;
use quotient_sim::scenario::{Folder, Scenario};
use quotient_trace::Discard;
use setup::Setup;
use std::path::Path;

const RULES: [&str; 2] = ["ours", "6.18"];
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
    let mut parts = [Vec::new(), Vec::new()];
    let mut moves = [0.0; 2];
    for index in numbers.clone() {
        let setup = Setup::draw(seed, index);
        let due = fluid::shares(&setup);
        let got = run(&setup)?;
        for (workload, due) in due.iter().enumerate() {
            let part = |rules: usize| (got[rules].0[workload] / due).min(1.0);
            if *due > LEAST_PART {
                (0..2).for_each(|rules| parts[rules].push(part(rules)));
            }
            let is_low = *due > LEAST_PART && part(0) < 0.5 && part(1) > 2.0 * part(0);
            if only.is_some() || is_low {
                let (ours, theirs) = (got[0].0[workload], got[1].0[workload]);
                println!("{index} w{workload}: {ours:.4} of {due:.4}, 6.18 {theirs:.4}");
            }
        }
        (0..2).for_each(|rules| moves[rules] += got[rules].1);
        if only.is_some() {
            println!("{}", setup.scenario());
        }
    }
    for ((rules, parts), moves) in RULES.iter().zip(&parts).zip(moves) {
        let below = |bar: f64| parts.iter().filter(|part| **part < bar).count();
        let mean = parts.iter().sum::<f64>() / parts.len().max(1) as f64;
        let (low, less, little) = (below(0.4), below(0.7), below(0.9));
        println!(
            "{rules}: {} workloads, mean {mean:.4}, below 0.4 {low}, 0.7 {less}, 0.9 {little}; {:.0} moves a second",
            parts.len(),
            moves / numbers.clone().count().max(1) as f64
        );
    }
    Ok(())
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
