//! Moving tasks between CPUs, as the core's balancer plans.

use super::Simulation;
use super::state::NONE;
use quotient_core::{CpuId, Enqueue, Nanos, Pull, Reason, balance};
use quotient_trace::Sink;

impl<S: Sink> Simulation<S> {
    /// Asks the core whether to pull, and does it. Returns whether anything came.
    pub(super) fn pull(&mut self, cpu: u32, reason: Reason) -> bool {
        let now = Nanos(self.now);
        let me = CpuId(cpu);
        let plan = balance::plan(&self.topology, me, &self.published, reason, now);
        let any = plan.is_some_and(|request| self.take(cpu, &request));
        any || reason == Reason::Idle && self.affinity.binds() && self.search(cpu)
    }

    /// Moves tasks as a pull says. Returns whether there were any.
    pub(super) fn take(&mut self, cpu: u32, request: &Pull) -> bool {
        let now = Nanos(self.now);
        let from = request.from.0;
        let mut moved = core::mem::take(&mut self.moved);
        self.cpus[from as usize]
            .queue
            .detach_to(CpuId(cpu), request, now, &mut moved);
        let mut any = false;
        for task in moved.drain(..) {
            if !self.affinity.allows(task.handle, cpu) {
                self.give_back(from, &task);
                continue;
            }
            any = true;
            let state = &mut self.cpus[cpu as usize];
            let preempts =
                state
                    .queue
                    .enqueue(&task.group, task.entity, task.handle, Enqueue::Migrate, now);
            if preempts && state.current != NONE {
                state.need_resched = true;
                self.list(cpu);
            }
            self.show_migration(task.handle, from, cpu);
        }
        self.moved = moved;
        self.count_waiting(from);
        self.count_waiting(cpu);
        any
    }
}
