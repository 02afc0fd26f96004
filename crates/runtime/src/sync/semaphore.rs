//! A semaphore whose holders are not left throttled.

use crate::bandwidth::{ThrottleGuard, defer_throttle};

pub use tokio::sync::{AcquireError, TryAcquireError};

/// A counting semaphore; as [`tokio::sync::Semaphore`], and holders of permits are not left throttled (see the module).
#[derive(Debug)]
pub struct Semaphore {
    inner: tokio::sync::Semaphore,
}

impl Semaphore {
    /// The largest number of permits, tokio's.
    pub const MAX_PERMITS: usize = tokio::sync::Semaphore::MAX_PERMITS;

    /// A semaphore with so many permits.
    ///
    /// # Panics
    /// As tokio's: more than [`Semaphore::MAX_PERMITS`].
    pub fn new(permits: usize) -> Self {
        Self {
            inner: tokio::sync::Semaphore::new(permits),
        }
    }

    /// Permits that are free now.
    pub fn available_permits(&self) -> usize {
        self.inner.available_permits()
    }

    /// Adds permits.
    ///
    /// # Panics
    /// As tokio's: the sum exceeds [`Semaphore::MAX_PERMITS`].
    pub fn add_permits(&self, permits: usize) {
        self.inner.add_permits(permits);
    }

    /// Waits for a permit, first in, first out. Cancel-safe.
    ///
    /// # Errors
    /// [`AcquireError`] once the semaphore is closed.
    pub async fn acquire(&self) -> Result<SemaphorePermit<'_>, AcquireError> {
        self.acquire_many(1).await
    }

    /// Waits for several permits at once, first in, first out. Cancel-safe.
    ///
    /// # Errors
    /// [`AcquireError`] once the semaphore is closed.
    pub async fn acquire_many(&self, permits: u32) -> Result<SemaphorePermit<'_>, AcquireError> {
        let deferral = defer_throttle();
        Ok(SemaphorePermit {
            inner: self.inner.acquire_many(permits).await?,
            _deferral: deferral,
        })
    }

    /// A permit, if one is free now.
    ///
    /// # Errors
    /// [`TryAcquireError`] if none is, or once the semaphore is closed.
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        let inner = self.inner.try_acquire()?;
        Ok(SemaphorePermit {
            inner,
            _deferral: defer_throttle(),
        })
    }

    /// Refuses permits from now on; who waits is told.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Whether [`Semaphore::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }
}

/// A permit of a [`Semaphore`]; given back when dropped.
#[derive(Debug)]
#[must_use = "the permit is given back at once if it is not kept"]
pub struct SemaphorePermit<'a> {
    // Given back first: the next holder is chosen before this task can be throttled.
    inner: tokio::sync::SemaphorePermit<'a>,
    _deferral: ThrottleGuard,
}

impl SemaphorePermit<'_> {
    /// Uses the permits up instead of giving them back.
    pub fn forget(self) {
        self.inner.forget();
    }

    /// How many permits this stands for.
    pub fn num_permits(&self) -> usize {
        self.inner.num_permits()
    }
}
