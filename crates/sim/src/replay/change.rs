//! Whether a load was the same all the time. A limit that fits the mean of a quiet half and a busy one throttles the busy one all the time.
//!
//! **Test.** The recording is cut into 32 parts. Of all stretches of at least a sixth of it, with as much around them, the one counts that differs most
//! from the rest, in standard errors by how parts differ *within* both. A load that comes in spells has busy and quiet parts on both sides, and so a
//! large error; one that rose has not.

use super::Recording;
use core::ops::Range;

/// Parts of a recording. Default 32: a quarter of a second of the shortest that are any use, and more of all others.
const PARTS: usize = 32;
/// Fewest parts of a stretch, and of what is around it. Default 6, a sixth of a recording: more than a spell.
const STRETCH_MIN: usize = 6;
/// Parts that are the busiest for a while. Default 4: an eighth of a recording.
const BUSIEST: usize = 4;
/// Standard errors by which a stretch differs from the rest. Default 6: it is the largest of some 400 stretches, and parts depend on each other. Of 8 s
/// of a memoryless load none of 500 passes it, and of one in spells of 200 ms 14 (tests below); a load that doubled passes it in 8 s in three of four.
const ERRORS_MIN: f64 = 6.0;
/// Uses that differ by less than this factor are the same for a limit, which is some tenths above the mean in any case.
const FACTOR_MIN: f64 = 1.5;
/// Uses that differ by less are the same, CPUs: what a machine does by itself.
const CPUS_MIN: f64 = 0.02;

/// A load that was another one for a part of a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// Where the stretch that differs most begins, ns from the recording's begin.
    pub from_ns: u64,
    /// Where it ends.
    pub to_ns: u64,
    /// What was used in it, in thousandths of a CPU.
    pub inside_permille: u64,
    /// What was used in the rest.
    pub outside_permille: u64,
    /// What was used in the busiest eighth of the recording.
    pub busiest_permille: u64,
}

impl Recording {
    /// How the load changed meanwhile, if it did. O(runs).
    pub fn change(&self) -> Option<Change> {
        let part = (self.length.0 / PARTS as u64).max(1);
        let used = self.used_by_parts(part);
        let (stretch, found) = (0..PARTS)
            .flat_map(|from| (from + STRETCH_MIN..=PARTS).map(move |to| from..to))
            .filter(|stretch| PARTS - stretch.len() >= STRETCH_MIN)
            .map(|stretch| (stretch.clone(), Difference::of(&used, &stretch)))
            .max_by(|(_, one), (_, other)| one.errors.total_cmp(&other.errors))?;
        let (low, high) = (
            found.inside.min(found.outside),
            found.inside.max(found.outside),
        );
        if found.errors < ERRORS_MIN || high < low * FACTOR_MIN || high - low < CPUS_MIN {
            return None;
        }
        let busiest = used.windows(BUSIEST).map(mean);
        let permille = |cpus: f64| (cpus * 1_000.0).round() as u64;
        Some(Change {
            from_ns: stretch.start as u64 * part,
            to_ns: match stretch.end {
                PARTS => self.length.0,
                end => end as u64 * part,
            },
            inside_permille: permille(found.inside),
            outside_permille: permille(found.outside),
            busiest_permille: permille(busiest.fold(0.0, f64::max)),
        })
    }

    /// CPUs that were used in each part of that length, ns.
    fn used_by_parts(&self, part: u64) -> [f64; PARTS] {
        let mut used = [0.0; PARTS];
        for run in self.tasks.iter().flat_map(|demand| &demand.runs) {
            for (number, time) in run.pieces(part, 0) {
                // What the division left over at the end is of the last part.
                let index = usize::try_from(number).unwrap_or(PARTS).min(PARTS - 1);
                used[index] += time as f64 / part as f64;
            }
        }
        used
    }
}

/// A stretch beside the rest.
struct Difference {
    inside: f64,
    outside: f64,
    errors: f64,
}

impl Difference {
    fn of(used: &[f64], stretch: &Range<usize>) -> Difference {
        let within = &used[stretch.clone()];
        let around = [&used[..stretch.start], &used[stretch.end..]].concat();
        let (inside, outside) = (mean(within), mean(&around));
        let squares = |parts: &[f64], mean: f64| {
            let squares = parts.iter().map(|part| (part - mean).powi(2));
            squares.sum::<f64>()
        };
        let squares = squares(within, inside) + squares(&around, outside);
        let degrees = (used.len() - 2) as f64;
        let parts = 1.0 / within.len() as f64 + 1.0 / around.len() as f64;
        let error = (squares / degrees * parts).sqrt();
        Difference {
            inside,
            outside,
            // Parts that are all the same differ from others by any number of errors.
            errors: (inside - outside).abs() / error.max(1e-9),
        }
    }
}

