//! A virtual CPU: a long-lived future on the host that polls the tasks of its run queue.
//!
//! # One turn
//! The host polls the virtual CPU; it dispatches tasks until its budget ends, a long poll ended, or nothing is runnable, and returns.
//! Between two dispatches there is one clock read and one lock of the own run queue, under which (in this order) the tasks woken
//! meanwhile are admitted, the previous task is charged and put back, and the next one is picked. No lock that anybody could want is held during a poll (rule 7).
//!
//! # Rules, each paid for once
//! 1. *Never start a long poll with stale I/O*: after a poll longer than [`STALE_AFTER`] the turn ends, so that the host's driver and
//!    its other tasks go first; then the virtual CPU picks again, among the newly woken too.
//! 2. *Yields that tokio defers stay in the run queue*: see `defer`.
//! 3. *A virtual CPU that wakes another one wakes itself and returns*: tokio puts the woken one into the worker's LIFO slot, which no
//!    other worker can steal from; our own wake-up goes to the stealable queue and notifies another worker.
//! 4. The tokio cooperation budget of each task's poll is its own: a budget guard around the inner poll restores the turn's.
//! 5. Wall time is charged by time-stamp counter; a poll longer than [`SUSPICIOUS_POLL`] is compared with the thread's CPU clock,
//!    and what the host stole is not billed. Shorter thefts are bounded by that constant a poll.
//! 6. A panic of user code is caught by the task module; a panic of the scheduler itself leaves queues in an unknown state and
//!    aborts the process.
//! 7. The own queue's lock is kept during a poll when nothing waits in the queue: a thief finds nothing in an empty queue either
//!    way, and a conversation of two tasks saves the lock of every switch. With anything waiting it is released before the poll.
//!
//! # Sleeping
//! `park` has the protocol. The sources of work that are looked at again after announcing sleep: the own inbox and the phase.
//! (The own run queue is empty then and only its owner fills it; surplus of others is offered by them when they return to the
//! host, through the idle mask.)

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};

use quotient_core::balance::{self, Reason};
use quotient_core::{Detached, Enqueue, Nanos, Pull, RunQueue};

use crate::clock::{RECONCILE_INTERVAL, thread_cpu_time};
use crate::defer::was_deferred;
use crate::group::GroupShared;
use crate::inbox::Arrival;
use crate::local::{self, Entered, PollNotes};
use crate::shared::{CLOSED, OPEN, Shared, VcpuShared, cpu_id};
use crate::stats::GroupCpu;
use crate::task::{Parked, Parking, Polled};
use crate::task_context::{Owned, Task, TaskContext};

/// A poll longer than this ends the turn. Unit: nanoseconds. Default 50 us: below it, a return to the host (about 0.5 us) would cost
/// more than 1 %; above it, waiting I/O would add up behind hogs (measured in a prototype: 1.6k against 6.5k requests a second).
const STALE_AFTER: Nanos = Nanos(50_000);
/// Length of a turn of short polls. Unit: nanoseconds. Default 200 us: a return makes tokio's worker search, which wakes another
/// worker by a system call (some 10 us of processor time on two workers); tokio itself looks at its I/O once in 61 polls.
const TURN_BUDGET: Nanos = Nanos(200_000);
/// A poll longer than this is compared with the thread's CPU clock. Unit: nanoseconds. Default 500 us: no host gives a
/// preempted thread its processor back sooner than that often, and the two clock reads cost 0.06 %.
const SUSPICIOUS_POLL: Nanos = Nanos(500_000);
/// Difference between wall and CPU time that counts as steal. Unit: nanoseconds. Default 20 us: interrupts and reading skew stay below.
const STEAL_FLOOR: Nanos = Nanos(20_000);
/// Period of periodic balancing. Unit: nanoseconds. Default 500 us, the core's pull threshold.
const BALANCE_INTERVAL: Nanos = Nanos(500_000);
/// A gap between two turns that says: the host has busy tasks of its own. Unit: nanoseconds.
const BUSY_HOST_GAP: Nanos = Nanos(500_000);
/// Turns for which a virtual CPU queues with the host's busy tasks before it tries the driver turn again. Unit: turns.
const QUEUE_TURNS: u32 = 8;
/// Largest number of tasks taken from a stuck virtual CPU at once. Unit: tasks; bounds the time under its lock to some 20 us.
const RELIEF_MAX: usize = 128;
/// After this many short polls in a row a virtual CPU no longer expects long ones. Unit: polls.
const SHORT_POLLS: u32 = 64;

