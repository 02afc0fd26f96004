//! The one door to atomics and locks, so that loom can stand in for them.
//!
//! Protocol code takes these names from here and never from `std`; with `--cfg loom` every access becomes a step
//! of the model checker. Outside loom everything is the plain `std` item.

#[cfg(loom)]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Thread, current as current_thread},
};

#[cfg(not(loom))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{Thread, current as current_thread},
};

/// Parks the calling thread until it is unparked, or for no reason.
pub(crate) fn park() {
    #[cfg(not(loom))]
    std::thread::park();
    #[cfg(loom)]
    loom::thread::park();
}

/// Parks the calling thread for `time` at most. In a model time does not pass: only an unpark ends it.
pub(crate) fn park_timeout(time: std::time::Duration) {
    #[cfg(not(loom))]
    std::thread::park_timeout(time);
    #[cfg(loom)]
    {
        let _ = time;
        loom::thread::park();
    }
}