fn mean(parts: &[f64]) -> f64 {
    parts.iter().sum::<f64>() / parts.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::super::Demand;
    use super::super::runs::Ran;
    use super::*;
    use crate::random::Random;
    use quotient_core::Nanos;

    const SECOND: u64 = 1_000_000_000;

    /// Eight seconds of one thread that runs where it is told to.
    fn of_runs(runs: Vec<Range<u64>>) -> Recording {
        let runs = runs.into_iter().map(|Range { start, end }| Ran {
            from: start,
            to: end,
            charged: end - start,
            cpu: 0,
        });
        let runs = runs.collect();
        Recording {
            length: Nanos(8 * SECOND),
            tasks: vec![Demand {
                runs,
                ..Demand::default()
            }],
            ..Recording::default()
        }
    }

    /// Bursts of `work` on average with `gap` between them on average, memoryless, from one moment to another.
    fn memoryless(
        random: &mut Random,
        (from, to): (u64, u64),
        work: u64,
        gap: u64,
    ) -> Vec<Range<u64>> {
        let (mut runs, mut at) = (Vec::new(), from);
        loop {
            at += random.exponential(gap);
            let end = at + random.exponential(work);
            if end > to {
                return runs;
            }
            runs.push(at..end);
            at = end;
        }
    }

    #[test]
    fn a_load_that_rose_is_said_with_when_and_how_much() {
        let mut random = Random::new(1, 1);
        let mut runs = memoryless(&mut random, (0, 4 * SECOND), 1_100_000, 8_900_000);
        runs.extend(memoryless(
            &mut random,
            (4 * SECOND, 8 * SECOND),
            3_700_000,
            6_300_000,
        ));
        let change = of_runs(runs).change().expect("it rose");
        let (inside, outside) = (change.inside_permille, change.outside_permille);
        let (low, high) = (inside.min(outside), inside.max(outside));
        assert!(
            (90..=130).contains(&low) && (330..=410).contains(&high),
            "{change:?}"
        );
        let at = if change.from_ns == 0 {
            change.to_ns
        } else {
            change.from_ns
        };
        assert!(at.abs_diff(4 * SECOND) <= SECOND / 2, "{change:?}");
        assert!(change.busiest_permille >= high, "{change:?}");
    }

    #[test]
    fn a_busy_spell_in_the_middle_is_found_and_a_short_one_is_not() {
        let steady = |from: u64, to: u64, work: u64| {
            (from..to).step_by(10_000_000).map(move |at| at..at + work)
        };
        let spell = |length: u64| {
            let runs = steady(0, 3 * SECOND, 1_000_000)
                .chain(steady(3 * SECOND, 3 * SECOND + length, 5_000_000))
                .chain(steady(3 * SECOND + length, 8 * SECOND, 1_000_000));
            of_runs(runs.collect()).change()
        };
        let change = spell(2 * SECOND).expect("a spell");
        assert_eq!((change.from_ns, change.to_ns), (3 * SECOND, 5 * SECOND));
        assert_eq!(
            (change.inside_permille, change.outside_permille),
            (500, 100)
        );
        assert_eq!(change.busiest_permille, 500);
        assert_eq!(spell(SECOND / 2), None);
        assert_eq!(spell(0), None);
    }

    /// Hazard: every load with spells is doubted, and nobody reads doubts any more.
    #[test]
    fn steady_loads_are_not_said_to_change() {
        let mut said = [0; 2];
        for seed in 1..=500 {
            let mut random = Random::new(seed, 2);
            let steady = memoryless(&mut random, (0, 8 * SECOND), 4_000_000, 21_000_000);
            said[0] += usize::from(of_runs(steady).change().is_some());
            // 200 ms of half of a CPU, and nothing for 300 ms, on average.
            let (mut bursty, mut at) = (Vec::new(), 0);
            while at < 8 * SECOND {
                at += random.exponential(300_000_000);
                let until = at + random.exponential(200_000_000);
                bursty.extend(memoryless(
                    &mut random,
                    (at, until.min(8 * SECOND)),
                    4_000_000,
                    4_000_000,
                ));
                at = until;
            }
            said[1] += usize::from(of_runs(bursty).change().is_some());
        }
        assert!(said[0] <= 2 && said[1] <= 20, "{said:?} of 500");
        assert_eq!(of_runs(Vec::new()).change(), None);
        assert_eq!(Recording::default().change(), None);
    }
}
