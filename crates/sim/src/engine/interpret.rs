//! Programs: what a task does when its work is done.

use super::Simulation;
use super::state::NONE;
use crate::agenda::{NEVER, Timer};
use crate::outcome::Mechanism;
use crate::program::Step;
use quotient_core::Nanos;
use quotient_trace::Sink;

/// What becomes of the loop over steps.
enum Next {
    /// On to the next step, at once.
    Step,
    /// The task has work to do, or is no longer running.
    Done,
}

impl<S: Sink> Simulation<S> {
    /// Interprets the program of the current task from its next step, until it computes, waits or ends.
    pub(super) fn interpret(&mut self, cpu: u32) {
        {
            let state = &mut self.cpus[cpu as usize];
            state.work_end = NEVER;
            state.ready = false;
        }
        let before = core::mem::replace(&mut self.interpreting, cpu);
        loop {
            let state = &self.cpus[cpu as usize];
            // Whoever was woken by the last step may be due.
            if state.need_resched {
                self.interpreting = before;
                self.preempt(cpu);
                return;
            }
            let (task, owes) = (state.current, state.unpaid > 0);
            let entry = &mut self.tasks[task as usize];
            let step = self.steps[entry.step as usize];
            entry.step += 1;
            if owes && self.owes_first(cpu, step) {
                // The step is to be done yet.
                self.tasks[task as usize].step -= 1;
                break;
            }
            self.steps_now += 1;
            if self.steps_now > self.standstill {
                // The caller reports it; going on would never return.
                self.cpus[cpu as usize].ready = true;
                break;
            }
            match self.step(cpu, task, step) {
                Next::Step => {}
                Next::Done => break,
            }
        }
        self.interpreting = before;
        let state = &self.cpus[cpu as usize];
        if state.current == NONE || state.ready || state.need_resched {
            self.list(cpu);
        }
    }

    /// Costs come before what the task does next, unless that is work to which they can be added.
    fn owes_first(&mut self, cpu: u32, step: Step) -> bool {
        let state = &mut self.cpus[cpu as usize];
        if matches!(step, Step::Run(_) | Step::Kernel(_) | Step::Serve) {
            return false;
        }
        let unpaid = core::mem::take(&mut state.unpaid);
        state.work_end = self.now.saturating_add(state.to_wall(unpaid));
        self.rearm(cpu);
        true
    }

    #[inline]
    fn step(&mut self, cpu: u32, task: u32, step: Step) -> Next {
        match step {
            Step::Run(span) => self.work(cpu, task, span, false),
            Step::Kernel(span) => self.work(cpu, task, span, true),
            Step::Serve => {
                let work = self.requests.work(self.tasks[task as usize].request);
                self.work(cpu, task, Nanos(work).into(), false)
            }
            Step::Sleep(span) => {
                let length = span.draw(&mut self.tasks[task as usize].random);
                self.sleep_until(cpu, task, self.now.saturating_add(length))
            }
            Step::Every(period) => {
                let began = self.tasks[task as usize].began;
                let passed = (self.now - began) / period.0.max(1) + 1;
                self.sleep_until(
                    cpu,
                    task,
                    began.saturating_add(passed.saturating_mul(period.0)),
                )
            }
            Step::Until(moment) if moment.0 > self.now => self.sleep_until(cpu, task, moment.0),
            Step::Yield => {
                self.call(task);
                self.yield_now(cpu);
                Next::Done
            }
            Step::Exit => {
                self.exit(cpu);
                Next::Done
            }
            Step::Jump(to) => {
                self.tasks[task as usize].step = to;
                Next::Step
            }
            Step::Repeat { counter, times, to } => {
                self.repeat(task, usize::from(counter), times, to);
                Next::Step
            }
            Step::Wait(_) | Step::Meet(_) | Step::Take(_) => {
                if self.comes_to(task, step) {
                    self.call_now(cpu, task);
                    return Next::Step;
                }
                self.call(task);
                self.sleep(cpu);
                Next::Done
            }
            other => {
                self.act(cpu, task, other);
                Next::Step
            }
        }
    }

    fn repeat(&mut self, task: u32, counter: usize, times: u32, to: u32) {
        let count = &mut self.counters[task as usize][counter];
        if *count < times {
            *count += 1;
            self.tasks[task as usize].step = to;
        } else {
            *count = 0;
        }
    }

    #[inline]
    fn work(&mut self, cpu: u32, task: u32, span: crate::random::Span, in_kernel: bool) -> Next {
        let entry = &mut self.tasks[task as usize];
        let length = span.draw(&mut entry.random);
        self.cross(cpu, task, in_kernel);
        if in_kernel {
            self.spend(task, Mechanism::Kernel, length);
        }
        let state = &mut self.cpus[cpu as usize];
        let work = length + core::mem::take(&mut state.unpaid);
        if work == 0 {
            return Next::Step;
        }
        state.work_end = self.now.saturating_add(state.to_wall(work));
        self.rearm(cpu);
        Next::Done
    }

    #[inline]
    fn sleep_until(&mut self, cpu: u32, task: u32, moment: u64) -> Next {
        self.call(task);
        self.timers.set(moment, Timer::Wake(task));
        self.sleep(cpu);
        Next::Done
    }

    /// A call into the kernel that does not return before the task is woken: paid then.
    #[inline]
    fn call(&mut self, task: u32) {
        let cost = self.costs.syscall.0;
        if cost > 0 {
            self.spend(task, Mechanism::Syscall, cost);
            self.tasks[task as usize].remaining += cost;
        }
    }

    /// A call into the kernel that returns at once.
    #[inline]
    pub(super) fn call_now(&mut self, cpu: u32, task: u32) {
        let cost = self.costs.syscall.0;
        self.owe(cpu, task, Mechanism::Syscall, cost);
    }

    /// The task that runs on `cpu` has to pay.
    #[inline]
    pub(super) fn owe(&mut self, cpu: u32, task: u32, mechanism: Mechanism, cost: u64) {
        if cost > 0 {
            self.spend(task, mechanism, cost);
            self.cpus[cpu as usize].unpaid += cost;
        }
    }
}
