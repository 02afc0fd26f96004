//! Threads that a breakpoint would kill.
//!
//! A thread that blocks `SIGTRAP` and runs into a breakpoint is killed by the kernel, and the process with it. Libraries
//! make such threads (all signals blocked), so the modes that work through breakpoints look before they write any. A
//! thread may still block it in the instant after; that is why those modes are nobody's default.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// How often a thread that blocks `SIGTRAP` is looked at again: one in a signal handler, or in the middle of starting
/// another thread, does so for some microseconds, one that starts a program until that runs.
const LOOKS: u32 = 50;

/// How often in all, with the looks at which the thread had not run since the last one: on a busy machine a new thread, which
/// begins with every signal blocked, waits for its first processor longer than any thread blocks a signal. Default 2,500: five
/// seconds of [`BETWEEN_LOOKS`], which is what a flip waits at most, once.
const LOOKS_IN_ALL: u32 = 2_500;

/// Between two looks. Ours: `LOOKS` of them are what a flip waits for a thread that keeps `SIGTRAP` blocked.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// The id of a thread of this process that blocks `SIGTRAP`. `None` as well if the kernel does not tell.
pub(super) fn that_blocks_traps() -> Option<i32> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    tasks
        .flatten()
        .find(|task| stays_blocked(&task.path()))
        .and_then(|task| task.file_name().to_str()?.parse().ok())
}

fn stays_blocked(task: &Path) -> bool {
    let mut seen = 0;
    let mut ran = None;
    for look in 0..LOOKS_IN_ALL {
        if look > 0 {
            std::thread::sleep(BETWEEN_LOOKS);
        }
        // It may have ended meanwhile.
        let Ok(status) = fs::read_to_string(task.join("status")) else {
            return false;
        };
        if blocks_traps(&status) != Some(true) {
            return false;
        }
        // One that waits for a processor cannot unblock anything.
        let runs = fs::read_to_string(task.join("schedstat")).ok();
        if !waits_for_a_processor(&status) || runs.is_none() || runs != ran {
            seen += 1;
            if seen == LOOKS {
                return true;
            }
        }
        ran = runs;
    }
    true
}

/// Runs or would run, from the text of a thread's status file.
fn waits_for_a_processor(status: &str) -> bool {
    let mut states = status
        .lines()
        .filter_map(|line| line.strip_prefix("State:"));
    states
        .next()
        .is_some_and(|state| state.trim().starts_with('R'))
}

/// From the text of a thread's status file; `None` if it does not say.
fn blocks_traps(status: &str) -> Option<bool> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigBlk:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    Some(mask >> (libc::SIGTRAP - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_runs_or_would_waits_for_a_processor() {
        assert!(waits_for_a_processor("Name:\tState\nState:\tR (running)\n"));
        assert!(!waits_for_a_processor("State:\tS (sleeping)\n"));
        assert!(!waits_for_a_processor(""));
    }

    #[test]
    fn the_mask_counts_signals_from_one() {
        assert_eq!(
            blocks_traps("Name:\tx\nSigBlk:\t0000000000000010\n"),
            Some(true)
        );
        assert_eq!(blocks_traps("SigBlk:\tffffffffffffffef\n"), Some(false));
        assert_eq!(blocks_traps("Name:\tx\n"), None);
    }
}
