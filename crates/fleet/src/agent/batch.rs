//! How many requests go in one round trip, and whose.
//!
//! # A late round trip
//! A server answers a batch when it has answered all of it, so a batch that is too large for the machine as it is now fails whole, and would fail
//! whole again for ever: the same tenants come again, together. So the batch follows what is answered in time:
//!
//! | round trip | the next are at most |
//! |---|---|
//! | late | half of what was asked, at least one |
//! | full, answered within [`QUICK`] of its patience | twice as many, at most [`ASKED_MAX`]: even if all of the time was the requests', that is half of the patience |
//! | full, answered later than that, [`SLOW_TRIPS`] times since the last change | a [`SLOW_PART`] more: the next may be late |
//! | not full | as before: it does not show what a full one takes |
//!
//! From [`ASKED_MAX`] that is nine late round trips to one request, which a store answers in time if it answers anything in time, and nine quick
//! ones back. Where a request costs the server always the same, sizes go up and down between a half and all of what it answers in time, with one
//! late batch in twenty-five. Where it is the way that takes long, a sixteenth of a lease, they grow slowly, but do.
//!
//! # Whose
//! Those who must ask come before those who go along. Where they are more than there is room for, they take turns, by path, after the last one that
//! was asked: a short batch starves nobody.

use std::sync::Arc;
use std::time::Duration;

/// Most of the requests in one round trip; who comes after them is asked for with the next. Default 512: some milliseconds of a server.
pub(super) const ASKED_MAX: usize = 512;

/// A batch that was answered within this part of its patience may be twice as large.
const QUICK: u32 = 4;

/// After how many full batches that were answered later than that a larger one is tried.
const SLOW_TRIPS: u32 = 8;

/// By which part of itself, one request at least.
const SLOW_PART: usize = 4;

#[derive(Debug)]
pub(super) struct Batch {
    /// At most so many, one to [`ASKED_MAX`].
    most: usize,
    /// Full batches that were answered, but not quickly, since `most` last changed.
    slow: u32,
    /// Who was asked for last of those who had to take turns.
    last: Option<Arc<str>>,
    /// Whether somebody who must ask had no room the last time.
    left_over: bool,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch {
            most: ASKED_MAX,
            slow: 0,
            last: None,
            left_over: false,
        }
    }
}

impl Batch {
    /// Whether somebody waits for the next round trip: it is due as soon as it may be.
    pub(super) fn has_left_over(&self) -> bool {
        self.left_over
    }

    /// Who is asked for in the next round trip. Both lists are in the order of their paths.
    pub(super) fn choose(
        &mut self,
        mut must: Vec<Arc<str>>,
        along: Vec<Arc<str>>,
    ) -> Vec<Arc<str>> {
        self.left_over = must.len() > self.most;
        if self.left_over {
            let first = must.partition_point(|path| Some(path) <= self.last.as_ref());
            must.rotate_left(first);
            must.truncate(self.most);
            self.last = must.last().cloned();
        } else {
            let room = self.most - must.len();
            must.extend(along.into_iter().take(room));
        }
        must
    }

    /// A round trip of so many was given up.
    pub(super) fn late(&mut self, asked: usize) {
        self.most = (asked / 2).clamp(1, ASKED_MAX);
        self.slow = 0;
    }

    /// A round trip of so many was answered.
    pub(super) fn answered(&mut self, asked: usize, took: Duration, patience: Duration) {
        if asked < self.most || self.most == ASKED_MAX {
            return;
        }
        let more = if took <= patience / QUICK {
            self.most
        } else {
            self.slow += 1;
            if self.slow < SLOW_TRIPS {
                return;
            }
            (self.most / SLOW_PART).max(1)
        };
        self.most = (self.most + more).min(ASKED_MAX);
        self.slow = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_millis(250);

    fn paths(names: &[&str]) -> Vec<Arc<str>> {
        names.iter().map(|name| Arc::from(*name)).collect()
    }

    /// So many full round trips with a store that takes `way` for each and `each` for a request; returns how many were late of them.
    fn trips(batch: &mut Batch, count: usize, way: Duration, each: Duration) -> usize {
        let mut late = 0;
        for _ in 0..count {
            let asked = batch.most;
            let took = way + each * u32::try_from(asked).expect("few");
            if took > PATIENCE {
                batch.late(asked);
                late += 1;
            } else {
                batch.answered(asked, took, PATIENCE);
            }
        }
        late
    }

    #[test]
    fn a_late_batch_shrinks_until_it_is_answered() {
        for each in [1, 3, 10, 60, 240].map(Duration::from_millis) {
            let mut batch = Batch::default();
            let late = trips(&mut batch, 10, Duration::ZERO, each);
            assert!(late < 10, "{each:?}: nothing was answered");
            // What it tries beyond that is rare, and is taken back.
            let late = trips(&mut batch, 1_000, Duration::ZERO, each);
            assert!(late <= 1_000 / 8, "{each:?}: {late} of 1,000 were late");
        }
    }

    #[test]
    fn a_batch_grows_again_with_a_store_that_is_quick_again() {
        let mut batch = Batch::default();
        for _ in 0..20 {
            batch.late(batch.most);
        }
        assert_eq!(batch.most, 1, "one is the least");
        assert_eq!(
            trips(&mut batch, 9, Duration::ZERO, Duration::from_micros(100)),
            0
        );
        assert_eq!(batch.most, ASKED_MAX);
        batch.answered(ASKED_MAX, Duration::ZERO, PATIENCE);
        assert_eq!(batch.most, ASKED_MAX, "no more than that");
    }

    #[test]
    fn a_batch_grows_slowly_where_the_way_is_long() {
        let mut batch = Batch::default();
        batch.late(1);
        let way = Duration::from_millis(150);
        assert_eq!(trips(&mut batch, 300, way, Duration::from_micros(100)), 0);
        assert_eq!(batch.most, ASKED_MAX);
    }

    #[test]
    fn a_batch_that_was_not_full_says_nothing_of_a_full_one() {
        let mut batch = Batch::default();
        batch.late(100);
        for _ in 0..100 {
            batch.answered(49, Duration::ZERO, PATIENCE);
        }
        assert_eq!(batch.most, 50);
        batch.answered(50, Duration::ZERO, PATIENCE);
        assert_eq!(batch.most, 100);
    }

    #[test]
    fn a_short_batch_starves_nobody() {
        let mut batch = Batch::default();
        batch.late(4);
        let all = paths(&["a", "b", "c", "d", "e"]);
        let mut turns = std::collections::BTreeMap::new();
        // All of them must ask each time: the first ones are no better off.
        for _ in 0..10 {
            for path in batch.choose(all.clone(), paths(&["x"])) {
                *turns.entry(path).or_insert(0) += 1;
            }
            assert!(batch.has_left_over());
        }
        assert_eq!(turns.into_values().collect::<Vec<_>>(), [4; 5]);
        let chosen = batch.choose(paths(&["d"]), paths(&["x", "y"]));
        assert_eq!(chosen, paths(&["d", "x"]), "there is room for one more");
        assert!(!batch.has_left_over());
    }
}
