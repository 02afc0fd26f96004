//! What a flip costs as others count it: `strace` the system calls, callgrind the instructions. They watch a child of this
//! program that makes so many flips, and another that makes none or few. Barriers are counted apart.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::{Args, value_parser};
use quotient_keys::{Mode, Writes, set_mode, set_writes};
use serde::Serialize;

use super::super::pipe::callgrind;
use super::sites::subjects;
use crate::failure::Failure;

/// Pairs of flips of the watched child.
const PAIRS: u32 = 10;

/// What the watched child takes.
#[derive(Debug, Clone, Args)]
pub struct FlipProbeArguments {
    /// The mode's name
    #[arg(long)]
    mode: String,
    /// Dense sites: 1, 8, 56, 512 or 4096
    #[arg(long)]
    sites: usize,
    /// Write sites together with what lies between them
    #[arg(long)]
    coalesced: bool,
    /// Pairs of flips (0..=1000)
    #[arg(long, alias = "rounds", value_parser = value_parser!(u32).range(0..=1000))]
    pairs: u32,
}

/// Barriers of a pair of flips, on and off, counted twice.
#[derive(Clone, Debug, Serialize)]
pub struct Confirmation {
    mode: &'static str,
    sites: usize,
    /// As the engine says.
    engine: u64,
    /// As `strace` says; `None` without it.
    system_calls: Option<f64>,
    /// Whether both agree.
    agree: Option<bool>,
}

impl Confirmation {
    pub(super) fn print(&self) {
        let counted = match self.system_calls {
            Some(calls) => format!("strace counts {calls} membarrier calls"),
            None => "not confirmed: no strace here".to_owned(),
        };
        println!(
            "{:<10} {} sites, on and off: {} barriers; {counted}",
            self.mode, self.sites, self.engine
        );
    }
}

/// The watched child.
///
/// # Errors
/// When the mode or the number of sites is unknown, or the flips are refused.
pub fn probe(arguments: &FlipProbeArguments) -> Result<(), Failure> {
    let mode = Mode::ALL
        .into_iter()
        .find(|mode| mode.name() == arguments.mode)
        .ok_or_else(|| Failure::Usage(format!("no mode {:?}", arguments.mode)))?;
    let subject = subjects()
        .into_iter()
        .find(|subject| subject.sites == arguments.sites && subject.layout == "dense")
        .ok_or_else(|| Failure::Usage(format!("no {} dense sites", arguments.sites)))?;
    set_mode(mode).map_err(Failure::during("cannot change the mode"))?;
    if arguments.coalesced {
        set_writes(Writes::Coalesced);
    }
    for _ in 0..arguments.pairs {
        for on in [true, false] {
            subject
                .key
                .set(on)
                .map_err(Failure::during("cannot flip"))?;
        }
    }
    Ok(())
}

/// Counts the barriers of a pair of flips of `sites` dense sites in a child that `strace` watches. `engine` is what the
/// receipts of such a pair say.
pub fn confirm(mode: Mode, sites: usize, engine: u64) -> Confirmation {
    let system_calls = calls_of_a_pair(&arguments_of(mode, sites, Writes::Exact), "membarrier");
    Confirmation {
        mode: mode.name(),
        sites,
        engine,
        system_calls,
        agree: system_calls.map(|counted| counted == engine as f64),
    }
}

fn arguments_of(mode: Mode, sites: usize, writes: Writes) -> Vec<String> {
    let mut arguments = ["flip-probe", "--mode", mode.name(), "--sites"]
        .map(str::to_owned)
        .to_vec();
    arguments.push(sites.to_string());
    if writes == Writes::Coalesced {
        arguments.push("--coalesced".to_owned());
    }
    arguments
}

/// What a pair of flips, on and off, costs outside of the barrier itself.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    sites: usize,
    writes: &'static str,
    /// System calls, barriers among them; `None` without `strace`.
    system_calls: Option<f64>,
    barriers: Option<f64>,
    /// Instructions of the program itself; `None` without callgrind.
    instructions: Option<f64>,
}

/// Counts a pair of flips of `sites` dense sites in the biased mode.
pub fn cost(sites: usize, writes: Writes) -> Cost {
    let arguments = arguments_of(Mode::Biased, sites, writes);
    let pairs = u64::from(PAIRS);
    let counted = callgrind::count(&arguments, pairs, pairs).ok();
    Cost {
        sites,
        writes: match writes {
            Writes::Exact => "exact",
            Writes::Coalesced => "coalesced",
        },
        system_calls: calls_of_a_pair(&arguments, ""),
        barriers: calls_of_a_pair(&arguments, "membarrier"),
        instructions: counted.map(|counted| counted.instructions / f64::from(PAIRS)),
    }
}

impl Cost {
    pub(super) fn print(&self) {
        let figure = |value: Option<f64>| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
        };
        println!(
            "{:>5} sites, {:<9}  {:>6} system calls, {} of them barriers; {:>8} instructions",
            self.sites,
            self.writes,
            figure(self.system_calls),
            figure(self.barriers),
            figure(self.instructions),
        );
    }
}

/// Calls of that name (all if it is empty) that a pair of flips makes; `None` without `strace`.
fn calls_of_a_pair(arguments: &[String], name: &str) -> Option<f64> {
    let with = count(arguments, name, PAIRS)?;
    let without = count(arguments, name, 0)?;
    Some(with.saturating_sub(without) as f64 / f64::from(PAIRS))
}

/// Calls of a child; `None` if it could not be watched.
fn count(arguments: &[String], name: &str, pairs: u32) -> Option<u64> {
    let program = std::env::current_exe().ok()?;
    let log: PathBuf = std::env::temp_dir().join(format!("quotient-strace-{}", std::process::id()));
    let traced = if name.is_empty() { "all" } else { name };
    let status = Command::new("strace")
        .args([
            "-f",
            "-e",
            &format!("trace={traced}"),
            "-e",
            "signal=none",
            "-o",
        ])
        .arg(&log)
        .arg(program)
        .arg("bench")
        .args(arguments)
        .args(["--pairs", &pairs.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let text = std::fs::read_to_string(&log);
    // Nothing is left behind, whatever happened.
    let _ = std::fs::remove_file(&log);
    let calls = text.ok()?.matches(&format!("{name}(")).count();
    status
        .is_ok_and(|status| status.success())
        .then_some(calls as u64)
}
