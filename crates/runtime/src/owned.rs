//! The live tasks of a group, so that kill, removal and shutdown reach those that sleep.
//!
//! Sharded by the spawning virtual CPU: a spawn and an end take one short, rarely contended lock each. A task is in exactly
//! one list from before its first wake-up until its future was dropped.

use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use quotient_core::Nanos;
use slab::Slab;

use crate::task_context::{TaskRef, is_loss};

/// Number of lists of a group. Unit: lists. A power of two; four keep two to sixteen workers apart at 208 bytes a group.
const SHARDS: usize = 4;

/// Where a task is listed: the list, and the key in it, in one word of every task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(usize);

impl Place {
    /// Which list: a hint for another group's.
    pub(crate) fn shard(self) -> usize {
        self.0 % SHARDS
    }
}

/// All live tasks of one group.
#[derive(Debug, Default)]
pub(crate) struct OwnedTasks {
    shards: [Mutex<Slab<TaskRef>>; SHARDS],
    /// How many each list has: written under its lock, read without, since who shows a thousand groups would otherwise take four thousand
    /// locks. 2^32 tasks do not fit into memory.
    lengths: [AtomicU32; SHARDS],
}

impl OwnedTasks {
    /// Lists a task; `hint` spreads the callers.
    pub(crate) fn insert(&self, task: TaskRef, hint: usize) -> Place {
        let shard = hint % SHARDS;
        let mut tasks = self.shard(shard);
        if tasks.capacity() == 0 {
            // Many groups have one task in a list, or none: 48 bytes less than a vector's first four.
            tasks.reserve_exact(1);
        }
        let key = tasks.insert(task);
        self.lengths[shard].store(tasks.len() as u32, Ordering::Relaxed);
        // An entry takes 16 bytes: there are no keys with their top bits set.
        Place(key * SHARDS + shard)
    }

    /// Takes a task off the list.
    pub(crate) fn remove(&self, place: Place) -> Option<TaskRef> {
        let mut tasks = self.shard(place.shard());
        let task = tasks.try_remove(place.0 / SHARDS);
        self.lengths[place.shard()].store(tasks.len() as u32, Ordering::Relaxed);
        task
    }

    /// K2 of `kills`: flags all tasks listed now, and returns those that were not yet, and how many of them are losses. (Counted here: from the flag on
    /// any of them may end.) O(tasks).
    pub(crate) fn flag_killed(&self) -> (Vec<TaskRef>, usize) {
        let (mut dead, mut losses) = (Vec::new(), 0);
        for shard in 0..SHARDS {
            let tasks = self.shard(shard);
            for (_, task) in tasks.iter() {
                let loss = is_loss(task);
                if !task.context().killed.swap(true, Ordering::Relaxed) {
                    dead.push(task.clone());
                    losses += usize::from(loss);
                }
            }
        }
        (dead, losses)
    }

    /// References to all tasks listed now. O(tasks).
    pub(crate) fn snapshot(&self) -> Vec<TaskRef> {
        self.all_that(|_| true)
    }

    /// The same, of those that are `wanted`. O(tasks).
    pub(crate) fn all_that(&self, wanted: impl Fn(&TaskRef) -> bool) -> Vec<TaskRef> {
        let mut all = Vec::new();
        for shard in 0..SHARDS {
            let tasks = self.shard(shard);
            let tasks = tasks.iter().map(|(_, task)| task);
            all.extend(tasks.filter(|task| wanted(task)).cloned());
        }
        all
    }

    /// How many tasks are listed now; no lock.
    pub(crate) fn len(&self) -> usize {
        let lengths = self.lengths.iter();
        lengths
            .map(|length| length.load(Ordering::Relaxed) as usize)
            .sum()
    }

    /// The task of that name, if it is listed. O(tasks).
    pub(crate) fn find(&self, id: crate::task::Id) -> Option<TaskRef> {
        (0..SHARDS).find_map(|shard| {
            let tasks = self.shard(shard);
            tasks
                .iter()
                .map(|(_, task)| task)
                .find(|task| task.id() == id)
                .cloned()
        })
    }

    /// Whether the task of that number is listed here and nobody has asked for its end. Drops no reference: callers may hold a run queue. O(tasks).
    pub(crate) fn has_living(&self, number: u64) -> bool {
        (0..SHARDS).any(|shard| {
            let tasks = self.shard(shard);
            tasks
                .iter()
                .any(|(_, task)| task.id().number() == number && task.is_alive())
        })
    }

    /// Takes the polls of tasks that are listed here out of `polls` (numbers of tasks, and how long each has been polled); returns the
    /// longest of them, and where its task was spawned. O(tasks) unless `polls` is empty.
    pub(crate) fn take_polls(
        &self,
        polls: &mut Vec<(u64, Nanos)>,
    ) -> Option<(Nanos, &'static Location<'static>)> {
        let mut longest: Option<(Nanos, &'static Location<'static>)> = None;
        for shard in 0..SHARDS {
            if polls.is_empty() {
                break;
            }
            for (_, task) in self.shard(shard).iter() {
                let number = task.id().number();
                let Some(place) = polls.iter().position(|(polled, _)| *polled == number) else {
                    continue;
                };
                let (_, taken) = polls.swap_remove(place);
                if longest.is_none_or(|(known, _)| taken > known) {
                    longest = Some((taken, task.context().location));
                }
            }
        }
        longest
    }

    fn shard(&self, shard: usize) -> std::sync::MutexGuard<'_, Slab<TaskRef>> {
        self.shards[shard]
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}
