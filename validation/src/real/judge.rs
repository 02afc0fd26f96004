//! Whether a prediction holds against what the kernel did: computed, not looked at.

use std::fmt;

use serde::Serialize;

use super::company::Company;

/// How far a throttled ratio may be off. Unit: points.
const RATIO_MAX_POINTS: f64 = 3.0;
/// How far a 99th percentile may be off. Unit: per cent of what was measured.
const P99_MAX_PERCENT: f64 = 15.0;
/// Part of the cases in which a ratio has to hold, per cent.
pub const RATIO_CASES_PERCENT: f64 = 95.0;
/// Part of the cases in which a percentile has to hold, per cent.
pub const P99_CASES_PERCENT: f64 = 90.0;
/// Runs from which the kernel's own spread counts.
pub const RUNS_MIN: usize = 10;

/// What the kernel did in several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The least.
    pub low: f64,
    /// The median; of throttled ratios the mean.
    pub mid: f64,
    /// The most.
    pub high: f64,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        Spread {
            low: at(0),
            mid: at(sorted.len() / 2),
            high: at(sorted.len().saturating_sub(1)),
        }
    }

    /// The same range about the mean of what `figure` says of `runs`: what a ratio is over all of them, since all are as long.
    #[must_use]
    pub fn about_mean<T>(self, runs: &[T], figure: impl Fn(&T) -> f64) -> Spread {
        let sum: f64 = runs.iter().map(figure).sum();
        Spread {
            mid: sum / runs.len() as f64,
            ..self
        }
    }

    /// Whether the value is within it.
    pub fn holds(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }
}

/// Median and range, to as many places as the format asks for; one if it does not.
impl fmt::Display for Spread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places = formatter.precision().unwrap_or(1);
        let Spread { low, mid, high } = self;
        write!(
            formatter,
            "{mid:.places$} ({low:.places$}..{high:.places$})"
        )
    }
}

/// One limit of one load.
#[derive(Clone, Debug, Serialize)]
pub struct Case {
    /// Which load.
    pub load: &'static str,
    /// Recorded under this limit, CPUs; none if it was free.
    pub recorded_under: Option<f64>,
    /// The limit, CPUs.
    pub cpus: f64,
    /// Its period, ms.
    pub period_ms: u64,
    /// Throttled periods, per cent.
    pub predicted_throttled: Spread,
    /// The same, measured.
    pub throttled: Spread,
    /// The 99th percentile of requests, ms.
    pub predicted_p99: Spread,
    /// The same, measured.
    pub p99: Spread,
    /// Runs of the kernel that count.
    pub runs: usize,
    /// Runs that do not, since others computed beside them.
    pub disturbed: usize,
    /// CPUs that others used as the recording was made; none where the machine does not say.
    pub others_recording: Option<f64>,
    /// The same in the busiest second of it.
    pub busiest_recording: Option<f64>,
    /// The prediction says that the limit is saturated: its percentile grows with time, so it is no figure.
    pub is_saturated: bool,
}

/// What became of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The throttled ratio.
    pub ratio: bool,
    /// The percentile; none where the prediction refuses one.
    pub p99: Option<bool>,
}

impl Case {
    fn company_of_recording(&self) -> Company {
        Company {
            mean: self.others_recording,
            busiest: self.busiest_recording,
        }
    }

    /// Whether this asks for less than the recording was allowed: then an interval has to hold the truth.
    fn is_below(&self) -> bool {
        self.recorded_under
            .is_some_and(|cpus| self.cpus < cpus * 0.99)
    }

    /// Judges it.
    pub fn verdict(&self) -> Verdict {
        if self.is_below() {
            let holds = |predicted: Spread, measured: Spread, slack: f64| {
                measured.mid >= predicted.low - slack && measured.mid <= predicted.high + slack
            };
            return Verdict {
                ratio: holds(self.predicted_throttled, self.throttled, RATIO_MAX_POINTS),
                p99: (!self.is_saturated).then(|| {
                    let slack = self.p99.mid * P99_MAX_PERCENT / 100.0;
                    holds(self.predicted_p99, self.p99, slack)
                }),
            };
        }
        let off = (self.predicted_throttled.mid - self.throttled.mid).abs();
        let ratio = off <= RATIO_MAX_POINTS;
        let p99 = (!self.is_saturated).then(|| {
            let (predicted, measured) = (self.predicted_p99.mid, self.p99.mid);
            let is_near = (predicted - measured).abs() <= measured * P99_MAX_PERCENT / 100.0;
            is_near || self.runs >= RUNS_MIN && self.p99.holds(predicted)
        });
        Verdict { ratio, p99 }
    }
}

