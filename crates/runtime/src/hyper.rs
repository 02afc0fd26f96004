//! Whole connections in a group: an executor for `hyper` and whatever takes a `hyper::rt::Executor` (hyper-util's server, tonic's endpoint).

use std::future::Future;

use crate::group::Group;

/// Spawns into one group. The handles are dropped: the tasks are detached, as hyper expects.
#[derive(Clone, Debug)]
pub struct GroupExecutor {
    group: Group,
}

impl GroupExecutor {
    /// An executor for `group`.
    pub fn new(group: Group) -> Self {
        Self { group }
    }
}

impl<F> ::hyper::rt::Executor<F> for GroupExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        drop(self.group.spawn(future));
    }
}
