//! An allocator inside which no thread is paused.
//!
//! Allocators have locks (glibc's has a few *arenas*, each with one, shared by all threads). A thread that is paused inside such a lock keeps it, and who
//! allocates next waits for its resumption: for the rest of a limit's period. Nothing from outside can tell that a thread is in
//! there. But whatever the program allocates goes through its global allocator, which can raise the thread's shield.
//!
//! The slot is found by a thread-local *pointer*: one with a destructor would have to be registered with the thread at its first use, which
//! allocates, and the standard library aborts a global allocator that does so.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr;

use crate::slot::Slot;

thread_local! {
    /// The slot of this thread while it is inside [`Pauser::enter`](crate::Pauser::enter), else null.
    static SLOT: Cell<*const Slot> = const { Cell::new(ptr::null()) };
}

/// The thread enters with `slot`, or leaves (`None`). Who enters keeps `slot` alive until the thread has left.
pub(crate) fn set(slot: Option<&Slot>) {
    SLOT.set(slot.map_or(ptr::null(), ptr::from_ref));
}

/// A global allocator around another one, [`System`] by default: no thread is paused inside it.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: quotient_pause::SteadyAllocator = quotient_pause::SteadyAllocator::SYSTEM;
/// # drop(vec![0_u8; 7]);
/// ```
///
/// What is asked for meanwhile happens at the end of the call: a pause comes later by the time that an allocation takes. Outside of
/// [`Pauser::enter`](crate::Pauser::enter) it costs one load and a branch, inside some 2 ns. Only what is allocated through it is covered, so not what libraries in
/// C ask `malloc` for.
#[derive(Clone, Copy, Debug, Default)]
pub struct SteadyAllocator<A = System> {
    inner: A,
}

impl SteadyAllocator {
    /// Around the system's.
    pub const SYSTEM: Self = Self::around(System);
}

impl<A> SteadyAllocator<A> {
    /// Around `inner`.
    pub const fn around(inner: A) -> Self {
        Self { inner }
    }
}

/// The shield of the calling thread, raised while this lives.
struct Shielded {
    slot: *const Slot,
}

impl Shielded {
    #[inline]
    fn begin() -> Self {
        // Plain memory without a destructor: there from the thread's beginning to its end.
        let slot = SLOT.get();
        // SAFETY: it is null, or was set by `enter` of this very thread, which keeps the slot until it has set it to null again.
        if let Some(slot) = unsafe { slot.as_ref() } {
            slot.raise_shield();
        }
        Self { slot }
    }
}

impl Drop for Shielded {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: as in `begin`; nothing between the two enters or leaves, since between them is only the inner allocator.
        if let Some(slot) = unsafe { self.slot.as_ref() } {
            slot.lower_shield();
        }
    }
}

// SAFETY: each call is handed on as it is, with the caller's promises, and the answer handed back: what holds for the inner allocator
// holds for this one. Raising and lowering a shield allocates nothing and does not unwind.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SteadyAllocator<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _shielded = Shielded::begin();
        // SAFETY: the caller's promise.
        unsafe { self.inner.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let _shielded = Shielded::begin();
        // SAFETY: the caller's promise.
        unsafe { self.inner.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let _shielded = Shielded::begin();
        // SAFETY: the caller's promise.
        unsafe { self.inner.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _shielded = Shielded::begin();
        // SAFETY: the caller's promise.
        unsafe { self.inner.realloc(memory, layout, size) }
    }
}
