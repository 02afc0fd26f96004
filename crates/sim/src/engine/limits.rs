//! Bandwidth control in the engine: refills in time, CPUs that are told about them, and what a trace shows of it.

use super::Simulation;
use super::state::NONE;
use crate::agenda::NEVER;
use crate::plan::Throttling;
use quotient_core::{Limit, LimitError, Nanos};
use quotient_trace::{Amount, GroupId, Kind, Sink};

impl<S: Sink> Simulation<S> {
    /// When a group's pool is refilled next; [`NEVER`] without limits.
    #[inline]
    pub(super) fn next_refill(&self) -> u64 {
        if self.limited.is_empty() {
            return NEVER;
        }
        self.tree.next_refill().map_or(NEVER, |at| at.0)
    }

    /// Sets a group's limit. Index 0 is the root, which has none.
    ///
    /// # Errors
    /// What ranges cannot tell: by the kernel's older rules, a limit that a group above cannot keep.
    pub(super) fn set_limit(&mut self, index: u32, limit: Option<Limit>) -> Result<(), LimitError> {
        let mut kicked = core::mem::take(&mut self.kicked);
        let group = &self.groups[index as usize];
        group.set_limit(limit, Nanos(self.now), &mut |cpu| kicked.push(cpu.0))?;
        if !self.limited.contains(&index) {
            self.limited.push(index);
            self.throttled
                .resize(self.limited.len() * self.cpus.len(), false);
            self.periods.push(0);
        }
        let id = GroupId(group.id());
        let limit = limit.unwrap_or(Limit::new(Nanos::MAX, Limit::PERIOD_DEFAULT));
        self.emit(
            0,
            Kind::SetLimit {
                group: id,
                quota: Amount::of_nanos(limit.quota),
                period_us: u32::try_from(limit.period.0 / 1_000).unwrap_or(u32::MAX),
            },
        );
        self.emit(
            0,
            Kind::SetBurst {
                group: id,
                burst: Amount::of_nanos(limit.burst),
            },
        );
        self.tell(&mut kicked);
        // Whoever runs alone may have to be watched from now on, which its queue has to know first: without a tick nothing else tells it.
        let now = Nanos(self.now);
        for cpu in 0..self.cpus.len() as u32 {
            if self.cpus[cpu as usize].current != NONE {
                self.cpus[cpu as usize].queue.charge(now);
                self.tick_once_below(index, cpu);
                self.rearm(cpu);
            }
        }
        Ok(())
    }

    /// A limit's periods begin with its first use, which is at the next tick of who runs already. With as much quota as the CPUs can use
    /// nobody is watched, and who runs alone would use nothing for as long as that lasts: the periods would begin as somebody else comes.
    fn tick_once_below(&mut self, limited: u32, cpu: u32) {
        let state = &self.cpus[cpu as usize];
        let mut group = self.tasks[state.current as usize].group;
        while group != limited && group != 0 {
            group = self.parents[group as usize];
        }
        if group == limited && state.next_tick == NEVER {
            self.cpus[cpu as usize].next_tick = self.next_tick_of(cpu);
        }
    }

    /// Refills what is due.
    pub(super) fn refill(&mut self) {
        self.catch_up();
        let mut kicked = core::mem::take(&mut self.kicked);
        self.refill_by(self.now, &mut kicked);
        self.tell(&mut kicked);
    }

    /// Refills what is due by `at`, which may have passed, and notes whom to tell of it.
    pub(super) fn refill_by(&mut self, at: u64, kicked: &mut Vec<u32>) {
        if self.next_refill() > at {
            return;
        }
        while self.tree.refill(Nanos(at), &mut |cpu| kicked.push(cpu.0)) {}
        if S::ENABLED && self.sink.enabled() {
            self.show_refills();
        }
    }

    /// Makes CPUs run what they may run again.
    pub(super) fn tell(&mut self, kicked: &mut Vec<u32>) {
        let now = Nanos(self.now);
        for &cpu in kicked.iter() {
            let state = &mut self.cpus[cpu as usize];
            let preempts = state.queue.unthrottle_pending(now);
            self.count_waiting(cpu);
            self.show_throttles(cpu);
            if self.cpus[cpu as usize].current == NONE {
                if self.cpus[cpu as usize].queue.nr_running() > 0 {
                    self.set_idle(cpu, false);
                    self.list(cpu);
                }
            } else if preempts {
                self.cpus[cpu as usize].need_resched = true;
                self.list(cpu);
            } else {
                self.rearm(cpu);
            }
        }
        kicked.clear();
        self.kicked = core::mem::take(kicked);
    }

    /// Whether the current task of a CPU has a limit, its own group's or one above.
    #[inline]
    pub(super) fn runs_limited(&self, cpu: u32) -> bool {
        !self.limited.is_empty()
            && self.cpus[cpu as usize]
                .queue
                .runtime_left(Nanos(self.now))
                .is_some()
    }

    /// When the current task's budget on this CPU is used up, if that is looked at exactly and not at ticks.
    #[inline]
    pub(super) fn budget_end(&self, cpu: u32) -> u64 {
        if self.limited.is_empty() || self.settings.throttling != Throttling::Exact {
            return NEVER;
        }
        let left = self.cpus[cpu as usize].queue.runtime_left(Nanos(self.now));
        left.map_or(NEVER, |left| self.now.saturating_add(left.0.max(1)))
    }

    /// The current task enters or leaves the kernel: inside, a throttle waits for the way out.
    #[inline]
    pub(super) fn cross(&mut self, cpu: u32, task: u32, in_kernel: bool) {
        let entry = &mut self.tasks[task as usize];
        if entry.in_kernel == in_kernel {
            return;
        }
        entry.in_kernel = in_kernel;
        if !self.limited.is_empty() && self.settings.throttling == Throttling::ExitToUser {
            self.cpus[cpu as usize].queue.defer_current(in_kernel);
        }
    }

    /// Tells the sink which groups are throttled on a CPU, and which no longer, each for itself as the counters count.
    pub(super) fn show_throttles(&mut self, cpu: u32) {
        if !S::ENABLED || self.limited.is_empty() || !self.sink.enabled() {
            return;
        }
        for place in 0..self.limited.len() {
            let group = &self.groups[self.limited[place] as usize];
            let id = GroupId(group.id());
            let is_throttled = self.cpus[cpu as usize].queue.is_throttled_itself(group);
            let known = place * self.cpus.len() + cpu as usize;
            if self.throttled[known] != is_throttled {
                self.throttled[known] = is_throttled;
                let kind = if is_throttled {
                    Kind::Throttle { group: id }
                } else {
                    Kind::Unthrottle { group: id }
                };
                self.emit(cpu, kind);
            }
        }
    }

    fn show_refills(&mut self) {
        for place in 0..self.limited.len() {
            let group = &self.groups[self.limited[place] as usize];
            let periods = group.bandwidth_stats().nr_periods;
            let passed = periods.saturating_sub(self.periods[place]);
            self.periods[place] = periods;
            if passed > 0 {
                let pool = group.bandwidth_account().pool;
                let kind = Kind::Refill {
                    group: GroupId(group.id()),
                    periods: u16::try_from(passed).unwrap_or(u16::MAX),
                    pool: Amount::new(i64::try_from(pool).unwrap_or(i64::MAX)),
                };
                self.emit(0, kind);
            }
        }
    }
}
