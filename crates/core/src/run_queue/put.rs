//! Putting the current task back, or letting it go.

use super::{ROOT, RunQueue};
use crate::config::Policy;
use crate::entity::{Past, Rest, TaskEntity};
use crate::gates::Gates;
use crate::node::{NONE, Node, Place, Traits};
use crate::pelt::TaskSums;
use crate::units::{Nanos, VirtualTime, to_virtual};

/// Why a task leaves its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It sleeps, or has ended.
    Sleeps,
    /// It is to be queued elsewhere.
    Moves,
    /// The same, for what its group is owed.
    IsOwed,
}

impl<T, G: Gates> RunQueue<T, G> {
    /// The current task yields: its request is over, and it queues behind its peers. It loses nothing else, so that
    /// a busy yielder neither starves others nor is starved. Does nothing but drop `handle` without a current task.
    pub fn put_prev_yield(&mut self, handle: T, now: Nanos) {
        if self.current == NONE {
            return;
        }
        self.charge_task(now, 0);
        self.average_current();
        self.requeue_yielder(handle);
    }

    /// The current task is preempted: it goes back to the queue and its request goes on, unless it has had all of
    /// it.
    pub fn put_prev_preempt(&mut self, handle: T, now: Nanos) {
        if self.current == NONE {
            return;
        }
        self.charge_task(now, 0);
        self.average_current();
        let node = self.slab.get_mut(self.current);
        node.handle = Some(handle);
        if !node.v.is_before(node.deadline) {
            node.deadline = node.v.plus(to_virtual(u64::from(node.slice), node.shares));
        }
        self.requeue_current();
    }

    /// As [`RunQueue::put_prev_preempt`], for a task that is dear to change: within its group it goes on with its request when the
    /// group is chosen next, as long as it is no further ahead than one request, and before nobody who asks for a shorter one. What
    /// interrupted it is not held up by that: a hint moves turns within one timeline only.
    pub fn put_prev_interrupted(&mut self, handle: T, now: Nanos) {
        if self.current == NONE {
            return;
        }
        let (index, leaf) = (self.current, self.leaf);
        let deadline = self.slab.get(index).deadline;
        self.put_prev_preempt(handle, now);
        // Else its request is over, and a new one has begun behind the others.
        if self.slab.get(index).deadline == deadline {
            self.timelines[leaf as usize].buddies.interrupted = index;
        }
    }

    /// The current task waits for something. Returns what it keeps while it sleeps, its lag above all; `None`
    /// without a current task.
    pub fn put_prev_sleep(&mut self, now: Nanos) -> Option<TaskEntity> {
        self.put_prev_away(Leave::Sleeps, now)
    }

    #[inline(always)]
    fn put_prev_away(&mut self, leave: Leave, now: Nanos) -> Option<TaskEntity> {
        if self.current == NONE {
            return None;
        }
        self.charge_task(now, 0);
        self.follow_limits();
        let index = core::mem::replace(&mut self.current, NONE);
        let leaf = self.leaf;
        let entity = self.dismiss(leaf, index, leave, now);
        if self.timelines[leaf as usize].nr == 0 {
            self.leave(leaf, now);
        }
        self.publish_counts();
        Some(entity)
    }

    /// The current task goes to another group, or to another CPU: as [`RunQueue::put_prev_sleep`], but it did not ask for anything, and
    /// queued with [`crate::Enqueue::Migrate`] it goes on with its request.
    pub fn put_prev_move(&mut self, now: Nanos) -> Option<TaskEntity> {
        self.put_prev_away(Leave::Moves, now)
    }

    /// The current task is finished. Returns its final account; `None` without a current task. What it owed, or was owed, the next new ones of its group
    /// on this CPU begin with, unless by the rules of a kernel (where parity begins with the choice), which forgets it.
    pub fn put_prev_exit(&mut self, now: Nanos) -> Option<TaskEntity> {
        let leaf = self.leaf;
        let entity = self.put_prev_sleep(now)?;
        if entity.lag != 0 && self.rules.policy == Policy::Eevdf && self.rules.parity_from_arrival {
            self.keep_balance(leaf, &entity);
        }
        Some(entity)
    }

