//! A single-writer histogram in powers of two that anybody may read at any time.
//!
//! It is kept here, rather than taken from a library, because a reader must never stop the writer: every bucket is a relaxed
//! atomic with one writer, two cache lines are touched a record, and a record costs about 2 ns.
//!
//! # Buckets of 32 bits
//! Each group has a histogram for each virtual CPU that it ran on, which is what it weighs most by. So a bucket has 32 bits, and what goes
//! beyond is carried, under a lock that is made with the first carry: 2^32 polls of one length, over an hour at a million a second; only
//! then the writer may wait for a reader. A reader that sees the table of carries reads all under its lock. One that does not see it reads
//! the buckets and looks again: a bucket that went back to zero is released after the table was made, so whoever has read that zero sees
//! the table, and reads anew.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use quotient_core::Nanos;

/// Number of buckets: bucket `i` counts values in `[2^(i-1), 2^i)` ns, bucket 0 counts zero; the last holds all from 2^38 ns (4.6 min) up.
const BUCKETS: usize = 40;

/// How often each bucket went over 2^32.
type Carries = Mutex<[u32; BUCKETS]>;

/// The writer's side.
#[derive(Debug)]
pub(crate) struct AtomicHistogram {
    buckets: [AtomicU32; BUCKETS],
    carries: OnceLock<Box<Carries>>,
    /// Unit: nanoseconds.
    sum: AtomicU64,
}

impl Default for AtomicHistogram {
    fn default() -> Self {
        Self {
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
            carries: OnceLock::new(),
            sum: AtomicU64::new(0),
        }
    }
}

impl AtomicHistogram {
    /// Counts one value. Only one thread at a time may call this; a bucket wraps after 2^64 records, the
    /// sum after 584 years.
    #[inline]
    pub(crate) fn record(&self, value: Nanos) {
        let index = (64 - value.as_nanos().leading_zeros() as usize).min(BUCKETS - 1);
        let bucket = &self.buckets[index];
        match bucket.load(Ordering::Relaxed).checked_add(1) {
            Some(count) => bucket.store(count, Ordering::Relaxed),
            None => self.carry(index),
        }
        let sum = self.sum.load(Ordering::Relaxed);
        self.sum
            .store(sum.wrapping_add(value.as_nanos()), Ordering::Relaxed);
    }

    #[cold]
    fn carry(&self, index: usize) {
        let mut carries = lock(
            self.carries
                .get_or_init(|| Box::new(Mutex::new([0; BUCKETS]))),
        );
        carries[index] = carries[index].wrapping_add(1);
        self.buckets[index].store(0, Ordering::Release);
    }

    /// Adds this histogram's counts to a snapshot.
    pub(crate) fn add_to(&self, snapshot: &mut Histogram) {
        let mut carried = self.carries.get().map(|carries| lock(carries));
        let mut counts = self.read();
        if carried.is_none() {
            fence(Ordering::Acquire);
            carried = self.carries.get().map(|carries| lock(carries));
            if carried.is_some() {
                counts = self.read();
            }
        }
        for (index, (sum, count)) in snapshot.counts.iter_mut().zip(counts).enumerate() {
            let carries = carried.as_ref().map_or(0, |carries| carries[index]);
            *sum = sum.wrapping_add(u64::from(carries) << 32 | u64::from(count));
        }
        let sum = self.sum.load(Ordering::Relaxed);
        snapshot.sum = snapshot.sum.wrapping_add(sum);
    }

    fn read(&self) -> [u32; BUCKETS] {
        self.buckets
            .each_ref()
            .map(|bucket| bucket.load(Ordering::Relaxed))
    }
}

fn lock(carries: &Carries) -> MutexGuard<'_, [u32; BUCKETS]> {
    carries.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A snapshot of durations counted in power-of-two buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    /// Unit: nanoseconds.
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            sum: 0,
        }
    }
}

impl Histogram {
    /// From counts of values in `[2^i, 2^(i+1))` us: a thousand is taken for 2^10, 2.4 % of a factor of two.
    pub(crate) fn from_microseconds(counts: &[u64], sum: Nanos) -> Self {
        let mut histogram = Self {
            sum: sum.as_nanos(),
            ..Self::default()
        };
        for (power, count) in counts.iter().enumerate() {
            let bucket = &mut histogram.counts[(power + 11).min(BUCKETS - 1)];
            *bucket = bucket.wrapping_add(*count);
        }
        histogram
    }

    /// Number of values recorded.
    pub fn count(&self) -> u64 {
        self.counts
            .iter()
            .fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Sum of the values recorded; wraps after 584 years. Read beside running writers, it may be ahead of the counts or behind by the
    /// values that are being recorded.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum)
    }

    /// An upper bound of the given quantile, exact to a factor of two; `None` when nothing was recorded.
    ///
    /// `quantile` outside 0..=1 is clamped; not a number reads as 0. O(number of buckets).
    pub fn quantile(&self, quantile: f64) -> Option<Duration> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let rank = ((total as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64).max(1);
        let mut seen = 0_u64;
        for (upper, count) in self.buckets() {
            seen = seen.wrapping_add(count);
            if seen >= rank {
                return Some(upper);
            }
        }
        None
    }

    /// The buckets as (exclusive upper bound, count), shortest first.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .map(|(index, count)| (Duration::from_nanos(1_u64 << index), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_bound_the_values_within_a_factor_of_two() {
        let atomic = AtomicHistogram::default();
        for value in [0, 1, 100, 1_000, 1_000_000, u64::MAX] {
            atomic.record(Nanos(value));
        }
        let mut snapshot = Histogram::default();
        assert_eq!(snapshot.quantile(0.5), None);
        atomic.add_to(&mut snapshot);
        assert_eq!(snapshot.count(), 6);
        // It wraps: the last value is one before the turn.
        assert_eq!(snapshot.sum(), Duration::from_nanos(1_001_100));
        assert_eq!(snapshot.quantile(0.0), Some(Duration::from_nanos(1)));
        assert_eq!(snapshot.quantile(0.5), Some(Duration::from_nanos(128)));
        assert_eq!(snapshot.quantile(0.8), Some(Duration::from_nanos(1 << 20)));
        assert_eq!(snapshot.quantile(f64::NAN), Some(Duration::from_nanos(1)));
        assert_eq!(
            snapshot.quantile(7.0),
            Some(Duration::from_nanos(1 << (BUCKETS - 1)))
        );
    }

    /// Hazard: a reader beside the record that fills a bucket sees it empty, and a monitor takes that for a restart.
    #[test]
    fn a_bucket_that_overflows_is_never_read_as_less() {
        const BEFORE: u32 = 20_000;
        for round in 0..20 {
            let atomic = AtomicHistogram::default();
            let full = &atomic.buckets[0];
            full.store(u32::MAX - BEFORE, Ordering::Relaxed);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let (mut last, most) = (0, (1 << 32) + u64::from(BEFORE));
                    while last < most {
                        let mut snapshot = Histogram::default();
                        atomic.add_to(&mut snapshot);
                        assert!(
                            (last..=most).contains(&snapshot.count()),
                            "round {round}: {} after {last}",
                            snapshot.count()
                        );
                        last = snapshot.count();
                    }
                });
                for _ in 0..=2 * BEFORE {
                    atomic.record(Nanos(0));
                }
                reader.join().unwrap();
            });
        }
    }
}
