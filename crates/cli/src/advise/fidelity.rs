//! Whether what is played is what was recorded. A trace says how long its requests took and what its threads used; played as it was recorded, without
//! a limit or under its own, it has to come to the same. Where it does not, nothing that is predicted of another limit is worth more. That finds
//! what no rule was written for: company of another priority, clients that were taken for others, arrivals that a limit held back.

use quotient_core::Nanos;
use quotient_sim::Percentiles;
use quotient_sim::advise::{Interval, Prediction, Subject};
use quotient_sim::batch::{BatchError, Control};
use quotient_sim::replay::RecordedLimit;
use serde::Serialize;

use super::doubts::Doubts;
use super::{WIDE, under};

/// How often a recording is played as it was, each time with another seed and phase, whatever `--seeds` says: whether a replay is to be trusted is a
/// matter of the recording, not of how narrow somebody wants his intervals. Default 9: quarters of that are figures of single seeds.
pub(super) const SEEDS: u32 = 9;
/// Played under the limit that it was recorded under, a load may be throttled in so many periods more or less, in thousandths. Default 50:
/// what is played was off by 0 to 4 points where its figures held, and by 10 to 61 where a wrong limit was recommended.
const THROTTLED_PERMILLE: u64 = 50;
/// Percentiles outside of the middle half of the seeds by so much, per cent, are said; and by so much, nothing is recommended. All seeds together
/// would be no measure: some phase comes near any figure if only enough are tried.
const TIMES_PERCENT: [f64; 2] = [25.0, 100.0];
/// What they may differ by in any case, ns: a limit's periods are a hundred times as long.
const TIMES_ALLOWED: f64 = 1e6;
/// The same of the CPU time that is used. The phase of a seed moves up to 100 ms of the load out of the end.
const USAGE_PERCENT: [f64; 2] = [7.0, 15.0];

/// What a trace itself says.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Recorded {
    /// CPU time used, in thousandths of a CPU.
    pub(super) usage_permille: u64,
    /// How long what is measured took, as far as it shows.
    pub(super) times: Option<Percentiles>,
    /// The limit that it was recorded under.
    #[serde(skip)]
    pub(super) limit: Option<RecordedLimit>,
    /// Whether that, or that there was none, was said, by who asks or by the trace.
    #[serde(skip)]
    pub(super) is_limit_known: bool,
}

/// The same, played.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Played {
    usage_permille: u64,
    throttled_permille: u64,
    p50_ns: Interval,
    p99_ns: Interval,
    /// CPU time used without any limit, in thousandths of a CPU.
    #[serde(skip)]
    pub(super) free_usage_permille: u64,
}

impl Played {
    fn of(row: &Prediction, free_usage_permille: u64) -> Played {
        Played {
            // What was done is measured by CPU time in a replay.
            usage_permille: (row.done_ratio.mid * free_usage_permille as f64).round() as u64,
            throttled_permille: (row.throttled_ratio.mid * 1000.0).round() as u64,
            p50_ns: row.p50_ns,
            p99_ns: row.p99_ns,
            free_usage_permille,
        }
    }
}

impl Recorded {
    /// Plays it as it was, in [`SEEDS`] seeds on so many threads of ours.
    pub(super) fn play(
        &self,
        subject: &Subject<'_>,
        threads: usize,
        control: &Control,
    ) -> Result<Option<Played>, BatchError> {
        let limit = match &self.limit {
            Some(limit) => {
                let saved = u128::from(limit.burst_ns) * 100 / u128::from(limit.quota_ns.max(1));
                let saved = u64::try_from(saved.min(100)).unwrap_or(100);
                (limit.permille(), Nanos(limit.period_ns), saved)
            }
            None => WIDE,
        };
        let advice = under(subject, limit, 0, (SEEDS, threads), control)?;
        let usage = advice.free_usage_permille;
        let row = advice.predictions.first();
        Ok(row.map(|row| Played::of(row, usage)))
    }

