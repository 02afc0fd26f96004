//! A set of tasks whose outputs come in the order of completion, as tokio's `JoinSet`.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::task::coop;

use crate::group::Group;
use crate::task::{AbortHandle, Id, JoinError, JoinHandle};

/// Tasks spawned into groups and awaited together. Dropping the set aborts what is left in it.
///
/// Names and meanings are those of tokio's `JoinSet`; where tokio's takes a runtime (`spawn_on`), this takes a group.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let scheduler = quotient::Scheduler::builder().build()?;
/// # let acme = scheduler.group("tenants/acme")?.create()?;
/// let sum = acme.spawn(async {
///     let set: quotient::JoinSet<u32> = (0..10).map(|number| async move { number }).collect();
///     set.join_all().await.into_iter().sum::<u32>()
/// });
/// assert_eq!(sum.await?, 45);
/// # scheduler.shutdown().await;
/// # Ok(())
/// # }
/// ```
pub struct JoinSet<T> {
    // `FuturesUnordered` polls only the handles that were woken, so a join costs O(1) however many tasks there are.
    handles: FuturesUnordered<Entry<T>>,
    /// Who waits for the next task, as of the last poll: a look without a waker must not silence it.
    waiter: Option<Waker>,
}

/// A handle that aborts its task when dropped, and says whose output it gives.
struct Entry<T> {
    handle: JoinHandle<T>,
    abort: bool,
}

impl<T> Future for Entry<T> {
    type Output = (Id, Result<T, JoinError>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let id = self.handle.id();
        Pin::new(&mut self.handle)
            .poll(context)
            .map(|output| (id, output))
    }
}

impl<T> Drop for Entry<T> {
    fn drop(&mut self) {
        if self.abort {
            self.handle.abort();
        }
    }
}

impl<T> Default for JoinSet<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for JoinSet<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("JoinSet")
            .field("len", &self.handles.len())
            .finish()
    }
}

impl<T> JoinSet<T> {
    /// An empty set.
    pub fn new() -> Self {
        Self {
            handles: FuturesUnordered::new(),
            waiter: None,
        }
    }

    /// Number of tasks whose output was not taken yet.
    pub fn len(&self) -> usize {
        self.handles.len()
    }

    /// Whether no task is left.
    pub fn is_empty(&self) -> bool {
        self.handles.is_empty()
    }
}

