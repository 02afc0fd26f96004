//! What a run tells: events for the sink, figures for the outcome.

use super::Simulation;
use super::state::NONE;
use crate::outcome::Mechanism;
use crate::plan::Action;
use quotient_core::{CpuId, Nanos};
use quotient_trace::{
    Definition, Event, GroupId, GroupInfo, Kind, Sink, TaskId, TaskInfo, TaskState,
};

/// A task's number in a trace: 0 is the idle task.
fn shown(task: u32) -> TaskId {
    if task == NONE {
        TaskId::IDLE
    } else {
        TaskId(task + 1)
    }
}

impl<S: Sink> Simulation<S> {
    /// Counts an event, and tells it if anybody listens.
    #[inline]
    pub(super) fn emit(&mut self, cpu: u32, kind: Kind) {
        self.mechanisms.events += 1;
        if S::ENABLED && self.sink.enabled() {
            self.sink
                .event(&Event::new(Nanos(self.now), CpuId(cpu), kind));
        }
    }

    /// A task spent time in a mechanism of the kernel.
    #[inline]
    pub(super) fn spend(&mut self, task: u32, mechanism: Mechanism, cost: u64) {
        if cost > 0 {
            self.mechanisms.add(mechanism, cost);
            let group = self.tasks[task as usize].group;
            self.group_system[group as usize] += cost;
        }
    }

    /// A CPU goes over from the task that it was shown with to another.
    #[inline]
    pub(super) fn show(&mut self, cpu: u32, next: u32) {
        let state = &mut self.cpus[cpu as usize];
        let prev = core::mem::replace(&mut state.shown, next);
        let kind = Kind::Switch {
            prev: shown(prev),
            state: if prev == NONE {
                TaskState::Runnable
            } else {
                state.left
            },
            next: shown(next),
        };
        self.mechanisms.switches += 1;
        self.emit(cpu, kind);
    }

    #[inline]
    pub(super) fn show_wakeup(&mut self, cpu: u32, task: u32, target: u32, waker: u32) {
        self.mechanisms.wakeups += 1;
        let kind = Kind::Wakeup {
            task: shown(task),
            target: CpuId(target),
            waker: shown(waker),
        };
        self.emit(cpu, kind);
    }

    pub(super) fn show_spawn(&mut self, task: u32, target: u32) {
        let kind = Kind::Spawn {
            task: shown(task),
            target: CpuId(target),
            parent: TaskId::IDLE,
        };
        self.emit(target, kind);
    }

    pub(super) fn show_exit(&mut self, cpu: u32, task: u32) {
        self.emit(cpu, Kind::Exit { task: shown(task) });
    }

    pub(super) fn show_migration(&mut self, task: u32, from: u32, to: u32) {
        self.mechanisms.migrations += 1;
        let kind = Kind::Migrate {
            task: shown(task),
            from: CpuId(from),
            to: CpuId(to),
        };
        self.emit(to, kind);
    }

    pub(super) fn show_ipi(&mut self, cpu: u32, target: u32) {
        self.mechanisms.ipis += 1;
        self.emit(
            cpu,
            Kind::Ipi {
                target: CpuId(target),
            },
        );
    }

    pub(super) fn show_tick(&mut self, cpu: u32) {
        self.mechanisms.ticks += 1;
        self.emit(cpu, Kind::Tick);
    }

    pub(super) fn show_plug(&mut self, cpu: u32, online: bool) {
        self.emit(cpu, Kind::Hotplug { online });
    }

    pub(super) fn note_change(&mut self, index: u32) {
        let change = &self.changes[index as usize];
        let group = GroupId(self.groups[change.group as usize + 1].id());
        let weight = match change.action {
            Action::Weight(weight) => weight.get(),
            Action::Idle(true) => 0,
            Action::Idle(false) | Action::Limit(_) => {
                self.groups[change.group as usize + 1].weight().get()
            }
        };
        self.emit(0, Kind::SetWeight { group, weight });
    }

    /// Tells the sink the names of groups and tasks.
    pub(super) fn define_all(&mut self) {
        if !S::ENABLED {
            return;
        }
        for group in self.groups.iter().skip(1) {
            let parent = group.parent().map_or(0, |parent| parent.id());
            self.sink.define(&Definition::Group {
                id: GroupId(group.id()),
                info: GroupInfo {
                    path: group.path().into(),
                    parent: GroupId(parent),
                },
            });
        }
        for (number, name) in (self.tasks.len() as u32..).zip(&self.above.names) {
            self.sink.define(&Definition::Task {
                id: shown(number),
                info: TaskInfo {
                    name: name.clone(),
                    group: None,
                    ..TaskInfo::default()
                },
            });
        }
        for (number, task) in (0u32..).zip(&self.tasks) {
            let load = &self.loads[task.workload as usize];
            let name = if load.tasks.len() == 1 {
                load.name.clone()
            } else {
                format!("{}.{}", load.name, number - load.tasks.start)
            };
            self.sink.define(&Definition::Task {
                id: shown(number),
                info: TaskInfo {
                    name,
                    group: Some(GroupId(self.groups[task.group as usize].id())),
                    ..TaskInfo::default()
                },
            });
        }
    }
}
