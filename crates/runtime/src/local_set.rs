//! `!Send` tasks: a local task of tokio's `LocalSet` whose polls are metered and ordered by a group.
//!
//! The future lives in tokio's task, on its thread. The handle is ours, and so what is promised to it (`task/promise`): the
//! output, the payload of a panic, or a cancellation, if it was aborted or the local set was dropped first.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::error::SpawnError;
use crate::group::{Group, admits};
use crate::in_group::{InGroup, InGroupExt};
use crate::kills::is_stillborn;
use crate::local_tasks::Seat;
use crate::shared::OPEN;
use crate::spawn::refused;
use crate::task::trace::{Labels, TaskSpan, Traced};
use crate::task::{Id, JoinHandle, Promise, promise};
use crate::task_builder::Origin;

impl Group {
    /// Spawns a `!Send` future onto the current [`tokio::task::LocalSet`], as a member of the group: `spawn_local` of
    /// [`InGroupExt::in_group`]. It is polled on the local set's thread when its turn among the groups has come.
    ///
    /// A kill of the group and [`crate::Scheduler::shutdown`] end it at the next poll of the local set, which drops the future unpolled; an
    /// abort, too.
    ///
    /// A group that takes no tasks any more gives a handle that resolves at once to an error.
    ///
    /// # Panics
    /// As `tokio::task::spawn_local`: outside a local set.
    #[track_caller]
    pub fn spawn_local<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let origin = Origin::caller();
        spawn_at(self, future, origin).unwrap_or_else(|error| refused(&error))
    }
}

/// Makes a local task.
#[track_caller]
pub(crate) fn spawn_at<F>(
    group: &Group,
    future: F,
    origin: Origin<'_>,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + 'static,
    F::Output: 'static,
{
    admits(&group.shared, &group.inner)?;
    // S1 of `kills`.
    let kills = group.shared.kills.now();
    let id = Id::next();
    let span = TaskSpan::open(
        id,
        &Labels {
            kind: "local",
            name: origin.name,
            group: group.path(),
            size: size_of::<F>(),
            location: origin.location,
        },
    );
    let (promise, handle) = promise(id, span.id());
    let seat = Seat::new(&group.shared, &group.inner, handle.abort_handle());
    if is_stillborn(&group.inner.killed_at, kills, None) || group.shared.phase() != OPEN {
        handle.abort();
    }
    // The handle of tokio's task is not needed: ours is told of everything.
    drop(tokio::task::spawn_local(LocalTask {
        future: Some(span.around(future.in_group(group))),
        promise: Some(promise),
        seat,
    }));
    Ok(handle)
}

pin_project! {
    /// What tokio polls. Never panics itself.
    struct LocalTask<F: Future> {
        // Before the promise: the handle hears of a cancellation when the future is gone.
        #[pin]
        future: Option<Traced<InGroup<F>>>,
        promise: Option<Promise<F::Output>>,
        // Last: who waits for the end finds all of it over.
        seat: Seat,
    }
}

impl<F> Future for LocalTask<F>
where
    F: Future + 'static,
    F::Output: 'static,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let _polling = this.seat.begin_poll();
        let Some(promise) = this.promise.as_ref() else {
            return Poll::Ready(());
        };
        // In this order: see why no abort is lost, in `task/promise`.
        promise.watch(context.waker());
        let polled = if promise.is_aborted() {
            None
        } else {
            let poll = || match this.future.as_mut().as_pin_mut() {
                Some(future) => future.poll(context),
                None => Poll::Pending,
            };
            match catch_unwind(AssertUnwindSafe(|| promise.run(poll))) {
                Ok(Poll::Pending) if !promise.is_aborted() => return Poll::Pending,
                Ok(Poll::Pending) => None,
                Ok(Poll::Ready(output)) => Some(Ok(output)),
                Err(payload) => Some(Err(payload)),
            }
        };
        let dropped = catch_unwind(AssertUnwindSafe(|| promise.run(|| this.future.set(None))));
        // As for every task: the first panic stands, and one of the future's destructor takes the output's place.
        let end = match (polled, dropped) {
            (Some(Err(payload)), _) | (_, Err(payload)) => Some(Err(payload)),
            (polled, Ok(())) => polled,
        };
        if let Some(promise) = this.promise.take()
            && let Some(end) = end
        {
            promise.deliver(end);
        }
        Poll::Ready(())
    }
}
