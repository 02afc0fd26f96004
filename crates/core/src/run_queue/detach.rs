//! Giving waiting tasks away: to another CPU, or all of them at shutdown.

use super::put::Leave;
use super::siblings::Return;
use super::{ROOT, RunQueue};
use crate::balance::Pull;
use crate::config::Policy;
use crate::entity::{Enqueue, TaskEntity};
use crate::gates::Gates;
use crate::group::Group;
use crate::group_time::{OWED_MIN, Stay};
use crate::moved::Moved;
use crate::node::NONE;
use crate::units::{CpuId, Nanos, VirtualTime};
use std::sync::Arc;

/// A task on its way to another queue.
///
/// Until what is left of it is dropped, its group keeps its place among its siblings: to be kept until the task is queued
/// elsewhere, which needs no more than to take `handle` out and let the rest go out of scope after that.
#[derive(Debug)]
pub struct Detached<T> {
    /// The group that it was queued in.
    pub group: Arc<Group>,
    /// Its scheduling state, lag included.
    pub entity: TaskEntity,
    /// The host's task.
    pub handle: T,
    stood: Stood,
    stay: Stay,
}

impl<T> Detached<T> {
    /// The task, and what keeps its group's place until that is dropped: for a task that is handed on before it is queued.
    pub fn split(self) -> (T, Detached<()>) {
        let rest = Detached {
            group: self.group,
            entity: self.entity,
            handle: (),
            stood: self.stood,
            stay: self.stay,
        };
        (self.handle, rest)
    }
}

/// Where a task stood in its timeline.
#[derive(Clone, Copy, Debug)]
struct Stood {
    v: VirtualTime,
    deadline: VirtualTime,
    /// What it was owed by the clock of child groups beside it, all of it; `None` if it does not stand by that clock.
    owed: Option<i64>,
}

/// How much of a queue is looked at in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainPart {
    /// Slots, those of nothing and of groups included.
    pub slots: u32,
    /// Tasks that are taken out.
    pub tasks: u32,
}

impl DrainPart {
    /// All of it.
    pub const ALL: Self = Self {
        slots: u32::MAX,
        tasks: u32::MAX,
    };
}

impl<T, G: Gates> RunQueue<T, G> {
    /// Takes up to `request.max` waiting tasks of the group asked for and appends them to `out`, for CPU `to`; the current
    /// task stays, and so does everything that is throttled there; what is throttled here goes only for a note of its group. Among the candidates looked at, the one that
    /// was moved longest ago goes first, so that moves rotate. Returns how many were taken. A bounded search for each.
    pub fn detach_to(
        &mut self,
        to: CpuId,
        request: &Pull,
        now: Nanos,
        out: &mut Vec<Detached<T>>,
    ) -> usize {
        self.detach_where(Some(to), request, now, out)
    }

    /// As [`RunQueue::detach_to`] for wherever tasks may go: only what is throttled here stays.
    pub fn detach(&mut self, request: &Pull, now: Nanos, out: &mut Vec<Detached<T>>) -> usize {
        self.detach_where(None, request, now, out)
    }

    fn detach_where(
        &mut self,
        to: Option<CpuId>,
        request: &Pull,
        now: Nanos,
        out: &mut Vec<Detached<T>>,
    ) -> usize {
        if self.pending > 0 {
            // Else the first that goes is measured by clocks that have yet to hear of what ran here, and who stays by others.
            self.flush();
            self.set_limit();
        }
        let mut taken = 0;
        while taken < request.max {
            let level = self
                .slots
                .get(request.group as usize)
                .copied()
                .unwrap_or(NONE);
            let Some(index) = (level != NONE && self.gives_from(level, request, to))
                .then(|| match request.own {
                    false => self.candidate(level, to, request.noted, now),
                    true => self.own_candidate(level, to, now),
                })
                .flatten()
            else {
                break;
            };
            let is_for_group = request.noted && !request.own;
            if is_for_group && self.is_about_to_run(level, index, now) {
                break;
            }
            if request.group == 0 || is_for_group && self.came_in_vain(index, now) {
                self.carry_missed(self.slab.get(index).timeline);
            }
            let detached = self.give_away(index, Some(request), now);
            out.push(detached);
            taken += 1;
            if self.is_waiting_group(level) {
                // The puller took the note away, and will ask again before the next look around.
                self.note_waiting(level);
            }
        }
        self.publish_counts();
        taken
    }

    /// Whether anything of the group at `level` may go. What limits keep back here may where its group was noted: it is owed something, and runs where
    /// it would go to. (Two CPUs that ran in turns below a limit of 1 ms in 10 each had what was there alone: the heaviest task of a group whose others
    /// were on the other CPU had a thirtieth of its part.) Not for the sake of a group that has something there: it waits here for its limit. (What one
    /// of two such CPUs had taken to even weights out the other took back with the next period: tasks of weights 3 and 100 had as much.)
    fn gives_from(&self, level: u32, request: &Pull, to: Option<CpuId>) -> bool {
        if !self.is_kept_back(level) {
            return self.nr_queued() > 0;
        }
        let has_some = |to: CpuId| {
            let cell = self.timelines[level as usize].group.cells.known_on(to);
            cell.is_some_and(|cell| cell.entities() > 0)
        };
        request.noted && to.is_some_and(|to| request.own || !has_some(to))
    }

