//! A borne poll that holds something for which others wait: its proxy is lent a place, as a task between two polls is.
//!
//! # Why
//! A task of a limited group that computes for 60 ms in one poll, with a lock of `quotient::sync` in its hand, kept who waited for that lock waiting for as long as
//! its limit takes (5 s of 10 ms a second), since only what a task holds *between* polls was known to the virtual CPUs.
//!
//! # Protocol
//! The thread says whose deferral its poll has: at its begin, or as it takes the first guard (D1: stores it; D2: fence; D3: reads where the proxy was queued last, and says so to the
//! deferral). Who queues the proxy, or puts it back where it was, (Q1) notes the virtual CPU here, (Q2) fence, (Q3) reads the deferral, and if there is one goes by its rules
//! (Q1 to Q4 of `bandwidth::deferral`). Either D3 sees the virtual CPU, or Q3 the deferral. So a waiter that lends finds the proxy wherever that waits, and asks for it.
//! The proxy goes back to its own group's place at the next end of a turn after the loan's.
//!
//! The thread says so under a shield: it is not stopped while it has the lock.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex};

use super::lock;
use crate::bandwidth::Deferral;
use crate::group::GroupShared;
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
        if let Some(vcpu) = self.queued_on.load(Ordering::Relaxed).checked_sub(1) {
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

    /// The proxy, of the group `own`, is about to be queued on `vcpu`: the group that lends it a place, if any does.
    pub(crate) fn seat_on(&self, vcpu: u32, own: &GroupShared) -> Option<Arc<GroupShared>> {
        self.queued_on
            .store(vcpu.saturating_add(1), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let deferral = self.deferral()?;
        deferral.seat_on(vcpu, own)
    }

    /// The group that lends the proxy a place, if any does.
    pub(crate) fn seat(&self, own: &GroupShared) -> Option<Arc<GroupShared>> {
        self.deferral()?.seat(own)
    }

    fn deferral(&self) -> Option<Arc<Deferral>> {
        let any = self.any.load(Ordering::Acquire);
        any.then(|| lock(&self.deferral).clone()).flatten()
    }
}
