//! Latencies: histograms with a bounded error and a fixed size.

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest time told apart, ns: 1,000 s. Longer ones count as that.
const LONGEST: u64 = 1_000_000_000_000;

/// An empty histogram from 1 ns to 1,000 s with two significant digits, so every figure is within 1 %.
pub(crate) fn histogram() -> Histogram<u64> {
    match Histogram::new_with_bounds(1, LONGEST, 2) {
        Ok(histogram) => histogram,
        Err(_) => unreachable!("the bounds are constants that fit the library's conditions"),
    }
}

/// What a meter has recorded.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) name: String,
    pub(crate) times: Histogram<u64>,
    /// Pieces of work done, timed or not.
    pub(crate) count: u64,
    pub(crate) last_at: u64,
}

impl Meter {
    pub(crate) fn new(name: &str) -> Meter {
        Meter {
            name: name.into(),
            times: histogram(),
            count: 0,
            last_at: 0,
        }
    }

    pub(crate) fn record(&mut self, length: u64, now: u64) {
        self.times.saturating_record(length);
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
    pub(crate) fn of(histogram: &Histogram<u64>) -> Percentiles {
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
