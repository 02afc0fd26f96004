//! CPU time of a group that no run queue charged: metered threads, blocking functions, foreign tasks.
//!
//! Any number of threads add to it at any time, so it is kept in [`STRIPES`] parts on lines of their own. A thread adds to
//! the part of the processor that it runs on: an addition is then a locked instruction on a line which no other
//! processor writes, and readers sum a fixed number of parts however many threads there are. Parts only grow, so their
//! sum does not step back for readers that are causally ordered; the root is added to before its children, so a group
//! read after one of its descendants is not smaller.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use std::sync::OnceLock;

/// Number of parts. Unit: cache lines. Default 8: on a machine of 64 processors eight share one; more would make every
/// reading dearer. A power of two.
const STRIPES: usize = 8;

#[derive(Debug)]
#[repr(align(64))]
struct Stripe(AtomicU64);

/// The parts of one group, made when the first time is added.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    stripes: OnceLock<Box<[Stripe; STRIPES]>>,
    /// Threads that are metered for the group now.
    pub(crate) members: AtomicUsize,
}

impl Outside {
    /// Adds `time` ns to the part that belongs to `place`, a processor's number or anything else that keeps threads apart.
    #[inline]
    pub(crate) fn add(&self, place: usize, time: u64) {
        let stripes = self
            .stripes
            .get_or_init(|| Box::new(core::array::from_fn(|_| Stripe(AtomicU64::new(0)))));
        stripes[place % STRIPES]
            .0
            .fetch_add(time, Ordering::Release);
    }

    /// The sum, ns.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        self.stripes.get().map_or(0, |stripes| {
            stripes
                .iter()
                .map(|stripe| stripe.0.load(Ordering::Acquire))
                .fold(0, u64::wrapping_add)
        })
    }
}
