//! `quotient bench pipe`: what gated features cost on the path of two tasks that wake each other.
//!
//! The mail that brought jump labels to the kernel's bandwidth control (July 2011) ran pipe-test, two processes and two
//! pipes, with bandwidth control compiled out, compiled in, and compiled in behind a jump label; without a limit, and with
//! one that can never bind. The same three schedulers are here in one binary, as three instantiations of the core's run
//! queue, driven by the same small host; a fourth has all its features behind keys. Then the whole runtime plays the game, with
//! and without such a limit, and in a program that has not asked for its code to be rewritten (`branch`).
//!
//! | workload | the mail's | here |
//! |---|---|---|
//! | W1 | five runs of 20,000 rounds from a shell | five times: set up, 20,000 rounds |
//! | W2 | one of 100,000, the shell stays | once: set up, 100,000 rounds |
//! | W3 | the same, the shell becomes pipe-test | 100,000 rounds, set-up not counted |

pub(super) mod callgrind;
mod gates;
mod host;
mod print;
mod runtime;
mod time;

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum, value_parser};
use quotient_core::Gates;
use quotient_keys::{Mode, patch_all, set_mode};
use serde::Serialize;

use self::callgrind::Counted;
use self::gates::{AllKeys, Branch, CompiledOut, Keys, Variant, bandwidth_sites, set_bandwidth};
use self::host::Host;
use super::goal::Goal;
use super::statistics::Spread;
use super::{KeysArguments, print_json};
use crate::failure::Failure;

/// Rounds of a workload, the mail's.
const ROUNDS: u64 = 100_000;
/// Rounds of a workload with `--quick`.
const ROUNDS_QUICK: u64 = 10_000;
/// Parts of W1.
const PARTS: u64 = 5;
/// Periods of the limit that never binds, microseconds.
const PERIODS_US: [u64; 4] = [1_000, 10_000, 100_000, 1_000_000];
/// The period of rows that have one only.
const PERIOD_US: u64 = 100_000;
/// Depth of the rows in which every level is limited.
const DEEP: u32 = 4;

/// Which run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// Five times: set up and a fifth of the rounds.
    W1,
    /// Set up and all rounds.
    W2,
    /// All rounds, set-up not counted.
    W3,
}

/// Who plays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Player {
    /// The core's run queue under the small host.
    Core,
    /// The runtime on tokio.
    Runtime,
}

/// One row's circumstances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Args, Serialize)]
pub struct Case {
    /// Who plays
    #[arg(long)]
    player: Player,
    /// W1, W2 or W3
    #[arg(long)]
    workload: Workload,
    /// How features are gated
    #[arg(long)]
    variant: Variant,
    /// Groups above the tasks, root not counted (1..=16)
    #[arg(long, value_parser = value_parser!(u32).range(1..=16))]
    depth: u32,
    /// Period of the limits that never bind, microseconds; no limit without it
    #[arg(long, value_parser = value_parser!(u64).range(1_000..=1_000_000))]
    period_us: Option<u64>,
}

/// What the counted child takes.
#[derive(Debug, Clone, Args)]
pub struct PipeProbeArguments {
    #[command(flatten)]
    case: Case,
    /// Rounds; 0 leaves out everything that is to be counted
    #[arg(long, value_parser = value_parser!(u64).range(0..=100_000_000))]
    rounds: u64,
}

/// A measured case.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    case: Case,
    /// 1, or 2 for the repetition that shows how far two identical runs differ.
    run: u32,
    rounds: u64,
    /// Instructions of the whole workload; `None` without valgrind.
    instructions: Option<f64>,
    /// Conditional and indirect branches of the whole workload.
    branches: Option<f64>,
    /// Median milliseconds.
    time_ms: f64,
    time_spread: Option<Spread>,
    /// Percent more than the base: the same player, workload and depth, without a limit, compiled out (or, in the
    /// runtime, which has static keys only, with them).
    instructions_pct: Option<f64>,
    branches_pct: Option<f64>,
    /// Median over interleaved rounds of the ratio within a round.
    time_pct: f64,
}

/// How far two identical runs differ, percent.
#[derive(Debug, Serialize)]
struct Variance {
    workload: Workload,
    variant: Variant,
    instructions_pct: Option<f64>,
    branches_pct: Option<f64>,
    time_pct: f64,
}

#[derive(Debug, Serialize)]
struct Results {
    rows: Vec<Row>,
    variance: Vec<Variance>,
    goals: Vec<Goal>,
    /// Why instructions are missing, if they are.
    not_counted: Option<String>,
}

