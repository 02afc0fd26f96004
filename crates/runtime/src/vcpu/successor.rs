//! A stand-in whose poll blocks in place hands its virtual CPU over to a successor on another thread.
//!
//! # Why
//! There is a bounded number of slots for stand-ins, and one comes only when its predecessor was seen to block. Were a slot held by each poll
//! that blocks in place, more polls than slots that wait for each other would wait for ever. So the regular ones keep theirs, since there is only one worker to
//! go back to, and their places are taken by stand-ins; and these give theirs on. As in tokio, where a worker that blocks in place
//! hands its core over, the thread that blocked goes on with its poll when it is done, and without a place, until the poll ends.
//!
//! # Who may touch what
//! *The right to turn k* is the thread's that polls the future of k. The poll itself gives it away, from inside `block_in_place`, in
//! this order: (H1) what the thread knows of k is taken from it (`local::leave_vcpu`): what it wakes from now on goes by the inboxes, it
//! shows nothing on k's clock, and the end of its turn does not empty k's slot; (H2) under the lock of k's queue (which a stand-in never
//! keeps during a poll, see rule 7 of `vcpu`) the task is charged and leaves the queue, as if it slept; (H3) k's words say that no
//! poll is in progress; (H4) a new future of k begins, on another thread: everything before happens before it by that thread's
//! start or by the lock of its jobs. Queue and inbox stay as they are.
//!
//! # The token
//! Stays on the old thread's stack until the poll's end, with the scheduling state that H2 took out in [`Bearing`]. Then
//! [`Vcpu::settle_bearing`] puts the state back into the token's owned part before it lets go of it: the task is submitted like any
//! other that was woken elsewhere, or sleeps, or is complete.
//!
//! # The bill
//! What the poll took until H2 is charged as ever. From then on the thread is metered for the group, inside the blocking function and
//! after it: its CPU time is on the group's clocks and budgets in full, and its tasks pay for it in virtual time. Sleep is free: it
//! holds no virtual CPU. The task's own clock has the poll before and after the function, as without a hand-over.
//!
//! # Bounds and ends
//! At most [`HANDED_OVER_MAX`] at a time, then a stand-in keeps its place (as does one inside an `in_group`, which charges by its own
//! clock, and every one of a preempting scheduler, whose bearers hold no place anyway). The old future counts among the scheduler's
//! until the poll has ended, so that a scheduler with such a poll has not ended; and [`HandedOver`] tells who they are.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};

use quotient_core::event::TaskState;
use quotient_core::{Enqueue, Gates, Nanos, TaskEntity};

use super::Vcpu;
use super::dispatch::Began;
use super::limits::look_at_refill;
use crate::gates::RuntimeGates;
use crate::group::Group;
use crate::local::{self, Entered};
use crate::meter::{ThreadMeter, settle_here};
use crate::shared::Shared;
use crate::task::{Parked, Polled};
use crate::task_context::{Owned, TaskContext};

/// Polls that block in place without a virtual CPU at a time, each on a thread of its own. Unit: polls. Default 512, as many threads
/// as tokio's pool for blocking functions has by default.
pub(crate) const HANDED_OVER_MAX: usize = 512;

/// The polls of one scheduler that have handed over their virtual CPU: numbers of tasks, and since when they are polled.
#[derive(Debug, Default)]
pub(crate) struct HandedOver {
    polls: Mutex<Vec<(u64, Nanos)>>,
}

impl HandedOver {
    /// One more, unless there are [`HANDED_OVER_MAX`].
    fn begin(&self, task: u64, since: Nanos) -> bool {
        let mut polls = self.lock();
        if polls.len() >= HANDED_OVER_MAX {
            return false;
        }
        polls.push((task, since));
        true
    }

    fn end(&self, task: u64) {
        let mut polls = self.lock();
        if let Some(place) = polls.iter().position(|(known, _)| *known == task) {
            polls.swap_remove(place);
        }
    }

    /// Who they are.
    pub(crate) fn list(&self) -> Vec<(u64, Nanos)> {
        self.lock().clone()
    }

    pub(crate) fn any(&self) -> bool {
        !self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Nanos)>> {
        self.polls
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }
}

/// What a thread keeps of a poll that has handed over its virtual CPU.
#[derive(Debug)]
pub(crate) struct Bearing {
    task: u64,
    /// The task's scheduling state; `None` if it was no longer in the queue.
    entity: Option<TaskEntity>,
    /// What the poll was billed before.
    billed: Nanos,
    meter: Option<ThreadMeter>,
    /// CPU time inside the blocking function.
    blocked: Nanos,
}

