//! From events back to states: who ran where, who waited how long, who was throttled, and what does not fit together.
//!
//! ```text
//!              wakeup, spawn            switch to it
//!   asleep ───────────────▶ runnable ───────────────▶ running
//!     ▲                        ▲   preempted, yields     │
//!     │                        └─────────────────────────┤
//!     └──────────────────────────────────────────────────┘ waits: switch with S, D, ...
//! ```
//! A trace begins in the middle of things and may lose events, so every state can also be unknown, and an unknown state
//! excuses everything. Memory grows with the live tasks, not with the trace.

mod observe;
mod plug;
mod stand;

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use quotient_core::event::{Definition, Event, GroupId, Kind, Table, TaskId, TaskState};
use quotient_core::{CpuId, Nanos};

/// Deepest group that is looked at. Default 64, the scheduler's own bound; ends a walk in a trace with a cycle.
const DEPTH_MAX: usize = 64;

pub use observe::{Fault, Imbalance, Observer, Run, Stand, Wait};
use stand::Standing;

#[derive(Clone, Copy, Debug)]
struct CpuState {
    /// `None` until the first switch, and after a loss.
    current: Option<TaskId>,
    since: Nanos,
    /// Of the run in progress, ns.
    uncharged: i64,
}

#[derive(Clone, Copy, Debug)]
enum Status {
    Running {
        cpu: CpuId,
        was_woken: bool,
    },
    Runnable {
        cpu: CpuId,
        since: Nanos,
        is_woken: bool,
        /// Known from `Waking` only: a `Wakeup` that follows is the better time.
        is_provisional: bool,
    },
    /// `was_woken`: somebody woke it while it was on its way to sleep, so it may run again without another wake-up.
    Asleep {
        since: Nanos,
        was_woken: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Overlap {
    first: CpuId,
    second: CpuId,
    from: Nanos,
}

/// The state of a recorded machine.
#[derive(Debug, Default)]
pub struct Replay {
    cpus: HashMap<CpuId, CpuState>,
    tasks: HashMap<TaskId, Status>,
    overlaps: HashMap<TaskId, Overlap>,
    throttled: HashMap<(GroupId, CpuId), Nanos>,
    /// When a group was last throttled anywhere: until now if it still is.
    last_throttle: HashMap<GroupId, Nanos>,
    standing: Standing,
    table: Table,
    span: Option<(Nanos, Nanos)>,
}

impl Replay {
    /// Before the first event.
    pub fn new() -> Replay {
        Replay::default()
    }

    /// Names and memberships as of now.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Time stamps of the first and the last event.
    pub fn span(&self) -> (Nanos, Nanos) {
        self.span.unwrap_or_default()
    }

    /// CPUs that were seen.
    pub fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    /// CPUs that are idle now, and since when.
    pub fn idle_cpus(&self) -> impl Iterator<Item = (CpuId, Nanos)> {
        self.cpus
            .iter()
            .filter(|(_, state)| state.current.is_some_and(TaskId::is_idle))
            .map(|(cpu, state)| (*cpu, state.since))
    }

    /// `group` and those above it, up to and with the root.
    pub fn path(&self, group: GroupId) -> impl Iterator<Item = GroupId> {
        let above =
            |group: &GroupId| (*group != GroupId::ROOT).then(|| self.table.parent_of(*group));
        std::iter::successors(Some(group), above).take(DEPTH_MAX)
    }

    /// Takes a definition.
    pub fn define(&mut self, definition: &Definition) {
        self.table.define(definition);
    }

    /// Takes an event, and tells the observer what follows from it.
    pub fn event<O: Observer>(&mut self, event: &Event, observer: &mut O) {
        let &Event { time, cpu, kind } = event;
        let first = self.span.map_or(time, |span| span.0);
        self.span = Some((first, time));
        self.cpus.entry(cpu).or_insert(CpuState {
            current: None,
            since: first,
            uncharged: 0,
        });
        match kind {
            Kind::Switch { prev, state, next } => self.switch(event, prev, state, next, observer),
            Kind::Waking { task, target, .. } => self.wake(time, task, target, true),
            Kind::Wakeup { task, target, .. } => self.wake(time, task, target, false),
            Kind::Spawn {
                task,
                target,
                parent,
            } => {
                self.table.inherit(task, parent);
                self.wake(time, task, target, false);
            }
            Kind::Migrate { task, to, .. } => {
                if let Some(Status::Runnable { cpu, .. }) = self.tasks.get_mut(&task) {
                    *cpu = to;
                }
            }
            Kind::Uncharged { task, time } => {
                if let Some(state) = self.cpus.get_mut(&cpu)
                    && state.current == Some(task)
                {
                    state.uncharged = state.uncharged.saturating_add(time.get());
                }
            }
            Kind::Attach { task, group } => self.attach(time, task, group, observer),
            Kind::Throttle { group } => {
                let is_second = self.throttled.insert((group, cpu), time).is_some();
                if is_second {
                    let fault = Fault::Unpaired {
                        group,
                        cpu,
                        is_throttle: true,
                    };
                    observer.fault(self, &fault);
                }
                self.last_throttle.insert(group, time);
            }
            Kind::Unthrottle { group } => self.unthrottle(time, group, cpu, observer),
            Kind::Pause { task } => self.pause(time, task, observer),
            Kind::Resume { task, reason } => self.resume(time, task, reason, observer),
            Kind::Hotplug { online } => self.plug(time, cpu, online, observer),
            Kind::Lost { .. } => self.lose(time, cpu),
            _ => {}
        }
    }

    /// Nobody knows what became of `task`: it may run next without a wake-up, and what it waits is no wait. O(1).
    pub fn forget(&mut self, task: TaskId) {
        self.tasks.remove(&task);
    }

    /// The trace is over: closes what is open.
    pub fn finish<O: Observer>(&mut self, observer: &mut O) {
        let (_, end) = self.span();
        let mut cpus: Vec<_> = self
            .cpus
            .iter()
            .map(|(cpu, state)| (*cpu, *state))
            .collect();
        cpus.sort_by_key(|(cpu, _)| *cpu);
        for (cpu, state) in cpus {
            match state.current {
                Some(task) if task.is_idle() => observer.idled(self, cpu, state.since, end),
                Some(task) => observer.ran(self, &self.run(task, cpu, state, end, None)),
                None => {}
            }
        }
        let mut waiting: Vec<_> = self
            .tasks
            .iter()
            .map(|(task, status)| (*task, *status))
            .collect();
        waiting.sort_by_key(|(task, _)| *task);
        for (task, status) in waiting {
            if let Status::Runnable { .. } = status {
                self.end_wait(task, status, end, true, observer);
            }
        }
        let mut throttled: Vec<_> = self.throttled.drain().collect();
        throttled.sort();
        for ((group, cpu), from) in throttled {
            observer.throttled(self, group, cpu, from, end);
        }
        self.finish_standing(end, observer);
        let mut overlaps: Vec<_> = self.overlaps.drain().collect();
        overlaps.sort_by_key(|(task, _)| *task);
        for (task, overlap) in overlaps {
            observer.fault(self, &overlap.fault(task, end));
        }
    }

    /// The run that `state` describes, up to `to`.
    fn run(
        &self,
        task: TaskId,
        cpu: CpuId,
        state: CpuState,
        to: Nanos,
        left: Option<TaskState>,
    ) -> Run {
        let length = (to - state.since).as_nanos();
        let charged = length.saturating_add_signed(state.uncharged.saturating_neg());
        Run {
            task,
            group: self.table.group_of(task),
            cpu,
            from: state.since,
            to,
            charged: Nanos(charged),
            state: left,
        }
    }

    fn switch<O: Observer>(
        &mut self,
        event: &Event,
        prev: TaskId,
        state: TaskState,
        next: TaskId,
        observer: &mut O,
    ) {
        let &Event { time, cpu, .. } = event;
        let before = self.cpus[&cpu];
        if let Some(running) = before.current
            && running != prev
        {
            observer.fault(self, &Fault::Chain { cpu, running, prev });
            // Nobody knows what became of it.
            if matches!(self.tasks.get(&running), Some(Status::Running { cpu: at, .. }) if *at == cpu)
            {
                self.tasks.remove(&running);
            }
        }
        let is_known = before.current.is_none_or(|running| running == prev);
        if is_known && prev.is_idle() {
            observer.idled(self, cpu, before.since, time);
        } else if is_known {
            let run = self.run(prev, cpu, before, time, Some(state));
            observer.ran(self, &run);
            self.judge_turn(cpu, &run, observer);
        }
        if !prev.is_idle() {
            self.leave(time, cpu, prev, state, observer);
        }
        if !next.is_idle() {
            self.start(time, cpu, next, observer);
        }
        let current = CpuState {
            current: Some(next),
            since: time,
            uncharged: 0,
        };
        self.cpus.insert(cpu, current);
    }

    /// `task` leaves `cpu`.
    fn leave<O: Observer>(
        &mut self,
        time: Nanos,
        cpu: CpuId,
        task: TaskId,
        state: TaskState,
        observer: &mut O,
    ) {
        if let Some(overlap) = self.overlaps.remove(&task) {
            observer.fault(self, &overlap.fault(task, time));
            if overlap.first == cpu {
                // It goes on where it ran as well.
                return;
            }
        }
        let was_woken = matches!(
            self.tasks.get(&task),
            Some(Status::Running {
                was_woken: true,
                ..
            })
        );
        if state.is_over() {
            self.tasks.remove(&task);
            self.end_of_thread(task, observer);
            self.table.over(task);
            return;
        }
        let status = if state.is_runnable() {
            Status::Runnable {
                cpu,
                since: time,
                is_woken: false,
                is_provisional: false,
            }
        } else {
            Status::Asleep {
                since: time,
                was_woken,
            }
        };
        self.tasks.insert(task, status);
    }

    /// `task` starts to run on `cpu`.
    fn start<O: Observer>(&mut self, time: Nanos, cpu: CpuId, task: TaskId, observer: &mut O) {
        match self.tasks.get(&task).copied() {
            Some(Status::Running { cpu: first, .. }) => {
                let overlap = Overlap {
                    first,
                    second: cpu,
                    from: time,
                };
                self.overlaps.insert(task, overlap);
            }
            Some(Status::Asleep { since, was_woken }) if !was_woken => {
                let fault = Fault::NotWoken {
                    task,
                    cpu,
                    asleep: since,
                };
                observer.fault(self, &fault);
            }
            Some(status @ Status::Runnable { .. }) => {
                self.end_wait(task, status, time, false, observer);
            }
            _ => {}
        }
        if !self.throttled.is_empty() {
            let group = self.table.group_of(task);
            let throttled = self
                .path(group)
                .find(|group| self.throttled.contains_key(&(*group, cpu)));
            if let Some(group) = throttled {
                observer.fault(self, &Fault::RanThrottled { task, cpu, group });
            }
        }
        let status = Status::Running {
            cpu,
            was_woken: false,
        };
        self.tasks.insert(task, status);
    }

    fn end_wait<O: Observer>(
        &self,
        task: TaskId,
        status: Status,
        to: Nanos,
        is_open: bool,
        observer: &mut O,
    ) {
        let Status::Runnable {
            cpu,
            since,
            is_woken,
            ..
        } = status
        else {
            return;
        };
        let group = self.table.group_of(task);
        let was_throttled = !self.last_throttle.is_empty()
            && self.path(group).any(|group| {
                self.throttled
                    .keys()
                    .any(|(throttled, _)| *throttled == group)
                    || self
                        .last_throttle
                        .get(&group)
                        .is_some_and(|last| *last >= since)
            });
        let wait = Wait {
            task,
            group,
            cpu,
            from: since,
            to,
            is_woken,
            was_throttled,
            is_open,
        };
        observer.waited(self, &wait);
    }

    fn wake(&mut self, time: Nanos, task: TaskId, target: CpuId, is_provisional: bool) {
        if task.is_idle() {
            return;
        }
        let woken = Status::Runnable {
            cpu: target,
            since: time,
            is_woken: true,
            is_provisional,
        };
        match self.tasks.entry(task) {
            Entry::Vacant(entry) => {
                entry.insert(woken);
            }
            Entry::Occupied(mut entry) => match entry.get_mut() {
                Status::Running { was_woken, .. } => *was_woken = true,
                Status::Runnable {
                    is_provisional: true,
                    ..
                }
                | Status::Asleep { .. } => {
                    entry.insert(woken);
                }
                Status::Runnable { .. } => {}
            },
        }
    }

    fn attach<O: Observer>(&mut self, time: Nanos, task: TaskId, group: GroupId, observer: &mut O) {
        // What it used so far belongs to the old group.
        if let Some(Status::Running { cpu, .. }) = self.tasks.get(&task).copied()
            && let Some(state) = self.cpus.get(&cpu).copied()
            && state.current == Some(task)
        {
            observer.ran(self, &self.run(task, cpu, state, time, None));
            let current = CpuState {
                since: time,
                uncharged: 0,
                ..state
            };
            self.cpus.insert(cpu, current);
        }
        self.table.attach(task, group);
    }

    fn unthrottle<O: Observer>(
        &mut self,
        time: Nanos,
        group: GroupId,
        cpu: CpuId,
        observer: &mut O,
    ) {
        match self.throttled.remove(&(group, cpu)) {
            Some(from) => observer.throttled(self, group, cpu, from, time),
            // Throttled before the trace began, unless we have seen it throttled before.
            None if self.last_throttle.contains_key(&group) => {
                let fault = Fault::Unpaired {
                    group,
                    cpu,
                    is_throttle: false,
                };
                observer.fault(self, &fault);
            }
            None => {}
        }
        self.last_throttle.insert(group, time);
    }

    /// Events of `cpu` are missing: wake-ups of anybody, switches there.
    fn lose(&mut self, time: Nanos, cpu: CpuId) {
        let unknown = CpuState {
            current: None,
            since: time,
            uncharged: 0,
        };
        self.cpus.insert(cpu, unknown);
        self.tasks
            .retain(|_, status| matches!(status, Status::Running { cpu: at, .. } if *at != cpu));
        self.overlaps.clear();
        self.throttled.clear();
        self.last_throttle.clear();
        self.standing.forget();
    }
}

impl Overlap {
    fn fault(self, task: TaskId, to: Nanos) -> Fault {
        Fault::TwoCpus {
            task,
            first: self.first,
            second: self.second,
            from: self.from,
            to,
        }
    }
}
