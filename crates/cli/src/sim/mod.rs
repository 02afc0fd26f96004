//! `quotient sim`: runs a scenario under virtual time and compares what comes out with what is expected.

mod page;
pub mod progress;
mod table;

use std::path::{Path, PathBuf};

use clap::{Args, value_parser};
use quotient_sim::batch::{BatchError, Control, run_all, run_one};
use quotient_sim::scenario::{Finding, Folder, Scenario, ScenarioError};
use quotient_sim::{Kernel, Machine, Outcome, Plan};
use quotient_trace::{Html, JsonLines, Perfetto};
use serde::Serialize;

use crate::failure::{Failure, print};
use crate::json::print_versioned;
use crate::output::Output;
use progress::watched;

/// What `quotient sim` takes.
#[derive(Debug, Clone, Args)]
pub struct SimArguments {
    /// The scenario: a TOML file, see `scenarios/`
    scenario: PathBuf,
    /// Another machine: CORES, NODESxCORES or NODESxCORESxTHREADS, such as 8x10
    #[arg(long, value_name = "SHAPE", value_parser = machine)]
    machine: Option<Machine>,
    /// Another seed (any 64-bit number)
    #[arg(long)]
    seed: Option<u64>,
    /// Rules after a release of Linux instead of the scenario's own (ours, 6.6, 6.12, 6.18)
    #[arg(long, value_name = "RELEASE", value_parser = kernel)]
    kernel: Option<Kernel>,
    /// Ticks a second (1..=100000)
    #[arg(long, value_parser = value_parser!(u32).range(1..=100_000))]
    hz: Option<u32>,
    /// Only the run of that name; also the one that is recorded [default: all, and the first one is recorded]
    #[arg(long, value_name = "NAME")]
    run: Option<String>,
    /// Writes a page with pictures of the recorded run
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Writes the recorded run for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
    /// Writes the events of the recorded run, one JSON object a line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Runs computed at the same time (1..=1024) [default: as many as there are processors]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    jobs: Option<u16>,
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Reads the name of a preset.
///
/// # Errors
/// What would be accepted.
pub fn kernel(name: &str) -> Result<Kernel, String> {
    Kernel::parse(name).ok_or_else(|| {
        let names = Kernel::ALL.map(Kernel::name).join(", ");
        format!("there is no preset {name:?}, only {names}")
    })
}

/// Gives a plan other ticks and the rules of a kernel, if asked to.
pub fn set_kernel(plan: &mut Plan, kernel: Option<Kernel>, hz: Option<u32>) {
    plan.machine.hz = hz.unwrap_or(plan.machine.hz);
    if let Some(kernel) = kernel {
        kernel.apply(plan);
    }
}

/// Reads a machine's shape.
///
/// # Errors
/// What would be accepted.
pub fn machine(shape: &str) -> Result<Machine, String> {
    Machine::parse(shape).map_err(|error| error.to_string())
}

#[derive(Serialize)]
struct Report<'a> {
    scenario: &'a str,
    about: &'a str,
    sources: &'a [String],
    /// Under whose rules, if not the scenario's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<&'static str>,
    runs: Vec<RunReport<'a>>,
    expectations: &'a [Finding],
    met: bool,
}

#[derive(Serialize)]
struct RunReport<'a> {
    name: &'a str,
    outcome: &'a Outcome,
}

