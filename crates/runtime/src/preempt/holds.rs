//! A borne poll that holds something for which others wait: its proxy is lent a place, as a task between two polls is.
//!
//! # Why
//! A task of a limited group that computes for 60 ms in one poll, with a lock of `quotient::sync` in its hand, kept who waited for that lock waiting for as long as
//! its limit takes (5 s of 10 ms a second), since only what a task holds *between* polls was known to the virtual CPUs.
//!
//! # Protocol
//! The thread says whose deferral its poll has: at its begin, or as it takes the first guard (D1: stores it; D2: fence; D3: reads where the proxy was queued last, and says so to the
//! deferral). Who queues the proxy, or puts it back where it was, (Q1) notes the virtual CPU here, (Q2) fence, (Q3) reads the deferral, and if there is one goes by its rules
//! (`bandwidth::line`). Either D3 sees the virtual CPU, or Q3 the deferral. So a waiter that lends finds the proxy wherever that waits, and asks for it.
//! With the loan's end the turn ends, by the thread that gives the lock back, and the proxy goes back to its own group's place. (A poll that took and gave back a lock in a loop had 0.06 to
//! 0.14 CPUs under a limit of 0.01, and 0.7 at others' cost.)
//!
//! The thread says so under a shield: it is not stopped while it has the lock.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex};

use super::{current, lock};
use crate::bandwidth::Deferral;
use crate::group::GroupShared;
use crate::shared::Shared;
use crate::shielded::lock_shielded;

/// Of one thread that turns a virtual CPU or bears a poll.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    deferral: Mutex<Option<Arc<Deferral>>>,
    /// There is one: saves the lock.
    any: AtomicBool,
    /// The virtual CPU that queued the proxy last, plus one; 0 before.
    queued_on: AtomicU32,
}

impl Holds {
    /// The poll in progress has this deferral from now on; by its thread.
    #[cold]
    pub(crate) fn begin(&self, deferral: &Arc<Deferral>) {
        let previous = lock_shielded(&self.deferral).replace(deferral.clone());
        drop(previous);
        self.any.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if let Some(vcpu) = self.queued_on() {
            deferral.is_queued_on(vcpu);
        }
    }

    /// The poll is over.
    pub(crate) fn end(&self) {
        if self.any.swap(false, Ordering::Relaxed) {
            let previous = lock_shielded(&self.deferral).take();
            drop(previous);
        }
    }

    /// The virtual CPU that queued the proxy last, if there is one.
    fn queued_on(&self) -> Option<u32> {
        self.queued_on.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The proxy, of the group `own`, is about to be queued on `vcpu`; as [`Deferral::seat_on`].
    pub(crate) fn seat_on(
        &self,
        vcpu: u32,
        own: &Arc<GroupShared>,
        is_throttled: &dyn Fn(&GroupShared) -> bool,
    ) -> Option<Arc<GroupShared>> {
        self.queued_on
            .store(vcpu.saturating_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.deferral()?.seat_on(vcpu, own, is_throttled)
    }

    fn is_of(&self, deferral: &Arc<Deferral>) -> bool {
        self.deferral()
            .is_some_and(|known| Arc::ptr_eq(&known, deferral))
    }

    /// What the poll in progress has.
    pub(crate) fn deferral(&self) -> Option<Arc<Deferral>> {
        let any = self.any.load(Ordering::Acquire);
        any.then(|| lock(&self.deferral).clone()).flatten()
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
        && let Some(vcpu) = carrier.holds().queued_on()
        && carrier.holds().is_of(deferral)
    {
        deferral.is_queued_on(vcpu);
    }
}

/// The loan of a task is over: if in the middle of a borne poll, on this thread, its turn is, too.
pub(crate) fn ends_loan(shared: &Shared, deferral: &Arc<Deferral>) {
    let (Some(carrier), Some(preempting)) = (current(), &shared.preempt) else {
        return;
    };
    if carrier.holds().queued_on().is_some() && carrier.holds().is_of(deferral) {
        // Nobody is stopped while it asks who has chosen it.
        let _shield = quotient_pause::uninterrupted();
        fence(Ordering::SeqCst);
        preempting.end_nap(carrier.chosen_by());
    }
}
