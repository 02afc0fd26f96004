//! How long a group's tasks wait for their first poll: [`crate::GroupBuilder::queue_wait_max`], for spawns.
//!
//! A group with a bound keeps a *line* of those of its tasks, descendants' included, that were spawned and not polled yet. They stand
//! in *batches*, by when they came: a sixteenth of the bound is one batch, which counts who of it is left. The age of the first batch
//! with anybody left is how long the group's oldest task has waited, to a sixteenth; if that is more than the bound, spawns are
//! refused. A spawn and a first poll take O(1) (amortised: a poll also clears away the empty batches before its own), whatever the
//! order in which tasks start.
//!
//! # Who stands in line
//! A task stands in the lines of its group and of all groups above that have a bound when it is spawned. Its [`Tickets`] say where;
//! they lie with its run token and go with its first poll, or when it follows a move to another group, or is dropped unpolled. Requests of the
//! tower layer have a bound of their own each (`tower/patience`) and stand in no line; what stands for work that is there already (gates,
//! proxies) does not either.
//!
//! # How long a line can be
//! A batch is begun only while the first one is younger than the bound, and a sixteenth of the bound after the last one: 17 batches.
//! (If the bound changes all the time: each begins at least a sixteenth of the line's age after the last, so that their number grows with
//! the logarithm of the age; 700 for all times that a clock can show.)
//!
//! # Locks
//! A line's lock is a leaf, held for a few instructions. A poll that is preempted must not be stopped inside, since the virtual CPU
//! that goes on takes the same lock at first polls: spawns shield it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use quotient_core::Nanos;

use crate::group::GroupShared;

/// No bound. Unit: nanoseconds.
const UNBOUNDED: u64 = u64::MAX;
/// Parts of the bound that are told apart. Unit: batches. Default 16: who is refused has waited for the bound and at most 6 % less.
const PARTS: u64 = 16;

/// The bound of one group, and who stands in its line.
#[derive(Debug)]
pub(crate) struct QueueWait {
    /// Unit: nanoseconds.
    max: AtomicU64,
    /// `None` until there is a bound for the first time.
    line: Mutex<Option<Box<Line>>>,
}

/// Tasks that were spawned and not polled yet.
#[derive(Debug, Default)]
struct Line {
    /// In the order of time; the first has somebody left.
    batches: VecDeque<Batch>,
    /// The number of the first batch. Numbers are never used again (2^64).
    first: u64,
}

/// Tasks that came within a sixteenth of the bound.
#[derive(Debug)]
struct Batch {
    began: Nanos,
    left: u64,
}

/// The oldest task of a group has waited for longer than its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong {
    pub(crate) wait: Nanos,
    pub(crate) max: Nanos,
}

impl Line {
    /// One more; its batch's number.
    fn join(&mut self, now: Nanos, max: Nanos) -> Result<u64, TooLong> {
        if let Some(first) = self.batches.front() {
            let wait = now.saturating_sub(first.began);
            if wait > max {
                return Err(TooLong { wait, max });
            }
        }
        let width = Nanos(max.as_nanos() / PARTS);
        match self.batches.back_mut() {
            Some(last) if now.saturating_sub(last.began) <= width => last.left += 1,
            _ => self.batches.push_back(Batch {
                began: now,
                left: 1,
            }),
        }
        Ok(self.first + self.batches.len() as u64 - 1)
    }

    /// One of a batch is no longer in line. Nothing happens if the line was given up meanwhile.
    fn leave(&mut self, batch: u64) {
        let index = batch.checked_sub(self.first);
        let batch = index.and_then(|index| self.batches.get_mut(usize::try_from(index).ok()?));
        let Some(batch) = batch else { return };
        batch.left = batch.left.saturating_sub(1);
        while self.batches.front().is_some_and(|first| first.left == 0) {
            self.batches.pop_front();
            self.first += 1;
        }
    }

    /// Everybody goes.
    fn give_up(&mut self) {
        self.first += self.batches.len() as u64;
        self.batches = VecDeque::new();
    }
}

impl QueueWait {
    pub(crate) fn new() -> Self {
        Self {
            max: AtomicU64::new(UNBOUNDED),
            line: Mutex::new(None),
        }
    }

    /// The bound, if there is one.
    pub(crate) fn max(&self) -> Option<Nanos> {
        let max = self.max.load(Ordering::Relaxed);
        (max != UNBOUNDED).then_some(Nanos(max))
    }

    /// Sets the bound or lifts it. Who came before there was one stands in no line.
    pub(crate) fn set_max(&self, max: Option<Nanos>) {
        let mut line = self.lock();
        let word = max.map_or(UNBOUNDED, Nanos::as_nanos);
        self.max.store(word, Ordering::Relaxed);
        match (max, &mut *line) {
            (Some(_), None) => *line = Some(Box::default()),
            (None, Some(line)) => line.give_up(),
            _ => {}
        }
    }

