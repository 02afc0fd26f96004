//! Ticks, and what is done at ticks: charging, giving way, balancing, averages; and disturbances.

use super::Simulation;
use super::state::NONE;
use crate::agenda::{NEVER, Timer};
use crate::machine::Ticks;
use crate::outcome::Mechanism;
use crate::plan::{LoadAverage, Plan};
use quotient_core::{Nanos, Reason};
use quotient_trace::Sink;

/// A group's average on one CPU, kept for what it costs to publish it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AverageState {
    updated_at: u64,
    published_at: u64,
    /// What competes in the group's queue here, in units of 2^-20, decaying by half in 32 ms.
    average: u64,
    published: u64,
}

/// One for each (group, CPU), if averages are computed at all.
pub(super) fn states(plan: &Plan, groups: usize) -> Vec<AverageState> {
    let count = match plan.settings.load_average {
        LoadAverage::Off => 0,
        _ => groups * plan.machine.cpus() as usize,
    };
    vec![AverageState::default(); count]
}

/// y with y^32 = 1/2, in units of 2^-16.
const DECAY: u64 = 64_132;

/// How often the choices of a CPU look whether to pull, ns, about: 20 ms, so that a look comes between five ticks at 250 Hz. From every tick to every
/// thirty-second random set-ups in step with the ticks gain alike (of 3,063 workloads 27 to 33 below 0.4 of their due, 39 without), and others are as fair,
/// from every fourth on. Which of the scenarios with tasks in step is not fair differs from value to value, and here all hold.
const LOOK_EVERY: u64 = 20_000_000;

/// Most milliseconds that are decayed one by one; after that nothing is left.
const DECAY_MAX: u64 = 512;

impl AverageState {
    /// Brings the average to `now`, with `runnable` tasks since the last time.
    fn update(&mut self, now: u64, runnable: u64) {
        let periods = (now.saturating_sub(self.updated_at) / 1_000_000).min(DECAY_MAX);
        let target = runnable << 20;
        for _ in 0..periods {
            let (high, low) = (self.average.max(target), self.average.min(target));
            let left = ((high - low) * DECAY) >> 16;
            self.average = if self.average < target {
                target - left
            } else {
                target + left
            };
        }
        if periods > 0 {
            self.updated_at = now;
        }
    }

    /// A tick that finds `runnable`. Longer ago than `tick` the CPU was idle, or it would have ticked.
    fn look(&mut self, now: u64, tick: u64, runnable: u64) {
        self.update(now.saturating_sub(tick), 0);
        self.update(now, runnable);
    }

    /// Whether the average differs from what was published by more than a `part`-th of that.
    fn has_changed_by(&self, part: u64) -> bool {
        self.average.abs_diff(self.published) > self.published / part
    }
}

impl<S: Sink> Simulation<S> {
    /// Makes a busy CPU tick if it has to.
    #[inline]
    pub(super) fn want_tick(&mut self, cpu: u32) {
        let state = &self.cpus[cpu as usize];
        if state.next_tick == NEVER && self.needs_tick(cpu) {
            let next = self.next_tick_of(cpu);
            self.cpus[cpu as usize].next_tick = next;
        }
        if !self.limited.is_empty() {
            self.cpus[cpu as usize].budget_end = self.budget_end(cpu);
        }
    }

    /// What runs on a CPU, or beside what, has changed: when it has to be looked at next follows.
    #[inline(always)]
    pub(super) fn rearm(&mut self, cpu: u32) {
        // Mostly it ticks already, and nothing is limited.
        if self.cpus[cpu as usize].next_tick == NEVER || !self.limited.is_empty() {
            self.want_tick(cpu);
        }
        self.arm(cpu);
    }

    #[inline]
    fn needs_tick(&self, cpu: u32) -> bool {
        let state = &self.cpus[cpu as usize];
        state.queue.nr_running() > 1 || self.machine.ticks == Ticks::Busy || self.runs_limited(cpu)
    }

    /// The first tick of a CPU after now.
    pub(super) fn next_tick_of(&self, cpu: u32) -> u64 {
        let (length, phase) = (self.tick_length, self.machine.tick_phase(cpu));
        match self.now.checked_sub(phase) {
            Some(since) => phase + (since / length + 1) * length,
            None => phase,
        }
    }