/// All cases together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// How many.
    pub cases: usize,
    /// Cases in which the throttled ratio holds, per cent.
    pub ratio_percent: f64,
    /// Cases in which the percentile holds, per cent of those that have one.
    pub p99_percent: f64,
    /// Cases without a percentile.
    pub refused: usize,
    /// Runs of all cases that do not count, since others computed beside them.
    pub disturbed: usize,
    /// Recordings beside which others computed all the same.
    pub disturbed_recordings: usize,
    /// Whether both bars are met.
    pub pass: bool,
}

/// Counts.
pub fn summary(cases: &[Case]) -> Summary {
    let verdicts: Vec<Verdict> = cases.iter().map(Case::verdict).collect();
    let percent = |good: usize, all: usize| 100.0 * good as f64 / all.max(1) as f64;
    let ratios = verdicts.iter().filter(|verdict| verdict.ratio).count();
    let percentiles: Vec<bool> = verdicts.iter().filter_map(|verdict| verdict.p99).collect();
    let held = percentiles.iter().filter(|held| **held).count();
    let (ratio_percent, p99_percent) = (
        percent(ratios, verdicts.len()),
        percent(held, percentiles.len()),
    );
    Summary {
        cases: cases.len(),
        ratio_percent,
        p99_percent,
        refused: verdicts.len() - percentiles.len(),
        // Both recordings of a load are judged by the same runs.
        disturbed: cases
            .iter()
            .filter(|case| case.recorded_under.is_none())
            .map(|case| case.disturbed)
            .sum(),
        disturbed_recordings: beside_others(cases),
        pass: !cases.is_empty()
            && ratio_percent >= RATIO_CASES_PERCENT
            && p99_percent >= P99_CASES_PERCENT,
    }
}

/// Recordings beside which others computed.
fn beside_others(cases: &[Case]) -> usize {
    let mut recordings: Vec<(&str, bool)> = cases
        .iter()
        .filter(|case| case.company_of_recording().disturbs())
        .map(|case| (case.load, case.recorded_under.is_some()))
        .collect();
    recordings.sort_unstable();
    recordings.dedup();
    recordings.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exactly(value: f64) -> Spread {
        Spread::of(&[value])
    }

    fn case(throttled: f64, p99: f64) -> Case {
        Case {
            load: "open",
            recorded_under: None,
            cpus: 0.5,
            period_ms: 100,
            predicted_throttled: exactly(20.0),
            throttled: exactly(throttled),
            predicted_p99: exactly(100.0),
            p99: exactly(p99),
            runs: 1,
            disturbed: 0,
            others_recording: None,
            busiest_recording: None,
            is_saturated: false,
        }
    }

    #[test]
    fn bars_are_those_of_the_issue() {
        let verdict = |throttled, p99| case(throttled, p99).verdict();
        let (good, bad) = (Some(true), Some(false));
        assert_eq!(
            verdict(22.9, 110.0),
            Verdict {
                ratio: true,
                p99: good
            }
        );
        assert_eq!(
            verdict(23.1, 130.0),
            Verdict {
                ratio: false,
                p99: bad
            }
        );
        // The kernel's own spread counts from ten runs on.
        let mut wide = case(20.0, 130.0);
        wide.p99 = Spread::of(&[95.0, 130.0, 160.0]);
        assert_eq!(wide.verdict().p99, bad);
        wide.runs = 10;
        assert_eq!(wide.verdict().p99, good);
        wide.is_saturated = true;
        assert_eq!(wide.verdict().p99, None);
    }

    #[test]
    fn below_the_recorded_limit_the_interval_has_to_hold_the_truth() {
        let mut below = case(30.0, 160.0);
        below.recorded_under = Some(0.8);
        assert_eq!(
            below.verdict(),
            Verdict {
                ratio: false,
                p99: Some(false)
            }
        );
        below.predicted_throttled = Spread::of(&[10.0, 20.0, 35.0]);
        below.predicted_p99 = Spread::of(&[90.0, 100.0, 200.0]);
        assert_eq!(
            below.verdict(),
            Verdict {
                ratio: true,
                p99: Some(true)
            }
        );
        below.cpus = 1.0;
        assert!(!below.verdict().ratio, "above it the middle counts");
    }

    #[test]
    fn a_summary_fails_with_too_many_misses() {
        let mut cases = vec![case(20.0, 100.0); 19];
        assert!(summary(&cases).pass);
        cases.push(case(40.0, 100.0));
        assert!(summary(&cases).pass);
        cases.push(case(40.0, 100.0));
        let summary = summary(&cases);
        assert!(!summary.pass && summary.p99_percent > 99.0, "{summary:?}");
        assert!(!super::summary(&[]).pass);
    }

    #[test]
    fn what_others_disturbed_is_counted_once() {
        let disturbed = |under| Case {
            recorded_under: under,
            disturbed: 2,
            others_recording: Some(crate::real::company::MEAN_MAX * 2.0),
            ..case(0.0, 0.0)
        };
        let found = summary(&[disturbed(None), disturbed(None), disturbed(Some(1.0))]);
        assert_eq!((found.disturbed, found.disturbed_recordings), (4, 2));
    }
}
