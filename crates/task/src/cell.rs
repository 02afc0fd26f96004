//! A task's single allocation, and the table of what only its full type knows how to do.

use super::error::JoinError;
use super::state::{State, Woken};
use super::trace::SpanId;
use super::waker::{self, PollScope};
use super::{Context, Id, Task, discard};
use crate::primitives::UnsafeCell;
use std::any::{Any, TypeId};
use std::future::Future;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Poll, Waker};

/// The part that every task has at its start, whatever its types.
#[repr(C)]
pub(super) struct Header {
    pub(super) state: State,
    pub(super) vtable: &'static Vtable,
    pub(super) id: Id,
    /// Its span, for events of wakers: nothing without the feature `tracing`.
    pub(super) span: SpanId,
    /// Initialised while `JOIN_WAKER` is set; see the protocol for who may touch it.
    pub(super) join_waker: UnsafeCell<MaybeUninit<Waker>>,
}

/// The part that every task of one scheduler has at its start: what a [`Task`] and a [`TaskRef`](super::TaskRef) see.
#[repr(C)]
pub(super) struct Core<C: Context> {
    pub(super) header: Header,
    pub(super) context: C,
    /// Touched only through the run token.
    pub(super) owned: UnsafeCell<C::Owned>,
}

/// The whole allocation.
#[repr(C)]
struct Cell<C: Context, F: Future> {
    core: Core<C>,
    stage: UnsafeCell<Stage<F>>,
}

/// The future, then its output in the same place.
enum Stage<F: Future> {
    /// Touched only by the run token's holder.
    Future(F),
    /// Touched only by the output's owner (see the protocol).
    Output(Result<F::Output, JoinError>),
    /// Moved out or dropped.
    Empty,
}

/// What only the full type of a task knows how to do, or its context's.
///
/// Every entry takes the pointer that [`allocate`] made for a cell of the entry's types, to memory not yet freed.
pub(super) struct Vtable {
    /// Polls; true: the future is dropped and the output stored. The caller holds the token.
    pub(super) poll: unsafe fn(NonNull<Header>, &Waker) -> bool,
    /// Drops the future and stores the reason as output. The caller holds the token.
    pub(super) cancel: unsafe fn(NonNull<Header>),
    /// Moves the output to the place given, a `MaybeUninit<Result<T, JoinError>>` for the task's `T`. False: the
    /// output is gone already. The caller owns the output.
    pub(super) take_output: unsafe fn(NonNull<Header>, *mut ()) -> bool,
    /// Drops the output if it is still there. The caller owns the output.
    pub(super) drop_output: unsafe fn(NonNull<Header>),
    /// Wakes. The caller holds a reference, or the token.
    pub(super) wake: unsafe fn(NonNull<Header>),
    /// Wakes, and drops a reference, which the caller gives up.
    pub(super) wake_by_value: unsafe fn(NonNull<Header>),
    /// Asks for cancellation, and tells the scheduler. The caller holds a reference.
    pub(super) abort: unsafe fn(NonNull<Header>),
    /// Tells the scheduler that the task was asked to cancel itself. The caller holds a reference.
    pub(super) aborted: unsafe fn(NonNull<Header>),
    /// Hands the run token, which the caller gives up, to the scheduler.
    pub(super) schedule: unsafe fn(NonNull<Header>),
    /// Cancels the task on this thread: drops its future, completes it and ends the run token, which the caller gives up.
    pub(super) discard: unsafe fn(NonNull<Header>),
    /// Frees the memory. The caller is the last to know it.
    pub(super) free: unsafe fn(NonNull<Header>),
    /// The type of the cell's context.
    pub(super) context: fn() -> TypeId,
}

/// What a task of such a scheduler takes beside its future, without its span. Unit: bytes.
#[must_use]
pub const fn bytes_beside_future<C: Context>() -> usize {
    size_of::<Core<C>>() - size_of::<SpanId>()
}

/// Makes a task's allocation; the caller owns the references and the token that `state` counts.
pub(super) fn allocate<C, F>(
    state: State,
    id: Id,
    span: SpanId,
    future: F,
    context: C,
    owned: C::Owned,
) -> NonNull<Header>
where
    C: Context,
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    allocate_at_stage(state, id, span, Stage::Future(future), context, owned)
}

