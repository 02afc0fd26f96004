//! The arithmetic of a group's pool: periods, refills and grants. No locks and no clocks. Changes of the limit are in
//! [`super::ledger`].

use super::limit::Limit;
use super::local::Local;
use super::rules::{BandwidthRules, DEBT_MAX, LATE_MAX, PART_MIN, PARTS_MAX, SLICE_MIN};
use super::spans::Spans;
use super::spills::{LateCharge, SPILLS_MAX, Spills};
use super::stats::BandwidthStats;
use super::timer::NEVER;
use crate::units::{CpuId, Nanos};
use std::collections::VecDeque;
use std::sync::Arc;

/// A group's budget and everything that changes with it, behind one lock ([`super::Bandwidth`]).
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) rules: BandwidthRules,
    /// How much a CPU takes at once, ns; by our rules at most.
    pub(super) slice_max: i64,
    /// The limit, or the last one while there is none.
    pub(super) limit: Limit,
    pub(super) enabled: bool,
    /// Whether the quota is all that the CPUs can run. Never by the kernel's rules.
    pub(super) ample: bool,
    /// R: what CPUs may still take, ns; negative is a debt of the whole group. Kept while there is no limit.
    pub(super) runtime: i64,
    /// What was taken since the last refill, less what was given back, ns.
    pub(super) granted: i64,
    /// Where the grid of periods begins: every period starts a multiple of its length after it.
    pub(super) origin: u64,
    /// When the current period began, and how many of its parts are refilled.
    pub(super) start: u64,
    pub(super) part: u64,
    /// The latest time that the pool was told.
    pub(super) seen: u64,
    /// When limits were in force.
    pub(super) spans: Spans,
    /// What refills brought that did not fit.
    pub(super) spills: Spills,
    /// Periods begun so far, to tell slices of different periods apart.
    pub(super) period_number: u64,
    /// Whether the period timer is armed.
    pub(super) active: bool,
    /// Refills change nothing until something is taken ([`Pool::rests`]).
    pub(super) rests: bool,
    /// When returned slack is given out, or [`NEVER`].
    pub(super) slack_at: u64,
    /// What the tree's timers know.
    pub(super) armed_at: u64,
    /// Something was taken, or asked for, since the last period began.
    pub(super) touched: bool,
    /// Some CPU was throttled since the last period began, or waits for longer than that refill.
    pub(super) throttled_lately: bool,
    throttled_run: u64,
    late_run: u32,
    /// CPUs that took something in the current period, and in the one before.
    takers: u32,
    takers_before: u32,
    /// CPUs that wait for budget, in the order in which they were throttled.
    pub(super) waiting: VecDeque<Arc<Local>>,
    /// Every CPU that has met the limited group.
    pub(super) locals: Vec<Arc<Local>>,
    /// Where each CPU's is among them, plus one, by the CPU's number; 0 for none. Moves ask for the balance of one CPU of many.
    places: Vec<u32>,
    pub(super) stats: BandwidthStats,
    /// What came in and what was thrown away, ns, since the first limit (conservation).
    pub(super) refilled: i128,
    pub(super) discarded: i128,
    /// What was charged without a run queue.
    pub(super) outside: i128,
}

/// How long a timer stays away whose refills would change nothing. Unit: nanoseconds. Default: 64 ms: two hundred groups of 1 ms a period whose tasks only waited, for the limit of their parent,
/// cost a quarter of a processor, which nobody paid.
const REST: Nanos = Nanos::from_millis(64);

/// ns as the signed numbers in which budget is kept; [`Limit::AMOUNT_MAX`] fits.
pub(super) fn signed(nanos: Nanos) -> i64 {
    i64::try_from(nanos.0).unwrap_or(i64::MAX)
}

impl Pool {
    pub(super) fn new(rules: BandwidthRules, slice: Nanos) -> Pool {
        Pool {
            rules,
            slice_max: signed(slice),
            limit: Limit::new(Limit::QUOTA_MIN, Limit::PERIOD_DEFAULT),
            enabled: false,
            ample: false,
            runtime: 0,
            granted: 0,
            origin: 0,
            start: 0,
            part: 0,
            seen: 0,
            spans: Spans::default(),
            spills: Spills::default(),
            period_number: 0,
            active: false,
            rests: false,
            slack_at: NEVER,
            armed_at: NEVER,
            touched: false,
            throttled_lately: false,
            throttled_run: 0,
            late_run: 0,
            takers: 0,
            takers_before: 0,
            waiting: VecDeque::new(),
            locals: Vec::new(),
            places: Vec::new(),
            stats: BandwidthStats::default(),
            refilled: 0,
            discarded: 0,
            outside: 0,
        }
    }

