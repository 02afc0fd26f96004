//! How far what the vCPUs believed was from what was.

use quotient_core::Nanos;
use quotient_core::pelt::QueueAverage;

use super::plan::{Plan, Workload};
use super::vcpu::{Seen, follow};

/// Errors of believed sums, in percent of the exact sum's mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Errors {
    pub mean: f64,
    pub p99: f64,
    pub max: f64,
}

impl Errors {
    /// Replays the plans of all vCPUs and compares the sum of their averages, at the instant of each tick, with what
    /// the tick took for it. Ticks before `from` do not count.
    pub fn of(seen: &[Seen], workload: Workload, vcpus: u32, groups: usize, from: Nanos) -> Errors {
        let mut errors = Vec::new();
        for group in 0..groups {
            let mut believed: Vec<(Nanos, u64)> = seen
                .iter()
                .flat_map(|seen| &seen.believed)
                .filter(|(of, _, _)| *of == group)
                .map(|&(_, at, sum)| (at, sum))
                .collect();
            believed.sort_unstable();
            let mut queues: Vec<(Plan, QueueAverage)> = (0..vcpus)
                .map(|cpu| {
                    (
                        Plan::new(workload, group, cpu),
                        QueueAverage::new(Nanos::ZERO),
                    )
                })
                .collect();
            let (mut off, mut total) = (Vec::with_capacity(believed.len()), 0.0);
            for (now, sum) in believed {
                let mut exact = 0;
                for (plan, average) in &mut queues {
                    follow(average, plan, now);
                    exact += average.load();
                }
                if now >= from {
                    off.push(sum.abs_diff(exact) as f64);
                    total += exact as f64;
                }
            }
            let mean = (total / off.len().max(1) as f64).max(1.0);
            errors.extend(off.iter().map(|off| 100.0 * off / mean));
        }
        Errors::summarise(errors)
    }

    fn summarise(mut errors: Vec<f64>) -> Errors {
        errors.sort_unstable_by(f64::total_cmp);
        let Some(&max) = errors.last() else {
            return Errors::default();
        };
        Errors {
            mean: errors.iter().sum::<f64>() / errors.len() as f64,
            p99: errors[(errors.len() - 1) * 99 / 100],
            max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn believing_the_truth_is_no_error_and_half_of_it_is_half() {
        let workload = Workload::Steady;
        let (mut plan, mut average) = (Plan::new(workload, 0, 0), QueueAverage::new(Nanos::ZERO));
        let (mut right, mut wrong) = (Seen::default(), Seen::default());
        for tick in 1..2_000 {
            let now = Nanos::from_millis(tick);
            follow(&mut average, &mut plan, now);
            right.believed.push((0, now, average.load()));
            wrong.believed.push((0, now, average.load() / 2));
        }
        let from = Nanos::from_millis(500);
        assert_eq!(
            Errors::of(&[right], workload, 1, 1, from),
            Errors::default()
        );
        let errors = Errors::of(&[wrong], workload, 1, 1, from);
        assert!(
            (errors.mean - 50.0).abs() < 0.1 && (errors.max - 50.0).abs() < 0.1,
            "{errors:?}"
        );
    }
}
