//! Free functions that act on the group of the caller.

use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use crate::error::SpawnError;
use crate::group::spawn_at;
use crate::local;
use crate::task::JoinHandle;

/// Spawns a task into the group of the caller, as `tokio::spawn` spawns onto its runtime: children inherit the group.
///
/// Outside any group the task is refused: the handle resolves at once to an error (see [`try_spawn`] for the reason).
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_here(future, Location::caller())
        .unwrap_or_else(|error| JoinHandle::failed(&error.to_string()))
}

/// As [`spawn`], with the reason if it was refused.
///
/// # Errors
/// [`SpawnError::NoGroup`] outside any group, [`SpawnError::ShutDown`], [`SpawnError::GroupRemoved`]; the future was dropped.
#[track_caller]
pub fn try_spawn<F>(future: F) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    spawn_here(future, Location::caller())
}

fn spawn_here<F>(
    future: F,
    location: &'static Location<'static>,
) -> Result<JoinHandle<F::Output>, SpawnError>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let (shared, group) = local::current_group().ok_or(SpawnError::NoGroup)?;
    spawn_at(&shared, &group, future, location)
}

/// Gives way if somebody else should run: put it into loops that compute for long.
///
/// One load when nothing is due. When the task's slice is over, or the host's I/O has waited for a tick, the task yields once.
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
        let due = local::with_polling(|shared, vcpu| {
            let flag = &shared.vcpus[vcpu].resched;
            flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Relaxed)
        });
        match due {
            Some(false) => Poll::Ready(()),
            Some(true) => {
                // The flag also says that I/O has waited: the virtual CPU goes by the driver before it picks again.
                local::charge_extra(quotient_core::Nanos::ZERO, true);
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
