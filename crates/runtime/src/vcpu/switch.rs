//! Between two polls: who goes back, who comes in, who is next. Everything here runs under the own run queue's lock.
//!
//! # The short way of a conversation
//! The previous task sleeps or has ended, and exactly one task has come since the choice before: often its peer's answer. If the
//! two are alike (`RunQueue::hand_over` says when) the newcomer takes the sleeper's node over, and nothing is queued.
//!
//! *It does not matter who woke the one that came, nor by which way*: through the slot, or through the inbox, as those do that
//! found another task in the slot, or no slot that is theirs. What is asked is whether putting it in, taking the
//! sleeper out and choosing would choose it, and that follows from the two alone: nobody else of the group waits, and the
//! group's turn goes on.
//!
//! *No wake-up is lost*: only the switch looks, at what it has taken out of slot and inbox already, for the long way or the short one.
//! Until then the token is where it always was, where a waker's fence and a sleeper's look (`park`, `nap`) find it, and a thief, the watch or
//! the next carrier take it from; afterwards it is in the hand of whoever turns the virtual CPU, with or without a stay in
//! the run queue under the same lock. What comes between the taking and the poll stays in the inbox, for the next switch, as on the
//! long way. The previous task is parked as on the long way too, and is queued if it was woken meanwhile. A detachment cannot come in
//! between: it takes polls, and this is between two.

use std::sync::atomic::Ordering;

use quotient_core::event::TaskState;
use quotient_core::{Enqueue, Gates, Nanos};

use super::limits::{
    changes_seat, has_outstayed, look_at_refill, mark_throttle, note_choice, seat_the_dead,
    take_seat, takes_another_seat,
};
use super::returned::put_back_proxy;
use super::{SHORT_POLLS, Vcpu};
use crate::gates::{RunQueue, RuntimeGates};
use crate::inbox::{Arrival, give_back};
use crate::local::PollNotes;
use crate::preempt::Outcome;
use crate::shared::Shared;
use crate::task::{Parked, Parking};
use crate::task_context::{Owned, Task, TaskContext};

/// What became of the task that was polled last.
pub(super) enum Previous {
    Nothing,
    Again(Task),
    Pending(Parking<TaskContext>),
    Done,
    /// A proxy whose nap an arrival has ended: its request goes on.
    Interrupted(Task),
    /// A proxy whose poll has ended, with what came of that.
    Returned(Task, Outcome),
    /// A proxy whose poll is blocked.
    Away(Task),
    /// The virtual CPU has another carrier now: nothing of it may be touched here.
    Lost,
}

impl Previous {
    /// Whether it was the turn of a poll that another thread bears.
    #[inline]
    fn is_proxy(&self) -> bool {
        matches!(
            self,
            Previous::Interrupted(_) | Previous::Returned(..) | Previous::Away(_)
        )
    }

    /// What the task does from now on, in the words of the recorder.
    pub(super) fn state(&self) -> TaskState {
        match self {
            Previous::Nothing | Previous::Again(_) | Previous::Interrupted(_) | Previous::Lost => {
                TaskState::Runnable
            }
            Previous::Pending(_)
            | Previous::Away(_)
            | Previous::Returned(_, Outcome::Pending(_)) => TaskState::Sleeping,
            Previous::Returned(_, Outcome::Again(_)) => TaskState::Runnable,
            Previous::Done | Previous::Returned(_, Outcome::Done) => TaskState::Dead,
        }
    }
}

impl Vcpu {
    /// Whether nothing happened but that the previous task is to be queued again.
    #[inline]
    pub(super) fn only_requeues(&self, previous: &Previous) -> bool {
        matches!(previous, Previous::Again(task) if !leaves_group(task))
            && self.arrivals.is_empty()
            && self.deferring.is_none()
            && !self.notes.charges()
    }

