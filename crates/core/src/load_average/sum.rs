//! The memory of a sum: one shared counter, and a cell for each CPU in clusters.

use super::contribution::Contribution;
use super::mode::UpdateMode;
use crate::pelt::{PERIOD, faded};
use crate::units::{CpuId, Nanos};
use core::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, OnceLock};

/// CPUs whose cells are added up one by one: 16, about what shares a last-level cache. CPUs of one node have adjacent
/// numbers on every machine known to us.
pub const CLUSTER_CPUS: usize = 16;

/// How long a sum that was added up on demand is good for: 4 ms, a tick at HZ=250. Load averages move by at most 8 %
/// of the machine in that time.
pub const REFRESH_INTERVAL: Nanos = Nanos::from_millis(4);

/// How old a partial sum may get, in periods of 1.05 ms, before it is added up anew: by the member whose turn it is,
/// once in its turn; by any member, if that one sleeps; by anybody, if the whole cluster does. Without turns all
/// members would do it at the same tick.
const REFRESH_TURN: u64 = 2;
const REFRESH_MEMBER: u64 = 8;
const REFRESH_ANYBODY: u64 = 12;

/// Bits of a partial sum's word that hold when it was added up, in periods modulo 2^20 (18 minutes). Whoever looks
/// just when it has wrapped around uses an old sum for one more interval.
const STAMP_BITS: u32 = 20;

/// What is never the time at which a queue ran empty: it has not.
const BUSY: u64 = u64::MAX;

/// 128 bytes to itself: a pair of lines, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// What one CPU contributes, written by that CPU alone.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Cell {
    average: AtomicU64,
    /// Since when the average only fades, ns, or [`BUSY`].
    empty_since: AtomicU64,
}

impl Default for Cell {
    fn default() -> Cell {
        Cell {
            average: AtomicU64::new(0),
            empty_since: AtomicU64::new(BUSY),
        }
    }
}

impl Cell {
    /// Publishes an average of something that is runnable, or has been empty since `empty`. Returns the number of
    /// words that changed. A reader between the two stores sees an average that is off until its next refresh.
    pub(crate) fn publish(&self, average: u64, empty: Option<Nanos>) -> u32 {
        let empty = empty.map_or(BUSY, |since| since.0.min(BUSY - 1));
        let mut writes = 0;
        // Only the owner writes, so what it would find is what it left. Storing the same again would take the line
        // away from its readers for nothing.
        if self.average.load(Relaxed) != average {
            self.average.store(average, Relaxed);
            writes += 1;
        }
        if self.empty_since.load(Relaxed) != empty {
            self.empty_since.store(empty, Release);
            writes += 1;
        }
        writes
    }

    fn read(&self, now: Nanos) -> u64 {
        let empty_since = self.empty_since.load(Acquire);
        let average = self.average.load(Relaxed);
        if empty_since == BUSY {
            average
        } else {
            faded(average, Nanos(empty_since), now)
        }
    }
}

#[derive(Debug)]
pub(crate) struct Cluster {
    /// The sum of the cells and when it was added up, in one word: a refresh is one store.
    partial: Line<AtomicU64>,
    cells: Box<[Cell]>,
}

impl Cluster {
    fn new(cells: usize) -> Cluster {
        Cluster {
            partial: Line::default(),
            cells: (0..cells).map(|_| Cell::default()).collect(),
        }
    }

    pub(crate) fn cell(&self, index: usize) -> &Cell {
        &self.cells[index]
    }

    fn add_up(&self, now: Nanos, except: Option<usize>) -> u64 {
        let cells = self.cells.iter().enumerate();
        let others = cells.filter(|(index, _)| Some(*index) != except);
        others.fold(0, |sum, (_, cell)| sum.saturating_add(cell.read(now)))
    }

    /// The partial sum, brought up to date if it is `old` periods old. Returns it with the number of writes.
    fn partial(&self, now: Nanos, old: u64) -> (u64, u32) {
        const SUM_BITS: u32 = u64::BITS - STAMP_BITS;
        let word = self.partial.0.load(Relaxed);
        let period = now.0 / PERIOD.0;
        let age = period.wrapping_sub(word >> SUM_BITS) & ((1 << STAMP_BITS) - 1);
        if age < old {
            return (word & ((1 << SUM_BITS) - 1), 0);
        }
        let sum = self.add_up(now, None).min((1 << SUM_BITS) - 1);
        // Two that do it at once store nearly the same.
        self.partial.0.store(period << SUM_BITS | sum, Relaxed);
        (sum, 1)
    }

