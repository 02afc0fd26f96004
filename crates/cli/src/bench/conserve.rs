//! `quotient bench conserve`: does a processor idle while tasks wait?
//!
//! Each row keeps more runnable tasks than workers, with polls of one length, on plain tokio and on Quotient in turn, and reads the
//! process's CPU clock: *busy* is CPU time by wall time. What the operating system does with the workers (it may put both on
//! one processor for a while) is in both figures alike, and is shown by what the threads *asked* for: the time that they ran or
//! waited for a processor.
//!
//! A round is both sides, one after the other. One beside which other processes or the host took more than [`OTHERS_MAX`] from either
//! does not count and is played again, up to [`TRIES`] times: processors that others had were not idle, and 300 ms
//! of one side meet a compiler that the other does not. (A median of nine was 0.891 so, where no processor idled for a tick.)
//! Medians are of the rounds that count; without any, the row is not judged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quotient_validation::machine::{Busy, Threads};
use serde::Serialize;

use super::hog::{self, Polls};
use super::statistics::Spread;
use super::{ConserveArguments, arena, print_json};
use crate::demo::clock::process_cpu;
use crate::failure::Failure;

/// Lengths of polls. Unit: microseconds.
const POLLS_US: [u64; 5] = [100, 1_000, 3_000, 10_000, 50_000];
/// Tasks a worker: the fewest that still leave a choice, and a crowd.
const TASKS_PER_WORKER: [usize; 2] = [1, 4];
/// One round of one side. Long polls end at different times, so that it is some multiples of the longest.
const INTERVAL: Duration = Duration::from_millis(300);
/// How long tasks run before the clocks are read.
const WARM_UP: Duration = Duration::from_millis(30);
/// Least part of plain tokio's busy processors that Quotient should keep busy.
const GOAL: f64 = 0.97;
/// What others may take from a side of a round that counts, as the kernel's ticks tell. Unit: CPUs. Default 0.1: three ticks of 10 ms in
/// an interval.
const OTHERS_MAX: f64 = 0.1;
/// Rounds that are played for each that is asked for, at most. Default 6: four minutes for all rows on a machine that is busy.
const TRIES: u32 = 6;

/// What one side kept busy, and asked for, in one round. Unit: processors.
#[derive(Clone, Copy, Debug)]
struct Round {
    busy: f64,
    asked: f64,
    /// What others had meanwhile; nothing where the machine does not say.
    others: f64,
}

/// One row.
#[derive(Debug, Serialize)]
struct Outcome {
    poll_us: u64,
    tasks: usize,
    workers: usize,
    tokio_busy: Spread,
    quotient_busy: Spread,
    /// Of the medians: Quotient's by tokio's.
    busy_ratio: f64,
    /// The same of what threads asked for; nothing where the kernel does not say.
    asked_ratio: Option<f64>,
    goal: f64,
    /// Rounds that count, and those that others disturbed.
    rounds: usize,
    disturbed: usize,
    /// Nothing if no round counts: the figures are of all then.
    met: Option<bool>,
}

/// Measures all rows and prints a table, or one JSON object.
///
/// # Errors
/// When a runtime or scheduler cannot be built.
pub fn run(arguments: &ConserveArguments) -> Result<(), Failure> {
    let workers = arena::worker_counts().into_iter().max().unwrap_or(1);
    let rounds = if arguments.quick { 1 } else { arguments.rounds };
    if !arguments.json {
        println!(
            "busy processors: median (min max) over {rounds} rounds in turn beside which others had at most {OTHERS_MAX} CPUs"
        );
        println!(
            "{:>8} {:>6} {:>22} {:>22} {:>7} {:>7} {:>7}",
            "poll us", "tasks", "tokio", "quotient", "busy", "asked", "counted"
        );
    }
    let mut outcomes = Vec::new();
    for poll_us in POLLS_US {
        let work = hog::calibrate(Duration::from_micros(poll_us));
        for tasks_per_worker in TASKS_PER_WORKER {
            // One more than workers at least: somebody always waits.
            let tasks = workers * tasks_per_worker + 1;
            let outcome = row(poll_us, tasks, workers, work, rounds)?;
            if !arguments.json {
                print_row(&outcome);
            }
            outcomes.push(outcome);
        }
    }
    if arguments.json {
        print_json(&serde_json::json!({ "rows": outcomes }))?;
    }
    Ok(())
}

