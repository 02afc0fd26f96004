//! Task cells: a future, what its scheduler keeps about it, and the one word that says who may touch what.
//!
//! Nothing of scheduling is in here: a scheduler gives each task a [`Context`], gets its *token* ([`Task`]) when the task is to be
//! run, and polls it when it likes. Wakers, join handles, cancellation, panics and the memory are this crate's business, and
//! safe to use: no misuse of a token, a reference or a [`Slot`] breaks the memory.
//!
//! The crate is made for `quotient`, whose users meet [`JoinHandle`], [`AbortHandle`], [`JoinError`] and [`Id`] there. What only a
//! scheduler calls of those is hidden from their documentation.
//!
//! # Words
//! - **cell**: the one allocation of a task: header (state word, table, identifier, join waker's slot), the scheduler's
//!   `Context`, its `Owned` part, and the future, later the output, in the same place.
//! - **token**: the right and duty to run the task (`Task`; `Parking` between a pending poll and *idle*; `Finishing`
//!   between the stored output and *complete*, so that the last poll is charged before anybody sees the end). It exists if
//!   and only if the task is queued or being run, and there is never more than one.
//! - **reference**: a count that keeps the memory: `TaskRef`, `JoinHandle`, `AbortHandle`, every cloned waker. The
//!   token is not counted: while it exists, the state itself keeps the memory.
//! - **completing side**: the token's holder from `COMPLETE` on.
//!
//! # The state word (`state.rs`)
//! `WAKES` (30 bits, on top), `REFERENCES` (30 bits), `JOIN_WAKER`, `JOIN_INTEREST`, `ABORT`, `COMPLETE`.
//! While the task is not complete, *a token exists if and only if `WAKES > 0`*. So no bit says "queued" or "running", and
//! a wake-up is one unconditional addition; whoever adds to zero has made the token.
//!
//! | transition | step | ordering | made by |
//! |---|---|---|---|
//! | wake | `+WAKE`; was 0: the token is the caller's, schedule it | AcqRel | any reference's holder, or the polled task |
//! | wake by value | `+WAKE -REFERENCE`; was 0: schedule; complete and last: free | AcqRel | a waker, consumed |
//! | begin | load, no write: `seen = WAKES` | Acquire | token |
//! | again | load: `WAKES != seen`, no write: the token stays | Acquire | token, poll pending |
//! | idle | `-seen*WAKE`; became 0: the token is gone | AcqRel | token, poll pending |
//! | complete | `+COMPLETE +REFERENCE`: the token becomes a reference | AcqRel | token, output stored |
//! | retain, release | `+-REFERENCE`; last and complete: free; last and idle: orphan | Relaxed, AcqRel | references |
//! | abort | `or ABORT`; was neither set nor complete: wake | AcqRel | any reference's holder |
//! | offer, retract | `or`, `and-not JOIN_WAKER` | AcqRel | the join handle |
//! | detach | `and-not JOIN_INTEREST, JOIN_WAKER` | AcqRel | the join handle, dropped |
//!
//! A cycle of wake, run, idle is 2 read-modify-writes (3 with a waker cloned and consumed on the way); a task that
//! woke itself and runs again costs 1.
//!
//! # Who may touch what
//! - **Future, `Owned`**: the token's holder. Tokens pass from holder to holder either by hand or through the word:
//!   *idle* releases, and the wake-up that makes the next token acquires. From *idle* on, a waker on another thread may
//!   already hold the next token: whatever is to be settled in `Owned` after a poll is settled before `Parking::park`.
//! - **Output**: the token's holder stores it. At *complete*, if `JOIN_INTEREST` was set, it is the join handle's, and if
//!   not, the completing side's, which drops it. The handle gives up its interest by one step on the same word, so that
//!   exactly one of the two sees the other's step first. The place is emptied when read: at most one reader.
//! - **Join waker's slot**: the join handle's, except that from *offer* to *retract* or *detach* it is lent; if
//!   *complete* comes in that time (it saw `JOIN_WAKER`), it is the completing side's for good. While lent, the handle
//!   only compares the slot's two words with another waker; the completing side moves the waker out, which is a read too,
//!   so the two do not collide.
//! - **`Context`**: shared by all, never written.
//!
//! # Why no wake-up is lost
//! A wake-up adds 1. Either *begin* counted it: then the poll that follows comes after all its waker did (Acquire on a
//! chain of releasing read-modify-writes). Or it did not: then `WAKES > seen` at *idle*, which subtracts only what was
//! seen; the rest is above zero, so the token stays. Or it comes after *idle* and finds zero: it makes the token.
//! Whoever has made the token owes the call of the scheduler, and nobody else makes one until then: a scheduler that stops threads keeps
//! the two together (`Context::in_one_step`), and so an abort's mark and the wake-up that follows.
//! `WAKES` cannot overflow: counts above a limit are cut back to it, and *begin* always sees less than the limit (it
//! starts the count at 1 if need be), so that cutting never hides a wake-up; `state.rs` has the bound.
//!
//! # Why the future is dropped once, and the memory freed once
//! The future is dropped by the token's holder only, just before *complete*; after that there is never a token again
//! (a wake-up looks at `COMPLETE` before anything else). The memory goes when no reference and no token is left, and the
//! step that brings this about is unique: on a complete task the release (or wake by value) of the last reference; on an
//! idle one the release of the last reference, or *idle* with no reference left. In the two latter cases nothing can
//! ever wake the task: it is an **orphan**, and whoever made it one is alone with it. That side makes a token with
//! `ABORT`; `idle` cancels at once, a release schedules it, since the dropped waker may sit under a lock which the
//! future's destructor wants.
//!
//! # Abort
//! Complete: nothing. Queued: the holder sees `ABORT` at *begin* and drops the future unpolled. Polled: seen after a
//! pending poll; a ready poll wins, its output stands. Idle: the wake-up queues the task, the rest as queued. A token
//! that is dropped (a queue goes down) cancels in its destructor, on that thread; `Task::cancel` is the same by name.
//!
//! # Panics
//! - in a poll: caught; the future is dropped; the payload goes to the join handle.
//! - in the future's destructor, after ready or on cancellation: caught; it goes to the join handle instead of the
//!   output. After a panic in the poll: the first payload stays.
//! - in the output's destructor (a detached task, a handle dropped late), and in a join waker: caught and dropped, since
//!   nobody is left to be told.
//! - in `Context::released`: aborts the process. A scheduler whose lists are broken must not go on.
//!
//! # The deferral probe
//! A future may hand its waker to something that wakes it "later, on this thread" (tokio's deferred wake-ups). `Task::poll`
//! tells its caller when that is possible: pending, and the waker was cloned on this thread during the poll.
//! The caller then probes with the same waker; meanwhile clones of it are no-op wakers and are noted
//! (`probe_cloned`). Waking it in the probe is a real wake-up: the task runs once more.
//!
//! A task that was woken meanwhile runs once more whatever the answer, but the caller is told all the same. A list that keeps no waker
//! twice in a row would otherwise still end with the task's, and would clone nothing at the task's next yield: nobody
//! would be asked about that one.

