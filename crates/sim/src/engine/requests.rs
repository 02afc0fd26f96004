//! What tasks wait for: channels, barriers, requests; and the steps that touch them.

use super::Simulation;
use super::state::{Life, NONE, REQUESTS_MAX};
use crate::agenda::Timer;
use crate::program::Step;
use quotient_trace::Sink;

impl<S: Sink> Simulation<S> {
    /// Whether what a task comes to is there already; if so it takes it, if not it is noted as waiting.
    pub(super) fn comes_to(&mut self, task: u32, step: Step) -> bool {
        match step {
            Step::Wait(index) => {
                let channel = &mut self.channels[index as usize];
                if channel.tokens > 0 {
                    channel.tokens -= 1;
                    return true;
                }
                channel.waiting.push_back(task);
            }
            Step::Take(index) => {
                let queue = &mut self.queues[index as usize];
                if let Some(request) = queue.parts.pop_front() {
                    self.tasks[task as usize].request = request;
                    return true;
                }
                queue.waiting.push_back(task);
            }
            Step::Meet(index) => return self.meet(task, index),
            _ => return true,
        }
        false
    }

    fn meet(&mut self, task: u32, index: u32) -> bool {
        let barrier = &mut self.barriers[index as usize];
        if barrier.waiting.len() as u32 + 1 < barrier.parties {
            barrier.waiting.push(task);
            return false;
        }
        let by = self.interpreting;
        let mut others = core::mem::take(&mut self.woken);
        others.append(&mut self.barriers[index as usize].waiting);
        for other in others.drain(..) {
            self.wake(other, by);
        }
        self.woken = others;
        true
    }

    /// A step that neither computes nor waits.
    pub(super) fn act(&mut self, cpu: u32, task: u32, step: Step) {
        match step {
            Step::Post(index) => self.post(cpu, task, index, false),
            Step::PostOne(index) => self.post(cpu, task, index, true),
            Step::Signal(index) => {
                self.call_now(cpu, task);
                if let Some(first) = self.channels[index as usize].waiting.pop_front() {
                    self.wake(first, cpu);
                }
            }
            Step::Broadcast(index) => {
                self.call_now(cpu, task);
                let mut others = core::mem::take(&mut self.woken);
                others.extend(self.channels[index as usize].waiting.drain(..));
                for other in others.drain(..) {
                    self.wake(other, cpu);
                }
                self.woken = others;
            }
            Step::Ask { queue, work, reply } => {
                self.call_now(cpu, task);
                self.come(queue as usize, work.0, (1, reply), cpu);
            }
            Step::Finish(meter) => {
                let request = core::mem::replace(&mut self.tasks[task as usize].request, NONE);
                if let Some((arrived, reply)) = self.requests.part_done(request) {
                    self.meters[meter as usize].record(self.now - arrived, self.now);
                    if reply != NONE {
                        self.post(cpu, task, reply, false);
                    }
                }
            }
            Step::Slack { meter, period } => {
                let passed = self.now - self.tasks[task as usize].began;
                let period = period.0.max(1);
                let left = period - passed % period;
                self.meters[meter as usize].record(left, self.now);
            }
            Step::Stamp => self.tasks[task as usize].stamp = self.now,
            Step::StampWoken => {
                let entry = &mut self.tasks[task as usize];
                entry.stamp = entry.ready_at;
            }
            Step::Open { request, at } => {
                let at = match at {
                    Step::NOW => self.now,
                    Step::WOKEN => self.tasks[task as usize].ready_at,
                    at => at.0.min(self.now),
                };
                let request = &mut self.spanning[request as usize];
                request.begun = request.begun.min(at);
            }
            Step::Close { request, meter } => {
                if let Some(begun) = self.spanning[request as usize].part_done() {
                    self.meters[meter as usize].record(self.now - begun, self.now);
                }
            }
            Step::Lap(meter) => {
                let since = self.tasks[task as usize].stamp;
                self.meters[meter as usize].record(self.now - since, self.now);
            }
            Step::Count(meter) => {
                let meter = &mut self.meters[meter as usize];
                meter.count += 1;
                meter.last_at = self.now;
            }
            Step::ReadClock(how) => self.read_clock(cpu, task, how),
            Step::Synchronize { exposed } => self.synchronize(cpu, task, exposed),
            // The rest is done where control flow is.
            _ => {}
        }
    }

    fn post(&mut self, cpu: u32, task: u32, index: u32, at_most_one: bool) {
        self.call_now(cpu, task);
        let channel = &mut self.channels[index as usize];
        match channel.waiting.pop_front() {
            Some(first) => self.wake(first, cpu),
            None if at_most_one => channel.tokens = 1,
            None => channel.tokens += 1,
        }
    }

    /// A request arrives; the source's timer is set for the next one.
    pub(super) fn arrive(&mut self, index: u32) {
        let source = &mut self.arrivals[index as usize];
        let work = source.works.get(source.next).copied().unwrap_or(0);
        source.next += 1;
        let next = if source.times.is_empty() {
            // Two at the same moment are one after the other: time must go on.
            Some(self.now + source.gap.draw(&mut source.random).max(1))
        } else {
            source.times.get(source.next).copied()
        };
        let (queue, parts) = (source.queue as usize, source.parts);
        if let Some(next) = next {
            self.timers.set(next, Timer::Arrive(index));
        }
        self.come(queue, work, (parts, NONE), NONE);
    }

    /// A request comes to a queue, brought by somebody on a CPU, or by nobody.
    fn come(&mut self, queue: usize, work: u64, (parts, reply): (u32, u32), by: u32) {
        if self.queues[queue].parts.len() + parts as usize > REQUESTS_MAX {
            self.mechanisms.refused += 1;
            return;
        }
        let request = self.requests.open(self.now, work, parts, reply);
        for _ in 0..parts {
            match self.queues[queue].waiting.pop_front() {
                Some(task) => {
                    debug_assert_eq!(self.tasks[task as usize].life, Life::Waiting);
                    self.tasks[task as usize].request = request;
                    self.wake(task, by);
                }
                None => self.queues[queue].parts.push_back(request),
            }
        }
    }
}
