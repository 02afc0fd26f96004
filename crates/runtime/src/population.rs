//! How many tasks a group and its descendants have, how many they may have, and whether any may still come: one word.
//!
//! A task is counted in its own group and in every group above it but the root. It joins from its group upwards and undoes what it
//! joined if one of them refuses. Because the count and the mark of removal are one word, a group that is removed only if it is empty
//! ([`Population::close_if_empty`]) is empty for good: a spawn either was counted before, and the removal is refused, or finds the
//! mark. Because every join passes the top of the subtree, closing the top closes everything below.

use crate::primitives::{AtomicU64, Ordering};

/// The group was removed; the count is above it.
const REMOVED: u64 = 1;
/// One task.
const ONE: u64 = 2;
/// No bound on the number of tasks.
const UNBOUNDED: u64 = u64::MAX;

/// Why a group takes no task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closed {
    /// It was removed.
    Removed,
    /// It has as many as it may have: that many.
    Full(u64),
}

/// What a group is after a task has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// As alive as before.
    Alive,
    /// Removed, and the last task was this: somebody must finish the removal.
    Empty,
}

/// Count, bound and mark of one group.
#[derive(Debug)]
pub(crate) struct Population {
    /// Twice the number of tasks, plus [`REMOVED`]. 63 bits of tasks: they do not fit into memory.
    word: AtomicU64,
    max: AtomicU64,
}

impl Population {
    /// Of a new group; one that is made inside a removed group is removed.
    pub(crate) fn new(parent: Option<&Population>) -> Self {
        let removed = parent.is_some_and(Population::is_removed);
        Self {
            word: AtomicU64::new(if removed { REMOVED } else { 0 }),
            max: AtomicU64::new(UNBOUNDED),
        }
    }

    /// Counts one more task, if there is room.
    #[inline]
    pub(crate) fn join(&self) -> Result<(), Closed> {
        let max = self.max.load(Ordering::Relaxed);
        if max != UNBOUNDED {
            return self.join_within(max);
        }
        self.join_beyond()
    }

    /// As [`Population::join`], for tasks that live already and come from elsewhere: the bound does not hold for them.
    #[inline]
    pub(crate) fn join_beyond(&self) -> Result<(), Closed> {
        if self.word.fetch_add(ONE, Ordering::AcqRel) & REMOVED != 0 {
            // The caller undoes it: by `leave`, since the removal may now wait for this one.
            return Err(Closed::Removed);
        }
        Ok(())
    }

    /// With a bound the step is made only if it fits: a refused one never takes another's room for a moment.
    #[cold]
    fn join_within(&self, max: u64) -> Result<(), Closed> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            // As `join_beyond`: counted, to be undone by `leave`.
            let closed = if word & REMOVED != 0 {
                Some(Closed::Removed)
            } else if word / ONE >= max {
                return Err(Closed::Full(max));
            } else {
                None
            };
            match self.word.compare_exchange_weak(
                word,
                word + ONE,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return closed.map_or(Ok(()), Err),
                Err(now) => word = now,
            }
        }
    }

    /// A task has left, or its joining of a group above was refused.
    #[inline]
    pub(crate) fn leave(&self) -> Left {
        if self.word.fetch_sub(ONE, Ordering::AcqRel) == ONE + REMOVED {
            return Left::Empty;
        }
        Left::Alive
    }

    /// Tasks of the group and below it.
    pub(crate) fn count(&self) -> usize {
        usize::try_from(self.word.load(Ordering::Acquire) / ONE).unwrap_or(usize::MAX)
    }

    #[inline]
    pub(crate) fn is_removed(&self) -> bool {
        self.word.load(Ordering::Acquire) & REMOVED != 0
    }

    /// Lets nobody join from now on.
    pub(crate) fn close(&self) {
        self.word.fetch_or(REMOVED, Ordering::AcqRel);
    }

    /// Lets nobody join from now on, if nobody is there.
    ///
    /// # Errors
    /// How many are.
    pub(crate) fn close_if_empty(&self) -> Result<(), usize> {
        match self
            .word
            .compare_exchange(0, REMOVED, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => Ok(()),
            Err(word) => Err(usize::try_from(word / ONE).unwrap_or(usize::MAX)),
        }
    }

    /// Bounds the number of tasks, `u64::MAX` for no bound; those that are there stay.
    pub(crate) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_max(&self, max: u64) {
        self.max.store(max, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_full_group_takes_nobody_and_a_removed_one_reports_its_last() {
        let group = Population::new(None);
        group.set_max(2);
        assert_eq!(group.join(), Ok(()));
        assert_eq!(group.join(), Ok(()));
        assert_eq!(group.join(), Err(Closed::Full(2)));
        assert_eq!(group.count(), 2);
        group.join_beyond().unwrap();
        assert_eq!(group.count(), 3);
        assert_eq!(group.leave(), Left::Alive);
        assert_eq!(group.close_if_empty(), Err(2));
        assert!(!group.is_removed());
        group.close();
        assert_eq!(group.join(), Err(Closed::Removed));
        assert_eq!(group.leave(), Left::Alive);
        assert_eq!(group.leave(), Left::Alive);
        assert_eq!(group.leave(), Left::Empty);
        assert!(Population::new(Some(&group)).is_removed());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// A spawn into a child against the removal of its parent if that is empty: the parent's removal and the spawn never both succeed,
    /// and somebody is told of the end.
    #[test]
    fn loom_removal_if_empty_against_a_spawn_below() {
        loom::model(|| {
            let parent = Arc::new(Population::new(None));
            let child = Arc::new(Population::new(None));
            let spawner = {
                let (parent, child) = (parent.clone(), child.clone());
                loom::thread::spawn(move || {
                    if child.join().is_err() {
                        return (false, child.leave() == Left::Empty);
                    }
                    if parent.join().is_ok() {
                        return (true, false);
                    }
                    let told = parent.leave() == Left::Empty;
                    (false, child.leave() == Left::Empty || told)
                })
            };
            let removed = parent.close_if_empty().is_ok();
            let mut finished = false;
            if removed {
                child.close();
                finished = child.count() == 0;
            }
            let (spawned, told) = spawner.join().unwrap();
            assert!(!(removed && spawned), "a task in a removed group");
            assert!(removed || spawned, "both were refused");
            assert!(!removed || finished || told, "nobody finishes the removal");
        });
    }
}
