//! Latencies in histograms: all of a phase, and by window of time.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::protocol::Window;

/// The longest latency that is told apart; longer ones count as this. Far above any phase of the demo.
const LONGEST_US: u64 = 3_600_000_000;
/// Three digits: a percentile is off by less than 0.1 %.
const DIGITS: u8 = 3;

/// Latencies of one phase.
#[derive(Debug)]
pub struct Latencies {
    all: Histogram<u64>,
    windows: Vec<Histogram<u64>>,
    window_length: Duration,
}

impl Latencies {
    /// No latencies yet; `length` of the phase and `window_length` give the number of windows.
    pub fn new(length: Duration, window_length: Duration) -> Self {
        let window_length = window_length.max(Duration::from_millis(1));
        let count = length
            .as_micros()
            .div_ceil(window_length.as_micros())
            .max(1);
        let windows = (0..count).map(|_| empty()).collect();
        Self {
            all: empty(),
            windows,
            window_length,
        }
    }

    /// One request: when it was answered (or given up) and when it was meant to start, both from the start of the
    /// phase. It belongs to the window in which it was answered, so that a queue that grows shows as a line that rises.
    pub fn record(&mut self, intended: Duration, answered: Duration) {
        let latency = answered.saturating_sub(intended);
        let micros = u64::try_from(latency.as_micros()).unwrap_or(LONGEST_US);
        self.all.saturating_record(micros);
        let last = self.windows.len() - 1;
        let index =
            usize::try_from(answered.as_micros() / self.window_length.as_micros()).unwrap_or(last);
        self.windows[index.min(last)].saturating_record(micros);
    }

    /// 99th percentile so far, in microseconds; zero if there is none.
    pub fn p99_us(&self) -> u64 {
        self.all.value_at_quantile(0.99)
    }

    /// Requests recorded so far.
    pub fn count(&self) -> u64 {
        self.all.len()
    }

    /// Pairs of microseconds and count, for `from_pairs` of another process.
    pub fn pairs(&self) -> Vec<(u64, u64)> {
        self.all
            .iter_recorded()
            .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
            .collect()
    }

    /// The windows that have a request in them.
    pub fn windows(&self) -> Vec<Window> {
        let length_us = u64::try_from(self.window_length.as_micros()).unwrap_or(u64::MAX);
        (0u64..)
            .zip(&self.windows)
            .filter(|(_, window)| !window.is_empty())
            .map(|(index, window)| Window {
                offset_us: index.saturating_mul(length_us),
                count: window.len(),
                p99_us: window.value_at_quantile(0.99),
            })
            .collect()
    }
}

/// An empty histogram of the demo's range and precision.
pub fn empty() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_US, DIGITS)
        .expect("constant bounds, which the test below builds")
}

/// Adds the pairs of another process to `histogram`.
pub fn add_pairs(histogram: &mut Histogram<u64>, pairs: &[(u64, u64)]) {
    for (micros, count) in pairs {
        histogram.saturating_record_n(*micros, *count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_carry_the_percentiles_over() {
        let mut latencies = Latencies::new(Duration::from_secs(1), Duration::from_millis(250));
        for millis in 0..1_000 {
            latencies.record(Duration::ZERO, Duration::from_millis(millis));
        }
        let mut merged = empty();
        add_pairs(&mut merged, &latencies.pairs());
        assert_eq!(merged.len(), 1_000);
        assert_eq!(merged.value_at_quantile(0.99), latencies.p99_us());
        assert!(
            (988_000..992_000).contains(&latencies.p99_us()),
            "{}",
            latencies.p99_us()
        );
    }

    #[test]
    fn windows_follow_the_answer() {
        let mut latencies = Latencies::new(Duration::from_secs(1), Duration::from_millis(250));
        latencies.record(Duration::from_millis(10), Duration::from_millis(13));
        latencies.record(Duration::from_millis(10), Duration::from_millis(1_900));
        let windows = latencies.windows();
        assert_eq!(
            windows
                .iter()
                .map(|window| window.offset_us)
                .collect::<Vec<_>>(),
            [0, 750_000]
        );
        assert!(windows[0].p99_us < windows[1].p99_us);
    }
}
