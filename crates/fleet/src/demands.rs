//! The demands of all processes of a tenant in sorted buckets, and the level up to which a rate fills them.
//!
//! Max-min fairness gives everybody `min(demand, level)`, with the level at which the whole rate is given out. To find it needs no
//! list of processes: buckets of demands hold their count and sum, four to a factor of two, so that there are at most
//! [`BUCKETS`] however many processes there are. A bucket counts as satisfied if the level reaches its mean; what that errs by (below
//! 10 % of one process's share, where demands in the level's own bucket differ) shows in the pool, which the next level gives out.

use crate::units::MicroCpus;

/// How many buckets there are: demands up to [`DEMAND_MAX`], four to a factor of two.
pub(crate) const BUCKETS: usize = 128;

/// The largest demand that is told apart: 10,000 processors in one process.
pub(crate) const DEMAND_MAX: MicroCpus = MicroCpus::whole(10_000);

/// Demands below 2^4 millionths of a CPU are all in the first bucket.
const SMALL_BITS: u32 = 4;

/// The bucket of a demand. O(1).
pub(crate) fn bucket(demand: MicroCpus) -> usize {
    let demand = demand.min(DEMAND_MAX).0;
    if demand < 1 << SMALL_BITS {
        return 0;
    }
    let octave = demand.ilog2();
    let quarter = ((demand - (1 << octave)) * 4) >> octave;
    ((octave - SMALL_BITS) * 4) as usize + quarter as usize + 1
}

/// Up to where a rate fills the demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// More is wanted than there is: everybody gets the smaller of demand and this.
    Short(MicroCpus),
    /// All demands are met, and this much is left over.
    Ample(MicroCpus),
}

/// How many processes want how much, by size.
#[derive(Clone, Debug)]
pub(crate) struct Demands {
    counts: [u64; BUCKETS],
    sums: [u64; BUCKETS],
    /// Processes in all buckets.
    total: u64,
}

impl Demands {
    pub(crate) fn new() -> Demands {
        Demands {
            counts: [0; BUCKETS],
            sums: [0; BUCKETS],
            total: 0,
        }
    }

    pub(crate) fn add(&mut self, demand: MicroCpus) {
        let demand = demand.min(DEMAND_MAX);
        let index = bucket(demand);
        self.counts[index] += 1;
        self.sums[index] += demand.0;
        self.total += 1;
    }

    pub(crate) fn remove(&mut self, demand: MicroCpus) {
        let demand = demand.min(DEMAND_MAX);
        let index = bucket(demand);
        debug_assert!(self.counts[index] > 0, "a demand that was never added");
        self.counts[index] = self.counts[index].saturating_sub(1);
        self.sums[index] = self.sums[index].saturating_sub(demand.0);
        self.total = self.total.saturating_sub(1);
    }

    /// How many processes there are.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// The level for a rate. O(buckets), whatever the number of processes.
    pub(crate) fn level(&self, rate: MicroCpus) -> Level {
        let mut left = rate.0;
        let mut wanting = self.total;
        for (count, sum) in self.counts.iter().zip(&self.sums) {
            if *count == 0 {
                continue;
            }
            // Whether the level reaches the mean of the bucket: left / wanting >= sum / count, without a division.
            if (left as f64) * (*count as f64) < (*sum as f64) * (wanting as f64) {
                return Level::Short(MicroCpus(left / wanting));
            }
            left = left.saturating_sub(*sum);
            wanting -= count;
        }
        Level::Ample(MicroCpus(left))
    }

    /// What one process with this demand, which is among those added, should get of a rate.
    ///
    /// What all demands leave over is offered too, so that whoever wants more next need not ask first: half of it in equal
    /// parts. The other half stays in the pool for those who ask early.
    pub(crate) fn share(&self, demand: MicroCpus, rate: MicroCpus) -> MicroCpus {
        match self.level(rate) {
            Level::Short(level) => level.min(demand),
            Level::Ample(slack) => MicroCpus(demand.0 + slack.0 / 2 / self.total.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(demands: &[u64]) -> Demands {
        let mut buckets = Demands::new();
        for demand in demands {
            buckets.add(MicroCpus(*demand));
        }
        buckets
    }

    /// The level by sorting, as in the textbook.
    fn exact(demands: &[u64], rate: u64) -> Option<f64> {
        let mut sorted = demands.to_vec();
        sorted.sort_unstable();
        let mut left = rate as f64;
        for (index, demand) in sorted.iter().enumerate() {
            let wanting = (sorted.len() - index) as f64;
            if left / wanting < *demand as f64 {
                return Some(left / wanting);
            }
            left -= *demand as f64;
        }
        None
    }

    #[test]
    fn buckets_are_in_order_and_in_range() {
        let mut last = 0;
        for demand in 0..200_000 {
            let index = bucket(MicroCpus(demand));
            assert!(
                index == last || index == last + 1,
                "{demand}: {last} then {index}"
            );
            last = index;
        }
        assert!(bucket(MicroCpus(u64::MAX)) < BUCKETS);
    }

    #[test]
    fn equal_demands_get_equal_parts() {
        let demands = filled(&[5_000_000; 8]);
        assert_eq!(
            demands.level(MicroCpus::whole(4)),
            Level::Short(MicroCpus(500_000))
        );
    }

    #[test]
    fn what_the_small_leave_goes_to_the_large() {
        let demands = filled(&[100_000, 100_000, 9_000_000, 7_000_000]);
        assert_eq!(
            demands.share(MicroCpus(9_000_000), MicroCpus(4_200_000)),
            MicroCpus(2_000_000)
        );
        assert_eq!(
            demands.share(MicroCpus(100_000), MicroCpus(4_200_000)),
            MicroCpus(100_000)
        );
    }

    proptest! {
        #[test]
        fn buckets_come_close_to_the_exact_level(
            demands in prop::collection::vec(0_u64..20_000_000, 1..60),
            rate in 1_000_u64..100_000_000,
        ) {
            let buckets = filled(&demands);
            match (buckets.level(MicroCpus(rate)), exact(&demands, rate)) {
                (Level::Short(level), Some(exact)) => {
                    prop_assert!((level.0 as f64) < exact * 1.2 + 16.0, "{level} for {exact}");
                    prop_assert!((level.0 as f64) > exact * 0.8 - 16.0, "{level} for {exact}");
                }
                (Level::Ample(_), None) => {}
                (Level::Ample(slack), Some(_)) => {
                    // All but a rounding of the last bucket's mean.
                    let sum: u64 = demands.iter().sum();
                    prop_assert!(slack.0 + sum <= rate + 64, "{slack} left of {rate} for {sum}");
                }
                (Level::Short(level), None) => prop_assert!(false, "{level} where all fits"),
            }
        }
    }
}
