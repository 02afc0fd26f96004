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
//!    other worker can steal from; our own wake-up goes to the stealable queue and notifies another worker. (Refills at the beginning of
//!    a turn did not: who was woken by one waited behind the poll that came next, beside a worker that slept.)
//! 4. The tokio cooperation budget of each task's poll is its own: a budget guard around the inner poll restores the turn's.
//! 5. Wall time is charged by time-stamp counter; a poll longer than [`bill::SUSPICIOUS_POLL`] is compared with the thread's CPU clock,
//!    and what the host stole is not billed. Shorter thefts are bounded by that constant a poll.
//! 6. A panic of user code is caught by the task module; a panic of the scheduler itself leaves queues in an unknown state and
//!    aborts the process.
//! 7. The own queue's lock is kept during a poll when nothing waits in the queue: a thief finds nothing in an empty queue either
//!    way, and a conversation of two tasks saves the lock of every switch. With anything waiting it is released before the poll, and
//!    so it is by a stand-in, whose poll may hand the virtual CPU over (`successor`).
//! 8. *No more compute than there are processors for, but those who are owed it*: the spare (see `watch`) is one thread more than there
//!    are processors for, and while it polls, a regular virtual CPU that returns is. Whoever finds as many others computing polls
//!    only tasks of groups that owe nothing (`crowd`); else it *stands back*: it takes what waits behind others, and if that owes too,
//!    sleeps with what it has until somebody takes that, something comes, or the watch's next look, a tick later. (A group of a
//!    tenth of the weight had a third of two processors beside two tasks with polls of 50 ms: it always had the third thread.)
//!
//! # Sleeping
//! `park` has the protocol. The sources of work that are looked at again after announcing sleep: the own inbox, the inboxes of others
//! that are in a poll (see `shared::hand_in` for what is offered during one), and the phase. (The own run queue is empty then and only its
//! owner fills it; surplus in the queues of others is offered by them when they return to the host, through the idle mask.)
//!
//! # Being looked after
//! A virtual CPU can be kept from its tasks: by a long poll, by one that blocks, or by a host that does not poll it. So it leaves
//! word of its turns (`VcpuShared::turns`, `polling_since`, `thread`), and the watch sees to its work (`watch`).

mod aside;
mod bill;
mod borne;
mod completion;
mod dispatch;
mod guest;
mod limits;
mod migrate;
mod release;
mod returned;
mod robbed;
mod successor;
mod switch;
mod turn;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll};

use quotient_core::balance::Reason;
use quotient_core::{Detached, Gates, Nanos};
use quotient_pause::Regions;

use self::aside::{Aside, is_filling};
use self::bill::{Reference, thread_mark};
use self::release::Rest;
use self::robbed::Robbed;
use self::switch::{Previous, admit_to_poll, yield_to_next};
use crate::gates::{self, RunQueue, RuntimeGates};
use crate::group::GroupShared;
use crate::inbox::Arrival;
use crate::local::{self, Entered, PollNotes};
use crate::preempt::{Brought, Carrier};
use crate::queue_lock::QueueGuard;
use crate::shared::{CLOSED, Shared, VcpuShared};
use crate::stats::GroupCpu;
use crate::surplus::Vain;
use crate::task::Vacancy;
use crate::task_context::Task;

pub(crate) use self::borne::proxy;
pub(crate) use self::limits::{Payer, look_at_refill};
pub(crate) use self::migrate::stand_in;
pub(crate) use self::successor::{Bearing, HandedOver, hand_over};

/// A poll longer than this ends the turn. Unit: nanoseconds. Default 50 us: below it, a return to the host (about 0.5 us) would cost
/// more than 1 %; above it, waiting I/O would add up behind hogs (measured in a prototype: 1.6k against 6.5k requests a second).
const STALE_AFTER: Nanos = Nanos(50_000);
/// Length of a turn of short polls. Unit: nanoseconds. Default 200 us: a return makes tokio's worker search, which wakes another
/// worker by a system call (some 10 us of processor time on two workers); tokio itself looks at its I/O once in 61 polls.
const TURN_BUDGET: Nanos = Nanos(200_000);
/// Period of periodic balancing. Unit: nanoseconds. Default 500 us, the core's pull threshold.
const BALANCE_INTERVAL: Nanos = Nanos(500_000);
/// A gap between two turns in which the thread may have waited. Unit: nanoseconds. Default 20 us: to be woken takes a thread longer.
const WAITING_GAP: Nanos = Nanos(20_000);
/// A gap between two turns that says: the host has busy tasks of its own. Unit: nanoseconds.
const BUSY_HOST_GAP: Nanos = Nanos(500_000);
/// Turns for which a virtual CPU queues with the host's busy tasks before it tries the driver turn again. Unit: turns.
const QUEUE_TURNS: u32 = 8;
/// After this many short polls in a row a virtual CPU no longer expects long ones. Unit: polls.
const SHORT_POLLS: u32 = 64;

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
    /// Another thread goes on with it (see `preempt` and `successor`).
    Lost,
}