    /// Admits arrivals, puts the previous task back and picks the next one (unless `returning`); one lock.
    pub(super) fn switch<const PREEMPTS: bool>(
        &mut self,
        shared: &Shared,
        queue: &mut RunQueue<Task>,
        mut previous: Previous,
        mut next: Option<Arrival>,
        returning: &mut bool,
        now: Nanos,
    ) -> Option<Task> {
        // What a proxy is charged comes after the arrivals: a turn that is charged already is protected against them.
        if self.notes.noted && !previous.is_proxy() {
            self.follow_notes(queue, &previous, now);
            look_at_refill(shared);
        }
        // Arrivals first: a group whose running task is about to sleep does not become empty in between, which would take it out
        // of every level above and put it back.
        let home = self.index as u16;
        if !*returning
            && self.has_lone_arrival::<PREEMPTS>(&previous, &mut next)
            && let Some(task) = hand_over(shared, queue, &mut previous, &mut next, now)
        {
            task.context().home.store(home, Ordering::Relaxed);
            return Some(task);
        }
        self.arrivals.extend(next);
        if PREEMPTS {
            self.count_short_tasks();
        }
        self.admit(queue, now);
        match previous {
            Previous::Nothing | Previous::Lost => {}
            Previous::Done => {
                self.has_one_less::<PREEMPTS>();
                let _ = queue.put_prev_exit(now);
            }
            proxy @ (Previous::Interrupted(_) | Previous::Returned(..) | Previous::Away(_)) => {
                // The carrier slept; the bearer's CPU time, on another thread, is what the turn has cost.
                queue.charge_except(now, self.notes.excluded);
                queue.charge_extra(self.notes.extra);
                if self.notes.debt != Nanos::ZERO {
                    queue.charge_turn(self.notes.debt);
                }
                look_at_refill(shared);
                put_back_proxy(queue, proxy, now);
            }
            Previous::Again(mut task) => {
                task.owned_mut().since = now;
                if leaves_group(&task) || takes_another_seat(queue, task.owned_mut()) {
                    settle(queue, task.owned_mut(), now);
                    enqueue(queue, task, Enqueue::Migrate, now);
                } else {
                    mark_throttle(queue, task.owned_mut(), now);
                    queue.put_prev_yield(task, now);
                }
            }
            Previous::Pending(mut parking) => {
                self.has_one_less::<PREEMPTS>();
                settle(queue, parking.owned_mut(), now);
                if let Parked::Woken(mut task) = parking.park() {
                    // Woken after we looked: it is runnable again.
                    note_late_wake(&mut task, now);
                    task.owned_mut().since = now;
                    enqueue(queue, task, Enqueue::Wake, now);
                }
            }
        }
        // With long polls about, waiting behind one costs more than waking somebody: offer the surplus first (rule 3 needs a return).
        *returning |= self.short_polls <= SHORT_POLLS
            && queue.nr_queued() > 1
            && shared.sleeper_for_surplus(self.index, now).is_some()
            && !shared.is_full(self.index, now);
        self.waiting = queue.nr_queued();
        if *returning {
            // From here on others may have to look after what waits.
            queue.publish();
            return None;
        }
        let mut picked = queue.pick(now);
        if RuntimeGates::bandwidth() {
            note_choice(shared, queue, picked.as_mut(), now);
        }
        picked
    }

    /// Those that have come and are no proxies.
    pub(super) fn count_short_tasks(&mut self) {
        for arrival in &mut self.arrivals {
            let is_proxy = arrival.task.owned_mut().bearer().is_some();
            self.short_tasks += usize::from(!is_proxy);
        }
    }

    /// A task that is no proxy was polled and does not want to go on. (With [`hand_over`] another has come for it.)
    #[inline(always)]
    fn has_one_less<const PREEMPTS: bool>(&mut self) {
        if PREEMPTS {
            self.short_tasks = self.short_tasks.saturating_sub(1);
        }
    }

    /// Whether nothing came but what [`hand_over`] may take, in `next`. In a preempting scheduler that came by the inbox.
    #[inline]
    fn has_lone_arrival<const PREEMPTS: bool>(
        &mut self,
        previous: &Previous,
        next: &mut Option<Arrival>,
    ) -> bool {
        if next.is_some() || !PREEMPTS {
            return self.arrivals.is_empty();
        }
        let leaves = matches!(previous, Previous::Pending(_) | Previous::Done);
        let [lone] = &mut *self.arrivals else {
            return false;
        };
        // What comes from another queue, or sits in another group's place, has its own way of being put in; a proxy is not
        // polled but slept for, and asks for a longer slice than whoever leaves.
        let owned = lone.task.owned_mut();
        if !leaves
            || lone.kind == Enqueue::Migrate
            || owned.bearer().is_some()
            || changes_seat(owned)
        {
            return false;
        }
        *next = self.arrivals.pop();
        give_back(&mut self.arrivals, 1);
        true
    }