    fn keep_balance(&mut self, level: u32, entity: &TaskEntity) {
        let credit = u64::from(self.rules.base_slice) + self.rules.lag_limit;
        let most = [self.rules.debt_limit, credit].map(|most| to_virtual(most, entity.shares));
        let timeline = &mut self.timelines[level as usize];
        if timeline.nr == 0 {
            // Nobody is there to be compared with.
            return timeline.ended.forget();
        }
        let now = timeline.level_for_new(0);
        let lag = (entity.lag, entity.shares);
        timeline.ended.add(lag, now, most.into());
    }

    /// `put_prev_yield` and `pick` in one: the cheapest switch there is, O(1) with a quantum as long as the group's
    /// turn lasts. Returns the task to run, the same one if nobody else is due, or `None` if limits keep back everything.
    #[inline]
    pub fn switch(&mut self, handle: T, now: Nanos) -> Option<T> {
        self.switch_if(handle, now, false)
    }

    /// As [`RunQueue::switch`] for a host without limits, which always has something to run: a throttle that is due is
    /// left to the next [`RunQueue::pick`].
    #[inline]
    pub fn switch_yield(&mut self, handle: T, now: Nanos) -> T {
        match self.switch_if(handle, now, true) {
            Some(next) => next,
            // The yielder itself was just queued, nothing was throttled, and `choose` finds whatever is queued.
            None => unreachable!("a queue with a runnable task has a choice"),
        }
    }

    #[inline(always)]
    fn switch_if(&mut self, handle: T, now: Nanos, must: bool) -> Option<T> {
        if self.current == NONE {
            return Some(handle);
        }
        self.charge_task(now, 0);
        if self.repick || self.pending >= self.limit {
            return self.switch_slow(handle, must);
        }
        let timeline = &mut self.timelines[self.leaf as usize];
        if timeline.nr == 1 {
            let node = &mut self.slab.nodes[self.current as usize];
            node.deadline = node.v.plus(to_virtual(u64::from(node.slice), node.shares));
            return Some(handle);
        }
        self.requeue_yielder(handle);
        self.descend(must)
    }

    #[cold]
    fn switch_slow(&mut self, handle: T, must: bool) -> Option<T> {
        self.average_current();
        self.requeue_yielder(handle);
        self.settle(must);
        let mut next = self.descend(must);
        if next.is_none() && self.find_work() {
            next = self.descend(must);
        }
        self.publish_counts();
        next
    }

    #[inline]
    fn requeue_yielder(&mut self, handle: T) {
        let index = self.current;
        let node = self.slab.get_mut(index);
        node.handle = Some(handle);
        node.deadline = node.v.plus(to_virtual(u64::from(node.slice), node.shares));
        self.requeue_current();
        self.timelines[self.leaf as usize].buddies.skip = index;
    }

    #[inline]
    fn requeue_current(&mut self) {
        let index = core::mem::replace(&mut self.current, NONE);
        let timeline = &mut self.timelines[self.leaf as usize];
        timeline.current = NONE;
        timeline.queue(&mut self.slab.nodes, index, &self.rules);
        if self.rules.policy == Policy::Cfs {
            timeline.update_min(&self.slab.nodes, self.last);
        }
    }

    /// Takes a task out of its timeline for good, saving its lag. It may be current or queued.
    #[inline(always)]
    pub(super) fn dismiss(
        &mut self,
        level: u32,
        index: u32,
        leave: Leave,
        now: Nanos,
    ) -> TaskEntity {
        self.average_path(level, now);
        let extra = match leave {
            Leave::IsOwed if self.service_clock.is_global() => {
                self.owed_meanwhile(level, index, now)
            }
            _ => 0,
        };
        let lag = self.withdraw(level, index, leave, extra);
        self.average_emptied(level, now);
        self.count_task(level, false);
        let timeline = &self.timelines[level as usize];
        if timeline.told_load > 0 && timeline.tasks == 0 {
            self.tell_tasks(level, true);
        }
        self.count_active(level, -1);
        let deferring = self.slab.get(index).traits.has(Traits::DEFERRING);
        if deferring {
            self.count_deferring(level, -1);
        }
        let node = self.slab.get(index);
        let moves = leave != Leave::Sleeps && self.rules.moves_keep_requests;
        let (slept_at, past, rest) = self.parting(node, (lag, node.v), moves, now);
        let past = past.with(Past::DEFERRING, deferring);
        let mut entity = TaskEntity {
            lag,
            sum_exec: node.sum_exec,
            slept_at,
            shares: node.shares,
            slice: if node.traits.has(Traits::CUSTOM_SLICE) {
                node.slice
            } else {
                0
            },
            moved: node.moved,
            averages: TaskSums::NONE,
            past,
            rest,
        };
        self.save_task_average(index, &mut entity, now);
        self.slab.release(index);
        self.refresh_parts(level);
        entity
    }

