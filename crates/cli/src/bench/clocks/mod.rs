//! `quotient bench clocks`: what it costs to read how much CPU time a whole has used, by how many threads read.
//!
//! These are the tables of the kernel's change of August 2016 that stopped the process clock from bringing every thread up
//! to date (2 to 128 threads make 5,000,000 calls together), with Quotient's group clock beside the kernel's two and beside
//! what the change removed. All threads are members of the whole that they read: threads of this process, metered for one
//! group. All clocks are read by the same threads in turn, round by round.

mod checker;
mod crowd;
mod naive;

use std::time::Duration;

use clap::{Args, value_parser};
use quotient::{Group, Scheduler};
use serde::Serialize;
use tokio::runtime::Runtime;

use self::checker::Checked;
use self::crowd::{Clock, Crowd};
use super::goal::{self, Goal};
use super::statistics::Spread;
use super::{arena, print_json};
use crate::failure::Failure;

/// Numbers of threads, those of the kernel's table.
const THREADS: [usize; 10] = [2, 5, 8, 12, 21, 30, 48, 79, 110, 128];
/// The same with `--quick`.
const THREADS_QUICK: [usize; 4] = [2, 12, 48, 128];
/// Calls of all threads together, as in the kernel's table.
const CALLS: u64 = 5_000_000;
/// The same with `--quick`.
const CALLS_QUICK: u64 = 200_000;
/// The naive clock gets this part of the calls: at 128 threads each costs many microseconds.
const NAIVE_PART: u64 = 20;
/// Rounds; the figure is their median.
const ROUNDS: usize = 3;
/// Readings that are checked for steps back.
const READS: u64 = 100_000_000;
/// The same with `--quick`.
const READS_QUICK: u64 = 2_000_000;
/// How many times cheaper than the process clock the group clock is to be with all threads.
const CHEAPER_MIN: f64 = 40.0;
/// How much dearer than with two threads it may be.
const GROWTH_MAX: f64 = 1.5;
/// How long everything may take to become quiet.
const PATIENCE: Duration = Duration::from_secs(10);

/// What `bench clocks` takes.
#[derive(Debug, Clone, Args)]
pub struct ClocksArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Fewer calls, four numbers of threads, one round: a look, not a figure
    #[arg(long)]
    quick: bool,
    /// Readings checked for steps back (1..=10^12) [default: 100000000, or 2000000 with --quick]
    #[arg(long, value_parser = value_parser!(u64).range(1..=1_000_000_000_000))]
    reads: Option<u64>,
    /// Rounds, whose median counts (1..=99) [default: 3, or 1 with --quick]
    #[arg(long, value_parser = value_parser!(u16).range(1..=99))]
    rounds: Option<u16>,
}

/// One clock, read by so many threads.
#[derive(Debug, Serialize)]
struct Row {
    threads: usize,
    clock: &'static str,
    /// Time from the first call to the last, by the number of calls of all threads.
    ns_per_call: f64,
    /// The same for all calls of the table, 5,000,000.
    elapsed_s: f64,
    /// Calls that were made in a round.
    calls: u64,
    /// Threads that the group counted as metered meanwhile.
    members: usize,
    /// Readings that were less than the thread's last one.
    steps_back: u64,
    /// The rounds.
    ns_spread: Option<Spread>,
}

#[derive(Debug, Serialize)]
struct Results {
    /// Processors.
    cpus: usize,
    rows: Vec<Row>,
    monotonic: Checked,
    goals: Vec<Goal>,
}

/// Measures and prints a table, or one JSON object.
///
/// # Errors
/// When threads cannot be made, or the group does not count them all as members.
pub fn run(arguments: &ClocksArguments) -> Result<(), Failure> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let (runtime, scheduler) = arena::scheduler(cpus.min(2))?;
    let group = scheduler
        .group("clocks")
        .and_then(|builder| builder.create())
        .map_err(Failure::during("cannot create a group"))?;
    let quick = arguments.quick;
    let threads: &[usize] = if quick { &THREADS_QUICK } else { &THREADS };
    let rounds = arguments
        .rounds
        .map_or(if quick { 1 } else { ROUNDS }, usize::from);
    let reads = arguments
        .reads
        .unwrap_or(if quick { READS_QUICK } else { READS });
    let mut rows = Vec::new();
    for &threads in threads {
        let calls = if quick { CALLS_QUICK } else { CALLS };
        rows.extend(measure(&group, threads, calls, rounds)?);
    }
    let monotonic = check_steps(&runtime, &scheduler, &group, reads)?;
    let results = Results {
        cpus,
        goals: goals(&rows, &monotonic),
        rows,
        monotonic,
    };
    runtime.block_on(scheduler.shutdown());
    if arguments.json {
        return print_json(&results);
    }
    print(&results);
    Ok(())
}

