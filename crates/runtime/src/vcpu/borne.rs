//! Polls of a preempting scheduler: regions that can be lost to another thread, and the turns of proxies that stand for those that were (their
//! way back is `returned`). The protocol stands in the header of `preempt`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quotient_core::{Enqueue, Gates, Nanos, Slice, TaskEntity};

use super::bill::before_parting;
use super::completion::Ran;
use super::dispatch::{Began, nothing_is_deferred, poll_apart, poll_in_budget};
use super::limits::{look_at_refill, payer_of_the_dead};
use super::returned::bear;
use super::switch::Previous;
use super::{Here, Vcpu, lock};
use crate::gates::{RunQueue, RuntimeGates};
use crate::group::{self, GroupShared};
use crate::inbox::Arrival;
use crate::local::{Entered, PollNotes};
use crate::preempt::{Carrier, Charge, Preempting, Seat};
use crate::shared::{CLOSED, OPEN, Shared, VcpuShared};
use crate::task::{self, Polled};
use crate::task_context::{Owned, Task, TaskContext, Throttling};

/// Turn of a borne poll. Unit: time. 4 ms: a change of bearers costs a signal and two hand-overs, some 30 us.
const TURN: Duration = Duration::from_millis(4);
/// The same in a limited group, whose budget is looked at after it. Unit: time.
const LIMITED_TURN: Duration = Duration::from_millis(1);
/// The same while other tasks wait in the run queue and policy has let the borne one go first, the rest of its request: nothing
/// will end the nap for them. Unit: time. The base slice.
const SHARED_TURN: Duration = Duration::from_micros(250);
/// How long the first turn of a thread of others, and of a poll that has slept, lasts before the carrier looks whether the thread sleeps in the kernel, in a file or a socket perhaps.
/// Unit: time. A timer and a system call of 3 us, for some of them in a turn: a thread that computes for one is not looked at again until it has slept. (Found by the watch's second look,
/// a function that sleeps kept its virtual CPU for 1 to 2 ms: 400 of 20 ms at a time took 270 ms, and 1,000 of 2 ms as long.)
const PEEK: Duration = Duration::from_micros(100);
/// A bearer that used less than this part of a turn may be blocked, and is asked for; so often where turns are long. Where they are short, a bearer of
/// low priority has little of each.
const IDLE_PART: u64 = 2;
/// The same where turns are short. If it is not blocked, it has had no processor.
const STARVED_PART: u64 = 16;
/// A turn after which one is asked for that used little of it. Unit: nanoseconds. A [`LIMITED_TURN`].
const LONG_TURN: Nanos = Nanos::from_millis(1);
/// Who used this much in a turn, and more than [`IDLE_PART`] of it, is not looked at early in the next. Unit: nanoseconds. As others leave of a
/// [`SHARED_TURN`] at least: each look is one more change of threads, on the processor where it computes.
const COMPUTES_AFTER: Nanos = Nanos::from_micros(150);

impl Vcpu {
    /// As [`Vcpu::new`], for a virtual CPU that `bearer` has lost.
    pub(crate) fn taking_over(shared: Arc<Shared>, index: usize, bearer: Arc<Carrier>) -> Self {
        let mut this = Self::new(shared, index);
        this.takes_over = Some(bearer);
        this
    }

    /// The first poll of this thread.
    #[cold]
    pub(super) fn sit_down(&mut self, shared: &Arc<Shared>, me: &VcpuShared) {
        self.seated = true;
        let Some(preempting) = &shared.preempt else {
            return;
        };
        // Before anything that may wait for a lock: who has a seat is rescued.
        preempting.sit(self.index);
        // From here on whoever had the virtual CPU leaves nothing in its slot any more.
        let (vacancy, left) = me.next.take_over();
        self.vacancy = Some(vacancy);
        if let Some(left) = left {
            let mut arrival = Arrival::from_slot(left);
            if arrival.kind == Enqueue::WakeBuddy {
                arrival.kind = Enqueue::Wake;
            }
            self.arrivals.push(arrival);
        }
        self.brought.sit(preempting, self.index);
        if let Some(bearer) = self.takes_over.take() {
            self.take_over(shared, preempting, me, &bearer);
        }
    }

