//! What groups have consumed: of one, and of many.
//!
//! Reading a group is a few dozen lines of memory that virtual CPUs have written last, one behind the other: a clock's cell is found by way
//! of its group, a histogram by way of its virtual CPU's. Who reads a thousand groups one by one waits for each of them. So they are
//! read by blocks, part by part: one step of all groups of a block does not depend on another's, and the processor waits for all at once.

use std::sync::Arc;

use quotient_core::Nanos;

use super::Group;
use crate::cpu_clock::duration;
use crate::stats::{BandwidthStats, GroupStats, LongPoll};
use crate::unfinished::polls_in_progress;

/// Groups of a block. Unit: groups. Default 8: their figures, 1.2 KB each, stay in the first cache.
const BLOCK: usize = 8;
/// A poll in progress that counts as the longest before it has returned has taken at least this. Unit: time. Default 10 ms: what returns
/// sooner is in the figures soon enough.
const LASTING: Nanos = Nanos::from_millis(10);

impl Group {
    /// Everything that is counted for the group. O(virtual CPUs), and while a poll of the scheduler lasts, of the group's tasks. Stops nobody.
    pub fn stats(&self) -> GroupStats {
        let mut stats = [GroupStats::default()];
        read_block(std::slice::from_ref(self), &mut stats, true);
        let [stats] = stats;
        stats
    }

    /// [`Group::stats`] of many groups in their order, each handed to `each`, sooner than one by one: for who shows them all. Without
    /// `histograms` those of waits and polls stay empty, which is half of the rest. O(groups x virtual CPUs), and tasks while a poll lasts;
    /// stops nobody.
    pub fn stats_of(groups: &[Self], histograms: bool, mut each: impl FnMut(&Self, &GroupStats)) {
        let mut stats: [GroupStats; BLOCK] = std::array::from_fn(|_| GroupStats::default());
        for block in groups.chunks(BLOCK) {
            let stats = &mut stats[..block.len()];
            read_block(block, stats, histograms);
            for (group, stats) in block.iter().zip(stats) {
                each(group, stats);
            }
        }
    }

    /// What the limit did so far: [`GroupStats::bandwidth`] without all the rest, for who asks often. O(virtual CPUs), stops nobody.
    pub fn bandwidth_stats(&self) -> BandwidthStats {
        let _shield = self.shared.shield();
        self.inner.core.bandwidth_stats().into()
    }
}

/// One step after the other, of all groups. The shield is that of the reader's own poll, whichever group asks for it.
fn read_block(groups: &[Group], stats: &mut [GroupStats], histograms: bool) {
    let _shield = groups.iter().find_map(|group| group.shared.shield());
    let mut step = |read: fn(&Group, &mut GroupStats)| {
        for (group, stats) in groups.iter().zip(&mut *stats) {
            read(group, stats);
        }
    };
    step(|group, stats| {
        stats.tasks = group.inner.owned.len();
        stats.losses = group.inner.losses.read();
    });
    step(|group, stats| {
        let foreign: Nanos = group.inner.core.foreign_cpu_time();
        stats.foreign_cpu = duration(foreign);
    });
    step(|group, stats| stats.cpu = group.cpu_time());
    step(|group, stats| {
        let (limit, bandwidth) = group.inner.core.limit_and_stats();
        (stats.max, stats.bandwidth) = (limit, bandwidth.into());
    });
    step(|group, stats| group.inner.cpus.counters_into(stats));
    step(|group, stats| group.inner.cpus.longest_into(stats));
    if histograms {
        step(|group, stats| group.inner.cpus.histograms_into(stats));
    }
    running_into(groups, stats);
}

/// Polls that have not returned and are longer than all that have: an endless one is in no other figure. Nothing is looked for unless a poll
/// lasts.
fn running_into(groups: &[Group], stats: &mut [GroupStats]) {
    // Groups of several schedulers come one behind the other, as a rule of one.
    let mut of: Option<&Group> = None;
    let mut lasting = Vec::new();
    for (group, stats) in groups.iter().zip(stats) {
        if of.is_none_or(|of| !Arc::ptr_eq(&of.shared, &group.shared)) {
            of = Some(group);
            lasting = polls_in_progress(&group.shared);
            lasting.retain(|(_, taken)| *taken >= LASTING);
        }
        if lasting.is_empty() || stats.tasks == 0 {
            continue;
        }
        let Some((taken, location)) = group.inner.owned.take_polls(&mut lasting) else {
            continue;
        };
        let duration = duration(taken);
        if stats
            .longest_poll
            .is_none_or(|known| duration > known.duration)
        {
            stats.longest_poll = Some(LongPoll { duration, location });
        }
    }
}
