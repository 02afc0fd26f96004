//! Arguments: what each command takes, its range and its default. clap answers a bad one with the field, the value
//! and the allowed range, and exits with code 2.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, value_parser};

use crate::advise::{self, AdviseArguments};
use crate::bench::{self, BenchArguments};
use crate::check::{self, CheckArguments};
use crate::config::{self, ConfigArguments};
use crate::convert::{self, ConvertArguments};
use crate::demo;
use crate::demo::mode::Mode;
use crate::diff::{self, DiffArguments};
use crate::failure::Failure;
#[cfg(feature = "fleet")]
use crate::fleet::{self, FleetArguments};
use crate::manual::{self, CompletionsArguments, HelpArguments, ManArguments};
#[cfg(target_os = "linux")]
use crate::record::{self, RecordArguments};
use crate::sim::{self, SimArguments};
#[cfg(unix)]
use crate::top::{self, TopArguments, TraceArguments};

/// What exit codes say.
const EXIT_CODES: &str = "Exit codes: 0 done; 1 what was checked is broken or missed; 2 arguments or files that cannot be used; \
3 input that cannot be read or holds what cannot be, or a folder in place of it; 4 a part of it cannot, the rest was done; 5 what was said or made cannot be written; 130 interrupted; \
141 nobody reads the output";

/// Groups with weights and CPU limits for the tasks of a tokio program: demo, benchmarks, traces, simulator.
#[derive(Debug, Parser)]
#[command(
    name = "quotient",
    version,
    about,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = EXIT_CODES
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A noisy neighbour on real HTTP traffic, with and without Quotient: live numbers, a table and a picture
    Demo(DemoArguments),
    /// What Quotient costs and what its shares are worth, against plain tokio in the same run
    Bench(BenchArguments),
    /// A trace of this machine by its own kernel (root), for `advise`, `check`, `diff` and `convert`
    #[cfg(target_os = "linux")]
    Record(RecordArguments),
    /// A recorded trace in another format: ftrace text, Perfetto, JSON lines, or a page with pictures
    Convert(ConvertArguments),
    /// The scheduler's invariants on a recorded trace, a real kernel's included; exit code 1 if one is broken
    Check(CheckArguments),
    /// Two traces side by side: CPU time, throttling and run delays of groups and tasks
    Diff(DiffArguments),
    /// A scenario under virtual time, on a machine that need not exist; exit code 1 if it misses an expectation, 3 if a value in it is out of its range
    Sim(SimArguments),
    /// What a CPU limit would do to a recorded trace or a scenario, and the smallest harmless one
    Advise(Box<AdviseArguments>),
    /// Files of settings: groups, weights and limits in TOML
    Config(ConfigArguments),
    /// The groups of a running process that opened a socket: CPU, limits, throttling, run delays, longest polls
    #[cfg(unix)]
    Top(TopArguments),
    /// A recording of a running process that opened a socket
    #[cfg(unix)]
    Trace(TraceArguments),
    /// Limits of tenants over many processes, in Valkey or Redis
    #[cfg(feature = "fleet")]
    Fleet(FleetArguments),
    /// Limits of tenants over many processes, in programs that were built with `--features fleet`
    #[cfg(not(feature = "fleet"))]
    #[command(hide = true, disable_help_flag = true)]
    Fleet(Absent),
    /// Help on a command or a topic; `quotient help scenario` is the reference of scenario files
    Help(HelpArguments),
    /// Completions for a shell, on standard output
    Completions(CompletionsArguments),
    /// The manual page, or all of them
    Man(ManArguments),
    /// The demo's server process; ends when its standard input closes
    #[command(hide = true)]
    DemoServer(ServerArguments),
    /// A server process of the demo of a fleet; ends when its standard input closes
    #[cfg(feature = "fleet")]
    #[command(hide = true)]
    DemoFleetNode(demo::fleet::node::NodeArguments),
    /// The demo's client process; ends by itself, or when its standard input closes
    #[command(hide = true)]
    DemoClient(ClientArguments),
    /// The server process of the demo's twenty tenants; ends when its standard input closes
    #[command(hide = true)]
    DemoTenantsServer(TenantsServerArguments),
    /// Their client process; ends by itself, or when its standard input closes
    #[command(hide = true)]
    DemoTenantsClient(TenantsClientArguments),
}

