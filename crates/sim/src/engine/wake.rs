//! Waking: where a task goes, and whether whoever runs there gives way.

use super::Simulation;
use super::state::{Life, NONE};
use crate::agenda::NEVER;
use crate::outcome::Mechanism;
use crate::policy::Candidate;
use quotient_core::{Enqueue, Nanos};
use quotient_trace::Sink;

impl<S: Sink> Simulation<S> {
    /// A waiting task becomes runnable, woken by what runs on CPU `by` ([`NONE`]: by a timer).
    #[inline]
    pub(super) fn wake(&mut self, task: u32, by: u32) {
        if self.tasks[task as usize].life != Life::Waiting {
            return;
        }
        let last = self.tasks[task as usize].cpu;
        let target = if self.affinity.is_bound(task) {
            self.choose_allowed(task, last, by)
        } else {
            let sees_idle = self.sees_idle(last);
            if self.is_drawn(last, by) {
                by
            } else {
                self.choose(last, by, sees_idle)
            }
        };
        let target = self.present(task, target);
        self.end_gap(target);
        let kind = if by == target {
            Enqueue::WakeBuddy
        } else {
            Enqueue::Wake
        };
        self.tasks[task as usize].woken = true;
        let waker = if by == NONE {
            NONE
        } else {
            self.cpus[by as usize].current
        };
        let shown_on = if by == NONE { target } else { by };
        self.show_wakeup(shown_on, task, target, waker);
        if waker != NONE {
            self.owe(by, waker, Mechanism::Wake, self.costs.wake.0);
        }
        self.enqueue(task, target, kind, by);
    }

    /// A task begins.
    pub(super) fn begin(&mut self, task: u32) {
        let entry = &mut self.tasks[task as usize];
        entry.began = self.now;
        entry.stamp = self.now;
        let asked = entry.cpu;
        let target = if asked != NONE {
            asked
        } else if self.affinity.is_bound(task) {
            self.choose_allowed(task, NONE, NONE)
        } else {
            self.emptiest(task)
        };
        let target = self.present(task, target);
        // Its caches are as cold elsewhere.
        self.tasks[task as usize].cpu = NONE;
        self.show_spawn(task, target);
        self.enqueue(task, target, Enqueue::New, NONE);
    }

    #[inline(always)]
    fn enqueue(&mut self, task: u32, target: u32, kind: Enqueue, by: u32) {
        self.catch_up();
        let now = Nanos(self.now);
        let entry = &mut self.tasks[task as usize];
        entry.life = Life::Runnable;
        entry.ready_at = self.now;
        let preempts = if self.settings.plugin.is_none() {
            let group = &self.groups[entry.group as usize];
            let state = &mut self.cpus[target as usize];
            state.queue.enqueue(group, entry.entity, task, kind, now)
        } else {
            let candidate = self.candidate(task);
            self.cpus[target as usize].queue.admit(candidate, now)
        };
        self.count_waiting(target);
        self.reschedule(target, preempts, by);
    }

    /// A task as another policy sees it.
    #[cold]
    fn candidate(&self, task: u32) -> Candidate {
        let group = self.tasks[task as usize].group;
        Candidate {
            task,
            weight: self.weights[task as usize],
            group,
            group_weight: self.groups[group as usize].weight(),
        }
    }

    /// Something was queued on `target`: makes it look, interrupting it if need be.
    #[inline(always)]
    pub(super) fn reschedule(&mut self, target: u32, preempts: bool, by: u32) {
        let state = &mut self.cpus[target as usize];
        if state.current == NONE {
            // Claimed at once: what else is woken at this moment goes elsewhere.
            self.set_idle(target, false);
            self.interrupt(target, by);
            self.list(target);
        } else if preempts {
            state.need_resched = true;
            self.interrupt(target, by);
            self.list(target);
        } else if state.next_tick == NEVER || !self.limited.is_empty() {
            // Else it ticks already, and nothing else of it changes.
            self.rearm(target);
        }
    }

    /// CPU `by` sends an interrupt to another one.
    fn interrupt(&mut self, target: u32, by: u32) {
        if by == NONE || by == target {
            return;
        }
        self.show_ipi(by, target);
        let sender = self.cpus[by as usize].current;
        if sender != NONE {
            self.owe(by, sender, Mechanism::Ipi, self.costs.ipi_send.0);
        }
        let received = self.costs.ipi_receive.0;
        if received > 0 {
            self.mechanisms.add(Mechanism::Ipi, received);
            self.cpus[target as usize].unpaid += received;
        }
    }

