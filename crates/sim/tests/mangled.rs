//! Scenarios and recordings that somebody scribbled over: an error with a place, or a simulation; never a panic, and
//! never one that does not end.

use std::io::BufRead;
use std::path::Path;

use proptest::prelude::*;
use quotient_core::Nanos;
use quotient_sim::replay::Recording;
use quotient_sim::scenario::{Files, Scenario, ScenarioError};
use quotient_sim::{Plan, Simulation};
use quotient_trace::Discard;

const PERF: &str = include_str!("../../trace/tests/data/perf_sched.txt");
const TRACEFS: &str = include_str!("../../trace/tests/data/tracefs.txt");

/// Virtual time that a damaged plan is run for: its own length may be centuries.
const SPAN: Nanos = Nanos::from_millis(3);

/// Threads and CPUs up to which a damaged plan is run: a million tasks are no mistake, but no quick test either.
const TASKS: usize = 2_000;

/// The one file that every name stands for.
struct OneFile(String);

impl Files for OneFile {
    fn read(&mut self, _name: &str) -> Result<String, String> {
        Ok(self.0.clone())
    }

    fn open(&mut self, _name: &str) -> Result<Box<dyn BufRead>, String> {
        Ok(Box::new(std::io::Cursor::new(self.0.clone())))
    }
}

fn run_a_little(plan: &Plan) {
    let tasks: usize = plan.workloads.iter().map(|load| load.tasks.len()).sum();
    if tasks > TASKS || plan.machine.cpus() > 256 {
        return;
    }
    if let Ok(mut simulation) = Simulation::new(plan, Discard) {
        // A standstill is an answer. A broken invariant is not.
        if let Err(error) = simulation.advance(SPAN) {
            assert!(error.to_string().contains("time stands still"), "{error}");
        }
    }
}

/// One change of a text. Places are shares of its lines.
#[derive(Clone, Debug)]
enum Change {
    Lose(f64),
    Double(f64, f64),
    Value(f64, String),
    Cut(f64),
}

fn change() -> impl Strategy<Value = Change> {
    let place = || 0.0_f64..1.0;
    let value = prop_oneof![
        Just("0".to_owned()),
        Just("-1".to_owned()),
        Just("1e300".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("\"99999999999999999999s\"".to_owned()),
        Just("\"1ns\"".to_owned()),
        Just("\"0*cpus/0\"".to_owned()),
        Just("[[]]".to_owned()),
        Just("\"1024x1024\"".to_owned()),
        "[ -~]{0,20}",
        any::<u32>().prop_map(|number| number.to_string()),
    ];
    prop_oneof![
        place().prop_map(Change::Lose),
        (place(), place()).prop_map(|(from, to)| Change::Double(from, to)),
        (place(), value).prop_map(|(at, value)| Change::Value(at, value)),
        place().prop_map(Change::Cut),
    ]
}

fn apply(lines: &mut Vec<String>, change: &Change) {
    let index = |place: f64, lines: &[String]| (place * lines.len() as f64) as usize;
    if lines.is_empty() {
        return;
    }
    match change {
        Change::Lose(at) => {
            lines.remove(index(*at, lines));
        }
        Change::Double(from, to) => {
            let line = lines[index(*from, lines)].clone();
            lines.insert(index(*to, lines), line);
        }
        Change::Value(at, value) => {
            let at = index(*at, lines);
            let line = &mut lines[at];
            if let Some((name, _)) = line.split_once('=') {
                *line = format!("{name}= {value}");
            }
        }
        Change::Cut(at) => {
            let at = index(*at, lines);
            lines.truncate(at + 1);
            let half = lines[at].chars().count() / 2;
            lines[at] = lines[at].chars().take(half).collect();
        }
    }
}

fn scenarios() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder of scenarios")
        .map(|entry| entry.expect("a readable folder").path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|path| std::fs::read_to_string(path).expect("a readable scenario"))
        .collect()
}

proptest! {
    // No file of failures: a found case becomes a test of its own.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_scenario_is_an_error_or_a_plan(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec(change(), 1..4),
    ) {
        let all = scenarios();
        let mut lines: Vec<String> = which.get(&all).lines().map(str::to_owned).collect();
        changes.iter().for_each(|change| apply(&mut lines, change));
        let text = lines.join("\n");
        match Scenario::parse("damaged.toml", &text, &mut OneFile(String::new())) {
            Err(error) => prop_assert!(error.to_string().starts_with("damaged.toml"), "{}", error),
            Ok(scenario) => {
                if let Ok(plan) = scenario.plan(0, None, None, &mut OneFile(String::new())) {
                    run_a_little(&plan);
                }
            }
        }
    }

    #[test]
    fn a_damaged_recording_is_an_error_or_a_workload(
        of_perf in any::<bool>(),
        open in any::<bool>(),
        changes in prop::collection::vec(change(), 1..5),
        digits in prop::collection::vec((0.0_f64..1.0, 0_u8..10), 0..20),
    ) {
        let text = if of_perf { PERF } else { TRACEFS };
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        changes.iter().for_each(|change| apply(&mut lines, change));
        let mut text = lines.join("\n").into_bytes();
        for (place, digit) in digits {
            let from = (place * text.len() as f64) as usize;
            if let Some(found) = text[from..].iter_mut().find(|byte| byte.is_ascii_digit()) {
                *found = b'0' + digit;
            }
        }
        let text = String::from_utf8(text).expect("digits for digits");
        if Recording::read(&mut text.as_bytes()).is_err() {
            return Ok(());
        }
        let how = if open { "open" } else { "closed" };
        match replayed(how, &mut OneFile(text)) {
            Ok(plan) => run_a_little(&plan),
            Err(error) => prop_assert!(error.to_string().starts_with("replayed.toml"), "{}", error),
        }
    }
}

#[test]
fn whole_recordings_are_workloads() {
    for text in [PERF, TRACEFS] {
        for how in ["open", "closed"] {
            let plan = replayed(how, &mut OneFile(text.to_owned())).expect("as recorded");
            assert!(!plan.workloads[0].tasks.is_empty());
            run_a_little(&plan);
        }
    }
}

fn replayed(how: &str, files: &mut OneFile) -> Result<Plan, ScenarioError> {
    let scenario = format!(
        "name = \"r\"\nduration = \"1s\"\n[machine]\nshape = \"2\"\n\
         [[workload]]\nname = \"w\"\nkind = \"replay\"\nfile = \"t\"\nloop = \"{how}\"\n"
    );
    Scenario::parse("replayed.toml", &scenario, files)?.plan(0, None, None, files)
}