    /// One more task; the number of its batch, `None` if there is no bound.
    fn join(&self, now: Nanos) -> Result<Option<u64>, TooLong> {
        if self.max().is_none() {
            return Ok(None);
        }
        let mut line = self.lock();
        match (self.max(), &mut *line) {
            (Some(max), Some(line)) => line.join(now, max).map(Some),
            _ => Ok(None),
        }
    }

    fn leave(&self, batch: u64) {
        if let Some(line) = &mut *self.lock() {
            line.leave(batch);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<Line>>> {
        self.line
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

/// Where a task stands in line, until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Tickets(Vec<(Arc<GroupShared>, u64)>);

impl Tickets {
    /// A task comes into the first of these groups, below the others; which of them refuses it, if one does.
    pub(crate) fn draw<'a>(
        lineage: impl Iterator<Item = &'a Arc<GroupShared>>,
        now: Nanos,
    ) -> Result<Self, (TooLong, Arc<GroupShared>)> {
        let mut tickets = Self::default();
        for group in lineage {
            match group.queue_wait.join(now) {
                Ok(Some(batch)) => tickets.0.push((group.clone(), batch)),
                Ok(None) => {}
                // Those that were drawn already are given back.
                Err(refusal) => return Err((refusal, group.clone())),
            }
        }
        Ok(tickets)
    }
}

impl Drop for Tickets {
    fn drop(&mut self) {
        for (group, batch) in self.0.drain(..) {
            group.queue_wait.leave(batch);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MAX: Nanos = Nanos(1_600);

    fn bounded() -> QueueWait {
        let line = QueueWait::new();
        line.set_max(Some(MAX));
        line
    }

    fn join(line: &QueueWait, now: u64) -> u64 {
        line.join(Nanos(now)).unwrap().unwrap()
    }

    fn length(line: &QueueWait) -> usize {
        line.lock().as_ref().map_or(0, |line| line.batches.len())
    }

    #[test]
    fn without_a_bound_nothing_is_kept() {
        let line = QueueWait::new();
        assert_eq!(line.join(Nanos(5)), Ok(None));
        assert!(line.lock().is_none());
    }

    #[test]
    fn the_oldest_decides_in_whatever_order_tasks_start() {
        let line = bounded();
        let old = join(&line, 1_000);
        let young = join(&line, 2_000);
        line.leave(young);
        assert!(line.join(Nanos(2_600)).is_ok(), "not beyond the bound");
        let refusal = TooLong {
            wait: Nanos(1_601),
            max: MAX,
        };
        assert_eq!(line.join(Nanos(2_601)), Err(refusal));
        line.leave(old);
        assert!(line.join(Nanos(2_601)).is_ok(), "the oldest came at 2,600");
        assert_eq!(line.join(Nanos(4_201)).unwrap_err().wait, Nanos(1_601));
    }

    #[test]
    fn a_stuck_line_stays_short_however_many_come_and_start_behind() {
        let line = bounded();
        join(&line, 0);
        for now in 0..=MAX.as_nanos() {
            for _ in 0..3 {
                let ticket = join(&line, now);
                line.leave(ticket);
            }
        }
        assert!(length(&line) <= 17, "{}", length(&line));
        assert!(line.join(Nanos(1_601)).is_err());
        assert!(length(&line) <= 17);
    }

    /// The bound is made longer and shorter as each suits a new batch best.
    #[test]
    fn a_stuck_line_stays_short_while_its_bound_changes() {
        let line = bounded();
        join(&line, 0);
        for now in 1..=100_000 {
            line.set_max(Some(Nanos(now)));
            let _ = line.join(Nanos(now));
        }
        assert!(length(&line) <= 200, "{}", length(&line));
    }

    #[test]
    fn tickets_of_a_line_that_was_given_up_take_nobody_elses_place() {
        let line = bounded();
        let old = join(&line, 0);
        line.set_max(None);
        assert_eq!(line.join(Nanos(10)), Ok(None));
        line.set_max(Some(MAX));
        join(&line, 20);
        line.leave(old);
        assert_eq!(length(&line), 1, "the second is still there");
        assert!(line.join(Nanos(1_700)).is_err());
    }

    #[test]
    fn a_bound_of_nothing_lets_one_wait_at_a_time() {
        let line = QueueWait::new();
        line.set_max(Some(Nanos::ZERO));
        let first = join(&line, 5);
        assert!(line.join(Nanos(6)).is_err());
        line.leave(first);
        assert!(line.join(Nanos(6)).is_ok());
    }
}
