//! Whole connections in a group: an executor for `hyper` and whatever takes a `hyper::rt::Executor` (hyper-util's server, tonic's endpoint).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::group::{Group, spawn_at};
use crate::spawn::log_refused;
use crate::task_builder::Origin;

/// Spawns into one group. The handles are dropped: the tasks are detached, as hyper expects.
///
/// hyper's interface has no room for a refusal: a connection that the group does not take (removed, full, shut down) is closed.
/// [`GroupExecutor::refused`] counts them, and with the feature `tracing` each is a warning in the log.
#[derive(Clone, Debug)]
pub struct GroupExecutor {
    group: Group,
    /// Wraps at 2^64.
    refused: Arc<AtomicU64>,
}

impl GroupExecutor {
    /// An executor for `group`.
    pub fn new(group: Group) -> Self {
        Self {
            group,
            refused: Arc::default(),
        }
    }

    /// How many futures (connections, or streams of one) this executor and its clones had to drop so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

impl<F> ::hyper::rt::Executor<F> for GroupExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    #[track_caller]
    fn execute(&self, future: F) {
        let origin = Origin::caller();
        if let Err(error) = spawn_at(&self.group.shared, &self.group.inner, future, origin) {
            self.refused.fetch_add(1, Ordering::Relaxed);
            log_refused(&error, origin);
        }
    }
}
