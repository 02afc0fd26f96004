//! The way back of a poll that was taken from its carrier: what its bearer does at the poll's end, and what becomes of the proxy then, or of one
//! that is picked and needs no turn. The protocol stands in the header of `preempt`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::{Enqueue, Gates, Nanos, TaskEntity};

use super::Vcpu;
use super::bill::{absence, own_absence};
use super::completion::complete_as_bearer;
use super::dispatch::{Began, poll_apart};
use super::limits::{lender_here, takes_another_seat};
use super::switch::{Previous, enqueue, note_late_wake, settle};
use crate::cpu_clock::OwnTime;
use crate::gates::{RunQueue, RuntimeGates};
use crate::group::GroupShared;
use crate::local::Entered;
use crate::preempt::{Carrier, Outcome, Preempting};
use crate::shared::{OPEN, Shared, VcpuShared};
use crate::task::{Parked, Polled};
use crate::task_context::{Owned, Task, TaskContext};

/// A bearer keeps its task for another poll if the last one took this long. Unit: nanoseconds.
const LONG_POLL: Nanos = Nanos(500_000);

/// A bearer's next poll of its task.
fn poll_as_bearer(task: Task) -> Polled<TaskContext> {
    quotient_pause::region(|| poll_apart(task)).0
}

/// The calling thread has lost its virtual CPU and is left with a poll that is over by now: books it, goes on with the task as long
/// as it is the kind that needs a thread of its own, and posts what came of it.
pub(super) fn bear(
    shared: &Arc<Shared>,
    preempting: &Preempting,
    entered: &Entered,
    mut polled: Polled<TaskContext>,
    mut began: Began,
    mut reference: OwnTime,
) {
    let Some(carrier) = crate::preempt::current() else {
        debug_assert!(false, "a thread without a carrier has lost a poll");
        return;
    };
    let mut outcome = loop {
        let now = shared.now();
        let wall = now.saturating_sub(began.started);
        let notes = entered.end_task().unwrap_or_default();
        let deferral = entered.take_deferral();
        let follow = |owned: &mut Owned| {
            if let Some(deferral) = deferral {
                owned.follow_deferral(deferral);
            }
        };
        let at = OwnTime {
            wall: now,
            cpu: carrier.cpu_time().unwrap_or_default(),
        };
        let open = wall.saturating_sub(notes.excluded);
        let absent = own_absence(absence(reference, at), notes.absent, open);
        let billed = open.saturating_sub(absent);
        reference = at;
        if !matches!(polled, Polled::Done)
            && let Some(group) = carrier.group()
        {
            group.cpus.record_beside(wall, began.delay, began.location);
        }
        match polled {
            Polled::Pending(mut parking) => {
                follow(parking.owned_mut());
                parking.context().record_poll(billed, wall, began.delay);
                break Outcome::Pending(parking);
            }
            Polled::Finished(finishing) => {
                finishing.context().record_poll(billed, wall, began.delay);
                complete_as_bearer(entered, finishing);
                break Outcome::Done;
            }
            Polled::Done => break Outcome::Done,
            Polled::Again(mut task) => {
                follow(task.owned_mut());
                task.context().record_poll(billed, wall, began.delay);
                let moved = task.context().marks.is_moved(Ordering::Relaxed);
                let held = task.owned_mut().group.is_held();
                let deferring = task.owned_mut().deferral().is_some();
                // As `host_end::preempted` has it, no poll begins then.
                let ending = shared.host_end.is_ending();
                if wall < LONG_POLL || moved || held || deferring || ending {
                    break Outcome::Again(task);
                }
                // Killed where it stands its proxy is away, and nobody would let it run: the task ends with what is posted.
                if !carrier.wait_until_allowed(&task.owned_mut().group) {
                    break Outcome::Again(task);
                }
                let started = shared.now();
                reference.wall = reference.wall.saturating_add(started.saturating_sub(now));
                began = Began {
                    started,
                    delay: Nanos::ZERO,
                    location: began.location,
                };
                entered.begin_task(shared, &mut task);
                polled = poll_as_bearer(task);
            }
        }
    };
    preempting.one_less();
    let left = match &mut outcome {
        Outcome::Again(task) => task.owned_mut().deferral(),
        Outcome::Pending(parking) => parking.owned_mut().deferral(),
        Outcome::Done => None,
    };
    if let Some(deferral) = left {
        carrier.holds().begin(deferral);
    }
    let (chosen_by, away) = carrier.finish(&preempting.log, outcome);
    std::sync::atomic::fence(Ordering::SeqCst);
    preempting.end_nap(chosen_by);
    if let Some(proxy) = away {
        shared.submit_remote(proxy, Enqueue::Wake);
    }
}

impl Vcpu {
    /// A proxy was picked whose bearer is to have no turn: what came of it, if it has ended, and the time. Else its proxy is to be put away.
    pub(super) fn settle_without_turn(
        &mut self,
        shared: &Arc<Shared>,
        me: &VcpuShared,
        preempting: &Preempting,
        (bearer, group): (&Arc<Carrier>, &Arc<GroupShared>),
        started: Nanos,
    ) -> Option<(Option<Outcome>, Nanos)> {
        if bearer.is_finished()
            && let Some(outcome) = bearer.take_outcome()
        {
            // It comes to pay. Nobody is stopped for that.
            let now = shared.now();
            self.charge_turn(shared, me, (bearer, None), started, now);
            preempting.dismiss(self.index, bearer, false);
            return Some((Some(outcome), now));
        }
        let is_doomed = bearer.is_killed_in(group) && shared.phase() == OPEN;
        let is_away = if is_doomed && !bearer.is_finished() {
            // Killed in the middle of its poll: it competes no more, and is looked at when it has used time all the same.
            preempting.stop_anywhere(bearer);
            bearer.stands_killed();
            true
        } else {
            preempting.stops_unpaid(shared, bearer)
                || bearer.only_pays(shared)
                || bearer.begins_away(shared, group)
                || self.finds_asleep(preempting, bearer, started)
        };
        is_away.then(|| {
            let now = shared.now();
            self.charge_turn(shared, me, (bearer, None), started, now);
            (None, now)
        })
    }