impl<T: 'static> JoinSet<T> {
    /// Spawns into the caller's group, as [`crate::spawn`].
    ///
    /// # Panics
    /// Outside any group.
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: Send,
    {
        self.insert(crate::spawn(future))
    }

    /// Spawns into `group`.
    #[track_caller]
    pub fn spawn_in<F>(&mut self, group: &Group, future: F) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
        T: Send,
    {
        self.insert(group.spawn(future))
    }

    /// Spawns a `!Send` task into the caller's group, as [`crate::spawn_local`].
    ///
    /// # Panics
    /// Outside any group or any local set.
    #[track_caller]
    pub fn spawn_local<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
    {
        self.insert(crate::spawn_local(future))
    }

    /// Spawns a `!Send` task into `group`, as [`Group::spawn_local`].
    ///
    /// # Panics
    /// Outside a local set.
    #[track_caller]
    pub fn spawn_local_in<F>(&mut self, group: &Group, future: F) -> AbortHandle
    where
        F: Future<Output = T> + 'static,
    {
        self.insert(group.spawn_local(future))
    }

    /// Runs a blocking function for the caller's group, as [`crate::spawn_blocking`].
    ///
    /// # Panics
    /// Outside any group.
    #[track_caller]
    pub fn spawn_blocking<F>(&mut self, function: F) -> AbortHandle
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send,
    {
        self.insert(crate::spawn_blocking(function))
    }

    /// Runs a blocking function for `group`, as [`Group::spawn_blocking`].
    #[track_caller]
    pub fn spawn_blocking_in<F>(&mut self, group: &Group, function: F) -> AbortHandle
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send,
    {
        self.insert(group.spawn_blocking(function))
    }

    /// Takes over a task that was spawned elsewhere, with [`crate::task::Builder`] for instance.
    pub fn insert(&mut self, handle: JoinHandle<T>) -> AbortHandle {
        let abort = handle.abort_handle();
        self.handles.push(Entry {
            handle,
            abort: true,
        });
        if let Some(waiter) = &self.waiter {
            // Whoever waits for the next task has not been told of this one, and it is polled only then.
            waiter.wake_by_ref();
        }
        abort
    }

    /// Waits for the next task that completes; `None` when the set is empty. Cancel safe.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        poll_fn(|context| self.poll_join_next(context)).await
    }

    /// As [`JoinSet::join_next`], with the task's id; a [`JoinError`] has the id anyway.
    pub async fn join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        poll_fn(|context| self.poll_join_next_with_id(context)).await
    }

    /// The output of a task that has completed, if there is one; `None` also when the set is empty.
    pub fn try_join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.look().map(|(_, output)| output)
    }

    /// As [`JoinSet::try_join_next`], with the task's id.
    pub fn try_join_next_with_id(&mut self) -> Option<Result<(Id, T), JoinError>> {
        self.look()
            .map(|(id, output)| output.map(|output| (id, output)))
    }

    /// Polls for the next task that completes; `Ready(None)` when the set is empty.
    pub fn poll_join_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, JoinError>>> {
        self.poll_next(context)
            .map(|next| next.map(|(_, output)| output))
    }

    /// As [`JoinSet::poll_join_next`], with the task's id.
    pub fn poll_join_next_with_id(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<(Id, T), JoinError>>> {
        self.poll_next(context)
            .map(|next| next.map(|(id, output)| output.map(|output| (id, output))))
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(Id, Result<T, JoinError>)>> {
        let polled = if self.is_empty() || coop::poll_proceed(context).is_ready() {
            // The handle that is ready takes a unit of the budget; that there is one is known here, or every handle would be asked in vain.
            self.handles.poll_next_unpin(context)
        } else {
            Poll::Pending
        };
        if polled.is_ready() {
            self.waiter = None;
            return polled;
        }
        match &mut self.waiter {
            Some(known) => known.clone_from(context.waker()),
            None => self.waiter = Some(context.waker().clone()),
        }
        polled
    }

    /// Looks for a completed task, on behalf of whoever waits already.
    fn look(&mut self) -> Option<(Id, Result<T, JoinError>)> {
        let waiter = self.waiter.clone();
        let waker = waiter.as_ref().unwrap_or(Waker::noop());
        let mut context = Context::from_waker(waker);
        // Whoever does not wait needs no budget, as in tokio.
        let next = poll_fn(|context| self.handles.poll_next_unpin(context));
        match pin!(coop::unconstrained(next)).poll(&mut context) {
            Poll::Ready(next) => next,
            Poll::Pending => None,
        }
    }

    /// Waits for all tasks; outputs in the order of completion.
    ///
    /// # Panics
    /// If a task panicked, with its payload; a cancelled task panics with a message, as in tokio's `join_all`.
    pub async fn join_all(mut self) -> Vec<T> {
        let mut outputs = Vec::with_capacity(self.len());
        while let Some(output) = self.join_next().await {
            match output {
                Ok(output) => outputs.push(output),
                Err(error) => match error.try_into_panic() {
                    Ok(payload) => std::panic::resume_unwind(payload),
                    Err(error) => panic!("{error}"),
                },
            }
        }
        outputs
    }

    /// Aborts every task; they stay in the set until joined.
    pub fn abort_all(&mut self) {
        for entry in &self.handles {
            entry.handle.abort();
        }
    }

    /// Aborts every task and waits until all have ended.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Removes every task from the set and lets them run on.
    pub fn detach_all(&mut self) {
        for entry in self.handles.iter_mut() {
            entry.abort = false;
        }
        self.handles.clear();
    }
}

impl<T, F> FromIterator<F> for JoinSet<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    /// Spawns every future into the caller's group.
    ///
    /// # Panics
    /// Outside any group, if there is a future.
    #[track_caller]
    fn from_iter<I: IntoIterator<Item = F>>(futures: I) -> Self {
        let mut set = Self::new();
        set.extend(futures);
        set
    }
}

impl<T, F> Extend<F> for JoinSet<T>
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    /// Spawns every future into the caller's group.
    ///
    /// # Panics
    /// Outside any group, if there is a future.
    #[track_caller]
    fn extend<I: IntoIterator<Item = F>>(&mut self, futures: I) {
        for future in futures {
            self.spawn(future);
        }
    }
}