/// Runs a scenario.
///
/// # Errors
/// A scenario that cannot be used, a file that cannot be written, expectations that are not met on the scenario's own
/// machine and seed, or Ctrl-C.
pub fn run(arguments: &SimArguments) -> Result<(), Failure> {
    let scenario = Scenario::load(&arguments.scenario)
        .map_err(|error| unusable(&arguments.scenario, &error))?;
    let names: Vec<String> = scenario.runs().map(str::to_owned).collect();
    let chosen =
        match &arguments.run {
            None => None,
            Some(wanted) => Some(names.iter().position(|name| name == wanted).ok_or_else(
                || Failure::Usage(format!("no run {wanted:?}; there are {names:?}")),
            )?),
        };
    let mut files = Folder::of(&arguments.scenario);
    let mut plans = Vec::new();
    for run in 0..names.len() {
        let plan = scenario.plan(run, arguments.machine.as_ref(), arguments.seed, &mut files);
        let mut plan = plan.map_err(|error| Failure::Usage(error.to_string()))?;
        if plan.workloads.is_empty() {
            let name = arguments.scenario.display();
            return Err(Failure::Unreadable(format!(
                "{name}: 0 workloads, and nothing runs: needs one [[workload]] or more"
            )));
        }
        set_kernel(&mut plan, arguments.kernel, arguments.hz);
        plans.push(plan);
    }
    let recorded = chosen.unwrap_or(0);
    if let Some(only) = chosen {
        plans = vec![plans.swap_remove(only)];
    }
    let written = Files::create(arguments)?;
    let outcomes = compute(&plans, arguments.jobs)?;
    let findings = if chosen.is_some() {
        Vec::new()
    } else {
        let judged = scenario.judge(&outcomes);
        judged.map_err(|error| Failure::Usage(error.to_string()))?
    };
    let met = findings.iter().all(|finding| finding.met);
    let shown: Vec<RunReport<'_>> = names
        .iter()
        .enumerate()
        .filter(|(index, _)| chosen.is_none_or(|chosen| chosen == *index))
        .map(|(_, name)| name.as_str())
        .zip(&outcomes)
        .map(|(name, outcome)| RunReport { name, outcome })
        .collect();
    let report = Report {
        scenario: scenario.name(),
        about: scenario.about(),
        sources: scenario.sources(),
        kernel: arguments.kernel.map(Kernel::note),
        runs: shown,
        expectations: &findings,
        met,
    };
    let place = if chosen.is_some() { 0 } else { recorded };
    record(
        arguments,
        written,
        &scenario,
        &plans[place],
        &page::front(&report, place),
    )?;
    if arguments.json {
        print_versioned("quotient-sim/1", &report)?;
    } else {
        print(&table::table(&report))?;
    }
    let is_own = arguments.machine.is_none()
        && arguments.seed.is_none()
        && arguments.kernel.is_none()
        && arguments.hz.is_none();
    if is_own && !met {
        return Err(Failure::Run("not every expectation was met".into()));
    }
    Ok(())
}

/// What a failed batch means for the user.
pub fn failure(error: BatchError) -> Failure {
    match error {
        BatchError::Plan(error) => Failure::Usage(error.to_string()),
        BatchError::Run(error) => Failure::Run(error.to_string()),
        BatchError::Stopped => Failure::Interrupted,
    }
}

/// A file that is not there is a wrong argument; one that is no scenario, or a folder in place of one, is wrong input.
pub fn unusable(path: &Path, error: &ScenarioError) -> Failure {
    if path.is_dir() {
        let name = path.display();
        Failure::Unreadable(format!("{name}: a folder, and a scenario is one file"))
    } else if path.is_file() {
        Failure::Unreadable(error.to_string())
    } else {
        Failure::Usage(error.to_string())
    }
}

fn compute(plans: &[Plan], jobs: Option<u16>) -> Result<Vec<Outcome>, Failure> {
    watched(plans.len(), |control, threads| {
        let threads = jobs.map_or(threads, usize::from);
        run_all(plans.len(), threads, control, &|index| plans[index].clone())
    })
}

/// The files that were asked for, opened before anything is computed: what cannot be written is said at once.
struct Files {
    report: Option<Output>,
    perfetto: Option<Output>,
    trace: Option<Output>,
}

impl Files {
    fn create(arguments: &SimArguments) -> Result<Files, Failure> {
        let create = |path: &Option<PathBuf>| path.as_deref().map(Output::create).transpose();
        Ok(Files {
            report: create(&arguments.report)?,
            perfetto: create(&arguments.perfetto)?,
            trace: create(&arguments.trace)?,
        })
    }
}

/// Runs a plan again with everybody listening who was asked for.
fn record(
    arguments: &SimArguments,
    files: Files,
    scenario: &Scenario,
    plan: &Plan,
    front: &str,
) -> Result<(), Failure> {
    let Files {
        report: page,
        perfetto,
        trace,
    } = files;
    if page.is_none() && perfetto.is_none() && trace.is_none() {
        return Ok(());
    }
    let sink = (
        page.as_ref().map(|_| Html::new()),
        (perfetto.map(Perfetto::new), trace.map(JsonLines::new)),
    );
    let (_, (html, (perfetto, trace))) =
        watched(1, |control: &Control, _| run_one(plan, sink, control))?;
    if let (Some(html), Some(mut page), Some(path)) = (html, page, &arguments.report) {
        let written = html.finish_with(scenario.name(), front, &mut page);
        finish(written.map(|()| page), path)?;
    }
    if let (Some(sink), Some(path)) = (perfetto, &arguments.perfetto) {
        finish(sink.finish(), path)?;
    }
    if let (Some(sink), Some(path)) = (trace, &arguments.trace) {
        finish(sink.finish(), path)?;
    }
    Ok(())
}

fn finish(written: std::io::Result<Output>, path: &Path) -> Result<(), Failure> {
    written
        .map_err(Failure::writing(&path.display().to_string()))?
        .keep()?;
    tell(path);
    Ok(())
}

fn tell(path: &Path) {
    eprintln!("written: {}", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_read_or_refused() {
        assert_eq!(machine("8x10").map(|machine| machine.cpus()), Ok(80));
        assert!(machine("0x10").unwrap_err().contains("nodes = 0"));
    }
}
