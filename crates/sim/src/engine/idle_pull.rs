//! What a CPU that falls idle leaves where it is, by the rules of a kernel.
//!
//! Linux looks for work at that moment only if the CPU is idle for longer, as of late, than looking takes, and leaves a task that ran a
//! moment ago (half a millisecond) to the CPU whose caches hold its data; hyperthreads of a core share them. What is left is offered again
//! when the CPU where it waits ticks. By our own rules an idle CPU takes whatever waits, unless its gaps come to less than a hundredth of its time
//! ([`quotient_core::balance::Gaps`]).

use super::Simulation;
use crate::plan::Settings;
use quotient_core::Nanos;
use quotient_core::balance::{GapUse, Gaps};
use quotient_trace::Sink;

/// The average counts each stretch of idleness with this part: an eighth, as the kernel does.
const AVERAGE_SHIFT: u32 = 3;

/// What a CPU is taken to be idle for before anything is known, and at most, ns: 1 ms, twice the kernel's cost of a migration.
const AVERAGE_MAX: u64 = 1_000_000;

/// What is remembered for it.
#[derive(Default)]
pub(super) struct Warmth {
    /// When each task ran last; empty by our own rules.
    ran_at: Vec<u64>,
    /// Of each CPU: how long it is idle on average, and since when it is, ns.
    idle: Vec<(u64, u64)>,
    /// Of each CPU, by our own rules.
    gaps: Vec<Gaps>,
}

impl Warmth {
    pub(super) fn new(settings: &Settings, tasks: usize, cpus: u32) -> Warmth {
        if settings.plugin.is_some() {
            // What an idle CPU does is that policy's.
            return Warmth::default();
        }
        if settings.hot_for == Nanos::ZERO && settings.idle_at_least == Nanos::ZERO {
            return Warmth {
                gaps: vec![Gaps::default(); cpus as usize],
                ..Warmth::default()
            };
        }
        Warmth {
            ran_at: vec![0; tasks],
            idle: vec![(AVERAGE_MAX, 0); cpus as usize],
            gaps: Vec::new(),
        }
    }

    #[inline]
    fn is_kept(&self) -> bool {
        !self.idle.is_empty()
    }
}

impl<S: Sink> Simulation<S> {
    /// A task leaves its CPU.
    #[inline]
    pub(super) fn cools(&mut self, task: u32) {
        if self.warmth.is_kept() {
            self.warmth.ran_at[task as usize] = self.now;
        }
    }

    /// A CPU becomes idle or busy.
    #[inline]
    pub(super) fn note_idleness(&mut self, cpu: u32, is_idle: bool) {
        if !self.warmth.is_kept() {
            return;
        }
        let (average, since) = &mut self.warmth.idle[cpu as usize];
        if is_idle {
            *since = self.now;
            return;
        }
        let stretch = self.now - *since;
        let sum = *average - (*average >> AVERAGE_SHIFT) + (stretch >> AVERAGE_SHIFT);
        *average = sum.min(AVERAGE_MAX);
    }

    /// For how much a CPU that has nothing to run looks elsewhere.
    #[inline]
    pub(super) fn looks_for_work(&mut self, cpu: u32) -> GapUse {
        // Where tasks are bound, who waits may not run where it idles.
        let others =
            !self.affinity.binds() && self.idle.count() > u32::from(self.idle.contains(cpu));
        match self.warmth.gaps.get_mut(cpu as usize) {
            Some(gaps) => gaps.begin(Nanos(self.now), others),
            None => {
                let average = self.warmth.idle.get(cpu as usize);
                match average {
                    Some((average, _)) if *average < self.settings.idle_at_least.0 => GapUse::None,
                    _ => GapUse::All,
                }
            }
        }
    }

    /// Whether idle CPUs look for work by our own rules, not by a kernel's or a plugin's.
    pub(super) fn pulls_by_own_rules(&self) -> bool {
        !self.warmth.gaps.is_empty()
    }

    /// A task wakes on a CPU.
    #[inline]
    pub(super) fn end_gap(&mut self, cpu: u32) {
        if let Some(gaps) = self.warmth.gaps.get_mut(cpu as usize) {
            gaps.end(Nanos(self.now));
        }
    }

    /// Whether a task that waits on `from` is left there by an idle CPU.
    #[inline]
    pub(super) fn is_hot(&self, task: u32, from: u32, to: u32) -> bool {
        self.warmth.is_kept()
            && self.machine.first_sibling(from) != self.machine.first_sibling(to)
            && self.now - self.warmth.ran_at[task as usize] < self.settings.hot_for.0
    }
}
