//! One task falls asleep and the only other one takes its place: the switch of a conversation.
//!
//! A task that wakes a peer and then waits for its answer, a spawner that awaits its child: the common switch of an async
//! program. When the sleeper is alone in its group, putting the woken task in, taking the sleeper out and choosing among one
//! comes to this: the woken task takes over the sleeper's node. The group stays chosen and no queue is touched.
//!
//! *Lag.* Had the woken task come with lag `l` and weight `w` into a timeline of the sleeper alone (weight `W`), it would have been
//! placed such that its lag is `l` still, and the sleeper's `-l w / W`, since lags sum to zero. The sleeper leaves with that, and
//! the woken task, alone from now on, has none by definition: the same result as the long way.

use super::RunQueue;
use crate::config::Policy;
use crate::entity::TaskEntity;
use crate::gates::Gates;
use crate::group::Group;
use crate::node::{NONE, Traits};
use crate::pelt::TaskSums;
use crate::units::{Nanos, to_virtual};
use std::sync::Arc;

impl<T, G: Gates> RunQueue<T, G> {
    /// The current task sleeps (or ends) and the task of `entity` runs instead, if that is what enqueueing it, putting the
    /// current task back and picking would do and the short way serves: both are in `group`, with the same weight and
    /// without slices of their own, nothing else of the group waits, and the group's turn is not over.
    ///
    /// Returns what the sleeper keeps; the host runs the new task, whose handle never enters the queue. `None` if the
    /// long way is to be gone: nothing has changed then but that the current task is charged up to `now`. Groups are not
    /// charged either way, so that no limit's timer starts here. O(1).
    pub fn hand_over(
        &mut self,
        group: &Arc<Group>,
        entity: &TaskEntity,
        now: Nanos,
    ) -> Option<TaskEntity> {
        let timeline = &self.timelines[self.leaf as usize];
        let node = self.slab.nodes.get(self.current as usize)?;
        let serves = timeline.nr == 1
            && Arc::ptr_eq(&timeline.group, group)
            && node.shares == entity.shares
            && entity.slice == 0
            && !node.traits.has(Traits::CUSTOM_SLICE)
            && !node.traits.has(Traits::DEFERRING)
            && !entity.is_deferring()
            && !timeline.is_anchored
            && !self.repick
            && self.changes.count() == self.changes_seen
            && self.rules.policy == Policy::Eevdf;
        if !serves {
            return None;
        }
        self.charge_task(now, 0);
        if self.pending >= self.limit {
            return None;
        }
        debug_assert!(
            self.current != NONE && self.timelines[self.leaf as usize].current == self.current
        );
        let node = &self.slab.nodes[self.current as usize];
        // Equal weights: the sleeper owes what the other was owed, and would have stood twice as far from it.
        let lag = match entity.lag {
            0 => 0,
            owed => self.rules.clamp_lag(-owed, node.slice, node.shares),
        };
        let stood = node.v.offset(lag.wrapping_mul(-2));
        let (slept_at, past, rest) = self.parting(node, (lag, stood), false, now);
        let mut sleeper = TaskEntity {
            lag,
            sum_exec: node.sum_exec,
            slept_at,
            shares: node.shares,
            slice: 0,
            moved: node.moved,
            averages: TaskSums::NONE,
            past,
            rest,
        };
        let index = self.current;
        self.save_task_average(index, &mut sleeper, now);
        self.restore_task_average(index, entity, now);
        let timeline = &mut self.timelines[self.leaf as usize];
        let node = &mut self.slab.nodes[index as usize];
        node.sum_exec = entity.sum_exec;
        node.moved = entity.moved;
        // Nobody waits, so nobody is kept waiting by a full request even for a new task.
        node.deadline = node.v.plus(to_virtual(u64::from(node.slice), node.shares));
        timeline.buddies.clear();
        // As `Timeline::protect`: of all slices here, which is this one, none is short.
        timeline.protect = if self.rules.run_to_parity {
            node.deadline
        } else {
            node.v
        };
        Some(sleeper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, CpuId, Enqueue, GroupTree, Slice, Weight};

    fn queue() -> (GroupTree, Arc<Group>, RunQueue<u32>) {
        let tree = GroupTree::new(Config::new(1));
        let group = tree.group("tenant").unwrap();
        let queue = RunQueue::new(&tree, CpuId(0));
        (tree, group, queue)
    }

    /// The short way and the long way leave the same clocks, counts and lags behind.
    #[test]
    fn hand_over_is_what_the_long_way_does() {
        for lag_first in [0_u64, 300] {
            let mut results = Vec::new();
            for short in [false, true] {
                let (_tree, group, mut queue) = queue();
                let fresh = TaskEntity::new(Weight::DEFAULT, None);
                queue.enqueue(&group, fresh, 1, Enqueue::New, Nanos(0));
                queue.enqueue(&group, fresh, 2, Enqueue::New, Nanos(0));
                assert_eq!(queue.pick(Nanos(0)), Some(1));
                // The second sleeps with the lag it gained while the first ran.
                queue.put_prev_yield(1, Nanos(lag_first));
                let second = queue.pick(Nanos(lag_first)).unwrap();
                let asleep = queue.put_prev_sleep(Nanos(lag_first)).unwrap();
                let first = queue.pick(Nanos(lag_first)).unwrap();
                assert_eq!((first, second), (1, 2));
                let now = Nanos(lag_first + 1_000);
                let sleeper = if short {
                    queue.hand_over(&group, &asleep, now).unwrap()
                } else {
                    queue.enqueue(&group, asleep, 2, Enqueue::WakeBuddy, now);
                    let sleeper = queue.put_prev_sleep(now).unwrap();
                    assert_eq!(queue.pick(now), Some(2));
                    sleeper
                };
                queue.check().unwrap();
                let end = Nanos(lag_first + 1_500);
                let last = queue.put_prev_exit(end).unwrap();
                queue.check().unwrap();
                assert_eq!(queue.nr_running(), 0);
                results.push((
                    sleeper.lag_service(),
                    sleeper.cpu_time(),
                    last.cpu_time(),
                    group.cpu_time(),
                ));
            }
            let (long, short) = (results[0], results[1]);
            assert!(
                (long.0 - short.0).abs() <= 1,
                "lag {} against {}",
                long.0,
                short.0
            );
            assert_eq!((long.1, long.2, long.3), (short.1, short.2, short.3));
        }
    }

    #[test]
    fn whatever_is_not_a_conversation_goes_the_long_way() {
        let (tree, group, mut queue) = queue();
        let fresh = TaskEntity::new(Weight::DEFAULT, None);
        assert!(
            queue.hand_over(&group, &fresh, Nanos(0)).is_none(),
            "nothing runs"
        );
        queue.enqueue(&group, fresh, 1, Enqueue::New, Nanos(0));
        queue.pick(Nanos(0));
        let other = tree.group("other").unwrap();
        assert!(
            queue.hand_over(&other, &fresh, Nanos(10)).is_none(),
            "another group"
        );
        let heavy = TaskEntity::new(Weight::new(200).unwrap(), None);
        assert!(
            queue.hand_over(&group, &heavy, Nanos(20)).is_none(),
            "another weight"
        );
        let short = TaskEntity::new(Weight::DEFAULT, Some(Slice::MIN));
        assert!(
            queue.hand_over(&group, &short, Nanos(30)).is_none(),
            "its own slice"
        );
        queue.enqueue(&group, fresh, 2, Enqueue::Wake, Nanos(40));
        assert!(
            queue.hand_over(&group, &fresh, Nanos(50)).is_none(),
            "somebody else waits"
        );
        queue.check().unwrap();
        let first = queue.put_prev_exit(Nanos(60)).unwrap();
        assert_eq!(first.cpu_time(), Nanos(60), "refusals charge nothing twice");
    }
}
