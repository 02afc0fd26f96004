//! Waiting for a task's output.

use super::cell::{Header, allocate_failed};
use super::reference::Reference;
use super::state::Snapshot;
use super::{AbortHandle, AbortOnDropHandle, Context, Id, JoinError, Task, TaskRef, discard};
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Poll, Waker};

/// The right to a spawned task's output: a future of `Result<T, JoinError>`.
///
/// Dropping it detaches the task, which goes on and whose output is dropped when it completes.
pub struct JoinHandle<T> {
    /// Dropped by hand, together with the interest in the output.
    task: ManuallyDrop<Reference>,
    output: PhantomData<T>,
}

// SAFETY: the handle moves a `T` out of the task at most once, to the thread that polls it; `T: Send` allows that. The
// rest of it is a `Reference`, which is `Send`.
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: `&JoinHandle` gives no access to the output; the rest of it is a `Reference`, which is `Sync`.
unsafe impl<T: Send> Sync for JoinHandle<T> {}

impl<T> UnwindSafe for JoinHandle<T> {}
impl<T> RefUnwindSafe for JoinHandle<T> {}
impl<T> Unpin for JoinHandle<T> {}

/// The context of tasks that never were.
struct Unscheduled;

impl Context for Unscheduled {
    type Owned = ();

    fn schedule(task: Task<Self>) {
        // Cannot come: such a task is complete from the start. A token dropped is a task cancelled, in any case.
        drop(task);
    }

    fn released(_: &TaskRef<Self>) {}
}

impl<T> JoinHandle<T> {
    /// # Safety
    /// `task` is a counted reference to a task whose output is a `T`, with `JOIN_INTEREST` set; this is its only handle.
    pub(super) unsafe fn new(task: Reference) -> Self {
        Self {
            task: ManuallyDrop::new(task),
            output: PhantomData,
        }
    }

    /// A handle of a task that was never spawned: resolves at once to a [`JoinError`] that carries `reason`.
    #[doc(hidden)]
    pub fn failed(reason: &str) -> Self
    where
        T: 'static,
    {
        let id = Id::next();
        let error = JoinError::not_spawned(id, reason);
        let task = allocate_failed::<Unscheduled, T>(id, error, Unscheduled, ());
        // SAFETY: the one reference of the new allocation; its output type is `T`, its state has `JOIN_INTEREST`.
        unsafe { Self::new(Reference::from_raw(task)) }
    }

    pub(super) fn reference(&self) -> &Reference {
        &self.task
    }

    /// Cancels the task; see [`AbortHandle::abort`].
    pub fn abort(&self) {
        self.task.abort();
    }

    /// The right to cancel the task, to be kept apart from this handle.
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(Reference::clone(&self.task))
    }

    /// This handle, as one that cancels the task when it is dropped.
    pub fn abort_on_drop(self) -> AbortOnDropHandle<T> {
        AbortOnDropHandle::new(self)
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

    /// Makes `waker` the one to wake at completion. False: the task is complete.
    fn register(&self, now: Snapshot, waker: &Waker) -> bool {
        let header = self.task.header();
        if now.has_join_waker() {
            // SAFETY: `JOIN_WAKER` is set, and only this handle clears it: the slot holds the waker that this handle
            // wrote. The completing side may be moving it out, which is a read as well, and may already have consumed
            // it: hence only the two words of the waker are looked at, and nothing behind them. A consumed waker cannot
            // be mistaken for `waker` of another task: that one was alive before the slot's was consumed.
            let same = header
                .join_waker
                .with(|slot| unsafe { same_words(slot, waker) });
            if same {
                return true;
            }
            if !self.task.state().retract_join_waker() {
                return false;
            }
            // SAFETY: the slot was filled, and became this handle's again by the transition.
            let old = header
                .join_waker
                .with(|slot| unsafe { slot.read().assume_init() });
            drop_waker(old);
        }
        let fresh = waker.clone();
        // SAFETY: `JOIN_WAKER` is not set, so the slot is this handle's alone, and empty.
        header
            .join_waker
            .with_mut(|slot| unsafe { slot.write(MaybeUninit::new(fresh)) });
        if self.task.state().offer_join_waker() {
            return true;
        }
        // SAFETY: the task completed without seeing `JOIN_WAKER`, so the slot, just filled, stays this handle's.
        drop_waker(
            header
                .join_waker
                .with(|slot| unsafe { slot.read().assume_init() }),
        );
        false
    }
}

