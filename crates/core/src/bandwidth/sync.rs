//! The locks and atomics of this room, replaceable by a model checker's (feature `model`).

#[cfg(not(feature = "model"))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, fence};
#[cfg(feature = "model")]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, fence};

#[cfg(feature = "model")]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(feature = "model"))]
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Locks, whatever happened to an earlier holder: nothing under these locks panics, and all of it is plain numbers.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
