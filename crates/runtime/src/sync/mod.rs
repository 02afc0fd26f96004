//! Locks that know groups: whoever holds one is not left throttled, because others may wait for it.
//!
//! A throttled holder stalls everybody behind it for the rest of a period, groups without any limit included. So holding one of
//! these locks is a [`crate::defer_throttle`]: the holder's group runs on into a bounded debt, which its later refills pay. The
//! deferral begins with the wait, not with the lock: tokio hands a lock over to the longest waiter at the moment of the unlock,
//! so a waiter becomes the holder before it is polled again. And while somebody of another group waits, wherever in the line, the holder, and who was handed the lock, runs in *that*
//! group, on the budget of who waits for it, if its own is used up, or weighs less. Under preemption that holds in the middle of a long poll, too. What the holder does
//! once it has given the lock back is its own group's again.
//!
//! So who shares a lock with somebody pays, in processor time, for what that one does while it holds it: 250 ms for each time that it is taken, no more. Nobody is lent a place
//! - for a guard that it gave to another task: it is who *took* the lock that is known as its holder;
//! - if it is no task that was spawned in a group of the same scheduler: a `spawn_local` one, a future in an `in_group`, also within a group's task, and a blocking function wait for the
//!   budget of their group with the lock, for seconds under a small limit;
//! - after [`Group::kill_immediately`](crate::Group::kill_immediately) or [`freeze_immediately`](crate::Group::freeze_immediately) has stopped it in the middle of a poll: it has short turns only, or none;
//! - by waiters that are no tasks of the same scheduler;
//! - while it does not run itself: it waits for another lock, or for a task or a message of its own group, which has no budget;
//! - by a group to which a waiter was moved after it began to wait: the one that it was in then lends;
//! - while its group has used 50 ms more than its limit earns by going on after loans, in polls in which it has given the lock back;
//! - for a lock after which it took 16 others;
//! - if it took the lock, or began to wait for it, before the process had any limit;
//! - by groups that wait behind 32 others of their kind, with a limit or without, which can lend nothing.
//!
//! Who comes to wait finds the holder at once; what changes while it waits (budget comes, a limit is lifted) within 50 ms.
//!
//! Who gives a lock back calls the waker of whom it hands that to, as tokio's locks do. Of a task polled by its scheduler that is a wake-up; a waker that the program has made itself runs
//! there, on the account of who gives back. Its panic is caught where the process has limits.
//!
//! Not as tokio's: a lock does not become one of a `dyn` type or a slice by coercion, nor is an [`RwLock`] of what is `Send` and not `Sync` `Send`; there is no `const_new`, no `map`, no
//! `blocking_lock`, no `with_max_readers`, no way from a guard to its lock, and no `split` or `merge` of permits.
//!
//! A lock costs 0.9 to 1.5 times tokio's while the process has no limit, two to three times with one: 50 to 70 ns more for a lock that is free, 200 to 300 for the first of a poll, 1.5 to 2.2 us
//! a hand-over (`quotient bench locks`).
//!
//! The locks themselves are tokio's: fair, first in, first out, not poisoned by a panic, and cooperative: taking one costs a unit of
//! tokio's budget also if it is free, so that a loop which takes nothing but free locks gives way.

use std::fmt;
use std::sync::Arc;

/// What every guard can do: show its value.
macro_rules! guard {
    ($guard:ident $(<$lifetime:lifetime>)?) => {
        impl<$($lifetime,)? T: ?Sized> Deref for $guard<$($lifetime,)? T> {
            type Target = T;

            fn deref(&self) -> &T {
                &self.inner
            }
        }

        impl<$($lifetime,)? T: ?Sized + fmt::Debug> fmt::Debug for $guard<$($lifetime,)? T> {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&**self, formatter)
            }
        }

        impl<$($lifetime,)? T: ?Sized + fmt::Display> fmt::Display for $guard<$($lifetime,)? T> {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&**self, formatter)
            }
        }
    };
    ($guard:ident $(<$lifetime:lifetime>)?, mutable) => {
        $crate::sync::guard!($guard $(<$lifetime>)?);

        impl<$($lifetime,)? T: ?Sized> DerefMut for $guard<$($lifetime,)? T> {
            fn deref_mut(&mut self) -> &mut T {
                &mut self.inner
            }
        }
    };
}
use guard;

mod loans;
mod mutex;
mod rwlock;
mod semaphore;

pub use mutex::{Mutex, MutexGuard, OwnedMutexGuard, TryLockError};
pub use rwlock::{
    OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
pub use semaphore::{
    AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit, TryAcquireError,
};

/// Writes out a lock with its value, if that could be had: the guard is held meanwhile, as any other.
fn write_out<T: ?Sized + fmt::Debug>(
    formatter: &mut fmt::Formatter<'_>,
    name: &str,
    value: Option<&T>,
) -> fmt::Result {
    let mut shown = formatter.debug_struct(name);
    match value {
        Some(value) => shown.field("data", &value),
        None => shown.field("data", &format_args!("<locked>")),
    };
    shown.finish()
}

/// Before a lock that may be free, which nobody would wait for: as tokio's locks, a unit of the budget.
async fn cooperate() {
    tokio::task::coop::consume_budget().await;
}

/// What is behind the pointer of a lock that nobody else has: a guard that owns the inner lock keeps the outer one, too, and
/// lets go of it last.
fn sole<L>(inner: Arc<L>) -> L {
    Arc::into_inner(inner).expect("only guards share the inner lock, and they keep the outer one")
}

/// As [`sole`], by reference.
fn sole_mut<L: ?Sized>(inner: &mut Arc<L>) -> &mut L {
    Arc::get_mut(inner).expect("only guards share the inner lock, and they keep the outer one")
}
