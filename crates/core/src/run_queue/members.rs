//! The groups that a CPU has met: a timeline each, from the first task of the group until the group is removed and nothing needs
//! the timeline any more.

use super::{ROOT, RunQueue};
use crate::gates::Gates;
use crate::group::Group;
use crate::moved::Moved;
use crate::node::{NONE, Node, Place, Traits, cut_off};
use crate::timeline::Timeline;
use crate::units::VirtualTime;
use std::sync::Arc;

impl<T, G: Gates> RunQueue<T, G> {
    /// The timeline for a group, created when this CPU meets the group first. Tasks of removed groups go to the
    /// nearest live ancestor. O(1) but for the first time.
    #[inline]
    pub(super) fn timeline_of(&mut self, group: &Arc<Group>) -> u32 {
        let mut live = group;
        while live.is_removed() {
            match live.parent() {
                Some(parent) => live = parent,
                None => return ROOT,
            }
        }
        let id = live.id() as usize;
        if let Some(&slot) = self.slots.get(id)
            && slot != NONE
            && Arc::ptr_eq(&self.timelines[slot as usize].group, live)
        {
            return slot;
        }
        self.meet(live)
    }

    #[cold]
    fn meet(&mut self, group: &Arc<Group>) -> u32 {
        let Some(parent) = group.parent() else {
            // The root of another tree: a caller's mistake that must not corrupt this queue.
            return ROOT;
        };
        let parent = self.timeline_of(parent);
        let id = group.id() as usize;
        if self.slots.len() <= id {
            self.slots.resize(id + 1, NONE);
        }
        self.forget_slot(id);
        let cell = group.cells.of(self.cpu, || Arc::clone(&self.clock));
        let mut timeline = Timeline::new(Arc::clone(group), cell, parent, self.rules.shift);
        timeline.take_outside();
        self.timelines[parent as usize].group.time.meet_group();
        let index = self.vacant_index();
        assert!(index != NONE, "a CPU meets fewer than 2^32 - 1 groups");
        self.timelines[parent as usize].below += 1;
        timeline.node = self.slab.insert(Node {
            v: VirtualTime::default(),
            deadline: VirtualTime::default(),
            sum_exec: 0,
            handle: None,
            slice: self.rules.base_slice,
            shares: group.shares(),
            next: NONE,
            prev: NONE,
            timeline: parent,
            owned: index,
            moved: Moved::NEVER,
            place: Place::Off,
            passed_over: 0,
            traits: Traits::default().with(Traits::IDLE, group.is_idle()),
        });
        match self.timelines.get_mut(index as usize) {
            Some(vacant) => *vacant = timeline,
            None => self.timelines.push(timeline),
        }
        self.load.meet(index, group);
        self.slots[id] = index;
        let above = self.timelines[parent as usize].limited;
        self.timelines[index as usize].limited = above;
        if self.has_limit(index) {
            self.attach_meter(index, true);
        }
        index
    }

    /// Frees the timeline that an id stood for, at once or when its last task has left.
    pub(super) fn forget_slot(&mut self, id: usize) {
        let old = core::mem::replace(&mut self.slots[id], NONE);
        if old == NONE {
            return;
        }
        // Its limit goes with its name; whatever it kept back runs where it is.
        if self.timelines[old as usize].meter.is_some() {
            self.detach_meter(old);
        }
        self.timelines[old as usize].orphan = true;
        self.free_if_orphan(old);
    }

    pub(super) fn free_if_orphan(&mut self, index: u32) {
        let mut index = index;
        // Up to those that were kept for what was below them.
        while let Some(parent) = self.free_one_orphan(index) {
            index = parent;
        }
    }

    /// Frees the timeline if nobody needs it any more, and says whose parent it had. A group may be removed while a task is on its way
    /// into a group below it, which a limit then keeps back: nothing of that is in the timeline above, which is needed all the same.
    pub(super) fn free_one_orphan(&mut self, index: u32) -> Option<u32> {
        let timeline = &mut self.timelines[index as usize];
        let used = timeline.nr > 0 || timeline.below > 0 || index == self.leaf;
        if !timeline.orphan || timeline.vacant || used {
            return None;
        }
        let parent = timeline.parent;
        let node = core::mem::replace(&mut timeline.node, NONE);
        let root = Arc::clone(&self.timelines[ROOT as usize].group);
        let cell = Arc::clone(&self.timelines[ROOT as usize].cell);
        // Drops the group and the queues' memory now rather than at the next reuse.
        let mut vacant = Timeline::new(root, cell, ROOT, self.rules.shift);
        vacant.vacant = true;
        self.load.meet(index, &vacant.group);
        self.timelines[index as usize] = vacant;
        self.slab.release(node);
        self.vacant_timelines.push(index);
        self.timelines[parent as usize].below -= 1;
        self.shrink_timelines();
        Some(parent)
    }

    /// A place for a new timeline. The list of vacant ones also has some that were cut off since, or are used again.
    fn vacant_index(&mut self) -> u32 {
        while let Some(index) = self.vacant_timelines.pop() {
            if let Some(timeline) = self.timelines.get(index as usize)
                && timeline.vacant
            {
                return index;
            }
        }
        u32::try_from(self.timelines.len()).unwrap_or(NONE)
    }

    /// Gives back the memory of vacant timelines at the end.
    fn shrink_timelines(&mut self) {
        let before = self.timelines.len();
        cut_off(&mut self.timelines, |timeline| timeline.vacant);
        let kept = self.timelines.len();
        if kept == before {
            return;
        }
        self.load.forget_from(kept);
        if self.vacant_timelines.len() > 2 * kept {
            self.vacant_timelines
                .retain(|index| (*index as usize) < kept);
            self.vacant_timelines.shrink_to(2 * kept);
        }
    }
}
