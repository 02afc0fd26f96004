//! The side of the thread that has regions.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::demote;
use crate::error::DemoteError;
use crate::handle::Handle;
use crate::pauser::{INSIDE, slot_here};
use crate::signal::Signal;
use crate::slot::Slot;

/// The number of a region: no other region of its thread has it. (2^64 regions of a nanosecond take 584 years.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Region(pub(crate) NonZeroU64);

impl Region {
    /// The number itself; regions of one thread count up.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

/// How a region ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what comes after a detached region is somebody else's"]
pub enum End {
    /// As if nobody had been there; it may have been paused meanwhile.
    Kept,
    /// Somebody detached it and has taken over what comes after.
    Detached,
}

impl End {
    /// Whether somebody has taken over.
    #[must_use]
    pub fn is_detached(self) -> bool {
        self == Self::Detached
    }
}

/// A thread inside [`Pauser::enter`](crate::Pauser::enter).
pub struct Thread {
    slot: Arc<Slot>,
    signal: Signal,
    /// Regions belong to the thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Thread {
    pub(crate) fn new(slot: Arc<Slot>, signal: Signal) -> Self {
        Self {
            slot,
            signal,
            _thread: std::marker::PhantomData,
        }
    }

    /// For other threads.
    #[must_use]
    pub fn handle(&self) -> Handle {
        Handle::new(self.slot.clone(), self.signal)
    }

    /// Runs `body` as a region. Two stores, a load and a compare if nobody asks for anything.
    ///
    /// A panic of `body` ends the region and goes on to the caller, who then does not learn whether it was detached: who
    /// detaches regions that may panic catches the panic inside.
    #[inline]
    pub fn region<R>(&mut self, body: impl FnOnce() -> R) -> (R, End) {
        region(body)
    }

    /// The number that the next region will have.
    #[must_use]
    pub fn next_region(&self) -> Region {
        // One more than a count of regions is never zero, see `Region`.
        Region(NonZeroU64::MIN.saturating_add(self.last_region()))
    }

    fn last_region(&self) -> u64 {
        INSIDE.with(|inside| {
            inside
                .borrow()
                .as_ref()
                .map_or(0, |inside| inside.number.get())
        })
    }

    /// Gives the thread the priority back that it had when it entered.
    ///
    /// # Errors
    /// [`DemoteError::Refused`] where the process may not raise a priority: it needs `CAP_SYS_NICE` or a suitable
    /// `RLIMIT_NICE`. [`DemoteError::Policy`] if its priority could not be read when it entered.
    pub fn restore_priority(&self) -> Result<(), DemoteError> {
        let Some(before) = self.slot.before else {
            return Err(DemoteError::Policy { policy: u32::MAX });
        };
        demote::raise(self.slot.identity, before)
    }
}

impl fmt::Debug for Thread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Thread")
            .field("identity", &self.slot.identity)
            .field("regions", &self.last_region())
            .finish_non_exhaustive()
    }
}

/// Runs `body` as a region of the calling thread, as [`Thread::region`] does, for code that has no hand on the [`Thread`]. On a thread
/// outside [`Pauser::enter`](crate::Pauser::enter), and inside another region, it just runs: [`End::Kept`].
#[inline]
pub fn region<R>(body: impl FnOnce() -> R) -> (R, End) {
    with_regions(|regions| match regions {
        Some(regions) => regions.region(body),
        None => (body(), End::Kept),
    })
}

/// Hands `body` the calling thread's regions, looked up once for as many as it wants; `None` on a thread outside
/// [`Pauser::enter`](crate::Pauser::enter), and inside a region.
#[inline]
pub fn with_regions<R>(body: impl FnOnce(Option<&mut Regions<'_>>) -> R) -> R {
    INSIDE.with(|inside| {
        let inside = inside.borrow();
        let outside = inside.as_ref().filter(|inside| inside.slot.current() == 0);
        let mut regions = outside.map(|inside| Regions {
            slot: &inside.slot,
            number: &inside.number,
            _thread: std::marker::PhantomData,
        });
        body(regions.as_mut())
    })
}

/// What a thread begins its regions with, see [`with_regions`].
pub struct Regions<'a> {
    slot: &'a Slot,
    /// Number of the last region.
    number: &'a Cell<u64>,
    /// Regions belong to the thread.
    _thread: std::marker::PhantomData<*const ()>,
}

impl Regions<'_> {
    /// As [`region`]: three stores, two loads and a compare if nobody asks for anything.
    #[inline(always)]
    pub fn region<R>(&mut self, body: impl FnOnce() -> R) -> (R, End) {
        let open = self.open();
        let result = body();
        (result, open.end())
    }

    /// Begins a region that lasts until the guard [ends](Open::end) or is dropped, for a body that is not to be a function of its own.
    /// Regions of a thread do not nest: one that is begun in the middle of another, by a second `Regions` that was made
    /// before, ends both, and who forgets the guard stays in the region until the next.
    #[inline(always)]
    pub fn open(&mut self) -> Open<'_> {
        let slot = self.slot;
        let number = self.number.get() + 1;
        self.number.set(number);
        slot.begin(number);
        Open { slot, number }
    }
}

/// A region in progress, see [`Regions::open`].
#[must_use = "the region ends with it"]
pub struct Open<'a> {
    slot: &'a Slot,
    number: u64,
}

impl Open<'_> {
    /// Ends the region.
    #[inline(always)]
    pub fn end(self) -> End {
        let Self { slot, number } = self;
        std::mem::forget(self);
        if slot.end(number) {
            End::Detached
        } else {
            End::Kept
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.slot.end(self.number);
    }
}

impl fmt::Debug for Open<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Open")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Regions<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Regions")
            .field("regions", &self.number.get())
            .finish_non_exhaustive()
    }
}

/// While this lives, the region of its thread is not paused: what is asked for meanwhile happens when the last guard
/// goes. It can be detached and demoted all the same.
#[derive(Debug)]
#[must_use = "the guard protects while it lives"]
pub struct Uninterrupted {
    /// `None` on a thread that has no regions.
    slot: Option<Arc<Slot>>,
    _thread: std::marker::PhantomData<*const ()>,
}

/// Keeps the calling thread from being paused, for a section in which it holds what everybody needs. On a thread outside
/// [`Pauser::enter`](crate::Pauser::enter) it does nothing. About 10 ns.
pub fn uninterrupted() -> Uninterrupted {
    let slot = slot_here();
    if let Some(slot) = &slot {
        slot.raise_shield();
    }
    Uninterrupted {
        slot,
        _thread: std::marker::PhantomData,
    }
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            slot.lower_shield();
        }
    }
}

/// While this lives, the region in which it was made is not paused, unless who asks [insists](crate::Pause::insist). It means nothing beyond
/// that region, forgotten or kept. The region can be detached and demoted all the same.
#[derive(Debug)]
#[must_use = "the guard protects while it lives"]
pub struct Undisturbed {
    /// `None` on a thread that has no regions.
    slot: Option<Arc<Slot>>,
    /// The region; 0 outside of any.
    region: u64,
    _thread: std::marker::PhantomData<*const ()>,
}

/// As [`uninterrupted`], for code that is not trusted to be brief: its request can be overridden, and ends with its region at the latest.
pub fn undisturbed() -> Undisturbed {
    let slot = slot_here();
    let region = slot.as_ref().map_or(0, |slot| slot.raise_plea());
    Undisturbed {
        slot,
        region,
        _thread: std::marker::PhantomData,
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            slot.lower_plea(self.region);
        }
    }
}
