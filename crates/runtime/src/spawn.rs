//! Free functions that act on the group of the caller.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::error::SpawnError;
use crate::group::{Group, spawn_at};
use crate::local;
use crate::task::JoinHandle;
use crate::task_builder::Origin;

/// Spawns a task into the group of the caller, as `tokio::spawn` spawns onto its runtime: children inherit the group.
///
/// When the scheduler was shut down, or the group takes no tasks any more, the future is dropped and the handle resolves at
/// once to an error, as tokio's does after its shutdown; [`try_spawn`] says why.
///
/// # Panics
/// Outside any group, as `tokio::spawn` outside a runtime: neither in a task of a scheduler, nor inside `in_group`, nor on a
/// thread that a [`crate::ThreadMeter`] bills to one.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let origin = Origin::caller();
    match spawn_here(future, origin) {
        Ok(handle) => handle,
        Err(error @ SpawnError::NoGroup) => panic!("{error}"),
        Err(error) => refused(&error),
    }
}

/// As [`spawn`], with the reason if it was refused, and without a panic.
///
/// # Errors
/// [`SpawnError::NoGroup`] outside any group; else as [`Group::try_spawn`]. The future was dropped.
#[track_caller]
pub fn try_spawn<F>(future: F) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_here(future, Origin::caller())
}

fn spawn_here<F>(future: F, origin: Origin<'_>) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (shared, group) = local::group_to_spawn_in().ok_or(SpawnError::NoGroup)?;
    spawn_at(&shared, &group, future, origin)
}

/// Spawns a `!Send` task into the caller's group; see [`Group::spawn_local`].
///
/// # Panics
/// Outside any group, and, as `tokio::task::spawn_local`, outside a local set.
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    match Group::to_spawn_in() {
        Some(group) => group.spawn_local(future),
        None => panic!("{}", SpawnError::NoGroup),
    }
}

/// The handle of a task that was refused. Its owner may drop it unread: the refusal was counted and said by `loss`.
pub(crate) fn refused<T: 'static>(error: &SpawnError) -> JoinHandle<T> {
    JoinHandle::failed(&error.to_string())
}

/// Gives way if another task should run: put it into loops that compute for long.
///
/// One load when nothing is due. The task yields once when its slice is over, or when the host's I/O has waited for a tick. In a long poll
/// that preemption has taken off its virtual CPU it yields every 4 ms, so that an abort, a kill or a freeze reaches the task.
/// Outside the scheduler it is tokio's `consume_budget`.
pub fn checkpoint() -> Checkpoint {
    Checkpoint { yielded: false }
}

/// Future of [`checkpoint`].
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Checkpoint {
    yielded: bool,
}

impl Future for Checkpoint {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        match take_due() {
            Some(false) => Poll::Ready(()),
            Some(true) => {
                self.yielded = true;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            None => {
                let mut consume = std::pin::pin!(tokio::task::coop::consume_budget());
                consume.as_mut().poll(context)
            }
        }
    }
}

/// Whether the task that is being polled here should give way; `None` outside. A caller that gets `true` must do so: the flag is cleared.
#[inline]
fn take_due() -> Option<bool> {
    local::with_polling(|shared, vcpu| {
        if shared.preempt.is_some()
            && let Some(due) = crate::preempt::borne_is_due(|| shared.now())
        {
            return due;
        }
        let flag = &shared.vcpus[vcpu].resched;
        let due = flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed);
        if due {
            // The flag also says that I/O has waited: the virtual CPU goes by the driver before it picks again.
            local::leave();
        }
        due
    })
}

/// Whether the caller should give way to another task, for code that cannot await a [`checkpoint`] itself: callbacks of interpreters
/// and of WebAssembly, loops deep inside synchronous code that can be left and taken up again.
///
/// One load when nothing is due. A caller that gets `true` is expected to end its poll soon, woken for the next one (`wake_by_ref`, then
/// `Pending`); it gets `true` again a tick, 1 ms, later at the earliest. Outside the polls of a virtual CPU (in tasks of `tokio::spawn`, on
/// other threads) the answer is `true`, since nothing there knows whether another task waits.
#[inline]
pub fn should_yield() -> bool {
    take_due().unwrap_or(true)
}
