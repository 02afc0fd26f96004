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
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::group::GroupShared;
use crate::shared::Shared;

/// Why what still lives is dropped as the scheduler ends.
pub(crate) const ENDED: &str = "the scheduler has ended";

/// Says of each kind once: what its counter means, how it is known here, the counter's name, and what an event of it says.
macro_rules! losses {
    ($($(#[$meaning:meta])* $kind:ident $counter:ident $said:literal)*) => {
        /// What is lost.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Loss {
            $(#[doc = $said] $kind),*
        }

        impl Loss {
            #[cfg(feature = "tracing")]
            fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $said),*
                }
            }
        }

        /// What was refused or dropped, in a group or in all groups there were. The counters wrap after 2^64.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Losses {
            $($(#[$meaning])* pub $counter: u64),*
        }

        impl Losses {
            /// Names of all counters, in the order of [`Losses::counts`].
            pub const KINDS: [&'static str; [$(Loss::$kind),*].len()] = [$(stringify!($counter)),*];

            /// All counters, in the order of [`Losses::KINDS`].
            pub fn counts(&self) -> [u64; Self::KINDS.len()] {
                [$(self.$counter),*]
            }
        }

        impl LossCounters {
            /// A copy of the counters.
            pub(crate) fn read(&self) -> Losses {
                let counts = self.counts.get();
                let count = |kind: Loss| {
                    counts.map_or(0, |counts| counts[kind as usize].load(Ordering::Relaxed))
                };
                Losses {
                    $($counter: count(Loss::$kind)),*
                }
            }
        }
    };
}

losses! {
    /// Spawns that were refused, with any [`crate::SpawnError`].
    RefusedTask refused_tasks "a task was refused"
    /// Tasks that were aborted because their group was killed, or removed with [`crate::Leftover::Kill`]: those that were spawned at the
    /// same moment included, and those that could not move to a parent which was removed itself.
    KilledTask killed_tasks "tasks were killed"
    /// Tasks that lived when their scheduler was shut down, or lost its runtime, and blocking functions that the runtime dropped unrun.
    DroppedTask dropped_tasks "tasks were dropped"
    /// Requests that the tower layer answered itself: 503, unless the application says otherwise.
    RefusedRequest refused_requests "a request was refused"
    /// Bodies of answers that were cut off, because the group was killed or removed, or the scheduler was shut down.
    CutBody cut_bodies "the body of an answer was cut off"
    /// Connections that were closed, because [`crate::hyper::GroupExecutor`] could not spawn them.
    #[cfg_attr(not(feature = "hyper"), doc = "(Needs the feature `hyper`.)")]
    RefusedConnection refused_connections "a connection was closed"
    /// Requests that name a tenant but ran in the default group, which counts them: the table of
    /// [`by_header`](crate::tower::GroupLayer::by_header) had no room, or a group cannot have that name.
    #[cfg_attr(not(feature = "tower"), doc = "(Needs the feature `tower`.)")]
    UnplacedRequest unplaced_requests "a request of a tenant without a group runs in the default group"
}

/// The counters of one group, or of the scheduler.
#[derive(Debug, Default)]
pub(crate) struct LossCounters {
    /// Made with the first loss: most groups never have one.
    counts: OnceLock<Box<[AtomicU64; Losses::KINDS.len()]>>,
    /// Bit i: kind i was said.
    said: AtomicU8,
}

impl LossCounters {
    /// Counts; whether it is the first of its kind.
    fn add(&self, kind: Loss, count: u64) -> bool {
        self.counts.get_or_init(Box::default)[kind as usize].fetch_add(count, Ordering::Relaxed);
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