    /// What the current entity has not been charged for yet, times shares: part of it is owed to who waits and is taken away meanwhile for its
    /// group's sake. (Without it a task that other CPUs took soon after each charge was never owed anything: of two spinners of a light group beside
    /// two heavier pairs one had nothing. Counted in all moves, whoever a CPU takes to even out with another has the first turn there, and three
    /// equal tasks on two CPUs got 0.138 to 0.166 of a CPU for 0.148: one of them ran whenever the next was taken.)
    fn owed_meanwhile(&self, level: u32, index: u32, now: Nanos) -> i128 {
        if self.timelines[level as usize].current == index {
            return 0;
        }
        self.uncharged(level, now).map_or(0, |(_, extra)| extra)
    }

    /// What a task remembers of its leaving with a lag, from where it stood: where that was, if it owes and debts fade, or when. (Load
    /// averages need the time, so that debts do not fade while they are on.) And the rest of its request, if that goes on: of one that
    /// `moves`, or comes back to its place here.
    #[inline(always)]
    pub(super) fn parting(
        &self,
        node: &Node<T>,
        (lag, stood): (i64, VirtualTime),
        moves: bool,
        now: Nanos,
    ) -> (u64, Past, Rest) {
        let (slept_at, past) = if lag < 0 && self.rules.debts_fade && !G::load_averages() {
            (stood.0, Past::left(self.cpu))
        } else {
            (now.0, Past::PLACED)
        };
        let rest = if moves || past.names_a_cpu() {
            Rest::until(node.deadline, node.v, node.shares)
        } else {
            Rest::NONE
        };
        (slept_at, past.with(Past::MOVED, moves), rest)
    }

    /// Takes a node out of a timeline and returns its lag, limited. Its place is then `Off`. `extra` is service (times shares) of the current
    /// entity that is not charged yet.
    pub(super) fn withdraw(&mut self, level: u32, index: u32, leave: Leave, extra: i128) -> i64 {
        let nodes = &mut self.slab.nodes;
        let timeline = &mut self.timelines[level as usize];
        if timeline.current == index {
            timeline.current = NONE;
        } else {
            timeline.unqueue(nodes, index, &self.rules);
        }
        let node = &mut nodes[index as usize];
        node.place = Place::Off;
        let by_groups = timeline.is_anchored && node.is_task();
        let mut beyond = 0;
        let distance = if by_groups {
            let distance = timeline.anchor().since(node.v);
            if distance > 0 {
                // What all here are owed is nothing that one is ahead of the others by. (Where all of a machine were owed something by that clock, one
                // that slept for 50 us after each 100 kept less of it each time than who waited with it: it had 0.013 of a CPU for 0.57, less with time.)
                beyond = timeline
                    .anchor()
                    .since(timeline.average.mean())
                    .clamp(0, distance);
            }
            timeline.count_lag(distance.wrapping_neg(), node.shares);
            distance
        } else if timeline.nr == 1 && self.rules.policy == Policy::Eevdf {
            // Who is alone is level with itself, which takes no division.
            timeline.arrived.kept(index, node)
        } else {
            timeline.reference(self.rules.policy, extra).since(node.v)
        };
        let lag = match distance {
            0 => 0,
            lag if by_groups => beyond + self.rules.clamp_missed(lag - beyond, node.shares),
            lag if node.is_task() => self.rules.clamp_lag(lag, node.slice, node.shares),
            lag => self.rules.clamp_group_lag(lag, node.slice, node.shares),
        };
        if by_groups && leave == Leave::Sleeps {
            timeline.count_cut(distance.saturating_sub(lag), node.shares);
        }
        timeline.average.remove(node.v, node.shares);
        timeline.nr -= 1;
        if timeline.nr == 0 && level == ROOT && self.service_clock.is_global() {
            timeline.left_at = self.last.0;
            timeline.cell.publish_virtual(node.v);
        }
        if !node.is_task() {
            timeline.group_load -= u64::from(node.shares);
        }
        if node.slice < self.rules.base_slice {
            timeline.slices.remove(node.slice);
        }
        timeline.buddies.forget(index);
        timeline.arrived.forget(index);
        timeline.watched.forget(index);
        if self.rules.policy == Policy::Cfs {
            timeline.update_min(nodes, self.last);
        }
        self.publish_entities(level);
        lag
    }