    /// The balance of a CPU, if it has met the group. O(1).
    pub(super) fn local_of(&self, cpu: CpuId) -> Option<&Arc<Local>> {
        let place = *self.places.get(cpu.index())?;
        self.locals.get((place as usize).checked_sub(1)?)
    }

    /// A CPU meets the group, with that balance.
    pub(super) fn meet(&mut self, local: Arc<Local>) {
        let cpu = local.cpu.index();
        if self.places.len() <= cpu {
            self.places.resize(cpu + 1, 0);
        }
        self.locals.push(local);
        self.places[cpu] = self.locals.len() as u32;
    }

    pub(super) fn quota(&self) -> i64 {
        signed(self.limit.quota)
    }

    /// The most that the pool holds: Q + B.
    pub(super) fn cap(&self) -> i64 {
        signed(self.limit.quota + self.limit.burst)
    }

    /// Whether nobody has to wait, whatever the balances: the CPUs can use no more than the quota, and nothing is owed.
    pub(super) fn suffices(&self) -> bool {
        self.ample && self.runtime >= 0
    }

    /// When the last part that was refilled was due.
    fn last_refill(&self) -> u64 {
        let span = u128::from(self.limit.period.0) * u128::from(self.part);
        let span = span.div_ceil(u128::from(self.parts()));
        // Less than the period.
        self.start.saturating_add(span as u64)
    }

    /// In how many parts a period is refilled.
    pub(super) fn parts(&self) -> u64 {
        if self.limit.smooth && !self.rules.is_kernel() {
            (self.limit.period.0 / PART_MIN).clamp(1, PARTS_MAX)
        } else {
            1
        }
    }

    /// The quota of the first `parts` of a period.
    pub(super) fn share(&self, parts: u64) -> i64 {
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
        let period = self.limit.period.0;
        let passed = now.0.saturating_sub(self.start);
        let full = passed / period;
        let part = self.part_at(passed % period);
        let credit = if self.rules.is_kernel() {
            // Once, however many periods were missed.
            if full > 0 { self.quota() } else { 0 }
        } else {
            // Saturates far beyond any cap and any debt.
            let periods = i64::try_from(full).unwrap_or(i64::MAX);
            let whole = self.quota().saturating_mul(periods);
            whole.saturating_add(self.share(part) - self.share(self.part))
        };
        self.start += full * period;
        self.part = part;
        self.period_number += full;
        if full > 0 {
            self.takers_before = if full == 1 { self.takers } else { 0 };
            self.takers = 0;
        }
        (full, credit)
    }

    /// How many parts of a period are refilled once `passed` ns of it have.
    pub(super) fn part_at(&self, passed: u64) -> u64 {
        let parts = u128::from(passed) * u128::from(self.parts()) / u128::from(self.limit.period.0);
        // No more than the number of parts.
        parts as u64
    }

    /// Lets the pool follow to `now`, whether its timer runs or not. Returns the time as the pool sees it, which never
    /// goes back. Default rules only.
    pub(super) fn follow(&mut self, now: Nanos) -> Nanos {
        let now = self.see(now);
        if self.active {
            self.run_timer(now);
        } else {
            self.elapse_and_put(now);
        }
        now
    }

    /// Lets the clock of periods follow to `now` and puts in what was due by then. Returns how many periods have ended.
    fn elapse_and_put(&mut self, now: Nanos) -> u64 {
        let first = self.next_refill();
        let (full, credit) = self.elapse(now);
        self.put_due(credit, first);
        full
    }

    /// Puts in what was due from `first` up to the last refill, and remembers what of it does not fit.
    fn put_due(&mut self, credit: i64, first: u64) {
        let spilt = self.put(credit);
        if !self.rules.is_kernel() {
            self.spills.add(first, self.last_refill(), spilt);
        }
    }

    /// The latest time told, by whoever.
    pub(super) fn see(&mut self, now: Nanos) -> Nanos {
        self.seen = self.seen.max(now.0);
        Nanos(self.seen)
    }

    /// Puts budget in, up to the cap. Returns what is lost.
    pub(super) fn put(&mut self, amount: i64) -> u64 {
        self.refilled += i128::from(amount);
        self.fill(amount)
    }

    /// Fills the pool up to the cap; what does not fit pays what CPUs owe, whether they wait or have nothing of the group to
    /// run: the group is owed no less because its debts are spread. The rest is discarded. Returns that.
    pub(super) fn fill(&mut self, amount: i64) -> u64 {
        self.pour(amount, !self.rules.is_kernel())
    }

