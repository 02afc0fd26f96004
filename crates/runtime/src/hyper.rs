//! Whole connections in a group: an executor for `hyper` and whatever takes a `hyper::rt::Executor` (hyper-util's server, tonic's endpoint).

use std::future::Future;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::group::{Group, Seat, spawn_uncounted};
use crate::loss::{Loss, note};

/// Spawns into one group. The handles are dropped: the tasks are detached, as hyper expects.
///
/// hyper's interface has no room for a refusal: a connection that the group does not take (removed, full, shut down) is closed.
/// [`GroupExecutor::refused`] counts them, as [`crate::Losses::refused_connections`] does for the group, and with the feature `tracing`
/// the first of a group is a warning in the log.
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
        let here = Location::caller();
        if let Err(error) = spawn_uncounted(&self.group, future, here, Seat::Task) {
            let Group { shared, inner, .. } = &self.group;
            self.refused.fetch_add(1, Ordering::Relaxed);
            note(shared, inner, Loss::RefusedConnection, 1, &error);
        }
    }
}
