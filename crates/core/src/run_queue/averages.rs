//! Load averages of the queue's groups and tasks: when they are brought up to date.
//!
//! Not at each switch. A timeline is averaged *before* its contents change (a task comes or leaves, a group is linked
//! or unlinked) and once a [`TICK`] while it is on the chain; the current task with it. In between nothing is lost:
//! what competes is constant, and who ran for how long is on the CPU clocks, spread evenly over the interval.
//!
//! | average | brought up to date | then off by at most |
//! |---|---|---|
//! | timelines on the chain | once a tick, and at changes | a tick |
//! | other timelines | at changes; when their turn comes | the wait for it, in when their tasks ran |
//! | the current task | when the chain is charged, and when it sleeps or leaves | a tick |
//! | tasks that wait | when they have run | the wait; it counts as runnable once it is over |
//!
//! Throttled time does not exist here: a timeline's clock is the host's less the time for which it was kept back.

use super::RunQueue;
use crate::entity::{Past, TaskEntity};
use crate::gates::Gates;
use crate::group::Group;
use crate::load_average::{GroupParts, SumRules};
use crate::node::NONE;
use crate::pelt::{LoadAverages, QueueAverage, QueueInput, TaskAverage, UNIT};
use crate::units::{CpuId, Nanos};
use std::sync::Arc;

/// How often averages on the chain are brought up to date, and parts of sums published: 1 ms, the kernel's limit.
const TICK: Nanos = Nanos::from_millis(1);

/// The averages of a timeline.
#[derive(Debug)]
pub(crate) struct QueueLoad {
    average: QueueAverage,
    /// The group's CPU time here up to when it was averaged, ns.
    exec: u64,
    /// The host's time of the last look.
    seen_at: Nanos,
    published_at: Nanos,
    parts: Option<GroupParts>,
}

impl QueueLoad {
    fn new(group: &Group, cpu: CpuId, now: Nanos, exec: u64) -> QueueLoad {
        let cpus = u64::from(group.config().cpus);
        // CPUs of one node are numbered in sequence.
        let node = u64::from(cpu.0) * (group.load_rules().period_mask + 1) / cpus.max(1);
        QueueLoad {
            average: QueueAverage::new(now),
            exec,
            seen_at: now,
            published_at: Nanos::ZERO,
            parts: GroupParts::join(group.averages(), cpu, u32::try_from(node).unwrap_or(0)),
        }
    }

    /// The average load here, that of the other CPUs, and the average number of runnable tasks everywhere times 1,024.
    pub(crate) fn weigh(&mut self, rules: &SumRules) -> (u64, u64, u64) {
        let now = self.seen_at;
        let others = self.parts.as_mut().map(|parts| parts.others(now, rules));
        let (load, runnable) = others.unwrap_or_default();
        let here = self.average.figures();
        (here.load, load, runnable.saturating_add(here.runnable))
    }
}

/// The averages of a task, beside its node.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskLoad {
    average: TaskAverage,
    /// The task's CPU time up to when it was averaged, ns.
    exec: u64,
}

impl<T, G: Gates> RunQueue<T, G> {
    /// The averages of a group on this CPU, as of when they were last brought up to date. `None` if the CPU has not
    /// averaged it.
    pub fn load_averages(&self, group: &Arc<Group>) -> Option<LoadAverages> {
        let level = self.slots.get(group.id() as usize).copied()?;
        let timeline = self.timelines.get(level as usize)?;
        let load = timeline.load.as_deref()?;
        Arc::ptr_eq(&timeline.group, group).then(|| load.average.figures())
    }

    /// The averages of the current task, as of when they were last brought up to date.
    pub fn current_load_averages(&self) -> Option<LoadAverages> {
        let load = self.task_loads.get(self.current as usize)?;
        Some(load.average.figures(self.slab.get(self.current).shares))
    }

    /// Brings a timeline and all above up to date. Call it before a task comes or leaves.
    #[inline(always)]
    pub(super) fn average_path(&mut self, leaf: u32, now: Nanos) {
        if G::load_averages() {
            self.average_levels(leaf, now);
        }
    }

    /// Brings one timeline up to date. Call it before a group is put in or taken out.
    #[inline(always)]
    pub(super) fn average_one(&mut self, level: u32, now: Nanos) {
        if G::load_averages() {
            self.average_level(level, now);
        }
    }

    /// The chain, and the current task if there is one, once a tick.
    #[inline(always)]
    pub(super) fn average_chain(&mut self) {
        if G::load_averages() && self.last - self.averaged_at >= TICK {
            self.averaged_at = self.last;
            self.average_levels(self.leaf, self.last);
            self.average_current();
        }
    }

