//! `quotient bench polls`: what long polls do to others, and what interrupting them costs.
//!
//! | rows | what |
//! |---|---|
//! | `echo` | TCP echo, open loop (`echo`), beside hogs whose single polls take 0.1 ms to for ever (`load`), in every mode (`mode`): plain tokio; the hogs on a second runtime, as it is and with its threads at nice 10 or in a group of the kernel's; Quotient without and with preemption, with equal weights, and with the hogs limited to 10 ms in 100 |
//! | `shares`, `limits` | hogs of several weights on one and two virtual CPUs, or under a limit, nobody else; by the hogs' own thread clocks |
//! | `costs` | stopping a thread and letting it go on; from one borne poll to the next; a wake-up beside borne polls; what 1,800 of them a second take from the hogs |
//! | `instructions` | of ping-pong and yields with preemption off, and on and never needed, counted by valgrind (`instructions`) |
//!
//! Hogs are tasks, closures of `spawn_blocking`, or jobs of a rayon pool. A *round* of `echo` is all modes with the same hogs in turn, and
//! the victim alone at its end. It counts if the victim is well then and the host steals little in each of its rows; what does not
//! count is shown, and left out of the ratios (medians of the rounds that count, by the row of two runtimes beside them).

mod costs;
mod echo;
mod instructions;
mod load;
mod mode;
mod print;
mod row;
mod shares;
mod sides;
mod wakes;

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use serde::Serialize;

pub use self::instructions::{PollsProbeArguments, probe};
use self::mode::{Kind, Mode};
use self::row::{ALONE_P99_MAX_US, Ratio, Round, Row, STEAL_MAX};
use super::goal::Goal;
use super::{arena, print_json, selected};
use crate::failure::Failure;

/// What `bench polls` takes.
#[derive(Debug, Clone, Args)]
pub struct PollsArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// One round of one second a row: a look, not a figure
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
    /// Which rows
    #[arg(long, value_delimiter = ',', default_values_t = Rows::ALL)]
    rows: Vec<Rows>,
    /// What the hogs are
    #[arg(long, value_delimiter = ',', default_values_t = [Kind::Tasks])]
    kind: Vec<Kind>,
    /// Hogs (1..=1024)
    #[arg(long, value_delimiter = ',', default_values_t = [2, 6, 64], value_parser = value_parser!(u64).range(1..=1024))]
    hogs: Vec<u64>,
    /// Lengths of single polls, milliseconds (0.01..=10000); `inf` for one that never returns
    #[arg(
        long,
        value_name = "MS",
        value_delimiter = ',',
        default_value = "0.1,1,3,10,50,500,inf"
    )]
    poll_ms: Vec<PollLength>,
    /// Only these modes [default: all]
    #[arg(long, value_delimiter = ',', alias = "only")]
    mode: Vec<Mode>,
    /// Virtual CPUs of the rows of shares (1..=32)
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2], value_parser = value_parser!(u64).range(1..=32))]
    vcpus: Vec<u64>,
    /// Only these weights of `shares`, such as 1:3 [default: 1:1, 1:3 and 1:2:7]
    #[arg(long, value_delimiter = ',')]
    weights: Vec<String>,
    /// Seconds a row (0.2..=600) [default: 1 for `echo`, whose rounds are repeated until enough of them count, 3 for `costs`, else 10]
    #[arg(long)]
    seconds: Option<Seconds>,
    /// The most rounds of `echo` with the same hogs (1..=100)
    #[arg(long, default_value_t = 40, value_parser = value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// Rounds that must count; when they do, the next hogs come (1..=100)
    #[arg(long, default_value_t = row::VALID_MIN as u64, value_parser = value_parser!(u64).range(1..=100))]
    valid: u64,
}

impl PollsArguments {
    /// How long a row of these takes.
    fn seconds(&self, rows: Rows) -> f64 {
        let usual = match rows {
            Rows::Echo => 1.0,
            Rows::Costs | Rows::Instructions => 3.0,
            Rows::Shares | Rows::Limits => 10.0,
        };
        let given = self.seconds.map_or(usual, |seconds| seconds.0);
        if self.quick { 1.0 } else { given }
    }