    /// Whether a tick of the CPU falls on now.
    pub(super) fn is_at_tick(&self, cpu: u32) -> bool {
        let since = self.now.checked_sub(self.machine.tick_phase(cpu));
        since.is_some_and(|since| since.is_multiple_of(self.tick_length))
    }

    /// The current task has used up what its CPU holds of the budget: another slice, or somebody else.
    pub(super) fn spend_budget(&mut self, cpu: u32) {
        let now = Nanos(self.now);
        let queue = &mut self.cpus[cpu as usize].queue;
        queue.charge(now);
        if queue.should_resched(now) {
            self.preempt(cpu);
            return;
        }
        self.cpus[cpu as usize].budget_end = self.budget_end(cpu);
        self.arm(cpu);
    }

    /// The tick of a CPU.
    pub(super) fn tick(&mut self, cpu: u32) {
        self.show_tick(cpu);
        self.measure_above(cpu);
        if self.cpus[cpu as usize].taken {
            return self.tick_taken(cpu);
        }
        let now = Nanos(self.now);
        self.cpus[cpu as usize].next_tick = NEVER;
        self.cpus[cpu as usize].queue.charge(now);
        self.tick_costs(cpu);
        if self.cpus[cpu as usize].next_balance <= self.now {
            self.balance(cpu);
        }
        if self.idle.count() > 0 && self.cpus[cpu as usize].waiting > 0 {
            self.call_idle(cpu);
        }
        let due = self.cpus[cpu as usize].queue.should_resched(now);
        self.rearm(cpu);
        if due || self.cpus[cpu as usize].need_resched {
            self.preempt(cpu);
        }
    }

    /// Makes idle CPUs look for work, as many as there are tasks waiting here, the nearest first. An idle CPU does not
    /// tick, so it cannot find out by itself.
    pub(super) fn call_idle(&mut self, cpu: u32) {
        let width = self.machine.node_cpus();
        let home = self.machine.node_of(cpu) * width;
        let mut wanted = self.cpus[cpu as usize].waiting;
        for (first, end) in [
            (home, home + width),
            (home + width, self.machine.cpus()),
            (0, home),
        ] {
            let mut at = first;
            while wanted > 0
                && let Some(found) = self.idle.first_in(at, end)
            {
                self.list(found);
                wanted -= 1;
                at = found + 1;
            }
        }
    }

    fn tick_costs(&mut self, cpu: u32) {
        let task = self.cpus[cpu as usize].current;
        if task == NONE {
            return;
        }
        if self.tasks[task as usize].in_kernel {
            self.mechanisms.ticks_in_kernel += 1;
        } else {
            self.mechanisms.ticks_in_user += 1;
        }
        let tick = self.costs.tick.0;
        self.spend(task, Mechanism::Tick, tick);
        let averages = self.average_costs(cpu, task);
        self.spend(task, Mechanism::LoadAverage, averages);
        self.delay_work(cpu, tick + averages);
    }

    /// What the current task does takes that much longer.
    pub(super) fn delay_work(&mut self, cpu: u32, cost: u64) {
        let state = &mut self.cpus[cpu as usize];
        if cost > 0 && state.work_end != NEVER {
            state.work_end = state.work_end.saturating_add(cost);
            self.arm(cpu);
        }
    }

    /// Brings the averages of all groups here up to date. O(groups).
    fn look_at_groups(&mut self, cpu: u32) {
        let (cpus, queue) = (self.cpus.len(), &self.cpus[cpu as usize].queue);
        for (level, group) in self.groups.iter().enumerate().skip(1) {
            let runnable = queue.nr_entities(group) as u64;
            let state = &mut self.averages[level * cpus + cpu as usize];
            state.look(self.now, self.tick_length, runnable);
        }
    }

    /// What it costs to compute the averages of the groups of the current task, from its own to below the root.
    fn average_costs(&mut self, cpu: u32, task: u32) -> u64 {
        if self.settings.load_average == LoadAverage::Off {
            return 0;
        }
        if self.settings.load_average != LoadAverage::EveryTick {
            self.look_at_groups(cpu);
        }
        let mut cost = 0;
        let mut level = self.tasks[task as usize].group;
        while level != 0 {
            cost += self.costs.average_local.0;
            if self.average_is_due(cpu, level) {
                let at = self.now + cost;
                let line = &mut self.group_lines[level as usize];
                let hold = self.costs.load_average.0;
                cost += line.take(&self.costs, &self.machine, cpu, at, hold);
                self.mechanisms.average_updates += 1;
            }
            level = self.parents[level as usize];
        }
        cost
    }