/// Makes the allocation of a task that never was: complete, with `error` as its output. It never holds a `T`, so that need
/// not be `Send`.
pub(super) fn allocate_failed<C, T>(
    id: Id,
    error: JoinError,
    context: C,
    owned: C::Owned,
) -> NonNull<Header>
where
    C: Context,
    T: 'static,
{
    let stage: Stage<std::future::Pending<T>> = Stage::Output(Err(error));
    let span = SpanId::NONE;
    allocate_at_stage(State::completed(), id, span, stage, context, owned)
}

/// Makes the allocation of a task whose output is made elsewhere; the caller answers for outputs that are not `Send`.
pub(super) fn allocate_promised<C, T>(
    state: State,
    id: Id,
    span: SpanId,
    context: C,
) -> NonNull<Header>
where
    C: Context<Owned = ()>,
    T: 'static,
{
    let stage: Stage<std::future::Pending<T>> = Stage::Future(std::future::pending());
    allocate_at_stage(state, id, span, stage, context, ())
}

/// Stores the output of such a task, or the payload of a panic.
///
/// # Safety
/// The caller holds the token of a cell that [`allocate_promised`] made for `C` and `T`.
pub(super) unsafe fn store_promised<C, T>(
    task: NonNull<Header>,
    output: Result<T, Box<dyn Any + Send>>,
) where
    C: Context<Owned = ()>,
{
    // SAFETY: passed on to the caller.
    unsafe { Cell::<C, std::future::Pending<T>>::finish(task, output) };
}

fn allocate_at_stage<C: Context, F: Future>(
    state: State,
    id: Id,
    span: SpanId,
    stage: Stage<F>,
    context: C,
    owned: C::Owned,
) -> NonNull<Header> {
    let header = Header {
        state,
        vtable: Cell::<C, F>::VTABLE,
        id,
        span,
        join_waker: UnsafeCell::new(MaybeUninit::uninit()),
    };
    let core = Core {
        header,
        context,
        owned: UnsafeCell::new(owned),
    };
    let cell = Box::new(Cell {
        core,
        stage: UnsafeCell::new(stage),
    });
    // `repr(C)` puts the header first, so that one pointer serves all three types; it stays a raw pointer to the whole
    // allocation and is never made from a reference to a part.
    NonNull::from(Box::leak(cell)).cast()
}