    /// Both in one line, and what speaks against the replay.
    pub(super) fn judge(&self, played: &Played, notes: &mut Vec<String>, doubts: &mut Doubts) {
        let mut of_times = [String::new(), String::new()];
        if let Some(times) = &self.times {
            of_times = [
                words(times.p50_ns as f64, times.p99_ns as f64),
                words(played.p50_ns.mid, played.p99_ns.mid) + &half_of(&played.p99_ns),
            ];
        }
        let [recorded, again] = of_times;
        notes.push(format!(
            "recorded: {:.2} CPUs{recorded}; played as it was recorded: {:.2} CPUs{again}",
            self.usage_permille as f64 / 1000.0,
            played.usage_permille as f64 / 1000.0
        ));
        self.judge_throttling(played, doubts);
        let mut differs = Vec::new();
        let mut worst = 0;
        let mut note = |what: String, level: usize| {
            if level > 0 {
                differs.push(what);
                worst = worst.max(level);
            }
        };
        let (recorded, again) = (self.usage_permille as f64, played.usage_permille as f64);
        let usage = level(beyond(recorded, (again, again), 10.0), USAGE_PERCENT);
        note(
            format!("{:.2} CPUs for {:.2}", again / 1e3, recorded / 1e3),
            usage,
        );
        if let Some(times) = &self.times {
            let percentiles = [
                ("median", times.p50_ns, played.p50_ns),
                ("99th percentile", times.p99_ns, played.p99_ns),
            ];
            for (name, recorded, again) in percentiles {
                let [low, high] = again.half;
                let off = beyond(recorded as f64, (low, high), TIMES_ALLOWED);
                let what = format!(
                    "a {name} of {:.1} ms{} for {:.1}",
                    again.mid / 1e6,
                    half_of(&again),
                    recorded as f64 / 1e6
                );
                note(what, level(off, TIMES_PERCENT));
            }
        }
        if !differs.is_empty() {
            doubts.add(
                worst > 1,
                format!(
                    "played as it was recorded, this comes to {}: what is played is not quite what was recorded, and what is predicted is off by about as much{}",
                    differs.join(", "),
                    self.limit_hint()
                ),
            );
        }
    }

    fn judge_throttling(&self, played: &Played, doubts: &mut Doubts) {
        let Some(limit) = &self.limit else {
            return;
        };
        if played.throttled_permille.abs_diff(limit.throttled_permille) > THROTTLED_PERMILLE {
            doubts.add(
                true,
                format!(
                    "played under the limit of {:.2} CPUs that it was recorded under, it is throttled in {:.0} % of the periods, and was in {:.0} %: what is played is not what was recorded; record without a limit{}",
                    limit.permille() as f64 / 1000.0,
                    played.throttled_permille as f64 / 10.0,
                    limit.throttled_permille as f64 / 10.0,
                    self.limit_hint()
                ),
            );
        }
    }

    /// A limit that nobody told of makes a replay go wrong: it is not undone, or another one is.
    fn limit_hint(&self) -> &'static str {
        match (self.is_limit_known, &self.limit) {
            (true, _) => "",
            (false, None) => {
                "; if there was a limit while this was recorded, --recorded-limit has to say which"
            }
            (false, Some(_)) => {
                "; the limit was found by its shape: --recorded-limit says which there was, or none"
            }
        }
    }
}

fn words(p50: f64, p99: f64) -> String {
    format!(", p50 {:.2} ms, p99 {:.2} ms", p50 / 1e6, p99 / 1e6)
}

/// The middle half of the seeds, ms.
fn half_of(interval: &Interval) -> String {
    let [low, high] = interval.half.map(|end| end / 1e6);
    format!(" ({low:.1}..{high:.1} in half of the replays)")
}

/// By how many per cent of the smaller one a figure lies outside of an interval, but for what is allowed.
fn beyond(figure: f64, (low, high): (f64, f64), allowed: f64) -> f64 {
    let outside = (figure - high).max(low - figure) - allowed;
    let smaller = figure.min(low.max(0.0)).max(allowed);
    if outside <= 0.0 {
        0.0
    } else {
        100.0 * outside / smaller
    }
}

