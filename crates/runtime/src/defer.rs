//! Did the task that just returned `Pending` leave its waker with tokio's *deferred* list?
//!
//! `tokio::task::yield_now` and an exhausted cooperation budget do not wake the task: they leave its waker with the worker, which
//! wakes it when its own queue is empty. With a virtual CPU polling tasks inside one tokio task that moment is far away, so the
//! yielder would leave the run queue and fairness between groups would collapse (1:1.1 where 1:3 was asked for). tokio keeps a
//! waker only once if it is the last of the list already. So we leave it once more: if tokio does not clone it again, it was there.
//! If tokio does clone it, that clone is a no-op waker (the task module's probe mode), and costs one extra driver turn.
//! When the task was found to be deferred, we leave a no-op waker as the last of the list. So tokio clones the task's waker again at
//! its next yield (it would not clone a waker that is the last of the list, and without a clone nobody asks), and the task's next wait is
//! not mistaken for a yield.
//!
//! A task that was woken during its poll is asked about as well, though it is polled again anyway: often by tokio, for a yield on a
//! worker that it has left since. Its waker was the last of the list after that poll, so that its next yield here was seen by nobody;
//! it left the run queue until the worker came to its list, which was after a poll of minutes if that is what came next.
//!
//! What this does not see: a future inside the task that yields with a waker of its own (`FuturesUnordered` makes such). That one
//! waits for the worker.
//!
//! tokio may change this; `tests/tokio_defer_canary.rs` names the version it was checked with and fails when it does.

use std::future::Future;
use std::task::{Context, Waker};

use crate::task::probe_cloned;

/// Called between a pending poll that cloned its waker and the task's going idle.
pub(crate) fn was_deferred(waker: &Waker) -> bool {
    let deferred = leave(waker) && !probe_cloned();
    if deferred {
        leave(Waker::noop());
    }
    deferred
}

/// Leaves a waker with tokio's deferred list; false if tokio has none here and has woken it instead.
fn leave(waker: &Waker) -> bool {
    let mut yielding = std::pin::pin!(tokio::task::yield_now());
    yielding
        .as_mut()
        .poll(&mut Context::from_waker(waker))
        .is_pending()
}