/// Anything: the command is not in this program.
#[cfg(not(feature = "fleet"))]
#[derive(Debug, Clone, Args)]
pub struct Absent {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _given: Vec<std::ffi::OsString>,
}

/// Other demos than the one of a noisy neighbour.
#[derive(Debug, Clone, Subcommand)]
pub enum Scene {
    /// One tenant with one CPU in four server processes: the load moves, a process and the store are killed (starts a private Valkey or Redis)
    #[cfg(feature = "fleet")]
    Fleet(demo::fleet::FleetDemoArguments),
    /// The demo of a fleet, in programs that were built with `--features fleet`
    #[cfg(not(feature = "fleet"))]
    #[command(hide = true, disable_help_flag = true)]
    Fleet(Absent),
}

/// What `quotient demo` takes.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct DemoArguments {
    #[command(subcommand)]
    pub scene: Option<Scene>,
    /// How long a run takes on an idle machine, in seconds (5..=3600); rounds beside which others computed are taken again, at most half as
    /// many as there should be
    #[arg(long, default_value_t = 60, value_parser = value_parser!(u64).range(5..=3600))]
    pub seconds: u64,
    /// tokio workers of the server, and on Linux the CPUs it may use (1..=1024) [default: all but one, which the client
    /// gets, at least 1]
    #[arg(long, value_parser = value_parser!(u32).range(1..=1024))]
    pub workers: Option<u32>,
    /// Keep-alive connections of the client (1..=256)
    #[arg(long, default_value_t = 8, value_parser = value_parser!(u32).range(1..=256))]
    pub connections: u32,
    /// Tasks of the noisy neighbour (1..=4096)
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=4096))]
    pub hogs: u32,
    /// Arrivals of the open loop, requests per second (1..=200000) [default: 30 % of what plain tokio serves alone]
    #[arg(long, value_parser = value_parser!(u32).range(1..=200_000))]
    pub rate: Option<u32>,
    /// Seed of arrivals and documents (any 64-bit number)
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Where the picture goes
    #[arg(long, value_name = "FILE", default_value = "demo.html")]
    pub out: PathBuf,
    /// Print exactly one JSON object on standard output; progress goes to standard error
    #[arg(long)]
    pub json: bool,
}

/// What the server process takes.
#[derive(Debug, Clone, Args)]
pub struct ServerArguments {
    /// Who shares the machine with the victim, and under which scheduler
    #[arg(long)]
    pub mode: Mode,
    /// tokio workers (1..=1024)
    #[arg(long, value_parser = value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Tasks of the noisy neighbour (1..=4096)
    #[arg(long, value_parser = value_parser!(u32).range(1..=4096))]
    pub hogs: u32,
    /// Time between two samples, in milliseconds (1..=60000)
    #[arg(long, value_parser = value_parser!(u64).range(1..=60_000))]
    pub sample_ms: u64,
}

/// What the server process of the twenty tenants takes.
#[derive(Debug, Clone, Args)]
pub struct TenantsServerArguments {
    /// `quotient`: a group a tenant; else plain tokio
    #[arg(long)]
    pub mode: Mode,
    /// tokio workers (1..=1024)
    #[arg(long, value_parser = value_parser!(u32).range(1..=1024))]
    pub workers: u32,
    /// Time between two samples, in milliseconds (1..=60000)
    #[arg(long, value_parser = value_parser!(u64).range(1..=60_000))]
    pub sample_ms: u64,
}

/// What their client process takes.
#[derive(Debug, Clone, Args)]
pub struct TenantsClientArguments {
    /// Where the server listens; loopback only
    #[arg(long)]
    pub address: SocketAddr,
    /// CPUs to keep away from (1..=1024)
    #[arg(long, value_parser = value_parser!(u32).range(1..=1024))]
    pub server_cpus: u32,
    /// How long to measure, in milliseconds (1..=600000)
    #[arg(long, value_parser = value_parser!(u64).range(1..=600_000))]
    pub milliseconds: u64,
}