    /// Takes out every waiting task, of all groups or of `group` and its descendants. For shutdown, freezing and
    /// killing. O(slots).
    pub fn drain(&mut self, group: Option<&Arc<Group>>, now: Nanos, out: &mut Vec<Detached<T>>) {
        self.drain_where(group, &mut |_| true, now, out);
    }

    /// As [`RunQueue::drain`], of the waiting tasks that `wanted` says yes to; throttled ones included. For a host that knows
    /// of tasks that must not stay where they are (a lock's holder in a throttled group). O(slots).
    pub fn drain_where(
        &mut self,
        group: Option<&Arc<Group>>,
        wanted: &mut dyn FnMut(&mut T) -> bool,
        now: Nanos,
        out: &mut Vec<Detached<T>>,
    ) {
        let _end = self.drain_part(group, 0, DrainPart::ALL, wanted, now, out);
    }

    /// As [`RunQueue::drain_where`], for a host that must not be kept for long: of the slots from `from` on only as many as `part` says.
    /// Where to go on, if it has not come to the last slot: whoever was queued before the first call and waits all the while is looked at once. O(slots
    /// looked at).
    pub fn drain_part(
        &mut self,
        group: Option<&Arc<Group>>,
        from: u32,
        part: DrainPart,
        wanted: &mut dyn FnMut(&mut T) -> bool,
        now: Nanos,
        out: &mut Vec<Detached<T>>,
    ) -> Option<u32> {
        let end = self.slab.nodes.len() as u32;
        let last = end.min(from.saturating_add(part.slots));
        let (mut index, mut taken) = (from, 0);
        while index < last && taken < part.tasks {
            // What is taken out may shorten the slab.
            let Some(node) = self.slab.nodes.get(index as usize) else {
                break;
            };
            let at = index;
            index += 1;
            if !node.is_task() || !node.place.is_queued() {
                continue;
            }
            let home = &self.timelines[node.timeline as usize].group;
            if !group.is_none_or(|group| is_within(home, group)) {
                continue;
            }
            let handle = self.slab.get_mut(at).handle.as_mut();
            if handle.is_some_and(&mut *wanted) {
                let detached = self.give_away(at, None, now);
                out.push(detached);
                taken += 1;
            }
        }
        self.publish_counts();
        ((index as usize) < self.slab.nodes.len()).then_some(index)
    }

    /// Takes a waiting task out, since somebody asked for it or for all.
    fn give_away(&mut self, index: u32, request: Option<&Pull>, now: Nanos) -> Detached<T> {
        let level = self.slab.get(index).timeline;
        let group = Arc::clone(&self.timelines[level as usize].group);
        let handle = self.slab.get_mut(index).handle.take();
        let stay = Stay::of(&group, self.levels_emptied_without(level));
        let owed = self.owed_beside_groups(level, index);
        let node = self.slab.get(index);
        let (v, deadline, shares) = (node.v, node.deadline, node.shares);
        let stood = Stood { v, deadline, owed };
        let stay = match owed {
            Some(lag) if lag > 0 => {
                let told = self.keep_counted(level, shares, lag);
                stay.and_task(&group, told)
            }
            _ => stay,
        };
        // It waits while others of its group run, or here all of them get too little: it has the next turn there.
        let is_overdue = owed.is_none() && request.is_some_and(|request| request.own);
        let is_noted = request.is_some_and(|request| request.noted);
        let is_for_group = is_noted && !is_overdue;
        let leave = match is_for_group {
            true => Leave::IsOwed,
            false => Leave::Moves,
        };
        let mut entity = self.dismiss(level, index, leave, now);
        entity.moved = Moved::at(now, entity.sum_exec);
        if is_overdue {
            entity.past = entity.past.overdue();
            if !is_noted {
                // What it owes among those here is less than all of them had too little.
                entity.lag = entity.lag.max(0);
            }
        }
        if let Some(lag) = owed {
            // The clock that it stands by is the same there.
            entity.lag = self.rules.clamp_missed(lag, shares);
            if lag <= 0 {
                // Uncounted before the other queue counts it: counted twice, what it owes would move V.
                self.tell_tasks(level, true);
            }
        }
        if self.timelines[level as usize].nr == 0 {
            self.leave(level, now);
        }
        match handle {
            Some(handle) => Detached {
                group,
                entity,
                handle,
                stood,
                stay,
            },
            None => unreachable!("a queued task's handle is in the queue"),
        }
    }