/// After a poll longer than this the host's live tasks are counted. Unit: nanoseconds. Default 1 us: shorter polls seldom spawn, and
/// the look costs 3 ns.
const ESCAPE_LOOK: Nanos = Nanos(1_000);

/// What a turn ended with.
enum Leave {
    /// Tasks wait: poll again after the host's driver and tasks.
    Yield,
    /// As `Yield`, and another virtual CPU was woken from here (rule 3).
    YieldAfterKick,
    /// Nothing to run.
    Sleep,
    /// The scheduler has ended, or the stand-in is no longer needed.
    Stop,
}

/// What became of the task that was polled last.
enum Previous {
    Nothing,
    Again(Task),
    Pending(Parking<TaskContext>),
    Done,
}

/// A point where wall and thread CPU clock were read together. What the thread did for others while the virtual CPU slept makes
/// steal look smaller, never larger.
struct Reference {
    thread: usize,
    /// Wall time of the reading, moved on by the time that the virtual CPU has slept since.
    wall: Nanos,
    cpu: Nanos,
    read_at: Nanos,
}

/// The future of one virtual CPU.
pub(crate) struct Vcpu {
    shared: Arc<Shared>,
    index: usize,
    arrivals: Vec<Arrival>,
    detached: Vec<Detached<Task>>,
    /// The group that ran last and its figures here: saves the lookup while one group runs.
    figures: Option<(Arc<GroupShared>, Arc<GroupCpu>)>,
    reference: Option<Reference>,
    last_balance: Nanos,
    left_at: Nanos,
    /// When it last went to sleep, until it wakes.
    slept_at: Option<Nanos>,
    queue_turns: u32,
    /// Short polls since the last long one.
    short_polls: u32,
    /// The host's live tasks at the last look, to see what left the groups through `tokio::spawn`.
    alive: usize,
    /// Tasks that waited at the last switch.
    waiting: usize,
    /// Of the last poll, until its charge.
    notes: PollNotes,
}

impl Vcpu {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self {
            shared,
            index,
            arrivals: Vec::new(),
            detached: Vec::new(),
            figures: None,
            reference: None,
            last_balance: Nanos::ZERO,
            left_at: Nanos::ZERO,
            slept_at: None,
            queue_turns: 0,
            short_polls: SHORT_POLLS,
            alive: 0,
            waiting: 0,
            notes: PollNotes::default(),
        }
    }

    fn is_stand_in(&self) -> bool {
        self.index >= self.shared.regular
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        self.shared.future_ended(self.index);
    }
}

/// Rule 6.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

impl Future for Vcpu {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let shared = this.shared.clone();
        let me: &VcpuShared = &shared.vcpus[this.index];
        let bit = 1_u64 << this.index;
        me.park.begin();
        if shared.idle.load(Ordering::Relaxed) & bit != 0 {
            shared.idle.fetch_and(!bit, Ordering::Relaxed);
        }
        shared.tick.run();
        let bomb = AbortOnUnwind;
        let leave = {
            let entered = local::enter(&shared, this.index);
            this.turn(&shared, me, &entered)
        };
        let poll = this.leave(&shared, me, leave, context);
        std::mem::forget(bomb);
        poll
    }
}

impl Vcpu {
    /// Ends the host's poll as the turn asked for.
    fn leave(
        &mut self,
        shared: &Shared,
        me: &VcpuShared,
        leave: Leave,
        context: &mut Context<'_>,
    ) -> Poll<()> {
        match leave {
            Leave::Stop => return Poll::Ready(()),
            Leave::YieldAfterKick => context.waker().wake_by_ref(),
            Leave::Yield if self.queue_turns > 0 => {
                self.queue_turns -= 1;
                context.waker().wake_by_ref();
            }
            Leave::Yield => shared.host.defer(context),
            Leave::Sleep => {
                shared.idle.fetch_or(1 << self.index, Ordering::SeqCst);
                me.park.prepare_sleep(context.waker());
                if me.inbox.len() > 0 || shared.may_end() {
                    me.park.cancel_sleep();
                    shared.idle.fetch_and(!(1 << self.index), Ordering::SeqCst);
                    context.waker().wake_by_ref();
                }
            }
        }
        Poll::Pending
    }

