//! Giving waiting tasks away: to another CPU, or all of them at shutdown.

use super::RunQueue;
use crate::balance::Pull;
use crate::entity::{MIGRATION_TICK_SHIFT, TaskEntity};
use crate::group::Group;
use crate::node::NONE;
use crate::units::Nanos;
use std::sync::Arc;

/// A task on its way to another queue.
#[derive(Debug)]
pub struct Detached<T> {
    /// The group that it was queued in.
    pub group: Arc<Group>,
    /// Its scheduling state, lag included.
    pub entity: TaskEntity,
    /// The host's task.
    pub handle: T,
}

/// Slots that one search for a candidate looks at: bounds the time for which the queue is held.
const SCAN_MAX: usize = 256;

/// Waiting tasks among which the longest unmoved one is chosen.
const CANDIDATES_MAX: usize = 32;

impl<T> RunQueue<T> {
    /// Takes up to `request.max` waiting tasks for another CPU and appends them to `out`; the current task stays.
    /// Among the candidates looked at, the one that was moved longest ago goes first, so that moves rotate.
    /// Returns how many were taken. O(1) searches of bounded length for each.
    pub fn detach(&mut self, request: &Pull, now: Nanos, out: &mut Vec<Detached<T>>) -> usize {
        let mut taken = 0;
        while taken < request.max && self.nr_queued() > 0 {
            let Some(index) = self.candidate(now) else {
                break;
            };
            let detached = self.give_away(index, now);
            out.push(detached);
            taken += 1;
        }
        self.publish_counts();
        taken
    }

    /// Takes out every waiting task, of all groups or of `group` and its descendants. For shutdown, freezing and
    /// killing. O(slots).
    pub fn drain(&mut self, group: Option<&Arc<Group>>, now: Nanos, out: &mut Vec<Detached<T>>) {
        for index in 0..self.slab.nodes.len() as u32 {
            let node = self.slab.get(index);
            if !node.is_task() || !node.place.is_queued() {
                continue;
            }
            let home = &self.timelines[node.timeline as usize].group;
            if group.is_none_or(|group| is_within(home, group)) {
                let detached = self.give_away(index, now);
                out.push(detached);
            }
        }
        self.publish_counts();
    }

    fn give_away(&mut self, index: u32, now: Nanos) -> Detached<T> {
        let level = self.slab.get(index).timeline;
        let group = Arc::clone(&self.timelines[level as usize].group);
        let handle = self.slab.get_mut(index).handle.take();
        let mut entity = self.dismiss(level, index, now);
        entity.migrated = tick(now);
        if self.timelines[level as usize].nr == 0 {
            self.leave(level);
        }
        match handle {
            Some(handle) => Detached {
                group,
                entity,
                handle,
            },
            None => unreachable!("a queued task's handle is in the queue"),
        }
    }

    /// The waiting task, among a bounded number, that has stayed longest on its CPU.
    fn candidate(&mut self, now: Nanos) -> Option<u32> {
        let slots = self.slab.nodes.len();
        let now = tick(now);
        let mut best: Option<(u32, u32)> = None;
        let mut seen = 0;
        for step in 0..slots.min(SCAN_MAX) {
            let index = ((self.detach_cursor as usize + step) % slots) as u32;
            let node = self.slab.get(index);
            if !node.is_task() || !node.place.is_queued() {
                continue;
            }
            let age = now.wrapping_sub(node.migrated);
            if best.is_none_or(|(_, oldest)| age > oldest) {
                best = Some((index, age));
            }
            seen += 1;
            if seen == CANDIDATES_MAX {
                break;
            }
        }
        let found = match best {
            Some((index, _)) => Some(index),
            // Few tasks in a slab that was once large: ask the queues instead.
            None => self.first_waiting(),
        };
        self.detach_cursor = found.map_or(0, |index| index.wrapping_add(1));
        found
    }

    fn first_waiting(&self) -> Option<u32> {
        // The chain's timelines first, from the leaf up: their children that wait are not on the chain.
        let mut level = self.leaf;
        loop {
            let timeline = &self.timelines[level as usize];
            if let Some((index, _)) = timeline.ready.peek().or_else(|| timeline.later.peek()) {
                return self.first_below(index);
            }
            if timeline.parent == NONE {
                return None;
            }
            level = timeline.parent;
        }
    }

    fn first_below(&self, mut index: u32) -> Option<u32> {
        while !self.slab.get(index).is_task() {
            let timeline = &self.timelines[self.slab.get(index).owned as usize];
            let (first, _) = timeline.ready.peek().or_else(|| timeline.later.peek())?;
            index = first;
        }
        Some(index)
    }
}

fn tick(now: Nanos) -> u32 {
    // Wraps on purpose.
    (now.0 >> MIGRATION_TICK_SHIFT) as u32
}

fn is_within(group: &Arc<Group>, ancestor: &Arc<Group>) -> bool {
    let mut level = Some(group);
    while let Some(at) = level {
        if Arc::ptr_eq(at, ancestor) {
            return true;
        }
        level = at.parent();
    }
    false
}
