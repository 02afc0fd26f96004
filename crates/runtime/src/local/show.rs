//! Whoever reads a clock inside a poll sees that poll: what it took so far is put on the clocks first.

use std::sync::Arc;

use super::{LOCAL, Local};
use crate::cpu_clock::poll_time;
use crate::shared::Shared;
use crate::task_context::TaskContext;

/// Brings the clocks of what this thread runs up to date, if that is `reading` or below it.
#[inline]
pub(crate) fn show_own_time(reading: &quotient_core::Group) {
    let _ = LOCAL.try_with(|local| {
        if let Some(mut meter) = local.meter.take() {
            meter.look_for(reading);
            local.meter.set(Some(meter));
        } else if local.group_at.get() != 0 {
            local.show_charged_group(reading);
        }
    });
}

/// As [`show_own_time`], from inside a poll of `task`, for its own clock.
pub(crate) fn show_own_task_time(task: &TaskContext) {
    let _ = LOCAL.try_with(|local| {
        // Inside a blocking function or an `in_group` the time is not the task's.
        let blocking = local.meter.take();
        let own = blocking.is_none() && local.wrap.get().is_none() && local.polling.get();
        local.meter.set(blocking);
        if own && Arc::as_ptr(&task.shared) as usize == local.scheduler.get() {
            local.show_poll(&task.shared);
            task.show(task.shared.vcpus[local.vcpu.get()].clock.shown());
        }
    });
}

impl Local {
    /// The innermost of `in_group` and task on this thread.
    fn show_charged_group(&self, reading: &quotient_core::Group) {
        let Ok(group) = self.group.try_borrow() else {
            return;
        };
        let Some((shared, group)) = &*group else {
            return;
        };
        if !group.core.is_within(reading) {
            return;
        }
        if let Some(wrap) = self.wrap.get() {
            self.show_wrap(wrap, group, shared.now());
        } else if self.polling.get() {
            self.show_poll(shared);
        }
    }

    /// The poll in progress, on the hand of its virtual CPU.
    fn show_poll(&self, shared: &Shared) {
        if shared.preempt.is_some() {
            // The hand has one writer, and the poll may have lost its virtual CPU to another thread.
            return;
        }
        let me = &shared.vcpus[self.vcpu.get()];
        let time = poll_time(
            me,
            shared.now(),
            (self.excluded.get(), self.absent.get()),
            self.reference.get(),
            &self.stolen,
        );
        me.clock.show(time);
    }
}