impl<C: Context, F: Future> Cell<C, F> {
    const VTABLE: &'static Vtable = &Vtable {
        poll: Self::poll,
        cancel: Self::cancel,
        take_output: Self::take_output,
        drop_output: Self::drop_output,
        wake: wake::<C>,
        wake_by_value: wake_by_value::<C>,
        abort: abort::<C>,
        aborted: aborted::<C>,
        schedule: schedule::<C>,
        discard: Self::discard,
        free: Self::free,
        context: TypeId::of::<C>,
    };

    /// Runs `access` on the stage.
    ///
    /// # Safety
    /// `task` points to a live `Cell<C, F>`, and nobody else touches its stage meanwhile.
    #[inline(always)]
    unsafe fn with_stage<R>(task: NonNull<Header>, access: impl FnOnce(&mut Stage<F>) -> R) -> R {
        // SAFETY: the caller promises a live cell; only its stage, an `UnsafeCell`, is borrowed.
        let stage = unsafe { &(*task.cast::<Self>().as_ptr()).stage };
        // SAFETY: the caller promises that nobody else touches the stage meanwhile.
        stage.with_mut(|stage| access(unsafe { &mut *stage }))
    }

    /// # Safety
    /// As [`Vtable::poll`].
    unsafe fn poll(task: NonNull<Header>, waker: &Waker) -> bool {
        // The access is outside of the catching, so that a race found by loom is not taken for the future's panic.
        // SAFETY: the vtable belongs to this type; only the token's holder touches the stage before `COMPLETE`.
        let polled = unsafe {
            Self::with_stage(task, |stage| {
                catch_unwind(AssertUnwindSafe(|| {
                    let Stage::Future(future) = stage else {
                        unreachable!("a token exists only while the future does")
                    };
                    // SAFETY: the future lies in the allocation that never moves; `Stage::Future` is never moved out
                    // of, only dropped in place, before the memory is reused.
                    Pin::new_unchecked(future).poll(&mut std::task::Context::from_waker(waker))
                }))
            })
        };
        let result = match polled {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(payload) => Err(payload),
        };
        // SAFETY: as above; the poll is over.
        unsafe { Self::finish(task, result) };
        true
    }

    /// # Safety
    /// As [`Vtable::cancel`].
    unsafe fn cancel(task: NonNull<Header>) {
        // In its destructor the task is the current one, as in its polls.
        let _scope = PollScope::enter_drop(task);
        // SAFETY: the caller holds the token, so the stage is ours, the header alive.
        unsafe {
            let dropped = Self::empty(task);
            let id = (*task.as_ptr()).id;
            let error = match dropped {
                Ok(()) => JoinError::cancelled(id),
                Err(payload) => JoinError::panic(id, payload),
            };
            Self::with_stage(task, |stage| *stage = Stage::Output(Err(error)));
        }
    }

    /// Drops the future, in place, and stores the result of its last poll; a panic of either goes to the handle.
    ///
    /// # Safety
    /// The caller holds the token.
    unsafe fn finish(task: NonNull<Header>, polled: Result<F::Output, Box<dyn Any + Send>>) {
        // SAFETY: the caller holds the token, so the stage is ours, the header alive.
        unsafe {
            let dropped = Self::empty(task);
            let id = (*task.as_ptr()).id;
            let result = match (polled, dropped) {
                (Ok(output), Ok(())) => Ok(output),
                (Ok(output), Err(payload)) => {
                    discard(output);
                    Err(JoinError::panic(id, payload))
                }
                (Err(payload), Ok(())) => Err(JoinError::panic(id, payload)),
                (Err(first), Err(second)) => {
                    discard(second);
                    Err(JoinError::panic(id, first))
                }
            };
            Self::with_stage(task, |stage| *stage = Stage::Output(result));
        }
    }

    /// Drops in place what the stage holds; `Err` is the payload of a panic on the way. Empty afterwards either way
    /// (an assignment writes its new value even if dropping the old one unwinds).
    ///
    /// # Safety
    /// The caller may touch the stage.
    unsafe fn empty(task: NonNull<Header>) -> Result<(), Box<dyn Any + Send>> {
        // SAFETY: passed on to the caller.
        unsafe {
            Self::with_stage(task, |stage| {
                catch_unwind(AssertUnwindSafe(|| *stage = Stage::Empty))
            })
        }
    }

    /// # Safety
    /// As [`Vtable::take_output`].
    unsafe fn take_output(task: NonNull<Header>, place: *mut ()) -> bool {
        // SAFETY: the caller owns the output.
        let stage =
            unsafe { Self::with_stage(task, |stage| std::mem::replace(stage, Stage::Empty)) };
        match stage {
            Stage::Output(output) => {
                // SAFETY: the caller gives a place for exactly this type.
                unsafe { place.cast::<Result<F::Output, JoinError>>().write(output) };
                true
            }
            Stage::Empty => false,
            Stage::Future(_) => unreachable!("a complete task has dropped its future"),
        }
    }

    /// # Safety
    /// As [`Vtable::drop_output`].
    unsafe fn drop_output(task: NonNull<Header>) {
        let _scope = PollScope::enter_drop(task);
        // SAFETY: the caller owns the output. Nobody is left to learn of a panic in its drop.
        if let Err(payload) = unsafe { Self::empty(task) } {
            discard(payload);
        }
    }

    /// # Safety
    /// As [`Vtable::discard`].
    unsafe fn discard(task: NonNull<Header>) {
        // SAFETY: the caller gives up the token of a task of this context.
        unsafe { Task::<C>::from_raw(task) }.cancel();
    }

    /// # Safety
    /// As [`Vtable::free`].
    unsafe fn free(task: NonNull<Header>) {
        // SAFETY: `allocate_at_stage` leaked this box, and the caller is the last to know it.
        drop(unsafe { Box::from_raw(task.cast::<Self>().as_ptr()) });
    }
}

/// # Safety
/// As [`Vtable::wake`], of a cell of context `C`; and so below.
unsafe fn wake<C: Context>(task: NonNull<Header>) {
    // The poll in progress on this thread has its task's token, so that a wake-up makes none.
    if C::stops_threads() && !waker::is_current(task) {
        // SAFETY: passed on to the caller.
        unsafe { wake_in_one_step::<C>(task) };
    } else {
        // SAFETY: passed on to the caller.
        unsafe { wake_plainly::<C>(task) };
    }
}

