//! How often a process looks at its groups: the background task's rule, which the simulation follows too.
//!
//! | the process | its tick is |
//! |---|---|
//! | somebody uses all that it may, or waits to ask | [`Pulse::Quick`] |
//! | all keep within what they have, or rest | [`Pulse::Calm`] |
//! | all have rested for [`IDLE_AFTER`] | [`Pulse::Idle`] |
//!
//! In a tick a group that has demand, a lease or a question open is looked at when it is due ([`next_look`]), or was throttled; one that rests
//! when it was throttled, or used more than it rests with.

use crate::holder::{Allowance, Holder};
use crate::units::Micros;

/// How long all must have rested before ticks are long: bursts come in rows, and one that is seen a quarter of a second late wastes
/// what others do not use.
///
/// Unit: microseconds. Default: 15 s: longer than the pauses between bursts, a quarter of the round in which all are looked at.
pub(crate) const IDLE_AFTER: Micros = Micros::from_secs(15);

/// How often in a lease a tenant with demand is looked at: for one of 1 s every 50 ms, the period of its limit.
const LOOKS: u64 = 20;

/// And one that is calm, which keeps within its lease: who no longer does is throttled, and that is told.
const CALM_LOOKS: u64 = 5;

/// The shortest and the longest time between two looks; the shortest is the task's own.
pub(crate) const LOOK_MIN: Micros = Micros::from_millis(25);
const LOOK_MAX: Micros = Micros::from_millis(250);

/// Who uses all of its lease but one part in so many, or less, keeps within it.
const CALM_PARTS: u64 = 4;

/// How soon the next tick is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Somebody uses all that it may, or waits to ask.
    Quick,
    /// All keep within what they have, or have rested for less than [`IDLE_AFTER`].
    Calm,
    /// All rest, if there are any, and have for long.
    Idle,
}

impl Pulse {
    /// 25 ms; 50; 250 for a process all of whose groups rest: a tick costs it some 100 us of processor, most of it the system's.
    pub(crate) const fn pause(self) -> Micros {
        match self {
            Pulse::Quick => LOOK_MIN,
            Pulse::Calm => Micros::from_millis(50),
            Pulse::Idle => Micros::from_millis(250),
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
    let next = now + Micros(lease.0 / looks).max(LOOK_MIN).min(LOOK_MAX);
    // Beyond the end of the lease, and of what was to be used until then, the limit in force says too much.
    let ends = [holder.spread_until(), holder.ends()];
    ends.into_iter()
        .filter(|ends| *ends > now)
        .fold(next, Micros::min)
}

/// Whether a tick at `now` is the one in which a look that is due at `look_at` is made: the nearest.
pub(crate) fn is_due(now: Micros, look_at: Micros) -> bool {
    now + Micros(LOOK_MIN.0 / 2) >= look_at
}
