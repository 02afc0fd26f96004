//! `quotient bench bandwidth`: is a limit kept, is it used up, and what do the windows look like?
//!
//! Every row runs one tree of limited groups alone, on as many virtual CPUs as the machine has CPUs, with tasks that note
//! when they ran. Two clocks are compared with the ideal over whole periods: what the scheduler charged, and what the
//! tasks' threads used by the system's own clock. The fullest window of one period is looked for at every offset, not
//! only at the period's own boundaries. With `--kernel` the same groups run as threads in cgroups of the real kernel.
//!
//! A row is `disturbed` when other processes used CPUs that it needed; its figures then say nothing about a limit.

mod rows;

use std::time::Duration;

use clap::{Args, value_parser};
use quotient_validation::cgroup::Controller;
use quotient_validation::runtime::{self, Settings};
use quotient_validation::{Interrupt, Problem, kernel};
use serde_json::json;

use self::rows::{Plan, Row};
use super::{print_json, selected};
use crate::failure::Failure;

/// What `bench bandwidth` takes.
#[derive(Debug, Clone, Args)]
pub struct BandwidthArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// One second a row, or three periods where they are longer: a look, not a figure
    #[arg(long)]
    quick: bool,
    /// Every combination of limit, spinners and polls: ten minutes at the default length
    #[arg(long)]
    full: bool,
    /// Seconds a row (1..=600)
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// The same groups under the real kernel beside each row; needs root and a cgroup cpu controller
    #[arg(long)]
    kernel: bool,
    /// Only rows whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Measures all rows and prints a table, or one JSON object.
///
/// # Errors
/// When a scheduler or group cannot be built, or on Ctrl-C.
pub fn run(arguments: &BandwidthArguments) -> Result<(), Failure> {
    let interrupt = on_interrupt()?;
    let (controller, kernel_skipped) = match arguments.kernel.then(Controller::find) {
        None => (None, None),
        Some(Ok(controller)) => (Some(controller), None),
        Some(Err(problem)) => (None, Some(problem.to_string())),
    };
    if let Some(reason) = &kernel_skipped {
        eprintln!("without the kernel's rows: {reason}");
    }
    if !arguments.json {
        println!("{}", rows::header());
    }
    let mut rows: Vec<Row> = Vec::new();
    for plan in rows::plans(arguments.full) {
        let wanted = arguments.only.as_ref();
        if wanted.is_some_and(|text| !plan.scenario.name.contains(text.as_str())) {
            continue;
        }
        let found = measure(
            &plan,
            length(arguments, &plan),
            controller.as_ref(),
            &interrupt,
        )
        .map_err(failure)?;
        if !arguments.json {
            found.iter().for_each(|row| println!("{row}"));
        }
        rows.extend(found);
    }
    selected(&rows)?;
    if arguments.json {
        return print_json(&json!({
            "cpus": quotient_validation::outcome::cpus(),
            "kernel_skipped": kernel_skipped,
            "rows": rows,
        }));
    }
    Ok(())
}

fn length(arguments: &BandwidthArguments, plan: &Plan) -> Duration {
    let seconds = if arguments.quick {
        1
    } else {
        arguments.seconds
    };
    Duration::from_secs(seconds).max(plan.scenario.period() * 3)
}

fn measure(
    plan: &Plan,
    length: Duration,
    controller: Option<&Controller>,
    interrupt: &Interrupt,
) -> Result<Vec<Row>, Problem> {
    let settings = Settings {
        poll: plan.poll,
        ..Settings::like_this_machine()
    };
    let outcome = runtime::run(settings, &plan.scenario, length, interrupt)?;
    let mut rows = rows::of(plan, &outcome, settings.vcpus);
    if let Some(controller) = controller {
        let outcome = kernel::run(controller, &plan.scenario, length, interrupt)?;
        rows.extend(rows::of(plan, &outcome, settings.vcpus));
    }
    Ok(rows)
}

/// A flag that Ctrl-C raises, so that cgroups are removed.
///
/// # Errors
/// When the signal cannot be handled.
pub fn on_interrupt() -> Result<Interrupt, Failure> {
    let interrupt = Interrupt::default();
    let flag = interrupt.clone();
    ctrlc::set_handler(move || flag.raise()).map_err(Failure::during("cannot handle Ctrl-C"))?;
    Ok(interrupt)
}

/// What a problem of a run means for the command.
pub fn failure(problem: Problem) -> Failure {
    match problem {
        Problem::Interrupted => Failure::Interrupted,
        other => Failure::Run(other.to_string()),
    }
}
