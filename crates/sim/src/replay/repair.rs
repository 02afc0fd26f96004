//! Switches that a trace does not show. Some virtual machines' kernels leave out a CPU's switches from idle; what was woken there
//! then seems never to run. Who acts on a CPU that was last seen going idle has been running since it was woken.

use quotient_core::{CpuId, Nanos};
use quotient_trace::{Event, Kind, TaskId, TaskState};
use std::collections::HashMap;

/// What is known at this place of the trace.
#[derive(Debug, Default)]
pub(super) struct Repair {
    /// CPUs that went idle, and when.
    idle: HashMap<CpuId, Nanos>,
    /// Since when each task has been ready to run: when it was woken, or left a CPU that it still wanted.
    ready: HashMap<TaskId, Nanos>,
    /// Switches filled in.
    pub(super) count: u64,
}

impl Repair {
    /// The switch that is missing before this event.
    pub(super) fn missing(&mut self, event: &Event) -> Option<Event> {
        let Event { time, cpu, kind } = *event;
        let actor = match kind {
            Kind::Switch { prev, .. } => prev,
            Kind::Waking { waker, .. } => waker,
            _ => TaskId::IDLE,
        };
        let missing = (!actor.is_idle())
            .then(|| Some((*self.idle.get(&cpu)?, *self.ready.get(&actor)?)))
            .flatten()
            .map(|(since, ready)| {
                let kind = Kind::Switch {
                    prev: TaskId::IDLE,
                    state: TaskState::Runnable,
                    next: actor,
                };
                Event::new(ready.max(since).min(time), cpu, kind)
            });
        if missing.is_some() {
            self.count += 1;
            self.idle.remove(&cpu);
        }
        self.note(event);
        missing
    }

    fn note(&mut self, event: &Event) {
        match event.kind {
            Kind::Switch { prev, state, next } => {
                if next.is_idle() {
                    self.idle.insert(event.cpu, event.time);
                } else {
                    self.idle.remove(&event.cpu);
                }
                if state.is_runnable() && !prev.is_idle() {
                    self.ready.insert(prev, event.time);
                } else if state.is_over() {
                    self.ready.remove(&prev);
                }
            }
            Kind::Waking { task, .. } | Kind::Wakeup { task, .. } | Kind::Spawn { task, .. } => {
                self.ready.insert(task, event.time);
            }
            Kind::Lost { .. } => {
                self.idle.remove(&event.cpu);
            }
            _ => {}
        }
    }
}