    fn pour(&mut self, amount: i64, pays_debts: bool) -> u64 {
        let sum = self.runtime.saturating_add(amount);
        let kept = sum.min(self.cap());
        let mut rest = sum - kept;
        if pays_debts {
            for local in &self.locals {
                if rest <= 0 {
                    break;
                }
                let paid = rest.min(local.balance().min(0).saturating_neg());
                if paid > 0 {
                    local.pay(paid, self.period_number);
                    rest -= paid;
                }
            }
        }
        // Beyond the largest number nothing is counted one by one.
        let beyond = i128::from(self.runtime) + i128::from(amount) - i128::from(sum);
        self.discarded += i128::from(rest) + beyond;
        self.runtime = kept;
        rest.max(0).unsigned_abs()
    }

    /// A charge of `charged` ns up to `now` left a debt: takes back what spilt meanwhile for want of the charge.
    pub(super) fn recover(&mut self, local: &Local, charged: u64, now: Nanos) {
        if self.rules.is_kernel() || charged == 0 {
            return;
        }
        // What has been due up to now, and may spill.
        self.activate(now);
        let balance = local.balance();
        let debt = balance.min(0).unsigned_abs();
        // What the CPU held before the charge.
        let held = charged.saturating_sub(debt);
        let charge = LateCharge {
            begin: now.0.saturating_sub(charged),
            lasted: charged,
            used: charged,
            held,
            debt: debt.min(charged),
        };
        let found = self.spills.take(&charge).cast_signed();
        if found > 0 {
            self.discarded -= i128::from(found);
            local.pay(found, self.period_number);
        }
    }

    /// Budget that a CPU gives back, up to the cap; by the kernel's rules all of it, and the next refill sees to the cap.
    pub(super) fn give_back(&mut self, amount: i64) {
        if self.rules.is_kernel() {
            self.runtime = self.runtime.saturating_add(amount);
        } else {
            self.fill(amount);
        }
        self.granted -= amount;
    }

    /// Something is about to be taken, or a CPU has nothing left of the group: what was due up to `now` comes before it, as the timer would have brought it.
    pub(super) fn ends_rest(&mut self, now: Nanos) {
        if self.active && self.rests {
            let now = self.see(now);
            let full = self.spill_up_to(now);
            self.rests = false;
            if full > 0 {
                self.count_periods(full);
                self.granted = 0;
            }
        }
    }

    /// Refills into a pool that is full, as they fell due in a rest up to `now`, one by one: each spills at its time, and pays no debt, since there is none but of charges that end the rest, whose
    /// part of what spilt is found by those times ([`super::spills`]). Those before the latest are joined, as they would be by now. How many periods have ended. O([`SPILLS_MAX`]).
    fn spill_up_to(&mut self, now: Nanos) -> u64 {
        let each = self.limit.period.0.div_ceil(self.parts());
        let joined = now.0.saturating_sub(each.saturating_mul(SPILLS_MAX as u64));
        let mut full = 0;
        if self.next_refill() <= joined {
            full += self.spill(Nanos(joined));
        }
        while self.next_refill() <= now.0 {
            full += self.spill(Nanos(self.next_refill()));
        }
        full
    }

    fn spill(&mut self, now: Nanos) -> u64 {
        let first = self.next_refill();
        let (full, credit) = self.elapse(now);
        self.refilled += i128::from(credit);
        let spilt = self.pour(credit, false);
        self.spills.add(first, self.last_refill(), spilt);
        full
    }

    /// Lets the group's timer run again after it was idle.
    pub(super) fn activate(&mut self, now: Nanos) {
        self.ends_rest(now);
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
        let now = self.see(now);
        self.elapse_and_put(now);
        self.granted = 0;
        self.origin = now.0;
        let began = self.start;
        let spilt = self.rebase(self.limit, now);
        self.spills.add(began, now.0, spilt);
    }

    /// Runs the period timer. Returns whether anything was due.
    pub(super) fn run_timer(&mut self, now: Nanos) -> bool {
        if !self.active || now.0 < self.next_refill() {
            return false;
        }
        let now = self.see(now);
        let full = if self.rests {
            self.spill_up_to(now)
        } else {
            self.elapse_and_put(now)
        };
        if full == 0 {
            return true;
        }
        self.count_periods(full);
        self.granted = 0;
        // Who is busy may be in the middle of a poll that will be charged at its end.
        let busy = !self.rules.is_kernel() && self.locals.iter().any(|local| local.is_busy());
        if self.waiting.is_empty() && !self.touched && !busy {
            self.active = false;
            self.reclaim_idle();
        }
        self.rests = self.is_at_rest();
        self.touched = false;
        if self.rules.is_kernel() {
            self.guard_against_lateness(full);
        }
        true
    }

    /// Whether the period that has ended left nothing to refill: nobody has taken anything in it or waits, nobody owes, and the pool is full. (Tasks are queued, or the timer would not run: they
    /// wait for others of their parent, or for its limit.)
    fn is_at_rest(&self) -> bool {
        !self.rules.is_kernel()
            && self.active
            && !self.touched
            && self.waiting.is_empty()
            && self.runtime >= self.cap()
            && self.locals.iter().all(|local| local.balance() >= 0)
    }

