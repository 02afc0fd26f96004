//! What processes and store say to each other.

use crate::limit::FleetLimit;
use crate::units::{MicroCpus, Micros};

/// A process's name: random, made anew at each start, so that who comes back after a crash is somebody else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// What one process asks for one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who asks.
    pub process: ProcessId,
    /// Grows with each request of this process for this tenant. Never sent twice with different contents.
    pub sequence: u64,
    /// CPU time that was used out of leases since the process started.
    pub used: Micros,
    /// CPU time that the process still holds and keeps. What it held beyond that it has given up before it sent this.
    pub left: Micros,
    /// What the process would use if nothing held it back. Zero: it wants no lease and keeps nothing.
    pub demand: MicroCpus,
    /// For how long ahead it wants to hold what its demand is worth; the store gives no more than [`FleetLimit::spread`]. Short for a demand
    /// that is new, so that little strands if it goes again. Zero, with a demand of zero: the process leaves, see [`Request::leaves`].
    pub horizon: Micros,
    /// The newest limit that the process knows.
    pub known: Option<FleetLimit>,
}

impl Request {
    /// Whether the process says that it keeps nothing, uses no floor from now on, and asks no more: the store forgets it, and reserves its floor for
    /// somebody else.
    pub fn leaves(&self) -> bool {
        self.demand == MicroCpus::ZERO && self.horizon == Micros::ZERO
    }
}

/// What the store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A lease.
    Granted(Grant),
    /// Leases of before may be forgotten: nothing is granted yet. What is held goes on to its own end.
    Quiet {
        /// The limit in force.
        limit: FleetLimit,
        /// Whether a floor is reserved for the process.
        floor: bool,
        /// When nothing of before can be left, from now.
        wait: Micros,
    },
    /// The tenant has no limit in the fleet.
    Unlimited {
        /// The explicit "no limit", if somebody wrote one; `None` if the store and the process never knew of a limit.
        limit: Option<FleetLimit>,
    },
    /// The store knows of no limit, and may have forgotten one: who knows none either stays on its floor.
    Unknown {
        /// When who knew one has had the time to tell it, from now.
        wait: Micros,
    },
    /// A later request of the process came first; this one changed nothing.
    Stale,
}

/// A lease: an amount, a duration, the request's sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// CPU time on top of what the process said that it keeps.
    pub amount: Micros,
    /// How long all of it lasts, counted from before the request was sent.
    pub duration: Micros,
    /// The request that it answers.
    pub sequence: u64,
    /// What the process's demand is worth now: it need not ask early for more than this.
    pub share: MicroCpus,
    /// When to ask again at the latest, from before the request was sent: sooner than [`FleetLimit::renewal`] where the process holds so much
    /// that refills do not fit in until it says how much of it is used.
    pub renew: Micros,
    /// Whether a floor is reserved for the process.
    pub floor: bool,
    /// The limit in force.
    pub limit: FleetLimit,
}
