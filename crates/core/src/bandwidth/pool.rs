//! The arithmetic of a group's pool: periods, refills, grants, and changes of the limit. No locks and no clocks.

use super::limit::Limit;
use super::local::Local;
use super::rules::{BandwidthRules, LATE_MAX, PART_MIN, PARTS_MAX, SLICE_MAX, SLICE_MIN};
use super::stats::BandwidthStats;
use super::timer::NEVER;
use crate::units::Nanos;
use std::collections::VecDeque;
use std::sync::Arc;

/// A group's budget and everything that changes with it, behind one lock ([`super::Bandwidth`]).
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) rules: BandwidthRules,
    /// The limit, or the last one while there is none.
    pub(super) limit: Limit,
    pub(super) enabled: bool,
    /// R: what CPUs may still take, ns. Negative if time spent outside of the run queues exceeded it.
    pub(super) runtime: i64,
    /// R as of the last refill, moved along with changes of the quota, so that a change is worth the same whenever it
    /// happens and however often.
    base: i64,
    /// What was taken since the last refill, less what was given back, ns.
    granted: i64,
    /// When the current period began, and how many of its parts are refilled.
    pub(super) start: u64,
    part: u64,
    /// Periods begun so far, to tell slices of different periods apart.
    pub(super) period_number: u64,
    /// Whether the period timer is armed.
    pub(super) active: bool,
    /// When returned slack is given out, or [`NEVER`].
    pub(super) slack_at: u64,
    /// What the tree's timers know.
    pub(super) armed_at: u64,
    /// Something was taken since the last period began.
    touched: bool,
    /// Some CPU was throttled since the last period began.
    pub(super) throttled_lately: bool,
    throttled_run: u64,
    late_run: u32,
    /// CPUs that wait for budget, in the order in which they were throttled.
    pub(super) waiting: VecDeque<Arc<Local>>,
    /// Every CPU that has met the limited group.
    pub(super) locals: Vec<Arc<Local>>,
    pub(super) stats: BandwidthStats,
    /// What came in and what was thrown away, ns, since the first limit (conservation).
    pub(super) refilled: i128,
    pub(super) discarded: i128,
    /// What was charged without a run queue.
    pub(super) outside: i128,
}

/// ns as the signed numbers in which budget is kept; [`Limit::AMOUNT_MAX`] fits.
fn signed(nanos: Nanos) -> i64 {
    i64::try_from(nanos.0).unwrap_or(i64::MAX)
}

impl Pool {
    pub(super) fn new(rules: BandwidthRules) -> Pool {
        Pool {
            rules,
            limit: Limit::new(Limit::QUOTA_MIN, Limit::PERIOD_DEFAULT),
            enabled: false,
            runtime: 0,
            base: 0,
            granted: 0,
            start: 0,
            part: 0,
            period_number: 0,
            active: false,
            slack_at: NEVER,
            armed_at: NEVER,
            touched: false,
            throttled_lately: false,
            throttled_run: 0,
            late_run: 0,
            waiting: VecDeque::new(),
            locals: Vec::new(),
            stats: BandwidthStats::default(),
            refilled: 0,
            discarded: 0,
            outside: 0,
        }
    }

    pub(super) fn quota(&self) -> i64 {
        signed(self.limit.quota)
    }

    /// The most that the pool holds: Q + B.
    pub(super) fn cap(&self) -> i64 {
        signed(self.limit.quota + self.limit.burst)
    }

    /// In how many parts a period is refilled.
    fn parts(&self) -> u64 {
        if self.limit.smooth && !self.rules.is_kernel() {
            (self.limit.period.0 / PART_MIN).clamp(1, PARTS_MAX)
        } else {
            1
        }
    }

    /// The quota of the first `parts` of a period.
    fn share(&self, parts: u64) -> i64 {
        let share = i128::from(self.quota()) * i128::from(parts) / i128::from(self.parts());
        // No more than the quota.
        share as i64
    }

    /// When the next part is due, while the timer is active.
    pub(super) fn next_refill(&self) -> u64 {
        let span = u128::from(self.limit.period.0) * u128::from(self.part + 1);
        let span = span.div_ceil(u128::from(self.parts()));
        // No more than the period.
        self.start.saturating_add(span as u64)
    }

    /// Lets the clock of periods follow to `now`: how many periods have ended, and what that adds to the pool.
    fn elapse(&mut self, now: Nanos) -> (u64, i64) {
        let (period, parts) = (self.limit.period.0, self.parts());
        let passed = now.0.saturating_sub(self.start);
        let full = passed / period;
        let part = (u128::from(passed % period) * u128::from(parts) / u128::from(period)) as u64;
        let credit = if self.rules.is_kernel() {
            // Once, however many periods were missed.
            if full > 0 { self.quota() } else { 0 }
        } else {
            // What exceeds the cap is lost anyway, so many periods need no exact count.
            let periods = i64::try_from(full.min(1 << 20)).unwrap_or(1 << 20);
            let whole = self.quota().saturating_mul(periods);
            whole.saturating_add(self.share(part) - self.share(self.part))
        };
        self.start += full * period;
        self.part = part;
        self.period_number += full;
        (full, credit)
    }