/// What a turn has of its thread.
struct Here<'a, 'b> {
    entered: &'a Entered,
    /// Where polls may be taken from it.
    regions: Option<&'a mut Regions<'b>>,
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
    /// Until when shorter polls are compared with it, too.
    close_until: Nanos,
    last_balance: Nanos,
    left_at: Nanos,
    /// Where its last turn ended, if that was with a gate let through: the thread, and that thread's [`local::gated`] then.
    passed: Option<(usize, u64)>,
    /// It has let a gate through in its last turn, and has not let the host's queue go first since.
    owes_way: bool,
    /// Its last turn has only refilled and woken somebody.
    gave_way: bool,
    /// When it last went to sleep, until it wakes.
    slept_at: Option<Nanos>,
    queue_turns: u32,
    /// Short polls since the last long one.
    short_polls: u32,
    /// The host's live tasks at the last look, to see what left the groups through `tokio::spawn`.
    alive: usize,
    /// Tasks that waited at the last switch.
    waiting: usize,
    /// Of the last poll, until its charge; none but where they say that something was noted.
    notes: PollNotes,
    /// Who pays for the poll under way, if that is in another group's place; until its bill.
    payer: Option<Payer>,
    /// The last poll's task defers throttles, or no longer does; until its charge.
    deferring: Option<bool>,
    /// Its scheduler preempts polls.
    preempting: bool,
    /// Its thread has taken its seat, see `preempt`; and what the slot looks like since, while it is empty.
    seated: bool,
    vacancy: Option<Vacancy>,
    /// The bearer of the poll that this thread takes over from.
    takes_over: Option<Arc<Carrier>>,
    /// Another thread goes on with it.
    lost: bool,
    /// That is so because its poll blocks in place: the future counts until the poll has ended.
    handed_over: bool,
    /// Tasks that are not proxies and wait here, about: what came less what was polled and did not want to go on.
    short_tasks: usize,
    /// What the thread that reads its sockets has handed in.
    brought: Brought,
    rest: Rest,
    robbed: Robbed,
    /// What it has looked through in vain for tasks that have another place, in the search under way.
    searched_in_vain: Nanos,
    /// For how long bearers had nothing of their turns while others waited for theirs.
    starved_for: Nanos,
    vain: Vain,
}