#![cfg_attr(loom, allow(dead_code, unused_imports))]

mod abort;
mod cell;
mod checked;
mod error;
mod id;
mod join;
mod polled;
mod primitives;
mod promise;
mod reference;
mod slot;
mod state;
#[cfg(test)]
mod tests;
pub mod trace;
mod waker;

pub use abort::{AbortHandle, AbortOnDropHandle};
pub use cell::bytes_beside_future;
pub use error::JoinError;
pub use id::{Id, id, try_id};
pub use join::JoinHandle;
pub use polled::{Finishing, Parked, Parking, Polled};
pub use promise::{Promise, promise};
pub use slot::{Put, Slot, Vacancy};
pub use waker::is_of_a_task;
pub use waker::probe_cloned;

use cell::{Core, Header};
use reference::Reference;
use state::State;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::task::Waker;

/// What a scheduler keeps with each task, and how its tasks reach it.
pub trait Context: Sized + Send + Sync + 'static {
    /// Touched only by the token's holder.
    type Owned: Send;

    /// The task is to be run: a wake-up found it idle, or its last reference went while it was idle (then running it
    /// drops the future).
    ///
    /// Called on the thread that woke, which may hold any lock of its own. A token that is dropped cancels the task.
    fn schedule(task: Task<Self>);

    /// The future is dropped, the output stored, and in a moment the handle will see it.
    ///
    /// Called exactly once a task, by the token's holder, before completion can be seen: remove the task from lists
    /// here. Must not panic.
    fn released(task: &TaskRef<Self>);

    /// The task `id` was asked to cancel itself, which its token's holder will see. Called once a task, on the thread that asked.
    fn aborted(&self, _id: Id) {}

    /// Whether threads may be stopped where they wake a task; then [`Context::in_one_step`] is for that.
    #[inline(always)]
    fn stops_threads() -> bool {
        false
    }

    /// Runs `act`: a wake-up to the end of [`Context::schedule`], or an abort to the end of [`Context::aborted`]. From the first step on nobody else
    /// can do the rest, so a scheduler that stops threads does not stop the calling one in it.
    #[inline(always)]
    fn in_one_step<R>(act: impl FnOnce() -> R) -> R {
        act()
    }
}

