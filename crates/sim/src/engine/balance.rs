//! Moving tasks between CPUs, as the core's balancer plans.

use super::Simulation;
use super::state::NONE;
use quotient_core::balance::GapUse;
use quotient_core::{CpuId, Enqueue, Nanos, Pull, Reason, balance};
use quotient_trace::Sink;
use std::sync::Arc;

/// What came of a pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Taken {
    /// Nobody may leave there.
    Nothing,
    /// Somebody was there, but is better left to his cache, or may not run here: no reason to look further.
    GivenBack,
    Some,
}

impl<S: Sink> Simulation<S> {
    /// As [`Simulation::pull`] for a CPU that has nothing to run, of no more than its gap is good for.
    pub(super) fn pull_in_gap(&mut self, cpu: u32, gap: GapUse) -> bool {
        if gap == GapUse::One {
            self.pull_at_most(cpu, Reason::Idle, 1)
        } else {
            self.pull(cpu, Reason::Idle)
        }
    }

    /// Asks the core whether to pull, and does it. Returns whether anything came.
    pub(super) fn pull(&mut self, cpu: u32, reason: Reason) -> bool {
        self.pull_at_most(cpu, reason, usize::MAX)
    }

    fn pull_at_most(&mut self, cpu: u32, reason: Reason, most: usize) -> bool {
        self.plans += 1;
        if self.settings.plugin.is_some() {
            return self.pull_one(cpu, reason);
        }
        let now = Nanos(self.now);
        let me = CpuId(cpu);
        let leaves_hot = reason == Reason::Idle;
        // Not wanted by what takes, and lent out so that it can be.
        let topology = Arc::clone(&self.topology);
        let published = core::mem::take(&mut self.published);
        let mut any = false;
        balance::pull(&topology, me, &published, (reason, now), |request| {
            let request = Pull {
                max: request.max.min(most),
                ..*request
            };
            let taken = self.take_cold(cpu, &request, leaves_hot);
            any = taken == Taken::Some;
            // A CPU that is busy looks further where what came may not run here: else a group that is bound elsewhere, and noted at each
            // look, would hide a task of the CPU's own group for ever.
            any || reason == Reason::Idle && taken != Taken::Nothing
        });
        self.published = published;
        any || reason == Reason::Idle && self.affinity.binds() && self.search(cpu)
    }

    /// Where another policy decides: takes half of what waits on the CPU where most does, if there is at least two more to run than here
    /// or nothing here.
    #[cold]
    fn pull_one(&mut self, cpu: u32, reason: Reason) -> bool {
        let mine = self.cpus[cpu as usize].queue.nr_running();
        let of = |other: u32| self.cpus[other as usize].queue.nr_queued();
        let from = (0..self.machine.cpus())
            .filter(|&other| other != cpu && of(other) > 0)
            .max_by_key(|&other| {
                let distance = self.machine.node_distance(cpu, other);
                (of(other), core::cmp::Reverse((distance, other)))
            });
        let Some(from) = from else {
            return false;
        };
        let theirs = self.cpus[from as usize].queue.nr_running();
        if reason == Reason::Periodic && theirs < mine + 2 {
            return false;
        }
        let count = match reason {
            Reason::Idle => of(from).div_ceil(2),
            Reason::Periodic => (theirs - mine) / 2,
        };
        let mut any = false;
        for _ in 0..count {
            let Some(candidate) = self.cpus[from as usize].queue.give() else {
                break;
            };
            let allowed = self.affinity.allows(candidate.task, cpu);
            let to = if allowed { cpu } else { from };
            let now = Nanos(self.now);
            let preempts = self.cpus[to as usize].queue.admit(candidate, now);
            if !allowed {
                // It goes to the end of those that wait there: the next look finds another.
                break;
            }
            any = true;
            if preempts && self.cpus[cpu as usize].current != NONE {
                self.cpus[cpu as usize].need_resched = true;
                self.list(cpu);
            }
            self.show_migration(candidate.task, from, cpu);
        }
        self.count_waiting(from);
        self.count_waiting(cpu);
        any
    }

    /// Moves tasks as a pull says. Returns whether there were any.
    pub(super) fn take(&mut self, cpu: u32, request: &Pull) -> bool {
        self.take_cold(cpu, request, false) == Taken::Some
    }

    /// The same, but for tasks that are better left to their caches, if so asked.
    fn take_cold(&mut self, cpu: u32, request: &Pull, leaves_hot: bool) -> Taken {
        let now = Nanos(self.now);
        let from = request.from.0;
        let mut moved = core::mem::take(&mut self.moved);
        self.cpus[from as usize]
            .queue
            .detach_to(CpuId(cpu), request, now, &mut moved);
        let mut taken = Taken::Nothing;
        let mut is_bound = false;
        for task in moved.drain(..) {
            let stays = leaves_hot && self.is_hot(task.handle, from, cpu);
            let is_forbidden = !self.affinity.allows(task.handle, cpu);
            is_bound |= is_forbidden;
            if stays || is_forbidden {
                let queue = &mut self.cpus[from as usize].queue;
                queue.take_back(task, is_forbidden, now);
                taken = taken.max(Taken::GivenBack);
                continue;
            }
            taken = Taken::Some;
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
        if is_bound && taken == Taken::GivenBack {
            self.cpus[from as usize].queue.refuse_pull(request);
        }
        self.count_waiting(from);
        self.count_waiting(cpu);
        taken
    }
}
