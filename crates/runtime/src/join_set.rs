//! A set of tasks whose outputs come in the order of completion, as tokio's `JoinSet`.

use std::fmt;
use std::future::Future;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::group::Group;
use crate::task::{AbortHandle, JoinError, JoinHandle};

/// Tasks spawned into groups and awaited together. Dropping the set aborts what is left in it.
pub struct JoinSet<T> {
    // `FuturesUnordered` polls only the handles that were woken, so a join costs O(1) however many tasks there are.
    handles: FuturesUnordered<Aborting<T>>,
}

/// A handle that aborts its task when dropped.
struct Aborting<T>(JoinHandle<T>, bool);

impl<T> Future for Aborting<T> {
    type Output = Result<T, JoinError>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        std::pin::Pin::new(&mut self.0).poll(context)
    }
}

impl<T> Drop for Aborting<T> {
    fn drop(&mut self) {
        if self.1 {
            self.0.abort();
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

impl<T: Send + 'static> JoinSet<T> {
    /// Spawns into the caller's group, as [`crate::spawn`].
    #[track_caller]
    pub fn spawn<F>(&mut self, future: F) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.insert(crate::spawn(future))
    }

    /// Spawns into `group`.
    #[track_caller]
    pub fn spawn_in<F>(&mut self, group: &Group, future: F) -> AbortHandle
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.insert(group.spawn(future))
    }

    fn insert(&mut self, handle: JoinHandle<T>) -> AbortHandle {
        let abort = handle.abort_handle();
        self.handles.push(Aborting(handle, true));
        abort
    }

    /// Waits for the next task that completes; `None` when the set is empty. Cancel safe.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.handles.next().await
    }

    /// Polls for the next task that completes; `Ready(None)` when the set is empty.
    pub fn poll_join_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<T, JoinError>>> {
        self.handles.poll_next_unpin(context)
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
    pub fn abort_all(&self) {
        for handle in &self.handles {
            handle.0.abort();
        }
    }

    /// Aborts every task and waits until all have ended.
    pub async fn shutdown(&mut self) {
        self.abort_all();
        while self.join_next().await.is_some() {}
    }

    /// Removes every task from the set and lets them run on.
    pub fn detach_all(&mut self) {
        for handle in self.handles.iter_mut() {
            handle.1 = false;
        }
        self.handles.clear();
    }
}
