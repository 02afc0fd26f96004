//! Whether a recording can have been made under the limit that somebody says it was made under.
//!
//! **Use.** Under a limit a group uses no more than one quota a period for long. Where the limit's periods begin is not known if it never bound, so a
//! recording contradicts it if, wherever they begin, some row of whole periods used more than their quotas, a saved burst, and what the kernel finds
//! out late: a tick of each CPU, which it takes off the next period.
//!
//! **Throttles.** Where a recording shows throttles of its own ([`recognise_limit`](Recording::recognise_limit)), they end where periods of the
//! limit begin, and what was used before each of them is its quota.

use super::{RecordedLimit, Recording};

/// Places of a period at which it is tried to begin.
const PLACES: u64 = 20;
/// Parts of a recording that are looked at, 16 MB of them. Default two million: 55 hours of periods of 100 ms.
const PARTS_MAX: u64 = 2_000_000;
/// What each CPU may use beyond a quota before that is found out. Default 10 ms: a tick of the slowest machines. Unit: ns.
const LATE: u64 = 10_000_000;
/// What may be used beyond a quota all the time, per cent: time that the host took is in a trace, and not in the kernel's account.
const USED_PERCENT: u64 = 105;
/// What was used in throttled periods is the quota from so much of it on, per cent: the rest may lie on other CPUs.
const THROTTLED_PERCENT: u64 = 80;

/// A row of periods in which more was used than a limit gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// Its begin, ns from the recording's.
    pub from_ns: u64,
    /// Its end.
    pub to_ns: u64,
    /// CPU time that was used in it, ns.
    pub used_ns: u64,
    /// What the limit gives in it, without a burst.
    pub quota_ns: u64,
}

/// Why a recording was not made under a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// More was used.
    Used(Beyond),
    /// The throttles that it shows are those of a limit with another period or quota, which is this one.
    Throttled(RecordedLimit),
}

impl Recording {
    /// What of this recording contradicts that it was made under that limit, on so many CPUs. O(runs + length / period).
    pub fn contradiction(&self, limit: &RecordedLimit, cpus: u32) -> Option<Contradiction> {
        if let Some(beyond) = self.beyond(limit, cpus) {
            return Some(Contradiction::Used(beyond));
        }
        let found = self.recognise_limit()?;
        let is_its_period = found.period_ns.is_multiple_of(limit.period_ns.max(1));
        let used = self.used_when_throttled(limit.period_ns.max(1));
        let least = u128::from(limit.quota_ns) * u128::from(THROTTLED_PERCENT) / 100;
        let is_its_quota = used.is_none_or(|used| u128::from(used) >= least);
        (!is_its_period || !is_its_quota).then_some(Contradiction::Throttled(found))
    }

    /// The row of periods in which most was used beyond their quotas, at that begin of periods at which that is least; `None` if it may have been.
    fn beyond(&self, limit: &RecordedLimit, cpus: u32) -> Option<Beyond> {
        let part = (limit.period_ns / PLACES).max(1);
        let used = self.used_by_short_parts(part);
        let rows = (0..PLACES as usize).map(|place| row_of(&used, place, limit.quota_ns));
        let row = rows.min_by_key(|row| row.excess)?;
        // Nobody is on more CPUs than he has tasks. A period may begin between two places.
        let cpus = u64::try_from(self.tasks())
            .unwrap_or(u64::MAX)
            .min(u64::from(cpus));
        let allowed = limit
            .burst_ns
            .saturating_add(cpus.saturating_mul(LATE + part));
        (row.excess > i128::from(allowed)).then(|| Beyond {
            from_ns: row.from as u64 * part,
            to_ns: row.to as u64 * part,
            used_ns: used[row.from..row.to].iter().sum(),
            quota_ns: limit
                .quota_ns
                .saturating_mul((row.to - row.from) as u64 / PLACES),
        })
    }

    /// CPU time that was used in each part of that length, up to a number of parts.
    fn used_by_short_parts(&self, part: u64) -> Vec<u64> {
        let count = (self.length.0 / part).min(PARTS_MAX);
        let mut used = vec![0; usize::try_from(count).unwrap_or(0)];
        // No limit of this kind holds for the real-time class.
        let tasks = self.tasks.iter().filter(|demand| !demand.is_real_time);
        for run in tasks.flat_map(|demand| &demand.runs) {
            for (number, time) in run.pieces(part, 0) {
                // What is left over at the end is in no whole part.
                if let Some(used) = used.get_mut(usize::try_from(number).unwrap_or(usize::MAX)) {
                    *used += time;
                }
            }
        }
        used
    }
}

/// Whole periods that follow each other.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// What was used in them beyond their quotas, ns.
    excess: i128,
    from: usize,
    to: usize,
}

/// The row with the most excess, of periods that begin at that part of [`PLACES`].
fn row_of(used: &[u64], place: usize, quota: u64) -> Row {
    let allowed = i128::from(quota) * i128::from(USED_PERCENT) / 100;
    let (mut best, mut row) = (Row::default(), Row::default());
    let parts = used.get(place..).unwrap_or_default();
    for (number, period) in parts.chunks_exact(PLACES as usize).enumerate() {
        let begin = place + number * PLACES as usize;
        if row.excess <= 0 {
            row = Row {
                excess: 0,
                from: begin,
                to: begin,
            };
        }
        row.to = begin + PLACES as usize;
        row.excess += i128::from(period.iter().sum::<u64>()) - allowed;
        if row.excess > best.excess {
            best = row;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::limited::tests::{millis, recorded};
    use super::*;
    use quotient_core::Limit;

    /// What contradicts that limit, in a load of 0.5 CPUs that was recorded under another one, or none.
    fn found(under: Option<Limit>, said: Limit) -> Option<Contradiction> {
        let recording = recorded(under);
        recording.contradiction(&recording.given_limit(said), 2)
    }

    #[test]
    fn the_limit_that_there_was_is_not_contradicted() {
        for limit in [
            Limit::new(millis(50), millis(100)),
            Limit::new(millis(10), millis(20)),
            Limit::new(millis(60), millis(100)).with_burst(millis(30)),
        ] {
            assert_eq!(found(Some(limit), limit), None, "{limit:?}");
        }
        // What never bound says nothing against a limit that never would.
        assert_eq!(found(None, Limit::new(millis(190), millis(100))), None);
    }

    #[test]
    fn more_use_than_a_limit_gives_contradicts_it() {
        let small = Limit::new(millis(20), millis(100));
        let Some(Contradiction::Used(beyond)) = found(None, small) else {
            panic!("it uses twice as much");
        };
        assert!(beyond.used_ns > 2 * beyond.quota_ns, "{beyond:?}");
        assert!(beyond.to_ns - beyond.from_ns > 10_000_000_000, "{beyond:?}");
        let there = Limit::new(millis(50), millis(100));
        let found = found(Some(there), Limit::new(millis(40), millis(100)));
        assert!(matches!(found, Some(Contradiction::Used(_))), "{found:?}");
    }

    #[test]
    fn throttles_of_another_limit_contradict_it() {
        let there = Limit::new(millis(50), millis(100));
        for said in [
            Limit::new(millis(80), millis(100)),
            Limit::new(millis(150), millis(250)),
        ] {
            let found = found(Some(there), said);
            let Some(Contradiction::Throttled(limit)) = found else {
                panic!("{said:?} {found:?}");
            };
            assert_eq!(limit.period_ns, 100_000_000);
            assert!(limit.quota_ns.abs_diff(50_000_000) < 4_000_000, "{limit:?}");
        }
    }
}
