//! From averages to the input of the weight modes.

use crate::group_weight::GroupLoad;

/// What the mode functions of [`crate::group_weight`] need, from averages instead of what is runnable this instant:
///
/// ```text
/// local = max(shares competing here now, their average)       a group that just woke is not worth nothing
/// total = what the others contribute + local                  so that nobody's part exceeds the whole
/// tasks = average number of runnable tasks everywhere, rounded, at least 1
/// ```
///
/// `runnable` is the group's average number of runnable tasks over all CPUs times 1,024, this CPU's part included.
pub fn averaged_load(now: u64, average: u64, others: u64, runnable: u64, cpus: u32) -> GroupLoad {
    let local = now.max(average);
    let tasks = runnable.saturating_add(512) / 1024;
    GroupLoad {
        local,
        total: others.saturating_add(local),
        tasks: u32::try_from(tasks).unwrap_or(u32::MAX).max(1),
        cpus,
    }
}
