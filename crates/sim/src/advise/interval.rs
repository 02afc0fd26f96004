//! A figure over the draws of a load, and where it lies for this load in the long run.
//!
//! **90 %.** Draws of the blocks of a recording spread about its figure as recordings of that length spread about the truth. So the interval is
//! Student's, `mid ± t s sqrt(1 + 1/n) sqrt(m / (m - 1))` for `n` draws of `m` blocks, with as many degrees of freedom as the fewer of both leave;
//! of times on a logarithmic scale. What a percentile or a part is in the long run is not the middle of what short runs have, where bad spells are
//! rare and long: the figure of all draws together lies inside as well, by as much, and so do all draws, since spreads are not always normal. Of
//! throttled periods it is at least as wide as the normal one of as many independent periods with half of one more throttled: that nothing was
//! throttled in a hundred periods does not say that nothing ever is.

use serde::Serialize;

/// Quantiles of Student's distribution at 95 %, for 1 to 10 degrees of freedom.
const STUDENT: [f64; 10] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812,
];

/// The normal distribution's quantile at 95 %.
const NORMAL: f64 = 1.645;

/// What Student's quantile is larger by for each part of a degree of freedom; within 0.5 % for more than ten of them.
const PER_DEGREE: f64 = 0.96;

/// How much farther the upper end of a time is away from the middle than by the spread of draws: a long spell that did not come in a recording is
/// missing from all of its draws. Measured: `tests/coverage.rs`.
const UPWARDS: f64 = 1.5;

/// The middle of a figure, and where it lies in nine of ten cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Interval {
    /// In one of twenty cases it is less.
    pub low: f64,
    /// The figure of the recording itself; the median of the seeds where these make loads of their own.
    pub mid: f64,
    /// In one of twenty cases it is more.
    pub high: f64,
    /// The least of any seed and the middle.
    pub least: f64,
    /// The most of any seed and the middle.
    pub most: f64,
    /// Between which figures the middle half of the seeds lies. It does not widen with their number, as `least` and `most` do.
    #[serde(skip)]
    pub half: [f64; 2],
}

impl Interval {
    /// Another middle, which it holds.
    pub(super) fn centre(&mut self, mid: f64) {
        self.mid = mid;
        for end in [&mut self.low, &mut self.least] {
            *end = end.min(mid);
        }
        for end in [&mut self.high, &mut self.most] {
            *end = end.max(mid);
        }
    }

    /// The same of a time that was looked at for so long: nothing that takes longer was seen, so a spread by factors says nothing of how much longer
    /// it may be. What was seen stays inside.
    pub(super) fn within(mut self, elapsed: f64) -> Interval {
        self.high = self.high.min(elapsed.max(self.most).max(self.mid));
        self
    }
}

/// How figures were drawn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draws {
    /// The blocks that each is made of; 0 where it is a load of its own.
    pub(super) blocks: u64,
}

impl Draws {
    /// The interval of any figure; `together` is that of all draws.
    pub(super) fn interval(self, values: Vec<f64>, together: Option<f64>) -> Interval {
        self.about(values, together, 0.0)
    }

    /// That of times, which spread by factors.
    pub(super) fn of_times(self, values: Vec<f64>, together: f64) -> Interval {
        if together <= 0.0 || values.iter().any(|value| *value <= 0.0) {
            return self.interval(values, Some(together));
        }
        let logarithms: Vec<f64> = values.into_iter().map(f64::ln).collect();
        let Interval {
            low,
            mid,
            high,
            least,
            most,
            half,
        } = self.interval(logarithms, Some(together.ln()));
        let middle = mid.max(together.ln());
        Interval {
            low: low.exp(),
            mid: mid.exp(),
            high: (middle + UPWARDS * (high - middle)).exp(),
            least: least.exp(),
            most: most.exp(),
            half: half.map(f64::exp),
        }
    }

    /// That of a part of so many periods in each draw.
    pub(super) fn of_parts(self, values: Vec<f64>, periods: u64) -> Interval {
        let periods = periods.max(1) as f64;
        let together = mean(&values);
        let part = (together * periods + 0.5) / (periods + 1.0);
        let spread = (part * (1.0 - part) / periods).max(0.0).sqrt();
        let mut interval = self.about(values, Some(together), spread);
        interval.low = interval.low.clamp(0.0, 1.0);
        interval.high = interval.high.clamp(0.0, 1.0);
        interval
    }

    /// What the mean of all draws is at most, in 19 of 20 cases.
    pub(super) fn mean_at_most(self, values: &[f64]) -> f64 {
        let count = values.len();
        let error = deviation(values) / (count.max(1) as f64).sqrt();
        mean(values) + self.factor(count) * error
    }