    /// Whether it has slept since before its turn, which would be one for nobody.
    fn finds_asleep(&self, preempting: &Preempting, bearer: &Arc<Carrier>, now: Nanos) -> bool {
        let sleeps = bearer.may_be_asleep(now) && bearer.is_stuck_in_its_turn();
        if sleeps {
            preempting.counters.blocked.fetch_add(1, Ordering::Relaxed);
            preempting.dismiss(self.index, bearer, false);
        }
        sleeps
    }
}

/// Puts a proxy back, or what it stood for.
#[cold]
pub(super) fn put_back_proxy(queue: &mut RunQueue<Task>, previous: Previous, now: Nanos) {
    match previous {
        Previous::Interrupted(mut proxy) => {
            proxy.owned_mut().since = now;
            if RuntimeGates::bandwidth() && takes_another_seat(queue, proxy.owned_mut()) {
                changes_place(queue, proxy, now);
                return;
            }
            // The next choice of its group would be another one otherwise, half of the time: a signal and two hand-overs.
            queue.put_prev_interrupted(proxy, now);
        }
        Previous::Away(mut proxy) => {
            let Some(entity) = queue.put_prev_sleep(now) else {
                return;
            };
            proxy.owned_mut().entity = entity;
            let bearer = proxy.owned_mut().bearer().cloned();
            let shared = proxy.context().shared.clone();
            let back = match (bearer, &shared.preempt) {
                (Some(bearer), Some(preempting)) => {
                    // Once the scheduler closes only what blocks is put away, and that may run.
                    let killed =
                        shared.phase() == OPEN && bearer.is_killed_in(&proxy.owned_mut().group);
                    let unpaid = bearer.is_unpaid();
                    let at = OwnTime {
                        wall: now,
                        cpu: bearer.cpu_time().unwrap_or_default(),
                    };
                    let back = bearer.put_away(&preempting.log, proxy, killed || unpaid, at);
                    if back.is_none() {
                        preempting.has_gone_away(&shared, &bearer);
                        if unpaid {
                            preempting.waits_for_payer(&shared);
                        }
                    }
                    back
                }
                _ => Some(proxy),
            };
            if let Some(mut proxy) = back {
                proxy.owned_mut().since = now;
                enqueue(queue, proxy, Enqueue::Wake, now);
            }
        }
        Previous::Returned(mut proxy, outcome) => {
            let entity = queue.put_prev_exit(now).map(|mut entity| {
                entity.set_slice(None);
                entity
            });
            count_out(&mut proxy);
            proxy.cancel();
            match outcome {
                Outcome::Done => {}
                Outcome::Again(mut task) => {
                    let owned = task.owned_mut();
                    go_on_from(owned, entity);
                    owned.since = now;
                    enqueue(queue, task, Enqueue::Migrate, now);
                }
                Outcome::Pending(mut parking) => {
                    go_on_from(parking.owned_mut(), entity);
                    if let Parked::Woken(mut task) = parking.park() {
                        note_late_wake(&mut task, now);
                        task.owned_mut().since = now;
                        enqueue(queue, task, Enqueue::Wake, now);
                    }
                }
            }
        }
        _ => {}
    }
}

/// A proxy goes to the place of a lender, or back to its own: whose limit stops its bearer is another's from now on.
fn changes_place(queue: &mut RunQueue<Task>, mut proxy: Task, now: Nanos) {
    let owned = proxy.owned_mut();
    settle(queue, owned, now);
    let bearer = owned.bearer().cloned();
    let known = owned.throttling.as_ref();
    let lender = known.and_then(|known| lender_here(queue, known, &owned.group));
    let place = lender.unwrap_or_else(|| owned.group.clone());
    let shared = proxy.context().shared.clone();
    if let (Some(bearer), Some(preempting)) = (bearer, &shared.preempt) {
        preempting.is_in_place_of(queue.cpu().0 as usize, &bearer, &place);
    }
    enqueue(queue, proxy, Enqueue::Migrate, now);
}

/// A task goes on with what its proxy has paid; whether it defers throttles has changed in its poll, perhaps.
fn go_on_from(owned: &mut Owned, entity: Option<TaskEntity>) {
    owned.entity = entity.unwrap_or(owned.entity);
    let deferring = owned.deferral().is_some();
    owned.entity.set_deferring(deferring);
}

/// R1 and R2 of `preempt::parts`: the group of the proxy bears one poll less. (Threads of others do not count.)
fn count_out(proxy: &mut Task) {
    let owned = proxy.owned_mut();
    if !owned.bearer().is_some_and(|bearer| bearer.bears_a_task()) {
        return;
    }
    owned.group.bears_one_less();
    let shared = &proxy.context().shared;
    if let Some(preempting) = &shared.preempt {
        preempting.makes_room(shared);
    }
}
