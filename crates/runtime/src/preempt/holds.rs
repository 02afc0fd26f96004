//! A borne poll that holds something for which others wait: its proxy is lent a place, as a task between two polls is.
//!
//! # Why
//! A task of a limited group that computes for 60 ms in one poll, with a lock of `quotient::sync` in its hand, kept who waited for that lock waiting for as long as
//! its limit takes (5 s of 10 ms a second), since only what a task holds *between* polls was known to the virtual CPUs.
//!
//! # Protocol
//! Whose deferral the thread's poll has, and where the proxy was queued last, are behind one lock. The thread says the former at the poll's begin, or as it takes the first guard, and finds the
//! latter; who queues the proxy, or puts it back where it was, says the latter, and goes by the rules of the deferral if there is one (`bandwidth::line`). So one of the two finds the other's,
//! and a waiter that lends finds the proxy wherever that waits, and asks for it. The lock comes before that of the deferral, and is shielded.
//!
//! When the poll is over, the task waits where the proxy is until that is picked: what it holds stays known so. (A task of a light group that held a lock after a poll of 3 ms was found by
//! nobody; others waited for it for 8 s.)
//!
//! With the loan's end the turn ends, by the thread that gives the lock back, and the proxy goes back to its own group's place. (A poll that took and gave back a lock in a loop had 0.06 to
//! 0.14 CPUs under a limit of 0.01, and 0.7 at others' cost.)

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};

use quotient_pause::in_one_step;

use super::{current, lock};
use crate::bandwidth::Deferral;
use crate::group::GroupShared;
use crate::shared::Shared;

/// Of one thread that turns a virtual CPU or bears a poll.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    known: Mutex<Known>,
    /// There is a deferral: saves the lock.
    any: AtomicBool,
    /// The proxy was queued.
    is_queued: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    deferral: Option<Arc<Deferral>>,
    /// The virtual CPU that queued the proxy last, and its own group, which may have gone since.
    queued: Option<(u32, Weak<GroupShared>)>,
}

impl Holds {
    /// The poll in progress has this deferral from now on, or the task that it leaves when it is over; by its thread.
    #[cold]
    pub(crate) fn begin(&self, deferral: &Arc<Deferral>) {
        let (previous, queued) = in_one_step(|| {
            let mut known = lock(&self.known);
            let previous = known.deferral.replace(deferral.clone());
            self.any.store(true, Ordering::Release);
            (previous, known.queued.clone())
        });
        drop(previous);
        if let Some((vcpu, own)) = queued
            && let Some(own) = own.upgrade()
        {
            deferral.is_queued_on(vcpu, &own);
        }
    }

    /// The poll is over.
    fn end(&self) {
        if self.any.swap(false, Ordering::Relaxed) {
            let previous = in_one_step(|| lock(&self.known).deferral.take());
            drop(previous);
        }
    }

    /// The proxy, of the group `own`, is about to be queued on `vcpu`; as [`Deferral::seat_on`].
    pub(crate) fn seat_on(
        &self,
        vcpu: u32,
        own: &Arc<GroupShared>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Option<Arc<GroupShared>> {
        let (deferral, former) = in_one_step(|| {
            let mut known = lock(&self.known);
            let former = known.queued.replace((vcpu, Arc::downgrade(own)));
            self.is_queued.store(true, Ordering::Relaxed);
            (known.deferral.clone(), former)
        });
        drop(former);
        deferral?.seat_on(vcpu, own, is_throttled)
    }

    /// What the poll in progress has.
    pub(crate) fn deferral(&self) -> Option<Arc<Deferral>> {
        let any = self.any.load(Ordering::Acquire);
        any.then(|| in_one_step(|| lock(&self.known).deferral.clone()))
            .flatten()
    }

    /// Whether a proxy stands for the poll in progress, which has this deferral; and where that was queued last.
    fn queued_with(&self, deferral: &Arc<Deferral>) -> Option<(u32, Arc<GroupShared>)> {
        if !self.is_queued.load(Ordering::Relaxed) {
            return None;
        }
        let queued = in_one_step(|| {
            let known = lock(&self.known);
            let mine = known.deferral.as_ref();
            let is_it = mine.is_some_and(|mine| Arc::ptr_eq(mine, deferral));
            is_it.then(|| known.queued.clone()).flatten()
        });
        let (vcpu, own) = queued?;
        Some((vcpu, own.upgrade()?))
    }
}

/// The poll in progress on this thread has this deferral from now on.
#[cold]
pub(crate) fn begins_deferring(deferral: &Arc<Deferral>) {
    if let Some(carrier) = current() {
        carrier.holds().begin(deferral);
    }
}

/// The poll in progress on this thread is over, and with it what others know of it.
#[cold]
pub(crate) fn ends_deferring() {
    if let Some(carrier) = current() {
        carrier.holds().end();
    }
}

/// A task has taken a lock: if in the middle of a borne poll, on this thread, its proxy waits somewhere.
pub(crate) fn notes_a_lock(deferral: &Arc<Deferral>) {
    if let Some(carrier) = current()
        && let Some((vcpu, own)) = carrier.holds().queued_with(deferral)
    {
        deferral.is_queued_on(vcpu, &own);
    }
}

/// The loan of a task is over: if in the middle of a borne poll, on this thread, its turn is, too.
pub(crate) fn ends_loan(shared: &Shared, deferral: &Arc<Deferral>) {
    let (Some(carrier), Some(preempting)) = (current(), &shared.preempt) else {
        return;
    };
    if carrier.holds().queued_with(deferral).is_some() {
        // Nobody is stopped while it asks who has chosen it.
        let _shield = quotient_pause::uninterrupted();
        fence(Ordering::SeqCst);
        preempting.end_nap(carrier.chosen_by());
    }
}
