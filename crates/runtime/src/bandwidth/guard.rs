//! The guard of a task that is not to be left throttled.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Deferral;
use crate::local;

/// Guard of [`defer_throttle`].
#[derive(Debug)]
#[must_use = "the throttle is deferred only while the guard lives"]
pub struct ThrottleGuard {
    deferral: Option<Arc<Deferral>>,
}

impl ThrottleGuard {
    /// Of no task.
    pub(crate) fn none() -> Self {
        Self { deferral: None }
    }

    /// Whether it guards a task.
    pub fn is_active(&self) -> bool {
        self.deferral.is_some()
    }

    pub(crate) fn deferral(&self) -> Option<&Arc<Deferral>> {
        self.deferral.as_ref()
    }
}

impl Drop for ThrottleGuard {
    fn drop(&mut self) {
        if let Some(deferral) = &self.deferral {
            deferral.guards.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Keeps the current task from being left throttled while the guard lives, since it holds something for which other tasks wait.
///
/// Its group then runs on into debt on the virtual CPU where the task is, by at most the smaller of its quota and 10 ms; later refills
/// pay the debt first. Beyond that bound the task is throttled like any other. Nests. Outside a task of a scheduler, and while no
/// group of the process has a limit, the guard does nothing.
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
