//! A semaphore whose holders are not left throttled.

use std::sync::Arc;

use quotient_pause::in_one_plea;

use super::cooperate;
use super::loans::{Holding, Inner, attempt, wait};
use crate::bandwidth::Line;

pub use tokio::sync::{AcquireError, TryAcquireError};

/// A counting semaphore; as [`tokio::sync::Semaphore`], and holders of permits are not left throttled (see the module).
#[derive(Debug)]
pub struct Semaphore {
    line: Arc<Line>,
    /// Apart, for permits that own their semaphore.
    inner: Arc<tokio::sync::Semaphore>,
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
            line: Arc::default(),
            inner: Arc::new(tokio::sync::Semaphore::new(permits)),
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
        in_one_plea(|| self.inner.add_permits(permits));
    }

    /// Takes so many permits away, or as many as are free now. How many that were.
    pub fn forget_permits(&self, permits: usize) -> usize {
        in_one_plea(|| self.inner.forget_permits(permits))
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
        cooperate().await;
        match self.try_acquire_many(permits) {
            Err(TryAcquireError::NoPermits) => {}
            Ok(permit) => return Ok(permit),
            // The longer way says it in the error's own type.
            Err(TryAcquireError::Closed) => {}
        }
        let (inner, holding) = wait(&self.line, self.inner.acquire_many(permits)).await;
        let inner = inner?;
        Ok(SemaphorePermit {
            inner: Inner::new(inner),
            _holding: holding,
        })
    }

    /// A permit, if one is free now.
    ///
    /// # Errors
    /// [`TryAcquireError`] if none is, or once the semaphore is closed.
    pub fn try_acquire(&self) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        self.try_acquire_many(1)
    }

    /// Several permits at once, if they are free now.
    ///
    /// # Errors
    /// As [`Semaphore::try_acquire`].
    pub fn try_acquire_many(&self, permits: u32) -> Result<SemaphorePermit<'_>, TryAcquireError> {
        let (inner, holding) =
            attempt_many(&self.line, permits, || self.inner.try_acquire_many(permits))?;
        Ok(SemaphorePermit {
            inner,
            _holding: holding,
        })
    }

    /// As [`Semaphore::acquire`], with a permit that keeps the semaphore alive: for tasks that take it along.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`].
    pub async fn acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, AcquireError> {
        self.acquire_many_owned(1).await
    }

    /// As [`Semaphore::acquire_many`], with a permit that keeps the semaphore alive.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`].
    pub async fn acquire_many_owned(
        self: Arc<Self>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        cooperate().await;
        match self.clone().try_acquire_many_owned(permits) {
            Err(TryAcquireError::NoPermits) => {}
            Ok(permit) => return Ok(permit),
            // The longer way says it in the error's own type.
            Err(TryAcquireError::Closed) => {}
        }
        let (inner, holding) =
            wait(&self.line, self.inner.clone().acquire_many_owned(permits)).await;
        let inner = inner?;
        Ok(OwnedSemaphorePermit {
            inner: Inner::new(inner),
            _holding: holding,
        })
    }

    /// As [`Semaphore::try_acquire`], with a permit that keeps the semaphore alive.
    ///
    /// # Errors
    /// As [`Semaphore::try_acquire`].
    pub fn try_acquire_owned(self: Arc<Self>) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        self.try_acquire_many_owned(1)
    }

    /// As [`Semaphore::try_acquire_many`], with a permit that keeps the semaphore alive.
    ///
    /// # Errors
    /// As [`Semaphore::try_acquire`].
    pub fn try_acquire_many_owned(
        self: Arc<Self>,
        permits: u32,
    ) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        let (inner, holding) = attempt_many(&self.line, permits, || {
            self.inner.clone().try_acquire_many_owned(permits)
        })?;
        Ok(OwnedSemaphorePermit {
            inner,
            _holding: holding,
        })
    }

    /// Refuses permits from now on; who waits is told.
    pub fn close(&self) {
        in_one_plea(|| self.inner.close());
    }

    /// Whether [`Semaphore::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }
}

/// As [`attempt`]. Who has no permit holds nothing, and could have that at any time. (A tenant of 0.01 CPUs that took none again and again had 0.5 to 1.1, lent by who waited for one.)
fn attempt_many<G, E>(
    line: &Arc<Line>,
    permits: u32,
    lock: impl FnOnce() -> Result<G, E>,
) -> Result<(Inner<G>, Holding), E> {
    if permits == 0 {
        return Ok((Inner::new(lock()?), Holding::none()));
    }
    attempt(line, lock)
}

/// A permit of a [`Semaphore`]; given back when dropped.
#[derive(Debug)]
#[must_use = "the permit is given back at once if it is not kept"]
pub struct SemaphorePermit<'a> {
    // In this order: the next holder is chosen, and only then the loan ends, and this task may be throttled.
    inner: Inner<tokio::sync::SemaphorePermit<'a>>,
    _holding: Holding,
}

impl SemaphorePermit<'_> {
    /// Uses the permits up instead of giving them back.
    pub fn forget(self) {
        self.inner.with(tokio::sync::SemaphorePermit::forget);
    }

    /// How many permits this stands for.
    pub fn num_permits(&self) -> usize {
        self.inner.num_permits()
    }
}

/// As [`SemaphorePermit`], and keeps the semaphore alive.
#[derive(Debug)]
#[must_use = "the permit is given back at once if it is not kept"]
pub struct OwnedSemaphorePermit {
    // In this order, see `SemaphorePermit`.
    inner: Inner<tokio::sync::OwnedSemaphorePermit>,
    _holding: Holding,
}

impl OwnedSemaphorePermit {
    /// Uses the permits up instead of giving them back.
    pub fn forget(self) {
        self.inner.with(tokio::sync::OwnedSemaphorePermit::forget);
    }

    /// How many permits this stands for.
    pub fn num_permits(&self) -> usize {
        self.inner.num_permits()
    }
}