    /// Puts what arrived into the queue, where others can see it.
    #[inline]
    pub(super) fn admit(&mut self, queue: &mut RunQueue<Task>, now: Nanos) {
        let admitted = self.arrivals.len();
        for mut arrival in self.arrivals.drain(..) {
            let home = &arrival.task.context().home;
            home.store(self.index as u16, Ordering::Relaxed);
            let owned = arrival.task.owned_mut();
            if owned.since == Nanos::ZERO {
                owned.since = now;
            }
            enqueue(queue, arrival.task, arrival.kind, now);
        }
        give_back(&mut self.arrivals, admitted);
    }

    /// Tells the queue what the last poll's charge must know.
    fn follow_notes(&mut self, queue: &mut RunQueue<Task>, previous: &Previous, now: Nanos) {
        if let Some(deferring) = self.deferring.take() {
            queue.defer_current(deferring);
        }
        if !matches!(previous, Previous::Nothing) {
            // Putting the task back charges the time up to `now`; only what differs from that is said here.
            if self.notes.excluded != Nanos::ZERO {
                queue.charge_except(now, self.notes.excluded);
            }
            charge_beyond(queue, &self.notes);
            if self.notes.passed {
                // What comes of this poll, elsewhere, its groups will have been charged with by the next choice.
                queue.end_groups_turn();
            }
        }
    }
}

/// Charges what the current task pays beyond its poll's time.
pub(super) fn charge_beyond(queue: &mut RunQueue<Task>, notes: &PollNotes) {
    if notes.extra != Nanos::ZERO {
        queue.charge_turn(notes.extra);
    }
    if notes.debt != Nanos::ZERO {
        queue.charge_within(notes.debt);
    }
}

/// Lets a picked task through to its poll, or puts it where it belongs (held group, moved to another group).
#[inline(always)]
pub(super) fn admit_to_poll(
    queue: &mut RunQueue<Task>,
    mut task: Task,
    now: Nanos,
) -> Option<Task> {
    if RuntimeGates::bandwidth() && has_outstayed(&mut task, now) {
        take_out(queue, task.owned_mut(), now);
        enqueue(queue, task, Enqueue::Migrate, now);
        return None;
    }
    let moved = task.context().marks.is_moved(Ordering::Relaxed);
    if !moved && !task.owned_mut().group.is_held() {
        return Some(task);
    }
    put_aside(queue, task, now)
}

#[cold]
fn put_aside(queue: &mut RunQueue<Task>, mut task: Task, now: Nanos) -> Option<Task> {
    if task.is_aborted() || super::borne::goes_on_though_held(&mut task) {
        return Some(task);
    }
    // The entity leaves the queue before another thread may see the token.
    take_out(queue, task.owned_mut(), now);
    if follow_move(&mut task) {
        enqueue(queue, task, Enqueue::Migrate, now);
        return None;
    }
    let group = task.owned_mut().group.clone();
    super::borne::stop_frozen(&mut task);
    if let Err(task) = group.hold(task) {
        enqueue(queue, task, Enqueue::Wake, now);
    }
    None
}

/// Whether a task that is queued or put back was moved out of its group, whose limit may keep it back there. Under the queue's lock, after which whoever moved
/// it may have found nobody waiting (`Shared::may_keep_back`).
#[inline(always)]
fn leaves_group(task: &Task) -> bool {
    RuntimeGates::bandwidth() && task.context().marks.is_moved(Ordering::Acquire)
}

/// Whether the task was moved to another group: it is of that one from now on. For who holds its token, which is in no queue.
#[cold]
fn follow_move(task: &mut Task) -> bool {
    if !task.context().marks.take_moved() {
        return false;
    }
    let group = task
        .context()
        .membership
        .lock()
        .unwrap_or_else(|poison| poison.into_inner())
        .as_ref()
        .map(|member| member.group.clone());
    if let Some(group) = group {
        let owned = task.owned_mut();
        owned.group = group;
        owned.leave_line();
        if let Some(known) = &mut owned.throttling {
            known.calm = None;
        }
    }
    true
}

