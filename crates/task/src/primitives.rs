//! The one door to atomics, cells and thread-locals, so that loom can stand in for them.
//!
//! Protocol code takes these names from here and never from `std`; with `--cfg loom` every access becomes a step
//! of the model checker. Outside loom everything is the plain `std` item, or a wrapper that costs nothing.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering},
    thread_local,
};

#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering},
    thread_local,
};

/// `std`'s `UnsafeCell` behind loom's interface: access goes through closures that get a raw pointer.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// Wraps `value`.
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Hands out a pointer for shared reading.
    #[inline(always)]
    pub(crate) fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
        access(self.0.get())
    }

    /// Hands out a pointer for exclusive use.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}