    /// Dispatches tasks until there is a reason to return to the host.
    fn turn(&mut self, shared: &Arc<Shared>, me: &VcpuShared, entered: &Entered) -> Leave {
        let started = shared.now();
        let mut now = started;
        self.notice_gap(now);
        self.refresh_reference(now);
        self.alive = shared.host.alive_tasks();
        let mut previous = Previous::Nothing;
        let mut returning = false;
        let mut held = None;
        loop {
            if me.inbox.len() > 0 {
                me.inbox.take_all(&mut self.arrivals);
            }
            let next = entered.take_next();
            let mut queue = held.take().unwrap_or_else(|| lock(me));
            let picked = if next.is_none() && !returning && self.only_requeues(&previous) {
                yield_to_next(&mut queue, &mut previous, now)
            } else {
                self.switch(shared, &mut queue, previous, next, &mut returning, now)
            };
            let Some(task) = picked else {
                drop(queue);
                if !returning && self.pull(shared, Reason::Idle, now) {
                    previous = Previous::Nothing;
                    continue;
                }
                return self.end_turn(shared, now);
            };
            let Some(task) = admit_to_poll(&mut queue, task, now) else {
                previous = Previous::Nothing;
                held = Some(queue);
                continue;
            };
            // Rule 7: an empty queue has nothing to steal.
            held = (queue.nr_queued() == 0).then_some(queue);
            let poll_started = now;
            (previous, now) = self.dispatch(shared, me, entered, task, held.as_deref_mut(), now);
            let long = now.saturating_sub(poll_started) > STALE_AFTER;
            self.short_polls = if long {
                0
            } else {
                self.short_polls.saturating_add(1)
            };
            returning = self.notes.leave
                || long
                || now.saturating_sub(started) > TURN_BUDGET
                || shared.phase() == CLOSED;
        }
    }

    /// Whether nothing happened but that the previous task is to be queued again.
    #[inline]
    fn only_requeues(&self, previous: &Previous) -> bool {
        matches!(previous, Previous::Again(_))
            && self.arrivals.is_empty()
            && self.notes.excluded == Nanos::ZERO
            && self.notes.extra == Nanos::ZERO
    }

    /// Admits arrivals, puts the previous task back and picks the next one (unless `returning`); one lock.
    fn switch(
        &mut self,
        shared: &Shared,
        queue: &mut RunQueue<Task>,
        mut previous: Previous,
        mut next: Option<Arrival>,
        returning: &mut bool,
        now: Nanos,
    ) -> Option<Task> {
        if !matches!(previous, Previous::Nothing) {
            // Putting the task back charges the time up to `now`; only what differs from that is said here.
            if self.notes.excluded != Nanos::ZERO {
                queue.charge_except(now, self.notes.excluded);
            }
            if self.notes.extra != Nanos::ZERO {
                queue.charge_extra(self.notes.extra);
            }
        }
        // Arrivals first: a group whose running task is about to sleep does not become empty in between, which would take it out
        // of every level above and put it back.
        let home = self.index as u32;
        if self.arrivals.is_empty()
            && !*returning
            && let Some(task) = hand_over(queue, &mut previous, &mut next, now)
        {
            task.context().home.store(home, Ordering::Relaxed);
            return Some(task);
        }
        self.arrivals.extend(next);
        for mut arrival in self.arrivals.drain(..) {
            arrival.task.context().home.store(home, Ordering::Relaxed);
            let owned = arrival.task.owned_mut();
            if owned.since == Nanos::ZERO {
                owned.since = now;
            }
            enqueue(queue, arrival.task, arrival.kind, now);
        }
        match previous {
            Previous::Nothing => {}
            Previous::Done => drop(queue.put_prev_exit(now)),
            Previous::Again(mut task) => {
                task.owned_mut().since = now;
                queue.put_prev_yield(task, now);
            }
            Previous::Pending(mut parking) => {
                settle(queue, parking.owned_mut(), now);
                if let Parked::Woken(mut task) = parking.park() {
                    // Woken after we looked: it is runnable again.
                    task.owned_mut().since = now;
                    enqueue(queue, task, Enqueue::Wake, now);
                }
            }
        }
        // With long polls about, waiting behind one costs more than waking somebody: offer the surplus first (rule 3 needs a return).
        *returning |= self.short_polls <= SHORT_POLLS
            && queue.nr_queued() > 1
            && shared.idle.load(Ordering::Relaxed) != 0;
        self.waiting = queue.nr_queued();
        if *returning { None } else { queue.pick(now) }
    }