    /// Where a woken task goes: its last CPU if that is idle, else the nearest idle one to it, else one near the
    /// waker, else any; if none is idle, the emptier of its last CPU and the waker's. O(CPUs / 64).
    #[inline]
    fn choose(&self, last: u32, by: u32, sees_idle: bool) -> u32 {
        let last = if last == NONE { 0 } else { last };
        let is_free = || self.idle.contains(last);
        if self.idle.count() == 0 || !sees_idle && !is_free() {
            if by == NONE || by == last {
                return last;
            }
            let length = |cpu: u32| self.cpus[cpu as usize].queue.nr_running();
            return if length(by) < length(last) { by } else { last };
        }
        if self.idle.contains(last) && self.core_is_idle(last) {
            return last;
        }
        let node = self.machine.node_of(last);
        if self.machine.caches > 1 {
            // Near in the cache before near in memory; the kernel looks no further.
            let near = [last, if by == NONE { last } else { by }];
            if let Some(found) = near.iter().find_map(|&cpu| self.idle_in_cache(cpu)) {
                return found;
            }
            if self.settings.wake_within_node {
                return last;
            }
        }
        if let Some(found) = self.idle_in_node(node) {
            return found;
        }
        if by != NONE && self.machine.node_of(by) != node {
            let found = self.idle_in_node(self.machine.node_of(by));
            if let Some(found) = found {
                return found;
            }
        }
        let nodes = if self.settings.wake_within_node {
            1
        } else {
            self.machine.nodes
        };
        (1..nodes)
            .find_map(|step| self.idle_in_node((node + step) % nodes))
            .unwrap_or(last)
    }

    /// Whether a wake-up that finds its CPU busy looks for an idle one.
    #[inline]
    fn sees_idle(&mut self, last: u32) -> bool {
        let notice = self.settings.notice;
        let is_crowded = || last != NONE && self.cpus[last as usize].queue.nr_running() > 1;
        let permille = if notice.woken_permille == notice.crowded_permille || !is_crowded() {
            notice.woken_permille
        } else {
            notice.crowded_permille
        };
        self.happens(permille)
    }

    /// Whether a task that CPU `by` wakes goes there although its last one idles: a kernel that does not see that takes the waker's for the
    /// better choice.
    #[inline]
    fn is_drawn(&mut self, last: u32, by: u32) -> bool {
        let notice = self.settings.notice;
        if by == NONE || by == last || last == NONE || !self.idle.contains(last) {
            return false;
        }
        let is_crowded = self.cpus[by as usize].queue.nr_running() > 1;
        let permille = if is_crowded {
            notice.drawn_crowded_permille
        } else {
            notice.drawn_permille
        };
        permille > 0 && self.happens(permille)
    }

    /// Whether something happens that does so many times of a thousand. Nothing is drawn for what always happens.
    #[inline]
    pub(super) fn happens(&mut self, permille: u16) -> bool {
        permille >= 1_000 || self.random.below(1_000) < u64::from(permille)
    }

    pub(super) fn core_is_idle(&self, cpu: u32) -> bool {
        let first = self.machine.first_sibling(cpu);
        (first..first + self.machine.threads).all(|sibling| self.rests(sibling))
    }

    /// An idle CPU of a node, on an idle core if there is one.
    fn idle_in_node(&self, node: u32) -> Option<u32> {
        let width = self.machine.node_cpus();
        self.idle_in(node * width, (node + 1) * width)
    }

    /// The same among those that share their cache with `cpu`.
    fn idle_in_cache(&self, cpu: u32) -> Option<u32> {
        let width = self.machine.cache_cpus();
        let cache = self.machine.cache_of(cpu);
        self.idle_in(cache * width, (cache + 1) * width)
    }

    fn idle_in(&self, first: u32, end: u32) -> Option<u32> {
        let any = self.idle.first_in(first, end)?;
        if self.machine.threads == 1 || self.core_is_idle(any) {
            return Some(any);
        }
        let mut cores = (first..end).step_by(self.machine.threads as usize);
        Some(cores.find(|&cpu| self.core_is_idle(cpu)).unwrap_or(any))
    }

    /// Where a new task goes: the emptiest CPU of the emptiest node, searched from a place that depends on the task
    /// so that equal ones take turns. O(nodes + CPUs of a node).
    pub(super) fn emptiest(&self, task: u32) -> u32 {
        let cpus = self.machine.cpus();
        if self.idle.count() == cpus {
            // Spread over nodes from the beginning, as the kernel does.
            let node = task % self.machine.nodes;
            return node * self.machine.node_cpus();
        }
        let nodes = self.machine.nodes;
        let width = self.machine.node_cpus();
        let node = (0..nodes)
            .map(|step| (task + step) % nodes)
            .min_by_key(|&node| {
                let running = self.node_running[node as usize];
                debug_assert_eq!(
                    running,
                    (node * width..(node + 1) * width)
                        .map(|cpu| self.cpus[cpu as usize].queue.nr_running())
                        .sum::<usize>()
                );
                running
            })
            .unwrap_or(0);
        if let Some(idle) = self.idle_in_node(node)
            && self.cpus[idle as usize].queue.nr_running() == 0
        {
            return idle;
        }
        (0..width)
            .map(|step| node * width + (task + step) % width)
            .min_by_key(|&cpu| self.cpus[cpu as usize].queue.nr_running())
            .unwrap_or(0)
    }
}