    /// Takes a task back that this queue gave away at the same moment, and that is better left here. It stands where
    /// it stood and its request goes on, as if nobody had asked; only those that were not asked for go before it next time. O(log n).
    pub fn take_back(&mut self, task: Detached<T>, now: Nanos) {
        let Detached {
            group,
            mut entity,
            handle,
            stood,
            stay,
        } = task;
        // All of what the clock of child groups was told, and not what a move takes along of it: the clock would be told of the rest as
        // well, and everybody else would get it.
        entity.lag = stood.owed.unwrap_or(entity.lag);
        let slot = self.slot(&group);
        let index = self.slab.next_index();
        let how = (Enqueue::Migrate, Return::TakenBack);
        self.enqueue_back(slot, entity, handle, how, now);
        drop(stay);
        if self.rules.policy == Policy::Eevdf {
            self.stand_at(index, stood);
        }
    }

    /// As [`RunQueue::take_back`] for one that may not leave, say because it is bound to this CPU: all others are asked for before it, until it is
    /// moved. (One that was bound and owed most was asked for each time. Two beside it that were owed a quarter of a CPU each stayed where they were, and a
    /// group had the other CPU, twice its part, for as long as the machine ran.) O(log n).
    pub fn take_back_bound(&mut self, mut task: Detached<T>, now: Nanos) {
        task.entity.moved = task.entity.moved.in_vain();
        self.take_back(task, now);
    }

    /// Puts a task that was just queued where it stood before: placed anew, it would begin a new request each time, later than that of whoever
    /// runs meanwhile, and with no more of what it is owed than a sleeper keeps.
    fn stand_at(&mut self, index: u32, stood: Stood) {
        let nodes = &mut self.slab.nodes;
        let level = nodes[index as usize].timeline;
        let timeline = &mut self.timelines[level as usize];
        timeline.unqueue(nodes, index, &self.rules);
        let node = &mut nodes[index as usize];
        if !timeline.is_anchored {
            // Beside child groups it has come back with all that it is owed, by a clock that may have been set anew.
            timeline.average.remove(node.v, node.shares);
            node.v = stood.v;
            timeline.average.add(node.v, node.shares);
        }
        node.deadline = node.v.offset(stood.deadline.since(stood.v));
        timeline.queue(nodes, index, &self.rules);
    }

    /// How many groups, from the one at `level` upwards, have nothing to run here but one task; and all CPUs share their time.
    fn levels_emptied_without(&self, mut level: u32) -> u32 {
        let mut count = 0;
        while level != ROOT
            && self.service_clock.is_global()
            && self.timelines[level as usize].nr == 1
            && !self.is_closed(level)
        {
            count += 1;
            level = self.timelines[level as usize].parent;
        }
        count
    }

    /// What groups, from the one at `level` upwards, have missed here goes along with the only task that they have here as a CPU that idles takes it,
    /// which asks nobody what is due. (Counted anew after each move it was never enough to be noted where two CPUs that idle for a microsecond now
    /// and then took such a task from each other: it got nothing for as long as the machine ran.)
    fn carry_missed(&self, mut level: u32) {
        for _ in 0..self.levels_emptied_without(level) {
            let timeline = &self.timelines[level as usize];
            // With what its clock has to tell since the last look.
            let late = self.served_elsewhere(level);
            let time = &timeline.group.time;
            time.carry_missed(timeline.missed.saturating_add(late));
            time.forget_owed(self.cpu, timeline.group.id());
            level = timeline.parent;
        }
    }

    /// Whether the task's group had no turn here since it came, or the task has just come: pulled for its group's sake again, it has not had what it came
    /// for, and what the group missed goes along. (It did not. Of two equal groups of four and three spinners on four CPUs at 1,000 ticks a second
    /// three tasks had nothing: two CPUs pulled one of them to and fro, 2,000 times a second, and looked for nothing else. Taken along by each move, or after a
    /// whole turn, it is noted where it has just had its turn, and keeps others waiting: 0.85 for 0.91 of a part, and 0.87.)
    fn came_in_vain(&self, index: u32, now: Nanos) -> bool {
        !self.is_group_served(index) || self.has_just_come(index, now)
    }

    /// Whether the task has just come, and its group had no turn here since: it is left here for that. Not where the group at `level` is owed more than a
    /// turn.
    fn is_about_to_run(&self, level: u32, index: u32, now: Nanos) -> bool {
        if level == ROOT || self.is_group_served(index) || !self.has_just_come(index, now) {
            return false;
        }
        let (timeline, above) = self.with_parent(level);
        let turn = i64::from(self.rules.base_slice);
        timeline.group.time.lag(&above.group.time) <= OWED_MIN + turn
    }

    /// Whether the task's group had any turn here since it came.
    fn is_group_served(&self, index: u32) -> bool {
        self.timelines[self.slab.get(index).timeline as usize].served
    }

    /// Whether the task came from another CPU less than half a turn ago.
    fn has_just_come(&self, index: u32, now: Nanos) -> bool {
        let half = Nanos(u64::from(self.rules.base_slice) / 2);
        self.slab.get(index).moved.age(now) < Moved::ticks(half)
    }
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
