//! A scheduler that is one queue, and counts what happens to its tasks.
//!
//! Its own state is plain `std` even under loom: the model then knows of no ordering but that of the state word, and
//! finds a race wherever the word alone would not do.

use crate::primitives::UnsafeCell;
use crate::{Context, JoinHandle, Run, Task, TaskRef, spawn};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Wake, Waker};

/// What happened to the tasks of one mock scheduler.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) scheduled: AtomicUsize,
    pub(super) released: AtomicUsize,
    pub(super) polls: AtomicUsize,
    pub(super) futures_dropped: AtomicUsize,
    pub(super) cells_freed: AtomicUsize,
}

#[derive(Clone, Default)]
pub(super) struct Mock {
    queue: Arc<Mutex<VecDeque<Task<MockContext>>>>,
    pub(super) counts: Arc<Counts>,
}

pub(super) struct MockContext {
    mock: Mock,
    /// Read through references, written at the end: loom finds an end that does not come after every reading.
    probe: UnsafeCell<u8>,
}

// SAFETY: the probe is written only in `drop`, which has the context for itself.
unsafe impl Sync for MockContext {}

impl MockContext {
    /// Reads the context, as anybody with a reference may.
    pub(super) fn look(&self) {
        // SAFETY: never written while the context is shared.
        self.probe.with(|probe| assert_eq!(unsafe { *probe }, 0));
    }
}

impl Drop for MockContext {
    fn drop(&mut self) {
        // SAFETY: the context is ours.
        self.probe.with_mut(|probe| unsafe { *probe = 1 });
        self.mock.counts.cells_freed.fetch_add(1, SeqCst);
    }
}

impl Context for MockContext {
    /// How often a token's holder has run the task.
    type Owned = usize;

    fn schedule(mut task: Task<Self>) {
        // The waking thread may touch `Owned`: it holds the token.
        let _ = *task.owned_mut();
        let mock = task.context().mock.clone();
        task.context().look();
        mock.counts.scheduled.fetch_add(1, SeqCst);
        mock.push(task);
    }

    fn released(task: &TaskRef<Self>) {
        assert!(!task.is_finished(), "completion must not be seen before");
        task.context().mock.counts.released.fetch_add(1, SeqCst);
    }
}

impl Mock {
    /// Spawns `future`, to be counted; the token stays with the caller.
    pub(super) fn spawn_held<F>(
        &self,
        future: F,
    ) -> (
        Task<MockContext>,
        TaskRef<MockContext>,
        JoinHandle<F::Output>,
    )
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let counted = Counted {
            future,
            counts: Arc::clone(&self.counts),
        };
        let context = MockContext {
            mock: self.clone(),
            probe: UnsafeCell::new(0),
        };
        spawn(counted, context, 0)
    }

    /// Spawns `future`, to be counted, and queues it.
    pub(super) fn spawn<F>(&self, future: F) -> (TaskRef<MockContext>, JoinHandle<F::Output>)
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let (task, task_ref, handle) = self.spawn_held(future);
        self.push(task);
        (task_ref, handle)
    }

    pub(super) fn push(&self, task: Task<MockContext>) {
        self.queue.lock().unwrap().push_back(task);
    }

    pub(super) fn pop(&self) -> Option<Task<MockContext>> {
        self.queue.lock().unwrap().pop_front()
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.lock().unwrap().len()
    }

    /// Runs queued tasks until none is queued; a task that wakes itself for ever would not end.
    pub(super) fn drain(&self) {
        while let Some(mut task) = self.pop() {
            *task.owned_mut() += 1;
            if let Run::Again(task) = task.run(|_| false) {
                self.push(task);
            }
        }
    }

    /// Every one of `tasks` was released, its future dropped, and its memory freed, once.
    pub(super) fn assert_all_gone(&self, tasks: usize) {
        assert_eq!(self.queued(), 0);
        assert_eq!(
            self.counts.futures_dropped.load(SeqCst),
            tasks,
            "futures dropped"
        );
        assert_eq!(self.counts.released.load(SeqCst), tasks, "released");
        assert_eq!(self.counts.cells_freed.load(SeqCst), tasks, "freed");
    }

    pub(super) fn polls(&self) -> usize {
        self.counts.polls.load(SeqCst)
    }

    pub(super) fn scheduled(&self) -> usize {
        self.counts.scheduled.load(SeqCst)
    }
}

/// Counts the polls and the drop of a future.
struct Counted<F> {
    future: F,
    counts: Arc<Counts>,
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<F::Output> {
        self.counts.polls.fetch_add(1, SeqCst);
        // SAFETY: structural pinning of the only field that cares; `Counted` has no `Drop` that moves it.
        unsafe { self.map_unchecked_mut(|counted| &mut counted.future) }.poll(context)
    }
}

impl<F> Drop for Counted<F> {
    fn drop(&mut self) {
        self.counts.futures_dropped.fetch_add(1, SeqCst);
    }
}

/// A waker that counts its wake-ups.
#[derive(Default)]
pub(super) struct CountingWaker(AtomicUsize);

impl CountingWaker {
    pub(super) fn pair() -> (Arc<Self>, Waker) {
        let counter = Arc::new(Self::default());
        (Arc::clone(&counter), Waker::from(counter))
    }

    pub(super) fn wakes(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// Polls once with `waker`.
pub(super) fn poll_with<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut std::task::Context::from_waker(waker))
}

/// The output of a finished task.
pub(super) fn output<F: Future + Unpin>(handle: &mut F) -> F::Output {
    match poll_with(handle, Waker::noop()) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the task is not finished"),
    }
}

/// Where a task leaves its waker for the test.
#[derive(Clone, Default)]
pub(super) struct WakerSlot(Arc<Mutex<Option<Waker>>>);

impl WakerSlot {
    pub(super) fn store(&self, context: &std::task::Context<'_>) {
        *self.0.lock().unwrap() = Some(context.waker().clone());
    }

    pub(super) fn take(&self) -> Waker {
        self.0
            .lock()
            .unwrap()
            .take()
            .expect("the task has left its waker")
    }
}