    /// Puts a proxy in the place of the poll that `bearer` is left with.
    fn take_over(
        &mut self,
        shared: &Arc<Shared>,
        preempting: &Preempting,
        me: &VcpuShared,
        bearer: &Arc<Carrier>,
    ) {
        let began = me.polling_since.load(Ordering::Relaxed);
        let task = me.polling.load(Ordering::Relaxed);
        // First there and then no longer here: who looks here first finds it (`unfinished`).
        let started = Nanos(began.saturating_sub(1));
        bearer.bears(task, started);
        me.polling_since.store(0, Ordering::Release);
        me.blocked.store(false, Ordering::Relaxed);
        me.resched.store(false, Ordering::Relaxed);
        // The turn that was cut off is over.
        let turn = me.turns.load(Ordering::Relaxed);
        me.turns.store(turn.next_multiple_of(2), Ordering::Release);
        let now = shared.now();
        let seat = &preempting.seats[self.index];
        let parting = bearer.parting();
        let (billed, absent) = before_parting(seat, started, &parting);
        let payer = seat.take_payer();
        let taken = {
            let mut queue = lock(me);
            let here = if payer.is_some() { Nanos::ZERO } else { billed };
            queue.charge_except(now, now.saturating_sub(started).saturating_sub(here));
            if parting.was_asleep {
                // It held the virtual CPU (`Vcpu::slept`).
                queue.charge_turn(absent);
            }
            let core = queue.current_group().cloned();
            core.zip(queue.put_prev_sleep(now))
        };
        // The old carrier was in a poll, so its task is current.
        let Some((core, entity)) = taken else {
            debug_assert!(false, "a poll was detached, and no task is current");
            return;
        };
        let group = match payer {
            // A dead task in another group's place, which was meant for destructors that end soon. Its own group's limit holds for the rest.
            Some(payer) => {
                payer.pay_for_the_dead(billed, self.index, now);
                payer
            }
            // The tree's lock may be held by a thread that has no processor.
            None => group::known(shared, &core).unwrap_or_else(|| {
                let _shape = shared.lock_shape();
                group::lookup(shared, &core)
            }),
        };
        bearer.is_of(&group);
        charge_others(bearer);
        look_at_refill(shared);
        bearer.show_as(task);
        preempting.settle_in(self.index, bearer, &group);
        if absent != Nanos::ZERO {
            group.cpus.on(self.index).record_steal(absent);
        }
        if RuntimeGates::events() {
            shared.log.polled(self.index, billed, now);
            shared.log.detached(self.index, bearer.shown(), now);
        }
        group.bears_one_more();
        let context = TaskContext::new(
            shared.clone(),
            std::panic::Location::caller(),
            u16::try_from(self.index).unwrap_or(0),
        );
        shared.task_began();
        let proxy = proxy(context, entity, &group, bearer, now);
        self.arrivals.push(Arrival {
            task: proxy,
            kind: Enqueue::Migrate,
        });
    }

    /// After a pick: whoever is chosen stops if limits keep its group back.
    #[inline]
    pub(super) fn stop_throttled(&self, shared: &Shared, queue: &RunQueue<Task>) {
        if let Some(preempting) = &shared.preempt {
            preempting.stop_throttled(self.index, |group| queue.is_throttled(&group.core));
        }
    }

    /// [`Vcpu::dispatch`] of a preempting scheduler.
    #[inline(always)]
    pub(super) fn dispatch_preempting(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        here: &mut Here<'_, '_>,
        mut task: Task,
        started: Nanos,
    ) -> (Previous, Nanos) {
        let is_plain = task.owned_mut().throttling.is_none();
        if !is_plain && task.owned_mut().bearer().is_some() {
            return self.give_turn(shared, me, task, started);
        }
        let entered = here.entered;
        let delay = self.begin(shared, entered, &mut task, started, is_plain);
        let location = task.context().location;
        let payer = if is_plain {
            None
        } else {
            self.note_payer(shared, &mut task)
        };
        me.polling.store(task.id().number(), Ordering::Relaxed);
        me.polling_since
            .store(started.as_nanos().wrapping_add(1), Ordering::Relaxed);
        // One that was brought counts, too, where nothing was handed in lately: it may go on for long without.
        let is_brought = task.context().marks.is_brought();
        if (is_brought || self.brought.is_active())
            && let Some(preempting) = &shared.preempt
        {
            self.brought
                .begin_poll(preempting, self.index, is_brought, started);
        }
        let began = Began {
            started,
            delay,
            location,
            payer,
        };
        let regions = here.regions.as_deref_mut();
        let Some(regions) = regions.filter(|_| task.owned_mut().group.is_preemptible()) else {
            // Whoever wants this thread finds no region.
            return self.dispatch_whole(shared, me, entered, task, began);
        };
        let region = regions.open();
        let polled = if shared.host_end.is_ending() {
            cancel_at_the_end(task)
        } else {
            poll_in_budget(task, nothing_is_deferred)
        };
        if region.end().is_detached() {
            self.lose(shared, entered, polled, began);
            return (Previous::Lost, started);
        }
        self.after_poll(shared, me, entered, polled, Ran::InRegion(regions), began)
    }