    fn wants(&self, mode: Mode) -> bool {
        self.mode.is_empty() || self.mode.contains(&mode)
    }
}

/// Which rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rows {
    Echo,
    Shares,
    Limits,
    Costs,
    Instructions,
}

impl Rows {
    const ALL: [Self; 5] = [
        Self::Echo,
        Self::Shares,
        Self::Limits,
        Self::Costs,
        Self::Instructions,
    ];
}

impl std::fmt::Display for Rows {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Echo => "echo",
            Self::Shares => "shares",
            Self::Limits => "limits",
            Self::Costs => "costs",
            Self::Instructions => "instructions",
        })
    }
}

/// Length of a poll. Unit: milliseconds; infinity for one that never returns.
#[derive(Debug, Clone, Copy, PartialEq)]
struct PollLength(f64);

impl FromStr for PollLength {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let length = text.parse::<f64>().map_err(|error| error.to_string())?;
        if length == f64::INFINITY || (0.01..=10_000.0).contains(&length) {
            Ok(Self(length))
        } else {
            Err(format!("{text} is not in 0.01..=10000, nor inf"))
        }
    }
}

/// Length of a row. Unit: seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Seconds(f64);

impl FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let seconds = text.parse::<f64>().map_err(|error| error.to_string())?;
        if (0.2..=600.0).contains(&seconds) {
            Ok(Self(seconds))
        } else {
            Err(format!("{text} is not in 0.2..=600"))
        }
    }
}

/// The hogs of a row, and the workers beside them.
#[derive(Debug, Clone, Copy)]
struct Hogged {
    kind: Kind,
    hogs: u64,
    /// None for a poll that never returns.
    poll: Option<Duration>,
    workers: usize,
}

impl Hogged {
    fn poll_ms(self) -> Option<f64> {
        self.poll.map(|poll| poll.as_secs_f64() * 1e3)
    }
}

#[derive(Debug, Default, Serialize)]
struct Results {
    workers: usize,
    rows: Vec<Row>,
    rounds: Vec<Round>,
    ratios: Vec<Ratio>,
    costs: Vec<costs::Cost>,
    instructions: Vec<instructions::Count>,
    goals: Vec<Goal>,
    /// Why there are no instructions, if there are none.
    not_counted: Option<String>,
}

/// Measures all rows and prints tables, or one JSON object.
///
/// # Errors
/// When a runtime, a scheduler or a socket cannot be had.
pub fn run(arguments: &PollsArguments) -> Result<(), Failure> {
    let mut results = Results {
        workers: arena::worker_counts().into_iter().max().unwrap_or(1),
        ..Results::default()
    };
    for rows in &arguments.rows {
        match rows {
            Rows::Echo => each_hogs(arguments, &mut results, echo_block)?,
            Rows::Shares => each_hogs(arguments, &mut results, shares_block)?,
            Rows::Limits => each_hogs(arguments, &mut results, limits_block)?,
            Rows::Costs => {
                results.costs = costs::measure(results.workers, arguments.seconds(Rows::Costs))?;
                results.goals.extend(costs::goals(&results.costs));
                if !arguments.json {
                    print::costs(&results.costs);
                }
            }
            Rows::Instructions => {
                match instructions::count(arguments.quick) {
                    Ok(counts) => results.instructions = counts,
                    Err(reason) => results.not_counted = Some(reason),
                }
                let goals = instructions::goals(&results.instructions);
                results.goals.extend(goals);
                if !arguments.json {
                    print::instructions(&results.instructions, results.not_counted.as_deref());
                }
            }
        }
    }
    let only_rows = |rows: &Rows| matches!(rows, Rows::Echo | Rows::Shares | Rows::Limits);
    if arguments.rows.iter().all(only_rows) {
        selected(&results.rows)?;
    }
    if arguments.json {
        return print_json(&results);
    }
    super::goal::print(&results.goals);
    Ok(())
}

