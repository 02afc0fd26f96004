//! Blocking code, charged to the group that asked for it.

use std::sync::atomic::Ordering;

use crate::error::SpawnError;
use crate::group::Group;
use crate::local;
use crate::meter::ThreadMeter;
use crate::vcpu;

/// Runs a blocking function on tokio's blocking pool and charges its CPU time to the caller's group.
///
/// The charge arrives when the function reads a clock of its group, returns or panics. The handle is tokio's own. The pool's threads are scheduled by the
/// operating system: the group's weight does not hold there, only its clock does, and its tasks pay for it with their virtual time.
///
/// # Errors
/// [`SpawnError::NoGroup`] outside any group, [`SpawnError::NoRuntime`] outside a tokio runtime; the function was dropped.
pub fn spawn_blocking<F, R>(function: F) -> Result<tokio::task::JoinHandle<R>, SpawnError>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    let group = Group::current().ok_or(SpawnError::NoGroup)?;
    let handle = tokio::runtime::Handle::try_current().map_err(|_| SpawnError::NoRuntime)?;
    Ok(handle.spawn_blocking(move || {
        // Without a clock for threads the function runs unbilled.
        let _meter = ThreadMeter::enter_within(&group);
        function()
    }))
}

/// Runs a blocking function on this thread, as `tokio::task::block_in_place` does, without holding up other tasks: a stand-in
/// virtual CPU takes over meanwhile. The group pays for the CPU time of the function, not for the time it sleeps.
///
/// Outside a virtual CPU this is tokio's function.
///
/// # Panics
/// As tokio's: on a current-thread runtime.
pub fn block_in_place<F, R>(function: F) -> R
where
    F: FnOnce() -> R,
{
    let Some(group) = Group::current() else {
        return tokio::task::block_in_place(function);
    };
    let shared = group.shared.clone();
    let Some(index) = local::with_polling(|_, vcpu| vcpu) else {
        return tokio::task::block_in_place(function);
    };
    let started = shared.now();
    shared.vcpus[index].blocked.store(true, Ordering::Relaxed);
    local::publish_next();
    vcpu::stand_in(&shared);
    let _end = OnDrop(|| {
        shared.vcpus[index].blocked.store(false, Ordering::Relaxed);
        local::exclude(shared.now().saturating_sub(started));
    });
    let _meter = ThreadMeter::enter_within(&group);
    tokio::task::block_in_place(function)
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
