//! Bringing what other CPUs look at up to date.
//!
//! A group that waits follows its time when it comes to the head of its queue, which is early enough to choose well. It is too
//! late for others: what it is owed has to be known before somebody else cuts it as of no use, and noted where a CPU that has
//! nothing better to run would look (`group_time`). Until then the virtual time of the timeline above stands back,
//! too, which balancers would take for a shortage. So every now and then the waiting groups are looked at, and only then
//! virtual times are published, with the time for which they are right.

use super::{ROOT, RunQueue};
use crate::gates::Gates;
use crate::node::NONE;
use crate::timeline::Timeline;
use crate::units::Nanos;

/// How often waiting groups are looked at: 250 us, twice in a balancing period.
pub(super) const CATCH_UP_INTERVAL: Nanos = Nanos::from_micros(250);

/// Most groups looked at each time, in turns: 64 bound it to some 2 us, and with up to so many groups nothing is late.
const VISITS_MAX: u32 = 64;

/// What part of a burst is forgotten each time: one in 128, so half of it within some 20 ms.
const BURST_FADE: u32 = 128;

impl<T, G: Gates> RunQueue<T, G> {
    /// For a CPU on which tasks wait and none of this queue runs, since somebody above has it: shows the others that nothing gets on here, as
    /// charging the current task does otherwise. A host calls it every tick or so for as long as that lasts. Without it the published virtual
    /// times are of when a task ran here last: to others they are old, and do not say that those that wait get nothing. Does nothing while
    /// a task is current. O(depth) and a bounded number of groups.
    pub fn look_around(&mut self, now: Nanos) {
        if self.has_current() {
            return;
        }
        self.last = Nanos(self.last.0.max(now.0));
        // Whoever had a turn has none here.
        self.repick = true;
        self.settle(false);
        if self.service_clock.cpus > 1 {
            self.catch_up();
        }
        self.publish_counts();
    }

    /// Lets waiting groups follow their times, notes those that are owed something, and publishes the virtual times. Call with nothing pending.
    /// O(depth) and a bounded number of groups, each O(log n), O(1) with a quantum.
    #[inline(never)]
    pub(super) fn catch_up(&mut self) {
        self.caught_up_at = self.last;
        let levels = self.timelines.len() as u32;
        for _ in 0..levels.min(VISITS_MAX) {
            self.cursor = if self.cursor + 1 < levels {
                self.cursor + 1
            } else {
                ROOT
            };
            let timeline = &mut self.timelines[self.cursor as usize];
            timeline.burst -= timeline.burst / BURST_FADE;
            if timeline.nr == 0 {
                // Nothing of it waits anywhere.
                continue;
            }
            let (node, parent, unpublished) =
                (timeline.node, timeline.parent, timeline.unpublished);
            if !timeline.is_anchored && timeline.tasks > 0 {
                self.anchor_late(self.cursor);
            }
            let timeline = &self.timelines[self.cursor as usize];
            if timeline.is_anchored && timeline.tasks > 0 {
                if timeline.untold_load() != 0 {
                    self.tell_tasks(self.cursor, true);
                }
                self.note_tasks_waiting(self.cursor, NONE);
            }
            if node != NONE && self.slab.get(node).place.is_queued() {
                if unpublished > 0 {
                    self.publish_service(self.cursor);
                }
                self.correct(parent, node);
                self.note_waiting(self.cursor);
            }
        }
        // Only now is every one of them right.
        if levels <= VISITS_MAX {
            self.timelines.iter().for_each(Timeline::publish_virtual);
        } else {
            for back in 0..VISITS_MAX {
                let level = (self.cursor + levels - back) % levels;
                self.timelines[level as usize].publish_virtual();
            }
        }
        let mut level = self.leaf;
        while level != NONE {
            if level != ROOT && self.timelines[level as usize].cell.waits() {
                self.note_waiting(level);
            } else {
                self.timelines[level as usize].noted_at = self.last;
            }
            let timeline = &self.timelines[level as usize];
            if levels > VISITS_MAX {
                // Else all were published just now.
                timeline.publish_virtual();
            }
            level = timeline.parent;
        }
        self.load.publish_settled(self.last);
    }
}

impl Timeline {
    /// How far what competes here is on average before the mean of all that competes in the group, in virtual time; zero without child groups.
    fn lead(&self) -> i64 {
        if !self.is_anchored || self.group_load == 0 {
            return 0;
        }
        let mean = self.group.time.mean().offset(self.offset);
        self.average.mean().since(mean)
    }

    /// Publishes where the timeline stands, if anything competes there.
    #[inline]
    fn publish_virtual(&self) {
        if self.nr > 0 {
            self.cell.publish_virtual(self.average.mean());
            self.cell.publish_burst(self.burst, self.burst_load);
            self.cell.publish_lead(self.lead());
        }
    }
}
