//! `quotient bench sim`: how fast the simulator is, on machines of 2 to 512 CPUs.

use clap::Args;
use quotient_sim::{Simulation, speed};
use quotient_trace::Discard;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use super::print_json;
use crate::failure::Failure;

/// Repetitions of a row, of which the fastest counts: whatever else runs on the machine can only slow it down.
const REPETITIONS: usize = 3;

/// What `bench sim` takes.
#[derive(Debug, Clone, Args)]
pub struct SimArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// A tenth of the simulated time, once: a look, not a figure
    #[arg(long)]
    quick: bool,
}

/// One machine.
#[derive(Debug, Serialize)]
struct Row {
    load: &'static str,
    cpus: u32,
    tasks: u32,
    /// What the engine handled: the ends of steps and of sleeps, and everything that a trace would hold (switches,
    /// wake-ups, ticks, migrations).
    events: u64,
    /// The part of them that a trace would hold.
    trace_events: u64,
    events_per_cpu_s: f64,
    /// Simulated time over CPU time.
    realtime_ratio: f64,
    simulated_s: f64,
    cpu_s: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
}

/// Measures and prints a table, or one JSON object.
///
/// # Errors
/// When a plan of this program does not run, which is a bug.
pub fn run(arguments: &SimArguments) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let plain = speed::SIZES.map(|(cpus, tasks)| ("plain", cpus, tasks));
    let (cpus, tasks) = speed::HEAVY;
    for (load, cpus, tasks) in plain.into_iter().chain([("heavy", cpus, tasks)]) {
        let repetitions = if arguments.quick { 1 } else { REPETITIONS };
        let mut best: Option<Row> = None;
        for _ in 0..repetitions {
            let row = measure(load, cpus, tasks, if arguments.quick { 0.1 } else { 1.0 })?;
            if best.as_ref().is_none_or(|best| row.cpu_s < best.cpu_s) {
                best = Some(row);
            }
        }
        rows.extend(best);
    }
    let results = Results { rows };
    if arguments.json {
        return print_json(&results);
    }
    println!(
        "{:<6} {:>5} {:>7} {:>10} {:>16} {:>10}",
        "load", "cpus", "tasks", "events", "events/CPU s", "real time"
    );
    for row in &results.rows {
        println!(
            "{:<6} {:>5} {:>7} {:>10} {:>14.2} M {:>9.1}x",
            row.load,
            row.cpus,
            row.tasks,
            row.events,
            row.events_per_cpu_s / 1e6,
            row.realtime_ratio
        );
    }
    Ok(())
}

fn measure(load: &'static str, cpus: u32, tasks: u32, scale: f64) -> Result<Row, Failure> {
    let plan = match load {
        "heavy" => speed::heavy(cpus, tasks, scale),
        _ => speed::plan(cpus, tasks, scale),
    };
    let broken = Failure::during::<String>;
    let mut simulation = Simulation::new(&plan, Discard)
        .map_err(|error| broken("a plan of this program")(error.to_string()))?;
    let begin = cpu_seconds();
    simulation
        .run()
        .map_err(|error| broken("a plan of this program")(error.to_string()))?;
    let cpu_s = (cpu_seconds() - begin).max(1e-9);
    let simulated_s = simulation.now().as_nanos() as f64 / 1e9;
    let events = simulation.events() + simulation.moments();
    Ok(Row {
        load,
        cpus,
        tasks,
        events,
        trace_events: simulation.events(),
        events_per_cpu_s: events as f64 / cpu_s,
        realtime_ratio: simulated_s / cpu_s,
        simulated_s,
        cpu_s,
    })
}

/// CPU time of this thread, which is the one that simulates.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