/// [`spawn_as`] with a name and a span of its own.
#[cfg(test)]
pub(crate) fn spawn<C, F>(
    future: F,
    context: C,
    owned: C::Owned,
) -> (Task<C>, TaskRef<C>, JoinHandle<F::Output>)
where
    C: Context,
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_as(Id::next(), trace::SpanId::NONE, future, context, owned)
}

/// Makes a task, queued: the caller runs it by its token or schedules that.
///
/// One allocation. The token may be dropped, which cancels the task.
pub fn spawn_as<C, F>(
    id: Id,
    span: trace::SpanId,
    future: F,
    context: C,
    owned: C::Owned,
) -> (Task<C>, TaskRef<C>, JoinHandle<F::Output>)
where
    C: Context,
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let task = cell::allocate(State::spawned(), id, span, future, context, owned);
    // SAFETY: the state counts one token, two references and the interest of a handle; the output's type is the future's.
    unsafe {
        (
            Task::from_raw(task),
            TaskRef {
                task: Reference::from_raw(task),
                context: PhantomData,
            },
            JoinHandle::new(Reference::from_raw(task)),
        )
    }
}

/// The run token of a task: exists exactly while the task is queued or being run.
///
/// Dropping it cancels the task: the future is dropped at once, on this thread, and its handle sees a cancellation.
#[must_use = "a token that is dropped cancels its task"]
pub struct Task<C: Context> {
    task: NonNull<Header>,
    context: PhantomData<C>,
}

// SAFETY: the token gives access to the future, the output and `Owned`, all `Send` (`spawn` and the trait demand it), and to
// the context, which is `Sync`.
unsafe impl<C: Context> Send for Task<C> {}
// SAFETY: `&Task` gives access to the context, which is `Sync`, and to a new `TaskRef`; `Owned` takes `&mut Task`.
unsafe impl<C: Context> Sync for Task<C> {}

/// What became of a task that was run by [`Task::run`].
#[cfg(test)]
pub(crate) enum Run<C: Context> {
    /// Waiting for a wake-up, which schedules it.
    Idle,
    /// To be queued again.
    Again(Task<C>),
    /// Complete.
    Done,
}

impl<C: Context> Task<C> {
    /// # Safety
    /// `task` is a cell of context `C`, and the caller holds its token, which the result takes over.
    #[inline(always)]
    unsafe fn from_raw(task: NonNull<Header>) -> Self {
        Self {
            task,
            context: PhantomData,
        }
    }

