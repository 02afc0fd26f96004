//! Which group's timer is due when: one ordered map for the whole tree, and the earliest time in one word.

use super::Bandwidth;
use crate::tree::GroupTree;
use crate::units::{CpuId, Nanos};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most timers run by one call of [`GroupTree::refill`]: some tens of us of work, so that no CPU that does it in passing
/// stalls.
pub const REFILLS_MAX: usize = 64;

/// "No timer": later than any time.
pub(super) const NEVER: u64 = u64::MAX;

/// The armed timers of a tree. Each group has at most one entry, at its earlier timer (period or slack).
#[derive(Default)]
pub(crate) struct Timers {
    due: Mutex<BTreeMap<(u64, u32, u32), Arc<Bandwidth>>>,
    /// Where the map begins, plus one; 0 is never. Written under the map's lock.
    next: AtomicU64,
}

impl Timers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u32, u32), Arc<Bandwidth>>> {
        // Inserts and removals of whole entries only.
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, due: &BTreeMap<(u64, u32, u32), Arc<Bandwidth>>) {
        let first = due
            .keys()
            .next()
            .map_or(0, |&(at, _, _)| at.saturating_add(1));
        self.next.store(first, Relaxed);
    }

    /// Moves a group's timer. Under the group's pool lock, which makes `from` right. O(log armed timers).
    pub(super) fn set(&self, group: &Arc<Bandwidth>, from: u64, to: u64) {
        if from == to {
            return;
        }
        let (id, generation) = group.id;
        let mut due = self.lock();
        due.remove(&(from, id, generation));
        if to != NEVER {
            due.insert((to, id, generation), Arc::clone(group));
        }
        self.publish(&due);
    }

    /// The earliest timer, if any is armed. One load.
    #[inline]
    pub(crate) fn next(&self) -> Option<Nanos> {
        match self.next.load(Relaxed) {
            0 => None,
            at => Some(Nanos(at - 1)),
        }
    }

    fn first_due(&self, now: Nanos) -> Option<Arc<Bandwidth>> {
        let due = self.lock();
        let (&(at, _, _), group) = due.first_key_value()?;
        (at <= now.0).then(|| Arc::clone(group))
    }
}

impl GroupTree {
    /// When [`GroupTree::refill`] is due next; `None` while no limited group is active. Any call of a queue, and any
    /// change of a limit, may make it earlier. One load.
    #[inline]
    pub fn next_refill(&self) -> Option<Nanos> {
        self.root_ref().changes().timers.next()
    }

    /// Refills every group whose time has come, and tells which CPUs then have groups to unthrottle: the host makes each
    /// of them call [`crate::RunQueue::unthrottle_pending`]. Returns whether more is due, since one call runs at most
    /// [`REFILLS_MAX`] timers.
    ///
    /// Any thread may call it, several at once; it takes no run queue's lock. O(log groups) a timer plus O(1) a CPU
    /// unthrottled.
    pub fn refill(&self, now: Nanos, kick: &mut dyn FnMut(CpuId)) -> bool {
        let timers = &self.root_ref().changes().timers;
        let mut kicks = Vec::new();
        for _ in 0..REFILLS_MAX {
            let Some(group) = timers.first_due(now) else {
                break;
            };
            group.expire(now, timers, &mut kicks);
            kicks.drain(..).for_each(&mut *kick);
        }
        timers.next().is_some_and(|at| at <= now)
    }
}