    /// The rest of [`Vcpu::dispatch_preempting`] for a poll that is not to be interrupted.
    #[cold]
    #[inline(never)]
    fn dispatch_whole(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        entered: &Entered,
        task: Task,
        began: Began,
    ) -> (Previous, Nanos) {
        let polled = if shared.host_end.is_ending() {
            cancel_at_the_end(task)
        } else {
            poll_apart(task)
        };
        self.after_poll(shared, me, entered, polled, Ran::Whole(None), began)
    }

    /// It has ended, and the virtual CPU is another thread's meanwhile: from here on nothing of that may be touched.
    #[cold]
    #[inline(never)]
    pub(super) fn lose(
        &mut self,
        shared: &Arc<Shared>,
        entered: &Entered,
        polled: Polled<TaskContext>,
        began: Began,
    ) {
        self.lost = true;
        entered.lose_vcpu();
        let reference = self.own_time().unwrap_or_default();
        if let Some(preempting) = &shared.preempt {
            bear(shared, preempting, entered, polled, began, reference);
        }
    }

    /// Who pays for the poll of a dead task in another group's place, noted for who takes it over, until the bill.
    #[cold]
    fn note_payer(&self, shared: &Shared, task: &mut Task) -> Option<Arc<GroupShared>> {
        let payer = payer_of_the_dead(task)?;
        if let Some(preempting) = &shared.preempt {
            preempting.seats[self.index].is_paid_by(&payer);
        }
        Some(payer)
    }

    /// The "poll" of a proxy: its bearer has the turn, and this thread sleeps.
    #[inline(never)]
    fn give_turn(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        mut proxy: Task,
        started: Nanos,
    ) -> (Previous, Nanos) {
        let owned = proxy.owned_mut();
        let (Some(bearer), Some(preempting)) = (owned.bearer().cloned(), &shared.preempt) else {
            debug_assert!(false, "no proxy");
            return (Previous::Again(proxy), started);
        };
        let bearer = &bearer;
        bearer.has_had_a_turn();
        owned.since = Nanos::ZERO;
        self.enter_group(&owned.group);
        let group = owned.group.clone();
        if let Some((outcome, now)) =
            self.settle_without_turn(shared, me, preempting, (bearer, &group), started)
        {
            let previous = match outcome {
                Some(outcome) => Previous::Returned(proxy, outcome),
                None => Previous::Away(proxy),
            };
            return (previous, now);
        }
        self.brought.rest(preempting, self.index);
        preempting.choose(self.index, bearer, &owned.group);
        let limited = owned.group.is_limited();
        let often = limited || bearer.has_limited_payer();
        self.short_tasks = self.short_tasks.min(self.waiting);
        let turn = if self.short_tasks > 0 {
            SHARED_TURN
        } else if often {
            LIMITED_TURN
        } else {
            TURN
        };
        let is_due = |at: u64| at != 0 && at <= started.as_nanos();
        let has_work = || {
            me.inbox.len() > 0
                || me.next.is_filled()
                || bearer.is_finished()
                || shared.may_end()
                || me.has_releases.load(Ordering::Relaxed)
                || is_due(me.dying_at.load(Ordering::Relaxed))
                || shared.loads[self.index].has_unthrottles()
                || shared.phase() == CLOSED
        };
        let seat = &preempting.seats[self.index];
        let before = bearer.cpu_time().unwrap_or_default();
        let nap = || nap_for(seat, bearer, turn, has_work);
        let sleeps = if limited && !bearer.bears_a_task() {
            // Its priority is not lowered, so who looks after the budget is not ahead of it by that.
            quotient_pause::promptly(nap)
        } else {
            nap()
        };
        let said = seat.take_blocked() || sleeps;
        // Before the charge: what the bearer posts later is charged with the outcome.
        let finished = bearer.is_finished();
        let after = bearer.cpu_time().unwrap_or(before);
        let (_, now) = self.charge_turn(shared, me, bearer, started);
        let wall = now.saturating_sub(started);
        if finished && let Some(outcome) = bearer.take_outcome() {
            preempting.dismiss(self.index, bearer, false);
            return (Previous::Returned(proxy, outcome), now);
        }
        let used = after.saturating_sub(before).as_nanos();
        let (is_long, is_shared) = (wall >= LONG_TURN, turn == SHARED_TURN);
        let starved = used < wall.as_nanos() / STARVED_PART;
        let idle = used < wall.as_nanos() / IDLE_PART && is_long || starved && is_shared;
        if used >= (wall.as_nanos() / IDLE_PART).max(COMPUTES_AFTER.as_nanos()) {
            bearer.computes(true);
        } else if is_long && idle {
            bearer.computes(false);
        }
        if idle || said {
            let asleep = bearer.handle.is_asleep();
            if asleep == Some(true) {
                preempting.counters.blocked.fetch_add(1, Ordering::Relaxed);
                bearer.computes(false);
                preempting.dismiss(self.index, bearer, false);
                return (Previous::Away(proxy), now);
            }
            if asleep == Some(false) && starved {
                preempting.bring_here(self.index, bearer);
            }
        }
        if often && preempting.stops_unpaid(shared, bearer) {
            return (Previous::Away(proxy), now);
        }
        if shared.loads[self.index].has_unthrottles() {
            // Also where no limit is left, so that no choice looks for that: it would end each turn to come at once.
            lock(me).unthrottle_pending(now);
        }
        (Previous::Interrupted(proxy), now)
    }

