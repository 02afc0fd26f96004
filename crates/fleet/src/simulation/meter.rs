//! What is measured of a simulated fleet, whatever design it follows.

use super::{Outcome, STEP};
use crate::limit::FleetLimit;
use crate::units::Micros;

/// What all processes did in one step, us.
#[derive(Default)]
pub(super) struct Step {
    wanted: f64,
    used: f64,
    fresh_wanted: f64,
    fresh_used: f64,
    idle_held: f64,
}

impl Step {
    /// Adds a process: what it wanted and used, whether the load has moved to it, what it holds and may still use.
    pub(super) fn add(&mut self, wants: f64, gets: f64, fresh: bool, holds: f64) {
        self.wanted += wants;
        self.used += gets;
        if fresh {
            self.fresh_wanted += wants;
            self.fresh_used += gets;
        }
        if wants == 0.0 {
            self.idle_held += holds;
        }
    }
}

/// The most by which use exceeded what was earned, in any window.
#[derive(Default)]
struct Excess {
    /// Used less earned so far.
    gap: f64,
    lowest: f64,
    most: f64,
}

impl Excess {
    fn add(&mut self, used: f64, earned: f64) {
        self.lowest = self.lowest.min(self.gap);
        self.gap += used - earned;
        self.most = self.most.max(self.gap - self.lowest);
    }
}

/// What is measured on the way.
pub(super) struct Meter {
    /// Use and stranded budget count from then on.
    settled: Micros,
    outcome: Outcome,
    with_floors: Excess,
    alone: Excess,
    short_used: f64,
    short_earned: f64,
    stranded: f64,
    stranded_time: f64,
    short_steps: u64,
    calls: u64,
    calls_second: u64,
    /// A shift that is not followed yet: its time.
    shifted: Option<Micros>,
    follows: Vec<Micros>,
}

impl Meter {
    pub(super) fn new(settled: Micros) -> Meter {
        Meter {
            settled,
            outcome: Outcome::default(),
            with_floors: Excess::default(),
            alone: Excess::default(),
            short_used: 0.0,
            short_earned: 0.0,
            stranded: 0.0,
            stranded_time: 0.0,
            short_steps: 0,
            calls: 0,
            calls_second: 0,
            shifted: None,
            follows: Vec::new(),
        }
    }

    /// One call to the store.
    pub(super) fn call(&mut self) {
        self.calls += 1;
        self.calls_second += 1;
    }

    /// Takes in the step that ends at `now`; `shift` is when the load last moved.
    pub(super) fn step(
        &mut self,
        now: Micros,
        limit: &FleetLimit,
        shift: Option<Micros>,
        step: &Step,
    ) {
        let quota = limit.quota.unwrap_or_default().as_cpus();
        let floors = quota / FleetLimit::FLOORS_DIVISOR as f64;
        let length = STEP.0 as f64;
        let earned = quota * length;
        self.outcome.used += step.used;
        self.with_floors.add(step.used, earned + floors * length);
        self.alone.add(step.used, earned);
        let room = limit.capacity().0 as f64 + floors * 1e6;
        self.outcome.allowed = self.outcome.allowed.max(room);
        if step.wanted > earned && now > self.settled {
            self.short_used += step.used;
            self.short_earned += earned;
            self.stranded += step.idle_held / (limit.capacity().0 as f64).max(1.0);
            self.stranded_time += step.idle_held;
            self.short_steps += 1;
        }
        if shift.is_some_and(|at| at > now.saturating_sub(STEP)) {
            self.shifted = Some(now);
        }
        let due = step.fresh_wanted.min(earned);
        if let Some(at) = self.shifted
            && now > at
            && step.fresh_wanted > 0.0
            && step.fresh_used >= 0.9 * due
        {
            self.follows.push(now - at);
            self.shifted = None;
        }
        if now.saturating_sub(STEP).0 / 1_000_000 != now.0 / 1_000_000 {
            self.outcome.calls_most = self.outcome.calls_most.max(self.calls_second);
            self.calls_second = 0;
        }
    }

    pub(super) fn finish(self, time: Micros) -> Outcome {
        let steps = self.short_steps.max(1) as f64;
        let sum: u64 = self.follows.iter().map(|time| time.0).sum();
        let mean = sum.checked_div(self.follows.len() as u64).map(Micros);
        Outcome {
            use_when_short: if self.short_earned > 0.0 {
                self.short_used / self.short_earned
            } else {
                f64::NAN
            },
            excess: self.with_floors.most,
            excess_of_quota: self.alone.most,
            calls: self.calls as f64 / (time.0 as f64 / 1e6),
            followed: self.follows.iter().max().copied(),
            followed_mean: mean,
            stranded: self.stranded / steps,
            stranded_time: self.stranded_time / steps,
            ..self.outcome
        }
    }
}
