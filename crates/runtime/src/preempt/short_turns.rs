//! Short turns of bearers that stand, whatever policy says, since they may hold a lock: aging, of one at a time, and rescue, of all. Why, and what they
//! may cost, stands in the parent module (*Locks held by paused threads*).

use std::sync::atomic::Ordering;
use std::time::Duration;

use quotient_core::Nanos;
use quotient_core::event::{RescueReason, ResumeReason};

use super::Preempting;
use super::carrier::Carrier;
use super::heartbeat::GRAVE;
use super::watch::WatchState;

/// How often one stopped poll gets a short turn, whatever policy says. Unit: nanoseconds.
const AGING_INTERVAL: Nanos = Nanos::from_micros(20_000);
/// How often all may. Unit: nanoseconds.
const RESCUE_INTERVAL: Nanos = Nanos::from_micros(4_000);
/// Aging costs one in so many parts of a processor at most, rescue one in fewer.
const AGING_PART: u64 = 100;
const RESCUE_PART: u64 = 20;
/// Length of such a turn. Unit: time.
const BURST: Duration = Duration::from_micros(200);
/// How long those who have used less may go on: on a busy machine a thread of low priority waits for its processor. Unit: nanoseconds.
const BURST_MAX: Nanos = Nanos::from_micros(10_000);

/// Looks without progress after which a virtual CPU is rescued, and after which even the frozen have part in that. Unit: looks.
pub(super) const STALLED_LOOKS: u32 = 2;
const GRAVE_LOOKS: u32 = 250;

/// A short turn of some that stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    of: Whose,
    /// When it began.
    began: Nanos,
}

/// Whose turn that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// Of all: something does not get on.
    All,
    /// Of one that others may wait for in the kernel.
    Awaited,
    /// Of one.
    One,
}

impl WatchState {
    /// Who has the next short turn alone, if it is time for one. Round robin, and more often among those that others may wait for.
    fn next_to_age(&mut self, now: Nanos) -> Option<(Whose, usize)> {
        let bearers = self.bearers.len();
        let next = |last: usize, may: &dyn Fn(&Carrier) -> bool| {
            let mut next = (1..=bearers).map(|step| (last + step) % bearers);
            next.find(|index| {
                let bearer = &self.bearers[*index];
                bearer.may_have_short_turns(false) && may(bearer)
            })
        };
        if now >= self.age_from {
            let next = next(self.cursor, &|_| true)?;
            self.cursor = next;
            return Some((Whose::One, next));
        }
        if now < self.hasten_from {
            return None;
        }
        let waiting = if self.elsewhere.others_wait() {
            Waiters::Various
        } else {
            let waiting = self.bearers.iter();
            let waiting = waiting.filter(|bearer| bearer.waits_in_the_kernel());
            Waiters::of(waiting.map(|bearer| bearer.tenant()))
        };
        let next = next(self.hastened, &|bearer| waiting.is_beyond(bearer.tenant()))?;
        self.hastened = next;
        Some((Whose::Awaited, next))
    }
}

impl Preempting {
    /// What does not get on, if a rescue is allowed and called for, and whether that is so for so long that nobody is left out.
    fn wants_rescue(
        &self,
        state: &mut WatchState,
        stalled: u32,
        now: Nanos,
    ) -> Option<(RescueReason, bool)> {
        if now < state.rescue_from {
            return None;
        }
        if stalled >= STALLED_LOOKS {
            let starved = now.saturating_sub(state.starved) < GRAVE;
            let grave = stalled >= GRAVE_LOOKS && !starved;
            return Some((RescueReason::Stall, grave));
        }
        let starved = state.starved;
        let questions = self.heartbeat.open();
        let [host, looker] = &mut state.patience;
        let looker_is_kept = || self.heartbeat.looker_is_kept();
        let missed = [
            host.is_over(questions[0], || false, starved, now),
            looker.is_over(questions[1], looker_is_kept, starved, now),
        ];
        let missed = missed.into_iter().flatten();
        missed
            .max_by_key(|missed| missed.grave)
            .map(|missed| (RescueReason::Heartbeat, missed.grave))
    }

