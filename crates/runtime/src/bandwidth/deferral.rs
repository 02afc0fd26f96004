//! Tasks that are not to be left throttled: holders of something that others wait for.
//!
//! # Protocol
//! A task has at most one [`Deferral`], a count of its live guards, made with its first guard. Guards may go anywhere and be
//! dropped on any thread: they only touch the count. The task's own poll is what makes the count mean something: at its end the
//! virtual CPU takes the deferral from the thread's notes into the task's `Owned`, and tells the core, before the poll is
//! charged, whether the count is above zero. So a guard that is taken and dropped within one poll costs the core nothing, a
//! throttle that this very poll brings about is deferred already, and a guard that is dropped elsewhere ends the exemption at
//! the task's next poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::local;

/// How many live guards a task has. 2^32 guards of one task would wrap; each is held by the user in 8 bytes of its own.
#[derive(Debug, Default)]
pub(crate) struct Deferral {
    guards: AtomicU32,
}

impl Deferral {
    /// Whether a guard lives.
    pub(crate) fn is_active(&self) -> bool {
        self.guards.load(Ordering::Relaxed) > 0
    }
}

/// Guard of [`defer_throttle`].
#[derive(Debug)]
#[must_use = "the throttle is deferred only while the guard lives"]
pub struct ThrottleGuard {
    deferral: Option<Arc<Deferral>>,
}

impl ThrottleGuard {
    /// Whether it guards a task; outside a task of a scheduler it does nothing.
    pub fn is_active(&self) -> bool {
        self.deferral.is_some()
    }
}

impl Drop for ThrottleGuard {
    fn drop(&mut self) {
        if let Some(deferral) = &self.deferral {
            deferral.guards.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The current task is not to be left throttled while the guard lives: it holds something that others wait for.
///
/// Its group then runs on into debt on the virtual CPU where the task is, by at most the smaller of its quota and 10 ms; later refills
/// pay the debt first. Beyond that bound the task is throttled like any other. Nests. Outside a task of a scheduler the guard
/// does nothing.
///
/// ```
/// # async fn critical_section() {}
/// # async fn example() {
/// let _guard = quotient::defer_throttle();
/// critical_section().await;
/// # }
/// ```
pub fn defer_throttle() -> ThrottleGuard {
    let deferral = local::deferral();
    if let Some(deferral) = &deferral {
        deferral.guards.fetch_add(1, Ordering::Relaxed);
    }
    ThrottleGuard { deferral }
}
