//! A class above: what it does on a CPU takes the CPU away from whoever runs there, as a real-time thread does.
//!
//! A taken CPU on which tasks wait ticks, as a kernel's does whatever runs: idle CPUs are called, and the balancer is shown that nobody gets on
//! there. What the class takes is averaged, half of it forgotten in 32 ms, and where loads are evened out that much of the CPU does not count
//! (`scale_rt_capacity`).
//!
//! Each CPU has what is due and not done (`pending`). A load that falls due adds to it; while there is any the CPU is *taken*: no task is
//! chosen on it, and whoever ran waits and may be pulled by others. With throttling, no more than its runtime is taken in each of
//! the CPU's periods, counted from the start of the run; what is left goes on in the next. At the end of a stretch a timer comes;
//! there is one for each taken CPU, so that none is ever void.

use super::Simulation;
use super::state::NONE;
use crate::agenda::{NEVER, Timer};
use crate::plan::Plan;
use crate::random::{Random, Span};
use quotient_core::Nanos;
use quotient_core::pelt::TaskAverage;
use quotient_trace::{Sink, TaskState};

/// What is above everybody on all CPUs.
pub(super) struct Above {
    /// One for each load and each of its CPUs.
    pub(super) loads: Vec<Due>,
    /// Names of the loads, with their CPUs, for traces.
    pub(super) names: Vec<String>,
    /// By CPU; empty without any load.
    cpus: Vec<Taken>,
}

/// A load on one CPU.
pub(super) struct Due {
    cpu: u32,
    begin: u64,
    period: Span,
    work: Span,
    random: Random,
    /// When it is due, the next one last, and how long it takes then; empty, and then by its period.
    exact: Vec<(u64, u64)>,
    is_exact: bool,
}

impl Due {
    /// How long it takes this time, and when it is due next.
    fn due(&mut self, now: u64) -> (u64, Option<u64>) {
        if self.is_exact {
            // All that are due by now, as one.
            let mut work = 0_u64;
            while let Some((_, that)) = self.exact.pop_if(|(at, _)| *at <= now) {
                work = work.saturating_add(that);
            }
            return (work, self.exact.last().map(|(at, _)| *at));
        }
        // At least a nanosecond, so that time goes on.
        let gap = self.period.draw(&mut self.random).max(1);
        let work = self.work.draw(&mut self.random);
        (work, Some(now.saturating_add(gap)))
    }
}

#[derive(Clone, Copy, Default)]
struct Taken {
    /// Not done, ns.
    pending: u64,
    /// The stretch that runs, and when it began.
    stretch: u64,
    since: u64,
    /// Held back until its next period.
    held: bool,
    /// The load that fell due last, whom a trace shows.
    shown: u32,
    /// The period of throttling, and what was taken in it.
    window: u64,
    used: u64,
    /// How much of the CPU is taken, and up to when that was averaged, ns.
    average: TaskAverage,
    measured_at: u64,
}

impl Above {
    pub(super) fn of(plan: &Plan) -> Above {
        let mut above = Above {
            loads: Vec::new(),
            names: Vec::new(),
            cpus: Vec::new(),
        };
        for load in &plan.real_time {
            for &cpu in &load.cpus {
                let number = above.loads.len() as u64;
                above.names.push(format!("{}.{cpu}", load.name));
                let exact = load.times.iter().zip(&load.works).rev();
                above.loads.push(Due {
                    cpu,
                    begin: load.times.first().map_or(load.begin.0, |first| first.0),
                    exact: exact.map(|(at, work)| (at.0, work.0)).collect(),
                    is_exact: !load.times.is_empty(),
                    period: load.period,
                    work: load.work,
                    random: Random::new(plan.seed, (1 << 41) + number),
                });
            }
        }
        if !above.loads.is_empty() {
            above.cpus = vec![Taken::default(); plan.machine.cpus() as usize];
        }
        above
    }
}

impl<S: Sink> Simulation<S> {
    pub(super) fn prepare_above(&mut self) {
        for (index, load) in (0u32..).zip(&self.above.loads) {
            self.timers.set(load.begin, Timer::RealTime(index));
        }
    }

    /// A load is due on its CPU.
    pub(super) fn above_due(&mut self, index: u32) {
        let load = &mut self.above.loads[index as usize];
        let cpu = load.cpu;
        let (work, next) = load.due(self.now);
        if let Some(next) = next {
            self.timers.set(next, Timer::RealTime(index));
        }
        if self.cpus[cpu as usize].offline {
            return;
        }
        let place = &mut self.above.cpus[cpu as usize];
        place.pending = place.pending.saturating_add(work);
        let waits = place.held || place.stretch > 0;
        if !waits {
            place.shown = index;
        }
        if work > 0 && !waits {
            self.above_runs(cpu);
        }
    }