/// Measures and prints tables, or one JSON object.
///
/// # Errors
/// When a case cannot be played or did not do what it should have done.
pub fn run(arguments: &KeysArguments) -> Result<(), Failure> {
    patch_all();
    let rounds = if arguments.quick {
        ROUNDS_QUICK
    } else {
        ROUNDS
    };
    let mut results = Results {
        rows: Vec::new(),
        variance: Vec::new(),
        goals: Vec::new(),
        not_counted: (!callgrind::is_here()).then(|| "no valgrind here".to_owned()),
    };
    for cases in blocks() {
        let mut rows = time::measure(&cases, rounds)?;
        for row in &mut rows {
            if results.not_counted.is_some() {
                break;
            }
            match row.case.count(rounds) {
                Ok(counted) => {
                    (row.instructions, row.branches) =
                        (Some(counted.instructions), Some(counted.branches));
                }
                Err(reason) => results.not_counted = Some(reason),
            }
        }
        compare(&mut rows);
        results.variance.extend(variance(&rows));
        if !arguments.json {
            print::block(&rows);
        }
        results.rows.append(&mut rows);
    }
    results.goals = goals(&results.rows);
    if arguments.json {
        return print_json(&results);
    }
    print::end(&results);
    Ok(())
}

/// The child that is counted.
///
/// # Errors
/// When the keys cannot be patched, or the case cannot be played.
pub fn probe(arguments: &PipeProbeArguments) -> Result<(), Failure> {
    let case = arguments.case;
    if case.player == Player::Core || case.variant.is_patched() {
        // What valgrind says about the processor is not what is there, so the mode is not left to that.
        set_mode(Mode::Biased).map_err(Failure::during("keys are soft here"))?;
        patch_all();
    }
    match case.player {
        Player::Core => case.play(arguments.rounds).map(drop),
        Player::Runtime => runtime::probe(&case, arguments.rounds),
    }
}

/// What is measured together, one after the other within each round. The first of a block is its base.
fn blocks() -> Vec<Vec<(Case, u32)>> {
    let mut blocks = Vec::new();
    let core = |workload, variant, depth, period_us| Case {
        player: Player::Core,
        workload,
        variant,
        depth,
        period_us,
    };
    for workload in [Workload::W1, Workload::W2, Workload::W3] {
        let mut cases = Vec::new();
        for run in [1, 2] {
            for variant in Variant::ALL {
                cases.push((core(workload, variant, 1, None), run));
            }
        }
        for variant in [Variant::Branch, Variant::Keys] {
            for period_us in PERIODS_US {
                cases.push((core(workload, variant, 1, Some(period_us)), 1));
            }
        }
        blocks.push(cases);
    }
    let mut deep: Vec<(Case, u32)> = Variant::ALL
        .map(|variant| (core(Workload::W3, variant, DEEP, None), 1))
        .to_vec();
    for variant in [Variant::Branch, Variant::Keys] {
        deep.push((core(Workload::W3, variant, DEEP, Some(PERIOD_US)), 1));
    }
    blocks.push(deep);
    for (depth, periods_us) in [(1, &PERIODS_US[..]), (DEEP, &[PERIOD_US][..])] {
        let case = |variant, period_us| Case {
            player: Player::Runtime,
            workload: Workload::W3,
            variant,
            depth,
            period_us,
        };
        let limited = periods_us
            .iter()
            .map(|period_us| case(Variant::AllKeys, Some(*period_us)));
        // `Branch`: the program has not asked for its code to be rewritten.
        let unlimited = [Variant::AllKeys, Variant::Branch].map(|variant| case(variant, None));
        blocks.push(
            unlimited
                .into_iter()
                .chain(limited)
                .map(|case| (case, 1))
                .collect(),
        );
    }
    blocks
}

impl Case {
    /// Plays the case on the core's run queue; returns how long the part took that is to be measured.
    ///
    /// # Errors
    /// When a key cannot be flipped or a premise does not hold.
    fn play(&self, rounds: u64) -> Result<Duration, Failure> {
        set_bandwidth(self.variant, self.period_us.is_some())
            .map_err(Failure::during("cannot flip a key"))?;
        let (sites, patched) = bandwidth_sites();
        let expected = if self.period_us.is_some() { 0 } else { sites };
        if self.variant.is_patched() && (sites == 0 || patched != expected) {
            return Err(Failure::Run(format!(
                "{patched} of {sites} sites are patched instead of {expected}"
            )));
        }
        let played = match self.variant {
            Variant::CompiledOut => self.play_with::<CompiledOut>(rounds),
            Variant::Branch => self.play_with::<Branch>(rounds),
            Variant::Keys => self.play_with::<Keys>(rounds),
            Variant::AllKeys => self.play_with::<AllKeys>(rounds),
        };
        set_bandwidth(self.variant, false).map_err(Failure::during("cannot flip a key"))?;
        played.map_err(Failure::during(&format!("{self:?}")))
    }

    fn play_with<G: Gates>(&self, rounds: u64) -> Result<Duration, String> {
        let (parts, each) = match self.workload {
            Workload::W1 => (PARTS, rounds / PARTS),
            Workload::W2 | Workload::W3 => (1, rounds),
        };
        let prepared = match self.workload {
            Workload::W3 => Some(Host::<G>::new(self)?),
            Workload::W1 | Workload::W2 => None,
        };
        if rounds == 0 {
            return Ok(Duration::ZERO);
        }
        let started = Instant::now();
        let mut host = match prepared {
            Some(host) => host,
            None => Host::<G>::new(self)?,
        };
        let mut played = host.play(each);
        for _ in 1..parts {
            host = Host::<G>::new(self)?;
            played += host.play(each);
        }
        let elapsed = started.elapsed();
        if played != parts * each {
            return Err(format!("{played} rounds instead of {}", parts * each));
        }
        host.check(self, each)?;
        Ok(elapsed)
    }

