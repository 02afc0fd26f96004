//! One poll: its clocks, its figures and its charge.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use quotient_core::Nanos;

use super::Vcpu;
use super::completion::Ran;
use super::limits::{look_at_refill, payer_of};
use super::switch::{Previous, charge_beyond};
use crate::defer::was_deferred;
use crate::gates::RunQueue;
use crate::group::GroupShared;
use crate::local::{self, Entered, PollNotes};
use crate::preempt::nothing_for_others;
use crate::shared::{Shared, VcpuShared};
use crate::task::Polled;
use crate::task_context::{Owned, Task, TaskContext};

/// After a poll longer than this the host's live tasks are counted. Unit: nanoseconds. Default 1 us: shorter polls seldom spawn, and
/// the look costs 3 ns.
const ESCAPE_LOOK: Nanos = Nanos(1_000);

/// What is known of a poll before it.
#[derive(Clone, Copy)]
pub(super) struct Began {
    pub(super) started: Nanos,
    pub(super) delay: Nanos,
    pub(super) location: &'static Location<'static>,
}

impl Vcpu {
    /// Polls one task and books its poll. Returns what became of it, and the time after.
    #[inline(always)]
    pub(super) fn dispatch(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        entered: &Entered,
        mut task: Task,
        held: Option<&mut RunQueue<Task>>,
        started: Nanos,
    ) -> (Previous, Nanos) {
        let is_plain = task.owned_mut().throttling.is_none();
        let delay = self.begin(shared, entered, &mut task, started, is_plain);
        let location = task.context().location;
        if !is_plain {
            self.payer = payer_of(&mut task, started);
        }
        me.polling.store(task.id().number(), Ordering::Relaxed);
        me.polling_since
            .store(started.as_nanos().wrapping_add(1), Ordering::Relaxed);
        let began = Began {
            started,
            delay,
            location,
        };
        if self.is_stand_in() {
            return self.poll_as_stand_in(shared, me, entered, task, began);
        }
        let polled = poll_in_budget(task, was_deferred);
        self.after_poll(shared, me, entered, polled, Ran::Whole(held), began)
    }

    /// A stand-in's poll: only while the host's runtime runs, and perhaps without the virtual CPU from its middle on.
    fn poll_as_stand_in(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        entered: &Entered,
        task: Task,
        began: Began,
    ) -> (Previous, Nanos) {
        let ending = shared.host_end.is_ending();
        if !ending && !shared.is_driven() {
            // Left to the host, for when it is driven again: the turn ends, and the stand-in with it.
            me.polling_since.store(0, Ordering::Relaxed);
            self.notes = PollNotes {
                leave: true,
                noted: true,
                ..entered.end_task().unwrap_or_default()
            };
            self.forget_deferral(entered);
            self.payer = None;
            return (Previous::Again(task), began.started);
        }
        let polled = if shared.host_end.begin_poll() {
            local::hold_pass(shared);
            let polled = poll_apart(task);
            local::return_pass(shared);
            polled
        } else {
            task.cancel();
            Polled::Done
        };
        match local::take_bearing() {
            Some(bearing) => {
                self.settle_bearing(shared, entered, polled, bearing, &began);
                (Previous::Lost, began.started)
            }
            None => self.after_poll(shared, me, entered, polled, Ran::Whole(None), began),
        }
    }

    /// Books a poll that is over, and completes its task if that has ended.
    #[inline(always)]
    pub(super) fn after_poll(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        entered: &Entered,
        polled: Polled<TaskContext>,
        ran: Ran<'_, '_>,
        began: Began,
    ) -> (Previous, Nanos) {
        let Began {
            started,
            delay,
            location,
        } = began;
        let mut now = shared.now();
        me.polling_since.store(0, Ordering::Relaxed);
        let wall = now.saturating_sub(started);
        self.take_notes(entered);
        let billed = self.bill(shared, me, wall, now);
        self.record(shared, wall, delay, location);
        let previous = match polled {
            Polled::Pending(mut parking) => {
                self.follow_deferral(parking.owned_mut(), entered, true);
                parking.context().record_poll(billed, wall, delay);
                Previous::Pending(parking)
            }
            Polled::Again(mut task) => {
                self.follow_deferral(task.owned_mut(), entered, false);
                task.context().record_poll(billed, wall, delay);
                Previous::Again(task)
            }
            Polled::Finished(finishing) => {
                self.forget_deferral(entered);
                finishing.context().record_poll(billed, wall, delay);
                let regions = match ran {
                    Ran::Whole(held) => {
                        self.charge_last_poll(me, held, now);
                        None
                    }
                    Ran::InRegion(regions) => {
                        self.charge_last_poll(me, None, now);
                        Some(regions)
                    }
                };
                look_at_refill(shared);
                if self.complete(shared, me, entered, finishing, regions, now) {
                    return (Previous::Lost, now);
                }
                now = self.bill_beyond(shared, entered, now);
                Previous::Done
            }
            Polled::Done => {
                self.forget_deferral(entered);
                Previous::Done
            }
        };
        if shared.cpu_timers.are_armed() {
            self.look_at_timers(shared, &previous);
            now = self.bill_beyond(shared, entered, now);
        }
        (previous, now)
    }

    /// Makes the task and its group the current ones of this thread; returns how long the task has waited. `is_plain`: it has no
    /// [`throttling`](Owned::throttling).
    #[inline(always)]
    pub(super) fn begin(
        &mut self,
        shared: &Arc<Shared>,
        entered: &Entered,
        task: &mut Task,
        started: Nanos,
        is_plain: bool,
    ) -> Nanos {
        let owned = task.owned_mut();
        let delay = started.saturating_sub(owned.since);
        owned.since = Nanos::ZERO;
        if !is_plain {
            owned.leave_line();
        }
        self.enter_group(&owned.group);
        entered.begin_task(shared, task);
        if !is_plain && let Some(deferral) = task.owned_mut().deferral() {
            entered.begin_deferring(deferral);
        }
        delay
    }

