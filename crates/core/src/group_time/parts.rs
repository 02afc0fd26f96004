//! Sums between a CPU and the clock: how a group that is on many CPUs is published by few of them.
//!
//! N CPUs that each write the same word every so often write it N times as often. So on a machine of more than [`ALONE_MAX`] CPUs these stand
//! in clusters of about the root of N. A CPU adds what a group got to its cluster's sum, and whoever finds enough in it takes all of that to
//! the clock: N times [`crate::Config::publish_interval`] of service, so that all CPUs together change the clock of a group's children no
//! oftener than once an interval, however many there are. What others do not know of a group yet is then at most
//!
//! ```text
//!     interval * N * (size of a cluster + number of clusters)
//! ```
//!
//! of service, on 512 CPUs 1.2 s, which is 2.4 ms of that machine. (Each CPU by itself with so rare a publication: 13 s.)
//!
//! # Protocol
//! A CPU adds what it has before it says that the group is not there any more ([`GroupTime::leave`], which releases; the last to leave
//! acquires): nothing is left in the sums of a group that is nowhere. What is in the sum of a cluster where the group is no more waits for
//! it to come there again, or to leave the last CPU; so much and no more may be overlooked, however often it hops.
//!
//! [`GroupTime::leave`]: super::GroupTime::leave

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::OnceLock;

/// CPUs up to which each publishes what a group got by itself: that many change the clock 20,000 times a second.
pub(super) const ALONE_MAX: u32 = 8;

/// Where a CPU stands among the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(super) index: u32,
    /// How many CPUs each has, and how many there are.
    pub(super) size: u32,
    pub(super) count: u32,
}

impl Cluster {
    /// CPUs beyond those that were counted stand in the last one.
    pub(super) fn of(cpu: u32, cpus: u32) -> Cluster {
        let cpus = cpus.max(1);
        let size = 1 << (cpus.ilog2() / 2);
        let count = cpus.div_ceil(size);
        Cluster {
            index: (cpu / size).min(count - 1),
            size,
            count,
        }
    }
}

/// Service of one group in one cluster that the clock was not told of, ns.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Part {
    own: AtomicU64,
    /// What of that nobody else could use.
    surplus: AtomicU64,
}

/// The sums of one group; none before it was on more than [`ALONE_MAX`] CPUs.
#[derive(Debug, Default)]
pub(super) struct Parts(OnceLock<Box<[Part]>>);

impl Parts {
    /// Adds to a cluster's sum and returns what that comes to.
    pub(super) fn add(&self, cluster: Cluster, own: u64, surplus: u64) -> u64 {
        let parts = self
            .0
            .get_or_init(|| (0..cluster.count).map(|_| Part::default()).collect());
        let Some(part) = parts.get(cluster.index as usize) else {
            return 0;
        };
        if surplus > 0 {
            part.surplus.fetch_add(surplus, Relaxed);
        }
        part.own.fetch_add(own, Relaxed) + own
    }

    /// Takes a cluster's sum away, and what of it is surplus. Others that add meanwhile lose nothing.
    pub(super) fn take(&self, cluster: Cluster) -> (u64, u64) {
        let part = self
            .0
            .get()
            .and_then(|parts| parts.get(cluster.index as usize));
        part.map_or((0, 0), |part| {
            (part.own.swap(0, Relaxed), part.surplus.swap(0, Relaxed))
        })
    }

    /// Takes all sums away.
    pub(super) fn take_all(&self) -> u64 {
        let parts = self.0.get().into_iter().flatten();
        parts
            .map(|part| {
                part.surplus.store(0, Relaxed);
                part.own.swap(0, Relaxed)
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hazard: what a group gets on a CPU that was not counted is in no cluster's sum, and nobody learns of it.
    #[test]
    fn a_cpu_beyond_those_that_were_counted_has_a_cluster() {
        for cpus in [1, 2, 3, 4, 16, 18, 64, 2_048] {
            let parts = Parts::default();
            for cpu in 0..cpus + 300 {
                parts.add(Cluster::of(cpu, cpus), 1, 0);
                assert_eq!(parts.take(Cluster::of(cpu, cpus)).0, 1, "{cpu} of {cpus}");
            }
        }
    }
}
