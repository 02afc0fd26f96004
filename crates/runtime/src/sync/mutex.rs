//! A mutex whose holder is not left throttled.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::loans::{Holding, Inner, attempt, wait};
use super::{cooperate, sole, sole_mut, write_out};
use crate::bandwidth::Line;

pub use tokio::sync::TryLockError;

/// An asynchronous mutex; as [`tokio::sync::Mutex`], and the holder is not left throttled (see the module).
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    line: Arc<Line>,
    /// Apart, for guards that own their lock: only they and this ever hold it.
    inner: Arc<tokio::sync::Mutex<T>>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub fn new(value: T) -> Self {
        Self {
            line: Arc::default(),
            inner: Arc::new(tokio::sync::Mutex::new(value)),
        }
    }

    /// The value, by consuming the mutex.
    pub fn into_inner(self) -> T {
        sole(self.inner).into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock, first in, first out. Cancel-safe: dropping the future gives up the place in the queue.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        cooperate().await;
        if let Ok(guard) = self.try_lock() {
            return guard;
        }
        let (inner, holding) = wait(&self.line, self.inner.lock()).await;
        MutexGuard {
            inner: Inner::new(inner),
            _holding: holding,
        }
    }

    /// The lock, if it is free now.
    ///
    /// # Errors
    /// [`TryLockError`] if it is held.
    pub fn try_lock(&self) -> Result<MutexGuard<'_, T>, TryLockError> {
        let (inner, holding) = attempt(&self.line, || self.inner.try_lock())?;
        Ok(MutexGuard {
            inner,
            _holding: holding,
        })
    }

    /// As [`Mutex::lock`], with a guard that keeps the mutex alive: for tasks that take it along.
    pub async fn lock_owned(self: Arc<Self>) -> OwnedMutexGuard<T> {
        cooperate().await;
        if let Ok(guard) = self.clone().try_lock_owned() {
            return guard;
        }
        let (inner, holding) = wait(&self.line, self.inner.clone().lock_owned()).await;
        OwnedMutexGuard {
            inner: Inner::new(inner),
            _holding: holding,
            _mutex: self,
        }
    }

    /// As [`Mutex::try_lock`], with a guard that keeps the mutex alive.
    ///
    /// # Errors
    /// [`TryLockError`] if it is held.
    pub fn try_lock_owned(self: Arc<Self>) -> Result<OwnedMutexGuard<T>, TryLockError> {
        let (inner, holding) = attempt(&self.line, || self.inner.clone().try_lock_owned())?;
        Ok(OwnedMutexGuard {
            inner,
            _holding: holding,
            _mutex: self,
        })
    }

    /// The value, without locking: the exclusive borrow says that nobody holds it.
    pub fn get_mut(&mut self) -> &mut T {
        sole_mut(&mut self.inner).get_mut()
    }
}

/// With the value, if it is free: in a lock that is held as any other.
impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_out(formatter, "Mutex", self.try_lock().as_deref().ok())
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// The lock of a [`Mutex`]; unlocks when dropped.
#[must_use = "the mutex unlocks at once if the guard is not kept"]
pub struct MutexGuard<'a, T: ?Sized> {
    // In this order: the next holder is chosen, and only then the loan ends, and this task may be throttled.
    inner: Inner<tokio::sync::MutexGuard<'a, T>>,
    _holding: Holding,
}

/// As [`MutexGuard`], and keeps the mutex alive.
#[must_use = "the mutex unlocks at once if the guard is not kept"]
pub struct OwnedMutexGuard<T: ?Sized> {
    // In this order, see `MutexGuard`; the mutex goes last, so that whoever has the last one finds its value alone.
    inner: Inner<tokio::sync::OwnedMutexGuard<T>>,
    _holding: Holding,
    _mutex: Arc<Mutex<T>>,
}

super::guard!(MutexGuard<'a>, mutable);
super::guard!(OwnedMutexGuard, mutable);
