//! What was refused or dropped: counted for its group and for the scheduler, and said once a group and kind.
//!
//! With the feature `tracing` the first loss of a kind in a group is an event of level `WARN` and target `quotient`, with the group's
//! path and the reason; later ones are counted only, so that an overload does not become a flood of lines. Tasks that a shutdown drops
//! are of level `INFO`, since somebody asked for it. What is lost is counted once: a refused request or connection is no refused task.
//! A request that a tenant's group should have had, and the default group has, is lost to that tenant: it is counted where it ran.
//! A future elsewhere that goes on when its group is killed or ends ([`crate::InGroupExt::in_group`]) is no loss, though the group counts a
//! task for it. What its owner ends (an abort, a dropped `JoinSet`, local set or connection) is no loss, and a spawn outside any group has nobody to
//! count it: it panics, or is an error.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::group::GroupShared;
use crate::shared::Shared;

/// What is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// A spawn was refused.
    RefusedTask,
    /// A task was killed with its group.
    KilledTask,
    /// A task was dropped unfinished at the end of its scheduler, or a blocking function unrun.
    DroppedTask,
    /// A request was answered by the layer, not by its handler.
    RefusedRequest,
    /// A body ended before its end.
    CutBody,
    /// A connection was closed, because its executor could not spawn it.
    RefusedConnection,
    /// A request that names a tenant ran in the default group.
    UnplacedRequest,
}

/// Number of kinds.
const KINDS: usize = 7;

impl Loss {
    #[cfg(feature = "tracing")]
    fn name(self) -> &'static str {
        match self {
            Self::RefusedTask => "a task was refused",
            Self::KilledTask => "tasks were killed",
            Self::DroppedTask => "tasks were dropped",
            Self::RefusedRequest => "a request was refused",
            Self::CutBody => "the body of an answer was cut off",
            Self::RefusedConnection => "a connection was closed",
            Self::UnplacedRequest => {
                "a request of a tenant without a group runs in the default group"
            }
        }
    }
}

/// What was refused or dropped, in a group or in all groups there were. The counters wrap after 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// Spawns that were refused, for whatever [`crate::SpawnError`].
    pub refused_tasks: u64,
    /// Tasks that were aborted because their group was killed, or removed with [`crate::Leftover::Kill`]: those that were spawned at the
    /// same moment included, and those that could not move to a parent which was removed itself.
    pub killed_tasks: u64,
    /// Tasks that lived when their scheduler was shut down, or lost its runtime, and blocking functions that the runtime dropped unrun.
    pub dropped_tasks: u64,
    /// Requests that the tower layer answered itself: 503, unless the application says otherwise.
    pub refused_requests: u64,
    /// Bodies of answers that were cut off, because the group was killed or removed, or the scheduler was shut down.
    pub cut_bodies: u64,
    /// Connections that were closed, because [`crate::hyper::GroupExecutor`] could not spawn them.
    #[cfg_attr(not(feature = "hyper"), doc = "(Needs the feature `hyper`.)")]
    pub refused_connections: u64,
    /// Requests that name a tenant but ran in the default group, which counts them: the table of
    /// [`by_header`](crate::tower::GroupLayer::by_header) had no room, or the name is none that a group can have.
    #[cfg_attr(not(feature = "tower"), doc = "(Needs the feature `tower`.)")]
    pub unplaced_requests: u64,
}

/// The counters of one group, or of the scheduler.
#[derive(Debug, Default)]
pub(crate) struct LossCounters {
    counts: [AtomicU64; KINDS],
    /// Bit i: kind i was said.
    said: AtomicU8,
}

impl LossCounters {
    /// A copy of the counters.
    pub(crate) fn read(&self) -> Losses {
        let count = |kind: Loss| self.counts[kind as usize].load(Ordering::Relaxed);
        Losses {
            refused_tasks: count(Loss::RefusedTask),
            killed_tasks: count(Loss::KilledTask),
            dropped_tasks: count(Loss::DroppedTask),
            refused_requests: count(Loss::RefusedRequest),
            cut_bodies: count(Loss::CutBody),
            refused_connections: count(Loss::RefusedConnection),
            unplaced_requests: count(Loss::UnplacedRequest),
        }
    }

    /// Counts; whether it is the first of its kind.
    fn add(&self, kind: Loss, count: u64) -> bool {
        self.counts[kind as usize].fetch_add(count, Ordering::Relaxed);
        let bit = 1 << kind as u8;
        self.said.load(Ordering::Relaxed) & bit == 0
            && self.said.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

/// Counts `count` losses of `group`, and says so if it is the first time.
#[cold]
pub(crate) fn note(
    shared: &Shared,
    group: &GroupShared,
    kind: Loss,
    count: usize,
    reason: &dyn fmt::Display,
) {
    if count == 0 {
        return;
    }
    let count = count as u64;
    shared.losses.add(kind, count);
    let first = group.losses.add(kind, count);
    #[cfg(feature = "tracing")]
    if first {
        let group = group.core.path();
        let (name, rest) = (kind.name(), "further ones in this group are only counted");
        if kind == Loss::DroppedTask {
            tracing::info!(target: "quotient", group, count, reason = %reason, "{name}; {rest}");
        } else {
            tracing::warn!(target: "quotient", group, count, reason = %reason, "{name}; {rest}");
        }
    }
    #[cfg(not(feature = "tracing"))]
    let _ = (first, reason);
}
