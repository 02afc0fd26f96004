//! A semaphore whose holders are not left throttled.

use std::sync::Arc;

use super::loans::{Holding, wait};
use super::{cooperate, shield};
use crate::bandwidth::{Line, ThrottleGuard, defer_throttle};

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
        cooperate().await;
        match self.try_acquire_many(permits) {
            Err(TryAcquireError::NoPermits) => {}
            Ok(permit) => return Ok(permit),
            // The longer way says it in the error's own type.
            Err(TryAcquireError::Closed) => {}
        }
        let deferral = defer_throttle();
        let (inner, holding) = wait(&self.line, &deferral, self.inner.acquire_many(permits)).await;
        let inner = inner?;
        Ok(SemaphorePermit {
            _holding: holding,
            inner,
            _deferral: deferral,
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
        let _shield = shield();
        let inner = self.inner.try_acquire_many(permits)?;
        let deferral = defer_throttle();
        Ok(SemaphorePermit {
            _holding: Holding::new(&self.line, &deferral),
            inner,
            _deferral: deferral,
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
        let deferral = defer_throttle();
        let (inner, holding) = wait(
            &self.line,
            &deferral,
            self.inner.clone().acquire_many_owned(permits),
        )
        .await;
        let inner = inner?;
        Ok(OwnedSemaphorePermit {
            _holding: holding,
            inner,
            _deferral: deferral,
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
        let _shield = shield();
        let inner = self.inner.clone().try_acquire_many_owned(permits)?;
        let deferral = defer_throttle();
        Ok(OwnedSemaphorePermit {
            _holding: Holding::new(&self.line, &deferral),
            inner,
            _deferral: deferral,
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
    // In this order: the next holder is chosen, and only then the loan ends, and this task may be throttled.
    inner: tokio::sync::SemaphorePermit<'a>,
    _holding: Holding,
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

/// As [`SemaphorePermit`], and keeps the semaphore alive.
#[derive(Debug)]
#[must_use = "the permit is given back at once if it is not kept"]
pub struct OwnedSemaphorePermit {
    // In this order, see `SemaphorePermit`.
    inner: tokio::sync::OwnedSemaphorePermit,
    _holding: Holding,
    _deferral: ThrottleGuard,
}

impl OwnedSemaphorePermit {
    /// Uses the permits up instead of giving them back.
    pub fn forget(self) {
        self.inner.forget();
    }

    /// How many permits this stands for.
    pub fn num_permits(&self) -> usize {
        self.inner.num_permits()
    }
}
