//! CPU time that is used ahead of what a limit earns: by the dead of a group, and by polls that should stand.

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
    /// The group's own limit is this from now on.
    pub(crate) fn set_limit(&self, limit: Option<Limit>) {
        let earns = |limit: Limit| {
            let (quota, period) = (limit.quota.as_nanos(), limit.period.as_nanos().max(1));
            let rate = u128::from(quota) * SECOND / u128::from(period);
            u64::try_from(rate).unwrap_or(u64::MAX).max(1)
        };
        let rate = limit.map_or(0, earns);
        self.rate.store(rate, Ordering::Relaxed);
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
