//! CPU time that is used ahead of what a limit earns: by the dead of a group, and by polls that should stand.
//!
//! What is owed is kept as the time at which the limit will have earned it. So a change of the limit reckons that time anew: what is owed stays
//! owed, and is earned at the new rate. (A group whose limit was raised from 1 % to 100 % used to be in debt for as long as the old one said.)
//! Without a limit nothing is owed. The two words are not changed in one step: what is added or read beside a change is reckoned by
//! either limit, for once.

use std::sync::atomic::{AtomicU64, Ordering};

use quotient_core::{Limit, Nanos};

/// Nanoseconds in a second.
const SECOND: u128 = 1_000_000_000;

/// What one purpose has of one group's limit. No lock, so for the watch too.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// What the limit earns in a second. Unit: nanoseconds of CPU time; 0 without a limit.
    rate: AtomicU64,
    /// When the limit will have earned what was used, on the scheduler's clock. Unit: nanoseconds.
    until: AtomicU64,
}

impl Ahead {
    /// The group's own limit is this from `now` on.
    pub(crate) fn set_limit(&self, limit: Option<Limit>, now: Nanos) {
        let earns = |limit: Limit| {
            let (quota, period) = (limit.quota.as_nanos(), limit.period.as_nanos().max(1));
            let rate = u128::from(quota) * SECOND / u128::from(period);
            u64::try_from(rate).unwrap_or(u64::MAX).max(1)
        };
        let rate = limit.map_or(0, earns);
        let before = self.rate.swap(rate, Ordering::Relaxed);
        if before == rate {
            return;
        }
        let anew = |until: u64| {
            let open = u128::from(Nanos(until).saturating_sub(now).as_nanos());
            let owed = open * u128::from(before);
            let earned_in = owed.checked_div(u128::from(rate)).unwrap_or(0);
            let earned_in = Nanos(u64::try_from(earned_in).unwrap_or(u64::MAX));
            Some(now.saturating_add(earned_in).as_nanos())
        };
        // It cannot fail: the closure always gives a value.
        let _ = self
            .until
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, anew);
    }

    /// Whether the group itself has a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate.load(Ordering::Relaxed) != 0
    }

    /// What the limit earns in a second; nothing without one.
    pub(crate) fn earns_in_a_second(&self) -> Nanos {
        Nanos(self.rate.load(Ordering::Relaxed))
    }

    /// `time` was used up to `now`.
    pub(crate) fn add(&self, time: Nanos, now: Nanos) {
        let earned_in = self.earned_in(time);
        if earned_in == Nanos::ZERO {
            return;
        }
        let later = |until: u64| {
            let until = Nanos(until).max(now).saturating_add(earned_in);
            Some(until.as_nanos())
        };
        // It cannot fail: the closure always gives a value.
        let _ = self
            .until
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }

    /// What was used and is not earned by `now`; nothing without a limit.
    pub(crate) fn at(&self, now: Nanos) -> Nanos {
        let until = Nanos(self.until.load(Ordering::Relaxed));
        let open = u128::from(until.saturating_sub(now).as_nanos());
        let ahead = open * u128::from(self.rate.load(Ordering::Relaxed)) / SECOND;
        Nanos(u64::try_from(ahead).unwrap_or(u64::MAX))
    }

    /// In how much time the limit earns `time`; nothing without a limit.
    pub(crate) fn earned_in(&self, time: Nanos) -> Nanos {
        let rate = u128::from(self.rate.load(Ordering::Relaxed));
        if rate == 0 {
            return Nanos::ZERO;
        }
        let earned_in = u128::from(time.as_nanos()) * SECOND / rate;
        Nanos(u64::try_from(earned_in).unwrap_or(u64::MAX))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const HUNDRED_MS: Nanos = Nanos::from_millis(100);

    fn limit(quota: u64) -> Option<Limit> {
        Some(Limit::new(Nanos::from_millis(quota), HUNDRED_MS))
    }

    #[test]
    fn a_limit_that_is_raised_leaves_a_debt_for_as_long_as_before() {
        let millis = Nanos::from_millis;
        let ahead = Ahead::default();
        ahead.set_limit(limit(1), millis(0));
        ahead.add(millis(100), millis(0));
        assert_eq!(ahead.at(millis(1_000)), millis(90));
        // What is owed stays the same, and 100 % earn it in 90 ms.
        ahead.set_limit(limit(100), millis(1_000));
        assert_eq!(ahead.at(millis(1_000)), millis(90));
        assert_eq!(ahead.at(millis(1_060)), millis(30));
        ahead.set_limit(limit(10), millis(1_060));
        assert_eq!(ahead.at(millis(1_160)), millis(20), "lowered");
        // The same limit again.
        ahead.set_limit(limit(10), millis(1_160));
        assert_eq!(ahead.at(millis(1_160)), millis(20));
        // Lifted, and set again: nothing is left.
        ahead.set_limit(None, millis(1_160));
        ahead.add(millis(100), millis(1_160));
        assert_eq!(ahead.at(millis(1_160)), Nanos::ZERO);
        ahead.set_limit(limit(1), millis(1_170));
        assert_eq!(ahead.at(millis(1_170)), Nanos::ZERO);
    }
}