    /// A look at the task through the token, which keeps the memory while `self` is borrowed.
    #[inline(always)]
    fn view(&self) -> ManuallyDrop<Reference> {
        // SAFETY: never dropped; every use below ends before the token does.
        ManuallyDrop::new(unsafe { Reference::from_raw(self.task) })
    }

    /// What the scheduler keeps with the task, for everybody.
    #[inline]
    pub fn context(&self) -> &C {
        // SAFETY: the token keeps the memory; the cell begins with a `Core<C>`, whose context is never written.
        unsafe { &(*self.task.cast::<Core<C>>().as_ptr()).context }
    }

    /// What the scheduler keeps with the task, for the token's holder.
    #[inline]
    pub fn owned_mut(&mut self) -> &mut C::Owned {
        // SAFETY: the token keeps the memory and is unique; the result borrows it for as long.
        unsafe {
            (*self.task.cast::<Core<C>>().as_ptr())
                .owned
                .with_mut(|owned| &mut *owned)
        }
    }

    /// The name of the task.
    pub fn id(&self) -> Id {
        self.view().id()
    }

    /// A new counted reference.
    #[cfg(test)]
    pub(crate) fn task_ref(&self) -> TaskRef<C> {
        TaskRef {
            task: Reference::clone(&self.view()),
            context: PhantomData,
        }
    }

    /// Whether the task is to be dropped instead of polled.
    pub fn is_aborted(&self) -> bool {
        self.view().load().is_aborted()
    }

    /// Asks for cancellation, as [`TaskRef::abort`] does: the next [`Task::poll`] drops the future. Nobody is told, since the caller knows;
    /// a later abort finds it done.
    pub fn abort(&self) {
        self.view().state().request_abort();
    }

    /// Polls the future once, or drops it if the task was aborted.
    ///
    /// `deferred` is asked only if the poll was pending, and the task's waker was cloned on this thread during the poll; "true"
    /// keeps the token, and so does a wake-up meanwhile, whatever the answer. Clones of that waker are no-op wakers until
    /// then, see [`probe_cloned`]. A panic in `deferred` cancels the task.
    #[inline(always)]
    pub fn poll(self, deferred: impl FnOnce(&Waker) -> bool) -> Polled<C> {
        let view = self.view();
        let start = view.state().begin();
        if start.is_aborted() {
            return self.cancel_as_done();
        }
        let scope = waker::PollScope::enter(self.task);
        // SAFETY: the token, held until after the waker's last use, keeps the memory.
        let waker = unsafe { waker::borrowed(self.task) };
        // SAFETY: we hold the token, so the future is there and ours.
        let finished = unsafe { (view.header().vtable.poll)(self.task, &waker) };
        if finished {
            drop(scope);
            return Polled::Finished(Finishing {
                task: ManuallyDrop::new(self),
            });
        }
        let now = view.load();
        if now.is_aborted() {
            drop(scope);
            return self.cancel_as_done();
        }
        let woken = now.wakes() != start.wakes();
        if scope.cloned() {
            scope.start_probe();
            // Asked of the woken as well: whoever keeps wakers once only would otherwise keep none of the next poll.
            let deferred = deferred(&waker);
            if deferred || woken {
                return Polled::Again(self);
            }
        } else if woken {
            return Polled::Again(self);
        }
        Polled::Pending(Parking {
            task: self,
            seen: start.wakes(),
        })
    }

    /// [`Task::poll`] and [`Parking::park`] in one, for tests that have nothing to settle in between.
    #[cfg(test)]
    pub(crate) fn run(self, deferred: impl FnOnce(&Waker) -> bool) -> Run<C> {
        match self.poll(deferred) {
            Polled::Again(task) => Run::Again(task),
            Polled::Finished(finishing) => {
                finishing.complete();
                Run::Done
            }
            Polled::Done => Run::Done,
            Polled::Pending(parking) => match parking.park() {
                Parked::Idle => Run::Idle,
                Parked::Woken(task) => Run::Again(task),
                Parked::Done => Run::Done,
            },
        }
    }