    /// Puts budget in, up to the cap.
    pub(super) fn put(&mut self, amount: i64) {
        let kept = self.runtime.saturating_add(amount).min(self.cap());
        self.refilled += i128::from(amount);
        self.discarded += i128::from(amount) - i128::from(kept - self.runtime);
        self.runtime = kept;
    }

    /// Budget that a CPU gives back, up to the cap.
    pub(super) fn give_back(&mut self, amount: i64) {
        let sum = self.runtime.saturating_add(amount);
        let kept = sum.min(self.cap());
        self.discarded += i128::from(sum - kept);
        self.base -= sum - kept;
        self.runtime = kept;
        self.granted -= amount;
    }

    /// Lets the group's timer run again after it was idle.
    pub(super) fn activate(&mut self, now: Nanos) {
        if self.active || !self.enabled {
            return;
        }
        self.active = true;
        if self.rules.is_kernel() {
            // In phase, and nothing is refilled before the next period.
            let missed = now.0.saturating_sub(self.start) / self.limit.period.0;
            self.start += missed * self.limit.period.0;
            self.period_number += missed;
            return;
        }
        // What the idle time was worth. It ended a whole period without use, so that a period may begin anew right
        // here: no window of a period's length then sees two refills.
        let (_, credit) = self.elapse(now);
        self.put(credit);
        (self.base, self.granted) = (self.runtime, 0);
        (self.start, self.part) = (now.0, 0);
    }

    /// Runs the period timer. Returns whether anything was due.
    pub(super) fn run_timer(&mut self, now: Nanos) -> bool {
        if !self.active || now.0 < self.next_refill() {
            return false;
        }
        let (full, credit) = self.elapse(now);
        if full == 0 {
            let before = self.runtime;
            self.put(credit);
            self.base += self.runtime - before;
            return true;
        }
        self.count_periods(full);
        self.put(credit);
        (self.base, self.granted) = (self.runtime, 0);
        if self.waiting.is_empty() && !self.touched {
            self.active = false;
            self.reclaim_idle();
        }
        self.touched = false;
        self.guard_against_lateness(full);
        true
    }

    fn count_periods(&mut self, full: u64) {
        let stats = &mut self.stats;
        stats.nr_periods += full;
        let excess = self.granted - self.limit.quota.0.cast_signed();
        if excess > 0 {
            stats.nr_bursts += 1;
            stats.burst_time += Nanos(excess.unsigned_abs());
        }
        let throttled = if !self.waiting.is_empty() {
            full
        } else {
            // By default a throttle can end within its period.
            u64::from(self.throttled_lately && !self.rules.is_kernel())
        };
        stats.nr_throttled += throttled;
        self.throttled_run = if throttled > 0 {
            self.throttled_run + throttled
        } else {
            0
        };
        stats.longest_throttled_run = stats.longest_throttled_run.max(self.throttled_run);
        self.throttled_lately = !self.waiting.is_empty();
    }

    /// Doubles everything if the host cannot keep up: the ratio is kept exactly, and half as many timers run.
    fn guard_against_lateness(&mut self, full: u64) {
        self.late_run = if full > 1 { self.late_run + 1 } else { 0 };
        let doubled = Limit {
            quota: self.limit.quota + self.limit.quota,
            period: self.limit.period + self.limit.period,
            burst: self.limit.burst + self.limit.burst,
            ..self.limit
        };
        if self.late_run <= LATE_MAX
            || doubled.period >= Limit::PERIOD_MAX
            || doubled.validate(false).is_err()
        {
            return;
        }
        self.late_run = 0;
        self.stats.stretched += 1;
        self.limit = doubled;
    }

    /// How far a CPU's balance is filled at once.
    fn slice(&self) -> i64 {
        if self.rules.is_kernel() {
            return SLICE_MAX;
        }
        let busy = self.locals.iter().filter(|local| local.is_busy()).count();
        let share = self.runtime / (2 * i64::try_from(busy).unwrap_or(i64::MAX).max(1));
        share.clamp(SLICE_MIN, SLICE_MAX)
    }

    /// Fills a balance from the pool, up to a slice or (`least`) to barely positive. Returns whether it is positive then.
    pub(super) fn take(&mut self, local: &Local, least: bool, now: Nanos) -> bool {
        self.activate(now);
        let goal = if least { 1 } else { self.slice() };
        self.move_to(local, goal);
        if local.balance() <= 0 && !self.rules.is_kernel() && self.reclaim_idle() {
            self.move_to(local, goal);
        }
        local.balance() > 0
    }

    fn move_to(&mut self, local: &Local, goal: i64) {
        let amount = (goal - local.balance()).min(self.runtime);
        if amount > 0 {
            self.touched = true;
            self.runtime -= amount;
            self.granted += amount;
            local.pay(amount, self.period_number);
        }
    }