    /// At which age the member `index` brings the partial sum up to date.
    fn patience(&self, now: Nanos, index: usize) -> u64 {
        let turn = now.0 / REFRESH_INTERVAL.0 % self.cells.len() as u64;
        if turn == index as u64 {
            REFRESH_TURN
        } else {
            REFRESH_MEMBER
        }
    }
}

/// One average (load or runnable tasks) of one group, over all CPUs.
#[derive(Debug)]
pub struct GroupSum {
    /// Of the shared modes. Wraps around zero while parts are withdrawn and added at the same time.
    shared: Line<AtomicU64>,
    /// Made when the first CPU of a cluster contributes: a group costs memory only where it runs.
    clusters: Box<[OnceLock<Box<Cluster>>]>,
    cpus: u32,
}

impl GroupSum {
    /// A sum of nothing, for CPUs 0 to `cpus - 1`.
    pub fn new(cpus: u32) -> GroupSum {
        let clusters = (cpus as usize).div_ceil(CLUSTER_CPUS);
        GroupSum {
            shared: Line::default(),
            clusters: (0..clusters).map(|_| OnceLock::new()).collect(),
            cpus,
        }
    }

    /// CPUs that may contribute.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// The part of `cpu`, on NUMA node `node`, nothing yet. One CPU may have one part at a time; `None` if the sum is
    /// not for this CPU.
    pub fn join(self: &Arc<GroupSum>, cpu: CpuId, node: u32) -> Option<Contribution> {
        (cpu.0 < self.cpus).then(|| Contribution::new(Arc::clone(self), cpu, node))
    }

    pub(crate) fn cluster(&self, cluster: usize) -> &Cluster {
        self.clusters[cluster].get_or_init(|| {
            let rest = self.cpus as usize - cluster * CLUSTER_CPUS;
            Box::new(Cluster::new(rest.min(CLUSTER_CPUS)))
        })
    }

    /// Adds to the shared sum and returns what it is then.
    pub(crate) fn add(&self, difference: i64) -> u64 {
        let difference = difference.cast_unsigned();
        let before = self.shared.0.fetch_add(difference, Relaxed);
        at_least_zero(before.wrapping_add(difference))
    }

    /// The shared sum.
    pub(crate) fn shared(&self) -> u64 {
        at_least_zero(self.shared.0.load(Relaxed))
    }

    /// What the CPUs but the one at (`cluster`, `index`) contribute on demand; and the number of shared writes.
    pub(crate) fn add_up_others(&self, now: Nanos, own: (usize, usize)) -> (u64, u32) {
        let (mut total, mut writes) = (0u64, 0);
        for (number, cluster) in self.clusters.iter().enumerate() {
            let Some(cluster) = cluster.get() else {
                continue;
            };
            let part = if number == own.0 {
                if self.clusters.len() > 1 {
                    // For the other clusters' sake.
                    writes += cluster.partial(now, cluster.patience(now, own.1)).1;
                }
                cluster.add_up(now, Some(own.1))
            } else {
                let (part, written) = cluster.partial(now, REFRESH_ANYBODY);
                writes += written;
                part
            };
            total = total.saturating_add(part);
        }
        (total, writes)
    }

    /// The sum as readers outside of the scheduler see it under `mode`. On demand it is added up anew, O(CPUs).
    pub fn total(&self, now: Nanos, mode: UpdateMode) -> u64 {
        if mode == UpdateMode::OnDemand {
            self.exact(now)
        } else {
            self.shared()
        }
    }

    /// What all CPUs average, as of their last ticks, whatever the mode: what the kept sum is compared with.
    /// O(CPUs).
    pub fn exact(&self, now: Nanos) -> u64 {
        let clusters = self.clusters.iter().filter_map(OnceLock::get);
        clusters.fold(0, |sum, cluster| {
            sum.saturating_add(cluster.add_up(now, None))
        })
    }

    /// Bytes held, this structure included.
    pub fn bytes(&self) -> usize {
        let clusters = self.clusters.iter().filter_map(OnceLock::get);
        let held: usize = clusters
            .map(|cluster| size_of::<Cluster>() + size_of_val(&*cluster.cells))
            .sum();
        size_of::<GroupSum>() + size_of_val(&*self.clusters) + held
    }
}

/// A sum that went below zero for a moment, or what it is.
fn at_least_zero(sum: u64) -> u64 {
    sum.cast_signed().max(0).cast_unsigned()
}

// The shared sum's lines hold the sum alone.
const _: () = assert!(size_of::<Line<AtomicU64>>() == 128);
const _: () = assert!(size_of::<Cell>() == 64);
