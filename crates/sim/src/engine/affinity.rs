//! Which CPUs a task may run on: where it is woken, and what a pull has to leave where it is.
//!
//! The core knows nothing of it, as of no host's placement. A pull that brings tasks that may not run here gives them back at once;
//! since the one that was moved longest ago goes first, the next pull looks at others. A CPU with nothing to run tries one CPU after
//! another, as long as it gets nothing it may run.

use super::Simulation;
use super::state::NONE;
use crate::plan::Plan;
use quotient_core::{CpuId, Enqueue, Nanos, Pull};
use quotient_trace::{Sink, TaskState};
use std::sync::Arc;

/// For how long who runs must have run before he is moved to make room. Unit: nanoseconds. 10 ms: who runs for less is about to sleep as often as not, and
/// then nobody waits for him. (After 1 ms tasks that sleep were moved from CPU to CPU, and a loop had 0.09 of a CPU for 0.44.)
const ROOM_AFTER: u64 = 10_000_000;

/// The sets of CPUs of a run, and whose they are.
pub(super) struct Affinity {
    /// As bits.
    sets: Vec<Vec<u64>>,
    /// Index of each task's set, or `NONE`. Empty if nobody has one.
    of: Vec<u32>,
    /// CPUs that are there, as bits, and the sets of which none is: those bind nobody.
    online: Vec<u64>,
    void: Vec<bool>,
}

impl Affinity {
    pub(super) fn of(plan: &Plan) -> Affinity {
        let words = (plan.machine.cpus() as usize).div_ceil(64);
        let bits = |cpus: &Vec<u32>| {
            let mut set = vec![0u64; words];
            for &cpu in cpus {
                set[cpu as usize / 64] |= 1 << (cpu % 64);
            }
            set
        };
        let tasks = plan.workloads.iter().flat_map(|load| &load.tasks);
        let of: Vec<u32> = tasks.map(|task| task.cpuset.unwrap_or(NONE)).collect();
        let binds = of.iter().any(|&set| set != NONE);
        Affinity {
            sets: plan.cpusets.iter().map(bits).collect(),
            of: if binds { of } else { Vec::new() },
            online: vec![u64::MAX; words],
            void: vec![false; plan.cpusets.len()],
        }
    }

    /// A CPU goes or comes.
    pub(super) fn set_online(&mut self, cpu: u32, online: bool) {
        let bit = 1 << (cpu % 64);
        let word = &mut self.online[cpu as usize / 64];
        *word = if online { *word | bit } else { *word & !bit };
        for (set, void) in self.sets.iter().zip(&mut self.void) {
            let left = set
                .iter()
                .zip(&self.online)
                .any(|(set, word)| set & word != 0);
            *void = !left;
        }
    }

    /// Whether any task is kept to some CPUs.
    #[inline]
    pub(super) fn binds(&self) -> bool {
        !self.of.is_empty()
    }

    /// Whether this one is.
    #[inline]
    pub(super) fn is_bound(&self, task: u32) -> bool {
        self.binds()
            && self.of[task as usize] != NONE
            && !self.void[self.of[task as usize] as usize]
    }

    #[inline]
    pub(super) fn allows(&self, task: u32, cpu: u32) -> bool {
        !self.is_bound(task)
            || self.sets[self.of[task as usize] as usize][cpu as usize / 64] >> (cpu % 64) & 1 == 1
    }
}

impl<S: Sink> Simulation<S> {
    /// Where a task with a set of CPUs goes: its last CPU if that is idle, else an idle one of the set, the nearest first; if none is
    /// idle, its last CPU or its waker's, else the emptiest of the set. O(CPUs).
    #[cold]
    pub(super) fn choose_allowed(&self, task: u32, last: u32, by: u32) -> u32 {
        let home = if last == NONE { 0 } else { last };
        let allowed =
            |cpu: &u32| self.affinity.allows(task, *cpu) && !self.cpus[*cpu as usize].offline;
        let all = 0..self.machine.cpus();
        let idle = all
            .clone()
            .filter(allowed)
            .filter(|&cpu| self.idle.contains(cpu))
            .min_by_key(|&cpu| {
                (
                    cpu != last,
                    self.machine.node_distance(home, cpu),
                    !self.core_is_idle(cpu),
                    cpu,
                )
            });
        if let Some(idle) = idle {
            return idle;
        }
        let length = |cpu: u32| self.cpus[cpu as usize].queue.nr_running();
        let near = [last, by].into_iter().filter(|&cpu| cpu != NONE);
        near.filter(allowed)
            .min_by_key(|&cpu| length(cpu))
            .or_else(|| all.filter(allowed).min_by_key(|&cpu| length(cpu)))
            .unwrap_or(home)
    }

    /// Looks for anything that an idle CPU may run, the fullest CPU of the nearest node first, and then for a CPU where who runs may run here
    /// and who waits may not. O(CPUs log CPUs).
    #[cold]
    pub(super) fn search(&mut self, cpu: u32) -> bool {
        let waiting = |other: u32| self.cpus[other as usize].queue.nr_queued();
        let mut others: Vec<u32> = (0..self.machine.cpus())
            .filter(|&other| other != cpu && waiting(other) > 0)
            .collect();
        others.sort_by_key(|&other| {
            let distance = self.machine.node_distance(cpu, other);
            (distance, core::cmp::Reverse(waiting(other)), other)
        });
        let any = others.iter().any(|&from| {
            let max = self.cpus[from as usize].queue.nr_queued();
            let request = Pull {
                from: CpuId(from),
                max,
                group: 0,
                own: false,
                noted: false,
            };
            self.take(cpu, &request)
        });
        any || others.into_iter().any(|from| self.make_room(cpu, from))
    }

    /// Moves who runs on `from` to a CPU that idles, if those that wait on `from` may not run here and he may: they are bound to where he is, and
    /// nothing but that keeps him there. (Two spinners of weight 1 that were bound to two of four CPUs had nothing beside heavier free ones, while half a
    /// CPU was idle.) The kernel's active balancing does as much where tasks are pinned, after some failures; by its rules this is left out.
    fn make_room(&mut self, cpu: u32, from: u32) -> bool {
        let state = &self.cpus[from as usize];
        let task = state.current;
        let is_short = self.now - state.since < ROOM_AFTER;
        if task == NONE
            || state.taken
            || is_short
            || !self.pulls_by_own_rules()
            || !self.affinity.allows(task, cpu)
        {
            return false;
        }
        let now = Nanos(self.now);
        self.catch_up();
        self.stop_work(from);
        let state = &mut self.cpus[from as usize];
        state.left = TaskState::Preempted;
        let entity = state.queue.put_prev_move(now);
        self.dispatch(from);
        let Some(entity) = entity else {
            return false;
        };
        let group = Arc::clone(&self.groups[self.tasks[task as usize].group as usize]);
        let queue = &mut self.cpus[cpu as usize].queue;
        queue.enqueue(&group, entity, task, Enqueue::Migrate, now);
        self.show_migration(task, from, cpu);
        self.count_waiting(cpu);
        true
    }
}
