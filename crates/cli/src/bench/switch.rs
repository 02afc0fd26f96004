//! `quotient bench switch`: what a wake-up, a switch and a task cost, against plain tokio in the same run.
//!
//! A row is measured round by round, both sides in every round, the first one changing from round to round: whatever the
//! machine does besides meets both. Figures are medians over the rounds.

use std::io::Write;

use serde::Serialize;

use super::arena::{Arena, Side, worker_counts};
use super::scale;
use super::statistics::Spread;
use super::workload::{Measured, Shape, YieldKind};
use super::{SwitchArguments, print_json, selected};
use crate::failure::Failure;

/// Rounds a row, without `--quick`. Odd, so that the median is a round.
const ROUNDS: usize = 9;
/// Rounds of the rows with a million tasks, which take longer.
const ROUNDS_LONG: usize = 5;
/// Rounds a row with `--quick`.
const ROUNDS_QUICK: usize = 3;
/// How much less work a round has with `--quick`.
const QUICK_DIVISOR: u64 = 10;

/// A row of the table before it is measured.
struct Plan {
    bench: &'static str,
    shape: Shape,
    /// So many that plain tokio takes 50 to 300 ms on a machine of 2026.
    operations: u64,
    rounds: usize,
    /// The ratio to reach, with 1 and with 2 workers, where one is set.
    goals: [Option<f64>; 2],
}

const fn plan(bench: &'static str, shape: Shape, operations: u64, goals: [Option<f64>; 2]) -> Plan {
    Plan {
        bench,
        shape,
        operations,
        rounds: ROUNDS,
        goals,
    }
}

/// The rows. `tokio_ns` and `quotient_ns` are per operation, whose meaning [`Shape`] gives.
const PLANS: [Plan; 12] = [
    plan(
        "pingpong_notify",
        Shape::PingPongNotify,
        300_000,
        [Some(0.8), Some(0.5)],
    ),
    plan(
        "pingpong_oneshot",
        Shape::PingPongOneshot,
        200_000,
        [Some(0.8), Some(0.5)],
    ),
    plan(
        "pingpong_mpsc",
        Shape::PingPongMpsc,
        200_000,
        [Some(0.8), Some(0.5)],
    ),
    plan(
        "self_yield_1",
        Shape::Yields(YieldKind::SelfWake, 1),
        2_000_000,
        [None, None],
    ),
    plan(
        "self_yield_100",
        Shape::Yields(YieldKind::SelfWake, 100),
        2_000_000,
        [Some(0.8), Some(0.5)],
    ),
    plan(
        "self_yield_10k",
        Shape::Yields(YieldKind::SelfWake, 10_000),
        1_000_000,
        [None, None],
    ),
    plan(
        "tokio_yield_1",
        Shape::Yields(YieldKind::Tokio, 1),
        200_000,
        [Some(0.8), None],
    ),
    plan(
        "tokio_yield_100",
        Shape::Yields(YieldKind::Tokio, 100),
        1_000_000,
        [Some(0.8), None],
    ),
    plan(
        "tokio_yield_10k",
        Shape::Yields(YieldKind::Tokio, 10_000),
        1_000_000,
        [Some(1.0), Some(1.0)],
    ),
    Plan {
        bench: "spawn_join",
        shape: Shape::SpawnJoin,
        operations: 1_000_000,
        rounds: ROUNDS_LONG,
        goals: [Some(0.5), Some(0.5)],
    },
    plan(
        "spawn_await",
        Shape::SpawnAwait,
        100_000,
        [Some(0.6), Some(0.3)],
    ),
    plan("wake_10k", Shape::Wake(10_000), 400_000, [None, Some(0.9)]),
];

/// A measured row.
#[derive(Debug, Serialize)]
struct Row {
    bench: &'static str,
    workers: usize,
    /// Median nanoseconds an operation on plain tokio.
    tokio_ns: f64,
    /// The same on Quotient.
    quotient_ns: f64,
    /// `quotient_ns / tokio_ns`: below 1, Quotient is faster.
    ratio: f64,
    /// The ratio to reach, where one is set.
    goal: Option<f64>,
    operations: u64,
    rounds: usize,
    tokio: Spread,
    quotient: Spread,
    tokio_polls_per_operation: f64,
    quotient_polls_per_operation: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
    scale: scale::Results,
}

