//! Polls of a preempting scheduler: regions that can be lost to another thread, and the proxies that stand for those that were (their turns are
//! `turn`, their way back is `returned`). The protocol stands in the header of `preempt`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::{Enqueue, Gates, Nanos, Slice, TaskEntity};

use super::bill::before_parting;
use super::completion::Ran;
use super::dispatch::{Began, nothing_is_deferred, poll_apart, poll_in_budget};
use super::limits::{Payer, look_at_refill, payer_of};
use super::returned::bear;
use super::switch::Previous;
use super::turn::TURN;
use super::{Here, Vcpu};
use crate::gates::{RunQueue, RuntimeGates};
use crate::group::{self, GroupShared};
use crate::inbox::Arrival;
use crate::local::Entered;
use crate::preempt::{Carrier, Preempting};
use crate::shared::{OPEN, Shared, VcpuShared};
use crate::task::{self, Polled};
use crate::task_context::{Owned, Task, TaskContext, Throttling};

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
        let part = |payer: &Payer| payer.part_of(billed, started, parting.at.wall);
        let paid = payer.as_ref().map_or(Nanos::ZERO, part);
        let taken = {
            let mut queue = me.queue.lock();
            let here = billed.saturating_sub(paid);
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
        // Where it was until now; the tree's lock may be held by a thread that has no processor.
        let place = group::known(shared, &core).unwrap_or_else(|| {
            let _shape = shared.lock_shape();
            group::lookup(shared, &core)
        });
        let group = match payer {
            // A task in another group's place, which was meant for destructors that end soon, or until it gives back what others wait for. It is its own group's that
            // is to be stopped.
            Some(payer) => {
                payer.has_used(billed.saturating_sub(paid));
                payer.pays(paid, self.index, now);
                payer.group().clone()
            }
            None => place.clone(),
        };
        bearer.is_of(&group);
        charge_others(bearer);
        look_at_refill(shared);
        bearer.show_as(task);
        preempting.settle_in(self.index, bearer, &place);
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
        if !is_plain {
            self.payer = self.note_payer(shared, &mut task, started);
        }
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

    /// Who pays for the poll of a task in another group's place, noted for who takes it over, until the bill.
    #[cold]
    fn note_payer(&self, shared: &Shared, task: &mut Task, now: Nanos) -> Option<Payer> {
        let payer = payer_of(task, now)?;
        if let Some(preempting) = &shared.preempt {
            preempting.seats[self.index].is_paid_by(&payer);
        }
        Some(payer)
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
pub(super) fn charge_others(bearer: &Carrier) {
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
