//! Confirms the engine's count of barriers by counting system calls: `strace` watches a child of this program that makes
//! so many flips, and another that makes none.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use clap::{Args, value_parser};
use quotient_keys::{Mode, set_mode};
use serde::Serialize;

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
    /// Pairs of flips (0..=1000)
    #[arg(long, value_parser = value_parser!(u32).range(0..=1000))]
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
    let with = count(mode, sites, PAIRS);
    let without = count(mode, sites, 0);
    let system_calls = with
        .zip(without)
        .map(|(with, without)| with.saturating_sub(without) as f64 / f64::from(PAIRS));
    Confirmation {
        mode: mode.name(),
        sites,
        engine,
        system_calls,
        agree: system_calls.map(|counted| counted == engine as f64),
    }
}

/// `membarrier` calls of a child; `None` if it could not be watched.
fn count(mode: Mode, sites: usize, pairs: u32) -> Option<u64> {
    let program = std::env::current_exe().ok()?;
    let log: PathBuf = std::env::temp_dir().join(format!("quotient-strace-{}", std::process::id()));
    let status = Command::new("strace")
        .args(["-f", "-e", "trace=membarrier", "-o"])
        .arg(&log)
        .arg(program)
        .args(["bench", "flip-probe", "--mode", mode.name()])
        .args(["--sites", &sites.to_string(), "--pairs", &pairs.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let text = std::fs::read_to_string(&log);
    // Nothing is left behind, whatever happened.
    let _ = std::fs::remove_file(&log);
    let calls = text.ok()?.matches("membarrier(").count();
    status
        .is_ok_and(|status| status.success())
        .then_some(calls as u64)
}