/// How many of those are passed.
fn level(percent: f64, bars: [f64; 2]) -> usize {
    bars.iter().filter(|bar| percent > **bar).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(throttled_permille: u64) -> RecordedLimit {
        RecordedLimit {
            quota_ns: 60_000_000,
            period_ns: 100_000_000,
            burst_ns: 0,
            given: true,
            throttled_permille,
        }
    }

    /// A recording of 0.5 CPUs, with a median of 10 ms and a p99 of 40 ms, of which it is known that there was that limit or none.
    fn half_a_cpu(limit: Option<RecordedLimit>) -> Recorded {
        let times = Percentiles {
            p50_ns: 10_000_000,
            p99_ns: 40_000_000,
            ..Percentiles::default()
        };
        Recorded {
            usage_permille: 500,
            times: Some(times),
            limit,
            is_limit_known: true,
        }
    }

    /// The doubts of that recording.
    fn judged(limit: Option<RecordedLimit>, played: [u64; 4]) -> Vec<bool> {
        let recorded = half_a_cpu(limit);
        let [usage_permille, throttled_permille, p50, p99] = played;
        let millis = |millis: u64| Interval {
            low: millis as f64 * 0.9e6,
            mid: millis as f64 * 1e6,
            high: millis as f64 * 1.1e6,
            least: millis as f64 * 0.9e6,
            most: millis as f64 * 1.1e6,
            half: [millis as f64 * 0.9e6, millis as f64 * 1.1e6],
        };
        let played = Played {
            usage_permille,
            throttled_permille,
            p50_ns: millis(p50),
            p99_ns: millis(p99),
            free_usage_permille: usage_permille,
        };
        let (mut notes, mut doubts) = (Vec::new(), Doubts::default());
        recorded.judge(&played, &mut notes, &mut doubts);
        assert_eq!(notes.len(), 1);
        doubts.0.iter().map(|doubt| doubt.decisive).collect()
    }

    #[test]
    fn a_limit_that_nobody_told_of_is_named_as_a_cause() {
        let hint = |limit, is_limit_known| {
            let recorded = Recorded {
                usage_permille: 500,
                times: None,
                limit,
                is_limit_known,
            };
            let played = Played {
                usage_permille: 300,
                throttled_permille: 100,
                p50_ns: Interval::default(),
                p99_ns: Interval::default(),
                free_usage_permille: 300,
            };
            let (mut notes, mut doubts) = (Vec::new(), Doubts::default());
            recorded.judge(&played, &mut notes, &mut doubts);
            assert!(!doubts.0.is_empty());
            let hints = doubts.0.iter();
            let hints = hints.map(|doubt| doubt.reason.contains("--recorded-limit"));
            hints.collect::<Vec<_>>()
        };
        assert_eq!(hint(None, true), [false]);
        assert_eq!(hint(None, false), [true]);
        assert_eq!(hint(Some(limit(910)), true), [false, false]);
        assert_eq!(hint(Some(limit(910)), false), [true, true]);
    }

    #[test]
    fn what_is_played_has_to_be_throttled_as_what_was_recorded() {
        for (played, expected) in [
            (870, vec![]),
            (950, vec![]),
            (300, vec![true]),
            (1_000, vec![true]),
        ] {
            let found = judged(Some(limit(910)), [500, played, 10, 40]);
            assert_eq!(found, expected, "{played}");
        }
    }

    #[test]
    fn what_is_played_has_to_take_as_long_and_as_much_as_what_was_recorded() {
        let cases = [
            ([500, 0, 10, 40], vec![]),
            ([480, 0, 9, 46], vec![]),
            ([450, 0, 10, 40], vec![false]),
            ([400, 0, 10, 40], vec![true]),
            ([500, 0, 10, 65], vec![false]),
            ([500, 0, 16, 40], vec![false]),
            ([500, 0, 10, 15], vec![true]),
            ([500, 0, 10, 200], vec![true]),
        ];
        for (played, expected) in cases {
            assert_eq!(judged(None, played), expected, "{played:?}");
        }
    }

    /// Hazard: one phase of many comes near what was recorded, and a replay that is off by half passes.
    #[test]
    fn one_seed_of_many_does_not_excuse_the_rest() {
        let recorded = half_a_cpu(None);
        let decides = |half: [f64; 2]| {
            let of = |mid: f64, half: [f64; 2]| Interval {
                low: mid / 2.0,
                mid,
                high: 45e6,
                least: mid,
                most: 38e6,
                half,
            };
            let played = Played {
                usage_permille: 500,
                throttled_permille: 0,
                p50_ns: of(10e6, [10e6, 10e6]),
                p99_ns: of(14e6, half),
                free_usage_permille: 500,
            };
            let mut doubts = Doubts::default();
            recorded.judge(&played, &mut Vec::new(), &mut doubts);
            doubts.0.first().map(|doubt| doubt.decisive)
        };
        assert_eq!(decides([14e6, 15e6]), Some(true));
        assert_eq!(decides([14e6, 38e6]), None);
    }

    #[test]
    fn short_times_may_differ_by_a_millisecond() {
        assert_eq!(
            beyond(100_000.0, (900_000.0, 1_000_000.0), TIMES_ALLOWED),
            0.0
        );
        assert_eq!(beyond(10e6, (21e6, 30e6), TIMES_ALLOWED), 100.0);
    }
}