    /// The current task, charged just now and about to be put back.
    #[inline(always)]
    pub(super) fn average_current(&mut self) {
        if G::load_averages() && self.current != NONE {
            self.average_task(self.current, self.last);
        }
    }

    #[inline(never)]
    fn average_levels(&mut self, leaf: u32, now: Nanos) {
        let mut level = leaf;
        while level != NONE {
            self.average_level(level, now);
            level = self.timelines[level as usize].parent;
        }
    }

    fn average_level(&mut self, level: u32, now: Nanos) {
        let clock = self.average_clock(level, now);
        let timeline = &mut self.timelines[level as usize];
        let exec = timeline.cell.exec.read();
        let load = timeline.load.get_or_insert_with(|| {
            // The gate may have been off until now: whatever was before is not known.
            Box::new(QueueLoad::new(&timeline.group, self.cpu, clock, exec))
        });
        load.seen_at = load.seen_at.max(now);
        let input = QueueInput {
            load: timeline.average.load(),
            runnable: timeline.tasks_below,
            ran: Nanos(exec.saturating_sub(load.exec)),
        };
        let from = load.average.updated_at();
        if load.average.advance(clock, input) {
            load.exec = exec - left_over(input.ran, load.average.updated_at() - from);
        }
        if now - load.published_at >= TICK {
            self.publish_average(level, now);
        }
    }

    fn publish_average(&mut self, level: u32, now: Nanos) {
        let timeline = &mut self.timelines[level as usize];
        let empty = (timeline.nr == 0).then_some(now);
        let rules = timeline.group.load_rules();
        if let Some(load) = timeline.load.as_deref_mut() {
            load.published_at = now;
            if let Some(parts) = &mut load.parts {
                parts.publish(&load.average, empty, now, &rules);
            }
        }
    }

    /// After something was taken out of a timeline: if nothing is left, others must know that its averages fade now.
    #[inline(always)]
    pub(super) fn average_emptied(&mut self, level: u32, now: Nanos) {
        if G::load_averages() && self.timelines[level as usize].nr == 0 {
            self.publish_average(level, now);
        }
    }

    /// Time as the averages of a timeline see it.
    fn average_clock(&self, level: u32, now: Nanos) -> Nanos {
        if G::bandwidth() {
            now - self.throttled_clock_at(level, now)
        } else {
            now
        }
    }

    /// A task was put into a node: its averages go on from when it fell asleep.
    #[inline(always)]
    pub(super) fn restore_task_average(&mut self, index: u32, entity: &TaskEntity, now: Nanos) {
        if G::load_averages() {
            self.restore_average(index, entity, now);
        }
    }

    #[inline(never)]
    fn restore_average(&mut self, index: u32, entity: &TaskEntity, now: Nanos) {
        let slept_at = if entity.past.has(Past::PLACED) && !entity.past.names_a_cpu() {
            Nanos(entity.slept_at)
        } else {
            now
        };
        let mut average = TaskAverage::restore(entity.averages, slept_at);
        average.advance(now, false, Nanos::ZERO);
        let leaf = self.slab.get(index).timeline;
        average.rebase(self.average_clock(leaf, now));
        let position = index as usize;
        if self.task_loads.len() <= position {
            self.task_loads.resize(position + 1, TaskLoad::default());
        }
        self.task_loads[position] = TaskLoad {
            average,
            exec: entity.sum_exec,
        };
    }

    fn average_task(&mut self, index: u32, now: Nanos) {
        let node = self.slab.get(index);
        let (leaf, exec) = (node.timeline, node.sum_exec);
        let clock = self.average_clock(leaf, now);
        // Not there if the gate was off when the task came.
        if let Some(load) = self.task_loads.get_mut(index as usize) {
            let ran = Nanos(exec.saturating_sub(load.exec));
            let from = load.average.updated_at();
            if load.average.advance(clock, true, ran) {
                load.exec = exec - left_over(ran, load.average.updated_at() - from);
            }
        }
    }

    /// A task is about to leave its node for `entity`: its averages go with it.
    #[inline(always)]
    pub(super) fn save_task_average(&mut self, index: u32, entity: &mut TaskEntity, now: Nanos) {
        if G::load_averages() {
            self.save_average(index, entity, now);
        }
    }

    #[inline(never)]
    fn save_average(&mut self, index: u32, entity: &mut TaskEntity, now: Nanos) {
        self.average_task(index, now);
        if let Some(load) = self.task_loads.get_mut(index as usize) {
            // On the host's clock, by which it sleeps.
            load.average.rebase(now);
            entity.averages = load.average.sums();
        }
    }
}

/// What ran in an interval that was averaged up to a whole unit: the rest of a unit is left for the next time.
fn left_over(ran: Nanos, interval: Nanos) -> u64 {
    (ran - interval).0.min(UNIT.0)
}
