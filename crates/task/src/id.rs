//! Names of tasks.

use super::waker;
use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many identifiers a thread takes at once. Unit: identifiers; default 1024; so that a spawn shares no cache
/// line with spawns on other threads (a shared counter costs a line transfer, 50 ns and more, each time).
const BLOCK: u64 = 1024;

/// Set in the identifier of a task that a user gave a name: so it costs nothing to know that most have none. The numbers
/// themselves stay below: 2^63 tasks.
const NAMED: u64 = 1 << 63;

/// An opaque name of a task, unique among all tasks of the process, living or not.
///
/// Identifiers come from per-thread blocks: their order says nothing about the order of spawning.
#[derive(Clone, Copy, Debug, Hash, Eq, PartialEq, PartialOrd, Ord)]
pub struct Id(NonZeroU64);

impl Id {
    /// The number, for records of events.
    #[doc(hidden)]
    #[inline]
    pub fn number(self) -> u64 {
        self.0.get() & !NAMED
    }

    /// The identifier of a task that a user gives a name; before anybody has seen it.
    #[doc(hidden)]
    pub fn with_name(self) -> Self {
        Self(self.0 | NAMED)
    }

    /// Whether the task has a name.
    #[doc(hidden)]
    #[inline]
    pub fn is_named(self) -> bool {
        self.0.get() & NAMED != 0
    }

    /// A fresh identifier. O(1), no shared write except once in [`BLOCK`] calls.
    #[doc(hidden)]
    #[inline]
    pub fn next() -> Self {
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
            Self(NonZeroU64::new(next).expect("fewer than 2^63 tasks in a process's life"))
        })
    }
}

impl fmt::Display for Id {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.number().fmt(formatter)
    }
}

/// The name of the task that runs: the innermost one on this thread that is being polled, or whose future or output is being
/// dropped; in `spawn_blocking` and `spawn_local`, that of the function or the local future.
///
/// # Panics
/// Outside a task of a group, as tokio's.
#[track_caller]
pub fn id() -> Id {
    try_id().expect("no task of a group runs here: `try_id` says so without a panic")
}

/// As [`id`]; `None` outside a task of a group. A future that is only wrapped by `in_group` is no task of its own.
pub fn try_id() -> Option<Id> {
    waker::current_id()
}
