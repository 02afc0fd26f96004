//! Latencies: histograms with a bounded error and a fixed size.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest time told apart, ns: 1,000 s. Longer ones count as that.
const LONGEST: u64 = 1_000_000_000_000;

/// Values below this are told apart to the unit; above, each doubling is cut into half as many parts, so every figure is within 1 %.
const FINE: u64 = 256;

/// log2 of the parts of a doubling.
const PARTS_SHIFT: u32 = FINE.trailing_zeros() - 1;

/// Where a time is counted. The same places as those of the histogram that percentiles are read from.
#[inline]
fn place_of(time: u64) -> usize {
    let shift = (time | (FINE - 1)).ilog2() - PARTS_SHIFT;
    (((shift as u64) << PARTS_SHIFT) + (time >> shift)) as usize
}

/// The least time of a place.
fn least_of(place: usize) -> u64 {
    let place = place as u64;
    let shift = (place >> PARTS_SHIFT).saturating_sub(1);
    (place - (shift << PARTS_SHIFT)) << shift
}

/// Times counted by their place: one addition each, since a run counts millions. Percentiles are read from a library's histogram that
/// is made of them at the end.
#[derive(Debug)]
pub(crate) struct Times {
    counts: Box<[u64]>,
}

impl Times {
    pub(crate) fn new() -> Times {
        Times {
            counts: vec![0; place_of(LONGEST) + 1].into_boxed_slice(),
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, time: u64) {
        // The last place is that of the longest time.
        let place = place_of(time.min(LONGEST));
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
    }

    /// The places that were used, with how many there are.
    pub(crate) fn parts(&self) -> Vec<(u32, u64)> {
        let used = (0_u32..).zip(self.counts.iter().copied());
        used.filter(|(_, count)| *count > 0).collect()
    }

    /// Adds what another one has in its places.
    pub(crate) fn add(&mut self, parts: &[(u32, u64)]) {
        for (place, more) in parts {
            if let Some(count) = self.counts.get_mut(*place as usize) {
                *count += more;
            }
        }
    }

    /// From 1 ns to 1,000 s with two significant digits.
    fn histogram(&self) -> Histogram<u64> {
        let Ok(mut histogram) = Histogram::new_with_bounds(1, LONGEST, 2) else {
            unreachable!("the bounds are constants that fit the library's conditions")
        };
        for (place, count) in self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0)
        {
            histogram.saturating_record_n(least_of(place), *count);
        }
        histogram
    }
}

/// What a meter has recorded.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) name: String,
    pub(crate) times: Times,
    /// Pieces of work done, timed or not.
    pub(crate) count: u64,
    pub(crate) last_at: u64,
}

impl Meter {
    pub(crate) fn new(name: &str) -> Meter {
        Meter {
            name: name.into(),
            times: Times::new(),
            count: 0,
            last_at: 0,
        }
    }

    #[inline]
    pub(crate) fn record(&mut self, length: u64, now: u64) {
        self.times.record(length);
        self.count += 1;
        self.last_at = now;
    }
}

/// Percentiles of times, ns, each within 1 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Percentiles {
    /// How many were recorded.
    pub count: u64,
    /// Their mean.
    pub mean_ns: u64,
    /// One in twenty was at most this long: of slack, the bad end.
    pub p5_ns: u64,
    /// Half of them were at most this long.
    pub p50_ns: u64,
    /// Nine in ten.
    pub p90_ns: u64,
    /// 99 in 100.
    pub p99_ns: u64,
    /// 999 in 1,000.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Percentiles {
    pub(crate) fn of(times: &Times) -> Percentiles {
        let histogram = times.histogram();
        let at = |quantile| histogram.value_at_quantile(quantile);
        Percentiles {
            count: histogram.len(),
            // Truncated: the figure is good to two digits anyway.
            mean_ns: histogram.mean() as u64,
            p5_ns: at(0.05),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: histogram.max(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Percentiles are those of the library told each time by itself.
    #[test]
    fn places_are_those_of_the_histogram() {
        let mut random = Random::new(3, 1);
        let (mut times, mut plain) = (Times::new(), Times::new().histogram());
        for round in 0..20_000 {
            let length = random.bits() >> (24 + round % 40);
            let length = if round % 7 == 0 { round } else { length };
            assert!(least_of(place_of(length)) <= length);
            assert_eq!(place_of(least_of(place_of(length))), place_of(length));
            times.record(length);
            plain.saturating_record(length.min(LONGEST));
        }
        let histogram = times.histogram();
        assert_eq!(histogram.len(), plain.len());
        assert_eq!(histogram.max(), plain.max());
        assert_eq!(histogram.mean().to_bits(), plain.mean().to_bits());
        for permille in 0..=1_000 {
            let quantile = f64::from(permille) / 1_000.0;
            assert_eq!(
                histogram.value_at_quantile(quantile),
                plain.value_at_quantile(quantile)
            );
        }
    }

    #[test]
    fn the_longest_time_stands_for_longer_ones() {
        let mut times = Times::new();
        times.record(u64::MAX);
        times.record(0);
        let found = Percentiles::of(&times);
        assert_eq!(found.count, 2);
        assert!(found.max_ns.abs_diff(LONGEST) <= LONGEST / 100, "{found:?}");
    }
}
