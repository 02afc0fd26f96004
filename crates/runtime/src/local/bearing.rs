//! What a thread of a stand-in keeps of its poll: the count of it while the host's runtime may end, and what is left of it once the
//! virtual CPU was handed over. The protocols stand in `host_end` and `vcpu::successor`.

use std::sync::Arc;

use quotient_core::Nanos;

use super::{LOCAL, PollNotes};
use crate::cpu_clock::poll_time;
use crate::shared::Shared;
use crate::vcpu::Bearing;

/// The poll in progress is counted.
pub(crate) fn hold_pass(_shared: &Shared) {
    let _ = LOCAL.try_with(|local| local.pass.set(true));
}

/// The poll in progress is counted no more, if it was; whether it was.
pub(crate) fn return_pass(shared: &Shared) -> bool {
    let held = LOCAL.try_with(|local| local.pass.replace(false));
    let held = held.unwrap_or(false);
    if held {
        shared.host_end.end_poll();
    }
    held
}

/// The pass of a poll that blocks in place, which has it back when this is dropped.
pub(crate) struct LentPass<'a>(&'a Shared);

impl Drop for LentPass<'_> {
    fn drop(&mut self) {
        self.0.host_end.resume_poll();
        hold_pass(self.0);
    }
}

/// The poll in progress blocks in place from here on, and is not counted meanwhile; `None` if it was not before.
pub(crate) fn lend_pass(shared: &Shared) -> Option<LentPass<'_>> {
    return_pass(shared).then(|| {
        shared.host_end.lend_poll();
        LentPass(shared)
    })
}

/// Whether an `in_group` is around what this thread does.
pub(crate) fn is_wrapped() -> bool {
    let wrapped = LOCAL.try_with(|local| local.wrap.get().is_some());
    wrapped.unwrap_or(true)
}

/// H1: the poll in progress goes on without virtual CPU `index`. Returns what of it is billed until `now`, and its notes. The group,
/// the epoch of the poll, and which scheduler it is of, stay.
pub(crate) fn leave_vcpu(shared: &Arc<Shared>, index: usize, now: Nanos) -> (Nanos, PollNotes) {
    return_pass(shared);
    LOCAL.with(|local| {
        let me = &shared.vcpus[index];
        let excluded = (local.excluded.get(), local.absent.get());
        let billed = poll_time(me, now, excluded, local.reference.get(), &local.stolen);
        me.clock.show(billed);
        local.polling.set(false);
        local.slot_of.set(0);
        drop(local.owner.take());
        let notes = local.take_notes();
        // There may still be a deferral for the end of the poll.
        local.noted.set(true);
        (billed, notes)
    })
}

/// The thread has a poll without a virtual CPU.
pub(crate) fn bear(bearing: Bearing) {
    let _ = LOCAL.try_with(|local| local.bearing.replace(Some(bearing)));
}

/// That poll's blocking function has returned.
pub(crate) fn function_returned() {
    let _ = LOCAL.try_with(|local| {
        if let Ok(mut bearing) = local.bearing.try_borrow_mut()
            && let Some(bearing) = bearing.as_mut()
        {
            bearing.function_returned();
        }
    });
}

/// What is left of that poll, at its end.
pub(crate) fn take_bearing() -> Option<Bearing> {
    LOCAL
        .try_with(|local| local.bearing.try_borrow_mut().ok()?.take())
        .ok()
        .flatten()
}
