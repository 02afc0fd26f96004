//! Cancelling a task from outside.

use super::reference::Reference;
use super::{Id, JoinError, JoinHandle};
use std::fmt;
use std::future::Future;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::pin::Pin;
use std::task::Poll;

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
    /// the poll under way, also while its group is frozen or throttled. If that poll completes the task, its output stands. O(1).
    pub fn abort(&self) {
        self.task.abort();
    }

    /// Cancels the task; if it waits for a wake-up, here and now: its future's destructor runs on this thread, and it waits for
    /// no turn to end.
    #[doc(hidden)]
    pub fn abort_here(&self) {
        self.task.abort_here();
    }

    /// The first half of the abort of a promise: its holder finds the mark when it looks next. True: nobody has marked it before, and the second
    /// half, [`AbortHandle::wake_holder`], is the caller's to bring about. No foreign code runs.
    #[doc(hidden)]
    pub fn mark_promise(&self) -> bool {
        self.task.state().request_abort()
    }

    /// The second half: wakes the promise's holder, by a waker that may be anybody's.
    #[doc(hidden)]
    pub fn wake_holder(&self) {
        self.task.wake_holder();
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

/// A [`JoinHandle`] that cancels its task when it is dropped, as tokio-util's of that name.
#[derive(Debug)]
#[must_use = "dropping the handle cancels the task"]
pub struct AbortOnDropHandle<T> {
    /// `None` once detached.
    handle: Option<JoinHandle<T>>,
}

impl<T> AbortOnDropHandle<T> {
    /// Ties the task's life to the handle's.
    pub fn new(handle: JoinHandle<T>) -> Self {
        Self {
            handle: Some(handle),
        }
    }

    fn handle(&self) -> &JoinHandle<T> {
        let handle = self.handle.as_ref();
        handle.expect("only `detach` takes it, which consumes this")
    }

    /// Cancels the task; see [`AbortHandle::abort`].
    pub fn abort(&self) {
        self.handle().abort();
    }

    /// The right to cancel the task, to be kept apart from this handle.
    pub fn abort_handle(&self) -> AbortHandle {
        self.handle().abort_handle()
    }

    /// Whether the task is complete, be it with an output, a panic or a cancellation.
    pub fn is_finished(&self) -> bool {
        self.handle().is_finished()
    }

    /// The name of the task.
    pub fn id(&self) -> Id {
        self.handle().id()
    }

    /// The plain handle: dropping that lets the task go on.
    pub fn detach(mut self) -> JoinHandle<T> {
        let handle = self.handle.take();
        handle.expect("only this call takes it")
    }
}

impl<T> Future for AbortOnDropHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        match &mut self.handle {
            Some(handle) => Pin::new(handle).poll(context),
            None => unreachable!("only `detach` takes the handle, which consumes this"),
        }
    }
}

impl<T> Drop for AbortOnDropHandle<T> {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.abort();
        }
    }
}

impl<T> From<JoinHandle<T>> for AbortOnDropHandle<T> {
    fn from(handle: JoinHandle<T>) -> Self {
        Self::new(handle)
    }
}
