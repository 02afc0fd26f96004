//! Changes of a limit, in absolute time: what a group has used is held against everything that its limits have earned.
//!
//! # The ledger
//!
//! While a limit is in force its *rate* Q/P earns, nanosecond by nanosecond; call the sum over time and over all limits that
//! were in force `E(t)`. A refill comes at the beginning of a period (or of a part of it) and is thus granted in advance;
//! call what is granted and not yet earned `A(t)`: with a refill at once, `Q * (1 - f)` after the fraction `f` of a period.
//! Then at every moment
//!
//! ```text
//!     used + pool R + balances  ==  E(t) + A(t) - discarded              0 <= A(t) <= Q
//! ```
//!
//! since refills grant what they advance, the rest moves with what is used, and a *change* of the limit from (Q, P) to
//! (Q', P') at t moves the pool by exactly
//!
//! ```text
//!     A'(t) - A(t)  =  Q' * (1 - f')  -  Q * (1 - f)
//! ```
//!
//! the new quota for the rest of the new period in place of the old quota for the rest of the old one. The sum telescopes:
//! whatever is written, and however often, tasks begin to run only while `used < E(t) + Q`, with the quota in force at that
//! moment. So over `[0, t]` a group uses no more than the integral of the rates, plus *the largest quota that was in force*,
//! plus one poll on each CPU that was under way. Burst adds nothing to that: it is saved out of E. Divisions are rounded
//! against the group: a write costs it up to 2 ns.
//!
//! - **Lifting** is a change to a limit that grants nothing in advance: A' = 0. While there is no limit nothing is earned and
//!   nothing held against the group; what it has left, or owes, stays and is there when it is limited again. (If lifting
//!   forgave a debt, lifting and setting would be worth a quota each time.)
//! - **Phases.** Periods start at multiples of their length after an *origin*, the group's first use after an idle period.
//!   A shorter period is in force at once, and a long one that comes back finds itself as far gone as it was. Skipped
//!   periods of the new grid are nobody's and are not counted.
//! - **Debts** of any age and origin (a poll that ran too long, time spent beside the run queues, a limit that was lowered)
//!   are negative R or negative balances, and only refills pay for them. R < 0 and a positive balance do not go together:
//!   [`Pool::call_in`].
//! - **Polls under way** when a limit is set or lifted are charged with the time for which it was in force ([`super::spans`]).
//!   Nobody can stop one: what it runs on under a limit that was set meanwhile is a debt like any other.
//!
//! The kernel's rules know nothing of this: every write refills.

use super::limit::Limit;
use super::local::Local;
use super::pool::{Pool, signed};
use super::timer::NEVER;
use crate::units::Nanos;

/// To which side a division is rounded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Round {
    Down,
    Up,
}

impl Pool {
    /// A(now): what was granted in this period and is not earned yet. The pool must have followed to `now`.
    fn advance(&self, now: Nanos, round: Round) -> i64 {
        let passed = now.0.saturating_sub(self.start).min(self.limit.period.0);
        let product = u128::from(self.limit.quota.0) * u128::from(passed);
        let period = u128::from(self.limit.period.0);
        let earned = match round {
            Round::Up => product / period,
            Round::Down => product.div_ceil(period),
        };
        // No more than the quota.
        self.share(self.part) + self.share(1) - earned as i64
    }

    /// Moves the pool without a refill, up to the cap. Debts made thereby are called in. Returns what is lost.
    fn adjust(&mut self, by: i64) -> u64 {
        if by > 0 {
            self.refilled += i128::from(by);
        } else {
            self.discarded -= i128::from(by);
        }
        let lost = self.fill(by);
        self.call_in();
        lost
    }

    /// Puts another limit, or another grid of periods, in force. The pool must have followed to `now`. Returns what the cap
    /// left out.
    pub(super) fn rebase(&mut self, limit: Limit, now: Nanos) -> u64 {
        let before = (
            self.limit.quota,
            self.limit.period,
            self.parts(),
            self.start,
        );
        self.rests = false;
        let advance = self.advance(now, Round::Up);
        self.limit = limit;
        self.begin_on_grid(now);
        let after = (limit.quota, limit.period, self.parts(), self.start);
        let by = if before == after {
            0
        } else {
            self.advance(now, Round::Down) - advance
        };
        self.adjust(by)
    }

    /// Finds the period of the limit's grid that `now` is in.
    fn begin_on_grid(&mut self, now: Nanos) {
        let passed = now.0.saturating_sub(self.origin) % self.limit.period.0;
        self.start = now.0 - passed;
        self.part = self.part_at(passed);
    }

    /// Puts a limit in force where there was none.
    pub(super) fn enable(&mut self, limit: Limit, phase: u64, now: Nanos) {
        let now = self.see(now);
        self.enabled = true;
        self.rests = false;
        if self.rules.is_kernel() {
            self.limit = limit;
            self.part = 0;
            self.start = now.0.saturating_sub(phase % limit.period.0);
            self.granted = 0;
            self.put(signed(limit.quota));
            return self.reset_locals();
        }
        let resumes = self.spans.lifted_for(now.0) < limit.period.0;
        if !resumes {
            self.origin = now.0;
        }
        self.spans.begin(now.0);
        self.limit = limit;
        self.begin_on_grid(now);
        self.gather();
        self.granted = 0;
        self.adjust(self.advance(now, Round::Down));
        // Otherwise the first use begins a period.
        self.active = resumes;
    }

    /// Ends the limit. By the kernel's rules all is forgotten.
    pub(super) fn disable(&mut self, now: Nanos) {
        if self.rules.is_kernel() {
            self.enabled = false;
            self.discarded += i128::from(self.runtime);
            self.runtime = 0;
            self.reset_locals();
        } else if self.enabled {
            let now = self.follow(now);
            self.gather();
            self.adjust(-self.advance(now, Round::Up));
            self.spans.end(now.0);
            self.enabled = false;
        }
        self.active = false;
        self.slack_at = NEVER;
    }

    /// Changes a limit in force.
    pub(super) fn change(&mut self, limit: Limit, now: Nanos) {
        if self.rules.is_kernel() {
            self.limit = limit;
            // The kernel refills at every write, and gives every CPU a fresh start: rewriting a limit mints budget.
            self.put(self.quota());
            self.granted = 0;
            self.reset_locals();
            if self.active {
                let missed = now.0.saturating_sub(self.start) / self.limit.period.0;
                self.start += missed * self.limit.period.0;
                self.period_number += missed;
            }
            return;
        }
        // What was due under the old limit is still paid.
        let now = self.follow(now);
        self.granted = 0;
        self.rebase(limit, now);
    }

    /// What CPUs hold comes into the pool. What they owe stays theirs, as the next refills find it.
    fn gather(&mut self) {
        let held = self.locals.iter().map(|local| local.take_positive());
        self.runtime += held.sum::<i64>();
    }

    /// Every balance starts anew: with nothing, or while there is a limit by the kernel's rules with 1 ns.
    fn reset_locals(&mut self) {
        let start = i64::from(self.enabled);
        let reset = |local: &std::sync::Arc<Local>| i128::from(local.reset(start));
        self.discarded += self.locals.iter().map(reset).sum::<i128>();
        self.refilled += i128::from(start) * self.locals.len() as i128;
    }
}