/// The short way of yielders among themselves. `None`: limits keep back everything.
#[inline(always)]
pub(super) fn yield_to_next(
    shared: &Shared,
    queue: &mut RunQueue<Task>,
    previous: &mut Previous,
    now: Nanos,
) -> Option<Task> {
    match std::mem::replace(previous, Previous::Nothing) {
        Previous::Again(mut task) => {
            task.owned_mut().since = now;
            mark_throttle(queue, task.owned_mut(), now);
            let mut next = queue.switch(task, now);
            if RuntimeGates::bandwidth() {
                note_choice(shared, queue, next.as_mut(), now);
            }
            next
        }
        other => {
            *previous = other;
            None
        }
    }
}

/// The short way of a conversation: the previous task sleeps or has ended, and the one task that it woke runs next. Returns `None`,
/// and changes nothing, where the caller has to put the previous task back and choose.
#[inline(always)]
fn hand_over(
    shared: &Shared,
    queue: &mut RunQueue<Task>,
    previous: &mut Previous,
    next: &mut Option<Arrival>,
    now: Nanos,
) -> Option<Task> {
    if !matches!(previous, Previous::Pending(_) | Previous::Done) {
        return None;
    }
    let owned = next.as_mut()?.task.owned_mut();
    if owned.deferral().is_some() {
        return None;
    }
    // It is queued and polled at the same moment, so that no throttle lies in between; and no group is charged, so that no
    // refill becomes due earlier.
    let sleeper = queue.hand_over(&owned.group.core, &owned.entity, now)?;
    owned.since = now;
    if let Previous::Pending(mut parking) = std::mem::replace(previous, Previous::Nothing) {
        parking.owned_mut().entity = sleeper;
        if let Parked::Woken(mut task) = parking.park() {
            note_late_wake(&mut task, now);
            task.owned_mut().since = now;
            enqueue(queue, task, Enqueue::Wake, now);
            look_at_refill(shared);
        }
    }
    next.take().map(|arrival| arrival.task)
}

/// Records the wake-up of a task that was on its way to sleep.
#[inline]
pub(super) fn note_late_wake(task: &mut Task, now: Nanos) {
    if RuntimeGates::events() {
        let shared = task.context().shared.clone();
        let home = task.context().home.load(Ordering::Relaxed) as usize;
        shared.log.wake(task, Enqueue::Wake, home, None, now);
    }
}

/// Takes the current task out of the queue and keeps its state with it.
#[inline]
pub(super) fn settle(queue: &mut RunQueue<Task>, owned: &mut Owned, now: Nanos) {
    if let Some(entity) = queue.put_prev_sleep(now) {
        owned.entity = entity;
    }
}

/// The same for a task that was chosen and is not polled, but queued somewhere else.
#[inline]
fn take_out(queue: &mut RunQueue<Task>, owned: &mut Owned, now: Nanos) {
    if let Some(entity) = queue.put_prev_move(now) {
        owned.entity = entity;
    }
}

/// Queues a task by its own group and entity.
#[inline]
pub(super) fn enqueue(queue: &mut RunQueue<Task>, mut task: Task, kind: Enqueue, now: Nanos) {
    let dead = RuntimeGates::bandwidth() && task.is_aborted();
    if leaves_group(&task) {
        // In the group that it has left it would wait for that one's budget.
        follow_move(&mut task);
    }
    let owned = task.owned_mut();
    let mut on_the_way = None;
    if let Some(known) = &mut owned.throttling {
        take_seat(queue, known, &owned.group);
        on_the_way = known.on_the_way.take();
    }
    if dead {
        seat_the_dead(&mut task, now);
    }
    let owned = task.owned_mut();
    mark_throttle(queue, owned, now);
    let slot = queue.slot(&owned.queued_in().core);
    let entity = owned.entity;
    queue.enqueue_in(slot, entity, task, kind, now);
    drop(on_the_way);
}
