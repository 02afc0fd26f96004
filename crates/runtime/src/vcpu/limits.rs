//! What limits have to do with a task that is queued or chosen: in whose place it waits, for how long it was throttled, and when the next refill is.

use std::sync::Arc;

use quotient_core::{Gates, Nanos};

use crate::bandwidth::Deferral;
use crate::gates::{RunQueue, RuntimeGates};
use crate::group::GroupShared;
use crate::preempt;
use crate::shared::Shared;
use crate::task_context::{Owned, Task, Throttling};

/// The task is about to be queued: in the place that another group lends it, if one does.
#[inline]
pub(super) fn take_seat(queue: &RunQueue<Task>, known: &mut Throttling, own: &Arc<GroupShared>) {
    known.dead = None;
    if known.bearer.is_some() || known.deferral.is_some() {
        known.seat = lender_here(queue, known, own);
        known.calm = None;
    } else if known.seat.take().is_some() {
        known.calm = None;
    }
}

/// The group that lends a task of `own` a place in this queue that is better than its own, if any does; if not, it is asked about when somebody comes who may.
pub(super) fn lender_here(
    queue: &RunQueue<Task>,
    known: &Throttling,
    own: &Arc<GroupShared>,
) -> Option<Arc<GroupShared>> {
    let is_throttled = |group: &GroupShared| queue.would_wait(&group.core);
    let cpu = queue.cpu().0;
    match (&known.bearer, &known.deferral) {
        (Some(bearer), _) => bearer.holds().seat_on(cpu, own, &is_throttled),
        (None, Some(deferral)) => deferral.seat_on(cpu, own, &is_throttled),
        (None, None) => None,
    }
}

/// An aborted task is about to be queued: its destructors do not wait for the budget of its group; see `group::shared`. If there is no place for it just now, it is looked
/// for again, since whoever has looked for it before has passed it. (Two virtual CPUs that took dead tasks out at once left some of them where they were, until their group's
/// debt was paid.)
#[cold]
pub(super) fn seat_the_dead(task: &mut Task, now: Nanos) {
    let owned = task.owned_mut();
    // (A proxy stands for a poll, which ends by itself and within its limit.)
    if !owned.queued_in().is_limited() || owned.bearer().is_some() {
        return;
    }
    if let Some((seat, dead)) = owned.group.seat_of_the_dead(now) {
        let known = owned.throttling.get_or_insert_default();
        known.seat = Some(seat);
        known.dead = Some(dead);
        known.calm = None;
    } else {
        let group = owned.group.clone();
        group.list_dying(&task.context().shared);
    }
}

/// Whether a task sits in another group's place for no reason that lasts: it is dead, and those before it have used up what the dead may; or the loan is over.
#[inline]
pub(super) fn has_outstayed(task: &mut Task, now: Nanos) -> bool {
    let owned = task.owned_mut();
    let seat = owned
        .throttling
        .as_ref()
        .and_then(|known| Some((known, known.seat.as_ref()?)));
    let Some((known, seat)) = seat else {
        return false;
    };
    let is_lent = known
        .holder()
        .is_some_and(|deferral| deferral.is_lent_by(seat));
    !is_lent && (!task.is_aborted() || task.owned_mut().group.dead_are_in_debt(now))
}

/// Who pays for a poll in another group's place, if that does not.
#[derive(Debug, Clone)]
pub(crate) enum Payer {
    /// An aborted task's own group.
    OfTheDead(Arc<GroupShared>),
    /// The own group of one that is lent the place, for what it does when the loan is over.
    OnLoan(Arc<GroupShared>, Arc<Deferral>),
}

impl Payer {
    /// What it pays of the `billed` time of a poll from `began` to `now`.
    pub(super) fn part_of(&self, billed: Nanos, began: Nanos, now: Nanos) -> Nanos {
        match self {
            Payer::OfTheDead(_) => billed,
            Payer::OnLoan(_, deferral) => deferral.own_part(began, now).min(billed),
        }
    }

    /// It pays for `time`, used on the virtual CPU `place`. O(depth).
    pub(super) fn pays(&self, time: Nanos, place: usize, now: Nanos) {
        match self {
            Payer::OfTheDead(group) => group.pay_for_the_dead(time, place, now),
            Payer::OnLoan(group, _) => {
                group.pay_elsewhere(time, place, now);
                preempt::is_used_up(group, time, now);
            }
        }
    }

    /// The lender has paid for `time`.
    pub(super) fn has_used(&self, time: Nanos) {
        if let Payer::OnLoan(_, deferral) = self {
            deferral.uses_loan(time);
        }
    }

