//! Who woke whom: every wake-up is noted with the burst of the waker and how far that had come, until the burst that it begins.
//!
//! Wake-ups from hard interrupts (timers, devices) have no waker; from soft interrupts they have whoever was interrupted, which
//! is right for a connection within the machine and wrong for a packet from outside. Traces of perf do not tell interrupts.

use super::OUTSIDE;
use quotient_core::Nanos;
use quotient_trace::{Event, Kind, TaskId};
use std::collections::HashMap;

/// A wake-up whose burst has not begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause {
    /// The burst of the waker.
    pub(super) by: u32,
    /// What that had computed.
    pub(super) offset: u64,
}

/// What is known at this place of the trace.
#[derive(Debug, Default)]
pub(super) struct Causes {
    pending: HashMap<TaskId, Cause>,
    /// Since when each running task runs.
    since: HashMap<TaskId, Nanos>,
    /// `Waking` is written by the waker, `Wakeup` perhaps by the CPU where the task will run.
    has_waking: bool,
}

impl Causes {
    /// Whom an event wakes, and by whom.
    pub(super) fn woken(&mut self, event: &Event) -> Option<(TaskId, TaskId)> {
        match event.kind {
            Kind::Waking { task, waker, .. } => {
                self.has_waking = true;
                Some((task, waker))
            }
            Kind::Wakeup { task, waker, .. } if !self.has_waking => Some((task, waker)),
            Kind::Spawn { task, parent, .. } => Some((task, parent)),
            _ => None,
        }
    }

    /// Notes a wake-up; the last one before a burst counts.
    pub(super) fn note(&mut self, task: TaskId, cause: Option<Cause>) {
        match cause {
            Some(cause) => self.pending.insert(task, cause),
            None => self.pending.remove(&task),
        };
    }

    /// A burst of that task begins: what woke it.
    pub(super) fn take(&mut self, task: TaskId) -> Cause {
        self.pending.remove(&task).unwrap_or(Cause {
            by: OUTSIDE,
            offset: 0,
        })
    }

    /// A CPU goes over to a task.
    pub(super) fn switched(&mut self, event: &Event) {
        if let Kind::Switch { prev, next, .. } = event.kind {
            self.since.remove(&prev);
            if !next.is_idle() {
                self.since.insert(next, event.time);
            }
        }
    }

    /// Whether that task is known to run.
    pub(super) fn runs(&self, task: TaskId) -> bool {
        self.since.contains_key(&task)
    }

    /// For how long a task has been running.
    pub(super) fn running_for(&self, task: TaskId, now: Nanos) -> u64 {
        let since = self.since.get(&task);
        since.map_or(0, |since| now.0.saturating_sub(since.0))
    }
}
