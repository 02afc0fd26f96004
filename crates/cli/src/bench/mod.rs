//! `quotient bench`: Quotient against plain tokio, both in the same run.
//!
//! | command | what it shows |
//! |---|---|
//! | `switch` | cost of wake-ups, switches, spawns; then what `scale` shows |
//! | `fair` | shares of groups against their weights, and the stall of a blocking task's neighbours |
//! | `conserve` | whether a processor idles while tasks with polls of any length wait |
//! | `polls` | what long polls do to an echo server, to shares and limits, with and without preemption; what interrupting them costs |
//! | `jump` | what a branch costs that is nearly never taken: a static key against an atomic, a static, none |
//! | `pipe` | what gated features cost on the path of two tasks that wake each other, on and off |
//! | `flip` | what it costs to flip a static key, in every mode, beside a thread that executes its branches |
//! | `clocks` | reading a CPU clock: the kernel's, a group's, and one that updates everybody, by 2 to 128 threads |
//! | `scale` | memory a task and a group, and how costs grow up to 100,000 groups and 1,000,000 tasks |
//! | `bandwidth` | limits: charged and used against the ideal, the fullest window, beside the real kernel |
//! | `pains` | what hurts users of the kernel's limits, with the kernel's rules and with ours |
//! | `locks` | what a lock of `quotient::sync` costs beside tokio's, with limits and without |
//! | `sim` | how fast the simulator is |
//! | `loadavg` | keeping a group's load average over all CPUs: cost, shared writes, error |

mod arena;
mod bandwidth;
mod clocks;
mod conserve;
mod fair;
mod flip;
mod goal;
mod hog;
mod jump;
mod loadavg;
mod locks;
mod memory;
mod pains;
mod pipe;
mod polls;
mod probe;
mod scale;
mod sim;
mod spawner;
mod stall;
mod statistics;
mod switch;
mod workload;

use clap::{Args, Subcommand, value_parser};
use serde::Serialize;

use crate::failure::Failure;
use crate::json::print_versioned;

/// What `quotient bench` takes.
#[derive(Debug, Clone, Args)]
pub struct BenchArguments {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Clone, Subcommand)]
enum BenchCommand {
    /// Cost of wake-ups, switches and spawns, with memory and growth at the end; about two minutes
    Switch(SwitchArguments),
    /// Shares of groups against their weights; about a minute
    Fair(FairArguments),
    /// Busy processors while tasks wait, with polls of 0.1 to 50 ms; a minute
    Conserve(ConserveArguments),
    /// Long polls: an echo server beside them on tokio, on two runtimes and with preemption; shares and limits inside polls; what
    /// interrupting them costs. Hours in full: choose by --rows, --hogs, --poll-ms, --mode
    Polls(polls::PollsArguments),
    /// What a branch costs that is nearly never taken: static key, atomic, plain static, none; a few seconds
    Jump(KeysArguments),
    /// What gated features cost where two tasks wake each other: compiled out, branch, static keys; five minutes, or seconds
    /// without valgrind
    Pipe(KeysArguments),
    /// What flipping a static key costs, in every mode; half a minute
    Flip(KeysArguments),
    /// Memory a task and a group, and growth of costs up to 100,000 groups and 1,000,000 tasks
    Scale(ScaleArguments),
    /// Limits: charged and used against the ideal, the fullest window, beside the real kernel; four minutes
    Bandwidth(bandwidth::BandwidthArguments),
    /// What hurts users of the kernel's limits, with the kernel's rules and with ours; three minutes
    Pains(pains::PainsArguments),
    /// Keeping groups' load averages over all CPUs in four ways: cost, shared writes, error; two minutes
    Loadavg(loadavg::LoadavgArguments),
    /// A lock of `quotient::sync` beside tokio's, with limits in the process and without; a minute
    Locks(locks::LocksArguments),
    /// How fast the simulator is on 2 to 512 CPUs; half a minute
    Sim(sim::SimArguments),
    /// Reading CPU clocks: the kernel's, a group's, and one that updates everybody, by 2 to 128 threads; five minutes
    Clocks(clocks::ClocksArguments),
    /// One measurement of `scale` in a process of its own
    #[command(hide = true)]
    Probe(probe::ProbeArguments),
    /// Flips of one key in a process of its own, to be watched
    #[command(hide = true)]
    FlipProbe(flip::FlipProbeArguments),
    /// One case of `pipe` in a process of its own, to be counted
    #[command(hide = true)]
    PipeProbe(pipe::PipeProbeArguments),
    /// One case of the instructions of `polls` in a process of its own, to be counted
    #[command(hide = true)]
    PollsProbe(polls::PollsProbeArguments),
}

