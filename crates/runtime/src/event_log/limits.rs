//! Limits and refills as events: found by comparing with what was seen last.

use quotient_core::event::{Amount, GroupId, Kind};
use quotient_core::{Limit, Nanos};

/// What was last seen of a group's limit.
#[derive(Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) limit: Option<Limit>,
    periods: u64,
    burst: Nanos,
}

/// A limit as it is from now on.
pub(super) fn limit_events(group: GroupId, limit: Option<Limit>) -> Vec<Kind> {
    let Some(limit) = limit else {
        let quota = Amount::UNLIMITED;
        return vec![Kind::SetLimit {
            group,
            quota,
            period_us: 100_000,
        }];
    };
    vec![
        Kind::SetLimit {
            group,
            quota: Amount::of_nanos(limit.quota),
            period_us: u32::try_from(limit.period.as_nanos() / 1_000).unwrap_or(u32::MAX),
        },
        Kind::SetBurst {
            group,
            burst: Amount::of_nanos(limit.burst),
        },
    ]
}

/// What the refills since the last look did.
pub(super) fn refill_events(core: &quotient_core::Group, seen: &mut Seen) -> Vec<Kind> {
    let group = GroupId(core.id());
    let stats = core.bandwidth_stats();
    let periods = stats.nr_periods.saturating_sub(seen.periods);
    let burst = stats.burst_time - seen.burst;
    (seen.periods, seen.burst) = (stats.nr_periods, stats.burst_time);
    let mut events = Vec::new();
    if burst > Nanos::ZERO {
        let used = Amount::of_nanos(burst);
        events.push(Kind::Burst { group, used });
    }
    if periods > 0 {
        let pool = core.bandwidth_account().pool;
        events.push(Kind::Refill {
            group,
            periods: u16::try_from(periods).unwrap_or(u16::MAX),
            pool: Amount::new(i64::try_from(pool).unwrap_or(i64::MAX)),
        });
    }
    events
}
