//! Which limits are tried: shares, periods and bursts in all combinations, and finer shares where harm begins.

use super::Prediction;
use crate::batch::BatchError;
use quotient_core::{Limit, Nanos};

/// Most finer shares for each combination of period and burst. Origin: from half to whole in steps of 3 %.
const REFINEMENTS: usize = 5;
/// Two neighbours are near enough when one is at most this part of the other, per cent.
const FINE_PERCENT: u64 = 104;

/// What may be tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// CPU time for each period, as a share of CPUs in thousandths: quota = share x period / 1000.
    pub cpus_permille: Vec<u64>,
    /// Periods.
    pub periods: Vec<Nanos>,
    /// Bursts, in per cent of the quota.
    pub bursts_percent: Vec<u64>,
    /// Numbers of threads; 0 leaves them as they are.
    pub threads: Vec<u32>,
    /// How many times each is tried, with another seed, another phase of the period and another draw of the load.
    pub seeds: u32,
    /// Whether shares between the largest harmful and the smallest harmless one are tried as well, so that what is recommended does
    /// not jump from one share of the list to the next.
    pub refine: bool,
}

impl Sweep {
    /// Six shares around a mean usage, two periods, two bursts: 24 settings, ten seeds, and finer ones around the best.
    pub fn around(usage_permille: u64) -> Sweep {
        let share = |percent: u64| (usage_permille * percent / 100).max(10);
        Sweep {
            cpus_permille: [100, 125, 150, 200, 300, 400].map(share).to_vec(),
            periods: vec![Nanos::from_millis(100), Nanos::from_millis(20)],
            bursts_percent: vec![0, 100],
            threads: vec![0],
            seeds: 10,
            refine: true,
        }
    }

    /// How many finer settings there are at most.
    pub fn finer(&self) -> usize {
        self.threads.len() * self.periods.len() * self.bursts_percent.len() * REFINEMENTS
    }

    /// How many settings that makes.
    pub fn settings(&self) -> usize {
        self.threads.len() * self.curves().iter().map(Vec::len).sum::<usize>()
    }

    /// Shares in thousandths of a CPU of which the quota would be less than the least that there is, each with its period and the share that is tried in its
    /// place.
    pub fn raised(&self) -> Vec<(u64, Nanos, u64)> {
        let mut raised = Vec::new();
        for &period in &self.periods {
            for &share in &self.cpus_permille {
                let least = (Limit::QUOTA_MIN.0 * 1000).div_ceil(period.0.max(1));
                let one = (share, period, least);
                if quota(share, period) < Limit::QUOTA_MIN && !raised.contains(&one) {
                    raised.push(one);
                }
            }
        }
        raised
    }

    /// All of them in the order of the predictions, those of each period and burst together, and none twice.
    pub(super) fn curves(&self) -> Vec<Vec<Limit>> {
        let mut curves: Vec<Vec<Limit>> = Vec::new();
        for &period in &self.periods {
            for &burst in &self.bursts_percent {
                let mut curve = Vec::new();
                for &share in &self.cpus_permille {
                    let quota = quota(share, period).max(Limit::QUOTA_MIN);
                    let burst = Nanos(quota.0.saturating_mul(burst) / 100);
                    let limit = Limit::new(quota, period).with_burst(burst);
                    if !curve.contains(&limit) {
                        curve.push(limit);
                    }
                }
                if !curves.contains(&curve) {
                    curves.push(curve);
                }
            }
        }
        curves
    }
}

fn quota(share_permille: u64, period: Nanos) -> Nanos {
    Nanos(share_permille.saturating_mul(period.0) / 1000)
}

/// Tries shares between the largest that does harm and the smallest from which on none does, for each combination of period and
/// burst, of which there are so many, and follow each other.
pub(super) fn refine(
    predictions: Vec<Prediction>,
    widths: impl Iterator<Item = usize>,
    one: &dyn Fn(Limit) -> Result<Prediction, BatchError>,
) -> Result<Vec<Prediction>, BatchError> {
    let mut all = Vec::new();
    let mut predictions = predictions.into_iter();
    for width in widths {
        let mut curve: Vec<Prediction> = predictions.by_ref().take(width).collect();
        for _ in 0..REFINEMENTS {
            curve.sort_by_key(|row| row.quota_ns);
            let harmless = curve.iter().rev().take_while(|row| row.is_harmless).count();
            let first = curve.len() - harmless;
            let Some(best) = curve.get(first).filter(|_| harmless > 0) else {
                break;
            };
            let below = match first {
                0 => best.quota_ns / 2,
                first => curve[first - 1].quota_ns,
            };
            if best.quota_ns * 100 <= below * FINE_PERCENT {
                break;
            }
            // The middle of their logarithms.
            let quota =
                ((below as f64 * best.quota_ns as f64).sqrt() as u64).max(Limit::QUOTA_MIN.0);
            if quota <= below || quota >= best.quota_ns {
                break;
            }
            let burst = (u128::from(best.burst_ns) * u128::from(quota)
                / u128::from(best.quota_ns.max(1))) as u64;
            let limit = Limit::new(Nanos(quota), Nanos(best.period_ns)).with_burst(Nanos(burst));
            curve.push(one(limit)?);
        }
        curve.sort_by_key(|row| row.quota_ns);
        all.extend(curve);
    }
    Ok(all)
}
