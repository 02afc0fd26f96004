//! Undoing what a limit did to the arrivals of a recording.
//!
//! **What is cut.** Work that arrives while a group is throttled is not lost: it is computed later. But arrivals at a thread that
//! waits already leave no trace of their own: one long burst stands for several. Such a burst is cut into pieces of the length of
//! bursts that were never throttled, with arrivals spread over its time: at random, another way with each seed. Some seeds
//! leave them whole, which is the other extreme: the two bound what may have been, and lie as far apart as the limit cut much.
//! Closed loops are not cut: who waits for his answer sends nothing meanwhile.

use super::limited::{RecordedLimit, permille};
use super::{Burst, Demand, OUTSIDE, Recording};
use crate::random::Random;
use core::cmp::Reverse;
use serde::Serialize;
use std::collections::HashSet;

/// A burst of more than this part of the usual, per cent, holds several arrivals.
const MERGED_PERCENT: u64 = 150;
/// Bursts without a throttle from which the usual length is taken.
const CLEAN_MIN: usize = 20;
/// Most pieces of one burst.
const PIECES_MAX: u64 = 10_000;
/// Every so many seeds leave bursts whole. Origin: two of ten seeds, so that an interval has that extreme.
const WHOLE_EVERY: u64 = 5;

/// What was done about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Bursts that seem to hold several arrivals.
    pub merged: u64,
    /// What they computed, in thousandths of all.
    pub merged_permille: u64,
    /// Pieces that they are cut into.
    pub pieces: u64,
    /// What bursts computed that seem to hold several arrivals and are left whole, since others in the trace woke them or were woken by them,
    /// in thousandths of all: who had asked them meanwhile left no trace.
    pub whole_permille: u64,
}

impl Recording {
    /// What undoing that limit changes.
    pub fn restored_by(&self, limit: &RecordedLimit) -> Restored {
        let cut = Cut::of(self, limit);
        let merged: Vec<&Burst> = self
            .tasks
            .iter()
            .flat_map(|demand| &demand.bursts)
            .filter(|burst| cut.pieces(burst) > 1)
            .collect();
        let work: u64 = merged.iter().map(|burst| burst.work).sum();
        let bursts = self.tasks.iter().flat_map(|demand| &demand.bursts);
        let whole = bursts.filter(|burst| cut.arrivals(burst) > 1 && cut.pieces(burst) == 1);
        let whole: u64 = whole.map(|burst| burst.work).sum();
        let all = (self.recorded.0 + self.restored.0).max(1);
        Restored {
            merged: merged.len() as u64,
            merged_permille: permille((work, all)),
            whole_permille: permille((whole, all)),
            pieces: merged.iter().map(|burst| cut.pieces(burst)).sum(),
        }
    }

    /// The demand as it may have been without that limit. Every fifth seed leaves long bursts whole.
    pub fn without_limit(&self, limit: &RecordedLimit, seed: u64) -> Recording {
        if seed.is_multiple_of(WHOLE_EVERY) {
            return self.clone();
        }
        let cut = Cut::of(self, limit);
        let mut random = Random::new(seed, 3);
        let tasks = self
            .tasks
            .iter()
            .map(|demand| cut.demand(demand, &mut random))
            .collect();
        Recording {
            groups: self.groups.clone(),
            length: self.length,
            cpus: self.cpus,
            marked: self.marked.clone(),
            ..Recording::default()
        }
        .with(tasks)
    }
}

/// Which bursts are cut into how many pieces.
struct Cut {
    throttled: HashSet<u32>,
    /// Bursts that wake others or are woken by others keep their place in their chain.
    chained: HashSet<u32>,
    /// What a burst usually computes, ns; `None` if that is not known.
    usual: Option<u64>,
}

