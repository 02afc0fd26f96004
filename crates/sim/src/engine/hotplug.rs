//! CPUs that go and come.
//!
//! One that goes is *taken* for good: nobody is chosen there, it is not idle, and what waits there, limited or not, is put where a
//! woken task would go. Afterwards nothing is placed on it: wherever a search ends at a CPU that is gone, `present` finds another.
//! A set of CPUs of which none is left binds nobody until one of them is back.

use super::Simulation;
use super::state::NONE;
use quotient_core::{Enqueue, Nanos};
use quotient_trace::Sink;

impl<S: Sink> Simulation<S> {
    /// A planned CPU goes or comes. The last one stays.
    #[cold]
    pub(super) fn plug(&mut self, index: u32) {
        let event = self.hotplug[index as usize];
        let cpu = event.cpu;
        let is_there = !self.cpus[cpu as usize].offline;
        if is_there == event.online {
            return;
        }
        self.catch_up();
        if event.online {
            self.affinity.set_online(cpu, true);
            self.cpus[cpu as usize].offline = false;
            self.show_plug(cpu, true);
            self.release(cpu);
            self.above_resumes(cpu);
        } else {
            let others = self.cpus.iter().filter(|cpu| !cpu.offline).count();
            if others < 2 {
                self.mechanisms.refused += 1;
                return;
            }
            self.unplug(cpu);
        }
        if self.machine.threads > 1 {
            self.share_core(cpu);
        }
    }

    fn unplug(&mut self, cpu: u32) {
        self.seize(cpu);
        self.cpus[cpu as usize].offline = true;
        self.affinity.set_online(cpu, false);
        if self.cpus[cpu as usize].shown != NONE {
            self.show(cpu, NONE);
        }
        self.show_plug(cpu, false);
        let now = Nanos(self.now);
        let mut moved = core::mem::take(&mut self.moved);
        self.cpus[cpu as usize].queue.drain(now, &mut moved);
        self.count_waiting(cpu);
        self.show_throttles(cpu);
        for task in moved.drain(..) {
            let target = self.refuge(task.handle, cpu);
            let preempts = self.cpus[target as usize].queue.enqueue(
                &task.group,
                task.entity,
                task.handle,
                Enqueue::Migrate,
                now,
            );
            self.settle_on(task.handle, cpu, target, preempts);
        }
        self.moved = moved;
        while let Some(candidate) = self.cpus[cpu as usize].queue.give() {
            self.count_waiting(cpu);
            let target = self.refuge(candidate.task, cpu);
            let preempts = self.cpus[target as usize].queue.admit(candidate, now);
            self.settle_on(candidate.task, cpu, target, preempts);
        }
        self.count_waiting(cpu);
    }

    /// Where a task goes whose CPU is gone.
    fn refuge(&self, task: u32, gone: u32) -> u32 {
        let target = if self.affinity.is_bound(task) {
            self.choose_allowed(task, gone, NONE)
        } else {
            self.emptiest(task)
        };
        self.present(task, target)
    }

    fn settle_on(&mut self, task: u32, from: u32, target: u32, preempts: bool) {
        self.show_migration(task, from, target);
        self.count_waiting(target);
        self.reschedule(target, preempts, NONE);
    }

    /// The CPU itself, or if it is gone the emptiest that is there and that the task may run on, the nearest first. O(CPUs) if it is gone.
    #[inline]
    pub(super) fn present(&self, task: u32, cpu: u32) -> u32 {
        if self.cpus[cpu as usize].offline {
            self.another(task, cpu)
        } else {
            cpu
        }
    }

    #[cold]
    fn another(&self, task: u32, gone: u32) -> u32 {
        (0..self.machine.cpus())
            .filter(|&cpu| !self.cpus[cpu as usize].offline && self.affinity.allows(task, cpu))
            .min_by_key(|&cpu| {
                let queue = &self.cpus[cpu as usize].queue;
                let distance = self.machine.node_distance(gone, cpu);
                (!self.idle.contains(cpu), queue.nr_running(), distance, cpu)
            })
            .unwrap_or(gone)
    }
}
