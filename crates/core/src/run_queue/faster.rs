//! What runs on a CPU that others take goes to one that they leave alone.
//!
//! The only runnable task of a group that is owed something never waits: wherever it is, it is chosen. So nobody pulls it ([`notes`](super::notes)), and
//! what its group is owed beyond a sleeper's credit is taken for what it cannot use. On a CPU of which other programs, or a hypervisor, have five
//! sixths, it had a sixth, whatever its weight, and a sibling all of the other CPU. In a kernel's run queue, which sees that the CPU is taken,
//! the task waits meanwhile, is noted and pulled; a host that is a program itself learns of it when it has the CPU back. So then it asks here where that
//! task should go, and hands it over.

use super::{ROOT, RunQueue};
use crate::balance::Pull;
use crate::gates::Gates;
use crate::group_time::OWED_MIN;
use crate::load::CpuLoad;
use crate::node::NONE;
use crate::units::{CpuId, Nanos};
use std::sync::Arc;

impl<T, G: Gates> RunQueue<T, G> {
    /// Others have had this CPU for some of the time of the last poll, and of lately ([`CpuLoad::publish_stolen`]). If the group that had its turn is one
    /// of one task, is owed more than turns explain, and has siblings that owe on a CPU of which more is left: that CPU, and what the host should
    /// [detach](RunQueue::detach_to) for it. Without a current task. `loads`: of all CPUs, by number. O(depth x CPUs that met the groups).
    pub fn faster_cpu(&mut self, loads: &[Arc<CpuLoad>], now: Nanos) -> Option<(CpuId, Pull)> {
        if self.current != NONE || !self.service_clock.is_global() || self.nr == 0 {
            return None;
        }
        self.last = self.last.max(now);
        // As for a choice.
        self.repick = true;
        self.settle(false);
        let mut level = ROOT;
        loop {
            let index = self.timelines[level as usize].put_back;
            let node = self.slab.nodes.get(index as usize)?;
            if node.timeline != level || !node.place.is_queued() || node.owned == NONE {
                return None;
            }
            level = node.owned;
            if let Some(to) = self.faster_for(level, loads) {
                let pull = Pull {
                    from: self.cpu,
                    max: 1,
                    group: self.timelines[level as usize].group.id(),
                    own: false,
                    noted: true,
                };
                return Some((to, pull));
            }
        }
    }

    /// Where the group at `level`, which waits here, should run: the fastest such CPU.
    fn faster_for(&self, level: u32, loads: &[Arc<CpuLoad>]) -> Option<CpuId> {
        let (timeline, above) = self.with_parent(level);
        let time = &timeline.group.time;
        if timeline.nr != 1 || time.cpus() != 1 {
            return None;
        }
        // Two turns of others, and a poll beyond, but not so much that it would be cut before.
        let poll = self.load.grain().0.min(self.service_clock.credit / 2);
        let turns = OWED_MIN
            .unsigned_abs()
            .max(2 * u64::from(self.rules.base_slice));
        if time.lag(&above.group.time) <= (turns + poll).cast_signed() {
            return None;
        }
        let faster = above.group.cells.iter().filter_map(|(cpu, cell)| {
            let load = loads.get(cpu.index())?;
            let owes = cell.entities() > 0 && cell.lead() > 0;
            let is_faster = cpu != self.cpu && load.has_more_than(&self.load);
            (is_faster && owes).then_some((load.capacity(), cpu))
        });
        faster.max_by_key(|&(left, _)| left).map(|(_, cpu)| cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, CpuId, Enqueue, Group, GroupTree, Pull, TaskEntity, Weight};

    const SLICE: Nanos = Nanos(250_000);

    /// Group `a` has three tasks on CPU 0, which has all its time for them, and `b` its own on CPU 1, which gets a fifth of its time.
    struct Machine {
        groups: [Arc<Group>; 2],
        queues: [RunQueue<u32>; 2],
        loads: Vec<Arc<CpuLoad>>,
        now: Nanos,
        _tree: GroupTree,
    }

    impl Machine {
        fn new(own: u32) -> Machine {
            let mut config = Config::new(2);
            config.base_slice = SLICE;
            let tree = GroupTree::new(config);
            let groups = ["a", "b"].map(|path| tree.group(path).expect("a path"));
            let mut queues = [CpuId(0), CpuId(1)].map(|cpu| RunQueue::new(&tree, cpu));
            let fresh = TaskEntity::new(Weight::DEFAULT, None);
            for (cpu, tasks) in [(0, 3), (1, own)] {
                for task in 0..tasks {
                    queues[cpu].enqueue(&groups[cpu], fresh, task, Enqueue::New, Nanos(0));
                }
            }
            let loads = queues.iter().map(|queue| queue.load().clone()).collect();
            let mut machine = Machine {
                groups,
                queues,
                loads,
                now: Nanos(0),
                _tree: tree,
            };
            for _ in 0..40 {
                let pull = machine.turn();
                assert!(own > 1 || pull.is_none(), "its only task never waits");
            }
            machine
        }

        /// A slice on both CPUs. Whom CPU 0 should pull rather than go on.
        fn turn(&mut self) -> Option<Pull> {
            let chosen = self.queues.each_mut().map(|queue| queue.pick(self.now));
            let pull = self.queues[0].take_pull();
            self.now = self.now.saturating_add(SLICE);
            self.queues[1].charge_except(self.now, Nanos(SLICE.0 / 5 * 4));
            for (queue, task) in self.queues.iter_mut().zip(chosen) {
                queue.put_prev_yield(task.expect("a task"), self.now);
                queue.check().expect("its invariants");
            }
            pull
        }

        fn faster_than(&mut self, cpu: usize) -> Option<(CpuId, Pull)> {
            self.queues[cpu].faster_cpu(&self.loads, self.now)
        }
    }

    /// Hazard: a group's only task, owed more than anybody, that never waits and so is never pulled.
    #[test]
    fn the_only_task_of_an_owed_group_goes_to_the_cpu_that_nobody_takes() {
        let mut machine = Machine::new(1);
        assert_eq!(machine.faster_than(1), None, "none is known to be faster");
        machine.loads[1].publish_stolen(800);
        let (to, pull) = machine.faster_than(1).expect("CPU 0");
        assert_eq!((to, pull.group), (CpuId(0), machine.groups[1].id()));
        let mut detached = Vec::new();
        machine.queues[1].detach_to(to, &pull, machine.now, &mut detached);
        assert_eq!(detached.len(), 1);
        for queue in &mut machine.queues {
            queue.check().expect("its invariants");
        }
    }

    #[test]
    fn who_owes_or_has_others_goes_nowhere() {
        let mut pair = Machine::new(2);
        pair.loads[1].publish_stolen(800);
        assert_eq!(pair.faster_than(1), None, "one of the two waits anyway");
        let mut machine = Machine::new(1);
        machine.loads[0].publish_stolen(800);
        assert_eq!(machine.faster_than(0), None, "owes");
    }
}