    /// Drops the future now, on this thread; the handle sees a cancellation (or the panic of the future's destructor).
    pub fn cancel(self) {
        drop(self);
    }

    #[cold]
    fn cancel_as_done(self) -> Polled<C> {
        self.cancel();
        Polled::Done
    }

    /// The future is dropped and the output stored: tells the scheduler, then the handle, and gives up the token.
    fn complete(self) {
        // The token ends by the transition below, not by `drop`.
        let task = ManuallyDrop::new(self).task;
        let view = ManuallyDrop::new(TaskRef::<C> {
            // SAFETY: a look through the token, over before the transition.
            task: unsafe { Reference::from_raw(task) },
            context: PhantomData,
        });
        let bomb = AbortOnUnwind;
        C::released(&view);
        std::mem::forget(bomb);
        let before = view.task.state().complete();
        // SAFETY: the transition turned the token into a counted reference, ours.
        let reference = unsafe { Reference::from_raw(task) };
        if !before.has_join_interest() {
            // SAFETY: the handle went before completion, so the output is the completing side's.
            unsafe { (reference.header().vtable.drop_output)(task) };
        } else if before.has_join_waker() {
            // SAFETY: this is the completing side; it saw `JOIN_WAKER`; called once.
            unsafe { join::wake_joiner(reference.header()) };
        }
    }
}

impl<C: Context> Drop for Task<C> {
    fn drop(&mut self) {
        // SAFETY: we hold the token, so the future is there and ours; the memory lives until `complete` gives it up.
        unsafe {
            ((*self.task.as_ptr()).vtable.cancel)(self.task);
            Self::from_raw(self.task).complete();
        }
    }
}

impl<C: Context> fmt::Debug for Task<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Task")
            .field("id", &self.id())
            .field("state", &self.view().load())
            .finish()
    }
}

/// A counted reference to a task, without the right to run it.
///
/// Dropping the last reference to an idle task schedules it, for its future to be dropped: not under a lock that
/// [`Context::schedule`] takes.
pub struct TaskRef<C: Context> {
    task: Reference,
    context: PhantomData<fn() -> C>,
}

impl<C: Context> TaskRef<C> {
    /// What the scheduler keeps with the task, for everybody.
    pub fn context(&self) -> &C {
        // SAFETY: the reference keeps the memory; the cell begins with a `Core<C>`, whose context is never written.
        unsafe { &(*self.task.as_ptr().cast::<Core<C>>().as_ptr()).context }
    }

    /// The name of the task.
    pub fn id(&self) -> Id {
        self.task.id()
    }

    /// Cancels the task; an idle one is scheduled, so that whoever gets its token drops the future.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// Whether nobody has asked for its end so far, and it has not come.
    pub fn is_alive(&self) -> bool {
        let state = self.task.load();
        !state.is_aborted() && !state.is_complete()
    }

    /// Whether the task is complete.
    #[cfg(test)]
    pub(crate) fn is_finished(&self) -> bool {
        self.task.load().is_complete()
    }

    /// Whether both refer to the same task.
    #[cfg(test)]
    pub(crate) fn ptr_eq(&self, other: &Self) -> bool {
        self.task.as_ptr() == other.task.as_ptr()
    }
}

impl<C: Context> Clone for TaskRef<C> {
    fn clone(&self) -> Self {
        Self {
            task: self.task.clone(),
            context: PhantomData,
        }
    }
}

impl<C: Context> fmt::Debug for TaskRef<C> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TaskRef")
            .field("id", &self.id())
            .field("state", &self.task.load())
            .finish()
    }
}

/// Drops what is foreign, and whose panic concerns nobody here.
pub fn discard<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // A payload whose own destructor panics again is leaked: the only bounded way to end this.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
    }
}

/// Ends the process if dropped.
struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        std::process::abort();
    }
}
