//! Cancelling a task from outside.

use super::Id;
use super::reference::Reference;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};

/// The right to cancel a task, without the right to its output.
///
/// Dropping it changes nothing for the task.
#[derive(Clone)]
pub struct AbortHandle {
    task: Reference,
}

impl AbortHandle {
    pub(super) fn new(task: Reference) -> Self {
        Self { task }
    }

    pub(super) fn reference(&self) -> &Reference {
        &self.task
    }

    /// Cancels the task; does nothing if it is complete or about to be.
    ///
    /// Returns at once: the future is dropped by the scheduler, where it would have been polled next, or at the end of
    /// the poll under way. If that poll completes the task, its output stands. O(1).
    pub fn abort(&self) {
        self.task.abort();
    }

    /// Whether the task is complete, be it with an output, a panic or a cancellation.
    ///
    /// May be false for a moment after [`abort`](Self::abort).
    pub fn is_finished(&self) -> bool {
        self.task.load().is_complete()
    }

    /// The name of the task.
    pub fn id(&self) -> Id {
        self.task.id()
    }
}

impl UnwindSafe for AbortHandle {}
impl RefUnwindSafe for AbortHandle {}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AbortHandle")
            .field("id", &self.id())
            .finish()
    }
}