/// Measures everything and prints a table, or one JSON object.
///
/// # Errors
/// When a workload hangs, fails, or did not do what it should have done.
pub fn run(arguments: &SwitchArguments) -> Result<(), Failure> {
    let mut rows = Vec::new();
    if !arguments.json {
        print_head();
    }
    for workers in worker_counts() {
        let arena = Arena::new(workers)?;
        for plan in &PLANS {
            if !arguments.selects(plan.bench) {
                continue;
            }
            let row = measure(&arena, workers, plan, arguments.quick)?;
            if !arguments.json {
                print_row(&row);
            }
            rows.push(row);
        }
    }
    selected(&rows)?;
    let scale = match &arguments.only {
        Some(_) => scale::Results::default(),
        None => scale::measure(arguments.quick)?,
    };
    if arguments.json {
        return print_json(&Results { rows, scale });
    }
    scale::print(&scale);
    Ok(())
}

fn measure(arena: &Arena, workers: usize, plan: &Plan, quick: bool) -> Result<Row, Failure> {
    let (rounds, operations) = if quick {
        (ROUNDS_QUICK, plan.operations / QUICK_DIVISOR)
    } else {
        (plan.rounds, plan.operations)
    };
    // One small round each, unmeasured: allocators and caches warm up.
    arena.run(Side::Tokio, plan.shape, operations / QUICK_DIVISOR)?;
    arena.run(Side::Quotient, plan.shape, operations / QUICK_DIVISOR)?;
    let (mut tokio, mut quotient) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            tokio.push(arena.run(Side::Tokio, plan.shape, operations)?);
            quotient.push(arena.run(Side::Quotient, plan.shape, operations)?);
        } else {
            quotient.push(arena.run(Side::Quotient, plan.shape, operations)?);
            tokio.push(arena.run(Side::Tokio, plan.shape, operations)?);
        }
    }
    let (tokio_spread, quotient_spread) = (spread(&tokio)?, spread(&quotient)?);
    Ok(Row {
        bench: plan.bench,
        workers,
        tokio_ns: tokio_spread.median,
        quotient_ns: quotient_spread.median,
        ratio: quotient_spread.median / tokio_spread.median,
        goal: plan.goals[workers - 1],
        operations,
        rounds,
        tokio: tokio_spread,
        quotient: quotient_spread,
        tokio_polls_per_operation: polls_per_operation(&tokio),
        quotient_polls_per_operation: polls_per_operation(&quotient),
    })
}

fn spread(rounds: &[Measured]) -> Result<Spread, Failure> {
    let nanos: Vec<f64> = rounds.iter().map(Measured::nanos).collect();
    Spread::of(&nanos).ok_or_else(|| Failure::Run("a row without rounds".into()))
}

fn polls_per_operation(rounds: &[Measured]) -> f64 {
    let polls: u64 = rounds.iter().map(|round| round.polls).sum();
    let operations: u64 = rounds.iter().map(|round| round.operations).sum();
    polls as f64 / operations as f64
}

fn print_head() {
    println!(
        "ns an operation: median (min p25 p75 max) over interleaved rounds; ratio below 1 = Quotient is faster"
    );
    println!(
        "{:<17} {:>1} {:>42} {:>42} {:>6} {:>6}  {:>11}",
        "bench", "w", "tokio", "quotient", "ratio", "goal", "polls/op t q"
    );
}

fn print_row(row: &Row) {
    let goal = match row.goal {
        Some(goal) if row.ratio <= goal => format!("<={goal}"),
        Some(goal) => format!("!{goal}"),
        None => String::new(),
    };
    println!(
        "{:<17} {:>1} {:>42} {:>42} {:>6.3} {:>6}  {:>5.2} {:>5.2}",
        row.bench,
        row.workers,
        figures(&row.tokio),
        figures(&row.quotient),
        row.ratio,
        goal,
        row.tokio_polls_per_operation,
        row.quotient_polls_per_operation
    );
    // Rows appear as they are measured, also through a pipe.
    let _ = std::io::stdout().flush();
}

fn figures(spread: &Spread) -> String {
    format!(
        "{:.1} ({:.1} {:.1} {:.1} {:.1})",
        spread.median, spread.min, spread.p25, spread.p75, spread.max
    )
}
