//! What a CPU publishes about itself, so that others can choose whom to pull from without taking its lock.

use crate::bandwidth::Mailbox;
use crate::group::Group;
use crate::tree::GroupTree;
use crate::units::{Nanos, to_service_lag};
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A CPU is faster if its tasks have so many parts of it where they have four of another: a quarter more. Less is what a hypervisor takes here and there.
const FASTER_PARTS: u64 = 5;

/// One CPU's load: relaxed single-writer words on cache lines of their own. Readers tolerate staleness; the puller
/// takes the victim's lock and looks again. How each *group* fares on the CPU is in the group's cells.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct CpuLoad {
    queued: AtomicU32,
    running: AtomicU32,
    /// Up to when the virtual times of this CPU's groups are right, ns.
    settled_at: AtomicU64,
    /// How long lately passed between two charges at most, ns: what virtual times may be off by.
    grain: AtomicU64,
    /// How much of the CPU went to somebody above this scheduler lately, of 1,024.
    stolen: AtomicU32,
    /// The timeline whose turn it is, as an index into `groups`.
    leaf: AtomicU32,
    /// The timeline of which an own task has this CPU for itself, as an index and one; 0 for none.
    alone: AtomicU32,
    /// What that one is owed, in virtual time, and its shares.
    owed_alone: AtomicI64,
    shares_alone: AtomicU32,
    /// The groups that this CPU has met. Locked when it meets another, and by its own balancer.
    groups: Mutex<Vec<Arc<Group>>>,
    /// Groups that got budget and wait for this CPU to unthrottle them.
    pub(crate) mailbox: Arc<Mailbox>,
}

impl CpuLoad {
    /// Tasks that wait (all runnable ones but the current).
    pub fn nr_queued(&self) -> usize {
        self.queued.load(Relaxed) as usize
    }

    /// Runnable tasks, the current one included.
    pub fn nr_running(&self) -> usize {
        self.running.load(Relaxed) as usize
    }

    /// Whether [`crate::RunQueue::unthrottle_pending`] has anything to do: to be looked at before parking. One load.
    #[inline]
    pub fn has_unthrottles(&self) -> bool {
        self.mailbox.is_filled()
    }

    /// Shows how much of the CPU's time went to others than this queue's tasks lately, of 1,024 (a real-time class above, say): where loads
    /// are evened out, it is among what is left. For a host that knows; without it, nothing did.
    pub fn publish_stolen(&self, part: u32) {
        self.stolen.store(part, Relaxed);
    }

    /// Whether a quarter more of its CPU is left to it than to `other`.
    pub fn has_more_than(&self, other: &CpuLoad) -> bool {
        4 * self.capacity() >= FASTER_PARTS * other.capacity()
    }

    /// What is left of the CPU for this queue's tasks, of 1,024, at least one.
    pub(crate) fn capacity(&self) -> u64 {
        u64::from(1024_u32.saturating_sub(self.stolen.load(Relaxed)).max(1))
    }

    #[inline]
    pub(crate) fn publish_counts(&self, queued: u32, running: u32) {
        self.queued.store(queued, Relaxed);
        self.running.store(running, Relaxed);
    }

    #[inline]
    pub(crate) fn publish_leaf(&self, leaf: u32) {
        self.leaf.store(leaf, Relaxed);
    }

    /// The shares of an own task of the timeline that has this CPU for itself, and what it is owed at least, in virtual time, as of now; below zero, what
    /// it owes; zero if that is nothing to speak of. `None` if there is none.
    pub(crate) fn publish_alone(&self, leaf: u32, owed: Option<(u32, i64)>) {
        let mark = if owed.is_some() { leaf + 1 } else { 0 };
        if self.alone.load(Relaxed) != mark {
            self.alone.store(mark, Relaxed);
        }
        let (shares, owed) = owed.unwrap_or_default();
        if self.owed_alone.load(Relaxed) != owed {
            self.owed_alone.store(owed, Relaxed);
            self.shares_alone.store(shares, Relaxed);
        }
    }

    /// What the own task that runs here was owed, as that was published, if it had the CPU for itself when the clock of its group's children was told
    /// last; else 0.
    fn owed_alone(&self) -> i64 {
        let is_alone = self.alone.load(Relaxed) == self.leaf.load(Relaxed) + 1;
        if is_alone {
            self.owed_alone.load(Relaxed)
        } else {
            0
        }
    }

    /// What the own task that runs here and has the CPU for itself owes at least, in virtual time, if it does.
    pub(crate) fn owes_alone(&self) -> Option<u64> {
        let owed = self.owed_alone();
        (owed < 0).then_some(owed.unsigned_abs())
    }

    /// What the own task that runs here is owed though it has the CPU for itself, ns.
    pub(crate) fn owed_though_alone(&self) -> u64 {
        match self.owed_alone() {
            owed @ 1.. => to_service_lag(owed, self.shares_alone.load(Relaxed)).unsigned_abs(),
            _ => 0,
        }
    }

    /// Notes that the published virtual times are right up to `now`.
    pub(crate) fn publish_settled(&self, now: Nanos) {
        self.settled_at.store(now.0, Relaxed);
    }

    /// Notes that `delta` was charged at once.
    #[inline]
    pub(crate) fn publish_grain(&self, delta: u64) {
        let grain = self.grain.load(Relaxed);
        // Forgets a long poll within some tens of charges.
        self.grain.store(delta.max(grain - grain / 32), Relaxed);
    }

    pub(crate) fn settled_at(&self) -> Nanos {
        Nanos(self.settled_at.load(Relaxed))
    }

    pub(crate) fn grain(&self) -> Nanos {
        Nanos(self.grain.load(Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Group>>> {
        // Every change is a single push or store.
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which group a timeline index stands for.
    pub(crate) fn meet(&self, index: u32, group: &Arc<Group>) {
        let mut groups = self.lock();
        match groups.get_mut(index as usize) {
            Some(slot) => *slot = Arc::clone(group),
            None => groups.push(Arc::clone(group)),
        }
    }

    /// The timelines from `count` on are no more.
    pub(crate) fn forget_from(&self, count: usize) {
        let mut groups = self.lock();
        groups.truncate(count);
        if groups.capacity() > 4 * count {
            groups.shrink_to(2 * count);
        }
    }

    /// Goes from the root down to the group whose turn it is until `visit`, which is given the next one below too, finds
    /// something. Under the lock of this CPU's own
    /// list, without allocation and without counting references: meant for its own balancer. O(depth).
    pub(crate) fn find_on_chain<R>(
        &self,
        mut visit: impl FnMut(&Group, Option<&Group>) -> Option<R>,
    ) -> Option<R> {
        let leaf = self.leaf.load(Relaxed) as usize;
        let groups = self.lock();
        let mut path: [Option<&Group>; GroupTree::DEPTH_MAX + 1] = [None; GroupTree::DEPTH_MAX + 1];
        let mut level = groups.get(leaf).map(|group| &**group);
        let mut length = 0;
        for place in &mut path {
            let Some(group) = level else {
                break;
            };
            *place = Some(group);
            length += 1;
            level = group.parent().map(|parent| &**parent);
        }
        (0..length).rev().find_map(|index| {
            let group = path[index]?;
            let below = index.checked_sub(1).and_then(|next| path[next]);
            visit(group, below)
        })
    }
}