    /// The turn of a proxy that began at `started` is over. Returns what its bearer is charged, and the time.
    pub(super) fn charge_turn(
        &mut self,
        shared: &Shared,
        me: &VcpuShared,
        bearer: &Carrier,
        started: Nanos,
    ) -> (Charge, Nanos) {
        let now = shared.now();
        charge_others(bearer);
        let charge = bearer.take_charge();
        self.note_turn(me, charge, now.saturating_sub(started));
        if RuntimeGates::events() {
            shared.log.polled(self.index, charge.sum(), now);
        }
        (charge, now)
    }

    /// The turn of a proxy is over: its bearer used `charge`, on another thread, while this one slept for `wall`.
    fn note_turn(&mut self, me: &VcpuShared, charge: Charge, wall: Nanos) {
        self.notes = PollNotes {
            excluded: wall,
            extra: charge.own,
            absent: Nanos::ZERO,
            held: Nanos::ZERO,
            debt: charge.theirs,
            passed: false,
            leave: false,
            noted: true,
        };
        self.move_reference(wall);
        me.clock.show(charge.own);
        me.resched.store(false, Ordering::Relaxed);
    }
}

/// E4 of `host_end::preempted`.
#[cold]
#[inline(never)]
fn cancel_at_the_end(task: Task) -> Polled<TaskContext> {
    task.cancel();
    Polled::Done
}

/// An `in_group` in the middle of the poll that `bearer` bears pays for what it has used up to now, since it may not end.
fn charge_others(bearer: &Carrier) {
    if let Some(due) = bearer.take_charge_of_others() {
        due.charge();
    }
}

/// The token that stands for what `bearer` runs.
pub(crate) fn proxy(
    context: TaskContext,
    mut entity: TaskEntity,
    group: &Arc<GroupShared>,
    bearer: &Arc<Carrier>,
    now: Nanos,
) -> Task {
    entity.set_slice(Slice::new(Nanos(u64::try_from(TURN.as_nanos()).unwrap_or(0))).ok());
    let owned = Owned {
        entity,
        group: group.clone(),
        since: now,
        throttling: Some(Box::new(Throttling {
            bearer: Some(bearer.clone()),
            ..Throttling::default()
        })),
    };
    let (proxy, _, _) = task::spawn_as(
        task::Id::next(),
        task::trace::SpanId::NONE,
        std::future::pending::<()>(),
        context,
        owned,
    );
    proxy
}

/// Whether it is a proxy whose poll goes on to its end, although its group is frozen: unless it was asked to stop where it is, or has not begun; if
/// it has ended, its task was aborted or killed, or the scheduler ends, in any case.
pub(super) fn goes_on_though_held(task: &mut Task) -> bool {
    let owned = task.owned_mut();
    let Some(bearer) = owned.bearer().cloned() else {
        return false;
    };
    let group = owned.group.clone();
    let shared = &task.context().shared;
    if group.lets_go_on(&bearer) || shared.phase() != OPEN {
        return true;
    }
    let (true, Some(preempting)) = (bearer.is_unbegun(), &shared.preempt) else {
        return false;
    };
    // H1 and H2 of `preempt::frozen`: it may just begin.
    preempting.stop_anywhere(&bearer);
    group.lets_go_on(&bearer)
}

/// A proxy's group is frozen: its bearer stops.
pub(super) fn stop_frozen(task: &mut Task) {
    if let Some(bearer) = task.owned_mut().bearer().cloned()
        && let Some(preempting) = &task.context().shared.preempt
    {
        preempting.stop_anywhere(&bearer);
        bearer.stands_frozen();
    }
}

/// Sleeps for the turn of a bearer, or until there is work. Whether that was found asleep in the kernel early in it ([`PEEK`], and then ever later:
/// who computes for as long as it has is found soon after, by one look more for each doubling).
fn nap_for(seat: &Seat, bearer: &Carrier, turn: Duration, has_work: impl Fn() -> bool) -> bool {
    let (mut peek, mut left) = (PEEK, turn);
    while !bearer.is_known_to_compute() && left >= 2 * peek {
        seat.nap.sleep(peek, &has_work);
        if has_work() || seat.is_said_to_be_blocked() {
            return false;
        }
        if bearer.is_stuck_in_its_turn() {
            return true;
        }
        left -= peek;
        peek *= 2;
    }
    seat.nap.sleep(left, has_work);
    false
}