    /// Polls one task. Returns what became of it, the time after, and what the charge must know.
    #[inline]
    fn dispatch(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        entered: &Entered,
        mut task: Task,
        held: Option<&mut RunQueue<Task>>,
        started: Nanos,
    ) -> (Previous, Nanos) {
        let owned = task.owned_mut();
        let delay = started.saturating_sub(owned.since);
        owned.since = Nanos::ZERO;
        self.enter_group(&owned.group);
        entered.begin_task(shared, &owned.group);
        me.polling_since
            .store(started.as_nanos().wrapping_add(1), Ordering::Relaxed);
        let location = task.context().location;
        let polled = {
            // Rule 4. A budget is always left here, since every inner poll's use of it is undone when the guard goes.
            let mut context = Context::from_waker(Waker::noop());
            let _budget = tokio::task::coop::poll_proceed(&mut context);
            task.poll(was_deferred)
        };
        let now = shared.now();
        me.polling_since.store(0, Ordering::Relaxed);
        let notes = entered.end_task();
        let wall = now.saturating_sub(started);
        self.notes = notes;
        if wall > SUSPICIOUS_POLL {
            let steal = self.steal(now, wall.saturating_sub(notes.excluded));
            self.notes.excluded = notes.excluded.saturating_add(steal);
            me.resched.store(false, Ordering::Relaxed);
        }
        if let Some((_, figures)) = &self.figures {
            figures.record_poll(wall, delay, location);
            if wall > ESCAPE_LOOK {
                let alive = shared.host.alive_tasks();
                if alive > self.alive {
                    figures.record_escapes((alive - self.alive) as u64);
                }
                self.alive = alive;
            }
        }
        let billed = wall
            .saturating_sub(self.notes.excluded)
            .saturating_add(notes.extra);
        let previous = match polled {
            Polled::Pending(parking) => {
                parking.context().record_poll(billed, wall, delay);
                Previous::Pending(parking)
            }
            Polled::Again(task) => {
                task.context().record_poll(billed, wall, delay);
                Previous::Again(task)
            }
            Polled::Finished(finishing) => {
                finishing.context().record_poll(billed, wall, delay);
                self.charge_last_poll(me, held, now);
                finishing.complete();
                Previous::Done
            }
            Polled::Done => Previous::Done,
        };
        (previous, now)
    }

    /// Charges the last poll of a task before anybody can see that it has ended: whoever awaited it reads complete clocks.
    fn charge_last_poll(&mut self, me: &VcpuShared, held: Option<&mut RunQueue<Task>>, now: Nanos) {
        let notes = std::mem::take(&mut self.notes);
        self.notes.leave = notes.leave;
        let charge = |queue: &mut RunQueue<Task>| {
            queue.charge_except(now, notes.excluded);
            if notes.extra != Nanos::ZERO {
                queue.charge_extra(notes.extra);
            }
        };
        match held {
            Some(queue) => charge(queue),
            None => charge(&mut lock(me)),
        }
    }

    /// Makes `group`'s figures on this virtual CPU the current ones.
    #[inline]
    fn enter_group(&mut self, group: &Arc<GroupShared>) {
        let same = matches!(&self.figures, Some((known, _)) if Arc::ptr_eq(known, group));
        if !same {
            self.figures = Some((group.clone(), group.cpus.on(self.index).clone()));
        }
    }

