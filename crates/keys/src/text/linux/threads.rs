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

/// Between two looks. Ours: `LOOKS` of them are what a flip waits at most, once.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);

/// The id of a thread of this process that blocks `SIGTRAP`. `None` as well if the kernel does not tell.
pub(super) fn that_blocks_traps() -> Option<i32> {
    let tasks = fs::read_dir("/proc/self/task").ok()?;
    tasks
        .flatten()
        .find(|task| stays_blocked(&task.path().join("status")))
        .and_then(|task| task.file_name().to_str()?.parse().ok())
}

fn stays_blocked(status: &Path) -> bool {
    (0..LOOKS).all(|look| {
        if look > 0 {
            std::thread::sleep(BETWEEN_LOOKS);
        }
        // It may have ended meanwhile.
        let status = fs::read_to_string(status);
        status.is_ok_and(|status| blocks_traps(&status) == Some(true))
    })
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
    fn the_mask_counts_signals_from_one() {
        assert_eq!(
            blocks_traps("Name:\tx\nSigBlk:\t0000000000000010\n"),
            Some(true)
        );
        assert_eq!(blocks_traps("SigBlk:\tffffffffffffffef\n"), Some(false));
        assert_eq!(blocks_traps("Name:\tx\n"), None);
    }
}
