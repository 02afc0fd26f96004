//! The lock of a run queue: taken and given back around every poll of a scheduler that preempts.
//!
//! A lock without poison, whose two ways are one exchange each: std's asks twice whether the thread panics, which is 16 of the 35 instructions of a
//! poll's two ways. Poison would say nothing: a panic of the scheduler aborts the process (`vcpu`, rule 6), and who only looks at a queue changes nothing.
//! parking_lot has none either, but its waiters stand in tables that all locks of the process share, the program's, too: a poll that is stopped while it
//! holds a table's lock would stop the scheduler. Here a waiter waits for this one word.

#[cfg(target_os = "linux")]
use rustix_futex_sync::{Mutex, MutexGuard};
#[cfg(not(target_os = "linux"))]
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::gates::RunQueue;
use crate::task_context::Task;

pub(crate) type QueueGuard<'a> = MutexGuard<'a, RunQueue<Task>>;

#[derive(Debug)]
pub(crate) struct QueueLock(Mutex<RunQueue<Task>>);

impl QueueLock {
    pub(crate) fn new(queue: RunQueue<Task>) -> Self {
        Self(Mutex::new(queue))
    }

    #[inline]
    pub(crate) fn lock(&self) -> QueueGuard<'_> {
        #[cfg(target_os = "linux")]
        return self.0.lock();
        #[cfg(not(target_os = "linux"))]
        return self.0.lock().unwrap_or_else(PoisonError::into_inner);
    }

    /// `None` while another thread has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<QueueGuard<'_>> {
        #[cfg(target_os = "linux")]
        return self.0.try_lock();
        #[cfg(not(target_os = "linux"))]
        return match self.0.try_lock() {
            Ok(queue) => Some(queue),
            Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
    }
}
