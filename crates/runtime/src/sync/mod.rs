//! Locks that know groups: whoever holds one is not left throttled, because others may wait for it.
//!
//! A throttled holder stalls everybody behind it for the rest of a period, groups without any limit included. So holding one of
//! these locks is a [`crate::defer_throttle`]: the holder's group runs on into a bounded debt, which its later refills pay. The
//! deferral begins with the wait, not with the lock: tokio hands a lock over to the longest waiter at the moment of the unlock,
//! so a waiter becomes the holder before it is polled again. And while somebody of another group waits, the holder runs in *that*
//! group, on the budget of who waits for it, however deep its own is in debt.
//!
//! The locks themselves are tokio's: fair, first in, first out, not poisoned by a panic.

mod loans;
mod mutex;
mod semaphore;

pub use mutex::{Mutex, MutexGuard, TryLockError};
pub use semaphore::{AcquireError, Semaphore, SemaphorePermit, TryAcquireError};