    /// Takes a CPU for what is due, as far as throttling lets it.
    fn above_runs(&mut self, cpu: u32) {
        let left = match self.settings.rt_throttling {
            None => u64::MAX,
            Some((runtime, period)) => {
                let place = &mut self.above.cpus[cpu as usize];
                let window = self.now / period.0;
                if place.window != window {
                    place.window = window;
                    place.used = 0;
                }
                let left = runtime.0.saturating_sub(place.used);
                if left == 0 {
                    place.held = true;
                    self.mechanisms.rt_throttled += 1;
                    let next = (window + 1) * period.0;
                    self.timers.set(next, Timer::RealTimeEnd(cpu));
                    self.measure_above(cpu);
                    self.release(cpu);
                    return;
                }
                // A stretch does not reach into the next period, which counts for itself.
                left.min((window + 1) * period.0 - self.now)
            }
        };
        let place = &mut self.above.cpus[cpu as usize];
        place.stretch = place.pending.min(left);
        place.since = self.now;
        let end = self.now.saturating_add(place.stretch);
        let shown = place.shown;
        self.timers.set(end, Timer::RealTimeEnd(cpu));
        if !self.cpus[cpu as usize].taken {
            self.measure_above(cpu);
            self.seize(cpu);
            if self.is_at_tick(cpu) && self.cpus[cpu as usize].waiting > 0 {
                // Which is now. Left for the next, no tick would ever come where each falls on the begin of a stretch, and whoever waits behind such
                // stretches be seen by nobody.
                self.tick_taken(cpu);
            } else {
                self.stand_by(cpu);
            }
            let number = self.tasks.len() as u32 + shown;
            if self.cpus[cpu as usize].shown != number {
                self.show_wakeup(cpu, number, cpu, NONE);
                self.show(cpu, number);
            }
            if self.idle.count() > 0 && self.cpus[cpu as usize].waiting > 0 {
                self.call_idle(cpu);
            }
        }
    }

    /// A stretch ends, or a period of throttling.
    pub(super) fn above_ends(&mut self, cpu: u32) {
        let place = &mut self.above.cpus[cpu as usize];
        let done = core::mem::take(&mut place.stretch);
        place.held = false;
        place.pending -= done;
        if let Some((_, period)) = self.settings.rt_throttling {
            let window = place.since / period.0;
            if place.window == window {
                place.used += done;
            }
        }
        self.mechanisms.stolen_ns += done;
        if self.cpus[cpu as usize].offline {
            return;
        }
        if place.pending > 0 {
            self.above_runs(cpu);
        } else {
            self.measure_above(cpu);
            self.release(cpu);
        }
    }

    /// Brings what is known of how much of a CPU is taken up to date. Before it is taken or released: it counts as before up to now.
    pub(super) fn measure_above(&mut self, cpu: u32) {
        let taken = self.cpus[cpu as usize].taken;
        let Some(place) = self.above.cpus.get_mut(cpu as usize) else {
            return;
        };
        let now = Nanos(self.now);
        let passed = now - Nanos(place.measured_at);
        let ran = if taken { passed } else { Nanos::ZERO };
        if place.average.advance(now, taken, ran) {
            place.measured_at = self.now;
            let part = u32::try_from(place.average.util()).unwrap_or(0);
            self.cpus[cpu as usize].queue.load().publish_stolen(part);
        }
    }

    /// Makes a taken CPU tick while tasks wait on it.
    pub(super) fn stand_by(&mut self, cpu: u32) {
        let state = &self.cpus[cpu as usize];
        if state.next_tick == NEVER && state.waiting > 0 && !state.offline {
            let next = self.next_tick_of(cpu);
            self.cpus[cpu as usize].next_tick = next;
            self.arm(cpu);
        }
    }

    /// The tick of a taken CPU: those that wait there are for others to fetch.
    pub(super) fn tick_taken(&mut self, cpu: u32) {
        let state = &mut self.cpus[cpu as usize];
        state.next_tick = NEVER;
        state.queue.look_around(Nanos(self.now));
        self.count_waiting(cpu);
        self.show_throttles(cpu);
        if self.idle.count() > 0 && self.cpus[cpu as usize].waiting > 0 {
            self.call_idle(cpu);
        }
        self.arm(cpu);
        self.stand_by(cpu);
    }

    /// Whoever runs on a CPU gives way, and nobody is chosen there.
    pub(super) fn seize(&mut self, cpu: u32) {
        if self.cpus[cpu as usize].current != NONE {
            let task = self.stop_work(cpu);
            let now = Nanos(self.now);
            let state = &mut self.cpus[cpu as usize];
            state.left = TaskState::Preempted;
            state.queue.put_prev_preempt(task, now);
            state.queue.publish();
        }
        let state = &mut self.cpus[cpu as usize];
        state.taken = true;
        state.work_end = NEVER;
        state.next_tick = NEVER;
        state.budget_end = NEVER;
        self.set_idle(cpu, false);
        self.count_waiting(cpu);
        self.show_throttles(cpu);
        self.arm(cpu);
    }

    /// The CPU is everybody's again.
    pub(super) fn release(&mut self, cpu: u32) {
        let state = &mut self.cpus[cpu as usize];
        if core::mem::take(&mut state.taken) {
            state.left = TaskState::Sleeping;
            state.next_tick = NEVER;
            self.list(cpu);
        }
    }

    /// A CPU that comes back does what was due meanwhile.
    pub(super) fn above_resumes(&mut self, cpu: u32) {
        let place = self.above.cpus.get(cpu as usize).copied();
        let Some(place) = place.filter(|place| place.pending > place.stretch) else {
            return;
        };
        if place.stretch == 0 && !place.held {
            self.above_runs(cpu);
        }
    }
}
