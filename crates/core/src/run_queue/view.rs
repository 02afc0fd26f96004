//! How a timeline sees a group that is being published: its slack, and who waits beside it on this CPU.

use super::RunQueue;
use crate::gates::Gates;
use crate::group_time::{Beside, Here};
use crate::units::VirtualTime;

/// Most groups that are cut together: bounds the time for which the siblings' lock is held. Default 64.
const TOGETHER_MAX: usize = 64;

/// A group as its timeline here sees it.
pub(super) struct Seen<'a, T, G: Gates> {
    pub(super) queue: &'a RunQueue<T, G>,
    pub(super) level: u32,
}

impl<T, G: Gates> Here for Seen<'_, T, G> {
    fn slack(&self) -> i64 {
        let queue = self.queue;
        let timeline = &queue.timelines[self.level as usize];
        let grain = queue.load.grain();
        queue.service_clock.slack(&timeline.group, grain)
    }

    fn first(&self) -> Option<VirtualTime> {
        let (_, above) = self.queue.with_parent(self.level);
        let grain = self.queue.load.grain();
        // Those that are bound here are cut together down to what turns and polls explain, and then have a turn: before that they were owed a
        // sleeper's credit, which tells them apart from who is owed for a moment.
        let slack = self.queue.service_clock.credit;
        let first = above.least_v_before_turns(&self.queue.slab.nodes, (slack, grain))?;
        Some(first.offset(above.offset.wrapping_neg()))
    }

    fn for_each_waiting(&self, act: &mut dyn FnMut(Beside<'_>)) -> bool {
        let queue = self.queue;
        let (_, above) = queue.with_parent(self.level);
        let grain = queue.load.grain();
        above.for_each_waiting(&queue.slab.nodes, TOGETHER_MAX, &mut |index| {
            let node = &queue.slab.nodes[index as usize];
            let timeline = queue.timelines.get(node.owned as usize);
            act(timeline.map(|timeline| {
                let slack = queue.service_clock.slack(&timeline.group, grain);
                (&timeline.group.time, slack)
            }));
        })
    }
}