/// Calls `block` for each kind, number and length of hogs.
fn each_hogs(
    arguments: &PollsArguments,
    results: &mut Results,
    block: fn(&PollsArguments, Hogged, &mut Results) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if !arguments.json {
        print::head();
    }
    for kind in &arguments.kind {
        for hogs in &arguments.hogs {
            for poll in &arguments.poll_ms {
                let seconds = poll.0 / 1e3;
                let hogged = Hogged {
                    kind: *kind,
                    hogs: *hogs,
                    poll: seconds
                        .is_finite()
                        .then(|| Duration::from_secs_f64(seconds)),
                    workers: results.workers,
                };
                block(arguments, hogged, results)?;
            }
        }
    }
    Ok(())
}

/// Rounds of all modes beside the same hogs.
fn echo_block(
    arguments: &PollsArguments,
    hogged: Hogged,
    results: &mut Results,
) -> Result<(), Failure> {
    let most = if arguments.quick { 1 } else { arguments.rounds };
    let (first_row, first_round) = (results.rows.len(), results.rounds.len());
    for round in 1..=most {
        let first = results.rows.len();
        for mode in Mode::ALL {
            if !arguments.wants(mode) {
                continue;
            }
            let row = echo::measure(hogged, round, mode, arguments.seconds(Rows::Echo))?;
            if !arguments.json {
                print::row(&row);
            }
            results.rows.push(row);
        }
        let alone = echo::measure(hogged, round, Mode::Alone, arguments.seconds(Rows::Echo))?;
        let of_round = &results.rows[first..];
        let steal_ratio = of_round
            .iter()
            .fold(alone.steal_ratio, |most, row| most.max(row.steal_ratio));
        let alone_p99_us = alone.p99_us.unwrap_or(u64::MAX);
        let round = Round {
            kind: hogged.kind,
            hogs: hogged.hogs,
            poll_ms: hogged.poll_ms(),
            round,
            alone_p99_us,
            steal_ratio,
            valid: alone_p99_us <= ALONE_P99_MAX_US && steal_ratio <= STEAL_MAX,
        };
        if !arguments.json {
            print::round(&round);
        }
        results.rounds.push(round);
        if valid(&results.rounds[first_round..]) >= arguments.valid {
            break;
        }
    }
    if !arguments.json {
        let rounds = &results.rounds[first_round..];
        print::rounds(valid(rounds), rounds.len(), arguments.valid, most);
    }
    let ratios = row::ratios(&results.rows[first_row..], &results.rounds[first_round..]);
    if !arguments.json {
        print::ratios(&ratios);
    }
    results.ratios.extend(ratios);
    Ok(())
}

/// How many of them count.
fn valid(rounds: &[Round]) -> u64 {
    rounds.iter().filter(|round| round.valid).count() as u64
}

fn shares_block(
    arguments: &PollsArguments,
    hogged: Hogged,
    results: &mut Results,
) -> Result<(), Failure> {
    let seconds = arguments.seconds(Rows::Shares);
    for vcpus in &arguments.vcpus {
        for weights in shares::WEIGHTS {
            let words: Vec<String> = weights.iter().map(u32::to_string).collect();
            if !arguments.weights.is_empty() && !arguments.weights.contains(&words.join(":")) {
                continue;
            }
            for mode in [Mode::Quotient, Mode::QuotientPreempt] {
                if !arguments.wants(mode) {
                    continue;
                }
                let vcpus = usize::try_from(*vcpus).unwrap_or(1);
                let row = shares::shares(hogged, mode, vcpus, weights, seconds)?;
                if !arguments.json {
                    print::row(&row);
                }
                results.rows.push(row);
            }
        }
    }
    Ok(())
}

fn limits_block(
    arguments: &PollsArguments,
    hogged: Hogged,
    results: &mut Results,
) -> Result<(), Failure> {
    let seconds = arguments.seconds(Rows::Limits);
    for limit in shares::LIMITS_MS {
        for mode in [Mode::Quotient, Mode::QuotientPreempt] {
            if !arguments.wants(mode) {
                continue;
            }
            let row = shares::limit(hogged, mode, limit, seconds)?;
            if !arguments.json {
                print::row(&row);
            }
            results.rows.push(row);
        }
    }
    Ok(())
}