/// What the client process takes.
#[derive(Debug, Clone, Args)]
pub struct ClientArguments {
    /// Where the server listens; loopback only
    #[arg(long)]
    pub address: SocketAddr,
    /// Keep-alive connections (1..=256)
    #[arg(long, value_parser = value_parser!(u32).range(1..=256))]
    pub connections: u32,
    /// CPUs to keep away from (1..=1024)
    #[arg(long, value_parser = value_parser!(u32).range(1..=1024))]
    pub server_cpus: u32,
    /// Closed loop whose results are thrown away, in milliseconds (0..=60000)
    #[arg(long, value_parser = value_parser!(u64).range(0..=60_000))]
    pub warm_up_ms: u64,
    /// Closed loop: as many requests as the server takes, in milliseconds (0..=600000)
    #[arg(long, value_parser = value_parser!(u64).range(0..=600_000))]
    pub capacity_ms: u64,
    /// Open loop, in milliseconds (0..=600000)
    #[arg(long, value_parser = value_parser!(u64).range(0..=600_000))]
    pub open_ms: u64,
    /// Width of the windows over which p99 is followed, in milliseconds (1..=600000)
    #[arg(long, value_parser = value_parser!(u64).range(1..=600_000))]
    pub window_ms: u64,
    /// Arrivals of the open loop, requests per second (1..=200000)
    #[arg(long, value_parser = value_parser!(u32).range(1..=200_000))]
    pub rate: u32,
    /// Seed of arrivals and documents
    #[arg(long)]
    pub seed: u64,
}

/// Parses the arguments and runs the command.
///
/// # Errors
/// Whatever stopped the command. Bad arguments never get here: clap has already exited with code 2.
pub fn run() -> Result<(), Failure> {
    match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        #[cfg(target_os = "linux")]
        Command::Record(arguments) => record::run(&arguments),
        Command::Convert(arguments) => convert::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Diff(arguments) => diff::run(&arguments),
        Command::Sim(arguments) => sim::run(&arguments),
        Command::Advise(arguments) => advise::run(&arguments),
        Command::Config(arguments) => config::run(&arguments),
        #[cfg(unix)]
        Command::Top(arguments) => top::run(&arguments),
        #[cfg(unix)]
        Command::Trace(arguments) => top::trace(&arguments),
        #[cfg(feature = "fleet")]
        Command::Fleet(arguments) => fleet::run(&arguments),
        #[cfg(not(feature = "fleet"))]
        Command::Fleet(_) => Err(without_fleets("fleet")),
        Command::Help(arguments) => manual::help(&arguments, Arguments::command()),
        Command::Completions(arguments) => manual::completions(&arguments, Arguments::command()),
        Command::Man(arguments) => manual::man(&arguments, Arguments::command()),
        Command::DemoServer(arguments) => demo::server::run(&arguments),
        #[cfg(feature = "fleet")]
        Command::DemoFleetNode(arguments) => demo::fleet::node::run(&arguments),
        Command::DemoClient(arguments) => demo::client::run(&arguments),
        Command::DemoTenantsServer(arguments) => demo::tenants::server::run(&arguments),
        Command::DemoTenantsClient(arguments) => demo::tenants::client::run(&arguments),
    }
}

/// What whoever asks for a fleet is told by a program that was built without.
#[cfg(not(feature = "fleet"))]
pub fn without_fleets(command: &str) -> Failure {
    Failure::Usage(format!(
        "{command} is not in this program: build it with --features fleet (docs/operations.md)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn an_error_names_field_value_and_range() {
        let error = Arguments::try_parse_from(["quotient", "demo", "--seconds", "4"])
            .expect_err("4 is out of range");
        let text = error.to_string();
        assert!(
            text.contains("--seconds") && text.contains('4') && text.contains("5..=3600"),
            "{text}"
        );
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn defaults_are_the_documented_ones() {
        let parsed =
            Arguments::try_parse_from(["quotient", "demo"]).expect("no argument is required");
        let Command::Demo(demo) = parsed.command else {
            panic!("not the demo")
        };
        assert_eq!(
            (demo.seconds, demo.connections, demo.hogs, demo.seed),
            (60, 8, 64, 1)
        );
        assert_eq!((demo.workers, demo.rate), (None, None));
    }
}
