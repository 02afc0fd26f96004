//! A lock of one writer or many readers, who are not left throttled.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::loans::{Holding, Inner, attempt, wait};
use super::{TryLockError, cooperate, sole, sole_mut, write_out};
use crate::bandwidth::Line;

/// An asynchronous lock for one writer or many readers; as [`tokio::sync::RwLock`], fair between them, and whoever holds it is
/// not left throttled (see the module): the longest waiter lends its place to the writer, or to every reader.
#[derive(Default)]
pub struct RwLock<T: ?Sized> {
    line: Arc<Line>,
    /// Apart, for guards that own their lock: only they and this ever hold it.
    inner: Arc<tokio::sync::RwLock<T>>,
}

impl<T> RwLock<T> {
    /// An unlocked lock.
    pub fn new(value: T) -> Self {
        Self {
            line: Arc::default(),
            inner: Arc::new(tokio::sync::RwLock::new(value)),
        }
    }

    /// The value, by consuming the lock.
    pub fn into_inner(self) -> T {
        sole(self.inner).into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the lock or waits in front. Cancel-safe: dropping the future gives up the place in the queue.
    pub async fn read(&self) -> RwLockReadGuard<'_, T> {
        cooperate().await;
        if let Ok(guard) = self.try_read() {
            return guard;
        }
        let (inner, holding) = wait(&self.line, self.inner.read()).await;
        RwLockReadGuard {
            inner: Inner::new(inner),
            _holding: holding,
        }
    }

    /// The lock for reading, if no writer holds it or waits.
    ///
    /// # Errors
    /// [`TryLockError`] if one does.
    pub fn try_read(&self) -> Result<RwLockReadGuard<'_, T>, TryLockError> {
        let (inner, holding) = attempt(&self.line, || self.inner.try_read())?;
        Ok(RwLockReadGuard {
            inner,
            _holding: holding,
        })
    }

    /// As [`RwLock::read`], with a guard that keeps the lock alive.
    pub async fn read_owned(self: Arc<Self>) -> OwnedRwLockReadGuard<T> {
        cooperate().await;
        if let Ok(guard) = self.clone().try_read_owned() {
            return guard;
        }
        let (inner, holding) = wait(&self.line, self.inner.clone().read_owned()).await;
        OwnedRwLockReadGuard {
            inner: Inner::new(inner),
            _holding: holding,
            _lock: self,
        }
    }

    /// As [`RwLock::try_read`], with a guard that keeps the lock alive.
    ///
    /// # Errors
    /// As [`RwLock::try_read`].
    pub fn try_read_owned(self: Arc<Self>) -> Result<OwnedRwLockReadGuard<T>, TryLockError> {
        let (inner, holding) = attempt(&self.line, || self.inner.clone().try_read_owned())?;
        Ok(OwnedRwLockReadGuard {
            inner,
            _holding: holding,
            _lock: self,
        })
    }

    /// Waits until nobody holds the lock, first in, first out. Cancel-safe.
    pub async fn write(&self) -> RwLockWriteGuard<'_, T> {
        cooperate().await;
        if let Ok(guard) = self.try_write() {
            return guard;
        }
        let (inner, holding) = wait(&self.line, self.inner.write()).await;
        RwLockWriteGuard {
            inner: Inner::new(inner),
            holding,
        }
    }

    /// The lock for writing, if nobody holds it.
    ///
    /// # Errors
    /// [`TryLockError`] if somebody does.
    pub fn try_write(&self) -> Result<RwLockWriteGuard<'_, T>, TryLockError> {
        let (inner, holding) = attempt(&self.line, || self.inner.try_write())?;
        Ok(RwLockWriteGuard { inner, holding })
    }

    /// As [`RwLock::write`], with a guard that keeps the lock alive.
    pub async fn write_owned(self: Arc<Self>) -> OwnedRwLockWriteGuard<T> {
        cooperate().await;
        if let Ok(guard) = self.clone().try_write_owned() {
            return guard;
        }
        let (inner, holding) = wait(&self.line, self.inner.clone().write_owned()).await;
        OwnedRwLockWriteGuard {
            inner: Inner::new(inner),
            holding,
            lock: self,
        }
    }

    /// As [`RwLock::try_write`], with a guard that keeps the lock alive.
    ///
    /// # Errors
    /// As [`RwLock::try_write`].
    pub fn try_write_owned(self: Arc<Self>) -> Result<OwnedRwLockWriteGuard<T>, TryLockError> {
        let (inner, holding) = attempt(&self.line, || self.inner.clone().try_write_owned())?;
        Ok(OwnedRwLockWriteGuard {
            inner,
            holding,
            lock: self,
        })
    }

    /// The value, without locking: the exclusive borrow says that nobody holds it.
    pub fn get_mut(&mut self) -> &mut T {
        sole_mut(&mut self.inner).get_mut()
    }
}

/// With the value, if it is free: in a lock that is held as any other.
impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_out(formatter, "RwLock", self.try_read().as_deref().ok())
    }
}

impl<T> From<T> for RwLock<T> {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

/// An [`RwLock`] held for reading, beside other readers; let go when dropped.
#[must_use = "the lock is let go at once if the guard is not kept"]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    // In this order: the next holders are chosen, and only then the loan ends, and this task may be throttled.
    inner: Inner<tokio::sync::RwLockReadGuard<'a, T>>,
    _holding: Holding,
}

/// An [`RwLock`] held for writing, alone; let go when dropped.
#[must_use = "the lock is let go at once if the guard is not kept"]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    // In this order, as with readers.
    inner: Inner<tokio::sync::RwLockWriteGuard<'a, T>>,
    holding: Holding,
}

impl<'a, T: ?Sized> RwLockWriteGuard<'a, T> {
    /// Goes on as a reader, with no writer in between; other readers come in.
    pub fn downgrade(self) -> RwLockReadGuard<'a, T> {
        RwLockReadGuard {
            inner: self.inner.map(tokio::sync::RwLockWriteGuard::downgrade),
            _holding: self.holding,
        }
    }
}

/// As [`RwLockReadGuard`], and keeps the lock alive.
#[must_use = "the lock is let go at once if the guard is not kept"]
pub struct OwnedRwLockReadGuard<T: ?Sized> {
    // In this order, as with readers; the lock goes last, so that whoever has the last one finds its value alone.
    inner: Inner<tokio::sync::OwnedRwLockReadGuard<T>>,
    _holding: Holding,
    _lock: Arc<RwLock<T>>,
}

/// As [`RwLockWriteGuard`], and keeps the lock alive.
#[must_use = "the lock is let go at once if the guard is not kept"]
pub struct OwnedRwLockWriteGuard<T: ?Sized> {
    // In this order, as with `OwnedRwLockReadGuard`.
    inner: Inner<tokio::sync::OwnedRwLockWriteGuard<T>>,
    holding: Holding,
    lock: Arc<RwLock<T>>,
}

impl<T: ?Sized> OwnedRwLockWriteGuard<T> {
    /// As [`RwLockWriteGuard::downgrade`].
    pub fn downgrade(self) -> OwnedRwLockReadGuard<T> {
        let downgrade = tokio::sync::OwnedRwLockWriteGuard::downgrade;
        OwnedRwLockReadGuard {
            inner: self.inner.map(downgrade),
            _holding: self.holding,
            _lock: self.lock,
        }
    }
}

super::guard!(RwLockReadGuard<'a>);
super::guard!(RwLockWriteGuard<'a>, mutable);
super::guard!(OwnedRwLockReadGuard);
super::guard!(OwnedRwLockWriteGuard, mutable);
