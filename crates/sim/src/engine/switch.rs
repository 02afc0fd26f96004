//! Who runs: picking, starting, preempting, leaving.

use super::Simulation;
use super::state::{Life, NONE};
use crate::agenda::NEVER;
use crate::outcome::Mechanism;
use crate::program::Step;
use quotient_core::Nanos;
use quotient_core::balance::GapUse;
use quotient_trace::{Sink, TaskState};

/// Steps that a task that starts may do before it computes without being listed: a jump back, a stamp, to compute.
const STRAIGHT_MAX: usize = 3;

impl<S: Sink> Simulation<S> {
    /// Chooses what a CPU without a current task runs, pulling if there is nothing.
    pub(super) fn dispatch(&mut self, cpu: u32) {
        let now = Nanos(self.now);
        let state = &mut self.cpus[cpu as usize];
        if state.taken {
            self.count_waiting(cpu);
            self.stand_by(cpu);
            return;
        }
        let mut picked = state.queue.pick(now);
        if picked.is_none() {
            let gap = self.looks_for_work(cpu);
            if gap != GapUse::None
                && self.waiting > 0
                && (self.was_called(cpu) || self.happens(self.settings.notice.fell_idle_permille))
                && self.pull_in_gap(cpu, gap)
            {
                picked = self.cpus[cpu as usize].queue.pick(now);
            }
        }
        if let (Some(task), Some(request)) = (picked, self.cpus[cpu as usize].queue.take_pull())
            && self.take(cpu, &request)
        {
            let queue = &mut self.cpus[cpu as usize].queue;
            queue.put_prev_preempt(task, now);
            picked = queue.pick(now);
        }
        self.count_waiting(cpu);
        self.show_throttles(cpu);
        match picked {
            Some(task) => {
                let looks = self.cpus[cpu as usize].look_from <= self.now
                    && !self.tasks[task as usize].woken;
                self.start(cpu, task);
                if looks {
                    self.look_at_choice(cpu);
                }
            }
            None => self.go_idle(cpu),
        }
    }

    /// Whether a CPU idled before: then the tick of another one, where somebody waits, made it look.
    #[inline]
    fn was_called(&self, cpu: u32) -> bool {
        self.idle.contains(cpu) && self.cpus[cpu as usize].since != self.now
    }

    /// Runs `task`, which was just picked.
    #[inline]
    fn start(&mut self, cpu: u32, task: u32) {
        let index = cpu as usize;
        let state = &mut self.cpus[index];
        state.current = task;
        state.since = self.now;
        state.need_resched = false;
        state.ready = false;
        let mut cost = core::mem::take(&mut state.unpaid);
        let shown = state.shown;
        let entry = &mut self.tasks[task as usize];
        let delay = self.now - entry.ready_at;
        let last = core::mem::replace(&mut entry.cpu, cpu);
        let load = &mut self.loads[entry.workload as usize];
        load.run_delay += delay;
        if entry.woken {
            entry.woken = false;
            load.latency.record(delay);
        }
        if shown != task {
            cost += self.costs.switch.0;
            self.spend(task, Mechanism::Switch, self.costs.switch.0);
            if !self.limited.is_empty() {
                cost += self.costs.bandwidth_switch.0;
                self.spend(task, Mechanism::Bandwidth, self.costs.bandwidth_switch.0);
            }
            self.show(cpu, task);
            self.set_idle(cpu, false);
        }
        if last != cpu && last != NONE {
            let refill = self.costs.migration(&self.machine, last, cpu);
            cost += refill;
            self.spend(task, Mechanism::Migration, refill);
        }
        self.go_on(cpu, task, cost);
    }

    /// Lets a task that has the CPU work on after paying `cost`: at what it has left, or at its next step.
    #[inline]
    pub(super) fn go_on(&mut self, cpu: u32, task: u32, cost: u64) {
        let mut work = cost + core::mem::take(&mut self.tasks[task as usize].remaining);
        if work == cost {
            work += self.straight_to_work(cpu, task, cost == 0 && self.listed.is_empty());
        }
        let state = &mut self.cpus[cpu as usize];
        if work == 0 {
            // Armed when the program has been interpreted.
            state.work_end = NEVER;
            state.ready = true;
            self.list(cpu);
            self.want_tick(cpu);
        } else {
            state.work_end = self.now.saturating_add(state.to_wall(work));
            self.rearm(cpu);
        }
    }

    /// The common case without a detour: what a task does next is to compute. Returns for how long, zero if it does
    /// something else. On the way it does what concerns nobody else, if that would be done at once anyway.
    #[inline]
    fn straight_to_work(&mut self, cpu: u32, task: u32, at_once: bool) -> u64 {
        let entry = &mut self.tasks[task as usize];
        for _ in 0..STRAIGHT_MAX {
            match self.steps[entry.step as usize] {
                Step::Run(span) => {
                    entry.step += 1;
                    let length = span.draw(&mut entry.random);
                    if entry.in_kernel {
                        self.cross(cpu, task, false);
                    }
                    return length;
                }
                Step::Jump(to) if at_once => entry.step = to,
                Step::Stamp if at_once => {
                    entry.step += 1;
                    entry.stamp = self.now;
                }
                Step::StampWoken if at_once => {
                    entry.step += 1;
                    entry.stamp = entry.ready_at;
                }
                _ => return 0,
            }
        }
        0
    }