impl Bearing {
    /// The blocking function has returned; the poll goes on.
    pub(crate) fn function_returned(&mut self) {
        self.blocked = self.metered();
    }

    fn metered(&self) -> Nanos {
        let time = self
            .meter
            .as_ref()
            .map_or(0, |meter| meter.cpu_time().as_nanos());
        Nanos(u64::try_from(time).unwrap_or(u64::MAX))
    }
}

/// The poll in progress on this thread, of virtual CPU `index`, is about to block in place: H1 to H4, and a successor goes on with the
/// virtual CPU. False, and nothing has changed, if it keeps it.
pub(crate) fn hand_over(shared: &Arc<Shared>, index: usize) -> bool {
    if index < shared.regular || shared.preempt.is_some() || local::is_wrapped() {
        return false;
    }
    let me = &shared.vcpus[index];
    let since = Nanos(me.polling_since.load(Ordering::Relaxed).saturating_sub(1));
    let task = me.polling.load(Ordering::Relaxed);
    if !shared.handed_over.begin(task, since) {
        return false;
    }
    if !shared.future_began() {
        // Cannot be: the future of this very poll counts.
        shared.handed_over.end(task);
        return false;
    }
    let now = shared.now();
    let group = Group::current();
    let (billed, notes) = local::leave_vcpu(shared, index, now);
    let wall = now.saturating_sub(since);
    if let Some(group) = &group {
        group.inner.cpus.on(index).record_wall(wall);
    }
    if RuntimeGates::events() {
        let paid = billed.saturating_add(notes.extra);
        shared.log.polled(index, paid, now);
        shared.log.end(index, TaskState::Sleeping, now);
    }
    let entity = {
        let mut queue = me.queue.lock();
        queue.charge_except(now, wall.saturating_sub(billed));
        if notes.extra != Nanos::ZERO {
            queue.charge_turn(notes.extra);
        }
        queue.put_prev_sleep(now)
    };
    look_at_refill(shared);
    me.polling_since.store(0, Ordering::Relaxed);
    me.resched.store(false, Ordering::Relaxed);
    // The turn that is cut off is over.
    let turn = me.turns.load(Ordering::Relaxed);
    me.turns.store(turn.next_multiple_of(2), Ordering::Release);
    let meter = group.and_then(|group| ThreadMeter::enter_within(&group).ok());
    local::bear(Bearing {
        task,
        entity,
        billed,
        meter,
        blocked: Nanos::ZERO,
    });
    let successor = Vcpu::new(shared.clone(), index);
    shared.host.spawn_stand_in(Box::pin(successor));
    true
}

impl Vcpu {
    /// The poll that has handed over this virtual CPU is over: books it, and lets go of its task.
    #[cold]
    pub(super) fn settle_bearing(
        &mut self,
        shared: &Arc<Shared>,
        entered: &Entered,
        polled: Polled<TaskContext>,
        mut bearing: Bearing,
        began: &Began,
    ) {
        self.lost = true;
        self.handed_over = true;
        let metered = bearing.metered();
        // The bill is paid before anybody sees an end. What that sets off, the handle's waker or an output's destructor, is the group's, too.
        let mut meter = bearing.meter.take();
        match polled {
            Polled::Finished(_) => settle_here(),
            _ => drop(meter.take()),
        }
        let _ = entered.end_task();
        let deferral = entered.take_deferral();
        let settle = |owned: &mut Owned| {
            if let Some(entity) = bearing.entity {
                owned.entity = entity;
            }
            if let Some(deferral) = deferral {
                let active = owned.follow_deferral(deferral);
                owned.entity.set_deferring(active);
            }
        };
        let billed = bearing.billed + metered.saturating_sub(bearing.blocked);
        let wall = shared.now().saturating_sub(began.started);
        match polled {
            Polled::Pending(mut parking) => {
                parking.context().record_poll(billed, wall, began.delay);
                settle(parking.owned_mut());
                if let Parked::Woken(task) = parking.park() {
                    shared.submit_remote(task, Enqueue::Wake);
                }
            }
            Polled::Again(mut task) => {
                task.context().record_poll(billed, wall, began.delay);
                settle(task.owned_mut());
                shared.submit_remote(task, Enqueue::Wake);
            }
            Polled::Finished(finishing) => {
                finishing.context().record_poll(billed, wall, began.delay);
                finishing.complete();
            }
            Polled::Done => {}
        }
        drop(meter);
        shared.handed_over.end(bearing.task);
    }
}