    /// Counts what the case executes.
    fn count(&self, rounds: u64) -> Result<Counted, String> {
        let name = |value: Option<clap::builder::PossibleValue>| {
            value.map_or_else(String::new, |value| value.get_name().to_owned())
        };
        let mut arguments: Vec<String> = vec![
            "pipe-probe".into(),
            "--player".into(),
            name(self.player.to_possible_value()),
            "--workload".into(),
            name(self.workload.to_possible_value()),
            "--variant".into(),
            name(self.variant.to_possible_value()),
            "--depth".into(),
            self.depth.to_string(),
        ];
        if let Some(period_us) = self.period_us {
            arguments.extend(["--period-us".into(), period_us.to_string()]);
        }
        // The runtime needs some rounds to come up; the core's host is there without.
        let few = match self.player {
            Player::Core => 0,
            Player::Runtime => rounds / 10,
        };
        callgrind::count(&arguments, few, rounds)
    }
}

/// Fills in what each row has more than the first.
fn compare(rows: &mut [Row]) {
    let Some(base) = rows.first() else {
        return;
    };
    let (instructions, branches) = (base.instructions, base.branches);
    for row in rows {
        row.instructions_pct = more_pct(row.instructions, instructions);
        row.branches_pct = more_pct(row.branches, branches);
    }
}

fn more_pct(value: Option<f64>, base: Option<f64>) -> Option<f64> {
    value
        .zip(base)
        .map(|(value, base)| (value / base - 1.0) * 100.0)
}

fn variance(rows: &[Row]) -> Vec<Variance> {
    let repeated = rows.iter().filter(|row| row.run == 2);
    repeated
        .filter_map(|second| {
            let first = rows
                .iter()
                .find(|row| row.run == 1 && row.case == second.case)?;
            Some(Variance {
                workload: second.case.workload,
                variant: second.case.variant,
                instructions_pct: more_pct(second.instructions, first.instructions),
                branches_pct: more_pct(second.branches, first.branches),
                time_pct: (second.time_ms / first.time_ms - 1.0) * 100.0,
            })
        })
        .collect()
}

fn goals(rows: &[Row]) -> Vec<Goal> {
    let find = |player, workload, variant, depth, period_us: Option<u64>| {
        let case = Case {
            player,
            workload,
            variant,
            depth,
            period_us,
        };
        rows.iter().find(|row| row.case == case && row.run == 1)
    };
    let mut goals = Vec::new();
    let mut at_most = |what: String, value: Option<f64>, bound| {
        if let Some(value) = value {
            goals.push(Goal::at_most(&what, value, bound));
        }
    };
    for workload in [Workload::W1, Workload::W2, Workload::W3] {
        let row = find(Player::Core, workload, Variant::Keys, 1, None);
        at_most(
            format!("{workload:?}, no limit, keys, more instructions, %"),
            row.and_then(|row| row.instructions_pct),
            0.1,
        );
    }
    for player in [Player::Core, Player::Runtime] {
        let variant = match player {
            Player::Core => Variant::Keys,
            Player::Runtime => Variant::AllKeys,
        };
        for period_us in PERIODS_US {
            let Some(row) = find(player, Workload::W3, variant, 1, Some(period_us)) else {
                continue;
            };
            let name = format!("{player:?}, limited a {} ms, more", period_us / 1000);
            at_most(format!("{name} instructions, %"), row.instructions_pct, 1.0);
            at_most(format!("{name} time, %"), Some(row.time_pct), 3.0);
        }
        if let Some(row) = find(player, Workload::W3, variant, DEEP, Some(PERIOD_US)) {
            let name = format!("{player:?}, {DEEP} levels limited, more");
            at_most(format!("{name} instructions, %"), row.instructions_pct, 4.0);
            at_most(format!("{name} time, %"), Some(row.time_pct), 4.0);
        }
    }
    goals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_of_the_core_keeps_its_premise() {
        for (case, run) in blocks().into_iter().flatten() {
            if case.player == Player::Core && run == 1 {
                // Every site is patched or not as the case asks, every round is played and charged.
                patch_all();
                let result = case.play(500);
                if quotient_keys::status().mode == Mode::Soft && case.variant.is_patched() {
                    continue;
                }
                result.unwrap_or_else(|error| panic!("{case:?}: {error}"));
            }
        }
    }

    #[test]
    fn the_first_of_a_block_is_without_limit() {
        for block in blocks() {
            let (base, run) = block[0];
            assert_eq!((base.period_us, run), (None, 1));
            assert!(block.iter().all(|(case, _)| case.depth == base.depth));
        }
    }
}