fn row(
    poll_us: u64,
    tasks: usize,
    workers: usize,
    work: u64,
    rounds: u32,
) -> Result<Outcome, Failure> {
    let (mut counted, mut disturbed) = (Vec::new(), Vec::new());
    for _ in 0..rounds.saturating_mul(TRIES) {
        let round = [
            on_tokio(tasks, workers, work)?,
            on_quotient(tasks, workers, work)?,
        ];
        if round.iter().all(|side| side.others <= OTHERS_MAX) {
            counted.push(round);
        } else {
            disturbed.push(round);
        }
        if counted.len() == rounds as usize {
            break;
        }
    }
    let judged = if counted.is_empty() {
        &disturbed
    } else {
        &counted
    };
    let [tokio, quotient] = [0, 1].map(|side| judged.iter().map(|round| round[side]).collect());
    let spread = |side: &Vec<Round>, of: fn(&Round) -> f64| {
        Spread::of(&side.iter().map(of).collect::<Vec<_>>())
            .ok_or_else(|| Failure::during("cannot tell what was measured")("no rounds"))
    };
    let tokio_busy = spread(&tokio, |round| round.busy)?;
    let quotient_busy = spread(&quotient, |round| round.busy)?;
    let tokio_asked = spread(&tokio, |round| round.asked)?.median;
    let quotient_asked = spread(&quotient, |round| round.asked)?.median;
    let busy_ratio = quotient_busy.median / tokio_busy.median;
    Ok(Outcome {
        poll_us,
        tasks,
        workers,
        tokio_busy,
        quotient_busy,
        busy_ratio,
        asked_ratio: (tokio_asked > 0.0).then(|| quotient_asked / tokio_asked),
        goal: GOAL,
        rounds: counted.len(),
        disturbed: disturbed.len(),
        met: (!counted.is_empty()).then_some(busy_ratio >= GOAL),
    })
}

fn print_row(outcome: &Outcome) {
    let side =
        |spread: &Spread| format!("{:.3} ({:.3} {:.3})", spread.median, spread.min, spread.max);
    println!(
        "{:>8} {:>6} {:>22} {:>22} {}{:>6.3} {:>7} {:>7}",
        outcome.poll_us,
        outcome.tasks,
        side(&outcome.tokio_busy),
        side(&outcome.quotient_busy),
        match outcome.met {
            Some(true) => ' ',
            Some(false) => '!',
            None => '?',
        },
        outcome.busy_ratio,
        outcome
            .asked_ratio
            .map_or("-".to_owned(), |ratio| format!("{ratio:.3}")),
        format!("{}/{}", outcome.rounds, outcome.rounds + outcome.disturbed),
    );
}

fn on_tokio(tasks: usize, workers: usize, work: u64) -> Result<Round, Failure> {
    let runtime = arena::runtime(workers)?;
    let round = measure(tasks, |polls, stop| {
        drop(runtime.spawn(hog::hog(work, polls, stop)));
    });
    runtime.shutdown_timeout(Duration::from_secs(5));
    Ok(round)
}

fn on_quotient(tasks: usize, workers: usize, work: u64) -> Result<Round, Failure> {
    let (runtime, scheduler) = arena::scheduler(workers)?;
    let group = scheduler
        .group("bench")
        .and_then(|builder| builder.create())
        .map_err(Failure::during("cannot create a group"))?;
    let round = measure(tasks, |polls, stop| {
        drop(group.spawn(hog::hog(work, polls, stop)));
    });
    runtime.block_on(scheduler.shutdown());
    runtime.shutdown_timeout(Duration::from_secs(5));
    Ok(round)
}

/// Spawns the tasks, and reads the clocks around the interval.
fn measure(tasks: usize, spawn: impl Fn(Arc<Polls>, Arc<AtomicBool>)) -> Round {
    let stop = Arc::new(AtomicBool::new(false));
    for _ in 0..tasks {
        spawn(Arc::new(Polls::default()), stop.clone());
    }
    std::thread::sleep(WARM_UP);
    let started = Instant::now();
    let before = (process_cpu(), asked(), Busy::now());
    std::thread::sleep(INTERVAL);
    let after = (process_cpu(), asked(), Busy::now());
    let wall = started.elapsed().as_secs_f64();
    let others = match (before.2, after.2) {
        (Some(before), Some(after)) => after.others_since(before, wall),
        _ => 0.0,
    };
    stop.store(true, Ordering::Relaxed);
    Round {
        busy: after.0.saturating_sub(before.0).as_secs_f64() / wall,
        asked: after.1.saturating_sub(before.1).as_secs_f64() / wall,
        others,
    }
}

/// For how long the threads of this process ran or waited for a processor, as Linux counts; zero elsewhere.
fn asked() -> Duration {
    let threads = Threads::now();
    threads.ran + threads.waited
}
