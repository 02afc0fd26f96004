//! CPU time of a group that no run queue charged: metered threads, blocking functions, foreign tasks.
//!
//! Any number of threads add to it at any time, so it is kept in [`STRIPES`] parts on lines of their own. A thread adds to
//! the part of the processor that it runs on: an addition is then a locked instruction on a line which no other
//! processor writes, and readers sum a fixed number of parts however many threads there are. The first [`FEW`] additions
//! go to a word in the group itself: most groups see no more than what the scheduler spends for them now and then, and
//! the parts are half a kilobyte. All only grow, so their sum does not step back for readers that are causally ordered;
//! the root is added to before its children, so a group read after one of its descendants is not smaller.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use std::sync::OnceLock;

/// Number of parts. Unit: cache lines. Default 8: on a machine of 64 processors eight share one; more would make every
/// reading dearer. A power of two.
const STRIPES: usize = 8;

/// Additions before the parts are made. Unit: additions. Default 64: who computes outside the run queues all the time is past
/// that at once.
const FEW: u32 = 64;

#[derive(Debug)]
#[repr(align(64))]
struct Stripe(AtomicU64);

/// The time of one group.
#[derive(Debug, Default)]
pub(crate) struct Outside {
    /// What the first additions came to, ns.
    first: AtomicU64,
    /// How many of those there were. It stands still once there are parts.
    additions: AtomicU32,
    /// Threads that are metered for the group now. 2^32 threads do not fit into memory.
    pub(crate) members: AtomicU32,
    stripes: OnceLock<Box<[Stripe; STRIPES]>>,
}

impl Outside {
    /// Adds `time` ns to the part that belongs to `place`, a processor's number or anything else that keeps threads apart.
    #[inline]
    pub(crate) fn add(&self, place: usize, time: u64) {
        let part = match self.stripes.get() {
            Some(stripes) => &stripes[place % STRIPES].0,
            None => self.before_parts(place),
        };
        part.fetch_add(time, Ordering::Release);
    }

    #[cold]
    fn before_parts(&self, place: usize) -> &AtomicU64 {
        if self.additions.fetch_add(1, Ordering::Relaxed) < FEW {
            return &self.first;
        }
        let stripes = self
            .stripes
            .get_or_init(|| Box::new(core::array::from_fn(|_| Stripe(AtomicU64::new(0)))));
        &stripes[place % STRIPES].0
    }

    /// The sum, ns.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        let stripes = self.stripes.get().into_iter().flat_map(|parts| &**parts);
        stripes
            .map(|stripe| stripe.0.load(Ordering::Acquire))
            .fold(self.first.load(Ordering::Acquire), u64::wrapping_add)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Hazard: a flood into ten thousand groups, each of which pays for one addition, takes half a kilobyte each.
    #[test]
    fn a_few_additions_take_no_parts() {
        let outside = Outside::default();
        for place in 0..FEW as usize {
            outside.add(place, 3);
        }
        assert!(outside.stripes.get().is_none());
        assert_eq!(outside.read(), 3 * u64::from(FEW));
        outside.add(0, 5);
        assert!(outside.stripes.get().is_some());
        assert_eq!(outside.read(), 3 * u64::from(FEW) + 5);
    }

    /// Hazard: time that is added while the parts are made is lost, or a reader sees the sum step back.
    #[test]
    fn nothing_is_lost_while_the_parts_are_made() {
        const ADDITIONS: usize = 2 * FEW as usize;
        for _ in 0..200 {
            let outside = Outside::default();
            let all = (4 * ADDITIONS) as u64;
            std::thread::scope(|scope| {
                for place in 0..4 {
                    let outside = &outside;
                    scope.spawn(move || (0..ADDITIONS).for_each(|_| outside.add(place, 1)));
                }
                let mut last = 0;
                while last < all {
                    let now = outside.read();
                    assert!((last..=all).contains(&now), "{now} after {last}");
                    last = now;
                }
            });
        }
    }
}
