//! Amounts over time in a bounded number of bins that widen as the trace goes on.

use std::collections::BTreeMap;

use quotient_core::Nanos;

use super::BINS;

/// Width of a bin at first. Unit: ns. Default 10 µs: 5 ms of trace fit before the first widening.
const FIRST_WIDTH: u64 = 10_000;

/// ns of something by key and bin.
pub(super) struct Timeline<K> {
    origin: Nanos,
    width: u64,
    rows: BTreeMap<K, Vec<u64>>,
}

impl<K: Ord> Default for Timeline<K> {
    fn default() -> Timeline<K> {
        Timeline::new(Nanos::ZERO)
    }
}

impl<K: Ord> Timeline<K> {
    pub(super) fn new(origin: Nanos) -> Timeline<K> {
        Timeline {
            origin,
            width: FIRST_WIDTH,
            rows: BTreeMap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn contains(&self, key: &K) -> bool {
        self.rows.contains_key(key)
    }

    pub(super) fn width(&self) -> u64 {
        self.width
    }

    /// Rows in the order of their keys.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&K, &[u64])> {
        self.rows.iter().map(|(key, bins)| (key, bins.as_slice()))
    }

    /// Adds the time from `from` to `to`, spread over the bins that it touches.
    pub(super) fn add(&mut self, key: K, from: Nanos, to: Nanos) {
        let (from, to) = (
            (from - self.origin).as_nanos(),
            (to - self.origin).as_nanos(),
        );
        if to <= from {
            return;
        }
        while (to - 1) / self.width >= BINS as u64 {
            self.widen();
        }
        let width = self.width;
        let bins = self.rows.entry(key).or_insert_with(|| vec![0; BINS]);
        for bin in from / width..=(to - 1) / width {
            let begin = bin * width;
            let part = to.min(begin.saturating_add(width)) - from.max(begin);
            if let Some(sum) = bins.get_mut(bin as usize) {
                *sum += part;
            }
        }
    }

    fn widen(&mut self) {
        self.width = self.width.saturating_mul(2);
        for bins in self.rows.values_mut() {
            for index in 0..BINS / 2 {
                bins[index] = bins[index * 2] + bins[index * 2 + 1];
            }
            bins[BINS / 2..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_keeps_the_sum() {
        let mut timeline = Timeline::new(Nanos(1_000));
        timeline.add("a", Nanos(1_000), Nanos(26_000));
        timeline.add("a", Nanos::from_millis(100), Nanos::from_millis(300));
        timeline.add("a", Nanos(0), Nanos(2_000));
        let rows: Vec<_> = timeline.rows().collect();
        assert_eq!(rows[0].1.iter().sum::<u64>(), 25_000 + 200_000_000 + 1_000);
        assert!(timeline.width() * BINS as u64 >= 300_000_000);
    }

    #[test]
    fn the_end_of_time_fits() {
        let mut timeline = Timeline::new(Nanos::ZERO);
        timeline.add(1, Nanos(u64::MAX - 10), Nanos::MAX);
        assert_eq!(
            timeline.rows().next().map(|(_, bins)| bins.iter().sum()),
            Some(10_u64)
        );
    }
}