    /// Aging and rescue.
    pub(super) fn let_some_run(&self, state: &mut WatchState, stalled: u32, now: Nanos) {
        let rescue = self.wants_rescue(state, stalled, now);
        let whose = if let Some((reason, grave)) = rescue {
            let mut waiting = state.bearers.iter();
            if !waiting.any(|bearer| bearer.may_have_short_turns(grave)) {
                return;
            }
            let counter = match reason {
                RescueReason::Stall => &self.counters.rescues,
                RescueReason::Heartbeat => &self.counters.missed_beats,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            self.log.rescue(reason);
            for bearer in &state.bearers {
                if bearer.may_have_short_turns(grave) {
                    bearer.burst(&self.log, ResumeReason::Rescue);
                }
            }
            Whose::All
        } else {
            let Some((whose, next)) = state.next_to_age(now) else {
                return;
            };
            self.counters.aged.fetch_add(1, Ordering::Relaxed);
            state.bearers[next].burst(&self.log, ResumeReason::Aging);
            whose
        };
        state.burst = Some(Burst {
            of: whose,
            began: now,
        });
        std::thread::sleep(BURST);
        // Whoever has not got its processor meanwhile has until a later look.
        self.end_burst(state, now);
    }

    /// Ends the short turn in progress if it was long enough. Whether none is in progress now.
    pub(super) fn end_burst(&self, state: &mut WatchState, now: Nanos) -> bool {
        let Some(burst) = state.burst else {
            return true;
        };
        let turns = state.bearers.iter().map(|bearer| bearer.short_turn_used());
        let used = turns.fold(Nanos::ZERO, Nanos::saturating_add);
        let enough = Nanos(u64::try_from(BURST.as_nanos() / 2).unwrap_or(0));
        if used < enough && now.saturating_sub(burst.began) < BURST_MAX {
            return false;
        }
        state.burst = None;
        for bearer in &state.bearers {
            bearer.end_short_turn();
            self.enforce(bearer, now);
        }
        // It may have been longer than was meant: what it has cost says when the next may be. Each of the two has a budget of its own: where
        // a rescue put off aging by a hundred times of what all had used together, locks that only polls wait for were held for seconds.
        let pause = |least: Nanos, part: u64| now.saturating_add(least.max(Nanos(used.0 * part)));
        let often = pause(RESCUE_INTERVAL, RESCUE_PART);
        match burst.of {
            Whose::All => state.rescue_from = often,
            Whose::Awaited => state.hasten_from = often,
            Whose::One => {
                state.hasten_from = often;
                state.age_from = pause(AGING_INTERVAL, AGING_PART);
            }
        }
        true
    }
}

/// Who waits in the kernel, perhaps for the lock of one that stands: by the limits that hold for them, the topmost ones. What waits under the
/// same limit as who stands is no reason to let that one run beyond it: a tenant could have five times its limit of 1 % by tasks that
/// want a lock of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiters {
    Nobody,
    /// All of them under this limit.
    Under(usize),
    /// Some without a limit, under different ones, or of another scheduler.
    Various,
}

impl Waiters {
    fn of(tenants: impl Iterator<Item = Option<usize>>) -> Self {
        tenants.fold(Self::Nobody, |known, tenant| match (known, tenant) {
            (Self::Nobody, Some(limit)) => Self::Under(limit),
            (Self::Under(before), Some(limit)) if before == limit => known,
            _ => Self::Various,
        })
    }

    /// Whether one of them is not under the limit of one that stands.
    fn is_beyond(self, stands: Option<usize>) -> bool {
        match self {
            Self::Nobody => false,
            Self::Under(limit) => stands != Some(limit),
            Self::Various => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenants_own_locks_let_it_run_beyond_its_limit() {
        let waiters = |tenants: &[Option<usize>]| Waiters::of(tenants.iter().copied());
        assert!(!waiters(&[]).is_beyond(None));
        // Where there is no limit nothing is exceeded.
        assert!(waiters(&[None]).is_beyond(None));
        let own = waiters(&[Some(1), Some(1)]);
        assert!(!own.is_beyond(Some(1)), "its own");
        assert!(own.is_beyond(Some(2)) && own.is_beyond(None));
        for others in [[Some(1), Some(2)], [Some(1), None], [None, Some(1)]] {
            assert!(waiters(&others).is_beyond(Some(1)), "{others:?}");
        }
    }
}
