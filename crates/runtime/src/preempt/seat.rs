//! The place of one virtual CPU: who turns it, whose turn it is, and what they leave each other.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use quotient_core::Nanos;
use quotient_pause::Processor;

use super::{Carrier, Nap, lock};
use crate::cpu_clock::OwnTime;
use crate::group::GroupShared;
use crate::vcpu::Payer;

/// What one virtual CPU has of this.
#[derive(Debug)]
pub(crate) struct Seat {
    /// Who turns it.
    pub(crate) carrier: Mutex<Option<Arc<Carrier>>>,
    /// Whose proxy was picked last, and in which group it is.
    pub(crate) chosen: Mutex<Option<(Arc<Carrier>, Arc<GroupShared>)>>,
    /// Whether there is one: saves the lock after each pick.
    pub(crate) has_chosen: AtomicBool,
    /// Where the last one that was chosen here ran, until the next is or the carrier sleeps; [`NOWHERE`] otherwise.
    pub(super) freed: AtomicU32,
    /// Where the chosen one was let go on; [`NOWHERE`] if that was the kernel's choice.
    pub(super) placed: AtomicU32,
    /// The watch has found that the chosen one sleeps in the kernel (`lookout`).
    pub(super) blocked: AtomicBool,
    /// The carrier's reference (`vcpu::bill`), for the thread that takes over from it. Written between polls only. Unit: nanoseconds.
    reference_wall: AtomicU64,
    reference_cpu: AtomicU64,
    /// Who pays for the poll that is under way here, if that is one in another group's place. Written between polls only.
    payer: Mutex<Option<Payer>>,
    /// Tasks that the guest has handed in for it; wraps. And whether it is at work (`courtesy`).
    pub(super) brought: AtomicU32,
    pub(super) at_work: AtomicBool,
    pub(crate) nap: Nap,
}

/// No processor.
pub(super) const NOWHERE: u32 = u32::MAX;

impl Default for Seat {
    fn default() -> Self {
        Self {
            carrier: Mutex::default(),
            chosen: Mutex::default(),
            has_chosen: AtomicBool::new(false),
            freed: AtomicU32::new(NOWHERE),
            placed: AtomicU32::new(NOWHERE),
            blocked: AtomicBool::new(false),
            reference_wall: AtomicU64::new(0),
            reference_cpu: AtomicU64::new(0),
            payer: Mutex::default(),
            brought: AtomicU32::new(0),
            at_work: AtomicBool::new(false),
            nap: Nap::default(),
        }
    }
}

impl Seat {
    /// Whether the watch has said so of the one whose turn it is, since that was taken last.
    pub(crate) fn is_said_to_be_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// The same, and takes the word.
    pub(crate) fn take_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) && self.blocked.swap(false, Ordering::Relaxed)
    }

    /// A poll that begins from now on is measured from `reference`.
    pub(crate) fn refer_to(&self, reference: OwnTime) {
        let OwnTime { wall, cpu } = reference;
        self.reference_wall.store(wall.0, Ordering::Relaxed);
        self.reference_cpu.store(cpu.0, Ordering::Relaxed);
    }

    /// What the last poll that began here is measured from. For who has the right to turn the virtual CPU.
    pub(crate) fn reference(&self) -> OwnTime {
        OwnTime {
            wall: Nanos(self.reference_wall.load(Ordering::Relaxed)),
            cpu: Nanos(self.reference_cpu.load(Ordering::Relaxed)),
        }
    }

    /// `payer` pays for the poll that begins now.
    #[cold]
    pub(crate) fn is_paid_by(&self, payer: &Payer) {
        *lock(&self.payer) = Some(payer.clone());
    }

    /// The poll is over here, by its end or since its thread was left with it. For who has the right to turn the virtual CPU.
    #[cold]
    pub(crate) fn take_payer(&self) -> Option<Payer> {
        lock(&self.payer).take()
    }

    /// The bearer that was chosen here is not any more: its processor is free.
    pub(super) fn freed_by(&self, bearer: &Carrier) {
        let number = bearer.processor().map_or(NOWHERE, Processor::number);
        self.freed.store(number, Ordering::Relaxed);
    }

    pub(super) fn take_freed(&self) -> Option<Processor> {
        let number = self.freed.swap(NOWHERE, Ordering::Relaxed);
        (number != NOWHERE).then(|| Processor::new(number))
    }
}