    /// Whether the timer rests until something is taken, or a CPU has nothing left of the group.
    pub(super) fn rests_now(&self) -> bool {
        self.active && self.rests && !self.touched && self.waiting.is_empty()
    }

    /// When the timer has to run: at the next refill, or [`REST`] after the last one.
    pub(super) fn timer_at(&self) -> u64 {
        let next = self.next_refill();
        match self.rests_now() {
            true => next.max(self.start.saturating_add(REST.0)),
            false => next,
        }
    }

    fn count_periods(&mut self, full: u64) {
        let stats = &mut self.stats;
        stats.nr_periods += full;
        // Debts and what smooth parts left over are no burst.
        let excess = (self.granted - signed(self.limit.quota)).min(signed(self.limit.burst));
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
        // Whoever goes on waiting once this refill is paid out is counted in the next period as well (`note_throttled`).
        self.throttled_lately = false;
    }

    /// Call once all is paid out that can be: who waits then is throttled in the current period, in which it may yet be let go.
    pub(super) fn note_throttled(&mut self) {
        self.throttled_lately |= !self.waiting.is_empty();
    }

    /// Doubles everything if the host cannot keep up: the ratio is kept exactly, and half as many timers run. The kernel's
    /// way. By default one late timer refills for all the time that has passed, and nobody's limit is rewritten.
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

    /// How far a CPU's balance is filled at once: the pool is shared among twice as many as took something in this period
    /// or the last one. O(1).
    fn slice(&self) -> i64 {
        if self.rules.is_kernel() {
            return self.slice_max;
        }
        let share = self.runtime / (2 * i64::from(self.takers.max(self.takers_before).max(1)));
        share.clamp(SLICE_MIN.min(self.slice_max), self.slice_max)
    }

    /// Fills a balance from the pool, up to a slice or (`least`) to barely positive. Returns whether it is positive then.
    pub(super) fn take(&mut self, local: &Local, least: bool, now: Nanos) -> bool {
        self.activate(now);
        let kernel = self.rules.is_kernel();
        if !kernel && local.begin_period(self.period_number) {
            self.takers += 1;
        }
        let goal = if least { 1 } else { self.slice() };
        self.move_to(local, goal);
        if local.balance() <= 0 && !kernel && self.reclaim_idle() {
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

    /// Charges time that no balance was charged. What the pool does not hold is a debt, up to [`DEBT_MAX`]; the caller calls it in.
    pub(super) fn charge_outside(&mut self, amount: u64) {
        self.touched = true;
        let amount = i64::try_from(amount).unwrap_or(i64::MAX);
        let left = self.runtime.saturating_sub(amount);
        let left = left.max(self.runtime.min(-DEBT_MAX));
        let taken = self.runtime - left;
        self.outside += i128::from(taken);
        // A debt is not taken from anything.
        self.granted += taken.min(self.runtime.max(0));
        self.runtime = left;
    }

    /// The pool was charged `charged` ns of the last `lasted` up to `now`, for all of which a thread wanted to run: takes back what
    /// spilt meanwhile for want of the charge.
    pub(super) fn recover_outside(&mut self, charged: u64, lasted: u64, now: Nanos, active: bool) {
        if self.rules.is_kernel() {
            return;
        }
        let (since, debt) = if active {
            (lasted, charged)
        } else {
            // Charged as it went, use after an idle time would have begun a period: so many have ended since.
            let periods = lasted / self.limit.period.0;
            let most = periods.saturating_mul(self.quota().unsigned_abs());
            (periods * self.limit.period.0, most.min(charged))
        };
        // The pool itself would have paid, so there would have been room from the first moment.
        let found = self.spills.take(&LateCharge {
            begin: now.0.saturating_sub(since),
            lasted,
            used: charged,
            held: 0,
            debt,
        });
        let found = found.cast_signed();
        if found > 0 {
            self.discarded -= i128::from(found);
            self.fill(found);
        }
    }

    /// A pool that owes takes what CPUs hold, of those first that have nothing of the group to run: no CPU runs on while
    /// the group is in debt. O(CPUs that met the group), nothing without a debt.
    pub(super) fn call_in(&mut self) {
        if self.rules.is_kernel() {
            return;
        }
        for busy in [false, true] {
            for local in &self.locals {
                if self.runtime >= 0 {
                    return;
                }
                if local.is_busy() == busy {
                    let found = local.take_at_most(self.runtime.saturating_neg());
                    // Not given back but used, so that it stays granted.
                    self.runtime += found;
                }
            }
        }
    }
}
