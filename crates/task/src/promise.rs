//! Handles whose output is made elsewhere: by a blocking function on a thread of its own, or in a task of another executor.
//!
//! A promise is the run token of a cell without a future, held from the beginning to the end: so nobody ever schedules the
//! cell, and every rule of the protocol holds as for a task in the middle of one long poll. What ends it is
//! [`Promise::deliver`], which is the end of that poll, or the promise's drop, which cancels as any dropped token does.
//!
//! | step | made by | what the handle sees |
//! |---|---|---|
//! | deliver | the promise's holder | the output, or the panic |
//! | drop | the promise's holder | a cancellation |
//! | abort | any handle | nothing yet: `ABORT` is set, then the waker that the holder left is woken, if any |
//!
//! The two halves of an abort may be apart ([`AbortHandle::mark_promise`](super::AbortHandle::mark_promise)): the waker may be the program's own, and
//! who aborts for others does not run that wherever it is.
//!
//! # Why no abort is lost
//! The holder leaves its waker (under a lock) and then looks at `ABORT`; who aborts sets `ABORT` and then takes the waker (under
//! the same lock). Whichever comes second to the lock sees what the other did before it. A holder that leaves no waker,
//! a function that blocks, looks once before it starts, as with tokio.

use super::cell::{self, Header};
use super::reference::Reference;
use super::state::State;
use super::trace::SpanId;
use super::waker::PollScope;
use super::{Context, Id, JoinHandle, Task, TaskRef, discard};
use std::any::Any;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Mutex;
use std::task::Waker;

/// The context of a promised cell: whom an abort wakes.
#[derive(Default)]
pub(super) struct Promised {
    holder: Mutex<Option<Waker>>,
}

impl Context for Promised {
    type Owned = ();

    fn schedule(task: Task<Self>) {
        // Cannot come while the promise holds the token. A token dropped is a task cancelled, in any case.
        drop(task);
    }

    fn released(_: &TaskRef<Self>) {}

    fn aborted(&self, _: Id) {
        let waker = self
            .holder
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
            .clone();
        // Foreign code: a panic in it does not concern who aborts.
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.map(Waker::wake))) {
            discard(payload);
        }
    }
}

/// The duty to deliver the output of a [`JoinHandle`]; dropping it is a cancellation.
#[must_use = "a promise that is dropped cancels its task"]
pub struct Promise<T> {
    token: Task<Promised>,
    /// Delivers a `T` on the thread that it is on: `Send` only if `T` is.
    output: PhantomData<T>,
}

/// Makes a promise and the handle that waits for it. One allocation. Neither the output nor what makes it needs to be
/// `Send`: then the promise and the handle are not, either.
pub fn promise<T: 'static>(id: Id, span: SpanId) -> (Promise<T>, JoinHandle<T>) {
    let task: NonNull<Header> =
        cell::allocate_promised::<Promised, T>(State::spawned(), id, span, Promised::default());
    // SAFETY: the state counts one token, two references and the interest of a handle; each is taken over once, and the
    // second reference is given up at once. The output's type is `T`. That `T` may not be `Send`: only `deliver` moves one
    // in, on a thread where a `Promise<T>` is, and only the handle moves it out or drops it (or `deliver` itself); both are
    // `Send` only if `T` is. From whatever thread the memory is freed, the output is gone by then: the handle took or dropped
    // it, or it is leaked with its memory.
    unsafe {
        drop(Reference::from_raw(task));
        let promise = Promise {
            token: Task::from_raw(task),
            output: PhantomData,
        };
        (promise, JoinHandle::new(Reference::from_raw(task)))
    }
}

impl<T: 'static> Promise<T> {
    /// Leaves the waker that an abort is to wake; look at [`Promise::is_aborted`] afterwards.
    pub fn watch(&self, waker: &Waker) {
        let mut holder = self
            .token
            .context()
            .holder
            .lock()
            .unwrap_or_else(|poison| poison.into_inner());
        match &mut *holder {
            Some(known) => known.clone_from(waker),
            None => *holder = Some(waker.clone()),
        }
    }

    /// Whether the handle wants no output any more.
    pub fn is_aborted(&self) -> bool {
        self.token.is_aborted()
    }

    /// Runs a part of what makes the output: there, the task is the current one.
    pub fn run<R>(&self, act: impl FnOnce() -> R) -> R {
        let _scope = PollScope::enter(self.token.task);
        act()
    }

    /// Ends the task: the handle gets the output, or the payload of a panic.
    pub fn deliver(self, output: Result<T, Box<dyn Any + Send>>) {
        // SAFETY: the token is ours, and `promise` allocated the cell for this context and this type of output.
        unsafe { cell::store_promised::<Promised, T>(self.token.task, output) };
        self.token.complete();
    }
}
