//! A group's load over all CPUs: the sum of what its queues average, kept without fighting over one cache line.
//!
//! Every CPU needs the sum to know its part of the group's weight ([`crate::group_weight`]), and every CPU changes it
//! at every tick. The plain way is one counter to which everybody adds: N CPUs at 1,000 Hz write one line 1,000 N
//! times a second, for each group. Four ways to do it less, selectable while everything runs:
//!
//! | [`UpdateMode`] | a CPU writes shared memory | the sum is off by |
//! |---|---|---|
//! | [`EveryTick`](UpdateMode::EveryTick) | at every tick | one tick |
//! | [`NodeStaggered`](UpdateMode::NodeStaggered) | at one tick of 2^k, when it is its node's turn | 2^k ticks |
//! | [`RateLimited`](UpdateMode::RateLimited) | if its part changed by 1/64, at most once a ms | 1/64, and a ms |
//! | [`OnDemand`](UpdateMode::OnDemand) | never, up to [`CLUSTER_CPUS`] CPUs; beyond, once a [`REFRESH_INTERVAL`] a cluster | a [`REFRESH_INTERVAL`]; beyond, two or three |
//!
//! **On demand the reader pays.** Each (group, CPU) pair has a cell on a line of its own that only this CPU writes,
//! with plain stores. Whoever wants the sum adds up the cells of the *others* and keeps the result for
//! [`REFRESH_INTERVAL`]; its own part it knows to the tick. Beyond one cluster of CPUs it adds up its own cluster's
//! cells and the other clusters' partial sums, each kept by the members of its cluster, who take turns in adding it
//! up. Reads a refresh: O(cluster + CPUs / cluster).
//!
//! ```text
//!  cells      c0 c1 .. c15      c16 .. c31      c32 ..        one writer each
//!              └──┬─────┘        └──┬───┘        └─┬─
//!  partials    cluster 0         cluster 1       cluster 2    written once an interval, by a member
//!               (summed by ───────► added up by the reader, kept privately for an interval
//!                members)
//! ```
//!
//! **Nobody has to tick for a CPU that sleeps.** A load without anything runnable only fades, so its cell says since
//! when, and the reader does the fading: the sum returns to 0 by itself. In the shared modes whoever stops ticking
//! has to [`Contribution::withdraw`], or its part stays where it was.
//!
//! Invariants:
//! - the shared sum is the sum of [`Contribution::published`] over all CPUs, exactly, whenever nobody is publishing;
//! - the line of a shared sum holds nothing else, and a cell's line nothing of another CPU's;
//! - a tick takes no lock, and blocks nobody;
//! - withdrawn is forgotten: after the last CPU has withdrawn, the sum is 0 in every mode.

mod contribution;
mod group;
mod mode;
mod sum;
mod weight;

pub use contribution::{Contribution, Others};
pub(crate) use group::{GroupAverages, GroupParts};
pub use mode::{LiveRules, SumRules, UpdateMode};
pub use sum::{CLUSTER_CPUS, GroupSum, REFRESH_INTERVAL};
pub use weight::averaged_load;
