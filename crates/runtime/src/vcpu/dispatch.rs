//! One poll: its clocks, its figures and its charge.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use quotient_core::{Gates, Nanos};

use super::switch::{Previous, look_at_refill, payer_of_the_dead};
use super::{Vcpu, lock};
use crate::clock::{RECONCILE_INTERVAL, thread_cpu_time, thread_run_delay};
use crate::cpu_clock::OwnTime;
use crate::defer::was_deferred;
use crate::gates::{RunQueue, RuntimeGates};
use crate::group::GroupShared;
use crate::local::{self, Entered, PollNotes};
use crate::shared::{Shared, VcpuShared};
use crate::task::Polled;
use crate::task_context::{Owned, Task, TaskContext};

/// A poll longer than this is compared with the thread's CPU clock. Unit: nanoseconds. Default 500 us: no host gives a
/// preempted thread its processor back sooner than that often, and the two clock reads cost 0.06 %.
const SUSPICIOUS_POLL: Nanos = Nanos(500_000);
/// Difference between wall and CPU time that counts as steal. Unit: nanoseconds. Default 20 us: interrupts and reading skew stay below.
const STEAL_FLOOR: Nanos = Nanos(20_000);
/// After a poll longer than this the host's live tasks are counted. Unit: nanoseconds. Default 1 us: shorter polls seldom spawn, and
/// the look costs 3 ns.
const ESCAPE_LOOK: Nanos = Nanos(1_000);
/// User's code beyond a poll that is not looked at: what it took is paid by whoever runs next. Unit: nanoseconds. Default 250 us: to
/// wake a sleeping thread took up to 90 us of processor time on a virtual machine, and a group is to have what its tasks had, to the
/// nanosecond, unless there is reason.
const BEYOND_FLOOR: Nanos = Nanos(250_000);

/// A point where wall and thread CPU clock were read together. What the thread did for others while the virtual CPU slept makes
/// steal look smaller, never larger.
pub(super) struct Reference {
    thread: usize,
    /// Wall time of the reading, moved on by the time that the virtual CPU has slept since.
    wall: Nanos,
    cpu: Nanos,
    read_at: Nanos,
}

/// What is known of a poll before it.
pub(super) struct Began {
    pub(super) started: Nanos,
    pub(super) delay: Nanos,
    pub(super) location: &'static Location<'static>,
    /// Who pays, if the poll is that of a dead task in another group's place.
    pub(super) payer: Option<Arc<GroupShared>>,
}

