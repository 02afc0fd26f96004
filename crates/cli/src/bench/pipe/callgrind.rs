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
    difference(arguments, few, rounds, |_| Some(0))
}

/// As [`count`], in whichever thread executes most of the child with many rounds. (Of few, another may: the one that starts the program.
/// Threads are numbered as they are started.)
///
/// # Errors
/// As [`count`].
pub fn count_busiest(arguments: &[String], few: u64, rounds: u64) -> Result<Counted, String> {
    difference(arguments, few, rounds, busiest)
}

/// The place of the thread that executes most.
fn busiest(threads: &[Counted]) -> Option<usize> {
    let by_instructions = |one: &usize, other: &usize| {
        threads[*one]
            .instructions
            .total_cmp(&threads[*other].instructions)
    };
    (0..threads.len()).max_by(by_instructions)
}

fn difference(
    arguments: &[String],
    few: u64,
    rounds: u64,
    choose: impl Fn(&[Counted]) -> Option<usize>,
) -> Result<Counted, String> {
    let (many_threads, few_threads) = (totals(arguments, few + rounds)?, totals(arguments, few)?);
    let (with, without) = same_thread(&many_threads, &few_threads, choose)
        .ok_or_else(|| "callgrind's output has no totals".to_owned())?;
    Ok(Counted {
        instructions: with.instructions - without.instructions,
        branches: with.branches - without.branches,
    })
}

/// What the thread that `choose` finds among `many` executed, and the same one among `few`.
fn same_thread(
    many: &[Counted],
    few: &[Counted],
    choose: impl Fn(&[Counted]) -> Option<usize>,
) -> Option<(Counted, Counted)> {
    let chosen = choose(many)?;
    Some((*many.get(chosen)?, *few.get(chosen)?))
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

    /// Hazard: with few rounds the main thread executes more than the one that plays them.
    #[test]
    fn both_children_are_asked_for_the_same_thread() {
        let counted = |instructions| Counted {
            instructions,
            branches: 0.0,
        };
        let (many, few) = ([7.3, 12.3], [7.3, 1.2]);
        let found = same_thread(&many.map(counted), &few.map(counted), busiest);
        assert_eq!(found, Some((counted(12.3), counted(1.2))));
        assert_eq!(same_thread(&many.map(counted), &[], busiest), None);
    }
}