impl Vcpu {
    pub(crate) fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self {
            preempting: shared.preempt.is_some(),
            shared,
            index,
            arrivals: Vec::new(),
            detached: Vec::new(),
            figures: None,
            reference: None,
            close_until: Nanos::ZERO,
            last_balance: Nanos::ZERO,
            left_at: Nanos::ZERO,
            passed: None,
            owes_way: false,
            gave_way: false,
            slept_at: None,
            queue_turns: 0,
            short_polls: SHORT_POLLS,
            alive: 0,
            waiting: 0,
            notes: PollNotes::default(),
            payer: None,
            deferring: None,
            seated: false,
            vacancy: None,
            takes_over: None,
            lost: false,
            handed_over: false,
            short_tasks: 0,
            brought: Brought::default(),
            rest: Rest::default(),
            robbed: Robbed::default(),
            searched_in_vain: Nanos::ZERO,
            starved_for: Nanos::ZERO,
            vain: Vain::default(),
        }
    }

    /// Whether its scheduler preempts polls.
    #[inline(always)]
    fn is_preempting(&self) -> bool {
        gates::preempts() && self.preempting
    }

    /// What the last poll has left in the slot.
    #[inline(always)]
    fn take_next<const PREEMPTS: bool>(&self, me: &VcpuShared) -> Option<(Task, u8)> {
        match self.vacancy {
            Some(vacancy) if PREEMPTS => me.next.vacate(vacancy),
            _ => me.next.take(),
        }
    }

    fn is_stand_in(&self) -> bool {
        self.index >= self.shared.regular
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        if self.handed_over {
            self.shared.future_gone();
        } else if !self.lost {
            // Of a virtual CPU that yielded to a host that has gone.
            let shared = self.shared.clone();
            self.stop_work(&shared);
            self.shared.future_ended(self.index);
        }
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
        me.park.begin();
        if this.is_preempting() && !this.seated {
            this.sit_down(&shared, me);
        }
        let turn = me.turns.load(Ordering::Relaxed);
        me.turns.store(turn.wrapping_add(1), Ordering::Relaxed);
        if me.absent.load(Ordering::Relaxed) != 0 {
            me.absent.store(0, Ordering::Relaxed);
        }
        if me.gated_at.load(Ordering::Relaxed) != 0 {
            me.gated_at.store(0, Ordering::Relaxed);
        }
        me.thread
            .store(crate::watch::thread_number(), Ordering::Relaxed);
        if turn == 0 {
            me.park.remember(context.waker());
        }
        shared.idle.remove_if_there(this.index);
        shared.tick.run();
        if let Some(preempting) = &shared.preempt {
            preempting.wake_watch();
        }
        let bomb = AbortOnUnwind;
        let leave = {
            let entered = local::enter(&shared, this.index, this.vacancy);
            if this.is_preempting() {
                // Without it, which is at the end of the host's runtime, the turn polls nothing.
                if shared.host_end.begin_poll() {
                    local::hold_pass(&shared);
                }
                // Of the thread, which is looked up once a turn.
                let leave = quotient_pause::with_regions(|regions| {
                    let entered = &entered;
                    this.turn::<true>(&shared, me, Here { entered, regions })
                });
                local::return_pass(&shared);
                leave
            } else {
                let (entered, regions) = (&entered, None);
                this.turn::<false>(&shared, me, Here { entered, regions })
            }
        };
        let poll = this.leave(&shared, me, leave, context);
        if !this.lost {
            me.turns.store(turn.wrapping_add(2), Ordering::Release);
        }
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
            Leave::Stop => {
                self.stop_work(shared);
                return Poll::Ready(());
            }
            Leave::Lost => return Poll::Ready(()),
            Leave::YieldAfterKick => context.waker().wake_by_ref(),
            Leave::Yield if self.queue_turns > 0 => {
                self.queue_turns -= 1;
                context.waker().wake_by_ref();
            }
            Leave::Yield => shared.host.defer(context),
            Leave::Sleep => {
                if let Some(preempting) = &shared.preempt {
                    preempting.forget_freed(self.index);
                    if self.brought.sleep(preempting, self.index) {
                        // Whatever has come meanwhile is handed in before the sleep.
                        let later = self.offer_processor(shared, shared.now());
                        self.slept_at = self.slept_at.map(|_| later);
                    }
                }
                shared.idle.add(self.index);
                me.park.prepare_sleep(context.waker());
                // Throttled tasks wait for a refill: the tick thread must know of it before nobody else looks.
                fence(Ordering::SeqCst);
                if let Some(due) = shared.tree.next_refill() {
                    shared.tick.look_by(due);
                }
                if me.stood_back.load(Ordering::Relaxed) {
                    // Nobody else would wake it.
                    shared.tick.run();
                }
                let refilled = shared.loads[self.index].has_unthrottles();
                let dying_at = me.dying_at.load(Ordering::Relaxed);
                let asked = me.is_to_release(|| shared.now())
                    || dying_at != 0 && self.rest.ends(dying_at, shared.now());
                let offered = || shared.has_offers(self.index, shared.now());
                if me.inbox.len() > 0 || refilled || asked || shared.may_end() || offered() {
                    me.park.cancel_sleep();
                    shared.idle.remove(self.index);
                    context.waker().wake_by_ref();
                }
            }
        }
        Poll::Pending
    }

    /// Dispatches tasks until there is a reason to return to the host. Compiled twice: of all that a switch and a poll ask, whether
    /// the scheduler preempts is decided once a turn.
    #[inline(never)]
    fn turn<const PREEMPTS: bool>(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        mut here: Here<'_, '_>,
    ) -> Leave {
        if std::mem::take(&mut self.owes_way) {
            // Woken before the poll that it let through, or before the yields that the host has deferred: choosing now would be
            // choosing from what is left. All that goes first, once.
            return Leave::Yield;
        }
        let started = shared.now();
        let mut now = started;
        self.notice_gap(now);
        self.refresh_reference(now);
        if RuntimeGates::bandwidth() && self.refill(shared, now) {
            return Leave::YieldAfterKick;
        }
        // Asked for while there was a limit, which may be lifted by now.
        now = self.release(shared, me, now);
        if me.dying_at.load(Ordering::Relaxed) != 0 || me.inbox.is_flooded() {
            now = self.do_unpaid_work(shared, me, now);
        }
        here.entered.set_reference(self.own_time());
        self.alive = shared.host.alive_tasks();
        let mut previous = Previous::Nothing;
        let mut returning = false;
        let mut held = None;
        let crowded = shared.is_crowded();
        // Once a turn is enough: a poll that becomes long ends its turn.
        let unusual = crowded || PREEMPTS && is_filling(shared);
        if !crowded && me.stood_back.load(Ordering::Relaxed) {
            me.stood_back.store(false, Ordering::Relaxed);
        }
        let mut looked = false;
        let mut polled_at = started;
        let mut has_polled = false;
        loop {
            if PREEMPTS && self.brought.is_active() {
                now = self.look_at_guest(shared, &previous, polled_at, now);
            }
            if me.inbox.len() > 0 {
                me.inbox.take_all(&mut self.arrivals);
                if PREEMPTS && let Some(preempting) = &shared.preempt {
                    self.brought.look(preempting, self.index);
                }
            }
            let next = self.take_next::<PREEMPTS>(me).map(Arrival::from_slot);
            let mut queue = held.take().unwrap_or_else(|| self.lock_noting(me));
            let picked = if next.is_none() && !returning && self.only_requeues(&previous) {
                let next = yield_to_next(shared, &mut queue, &mut previous, now);
                self.waiting = queue.nr_queued();
                next
            } else {
                self.switch::<PREEMPTS>(shared, &mut queue, previous, next, &mut returning, now)
            };
            gates::check(&queue);
            if PREEMPTS && RuntimeGates::bandwidth() {
                self.stop_throttled(shared, &queue);
            }
            if RuntimeGates::events() {
                shared.log.look_at_throttles(self.index, &queue, now);
            }
            let picked = match (picked, queue.take_pull()) {
                (Some(task), Some(request)) => {
                    self.pull_instead(shared, &mut queue, task, &request, now)
                }
                (picked, _) => picked,
            };
            let Some(task) = picked else {
                drop(queue);
                if !returning && self.pull(shared, Reason::Idle, now) {
                    previous = Previous::Nothing;
                    continue;
                }
                return self.end_turn(shared, has_polled, now);
            };
            let Some(mut task) = admit_to_poll(&mut queue, task, now) else {
                previous = Previous::Nothing;
                held = Some(queue);
                continue;
            };
            if unusual {
                match self.look_aside(shared, me, (queue, task), crowded, &mut looked, now) {
                    Aside::Poll(of, kept) => (queue, task) = (of, kept),
                    Aside::Choose(of) => {
                        previous = Previous::Nothing;
                        held = of;
                        continue;
                    }
                    Aside::Leave(leave) => return leave,
                }
            }
            // Rule 7: an empty queue has nothing to steal.
            held = (!PREEMPTS && is_empty(&queue) && !self.is_stand_in()).then_some(queue);
            polled_at = now;
            has_polled = true;
            if RuntimeGates::events() {
                shared.log.begin(self.index, &mut task, now);
            }
            (previous, now) = if PREEMPTS {
                self.dispatch_preempting(shared, me, &mut here, task, now)
            } else {
                self.dispatch(shared, me, here.entered, task, held.as_deref_mut(), now)
            };
            if matches!(previous, Previous::Lost) {
                return Leave::Lost;
            }
            if RuntimeGates::events() {
                shared.log.end(self.index, previous.state(), now);
            }
            let long = now.saturating_sub(polled_at) > STALE_AFTER;
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

    /// As [`lock`]. Where another thread has it the wait is noted.
    #[inline]
    fn lock_noting<'a>(&mut self, me: &'a VcpuShared) -> QueueGuard<'a> {
        if let Some(queue) = me.queue.try_lock() {
            return queue;
        }
        let queue = me.queue.lock();
        self.note_own_wait();
        queue
    }

    /// Runs refills that are due; whether the turn is over by that, since somebody was woken who would wait behind the next
    /// poll here (rule 3). Not twice in a row, so that refills that are always due stop nobody: then the bell is rung.
    #[inline]
    fn refill(&mut self, shared: &Shared, now: Nanos) -> bool {
        let woken = shared.refill(now).woken && !self.is_stand_in();
        if !woken {
            self.gave_way = false;
            return false;
        }
        if std::mem::replace(&mut self.gave_way, true) {
            shared.host.ring();
            return false;
        }
        self.left_at = now;
        true
    }

    /// A long gap since the last turn means that the host has busy tasks of its own: then queue with them for a while, because a
    /// deferred virtual CPU is polled only when the host's queue is empty (or after 61 of its ticks). What gated polls took here is no
    /// gap: they are the groups' own. In the queue the virtual CPU would come before the yields that they left with the host, and
    /// find the other groups' futures only, until each of them had one poll: weights would mean nothing.
    fn notice_gap(&mut self, now: Nanos) {
        let deferred = self.left_at != Nanos::ZERO && self.queue_turns == 0;
        let mut gap = now.saturating_sub(self.left_at);
        if self.left_at != Nanos::ZERO && gap > WAITING_GAP {
            self.note_own_wait();
        }
        if deferred && let Some((thread, before)) = self.passed.take() {
            gap = if thread == thread_mark() {
                gap.saturating_sub(Nanos(local::gated().wrapping_sub(before)))
            } else {
                // Taken over by a worker that had nothing else to do.
                Nanos::ZERO
            };
        }
        if deferred && gap > BUSY_HOST_GAP && gap.saturating_sub(self.stolen(now)) > BUSY_HOST_GAP {
            self.queue_turns = QUEUE_TURNS;
        }
        self.left_at = Nanos::ZERO;
    }

    /// Decides how to return to the host.
    fn end_turn(&mut self, shared: &Arc<Shared>, has_polled: bool, now: Nanos) -> Leave {
        let passed = std::mem::take(&mut self.notes.passed);
        self.owes_way = passed;
        if RuntimeGates::events() {
            shared.log.leave(self.index, now);
        }
        let alone = shared.regular == 1 && !self.is_stand_in() && !shared.is_crowded();
        if !alone && now.saturating_sub(self.last_balance) >= BALANCE_INTERVAL {
            self.last_balance = now;
            self.pull(shared, Reason::Periodic, now);
        }
        if shared.may_end() || shared.phase() == CLOSED {
            return Leave::Stop;
        }
        if self.is_stand_in() && self.index - shared.regular >= shared.stand_ins_wanted(now) {
            self.retire(shared);
            return Leave::Stop;
        }
        let asked = &shared.vcpus[self.index].surplus;
        if has_polled {
            self.vain.polled(asked);
        } else if self.waiting == 0 && asked.is_open() && shared.waits_elsewhere(self.index) {
            self.vain.looked(asked, shared.regular, now);
        }
        // Exact: only this virtual CPU adds to its queue, and a thief that took something meanwhile costs one turn.
        if self.waiting == 0 {
            self.slept_at = Some(now);
            return Leave::Sleep;
        }
        if self.hands_over_to_faster(shared, now) {
            self.left_at = now;
            return Leave::YieldAfterKick;
        }
        self.left_at = now;
        self.passed = passed.then(|| (thread_mark(), local::gated()));
        // What was let through takes this worker: then all that waits here is surplus.
        let surplus = self.waiting > usize::from(!passed);
        if surplus && !shared.is_full(self.index, now) && shared.offer_surplus(self.index, now) {
            return Leave::YieldAfterKick;
        }
        Leave::Yield
    }
}

/// Whether others have no reason to want the queue: nothing waits in it, for its turn or for budget.
#[inline]
fn is_empty(queue: &RunQueue<Task>) -> bool {
    queue.nr_queued() == 0 && !(RuntimeGates::bandwidth() && queue.nr_throttled() > 0)
}