    /// Whose limit holds for what comes after.
    pub(super) fn group(&self) -> &Arc<GroupShared> {
        let (Payer::OfTheDead(group) | Payer::OnLoan(group, _)) = self;
        group
    }
}

/// Who pays for the poll of a task, which begins at `now`.
#[inline]
pub(super) fn payer_of(task: &mut Task, now: Nanos) -> Option<Payer> {
    let owned = task.owned_mut();
    let known = owned.throttling.as_mut()?;
    known.dead = None;
    known.seat.as_ref()?;
    let deferral = known.deferral.clone();
    let group = owned.group.clone();
    if task.is_aborted() {
        return Some(Payer::OfTheDead(group));
    }
    let deferral = deferral?;
    deferral.begins_on_loan(now);
    Some(Payer::OnLoan(group, deferral))
}

/// A task of a limited group is queued: from here on its wait is compared with the time for which the group is throttled here.
/// Nothing is to be done if no group was throttled on this virtual CPU since the last time.
#[inline]
pub(super) fn mark_throttle(queue: &RunQueue<Task>, owned: &mut Owned, now: Nanos) {
    if RuntimeGates::bandwidth() && !is_calm(queue, owned) {
        mark_anew(queue, owned, now);
    }
}

/// Whether no group was throttled on this virtual CPU since the task's mark.
#[inline]
fn is_calm(queue: &RunQueue<Task>, owned: &Owned) -> bool {
    let calm = owned.throttling.as_ref().and_then(|known| known.calm);
    calm.is_some() && calm == queue.calm()
}

#[inline(never)]
fn mark_anew(queue: &RunQueue<Task>, owned: &mut Owned, now: Nanos) {
    let calm = queue.calm();
    if calm.is_some() || owned.queued_in().is_limited() {
        let mark = queue.throttled_clock(&owned.queued_in().core, now);
        owned.throttling.get_or_insert_default().mark = mark;
    }
    if let Some(known) = &mut owned.throttling {
        known.calm = calm;
    }
}

/// Whether the task is, or may be, queued in a group that lends it a place.
#[inline]
pub(super) fn changes_seat(owned: &Owned) -> bool {
    let own = &owned.group;
    owned.throttling.as_ref().is_some_and(|known| {
        known.seat.is_some() || known.holder().is_some_and(|deferral| deferral.is_lent(own))
    })
}

/// As [`changes_seat`], of one that is about to be put back where it was: if not, it waits there, and who lends it a place asks for it.
#[inline]
pub(super) fn takes_another_seat(queue: &RunQueue<Task>, owned: &Owned) -> bool {
    let known = owned.throttling.as_ref();
    known.is_some_and(|known| {
        known.seat.is_some() || lender_here(queue, known, &owned.group).is_some()
    })
}

/// The run queue has chosen, with limits in force: what that took from pools may have started timers, and the task may have waited
/// for a throttle's end.
#[inline(never)]
pub(super) fn note_choice(
    shared: &Shared,
    queue: &RunQueue<Task>,
    chosen: Option<&mut Task>,
    now: Nanos,
) {
    look_at_refill(shared);
    if let Some(task) = chosen
        && !is_calm(queue, task.owned_mut())
    {
        note_throttle(queue, task, now);
    }
}

/// A waiting task leaves the queue for another virtual CPU.
pub(super) fn note_left(queue: &RunQueue<Task>, task: &mut Task, now: Nanos) {
    if !is_calm(queue, task.owned_mut()) {
        note_throttle(queue, task, now);
    }
}

/// The tick thread learns of the next refill, which a charge may have brought about.
#[inline]
pub(crate) fn look_at_refill(shared: &Shared) {
    if RuntimeGates::bandwidth()
        && let Some(due) = shared.tree.next_refill()
    {
        shared.tick.look_by(due);
    }
}

/// Notes how long a task was throttled that is about to be polled.
#[cold]
fn note_throttle(queue: &RunQueue<Task>, task: &mut Task, now: Nanos) {
    let owned = task.owned_mut();
    if !owned.queued_in().is_limited() {
        return;
    }
    let clock = queue.throttled_clock(&owned.queued_in().core, now);
    let known = owned.throttling.get_or_insert_default();
    let throttled = clock.saturating_sub(known.mark);
    // What follows on this virtual CPU without a new queuing starts from here.
    known.mark = clock;
    known.calm = queue.calm();
    if throttled != Nanos::ZERO {
        task.context().record_throttled(throttled);
    }
}
