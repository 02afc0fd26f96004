//! Following what was changed of groups elsewhere: weights, idleness, limits and removals.

use super::{ROOT, RunQueue, split};
use crate::config::GroupClock;
use crate::gates::Gates;
use crate::node::{NONE, Place, Traits};

impl<T, G: Gates> RunQueue<T, G> {
    /// Follows weight changes and removals that happened since the last look. One load if there were none.
    #[inline]
    pub(super) fn follow_changes(&mut self) {
        if self.changes.count() != self.changes_seen {
            self.follow_changes_slow();
        }
    }

    #[cold]
    fn follow_changes_slow(&mut self) {
        let (count, changed) = self.changes.since(self.changes_seen);
        self.changes_seen = count;
        let slots = match changed {
            Some(mut ids) => {
                // Each once: what a limit has to be charged is charged once.
                ids.sort_unstable();
                ids.dedup();
                ids
            }
            None => (0..self.slots.len() as u32).collect(),
        };
        self.unfollowed = self.pending;
        for id in slots {
            let index = self.slots.get(id as usize).copied().unwrap_or(NONE);
            if index == NONE || index == ROOT {
                continue;
            }
            if self.timelines[index as usize].group.is_removed() {
                self.forget_slot(id as usize);
            } else {
                self.refresh_weight(index);
                self.follow_limit(index);
            }
        }
        self.unfollowed = 0;
        // A limit that came or went may have let tasks go, or kept them.
        self.publish_counts_of_choice();
    }

    /// Brings the weight and idleness of a group's node up to date, wherever the node is.
    pub(super) fn refresh_weight(&mut self, index: u32) {
        if !self.service_clock.is_whole() && self.timelines[index as usize].nr == 0 {
            // Nothing to weigh here: what it was owed is measured in the weight that it left with.
            return;
        }
        let shares = self.group_shares(index);
        let timeline = &self.timelines[index as usize];
        let (node, parent_level) = (timeline.node, timeline.parent);
        let parent = parent_level as usize;
        let idle = timeline.group.is_idle();
        let node_ref = self.slab.get_mut(node);
        node_ref.traits = node_ref.traits.with(Traits::IDLE, idle);
        let old = self.slab.get(node).shares;
        if old == shares {
            return;
        }
        if self.service_clock.is_global() {
            self.reweigh(index, shares);
            return;
        }
        let nodes = &mut self.slab.nodes;
        match nodes[node as usize].place {
            Place::Off => {
                let v = self.timelines[parent].reference(self.rules.policy, 0);
                let timeline = &mut self.timelines[index as usize];
                let lag = i128::from(timeline.lag) * i128::from(old) / i128::from(shares);
                timeline.lag = lag.clamp(-(1 << 61), 1 << 61) as i64;
                let ahead = timeline.left_v.since(v).max(0);
                let ahead = i128::from(ahead) * i128::from(old) / i128::from(shares);
                timeline.left_v = v.plus(u64::try_from(ahead).unwrap_or(0).min(1 << 61));
                nodes[node as usize].shares = shares;
            }
            Place::Current => {
                // What was served so far was served at the old weight.
                self.flush();
                let parent = &mut self.timelines[parent];
                let node = &mut self.slab.nodes[node as usize];
                parent.reweight(node, shares);
                parent.group_load += u64::from(shares);
                parent.group_load -= u64::from(old);
                parent.protect(node, &self.rules);
                self.set_limit();
                if self.service_clock.is_whole() {
                    // As in `reweigh`. Split weights change with what is runnable, at each choice.
                    self.repick = true;
                }
            }
            _ => {
                let parent = &mut self.timelines[parent];
                parent.unqueue(nodes, node, &self.rules);
                parent.reweight(&mut nodes[node as usize], shares);
                parent.group_load += u64::from(shares);
                parent.group_load -= u64::from(old);
                parent.queue(nodes, node, &self.rules);
            }
        }
        self.publish_entities(parent_level);
    }

    /// Under [`GroupClock::PerCpu`], brings the weights on the path from a timeline to the root up to date, which follow
    /// from what is runnable. O(depth x CPUs).
    pub(super) fn refresh_parts(&mut self, level: u32) {
        if self.service_clock.is_whole() {
            return;
        }
        let mut level = level;
        // Not within a throttled hierarchy: that is made up for when it is left.
        while level != ROOT && !self.is_closed(level) {
            self.refresh_weight(level);
            level = self.timelines[level as usize].parent;
        }
    }

    #[inline(always)]
    pub(super) fn group_shares(&mut self, index: u32) -> u32 {
        let timeline = &mut self.timelines[index as usize];
        let cpus = self.service_clock.cpus;
        match self.service_clock.mode {
            GroupClock::Foreign => timeline.group.shares(),
            GroupClock::Averaged(mode) if G::load_averages() => {
                split::shares_averaged(timeline, mode, cpus)
            }
            GroupClock::PerCpu(mode) | GroupClock::Averaged(mode) => {
                split::shares_here(timeline, mode, cpus)
            }
        }
    }
}
