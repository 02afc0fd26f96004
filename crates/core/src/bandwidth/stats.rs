//! What users read about a limit: the kernel's counters, and how long throttles were.

use super::sync::{AtomicU64, Relaxed};
use crate::units::Nanos;

/// Buckets of the histogram of throttle lengths; the last one holds everything from 2^31 us (36 minutes).
pub const THROTTLE_BUCKETS: usize = 32;

/// A group's bandwidth statistics since its first limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandwidthStats {
    /// Periods that passed while the group was active. Up to 64 ms late where its tasks only wait for others.
    pub nr_periods: u64,
    /// Those of them in which some CPU was throttled. One that a refill lets go at once is not throttled in the period that begins with it.
    pub nr_throttled: u64,
    /// Time for which the group was throttled, summed over CPUs (so it can exceed the wall time). Throttles that last
    /// are counted when they end.
    pub throttled_time: Nanos,
    /// The most throttled periods in a row.
    pub longest_throttled_run: u64,
    /// Periods in which more than the quota was taken from the pool, thanks to burst.
    pub nr_bursts: u64,
    /// What was taken beyond the quota in them.
    pub burst_time: Nanos,
    /// CPU time beyond the limit that a soft group got on CPUs with nothing else to run.
    pub overage: Nanos,
    /// Throttles that have ended, over all CPUs.
    pub throttles: u64,
    /// Their lengths: bucket i counts those of 2^i to 2^(i+1) us, bucket 0 also the shorter ones.
    pub throttle_lengths: [u64; THROTTLE_BUCKETS],
    /// How often the period was doubled because the timer came too late too often.
    pub stretched: u64,
}

/// The part that CPUs write without the pool's lock.
#[derive(Debug, Default)]
pub(super) struct Lengths {
    time: AtomicU64,
    count: AtomicU64,
    buckets: [AtomicU64; THROTTLE_BUCKETS],
    overage: AtomicU64,
}

impl Lengths {
    pub(super) fn record(&self, length: Nanos) {
        let micros = (length.0 / 1_000).max(1);
        let bucket = (micros.ilog2() as usize).min(THROTTLE_BUCKETS - 1);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.time.fetch_add(length.0, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    pub(super) fn add_overage(&self, time: u64) {
        self.overage.fetch_add(time, Relaxed);
    }

    /// `stats` has no lengths yet.
    pub(super) fn fill(&self, stats: &mut BandwidthStats) {
        stats.throttled_time = Nanos(self.time.load(Relaxed));
        stats.throttles = self.count.load(Relaxed);
        stats.overage = Nanos(self.overage.load(Relaxed));
        if stats.throttles == 0 {
            return;
        }
        for (shown, bucket) in stats.throttle_lengths.iter_mut().zip(&self.buckets) {
            *shown = bucket.load(Relaxed);
        }
    }
}
