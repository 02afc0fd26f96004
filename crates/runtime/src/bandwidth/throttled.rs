//! Telling a future how long it was throttled, so that it can tell a slow peer from a short quota.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;

use crate::local;

/// How long the current task has been throttled in all: it was ready to run, and its group or one above had used up its limit.
///
/// Zero outside a task, and for a task that was never in a limited group. Exact as of the start of the current poll. A caller with a
/// time-out of its own subtracts from the time that has passed what this has grown by. O(1), no lock.
pub fn throttled_time() -> Duration {
    Duration::from_nanos(local::throttled().as_nanos())
}

/// Adds [`WithThrottledExt::with_throttled`] to every future.
pub trait WithThrottledExt: Future + Sized {
    /// The future's output, and how long the task that awaited it was throttled meanwhile.
    fn with_throttled(self) -> WithThrottled<Self> {
        WithThrottled {
            inner: self,
            since: None,
        }
    }
}

impl<F: Future> WithThrottledExt for F {}

pin_project! {
    /// Future of [`WithThrottledExt::with_throttled`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless awaited"]
    pub struct WithThrottled<F> {
        #[pin]
        inner: F,
        since: Option<Duration>,
    }
}

impl<F: Future> Future for WithThrottled<F> {
    type Output = (F::Output, Duration);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let since = *this.since.get_or_insert_with(throttled_time);
        this.inner
            .poll(context)
            .map(|output| (output, throttled_time().saturating_sub(since)))
    }
}