    /// Takes a group that ran out of entities out of the timelines above, as far up as they become empty too.
    pub(super) fn leave(&mut self, empty: u32, now: Nanos) {
        let mut level = empty;
        while level != ROOT && self.timelines[level as usize].nr == 0 {
            let parent = self.timelines[level as usize].parent;
            if self.leaf == level {
                // The chain gets shorter; what it collected belongs to the whole of it.
                self.flush();
                self.timelines[level as usize].stop_running(false);
                self.leaf = parent;
                self.limit = 0;
            }
            let closed = self.is_closed(level);
            self.become_idle(level, now);
            if closed {
                // It is not in the timeline above anyway.
                self.free_if_orphan(level);
                break;
            }
            self.unlink(level, now);
            if self.timelines[level as usize].orphan {
                // The one above has to leave first.
                self.free_one_orphan(level);
            }
            level = parent;
        }
        if level == ROOT && self.timelines[ROOT as usize].nr == 0 {
            self.flush();
        }
    }

    /// A limited group ran out of entities: what it has left of its budget may be wanted elsewhere.
    fn become_idle(&mut self, level: u32, now: Nanos) {
        if let Some(meter) = self.timelines[level as usize].meter.as_deref() {
            meter
                .bandwidth
                .idle(&meter.local, now, &self.changes.timers);
            if meter.throttled && !meter.local.is_queued() && !meter.local.is_posted() {
                // It does not wait any more.
                self.unthrottle(level, now);
            }
        }
    }

    /// Puts the whole chain back, so that the next choice starts at the root. Call with nothing pending and no
    /// current task.
    pub(super) fn put_chain(&mut self) {
        self.repick = false;
        while self.leaf != ROOT {
            let level = self.leaf;
            let timeline = &self.timelines[level as usize];
            let (index, parent) = (timeline.node, timeline.parent);
            let slice = timeline.slices.shortest().unwrap_or(self.rules.base_slice);
            let nodes = &mut self.slab.nodes;
            let above = &mut self.timelines[parent as usize];
            above.current = NONE;
            above.put_back = index;
            let node = &mut nodes[index as usize];
            node.place = Place::Off;
            self.renew_group(parent, index, slice);
            self.timelines[level as usize].stop_running(true);
            self.leaf = parent;
        }
        self.limit = 0;
    }

    /// Starts the next request of a group if the last one is fulfilled, and queues the group.
    fn renew_group(&mut self, parent: u32, index: u32, slice: u32) {
        let timeline = &mut self.timelines[parent as usize];
        let node = &mut self.slab.nodes[index as usize];
        if !node.v.is_before(node.deadline) {
            // A group asks for as long as its most impatient task does.
            if node.slice != slice {
                if node.slice < self.rules.base_slice {
                    timeline.slices.remove(node.slice);
                }
                if slice < self.rules.base_slice {
                    timeline.slices.add(slice);
                }
                node.slice = slice;
            }
            node.deadline = node.v.plus(to_virtual(u64::from(node.slice), node.shares));
        }
        timeline.queue(&mut self.slab.nodes, index, &self.rules);
    }
}
