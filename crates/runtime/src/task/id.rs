//! Names of tasks.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many identifiers a thread takes at once. Unit: identifiers; default 1024; so that a spawn shares no cache
/// line with spawns on other threads (a shared counter costs a line transfer, 50 ns and more, each time).
const BLOCK: u64 = 1024;

/// An opaque name of a task, unique among all tasks of the process, living or not.
///
/// Identifiers come from per-thread blocks: their order says nothing about the order of spawning.
#[derive(Clone, Copy, Debug, Hash, Eq, PartialEq, PartialOrd, Ord)]
pub struct Id(NonZeroU64);

impl Id {
    /// The number, for records of events.
    pub(crate) fn number(self) -> u64 {
        self.0.get()
    }

    /// A fresh identifier. O(1), no shared write except once in [`BLOCK`] calls.
    pub(super) fn next() -> Self {
        // Plain `std` even under loom: a name takes part in no protocol.
        static NEXT_BLOCK: AtomicU64 = AtomicU64::new(1);
        std::thread_local! {
            static UNUSED: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
        }
        UNUSED.with(|unused| {
            let (mut next, mut end) = unused.get();
            if next == end {
                next = NEXT_BLOCK.fetch_add(BLOCK, Ordering::Relaxed);
                end = next + BLOCK;
            }
            unused.set((next + 1, end));
            Self(NonZeroU64::new(next).expect("fewer than 2^64 tasks in a process's life"))
        })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}