    /// What the poll has left to be known, in place of what the one before it had.
    #[inline(always)]
    fn take_notes(&mut self, entered: &Entered) {
        match entered.end_task() {
            Some(notes) => self.notes = notes,
            None if self.notes.noted => self.notes = PollNotes::default(),
            None => {}
        }
    }

    /// The poll in its group's figures.
    #[inline(always)]
    fn record(
        &mut self,
        shared: &Shared,
        wall: Nanos,
        delay: Nanos,
        location: &'static Location<'static>,
    ) {
        let Some((_, figures)) = &self.figures else {
            return;
        };
        figures.record_poll(wall, delay, location);
        if wall > ESCAPE_LOOK {
            self.count_escapes(shared);
        }
    }

    #[inline(never)]
    fn count_escapes(&mut self, shared: &Shared) {
        let alive = shared.host.alive_tasks();
        if alive > self.alive
            && let Some((_, figures)) = &self.figures
        {
            figures.record_escapes((alive - self.alive) as u64);
        }
        self.alive = alive;
    }

    /// Takes over the deferral of throttles that the task has after its poll; the charge will tell the core.
    #[inline(always)]
    fn follow_deferral(&mut self, owned: &mut Owned, entered: &Entered, sleeps: bool) {
        if self.notes.noted {
            self.follow_noted(owned, entered, sleeps);
        }
    }

    #[cold]
    #[inline(never)]
    fn follow_noted(&mut self, owned: &mut Owned, entered: &Entered, sleeps: bool) {
        self.end_for_others();
        let Some(deferral) = entered.take_deferral() else {
            return;
        };
        if sleeps {
            deferral.is_not_queued();
        }
        self.deferring = Some(owned.follow_deferral(deferral));
    }

    /// What a poll did for others in its middle is over with it.
    #[cold]
    fn end_for_others(&self) {
        if self.is_preempting() && self.notes.excluded != Nanos::ZERO {
            nothing_for_others();
        }
    }

    /// The task has ended: what it noted last means nothing.
    #[inline]
    fn forget_deferral(&self, entered: &Entered) {
        if self.notes.noted {
            self.end_for_others();
            if let Some(deferral) = entered.take_deferral() {
                deferral.is_not_queued();
            }
        }
    }

    /// Charges the last poll of a task before anybody can see that it has ended: whoever awaited it reads complete clocks.
    #[inline(always)]
    fn charge_last_poll(&mut self, me: &VcpuShared, held: Option<&mut RunQueue<Task>>, now: Nanos) {
        let notes = if self.notes.noted {
            self.take_last_notes()
        } else {
            PollNotes::default()
        };
        let charge = |queue: &mut RunQueue<Task>| {
            if notes.charges() {
                charge_as_noted(queue, &notes, now);
            } else {
                queue.charge_clocks(now);
            }
        };
        match held {
            Some(queue) => charge(queue),
            None => charge(&mut me.queue.lock()),
        }
    }

    /// What the next charge is not to find again.
    #[cold]
    fn take_last_notes(&mut self) -> PollNotes {
        let leave = self.notes.leave;
        let kept = PollNotes {
            leave,
            noted: leave,
            ..PollNotes::default()
        };
        std::mem::replace(&mut self.notes, kept)
    }

    /// Fires what the last poll has made due. Like a poll: no lock is held that anybody could want.
    #[cold]
    fn look_at_timers(&self, shared: &Shared, previous: &Previous) {
        match previous {
            Previous::Again(task) => shared.cpu_timers.look_at_task(task.context()),
            Previous::Pending(parking) => shared.cpu_timers.look_at_task(parking.context()),
            _ => {}
        }
        if let Some((group, _)) = &self.figures {
            shared.cpu_timers.look_at_group(&group.core);
        }
    }

    /// Makes `group`'s figures on this virtual CPU the current ones.
    #[inline(always)]
    pub(super) fn enter_group(&mut self, group: &Arc<GroupShared>) {
        let same = matches!(&self.figures, Some((known, _)) if Arc::ptr_eq(known, group));
        if !same {
            self.enter_another_group(group);
        }
    }

    #[inline(never)]
    fn enter_another_group(&mut self, group: &Arc<GroupShared>) {
        self.figures = Some((group.clone(), group.cpus.on(self.index).clone()));
    }
}

#[cold]
fn charge_as_noted(queue: &mut RunQueue<Task>, notes: &PollNotes, now: Nanos) {
    queue.charge_except(now, notes.excluded);
    charge_beyond(queue, notes);
}

/// Rule 4: polls a task with a cooperation budget of its own. One is always left here, since every inner poll's use of it is undone when the
/// guard goes.
#[inline(always)]
pub(super) fn poll_in_budget(
    task: Task,
    deferred: impl FnOnce(&Waker) -> bool,
) -> Polled<TaskContext> {
    let mut context = Context::from_waker(Waker::noop());
    let _budget = tokio::task::coop::poll_proceed(&mut context);
    task.poll(deferred)
}

/// As [`poll_in_budget`] off the host's workers, for polls that are few: the others have its code to themselves.
#[cold]
#[inline(never)]
pub(super) fn poll_apart(task: Task) -> Polled<TaskContext> {
    poll_in_budget(task, nothing_is_deferred)
}

/// Off the host's workers a yield wakes at once, and the probe would wake every task.
#[inline(always)]
pub(super) fn nothing_is_deferred(_: &Waker) -> bool {
    false
}