    /// Takes the CPU away from its current task and gives it to whoever is due, perhaps the same one.
    pub(super) fn preempt(&mut self, cpu: u32) {
        let task = self.stop_work(cpu);
        self.cpus[cpu as usize].left = TaskState::Preempted;
        self.cpus[cpu as usize]
            .queue
            .put_prev_preempt(task, Nanos(self.now));
        self.dispatch(cpu);
    }

    /// The current task is no longer running: what it has left to do is kept with it. Returns it.
    #[inline(always)]
    pub(super) fn stop_work(&mut self, cpu: u32) -> u32 {
        let state = &mut self.cpus[cpu as usize];
        let task = core::mem::replace(&mut state.current, NONE);
        let left = match state.work_end {
            NEVER => 0,
            end => state.to_work(end.saturating_sub(self.now)),
        };
        // Costs not begun yet are paid when the task comes back.
        let entry = &mut self.tasks[task as usize];
        entry.remaining += left + core::mem::take(&mut state.unpaid);
        entry.ready_at = self.now;
        entry.ran += self.now - state.since;
        state.work_end = NEVER;
        state.ready = false;
        state.need_resched = false;
        self.cools(task);
        task
    }

    /// How long a task has run so far, ns.
    pub(crate) fn task_usage(&self, task: u32) -> u64 {
        let entry = &self.tasks[task as usize];
        let cpu = self.cpus.get(entry.cpu as usize);
        let running = cpu.filter(|cpu| cpu.current == task);
        entry.ran + running.map_or(0, |cpu| self.now - cpu.since)
    }

    /// The current task waits for something; somebody else runs.
    #[inline]
    pub(super) fn sleep(&mut self, cpu: u32) {
        self.catch_up();
        let task = self.stop_work(cpu);
        let state = &mut self.cpus[cpu as usize];
        state.left = TaskState::Sleeping;
        let entity = state.queue.put_prev_sleep(Nanos(self.now));
        let entry = &mut self.tasks[task as usize];
        entry.life = Life::Waiting;
        if let Some(entity) = entity {
            entry.entity = entity;
        }
        self.dispatch(cpu);
    }

    /// The current task ends.
    pub(super) fn exit(&mut self, cpu: u32) {
        self.catch_up();
        let task = self.stop_work(cpu);
        let state = &mut self.cpus[cpu as usize];
        state.left = TaskState::Dead;
        let entity = state.queue.put_prev_exit(Nanos(self.now));
        let entry = &mut self.tasks[task as usize];
        entry.life = Life::Over;
        entry.remaining = 0;
        if let Some(entity) = entity {
            entry.entity = entity;
        }
        self.alive -= 1;
        let load = &mut self.loads[entry.workload as usize];
        load.ended += 1;
        if load.ended == load.tasks.end - load.tasks.start {
            load.finished_at = Some(self.now);
        }
        self.show_exit(cpu, task);
        self.dispatch(cpu);
    }

    /// The current task lets others run.
    pub(super) fn yield_now(&mut self, cpu: u32) {
        let task = self.stop_work(cpu);
        let state = &mut self.cpus[cpu as usize];
        state.left = TaskState::Runnable;
        state.queue.put_prev_yield(task, Nanos(self.now));
        self.dispatch(cpu);
    }

    fn go_idle(&mut self, cpu: u32) {
        let is_new = !self.idle.contains(cpu);
        let state = &mut self.cpus[cpu as usize];
        if is_new {
            state.since = self.now;
        }
        state.work_end = NEVER;
        state.next_tick = NEVER;
        state.budget_end = NEVER;
        state.unpaid = 0;
        if state.shown != NONE {
            self.show(cpu, NONE);
        }
        self.set_idle(cpu, true);
        self.arm(cpu);
    }

    /// Notes that a CPU became idle or busy; its siblings get faster or slower.
    #[inline]
    pub(super) fn set_idle(&mut self, cpu: u32, is_idle: bool) {
        if self.idle.set(cpu, is_idle) {
            self.note_idleness(cpu, is_idle);
            if self.machine.threads > 1 {
                self.share_core(cpu);
            }
        }
    }

    /// Whether nothing runs on a CPU, because there is nothing or because it is gone.
    pub(super) fn rests(&self, cpu: u32) -> bool {
        self.idle.contains(cpu) || self.cpus[cpu as usize].offline
    }

    /// Gives the hyperthreads of a core the speed that follows from how many of them are busy.
    pub(super) fn share_core(&mut self, cpu: u32) {
        let first = self.machine.first_sibling(cpu);
        let siblings = first..first + self.machine.threads;
        let busy = siblings
            .clone()
            .filter(|&sibling| !self.rests(sibling))
            .count();
        let speed = if busy > 1 {
            u64::from(self.machine.smt_speed) * 10
        } else {
            1000
        };
        for sibling in siblings {
            let state = &mut self.cpus[sibling as usize];
            if state.speed == speed {
                continue;
            }
            let pending = state.work_end;
            let left = state.to_work(pending.saturating_sub(self.now));
            state.speed = speed;
            if pending != NEVER && state.current != NONE {
                state.work_end = self.now.saturating_add(state.to_wall(left));
                self.arm(sibling);
            }
        }
    }
}