/// What `bench switch` takes.
#[derive(Debug, Clone, Args)]
pub struct SwitchArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// A tenth of the work: a look, not a figure
    #[arg(long)]
    quick: bool,
    /// Only rows whose name contains this text, and no growth at the end
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

impl SwitchArguments {
    fn selects(&self, bench: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|text| bench.contains(text.as_str()))
    }
}

/// What `bench fair` takes.
#[derive(Debug, Clone, Args)]
pub struct FairArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// One second a row: a look, not a figure
    #[arg(long)]
    quick: bool,
    /// Seconds a row (1..=600)
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// tokio workers and vCPUs (1..=1024) [default: 2, or 1 on a machine with one CPU]
    #[arg(long, value_parser = value_parser!(u32).range(1..=1024))]
    workers: Option<u32>,
    /// Only rows whose name contains this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

impl FairArguments {
    fn selects(&self, bench: &str) -> bool {
        self.only
            .as_ref()
            .is_none_or(|text| bench.contains(text.as_str()))
    }
}

/// What `bench conserve` takes.
#[derive(Debug, Clone, Args)]
pub struct ConserveArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// One round: a look, not a figure
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Rounds a row and side (1..=1000)
    #[arg(long, default_value_t = 9, value_parser = value_parser!(u32).range(1..=1000))]
    rounds: u32,
}

/// What `bench scale` takes.
#[derive(Debug, Clone, Args)]
pub struct ScaleArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// A tenth of the groups and tasks
    #[arg(long)]
    quick: bool,
}

/// What the benchmarks of static keys take.
#[derive(Debug, Clone, Args)]
pub struct KeysArguments {
    /// Print exactly one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// A fraction of the work: a look, not a figure
    #[arg(long)]
    quick: bool,
}

/// Refuses a selection that nothing answers to: an empty table would pass for a measurement.
///
/// # Errors
/// `Usage`, if there are no `rows`.
fn selected<T>(rows: &[T]) -> Result<(), Failure> {
    if rows.is_empty() {
        return Err(Failure::Usage(
            "no row was selected: without options to choose by, all are shown with their names"
                .into(),
        ));
    }
    Ok(())
}

/// Runs one of the benchmarks.
///
/// # Errors
/// When a measurement fails or its premise does not hold.
pub fn run(arguments: &BenchArguments) -> Result<(), Failure> {
    // Children that are watched or counted choose for themselves.
    if !matches!(
        arguments.command,
        BenchCommand::PipeProbe(_) | BenchCommand::FlipProbe(_) | BenchCommand::PollsProbe(_)
    ) {
        quotient_keys::patch();
    }
    match &arguments.command {
        BenchCommand::Switch(arguments) => switch::run(arguments),
        BenchCommand::Fair(arguments) => fair::run(arguments),
        BenchCommand::Conserve(arguments) => conserve::run(arguments),
        BenchCommand::Polls(arguments) => polls::run(arguments),
        BenchCommand::Scale(arguments) => scale::run(arguments),
        BenchCommand::Bandwidth(arguments) => bandwidth::run(arguments),
        BenchCommand::Pains(arguments) => pains::run(arguments),
        BenchCommand::Loadavg(arguments) => loadavg::run(arguments),
        BenchCommand::Locks(arguments) => locks::run(arguments),
        BenchCommand::Sim(arguments) => sim::run(arguments),
        BenchCommand::Jump(arguments) => jump::run(arguments),
        BenchCommand::Flip(arguments) => flip::run(arguments),
        BenchCommand::Clocks(arguments) => clocks::run(arguments),
        BenchCommand::Probe(arguments) => probe::run(arguments),
        BenchCommand::FlipProbe(arguments) => flip::probe(arguments),
        BenchCommand::Pipe(arguments) => pipe::run(arguments),
        BenchCommand::PipeProbe(arguments) => pipe::probe(arguments),
        BenchCommand::PollsProbe(arguments) => polls::probe(arguments),
    }
}

fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    print_versioned("quotient-bench/1", value)
}
