//! Blocking code, charged to the group that asked for it.

use std::sync::atomic::Ordering;

use quotient_core::Nanos;

use crate::error::SpawnError;
use crate::group::Group;
use crate::local;
use crate::meter::ThreadMeter;
use crate::vcpu;

/// Runs a blocking function on tokio's blocking pool and charges its CPU time to the caller's group, which it inherits: inside,
/// [`Group::current`] is that group, and [`crate::spawn`] spawns into it.
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
    let Some((shared, index)) = local::with_polling(|shared, vcpu| (shared.clone(), vcpu)) else {
        return tokio::task::block_in_place(function);
    };
    let started = shared.now();
    shared.vcpus[index].blocked.store(true, Ordering::Relaxed);
    local::publish_next();
    vcpu::stand_in(&shared);
    let mut meter = Group::current().and_then(|group| ThreadMeter::enter_within(&group).ok());
    let _end = OnDrop(|| {
        shared.vcpus[index].blocked.store(false, Ordering::Relaxed);
        // The meter bills what the thread did; the rest of the time it was not there.
        let billed = meter.as_mut().and_then(|meter| meter.leave().ok());
        let billed = billed.map_or(Nanos::ZERO, |time| {
            Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        });
        let elapsed = shared.now().saturating_sub(started);
        local::exclude(elapsed, elapsed.saturating_sub(billed));
    });
    tokio::task::block_in_place(function)
}

struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