/// One row a clock.
fn measure(group: &Group, threads: usize, calls: u64, rounds: usize) -> Result<Vec<Row>, Failure> {
    let mut crowd = Crowd::gather(group, threads)?;
    let mut figures: Vec<(Vec<f64>, u64)> = vec![(Vec::new(), 0); Clock::ALL.len()];
    for _ in 0..rounds {
        for (clock, (nanos, steps_back)) in Clock::ALL.into_iter().zip(&mut figures) {
            let lap = crowd.read(clock, part(clock, calls));
            nanos.push(lap.elapsed.as_secs_f64() * 1e9 / lap.calls as f64);
            *steps_back += lap.steps_back;
        }
    }
    let members = crowd.members();
    crowd.dismiss()?;
    if members != threads {
        return Err(Failure::Run(format!(
            "{members} threads are members of the group, {threads} should be"
        )));
    }
    let row = |(clock, (nanos, steps_back)): (Clock, (Vec<f64>, u64))| {
        let spread = Spread::of(&nanos);
        let ns_per_call = spread.map_or(f64::NAN, |spread| spread.median);
        Row {
            threads,
            clock: clock.name(),
            ns_per_call,
            elapsed_s: ns_per_call * CALLS as f64 / 1e9,
            calls: part(clock, calls),
            members,
            steps_back,
            ns_spread: spread,
        }
    };
    Ok(Clock::ALL.into_iter().zip(figures).map(row).collect())
}

fn part(clock: Clock, calls: u64) -> u64 {
    match clock {
        Clock::Naive => calls / NAIVE_PART,
        // Cheap enough to be made in full, and too few would measure the start of the threads.
        Clock::Group | Clock::GroupSum => CALLS,
        Clock::Process | Clock::Times => calls,
    }
}

/// Readers that hear of each other, on threads and in tasks, while the group works.
fn check_steps(
    runtime: &Runtime,
    scheduler: &Scheduler,
    group: &Group,
    reads: u64,
) -> Result<Checked, Failure> {
    let checked = checker::run(runtime, group, reads)?;
    // Every task has ended, so the sum over the groups must be what the root says.
    let end = std::time::Instant::now() + PATIENCE;
    while scheduler.cpu_time() != group.cpu_time() {
        if std::time::Instant::now() > end {
            return Err(Failure::Run(format!(
                "the only group has used {:?}, all have used {:?}",
                group.cpu_time(),
                scheduler.cpu_time()
            )));
        }
        std::thread::yield_now();
    }
    Ok(checked)
}

fn goals(rows: &[Row], monotonic: &Checked) -> Vec<Goal> {
    let figure = |clock: Clock, threads: usize| {
        rows.iter()
            .find(|row| row.clock == clock.name() && row.threads == threads)
            .map_or(f64::NAN, |row| row.ns_per_call)
    };
    let most = THREADS[THREADS.len() - 1];
    let least = THREADS[0];
    let steps_back: u64 = rows
        .iter()
        .filter(|row| row.clock.starts_with("group"))
        .map(|row| row.steps_back)
        .sum();
    vec![
        Goal::at_least(
            "process clock / group clock, 128 threads",
            figure(Clock::Process, most) / figure(Clock::Group, most),
            CHEAPER_MIN,
        ),
        Goal::at_most(
            "group clock, 128 threads / 2 threads",
            figure(Clock::Group, most) / figure(Clock::Group, least),
            GROWTH_MAX,
        ),
        Goal::exactly(
            "steps back of the group clock",
            (steps_back + monotonic.steps_back) as f64,
            0.0,
        ),
    ]
}

fn print(results: &Results) {
    println!(
        "Reading the CPU time of a whole with all threads in it; ns a call, {} processors\n",
        results.cpus
    );
    print!("{:>7}", "threads");
    for clock in Clock::ALL {
        print!(" {:>13}", clock.name());
    }
    println!(" {:>14}", "process/group");
    let by_threads = results.rows.chunks(Clock::ALL.len());
    for rows in by_threads {
        print!("{:>7}", rows[0].threads);
        for row in rows {
            print!(" {:>13.1}", row.ns_per_call);
        }
        println!(" {:>13.1}x", rows[0].ns_per_call / rows[2].ns_per_call);
    }
    println!(
        "\nmonotonicity: {} readings by {} readers that hear of each other, steps_back: {}",
        results.monotonic.reads, results.monotonic.readers, results.monotonic.steps_back
    );
    goal::print(&results.goals);
}
