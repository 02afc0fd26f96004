//! Switches that a trace does not show. Some virtual machines' kernels leave out a CPU's switches from idle; what was woken there
//! then seems never to run. Who acts on a CPU that was last seen going idle has been running since it was woken.

use std::collections::HashMap;

use quotient_core::event::{Event, Kind, TaskId, TaskState};
use quotient_core::{CpuId, Nanos};

/// Fills them in, event by event. Only for kernels' traces: where nothing is left out, a switch that does not fit is a fault, and filling
/// in another would hide it.
///
/// Memory grows with the live tasks.
#[derive(Debug, Default)]
pub struct Repair {
    /// CPUs that went idle, and when.
    idle: HashMap<CpuId, Nanos>,
    /// Since when each task has been ready to run: when it was woken, or left a CPU that it still wanted.
    ready: HashMap<TaskId, Nanos>,
    count: u64,
}

impl Repair {
    /// Switches filled in so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The switch that is missing before this event, if one is: from idle to who acts here, when that one was ready and the CPU idle. To be
    /// called with each event, and taken before it; its time may be before that of events already seen. O(1).
    pub fn missing(&mut self, event: &Event) -> Option<Event> {
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