impl Cut {
    fn of(recording: &Recording, limit: &RecordedLimit) -> Cut {
        let bursts = || recording.tasks.iter().flat_map(|demand| &demand.bursts);
        let throttled = recording.throttled_bursts(limit);
        let mut chained = HashSet::new();
        for burst in bursts().filter(|burst| burst.by != OUTSIDE) {
            chained.extend([burst.id, burst.by]);
        }
        for marked in &recording.marked {
            chained.extend([marked.begin.burst, marked.end.burst]);
        }
        let mut clean: Vec<u64> = bursts()
            .filter(|burst| !throttled.contains(&burst.id) && burst.work > 0)
            .map(|burst| burst.work)
            .collect();
        // The longest hundredth may hold several arrivals as well.
        clean.sort_unstable_by_key(|work| Reverse(*work));
        let kept = &clean[clean.len() / 100..];
        let usual = (kept.len() >= CLEAN_MIN)
            .then(|| kept.iter().sum::<u64>() / kept.len() as u64)
            .filter(|usual| *usual > 0);
        Cut {
            throttled,
            chained,
            usual,
        }
    }

    /// Into how many it is cut.
    fn pieces(&self, burst: &Burst) -> u64 {
        if self.chained.contains(&burst.id) {
            1
        } else {
            self.arrivals(burst)
        }
    }

    /// How many arrivals it seems to hold.
    fn arrivals(&self, burst: &Burst) -> u64 {
        let Some(usual) = self.usual else {
            return 1;
        };
        let is_long = burst.work > usual.saturating_mul(MERGED_PERCENT) / 100;
        if is_long && self.throttled.contains(&burst.id) {
            ((burst.work + usual / 2) / usual).clamp(1, PIECES_MAX)
        } else {
            1
        }
    }

    fn demand(&self, demand: &Demand, random: &mut Random) -> Demand {
        let mut bursts = Vec::with_capacity(demand.bursts.len());
        for burst in &demand.bursts {
            let pieces = self.pieces(burst);
            let work = burst.work / pieces;
            let room = burst.end.saturating_sub(burst.at + work);
            let mut arrivals: Vec<u64> = (1..pieces)
                .map(|_| burst.at + random.below(room.max(1)))
                .collect();
            arrivals.push(burst.at);
            arrivals.sort_unstable();
            for (index, at) in (0u64..).zip(arrivals) {
                let rest = if index == 0 { burst.work % pieces } else { 0 };
                bursts.push(Burst {
                    at,
                    work: work + rest,
                    ..*burst
                });
            }
        }
        Demand {
            bursts,
            ..demand.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::limited::tests::{millis, recorded, throttled};
    use quotient_core::Limit;

    #[test]
    fn a_recording_under_a_limit_says_what_a_wider_one_would_do() {
        let narrow = Limit::new(millis(52), millis(100));
        let wide = Limit::new(millis(80), millis(100));
        let free = recorded(None);
        let truth = throttled(&free, wide);
        let limited = recorded(Some(narrow));
        let found = limited.given_limit(narrow);
        assert!(found.given && found.permille() == 520);
        assert!(limited.restored_by(&found).merged > 50);
        let as_it_was = throttled(&limited, wide);
        let seeds: Vec<f64> = (1..=9)
            .map(|seed| throttled(&limited.without_limit(&found, seed), wide))
            .collect();
        let nearest = seeds[..4].iter().sum::<f64>() / 4.0;
        let (low, high) = (
            seeds.iter().copied().fold(1.0, f64::min),
            seeds.iter().copied().fold(0.0, f64::max),
        );
        assert!(
            (nearest - truth).abs() < (as_it_was - truth).abs() / 2.0,
            "{truth} {nearest} {as_it_was} {seeds:?}"
        );
        assert!(
            low <= truth + 0.03 && truth <= high + 0.03,
            "{truth} {seeds:?}"
        );
        // Nothing to undo: nothing is changed, and the interval stays where it is.
        let same = free.without_limit(&free.given_limit(wide), 1);
        assert!((throttled(&same, wide) - truth).abs() < 0.03);
    }
}
