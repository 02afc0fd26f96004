//! How often a process looks at its groups: the background task's rule, which the simulation follows too.
//!
//! | the process | its tick is |
//! |---|---|
//! | somebody uses all that it may, or waits to ask | [`Pulse::Quick`] |
//! | all keep within what they have | [`Pulse::Calm`] |
//! | all rest, or want little and keep within it | [`Pulse::Idle`] |
//!
//! A throttle is told, and the tick comes at once, [`WOKEN_MIN`] after the last one at the earliest: so no burst waits for a long tick. What a
//! tick sees that no throttle tells is that somebody needs less, which matters where it holds much.
//!
//! In a tick a group that has demand, a lease or a question open is looked at when it is due ([`next_look`]), or was throttled; one that rests
//! when it was throttled, or used more than it rests with.

use crate::holder::{Allowance, Holder};
use crate::units::Micros;

/// Period of the local limits that stand for leases. Unit: microseconds. Default: 50 ms; longer for rates below 0.02 CPU, since a quota is 1 ms
/// at least.
pub(crate) const PERIOD: Micros = Micros::from_millis(50);

/// And of those that stand for floors. Unit: microseconds. Default: 1 s.
pub(crate) const FLOOR_PERIOD: Micros = Micros::SECOND;

/// How often in a lease a tenant with demand is looked at: for one of 1 s every 50 ms, the period of its limit.
const LOOKS: u64 = 20;

/// And one that is calm, which keeps within its lease: who no longer does is throttled, and that is told.
const CALM_LOOKS: u64 = 5;

/// The shortest and the longest time between two looks; the shortest is the task's own.
pub(crate) const LOOK_MIN: Micros = Micros::from_millis(25);
const LOOK_MAX: Micros = Micros::from_millis(250);

/// The shortest time from a tick to one that a throttle asks for.
///
/// Unit: microseconds. Default: 10 ms: bursts of 1 s among ten simulated processes lose 2 % of their quota when it is 20, and a tick costs some
/// 100 us of processor.
pub(crate) const WOKEN_MIN: Micros = Micros::from_millis(10);

/// Who uses all of its lease but one part in so many, or less, keeps within it.
const CALM_PARTS: u64 = 4;

/// How soon the next tick is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Somebody uses all that it may, or waits to ask.
    Quick,
    /// All keep within what they have.
    Calm,
    /// And want little, or rest, if there are any.
    Idle,
}

/// A tick costs some 100 us of processor, most of it the system's.
const IDLE_PAUSE: Micros = Micros::from_millis(250);

impl Pulse {
    /// How long until the next tick: 25 ms; 50; and when the first look is due, but no more than 250 ms.
    pub(crate) fn pause(self, now: Micros, look_at: Micros) -> Micros {
        let calm = Micros::from_millis(50);
        match self {
            Pulse::Quick => LOOK_MIN,
            Pulse::Calm => calm,
            Pulse::Idle => look_at.saturating_sub(now).max(calm).min(IDLE_PAUSE),
        }
    }
}

/// Whether who used so much in the time since its last look keeps within what it may use.
pub(crate) fn keeps_within(allowance: Allowance, used: Micros, passed: Micros) -> bool {
    match allowance {
        Allowance::Unlimited => true,
        Allowance::Lease(rate) => used.0 <= rate.over(passed).0 / CALM_PARTS * (CALM_PARTS - 1),
        // Without a lease it may need one. That it used nothing says nothing: it may be throttled, which is counted when the throttle ends.
        Allowance::Floor(_) => false,
    }
}

/// When who was looked at now is due again.
pub(crate) fn next_look(holder: &Holder, now: Micros, is_calm: bool) -> Micros {
    let lease = holder.limit().map_or(Micros::SECOND, |limit| limit.lease);
    let looks = if is_calm { CALM_LOOKS } else { LOOKS };
    let mut next = now + Micros(lease.0 / looks).max(LOOK_MIN).min(LOOK_MAX);
    if is_calm && holder.wants_little() {
        // Nothing is lost before it is to ask.
        next = holder.next_ask(now).map_or(next, |asks| asks.max(next));
    }
    // Beyond the end of the lease, and of what was to be used until then, the limit in force says too much; beyond that of the rest of a floor
    // too little.
    let ends = [holder.spread_until(), holder.ends(), holder.rest_until()];
    ends.into_iter()
        .filter(|ends| *ends > now)
        .fold(next, Micros::min)
}

/// Whether a tick at `now` is the one in which a look that is due at `look_at` is made: the nearest.
pub(crate) fn is_due(now: Micros, look_at: Micros) -> bool {
    now + Micros(LOOK_MIN.0 / 2) >= look_at
}

/// What a group was throttled for, a throttle under way included. Schedulers count a throttle when it ends, on a floor after a second; until then
/// who needs more than it may use would look as if it needed nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throttled {
    counted: Micros,
    /// Since when a throttle is under way: when it was first seen, so that never more is said than will be counted.
    since: Option<Micros>,
}

/// For how long a throttle under way is believed. Local limits have periods of a second at most; debts may take several.
///
/// Unit: microseconds. Default: 10 s.
const THROTTLE_MAX: Micros = Micros::from_secs(10);

impl Throttled {
    pub(crate) fn new(counted: Micros) -> Throttled {
        Throttled {
            counted,
            since: None,
        }
    }

    /// Takes in what was counted up to `now`, and whether a throttle is under way; returns the time of both. O(1).
    pub(crate) fn read(&mut self, now: Micros, counted: Micros, is_throttled: bool) -> Micros {
        if counted != self.counted || !is_throttled {
            self.since = None;
        }
        self.counted = counted;
        if !is_throttled {
            return counted;
        }
        let since = *self.since.get_or_insert(now);
        counted + now.saturating_sub(since).min(THROTTLE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_under_way_counts_as_it_passes_and_once() {
        let millis = Micros::from_millis;
        let mut throttled = Throttled::new(millis(7));
        assert_eq!(throttled.read(millis(100), millis(7), false), millis(7));
        assert_eq!(throttled.read(millis(200), millis(7), true), millis(7));
        assert_eq!(throttled.read(millis(900), millis(7), true), millis(707));
        // It had begun before it was seen; another one is under way.
        assert_eq!(
            throttled.read(millis(1_000), millis(857), true),
            millis(857)
        );
        assert_eq!(
            throttled.read(millis(1_100), millis(857), true),
            millis(957)
        );
        assert_eq!(
            throttled.read(millis(1_200), millis(1_057), false),
            millis(1_057)
        );
        // One that does not end is no demand for ever.
        assert_eq!(
            throttled.read(millis(1_300), millis(1_057), true),
            millis(1_057)
        );
        let late = throttled.read(millis(900_000), millis(1_057), true);
        assert_eq!(late, millis(1_057) + THROTTLE_MAX);
    }
}
