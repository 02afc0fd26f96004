//! Everything in `scenarios/` runs and meets its expectations.

use std::path::{Path, PathBuf};

use quotient_sim::Simulation;
use quotient_sim::scenario::{Folder, Scenario};
use quotient_trace::Discard;

/// Every one of so many files is one test's: they run beside each other.
const TESTS: usize = 4;

/// More than half of what all take: three seconds and more each without optimization. `.ci/run` has them optimized, with what a debug build checks; by hand
/// that is `cargo test --release -p quotient-sim --test every_scenario -- --ignored`. Whoever changes policy runs them, too: a change that was tried
/// on the others broke three.
const LONG: [&str; 9] = [
    "group-time-hops",
    "group-time-nested",
    "group-time-siblings",
    "heavy-spinner-among-short-loops",
    "heavy-task-with-visitors",
    "light-group-among-sleepers",
    "loop-among-idle-cpus",
    "moves-below-a-small-limit",
    "two-light-spinners-in-the-gaps-of-loops",
];

#[test]
fn every_scenario_meets_its_expectations_1() {
    every_short_scenario_meets_its_expectations(0);
}

#[test]
fn every_scenario_meets_its_expectations_2() {
    every_short_scenario_meets_its_expectations(1);
}

#[test]
fn every_scenario_meets_its_expectations_3() {
    every_short_scenario_meets_its_expectations(2);
}

#[test]
fn every_scenario_meets_its_expectations_4() {
    every_short_scenario_meets_its_expectations(3);
}

#[test]
#[ignore = "long without optimization: add --release"]
fn every_long_scenario_meets_its_expectations() {
    let long: Vec<_> = scenarios()
        .into_iter()
        .filter(|path| is_long(path))
        .collect();
    assert_eq!(long.len(), LONG.len(), "names of files that are not there");
    meet_their_expectations(long);
}

fn every_short_scenario_meets_its_expectations(test: usize) {
    let short = scenarios().into_iter().filter(|path| !is_long(path));
    meet_their_expectations(short.skip(test).step_by(TESTS));
}

fn is_long(path: &Path) -> bool {
    LONG.contains(&name_of(path).as_str())
}

fn name_of(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// All files of the folder, by name.
fn scenarios() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let entries = std::fs::read_dir(&folder).expect("the folder of scenarios");
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let mut files: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|kind| kind == "toml"))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

/// `QUOTIENT_SCENARIOS` is a part of the names of those that are run.
fn meet_their_expectations(files: impl IntoIterator<Item = PathBuf>) {
    let mut missed = Vec::new();
    let asked = std::env::var("QUOTIENT_SCENARIOS").ok();
    let is_wanted = |name: &str| asked.as_deref().is_none_or(|part| name.contains(part));
    for path in files {
        let name = name_of(&path);
        if !is_wanted(&name) {
            continue;
        }
        let begin = std::time::Instant::now();
        let scenario = Scenario::load(&path).unwrap_or_else(|error| panic!("{error}"));
        let mut files = Folder::of(&path);
        let mut outcomes = Vec::new();
        for run in 0..scenario.runs().count() {
            let plan = scenario
                .plan(run, None, None, &mut files)
                .expect("checked before");
            let mut simulation = Simulation::new(&plan, Discard).expect("checked before");
            simulation
                .run()
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            outcomes.push(simulation.outcome());
        }
        let findings = scenario
            .judge(&outcomes)
            .unwrap_or_else(|error| panic!("{error}"));
        eprintln!("{name}: {:?}", begin.elapsed());
        for finding in findings.iter().filter(|finding| !finding.met) {
            missed.push(format!("{}: {finding:?}", scenario.name()));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
