//! Work that nobody's poll pays for, in parts: tasks of limited groups that are queued anew since they were lent a place, moved or died, and floods of
//! arrivals. All of it is paid for by their groups. The dead and the floods keep nobody else waiting for longer than a part takes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quotient_core::{DrainPart, Enqueue, Nanos};

use super::Vcpu;
use super::limits::{changes_seat, lender_here, look_at_refill};
use super::switch::enqueue;
use crate::group::GroupShared;
use crate::releases::{PART, Search};
use crate::shared::{Shared, VcpuShared};
use crate::task_context::Task;

/// After a part of a search for the dead other work goes on for so many times as long as that took, if there is any.
const REST: u64 = 20;
/// The same after a search for tasks that have another place, in which none had: a tenant of 0.01 CPUs whose ten thousand tasks wait for each other had 0.85 searched through, by people who
/// came and went. Unit: nanoseconds, at most.
const REST_MAX: Nanos = Nanos::from_millis(100);
/// How long a search waits that can go on with nothing. Unit: nanoseconds. A tick.
const PAUSE: Nanos = Nanos::from_micros(1_000);

/// What a part of a search has come to.
struct Found {
    /// Where to go on.
    more: Option<u32>,
    /// The group in whose place the last is now that was queued anew.
    last: Option<Arc<GroupShared>>,
    /// Some have another place now.
    any: bool,
}

/// When to go on with the search for the dead.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Not before, unless there is nothing else to do.
    until: Nanos,
    /// That is why it waits; if not, it waits for the limit.
    is_on: bool,
    /// There is nothing else to do.
    idles: bool,
}

impl Rest {
    /// Nothing else is to be done: whether the search, which goes on at `at`, goes on now.
    pub(super) fn ends(&mut self, at: u64, now: Nanos) -> bool {
        self.idles = at != 0 && (self.is_on || at <= now.as_nanos());
        self.idles
    }
}

impl Vcpu {
    /// Queues tasks anew that were lent a place while they waited in a limited group, or moved out of it: a part of them a turn, for which the group pays
    /// that lends the place, or that they have left. (Were it the holder's, two tasks that take a lock in turns with others would owe a minute of their limit of a thousandth of a
    /// CPU after a second.) Returns the time.
    #[inline]
    pub(super) fn release(&mut self, shared: &Shared, me: &VcpuShared, now: Nanos) -> Nanos {
        let rests = || now.as_nanos() < me.released_at.load(Ordering::Relaxed);
        if !me.has_releases.load(Ordering::Acquire) || rests() {
            return now;
        }
        self.release_part(shared, me, now)
    }

    #[cold]
    #[inline(never)]
    fn release_part(&mut self, shared: &Shared, me: &VcpuShared, now: Nanos) -> Nanos {
        me.has_releases.store(false, Ordering::Relaxed);
        let Some(search) = me.releases.next() else {
            let vain = std::mem::take(&mut self.searched_in_vain).as_nanos();
            let rest = Nanos(vain.saturating_mul(REST)).min(REST_MAX);
            let at = now.saturating_add(rest);
            me.released_at.store(at.as_nanos(), Ordering::Relaxed);
            return now;
        };
        // Before the next look at it: there may be another request, and there is more of this one, perhaps.
        me.has_releases.store(true, Ordering::Relaxed);
        let mut goes = |task: &mut Task| {
            changes_seat(task.owned_mut()) || task.context().marks.is_moved(Ordering::Acquire)
        };
        let found = self.requeue(shared, &search, PART, &mut goes, now);
        let later = shared.now();
        let cost = later.saturating_sub(now);
        if let Some(group) = found.last.as_ref().or(search.group.as_ref()) {
            self.bill_to(group, cost, later);
        }
        if !found.any {
            self.searched_in_vain = self.searched_in_vain.saturating_add(cost);
        }
        if let Some(next) = found.more {
            me.releases.go_on_later(Search { next, ..search });
        }
        later
    }

    /// A group pays for what was done for its tasks at `now`.
    fn bill_to(&self, group: &GroupShared, cost: Nanos, now: Nanos) {
        group.pay_elsewhere(cost, self.index, now);
        look_at_refill(&self.shared);
    }

    /// A part of each kind that there is, before a turn. Returns the time.
    #[cold]
    #[inline(never)]
    pub(super) fn do_unpaid_work(&mut self, shared: &Shared, me: &VcpuShared, now: Nanos) -> Nanos {
        let now = self.release_the_dead(shared, me, now);
        self.take_in_flood(shared, me, now)
    }

