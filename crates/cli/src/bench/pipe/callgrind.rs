//! Counts the instructions of a child of this program: callgrind runs it, and what lies outside the measured rounds
//! cancels, because a child with few rounds is taken off one with many.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Serialize;

/// Threads of a child that are looked at.
const THREADS_MAX: u32 = 32;

/// What was executed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Counted {
    /// Instructions.
    pub instructions: f64,
    /// Conditional branches and indirect jumps: what a predictor has to guess. Direct jumps and calls are not counted.
    pub branches: f64,
}

/// Whether callgrind is here.
pub fn is_here() -> bool {
    let version = Command::new("valgrind")
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    version.is_ok_and(|status| status.success())
}

/// What `rounds` more rounds execute than `few`, of a hidden command that takes `--rounds`, in its main thread.
///
/// # Errors
/// When a child fails or callgrind's output cannot be read.
pub fn count(arguments: &[String], few: u64, rounds: u64) -> Result<Counted, String> {
    difference(arguments, few, rounds, |threads| threads.first().copied())
}

/// As [`count`], in the thread of each child that executes most beside the main one.
///
/// # Errors
/// As [`count`].
pub fn count_busiest(arguments: &[String], few: u64, rounds: u64) -> Result<Counted, String> {
    difference(arguments, few, rounds, busiest_started)
}

/// What the thread executed that executes most of those that the main thread starts. Not by its number: of a pool's threads any may be the one
/// that plays, another in each child. Nor with the main thread, which executes more than few rounds do before it starts any.
fn busiest_started(threads: &[Counted]) -> Option<Counted> {
    let started = threads.get(1..)?.iter().copied();
    started.max_by(|one, other| one.instructions.total_cmp(&other.instructions))
}

fn difference(
    arguments: &[String],
    few: u64,
    rounds: u64,
    choose: impl Fn(&[Counted]) -> Option<Counted>,
) -> Result<Counted, String> {
    let (with, without) = (totals(arguments, few + rounds)?, totals(arguments, few)?);
    let chosen = choose(&with).zip(choose(&without));
    let (with, without) = chosen.ok_or_else(|| "callgrind's output has no totals".to_owned())?;
    Ok(Counted {
        instructions: with.instructions - without.instructions,
        branches: with.branches - without.branches,
    })
}

/// What each thread executed, the first one first.
fn totals(arguments: &[String], rounds: u64) -> Result<Vec<Counted>, String> {
    static CHILDREN: AtomicU32 = AtomicU32::new(0);
    let number = CHILDREN.fetch_add(1, Ordering::Relaxed);
    let name = format!("quotient-callgrind-{}-{number}", std::process::id());
    let output: PathBuf = std::env::temp_dir().join(&name);
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let child = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--branch-sim=yes",
            "--separate-threads=yes",
        ])
        .arg(format!("--callgrind-out-file={}", output.display()))
        .arg(program)
        .arg("bench")
        .args(arguments)
        .args(["--rounds", &rounds.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot start valgrind: {error}"))?;
    // One file for all and one for each thread.
    let texts: Vec<String> = (1..=THREADS_MAX)
        .map_while(|thread| {
            let file = std::env::temp_dir().join(format!("{name}-{thread:02}"));
            std::fs::read_to_string(file).ok()
        })
        .collect();
    remove_files(&name);
    if !child.status.success() {
        let errors = String::from_utf8_lossy(&child.stderr);
        let last = errors.lines().rev().find(|line| !line.starts_with("=="));
        return Err(format!("{}: {}", child.status, last.unwrap_or_default()));
    }
    Ok(texts.iter().filter_map(|text| parse(text)).collect())
}

fn remove_files(name: &str) {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(name) {
            // What cannot be removed is left to the system, which empties the folder.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Reads the names of the events and their totals.
fn parse(text: &str) -> Option<Counted> {
    let fields = |name: &str| {
        let line = text.lines().rev().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
    };
    let events = fields("events:")?;
    let totals = fields("totals:").or_else(|| fields("summary:"))?;
    let total = |event: &str| {
        let place = events.iter().position(|name| *name == event)?;
        totals.get(place)?.parse::<f64>().ok()
    };
    Some(Counted {
        instructions: total("Ir")?,
        branches: total("Bc")? + total("Bi")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_found_by_the_names_of_their_events() {
        let text = "version: 1\nevents: Ir Bc Bcm Bi Bim\nfn=(1)\n1 2 3\ntotals: 1000 100 9 10 1\n";
        let counted = parse(text).expect("it has totals");
        assert_eq!((counted.instructions, counted.branches), (1000.0, 110.0));
        assert_eq!(parse("events: Ir\n"), None);
    }

    /// Hazard: with few rounds the main thread executes more than the one that plays them, and in one of eight children or so that was another
    /// thread of the pool than in the child with many: a tenth more for each round was the result.
    #[test]
    fn who_plays_is_found_in_each_child() {
        let counted = |instructions| Counted {
            instructions,
            branches: 0.0,
        };
        let (many, few) = ([7.3, 0.02, 29.8, 0.01], [7.3, 0.04, 0.01, 3.0]);
        assert_eq!(busiest_started(&many.map(counted)), Some(counted(29.8)));
        assert_eq!(busiest_started(&few.map(counted)), Some(counted(3.0)));
        assert_eq!(busiest_started(&[counted(7.3)]), None);
    }
}