    /// Takes back what CPUs hold that have nothing of the group to run. Returns whether that was anything.
    pub(super) fn reclaim_idle(&mut self) -> bool {
        if self.rules.is_kernel() {
            return false;
        }
        let idle = self.locals.iter().filter(|local| !local.is_busy());
        let found: i64 = idle.map(|local| local.take_positive()).sum();
        if found > 0 {
            self.give_back(found);
        }
        found > 0
    }

    /// Pays the debts of those that wait, oldest first, as far as the pool goes. Calls `post` for each that may run.
    pub(super) fn distribute(&mut self, mut post: impl FnMut(&Local)) {
        while self.runtime > 0 {
            let Some(local) = self.waiting.front().cloned() else {
                break;
            };
            self.move_to(&local, 1);
            if local.balance() <= 0 {
                break;
            }
            self.waiting.pop_front();
            post(&local);
        }
    }

    /// Charges time that was spent outside of the run queues. The debt that this may leave is bounded by one quota or
    /// `debt_max`, whichever is more.
    pub(super) fn charge_outside(&mut self, amount: u64, debt_max: Nanos) {
        self.touched = true;
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        let least = self.quota().max(signed(debt_max)).saturating_neg();
        let left = self
            .runtime
            .saturating_sub(amount)
            .max(least.min(self.runtime));
        let taken = self.runtime - left;
        self.outside += i128::from(taken);
        self.granted += taken;
        self.runtime = left;
    }

    /// Puts a limit in force where there was none.
    pub(super) fn enable(&mut self, limit: Limit, phase: u64, now: Nanos) {
        let same_period = now.0 < self.start.saturating_add(limit.period.0) && self.granted > 0;
        let used = if same_period { self.granted } else { 0 };
        self.limit = limit;
        self.enabled = true;
        self.part = 0;
        let full = if self.parts() > 1 {
            self.share(1)
        } else {
            self.quota()
        };
        if self.rules.is_kernel() {
            self.start = now.0.saturating_sub(phase % limit.period.0);
            self.granted = 0;
            self.put(full);
            self.base = self.runtime;
        } else {
            // Lifting a limit and setting it again within one period is worth no second quota.
            self.put((full - used).max(0));
            if same_period {
                self.active = true;
            } else {
                (self.start, self.granted) = (now.0, 0);
            }
            self.base = full;
        }
        for local in self.locals.clone() {
            self.reset_local(&local);
        }
    }

    /// Starts a balance anew: with nothing, or by the kernel's rules with 1 ns.
    fn reset_local(&mut self, local: &Local) {
        let start = i64::from(self.rules.is_kernel() && self.enabled);
        let old = local.reset(start);
        self.discarded += i128::from(old);
        self.refilled += i128::from(start);
    }

    /// Ends the limit. What was granted in this period is remembered.
    pub(super) fn disable(&mut self) {
        self.enabled = false;
        self.active = false;
        self.slack_at = NEVER;
        self.discarded += i128::from(self.runtime);
        self.runtime = 0;
        for local in self.locals.clone() {
            let old = local.balance();
            self.reset_local(&local);
            self.granted -= old.max(0);
        }
    }

    /// Changes a limit in force.
    pub(super) fn change(&mut self, limit: Limit, now: Nanos) {
        if self.rules.is_kernel() {
            self.limit = limit;
            // The kernel refills at every write, and gives every CPU a fresh start: rewriting a limit mints budget.
            self.put(self.quota());
            (self.base, self.granted) = (self.runtime, 0);
            for local in self.locals.clone() {
                self.reset_local(&local);
            }
            if self.active {
                let missed = now.0.saturating_sub(self.start) / self.limit.period.0;
                self.start += missed * self.limit.period.0;
                self.period_number += missed;
            }
            return;
        }
        if self.active {
            // What was due under the old limit is still paid.
            self.run_timer(now);
        }
        let (old, old_share) = (self.limit, self.share(self.part));
        self.limit = limit;
        let parts = self.parts();
        if (old.smooth, old.period) != (limit.smooth, limit.period) {
            // How far the new parts of this period are refilled by what was refilled of the old.
            let passed = now.0.saturating_sub(self.start).min(limit.period.0 - 1);
            self.part =
                (u128::from(passed) * u128::from(parts) / u128::from(limit.period.0)) as u64;
        }
        let in_force = |share: i64, smooth: bool, quota: Nanos| {
            if smooth { share } else { signed(quota) }
        };
        let before = in_force(old_share, old.smooth, old.quota);
        let after = in_force(self.share(self.part), parts > 1, limit.quota);
        self.base += after - before;
        let kept = self.base - self.granted;
        let kept = if kept < 0 {
            self.runtime.min(0)
        } else {
            kept.min(self.cap())
        };
        let change = kept - self.runtime;
        if change > 0 {
            self.refilled += i128::from(change);
        } else {
            self.discarded -= i128::from(change);
        }
        self.runtime = kept;
    }
}