/// # Safety
/// As [`Vtable::wake`].
#[inline(always)]
unsafe fn wake_plainly<C: Context>(task: NonNull<Header>) {
    // SAFETY: the caller keeps the memory. The token is ours if the transition made it.
    unsafe {
        if state(task).wake_by_ref() {
            schedule::<C>(task);
        }
    }
}

/// Apart, so that the other way saves no registers.
///
/// # Safety
/// As [`Vtable::wake`].
#[inline(never)]
unsafe fn wake_in_one_step<C: Context>(task: NonNull<Header>) {
    // SAFETY: passed on to the caller.
    C::in_one_step(|| unsafe { wake_plainly::<C>(task) });
}

/// # Safety
/// As [`Vtable::wake_by_value`].
unsafe fn wake_by_value<C: Context>(task: NonNull<Header>) {
    // (A task that consumes its own waker in its poll is rare.)
    if C::stops_threads() {
        // SAFETY: passed on to the caller.
        unsafe { wake_by_value_in_one_step::<C>(task) };
    } else {
        // SAFETY: passed on to the caller; what the transition says goes on from here.
        unsafe { free_after(task, wake_by_value_plainly::<C>(task)) };
    }
}

/// # Safety
/// As [`Vtable::wake_by_value`], but what is to be freed is the caller's.
#[inline(always)]
unsafe fn wake_by_value_plainly<C: Context>(task: NonNull<Header>) -> Woken {
    // SAFETY: the caller's reference keeps the memory until the transition gives it up. The token is ours if that made it.
    unsafe {
        let woken = state(task).wake_by_value();
        if woken == Woken::Schedule {
            schedule::<C>(task);
        }
        woken
    }
}

/// # Safety
/// As [`Vtable::wake_by_value`].
#[inline(never)]
unsafe fn wake_by_value_in_one_step<C: Context>(task: NonNull<Header>) {
    // SAFETY: passed on to the caller.
    let woken = C::in_one_step(|| unsafe { wake_by_value_plainly::<C>(task) });
    // After the step: what is freed is the program's, too.
    // SAFETY: what the transition of this very task has said.
    unsafe { free_after(task, woken) };
}

/// # Safety
/// `woken` is what the transition of `task` has said, once.
#[inline(always)]
unsafe fn free_after(task: NonNull<Header>, woken: Woken) {
    if woken == Woken::Free {
        // SAFETY: the caller is the last to know it, so the memory, and the table's place in it, is there until then.
        unsafe { ((*task.as_ptr()).vtable.free)(task) };
    }
}

/// # Safety
/// As [`Vtable::abort`].
unsafe fn abort<C: Context>(task: NonNull<Header>) {
    C::in_one_step(|| {
        // SAFETY: the caller's reference keeps the memory. The token is ours if the transition made it.
        unsafe {
            if state(task).request_abort() {
                if state(task).wake_by_ref() {
                    schedule::<C>(task);
                }
                aborted::<C>(task);
            }
        }
    });
}

/// # Safety
/// As [`Vtable::aborted`].
unsafe fn aborted<C: Context>(task: NonNull<Header>) {
    // SAFETY: the caller's reference keeps the memory; of header and context nothing is written but atomics and cells, and
    // the identifier is in neither.
    let (id, context) = unsafe {
        let core = task.cast::<Core<C>>().as_ptr();
        ((*core).header.id, &(*core).context)
    };
    context.aborted(id);
}

/// # Safety
/// As [`Vtable::schedule`].
unsafe fn schedule<C: Context>(task: NonNull<Header>) {
    // SAFETY: the caller gives up the token of a task of this context.
    C::schedule(unsafe { Task::from_raw(task) });
}

/// # Safety
/// The caller keeps the memory while the result is used.
#[inline(always)]
unsafe fn state<'a>(task: NonNull<Header>) -> &'a State {
    // SAFETY: the caller keeps the memory, and of a header only what lies in cells is ever written.
    unsafe { &(*task.as_ptr()).state }
}

#[cfg(all(test, not(loom), target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn header_is_small() {
        assert!(size_of::<Header>() <= 64, "{}", size_of::<Header>());
        assert_eq!(size_of::<Header>(), 40 + size_of::<SpanId>());
        #[cfg(not(feature = "tracing"))]
        assert_eq!(size_of::<SpanId>(), 0);
    }

    #[test]
    fn a_large_enough_future_pays_no_tag() {
        assert_eq!(size_of::<JoinError>(), 16);
        assert!(size_of::<Stage<std::future::Ready<u8>>>() <= 24);
    }
}
