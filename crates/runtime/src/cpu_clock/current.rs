//! What the calling thread has used since its clocks were last brought up to date.

use quotient_core::{Group, Nanos};

use crate::clock::thread_cpu_time;
use crate::local;
use crate::shared::VcpuShared;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Own time since the last look that is believed without the thread's CPU clock. Unit: nanoseconds. Default 50 us: the shortest sleep takes
/// longer, what was shown is not taken back, and the system call is 0.6 % of it. (With 500 us, a poll that sleeps for 100 us between two looks was
/// charged for its sleep.)
const SUSPICIOUS: Nanos = Nanos(50_000);

/// Wall and CPU time of a thread, read together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnTime {
    pub(crate) wall: Nanos,
    pub(crate) cpu: Nanos,
}

/// Brings the clocks of what runs on this thread up to date, if it counts for `reading`.
#[inline]
pub(crate) fn show_own_time(reading: &Group) {
    local::show_own_time(reading);
}

/// What the host took from a poll, as far as somebody has looked during it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stolen {
    /// When the poll started: of another poll, it says nothing.
    started: Nanos,
    time: Nanos,
}

/// The time that the poll in progress on virtual CPU `me` has used so far, as far as it is the task's: without `excluded` (in
/// whose second part the thread did not run), and without what the host gave to others. Not less than what it has shown.
pub(crate) fn poll_time(
    me: &VcpuShared,
    now: Nanos,
    (excluded, absent): (Nanos, Nanos),
    reference: Option<OwnTime>,
    known: &Cell<Option<Stolen>>,
) -> Nanos {
    let started = Nanos(me.polling_since.load(Ordering::Relaxed).saturating_sub(1));
    let own = now.saturating_sub(started).saturating_sub(excluded);
    let shown = me.clock.shown();
    let stolen = match known.get() {
        Some(stolen) if stolen.started == started => stolen.time,
        _ => Nanos::ZERO,
    };
    let own_so_far = own.saturating_sub(stolen).max(shown);
    if own_so_far.saturating_sub(shown) <= SUSPICIOUS {
        return own_so_far;
    }
    let time = match (reference, thread_cpu_time()) {
        (Some(reference), Some(cpu)) => now
            .saturating_sub(reference.wall)
            .saturating_sub(cpu.saturating_sub(reference.cpu))
            .saturating_sub(absent),
        _ => Nanos::ZERO,
    };
    known.set(Some(Stolen { started, time }));
    own.saturating_sub(time).max(shown)
}