impl Vcpu {
    /// Polls one task and books its poll. Returns what became of it, and the time after.
    #[inline]
    pub(super) fn dispatch(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        entered: &Entered,
        mut task: Task,
        held: Option<&mut RunQueue<Task>>,
        started: Nanos,
    ) -> (Previous, Nanos) {
        if let Some(preempting) = &shared.preempt {
            return self.dispatch_preempting(shared, preempting, me, entered, task, started);
        }
        let delay = self.begin(shared, entered, &mut task, started);
        let location = task.context().location;
        let payer = payer_of_the_dead(&mut task);
        me.polling.store(task.id().number(), Ordering::Relaxed);
        me.polling_since
            .store(started.as_nanos().wrapping_add(1), Ordering::Relaxed);
        let began = Began {
            started,
            delay,
            location,
            payer,
        };
        if self.is_stand_in() {
            return self.poll_as_stand_in(shared, me, entered, task, began);
        }
        let polled = {
            // Rule 4. A budget is always left here, since every inner poll's use of it is undone when the guard goes.
            let mut context = Context::from_waker(Waker::noop());
            let _budget = tokio::task::coop::poll_proceed(&mut context);
            task.poll(was_deferred)
        };
        self.after_poll(shared, me, entered, polled, held, began)
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
                ..entered.end_task()
            };
            self.forget_deferral(entered);
            return (Previous::Again(task), began.started);
        }
        let polled = if shared.host_end.begin_poll() {
            local::hold_pass(shared);
            // Rule 4. Off the host's workers nothing is deferred, and the probe would wake every task.
            let mut context = Context::from_waker(Waker::noop());
            let _budget = tokio::task::coop::poll_proceed(&mut context);
            let polled = task.poll(|_| false);
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
            None => self.after_poll(shared, me, entered, polled, None, began),
        }
    }

    /// Books a poll that is over.
    #[inline(always)]
    pub(super) fn after_poll(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        entered: &Entered,
        polled: Polled<TaskContext>,
        held: Option<&mut RunQueue<Task>>,
        began: Began,
    ) -> (Previous, Nanos) {
        let Began {
            started,
            delay,
            location,
            payer,
        } = began;
        let mut now = shared.now();
        me.polling_since.store(0, Ordering::Relaxed);
        let wall = now.saturating_sub(started);
        let billed = self.bill(shared, me, entered.end_task(), wall, payer, now);
        self.record(shared, wall, delay, location);
        let previous = match polled {
            Polled::Pending(mut parking) => {
                self.follow_deferral(parking.owned_mut(), entered);
                parking.context().record_poll(billed, wall, delay);
                Previous::Pending(parking)
            }
            Polled::Again(mut task) => {
                self.follow_deferral(task.owned_mut(), entered);
                task.context().record_poll(billed, wall, delay);
                Previous::Again(task)
            }
            Polled::Finished(finishing) => {
                self.forget_deferral(entered);
                finishing.context().record_poll(billed, wall, delay);
                self.charge_last_poll(me, held, now);
                look_at_refill(shared);
                finishing.complete();
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

    /// Makes the task and its group the current ones of this thread; returns how long the task has waited.
    #[inline]
    pub(super) fn begin(
        &mut self,
        shared: &Arc<Shared>,
        entered: &Entered,
        task: &mut Task,
        started: Nanos,
    ) -> Nanos {
        let owned = task.owned_mut();
        let delay = started.saturating_sub(owned.since);
        owned.since = Nanos::ZERO;
        owned.leave_line();
        self.enter_group(&owned.group);
        entered.begin_task(shared, task);
        if let Some(deferral) = task.owned_mut().deferral() {
            entered.begin_deferring(deferral);
        }
        delay
    }

    /// What the poll of `wall` time adds to the task's clock: less what others pay for or the host stole. (What a gate owes for
    /// polls elsewhere is on the clocks already.)
    /// Shown on the virtual CPU's clock, before the task's own: a group read after its task is not behind it.
    #[inline]
    fn bill(
        &mut self,
        shared: &Shared,
        me: &VcpuShared,
        notes: PollNotes,
        wall: Nanos,
        payer: Option<Arc<GroupShared>>,
        now: Nanos,
    ) -> Nanos {
        self.notes = notes;
        if wall > SUSPICIOUS_POLL {
            // What the poll has shown of itself on its clocks is not taken back.
            let open = wall.saturating_sub(me.clock.shown());
            let steal = self.steal(now, open.saturating_sub(notes.excluded), notes.absent);
            self.notes.excluded = notes.excluded.saturating_add(steal);
            if steal != Nanos::ZERO {
                self.notes.extra = self.slept(steal);
            }
            self.notes.noted = true;
            me.resched.store(false, Ordering::Relaxed);
        }
        let excluded = self.notes.excluded;
        let billed = wall.saturating_sub(excluded);
        if RuntimeGates::events() {
            let paid = billed.saturating_add(notes.debt);
            shared.log.polled(self.index, paid, now);
        }
        if let Some(payer) = payer {
            // What the poll has shown of itself on the clocks of whoever lends the place stays there.
            let paid = billed.saturating_sub(me.clock.shown());
            self.notes.excluded = self.notes.excluded.saturating_add(paid);
            self.notes.noted = true;
            payer.pay_for_the_dead(paid, self.index, now);
            look_at_refill(shared);
            return billed;
        }
        me.clock.show(billed);
        billed
    }

    /// The user's code that ran since `polled`, when the poll was over: the destructor of an output that nobody wants, the wakers
    /// of the handle and of timers on CPU clocks. It is the group's (not the task's, which may be gone): the task is still the
    /// current one of the run queue, which charges it up to the time returned here. Otherwise it would be paid by whoever is polled
    /// next, or after a long poll by nobody.
    #[inline]
    fn bill_beyond(&mut self, shared: &Shared, entered: &Entered, polled: Nanos) -> Nanos {
        let now = shared.now();
        let wall = now.saturating_sub(polled);
        if wall <= BEYOND_FLOOR {
            return polled;
        }
        self.bill_long_beyond(shared, entered, polled, now)
    }

    #[cold]
    fn bill_long_beyond(
        &mut self,
        shared: &Shared,
        entered: &Entered,
        polled: Nanos,
        now: Nanos,
    ) -> Nanos {
        let wall = now.saturating_sub(polled);
        let notes = entered.end_task();
        let open = wall.saturating_sub(notes.excluded);
        let steal = self.steal(now, open, notes.absent);
        let mut excluded = notes.excluded.saturating_add(steal);
        if wall.saturating_sub(excluded) <= BEYOND_FLOOR {
            // The host took the processor away, and what is left is too little again.
            excluded = wall;
        }
        if RuntimeGates::events() {
            let log = &shared.log;
            log.polled_beyond(self.index, excluded, notes.debt, now);
        }
        self.notes.excluded = self.notes.excluded.saturating_add(excluded);
        self.notes.debt = self.notes.debt.saturating_add(notes.debt);
        self.notes.leave |= notes.leave;
        self.notes.noted = true;
        now
    }

    /// The poll in its group's figures.
    #[inline]
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
            let alive = shared.host.alive_tasks();
            if alive > self.alive {
                figures.record_escapes((alive - self.alive) as u64);
            }
            self.alive = alive;
        }
    }

    /// Takes over the deferral of throttles that the task has after its poll; the charge will tell the core.
    #[inline]
    fn follow_deferral(&mut self, owned: &mut Owned, entered: &Entered) {
        if !self.notes.noted {
            return;
        }
        let Some(deferral) = entered.take_deferral() else {
            return;
        };
        let active = deferral.is_active();
        owned.throttling.get_or_insert_default().deferral = active.then_some(deferral);
        self.deferring = Some(active);
    }

    /// The task has ended: what it noted last means nothing.
    #[inline]
    fn forget_deferral(&self, entered: &Entered) {
        if self.notes.noted {
            drop(entered.take_deferral());
        }
    }

    /// Charges the last poll of a task before anybody can see that it has ended: whoever awaited it reads complete clocks.
    fn charge_last_poll(&mut self, me: &VcpuShared, held: Option<&mut RunQueue<Task>>, now: Nanos) {
        let notes = std::mem::take(&mut self.notes);
        self.notes.leave = notes.leave;
        let charge = |queue: &mut RunQueue<Task>| {
            queue.charge_except(now, notes.excluded);
            if notes.extra != Nanos::ZERO {
                queue.charge_turn(notes.extra);
            }
            if notes.debt != Nanos::ZERO {
                queue.charge_within(notes.debt);
            }
        };
        match held {
            Some(queue) => charge(queue),
            None => charge(&mut lock(me)),
        }
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
    #[inline]
    pub(super) fn enter_group(&mut self, group: &Arc<GroupShared>) {
        let same = matches!(&self.figures, Some((known, _)) if Arc::ptr_eq(known, group));
        if !same {
            self.figures = Some((group.clone(), group.cpus.on(self.index).clone()));
        }
    }

    /// The part of a long poll of `wall` in which the host ran something else, or the poll blocked; counted for its group. The
    /// thread was `absent` in what others account for.
    #[cold]
    fn steal(&mut self, now: Nanos, wall: Nanos, absent: Nanos) -> Nanos {
        let Some(cpu) = thread_cpu_time() else {
            return Nanos::ZERO;
        };
        let here = Reference {
            thread: thread_mark(),
            wall: now,
            cpu,
            read_at: now,
        };
        let steal = match &self.reference {
            Some(before) if before.thread == here.thread => now
                .saturating_sub(before.wall)
                .saturating_sub(cpu.saturating_sub(before.cpu))
                .saturating_sub(absent)
                .min(wall),
            _ => Nanos::ZERO,
        };
        self.reference = Some(here);
        if steal < STEAL_FLOOR {
            return Nanos::ZERO;
        }
        if let Some((_, figures)) = &self.figures {
            figures.record_steal(steal);
        }
        steal
    }

    /// For how long the thread has not run since the point of reference, if this is the same thread still.
    #[cold]
    pub(super) fn stolen(&self, now: Nanos) -> Nanos {
        match (&self.reference, thread_cpu_time()) {
            (Some(before), Some(cpu)) if before.thread == thread_mark() => now
                .saturating_sub(before.wall)
                .saturating_sub(cpu.saturating_sub(before.cpu)),
            _ => Nanos::ZERO,
        }
    }

    /// What of `steal` the poll slept in the kernel: nobody used a processor, so no clock and no limit is charged, but it held the
    /// virtual CPU, so it is paid in virtual time, as part of the turn; otherwise a task that only sleeps would always be chosen
    /// next. What the thread waited for a processor since the last look is not the poll's doing. (Where a hypervisor steals time
    /// it counts as sleep: it meets groups as often as they run, which is by their weights.)
    fn slept(&mut self, steal: Nanos) -> Nanos {
        let thread = thread_mark();
        let Some(delay) = thread_run_delay() else {
            return Nanos::ZERO;
        };
        match self.run_delay.replace((thread, delay)) {
            Some((before_thread, before)) if before_thread == thread => {
                steal.saturating_sub(delay.saturating_sub(before))
            }
            _ => Nanos::ZERO,
        }
    }

    /// The point of reference, for who reads a clock during a poll.
    pub(super) fn own_time(&self) -> Option<OwnTime> {
        let reference = self.reference.as_ref()?;
        Some(OwnTime {
            wall: reference.wall,
            cpu: reference.cpu,
        })
    }

    /// Keeps a point of reference for [`Vcpu::steal`] that is young and of this thread.
    pub(super) fn refresh_reference(&mut self, now: Nanos) {
        let slept = now.saturating_sub(self.slept_at.take().unwrap_or(now));
        if let Some(reference) = &mut self.reference {
            reference.wall = reference.wall.saturating_add(slept);
        }
        let thread = thread_mark();
        let good = matches!(&self.reference, Some(known)
            if known.thread == thread && now.saturating_sub(known.read_at) < RECONCILE_INTERVAL);
        if !good {
            self.reference = thread_cpu_time().map(|cpu| Reference {
                thread,
                wall: now,
                cpu,
                read_at: now,
            });
        }
    }
}

/// Identifies the calling thread for as long as it lives.
pub(super) fn thread_mark() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}