/// Whether the slot's waker is the same as `waker`, bit by bit.
///
/// # Safety
/// `slot` points to an initialised waker, perhaps already consumed.
unsafe fn same_words(slot: *const MaybeUninit<Waker>, waker: &Waker) -> bool {
    // SAFETY: the bytes are initialised and stay; `data` and `vtable` only read them.
    let stored = unsafe { (*slot).assume_init_ref() };
    std::ptr::eq(stored.data(), waker.data()) && std::ptr::eq(stored.vtable(), waker.vtable())
}

/// Drops a join waker, which is foreign code and may panic; the handle's poll or drop must not be cut short by it.
fn drop_waker(waker: Waker) {
    discard(waker);
}

/// Takes the join waker and wakes it.
///
/// # Safety
/// `header` is of a live task whose completion saw `JOIN_WAKER`; this is the completing side, and its only call.
pub(super) unsafe fn wake_joiner(header: &Header) {
    // SAFETY: the slot is filled and belongs to the completing side from the transition on; the handle only compares.
    let waker = header
        .join_waker
        .with(|slot| unsafe { slot.read().assume_init() });
    // Foreign code: a panic in it concerns neither this task nor the thread that happened to complete it.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        discard(payload);
    }
}

/// Takes a unit of tokio's budget of the task that polls; without any left, that is polled again after others. Nothing outside of tokio.
#[cfg(not(loom))]
fn cooperate(context: &mut std::task::Context<'_>) -> Poll<()> {
    let budget = tokio::task::coop::poll_proceed(context);
    budget.map(|budget| budget.made_progress())
}

/// Tokio is no part of the models.
#[cfg(loom)]
fn cooperate(_: &mut std::task::Context<'_>) -> Poll<()> {
    Poll::Ready(())
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Self::Output> {
        let now = self.task.load();
        if !now.is_complete() && self.register(now, context.waker()) {
            return Poll::Pending;
        }
        if cooperate(context).is_pending() {
            return Poll::Pending;
        }
        let mut output = MaybeUninit::<Self::Output>::uninit();
        // SAFETY: the task is complete (seen with Acquire) and this handle's interest was never given up: the output is
        // ours, and its type is `T`. The place is initialised if the call says so.
        unsafe {
            let taken = (self.task.header().vtable.take_output)(
                self.task.as_ptr(),
                output.as_mut_ptr().cast(),
            );
            assert!(taken, "`JoinHandle` polled after it was ready");
            Poll::Ready(output.assume_init())
        }
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let mut now = self.task.load();
        if self.task.state().try_detach(now) {
            // Interest and reference went in one step; `task` must not be touched, nor dropped.
            return;
        }
        if !now.is_complete() {
            now = self.task.state().drop_join_interest();
            if !now.is_complete() && now.has_join_waker() {
                // SAFETY: the slot was filled, and became this handle's again by the transition.
                drop_waker(
                    self.task
                        .header()
                        .join_waker
                        .with(|slot| unsafe { slot.read().assume_init() }),
                );
            }
        }
        if now.is_complete() {
            // SAFETY: complete while this handle's interest stood: the output is ours.
            unsafe { (self.task.header().vtable.drop_output)(self.task.as_ptr()) };
        }
        // SAFETY: dropped once, here; not used again.
        unsafe { ManuallyDrop::drop(&mut self.task) };
    }
}

impl<T: fmt::Debug> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("JoinHandle")
            .field("id", &self.id())
            .finish()
    }
}