    fn average_is_due(&mut self, cpu: u32, level: u32) -> bool {
        let index = level as usize * self.cpus.len() + cpu as usize;
        let state = &mut self.averages[index];
        let since = self.now.saturating_sub(state.published_at);
        let due = match self.settings.load_average {
            LoadAverage::Off => false,
            LoadAverage::EveryTick => true,
            LoadAverage::Staggered => {
                let mask = u64::from(self.machine.nodes.next_power_of_two() - 1);
                let tick = self.now / self.tick_length;
                let turn = tick & mask == u64::from(self.machine.node_of(cpu)) & mask;
                turn || since > (mask + 1) * self.tick_length || state.has_changed_by(8)
            }
            LoadAverage::RateLimited => {
                // The kernel's figures of today.
                since >= 1_000_000 && state.has_changed_by(64)
            }
        };
        if due {
            state.published_at = self.now;
            state.published = state.average;
        }
        due
    }

    /// CPUs that run one task alone do not tick. While tasks wait elsewhere their clocks must go on, and they must
    /// look whether to pull: all of them at once, at the pace of ticks.
    pub(super) fn sweep(&mut self) {
        let now = Nanos(self.now);
        for cpu in 0..self.cpus.len() as u32 {
            let state = &mut self.cpus[cpu as usize];
            if state.current == NONE || state.next_tick != NEVER {
                continue;
            }
            state.queue.charge(now);
            self.measure_above(cpu);
            let state = &self.cpus[cpu as usize];
            if state.next_balance > self.now {
                continue;
            }
            self.balance(cpu);
            // As at a tick, which it is for this CPU: what came is compared at once. (At its own next tick it was, up to a tick later, and by then
            // the CPU that it came from had taken it back, so that whoever ran alone did so for ever.)
            let state = &mut self.cpus[cpu as usize];
            if state.waiting > 0 && (state.queue.should_resched(now) || state.need_resched) {
                self.preempt(cpu);
            }
        }
        self.caught_up_at = self.now;
        self.sweeping = self.waiting > 0;
        if self.sweeping {
            self.timers.set(self.now + self.tick_length, Timer::Sweep);
        }
    }

    fn balance(&mut self, cpu: u32) {
        self.cpus[cpu as usize].next_balance = self.now + self.balance_every;
        self.pull_as_due(cpu);
    }

    /// Pulls what should run here, if anything waits elsewhere.
    fn pull_as_due(&mut self, cpu: u32) {
        let elsewhere = self.waiting > self.cpus[cpu as usize].waiting;
        if elsewhere && self.pull(cpu, Reason::Periodic) {
            self.rearm(cpu);
        }
    }

    /// A choice was made of one that does not come from sleep, and for a while none has looked: as at a tick. What runs between ticks only, or when they come and at no
    /// other time, would go on so for as long as the machine runs: two CPUs on which a limited group has a millisecond in ten kept its light tasks on the
    /// one and its heavy ones on the other. How long is drawn, so that nothing is in step with that either. (The runtime's virtual CPUs have no
    /// ticks, and look between two polls.)
    #[cold]
    pub(super) fn look_at_choice(&mut self, cpu: u32) {
        let length = LOOK_EVERY.max(self.balance_every);
        let drawn = length / 4 * 3 + self.looks.below(length / 2);
        self.cpus[cpu as usize].look_from = self.now + drawn;
        self.pull_as_due(cpu);
    }

    /// Something that is none of the scheduler's business takes time on a CPU.
    pub(super) fn noise(&mut self, cpu: u32) {
        let gap = self.random.exponential(self.costs.noise_every.0).max(1);
        let length = self.random.exponential(self.costs.noise_length.0);
        self.timers.set(self.now + gap, Timer::Noise(cpu));
        let task = self.cpus[cpu as usize].current;
        if task != NONE {
            self.spend(task, Mechanism::Noise, length);
            self.delay_work(cpu, length);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_halve_in_32_milliseconds() {
        let mut state = AverageState::default();
        state.update(2_000_000_000, 1);
        assert!(state.average.abs_diff(1 << 20) <= 1 << 12, "{state:?}");
        state.update(2_032_000_000, 0);
        assert!(state.average.abs_diff(1 << 19) <= 1 << 12, "{state:?}");
    }
}