    /// The interval, at least as wide as that of a known standard deviation of `spread`.
    fn about(self, mut values: Vec<f64>, together: Option<f64>, spread: f64) -> Interval {
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
        let (least, mid, most) = (at(0), at(count / 2), at(count.saturating_sub(1)));
        let quarter = count.saturating_sub(1) / 4;
        let quartiles = [at(quarter), at(count.saturating_sub(1 + quarter))];
        let once_more = (1.0 + 1.0 / count.max(1) as f64).sqrt();
        let drawn = self.factor(count) * deviation(&values) * once_more;
        let half = if count > 1 {
            drawn.max(NORMAL * spread)
        } else {
            0.0
        };
        let together = together.unwrap_or(mid);
        Interval {
            low: least.min(mid.min(together) - half),
            mid,
            high: most.max(mid.max(together) + half),
            least,
            most,
            half: quartiles,
        }
    }

    /// What a standard deviation over so many draws is multiplied by. One draw says nothing of how others spread: 0.
    fn factor(self, draws: usize) -> f64 {
        let blocks = usize::try_from(self.blocks).unwrap_or(usize::MAX);
        match (draws, blocks) {
            (0 | 1, _) => 0.0,
            (_, 0 | 1) => student(draws - 1),
            _ => student(draws.min(blocks) - 1) * (blocks as f64 / (blocks - 1) as f64).sqrt(),
        }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Of a sample.
fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / values.len().saturating_sub(1).max(1) as f64).sqrt()
}

fn student(degrees: usize) -> f64 {
    let exact = degrees
        .checked_sub(1)
        .and_then(|index| STUDENT.get(index).copied());
    exact.unwrap_or(NORMAL * (1.0 + PER_DEGREE / degrees.max(1) as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const OWN: Draws = Draws { blocks: 0 };

    /// A sum of twelve is nearly normal; one more draw lies inside of nine intervals of ten.
    #[test]
    fn nine_of_ten_intervals_hold_one_draw_more() {
        let mut random = Random::new(7, 7);
        let mut draw = || (0..12).map(|_| random.below(1_000_000)).sum::<u64>() as f64;
        let inside = (0..2_000)
            .filter(|_| {
                let interval = OWN.interval((0..10).map(|_| draw()).collect(), None);
                (interval.low..=interval.high).contains(&draw())
            })
            .count();
        assert!((1_760..=1_880).contains(&inside), "{inside}");
    }

    #[test]
    fn what_never_happened_may_happen() {
        let never = |periods| OWN.of_parts(vec![0.0; 10], periods);
        assert!((0.005..0.01).contains(&never(200).high), "{:?}", never(200));
        assert!(never(20).high > 0.05 && never(2_000).high < 0.001);
        assert_eq!(never(200).low.to_bits(), 0.0_f64.to_bits());
        let always = OWN.of_parts(vec![1.0; 10], 100);
        assert!(always.low < 1.0 && always.high <= 1.0);
    }

    #[test]
    fn times_spread_by_factors() {
        let interval = OWN.of_times(vec![1e6, 2e6, 4e6], 3e6);
        assert!((interval.mid - 2e6).abs() < 1.0, "{interval:?}");
        assert!(interval.low > 0.0 && interval.low < 1e6 && interval.high > 4e6);
        assert_eq!(OWN.interval(Vec::new(), None), Interval::default());
    }

    #[test]
    fn no_time_is_longer_than_was_looked() {
        let wild = || OWN.of_times(vec![1e6, 1e9, 1e6, 2e9], 2e9);
        assert!(wild().high > 60e9, "{:?}", wild());
        for (elapsed, expected) in [(10e9, 10e9), (1e9, 2e9)] {
            let high = wild().within(elapsed).high;
            assert!((high - expected).abs() < 1e3, "{high} {expected}");
        }
    }

    /// Hazard: what is inside of all seeds is more with each seed, and a verdict by that is one about their number.
    #[test]
    fn the_middle_half_does_not_widen_with_the_number_of_seeds() {
        let half = |count: u32| {
            let values = (0..count).map(|number| f64::from(number) / f64::from(count.max(2) - 1));
            OWN.interval(values.collect(), None).half
        };
        assert_eq!(half(1), [0.0, 0.0]);
        for count in [5, 9, 21, 101] {
            assert_eq!(half(count), [0.25, 0.75], "{count}");
        }
    }

    #[test]
    fn few_blocks_make_wide_intervals() {
        let width = |blocks| {
            let values = (0..10).map(f64::from).collect();
            let Interval { low, high, .. } = Draws { blocks }.interval(values, None);
            high - low
        };
        assert!(width(8) > 1.05 * width(1_000) && width(1_000) < 1.01 * width(0));
        let mean = OWN.mean_at_most(&[0.0, 0.0, 0.0, 8.0]);
        assert!((6.5..7.0).contains(&mean), "{mean}");
    }
}
