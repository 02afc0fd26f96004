//! A mutex whose holder is not left throttled.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::loans::{Holding, Loans};
use crate::bandwidth::{ThrottleGuard, defer_throttle};

pub use tokio::sync::TryLockError;

/// An asynchronous mutex; as [`tokio::sync::Mutex`], and the holder is not left throttled (see the module).
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized> {
    loans: Loans,
    inner: tokio::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub fn new(value: T) -> Self {
        Self {
            loans: Loans::default(),
            inner: tokio::sync::Mutex::new(value),
        }
    }

    /// The value, by consuming the mutex.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock, first in, first out. Cancel-safe: dropping the future gives up the place in the queue.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        if let Ok(guard) = self.try_lock() {
            return guard;
        }
        let deferral = defer_throttle();
        let waiting = self.loans.wait();
        let inner = self.inner.lock().await;
        let holding = self.loans.hold(&deferral);
        drop(waiting);
        MutexGuard {
            _holding: holding,
            inner,
            _deferral: deferral,
        }
    }

    /// The lock, if it is free now.
    ///
    /// # Errors
    /// [`TryLockError`] if it is held.
    pub fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError> {
        let inner = self.inner.try_lock()?;
        let deferral = defer_throttle();
        Ok(MutexGuard {
            _holding: self.loans.hold(&deferral),
            inner,
            _deferral: deferral,
        })
    }

    /// The value, without locking: the exclusive borrow says that nobody holds it.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

/// The lock of a [`Mutex`]; unlocks when dropped.
#[must_use = "the mutex unlocks at once if the guard is not kept"]
pub struct MutexGuard<'a, T: ?Sized> {
    // In this order: the loan ends, the next holder is chosen, and only then this task may be throttled.
    _holding: Holding<'a>,
    inner: tokio::sync::MutexGuard<'a, T>,
    _deferral: ThrottleGuard,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(formatter)
    }
}