    /// As [`Vcpu::release`], of the dead: their groups pay for it. Returns the time.
    fn release_the_dead(&mut self, shared: &Shared, me: &VcpuShared, now: Nanos) -> Nanos {
        // Acquires the marks of the dead that it was set for.
        let at = me.dying_at.load(Ordering::Acquire);
        let idles = std::mem::take(&mut self.rest.idles);
        if at == 0 || at > now.as_nanos() && !idles {
            return now;
        }
        if now < self.rest.until && !idles {
            self.rest.is_on = true;
            me.dying_at
                .store(self.rest.until.as_nanos(), Ordering::Relaxed);
            return now;
        }
        // Before the look at the requests: who asks from here on says so again.
        me.dying_at.store(0, Ordering::Release);
        let Some(mut search) = me.dying.next() else {
            return now;
        };
        let wait = search
            .group
            .as_ref()
            .map_or(Nanos::ZERO, |group| wait_of(group, now));
        if wait != Nanos::ZERO {
            me.dying.postpone(search);
            return self.look_for_the_dead_at(me, now.saturating_add(wait), now);
        }
        let mut skipped = false;
        let mut taken = 0;
        let mut dead = |task: &mut Task| {
            // (Not who sits where no limit keeps it back: it is seated as a dead one, or lent a place.)
            let dead = task.is_aborted() && task.owned_mut().queued_in().is_limited();
            let goes =
                dead && taken < PART.tasks && wait_of(&task.owned_mut().group, now) == Nanos::ZERO;
            skipped |= dead && !goes;
            taken += u32::from(goes);
            goes
        };
        let found = self.requeue(shared, &search, PART, &mut dead, now);
        let later = shared.now();
        let cost = later.saturating_sub(now);
        if let Some(payer) = search.group.as_ref().or(found.last.as_ref()) {
            payer.pay_for_the_dead(cost, self.index, later);
            look_at_refill(shared);
        }
        self.rest.until = later.saturating_add(Nanos(cost.as_nanos() * REST));
        let mut goes_on_at = self.rest.until;
        search.skipped |= skipped;
        if let Some(next) = found.more {
            search.next = next;
            me.dying.go_on_later(search);
        } else if search.skipped {
            // From the beginning, for those that could not go yet.
            let group = search.group;
            me.dying.postpone(Search::of(group));
            goes_on_at = goes_on_at.max(later.saturating_add(PAUSE));
            return self.look_for_the_dead_at(me, goes_on_at, later);
        }
        if me.dying.any() {
            self.look_for_the_dead_at(me, goes_on_at, later);
            self.rest.is_on = true;
        }
        later
    }

    /// Not before `at`, unless somebody asks for others. Returns `now`.
    fn look_for_the_dead_at(&mut self, me: &VcpuShared, at: Nanos, now: Nanos) -> Nanos {
        self.rest.is_on = false;
        // Who has asked meanwhile is served sooner.
        let sooner = |known: u64| (known == 0).then_some(at.as_nanos());
        let _ = me
            .dying_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, sooner);
        now
    }

    /// Queues a part of those that are `wanted` anew. Where the search goes on, if it does, and whose the last of them was: the group's that lends it a
    /// place, else its own.
    fn requeue(
        &mut self,
        shared: &Shared,
        search: &Search,
        part: DrainPart,
        wanted: &mut dyn FnMut(&mut Task) -> bool,
        now: Nanos,
    ) -> Found {
        let mut queue = shared.queue(self.index);
        let group = search.group.as_ref().map(|group| &group.core);
        let out = &mut self.detached;
        let more = queue.drain_part(group, search.next, part, wanted, now, out);
        let mut found = Found {
            more,
            last: None,
            any: false,
        };
        for detached in self.detached.drain(..) {
            let mut task = detached.handle;
            task.owned_mut().entity = detached.entity;
            let owned = task.owned_mut();
            let known = owned.throttling.as_ref();
            let lender = known.and_then(|known| lender_here(&queue, known, &owned.group));
            let was_lent = known.is_some_and(|known| known.seat.is_some());
            let place = lender.as_ref().unwrap_or(&owned.group).clone();
            found.last = Some(place);
            found.any |= lender.is_some() || was_lent;
            found.any |= task.context().marks.is_moved(Ordering::Relaxed);
            enqueue(&mut queue, task, Enqueue::Migrate, now);
        }
        found
    }

    /// Takes in a part of what a group has brought beyond ordinary arrivals, which pays for that. Returns the time.
    fn take_in_flood(&mut self, shared: &Shared, me: &VcpuShared, now: Nanos) -> Nanos {
        // Nothing else is there between two turns.
        let Some(group) = me.inbox.take_flood(&mut self.arrivals) else {
            return now;
        };
        self.count_short_tasks();
        self.admit(&mut me.queue.lock(), now);
        let later = shared.now();
        self.bill_to(&group, later.saturating_sub(now), later);
        later
    }
}

/// How long the group's dead wait at least before more of them go first.
fn wait_of(group: &Arc<GroupShared>, now: Nanos) -> Nanos {
    let wait = group.dead_wait_for(now);
    if wait == Nanos::ZERO && !group.has_seats_for_the_dead() {
        return PAUSE;
    }
    wait
}
