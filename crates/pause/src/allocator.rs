//! An allocator inside which no thread is paused.
//!
//! Allocators have locks (glibc's has a few *arenas*, each with one, shared by all threads). A thread that is paused inside such a lock keeps it, and who
//! allocates next waits for its resumption: for the rest of a limit's period. Nothing from outside can tell that a thread is in
//! there. But whatever the program allocates goes through its global allocator, which can raise the thread's shield.
//!
use std::alloc::{GlobalAlloc, Layout, System};

use crate::step::Shielded;

/// A global allocator around another one, [`System`] by default: no thread is paused inside it.
///
/// As programs declare it that depend on `quotient`, which exports it (others name it `quotient_pause::SteadyAllocator`):
///
/// ```
/// # use quotient_pause as quotient;
/// #[global_allocator]
/// static ALLOCATOR: quotient::SteadyAllocator = quotient::SteadyAllocator::SYSTEM;
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

// SAFETY: each call is handed on as it is, with the caller's promises, and the answer handed back: what holds for the inner allocator
// holds for this one. Raising and lowering a shield allocates nothing and does not unwind.
unsafe impl<A: GlobalAlloc> GlobalAlloc for SteadyAllocator<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: dropped at the end of this very function.
        let _shielded = unsafe { Shielded::begin() };
        // SAFETY: the caller's promise.
        unsafe { self.inner.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: dropped at the end of this very function.
        let _shielded = unsafe { Shielded::begin() };
        // SAFETY: the caller's promise.
        unsafe { self.inner.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: dropped at the end of this very function.
        let _shielded = unsafe { Shielded::begin() };
        // SAFETY: the caller's promise.
        unsafe { self.inner.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: dropped at the end of this very function.
        let _shielded = unsafe { Shielded::begin() };
        // SAFETY: the caller's promise.
        unsafe { self.inner.realloc(memory, layout, size) }
    }
}