    /// The part of a long poll of `wall` in which the host ran something else, or the poll blocked; counted for its group.
    #[cold]
    fn steal(&mut self, now: Nanos, wall: Nanos) -> Nanos {
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

    /// Keeps a point of reference for [`Vcpu::steal`] that is young and of this thread.
    fn refresh_reference(&mut self, now: Nanos) {
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

    /// A long gap since the last turn means that the host has busy tasks of its own: then queue with them for a while, because a
    /// deferred virtual CPU is polled only when the host's queue is empty (or after 61 of its ticks).
    fn notice_gap(&mut self, now: Nanos) {
        let deferred = self.left_at != Nanos::ZERO && self.queue_turns == 0;
        if deferred && now.saturating_sub(self.left_at) > BUSY_HOST_GAP {
            self.queue_turns = QUEUE_TURNS;
        }
        self.left_at = Nanos::ZERO;
    }

    /// Moves waiting tasks from another virtual CPU to this one; true if any came. Whoever is stuck gives all; of the rest the
    /// balancer says from whom, and how many.
    fn pull(&mut self, shared: &Shared, reason: Reason, now: Nanos) -> bool {
        self.relieve(shared, now);
        if self.detached.is_empty() {
            let plan = balance::plan(
                &shared.topology,
                cpu_id(self.index),
                &shared.loads,
                reason,
                now,
            );
            if let Some(request) = plan {
                self.detach(shared, &request, now);
            }
        }
        if self.detached.is_empty() {
            return !self.arrivals.is_empty();
        }
        let mut queue = shared.queue(self.index);
        for detached in self.detached.drain(..) {
            let mut task = detached.handle;
            task.owned_mut().entity = detached.entity;
            task.context()
                .home
                .store(self.index as u32, Ordering::Relaxed);
            enqueue(&mut queue, task, Enqueue::Migrate, now);
        }
        self.waiting = queue.nr_queued();
        true
    }

    /// Takes waiting tasks and arrivals of a virtual CPU that is stuck and cannot look at them itself: its share is not at stake,
    /// since it runs none of them.
    fn relieve(&mut self, shared: &Shared, now: Nanos) {
        for (index, other) in shared.vcpus.iter().enumerate() {
            let waits = shared.loads[index].nr_queued() > 0 || other.inbox.len() > 0;
            if index == self.index || !waits || !shared.is_stuck(index, now) {
                continue;
            }
            other.inbox.take_half(&mut self.arrivals);
            let everything = Pull {
                from: cpu_id(index),
                max: RELIEF_MAX,
                group: 0,
            };
            self.detach(shared, &everything, now);
            return;
        }
    }

    fn detach(&mut self, shared: &Shared, request: &Pull, now: Nanos) {
        if let Ok(mut victim) = shared.vcpus[request.from.index()].queue.try_lock() {
            victim.detach(request, now, &mut self.detached);
        }
    }

    /// Decides how to return to the host.
    fn end_turn(&mut self, shared: &Arc<Shared>, now: Nanos) -> Leave {
        let alone = shared.regular == 1 && !self.is_stand_in();
        if !alone && now.saturating_sub(self.last_balance) >= BALANCE_INTERVAL {
            self.last_balance = now;
            self.pull(shared, Reason::Periodic, now);
        }
        if shared.may_end() || shared.phase() == CLOSED {
            return Leave::Stop;
        }
        if self.is_stand_in() && !needs_stand_in(shared, now) {
            self.retire(shared);
            return Leave::Stop;
        }
        // Exact: only this virtual CPU adds to its queue, and a thief that took something meanwhile costs one turn.
        self.waiting += self.arrivals.len();
        if self.waiting == 0 {
            self.slept_at = Some(now);
            return Leave::Sleep;
        }
        self.left_at = now;
        if self.waiting > 1 && shared.kick_idle() {
            return Leave::YieldAfterKick;
        }
        Leave::Yield
    }

    /// A stand-in is no longer needed: hands its tasks to the regular virtual CPUs.
    fn retire(&mut self, shared: &Arc<Shared>) {
        let mut arrivals = shared.vcpus[self.index].inbox.close();
        arrivals.append(&mut self.arrivals);
        let queued = shared.drain_queue(self.index);
        let mut target = 0;
        let mut forward = |task: Task, kind: Enqueue| {
            task.context().home.store(target, Ordering::Relaxed);
            target = (target + 1) % shared.regular as u32;
            shared.submit_remote(task, kind);
        };
        for arrival in arrivals {
            forward(arrival.task, arrival.kind);
        }
        for detached in queued {
            let mut task = detached.handle;
            task.owned_mut().entity = detached.entity;
            forward(task, Enqueue::Migrate);
        }
    }
}

/// Lets a picked task through to its poll, or puts it where it belongs (held group, moved to another group).
#[inline]
fn admit_to_poll(queue: &mut RunQueue<Task>, mut task: Task, now: Nanos) -> Option<Task> {
    let moved = task.context().moved.load(Ordering::Relaxed);
    if !moved && !task.owned_mut().group.is_held() {
        return Some(task);
    }
    put_aside(queue, task, now)
}

#[cold]
fn put_aside(queue: &mut RunQueue<Task>, mut task: Task, now: Nanos) -> Option<Task> {
    if task.is_aborted() {
        return Some(task);
    }
    // The entity leaves the queue before another thread may see the token.
    settle(queue, task.owned_mut(), now);
    if task.context().moved.swap(false, Ordering::AcqRel) {
        let group = task
            .context()
            .membership
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
            .as_ref()
            .map(|member| member.group.clone());
        if let Some(group) = group {
            task.owned_mut().group = group;
        }
        enqueue(queue, task, Enqueue::Migrate, now);
        return None;
    }
    let group = task.owned_mut().group.clone();
    if let Err(task) = group.hold(task) {
        enqueue(queue, task, Enqueue::Wake, now);
    }
    None
}

/// The short way of yielders among themselves.
#[inline]
fn yield_to_next(queue: &mut RunQueue<Task>, previous: &mut Previous, now: Nanos) -> Option<Task> {
    match std::mem::replace(previous, Previous::Nothing) {
        Previous::Again(mut task) => {
            task.owned_mut().since = now;
            Some(queue.switch_yield(task, now))
        }
        other => {
            *previous = other;
            None
        }
    }
}

/// The short way of a conversation: the previous task sleeps or has ended, and the one task that it woke runs next. Leaves its
/// arguments alone if the long way is to be gone.
#[inline]
fn hand_over(
    queue: &mut RunQueue<Task>,
    previous: &mut Previous,
    next: &mut Option<Arrival>,
    now: Nanos,
) -> Option<Task> {
    if !matches!(previous, Previous::Pending(_) | Previous::Done) {
        return None;
    }
    let owned = next.as_mut()?.task.owned_mut();
    let sleeper = queue.hand_over(&owned.group.core, &owned.entity, now)?;
    owned.since = now;
    if let Previous::Pending(mut parking) = std::mem::replace(previous, Previous::Nothing) {
        parking.owned_mut().entity = sleeper;
        if let Parked::Woken(mut task) = parking.park() {
            task.owned_mut().since = now;
            enqueue(queue, task, Enqueue::Wake, now);
        }
    }
    next.take().map(|arrival| arrival.task)
}

/// Takes the current task out of the queue and keeps its state with it.
#[inline]
fn settle(queue: &mut RunQueue<Task>, owned: &mut Owned, now: Nanos) {
    if let Some(entity) = queue.put_prev_sleep(now) {
        owned.entity = entity;
    }
}

/// Queues a task by its own group and entity.
#[inline]
fn enqueue(queue: &mut RunQueue<Task>, mut task: Task, kind: Enqueue, now: Nanos) {
    let owned = task.owned_mut();
    let slot = queue.slot(&owned.group.core);
    let entity = owned.entity;
    queue.enqueue_in(slot, entity, task, kind, now);
}

/// Locks the own run queue; poison cannot be seen (rule 6).
fn lock(me: &VcpuShared) -> MutexGuard<'_, RunQueue<Task>> {
    me.queue.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// Identifies the calling thread for as long as it lives.
fn thread_mark() -> usize {
    thread_local! {
        static MARK: u8 = const { 0 };
    }
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

/// Whether a regular virtual CPU is stuck.
fn needs_stand_in(shared: &Shared, now: Nanos) -> bool {
    (0..shared.regular).any(|vcpu| shared.is_stuck(vcpu, now))
}

/// Starts a stand-in virtual CPU, or wakes one that sleeps; at most one more at a time, at most as many as there are regular
/// ones. Called when every regular virtual CPU is stuck, and by one that is about to block in place.
pub(crate) fn stand_in(shared: &Arc<Shared>) {
    if shared.phase() != OPEN {
        return;
    }
    let now = shared.now();
    for index in shared.regular..shared.vcpus.len() {
        let vcpu = &shared.vcpus[index];
        let started = vcpu
            .online
            .compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
        if started {
            vcpu.inbox.reopen();
            shared.future_began();
            shared
                .host
                .spawn(Box::pin(Vcpu::new(shared.clone(), index)));
            return;
        }
        if !shared.is_stuck(index, now) {
            // It runs, is about to, or sleeps: then it is enough to wake it.
            shared.wake_vcpu(index);
            return;
        }
    }
}
