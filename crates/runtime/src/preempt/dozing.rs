//! Bearers that compute in bursts and sleep in between, as all do that read files or talk to sockets: they hold no virtual CPU.
//!
//! # Why
//! A bearer that sleeps in its turn leaves a processor idle until somebody looks, while others stand; and one that computes a little between
//! two looks was not found at all: eight functions that computed for 60 us and slept for 800, one after the other, had a
//! virtual CPU each for turns of 4 ms, of which they used a fourteenth, and since they are charged what they use policy gave them the next turn,
//! too. An equal group that computed beside them had 0.17 CPUs, and 1.5 idled; alone they got a quarter as far as in tokio.
//!
//! Functions and jobs begin so (`uncharged`), and those of them that only wait for something never have a turn.
//!
//! # States of a bearer whose proxy is away
//! It may run, and competes for nothing (see `turns`). At each look of the watch (at [`AWAY_LOOKS`] of them in turn, and at those that are [`YOUNG`]), from what it has *used* since it went
//! away, and how much time has *passed* by then:
//! | used | it | its proxy |
//! |---|---|---|
//! | less than 50 us | sleeps | stays away |
//! | half of what has passed | computes | comes back and competes, and has turns as any |
//! | less than that, and less than [`DOZE_MAX`] | dozes | stays away; comes back if it *is kept short*: its group or payer has a limit, is frozen inside, or it stands |
//! | [`DOZE_MAX`], or [`OWING_MAX`] has passed | dozes if it sleeps at that moment, else computes | comes back, to pay |
//!
//! *Who has a limit stands from the moment it is found awake*, without waiting for the tick thread to queue its proxy: of 200 that woke at once in a group of 5 %
//! each had one burst after another, since the tick thread had no processor, either. Its proxy is marked before, so it comes back (`turns`).
//!
//! (On a busy machine one that computes has less than half of the time, and is found not to sleep.)
//! *Who dozes comes back to pay, and not for a turn.* (D1) The watch, under its lock, marks it so, and then that its proxy is to come back; (D2) the
//! tick thread, under the same lock, finds that and queues the proxy; (D3) whoever picks the proxy takes the mark, charges the bearer,
//! and puts the proxy away again, without having chosen the bearer: nobody is stopped for it. When that comes is policy's choice, by what its group is owed.
//! Until then the bearer may go on, for another [`DOZE_MAX`]: then the watch stops it, as whoever is nobody's choice, until D3.
//! So in a group that is ahead of its share it stands in the end as all others do.
//!
//! # Nobody stands for ever
//! D3 lets the bearer run as it puts the proxy away, whoever has forbidden it. A proxy that waits in the queue is picked or, in a group that is
//! frozen inside, killed, or without budget, treated as any: these questions come before the mark, and where it is kept short the mark counts for nothing.
//! One that a kill or its payer has put away stopped comes back at the first look that finds the scheduler closing, since by short turns alone a
//! hundred of them took 3 s to end; it is put away stopped no more then. If who puts it away finds the scheduler open, the look comes later.
//! An end of what it bears finds the proxy wherever it is (E1 of the parent module).
//!
//! # How much that lets through
//! Limits: as before, since whoever is under one is kept short: 50 us, and what it uses until the next look. Weights: twice [`DOZE_MAX`] a bearer, and a look, owed to its
//! group's account and paid at D3 or at its end.
//!
//! # Nothing to look at
//! While all bearers are away and none uses any time, the watch looks less and less often, [`QUIET_PERIOD`] at last, or
//! [`QUIET_PERIOD_KEPT_SHORT`], until a virtual CPU or the tick thread wakes: then somebody may wait for what these use. Until it looks a bearer that wakes in an
//! idle process uses as much as it likes, and is charged it afterwards.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quotient_core::Nanos;

use super::Preempting;
use super::carrier::Carrier;
use super::watch::WatchState;
use crate::shared::{OPEN, Shared};

/// What a bearer uses between two payments at most while it dozes, and once more until it is stopped for one. Unit: nanoseconds. 1 ms: with 50 us, what
/// tells a bearer that wakes from one that sleeps on, each burst cost two hand-overs.
const DOZE_MAX: Nanos = Nanos::from_millis(1);
/// For how long it owes what it has used, if that is less. Unit: nanoseconds. 100 ms: its group's clock is that late at most.
const OWING_MAX: Nanos = Nanos::from_millis(100);
/// A blocked bearer that has used this much CPU time is awake. Unit: nanoseconds.
const AWAKE_AFTER: Nanos = Nanos(50_000);
/// How many of those whose proxies are away are looked at in one look, for each millisecond between two. Unit: bearers. A system call of some 250 ns each:
/// below 2 % of a processor, however many are blocked.
const AWAY_LOOKS: usize = 64;
/// The age at which each is looked at, however many are away: one that computes since it began ahead of its first turn (`uncharged`) is found
/// a look after the first millisecond. Unit: nanoseconds.
const YOUNG: Range<Nanos> = Nanos::from_millis(1)..Nanos::from_millis(3);
/// How long the watch pauses at most while it knows only bearers that sleep. Unit: milliseconds, a power of two. 64: looks once a millisecond cost 1.6 % of
/// a processor in an idle process, these are not to be seen; and nobody waits.
const QUIET_PERIOD: u32 = 64;
/// The same if one of them is kept short. Unit: milliseconds, a power of two. 8: as long as two turns, which is what a bearer then has beyond its limit.
const QUIET_PERIOD_KEPT_SHORT: u32 = 8;

/// How the watch finds a bearer whose proxy is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awakening {
    /// It has used nothing since the last look.
    Sleeps,
    /// Next to nothing since it went away.
    Stirs,
    Dozes,
    /// It dozes, and has used what it may before it pays, or for long.
    Owes,
    Computes,
}

impl Awakening {
    /// One that has `used` so much since it went away, and something since the last look if it `stirs`.
    pub(super) fn of(used: Nanos, passed: Nanos, stirs: bool) -> Self {
        if used < AWAKE_AFTER {
            return if stirs { Self::Stirs } else { Self::Sleeps };
        }
        if used.as_nanos() >= passed.as_nanos() / 2 {
            Self::Computes
        } else if used >= DOZE_MAX || passed >= OWING_MAX {
            Self::Owes
        } else if stirs {
            Self::Dozes
        } else {
            Self::Sleeps
        }
    }
}

/// What a look at those whose proxies are away has found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Away {
    /// One of them comes back.
    pub(super) returns: bool,
    /// All bearers are away, and none was found to have used anything.
    pub(super) all_sleep: bool,
    /// One of them is kept short.
    pub(super) any_short: bool,
}

/// How long the watch pauses before its next look if it has found nothing but sleepers for `looks` more looks than it takes to believe that; `short`, if
/// one of them is kept so.
pub(super) fn quiet_period(looks: u32, short: bool) -> Duration {
    let most = match short {
        true => QUIET_PERIOD_KEPT_SHORT,
        false => QUIET_PERIOD,
    };
    let millis = 1_u32.checked_shl(looks.saturating_add(1));
    Duration::from_millis(u64::from(millis.unwrap_or(most).min(most)))
}

impl Preempting {
    /// D1 for one that returns. Under a limit it stops at once: the tick thread waits for a processor like any, behind as many as woke.
    fn comes_back(&self, shared: &Shared, bearer: &Carrier) {
        bearer.is_to_return();
        // Not once the scheduler has closed: it may be free already. If this finds it open, it is set free later, under the watch's lock.
        let is_limited = bearer.group().is_some_and(|group| group.is_limited());
        if is_limited && shared.phase() == OPEN && bearer.forbid_returning(&self.log) {
            self.counters.pauses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl WatchState {
    /// Looks at those whose proxies are away, a bounded number in turn, `pause` after the last look.
    pub(super) fn look_at_away(
        &mut self,
        (shared, preempting): (&Shared, &Preempting),
        now: Nanos,
        pause: Duration,
    ) -> Away {
        let millis = usize::try_from(pause.as_millis()).unwrap_or(usize::MAX);
        let most = AWAY_LOOKS.saturating_mul(millis.max(1));
        let (count, from) = (self.bearers.len(), self.away_from);
        let (mut looked, mut next) = (0, None);
        let mut away = Away {
            all_sleep: true,
            ..Away::default()
        };
        for step in 0..count {
            let index = (from + step) % count;
            let bearer = &self.bearers[index];
            if !bearer.is_away() {
                away.all_sleep = false;
                continue;
            }
            // The others are seen to by the next looks, before this one's finding is believed.
            if looked >= most && !bearer.is_young(now) {
                next.get_or_insert(index);
                continue;
            }
            looked += 1;
            let (returns, sleeps) = bearer.look_while_away(shared, now);
            if returns {
                preempting.comes_back(shared, bearer);
            }
            away.returns |= returns;
            away.all_sleep &= sleeps;
            away.any_short |= bearer.is_kept_short(shared);
        }
        self.away_from = next.unwrap_or(from);
        away
    }
}

impl Carrier {
    /// Whether it began so lately that nobody may have looked yet what it does.
    fn is_young(&self, now: Nanos) -> bool {
        YOUNG.contains(&now.saturating_sub(self.began()))
    }

    /// The watch, of one whose proxy is away: whether that is to be brought back, and whether it sleeps.
    fn look_while_away(&self, shared: &Shared, now: Nanos) -> (bool, bool) {
        if shared.phase() != OPEN && !self.is_allowed() {
            // A kill or its payer has stopped it, and neither outlives the scheduler: it gets on by turns from here on, as any.
            return (true, false);
        }
        let Some(cpu) = self.cpu_time() else {
            return (false, true);
        };
        let awakening = self.looks_away(cpu, now);
        let returns = match awakening {
            Awakening::Sleeps | Awakening::Stirs => false,
            Awakening::Computes => true,
            Awakening::Dozes => self.is_kept_short(shared),
            Awakening::Owes => {
                // D1.
                let asleep = self.handle.is_asleep() == Some(true);
                self.dozes(asleep && !self.is_kept_short(shared));
                true
            }
        };
        (returns, awakening == Awakening::Sleeps && self.is_allowed())
    }

    /// Whether it may use little at a time without a turn.
    fn is_kept_short(&self, shared: &Shared) -> bool {
        let group = self.group();
        let payer = || self.others().with_payer(|payer, _| payer.is_limited());
        !self.is_allowed()
            || shared.phase() != OPEN
            || group.is_none_or(|group| group.is_limited() || group.is_held_inside())
            || payer().unwrap_or(false)
    }

    /// D3: its proxy was picked, and it is not one that a kill or a payer stops. Whether it only pays.
    pub(crate) fn only_pays(&self, shared: &Shared) -> bool {
        if !self.takes_doze() || self.is_finished() {
            return false;
        }
        let group = self.group();
        shared.phase() == OPEN
            && !self.has_limited_payer()
            && group.is_some_and(|group| !group.is_limited() && !group.is_held_inside())
    }

    /// The watch, of one that is nobody's choice: whether it may go on until it has paid.
    pub(super) fn may_pay_later(&self) -> bool {
        self.is_dozing() && self.uncharged() < Nanos(2 * DOZE_MAX.as_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_between_sleeps_are_not_taken_for_work_without_end() {
        let micros = Nanos::from_micros;
        let of = |used, passed| Awakening::of(micros(used), micros(passed), true);
        assert_eq!(of(49, 60), Awakening::Stirs);
        assert_eq!(of(60, 100), Awakening::Computes);
        assert_eq!(of(60, 860), Awakening::Dozes);
        assert_eq!(of(999, 14_000), Awakening::Dozes);
        assert_eq!(of(1_000, 14_000), Awakening::Owes);
        assert_eq!(of(7_000, 14_000), Awakening::Computes);
        assert_eq!(of(60, 100_000), Awakening::Owes, "its clock waits");
        let still = |used| Awakening::of(micros(used), micros(14_000), false);
        assert_eq!(still(0), Awakening::Sleeps);
        assert_eq!(still(60), Awakening::Sleeps);
        assert_eq!(still(1_000), Awakening::Owes, "it is to pay all the same");
    }

    #[test]
    fn the_watch_looks_at_sleepers_ever_more_seldom() {
        let short = |looks| quiet_period(looks, true).as_millis();
        assert_eq!([0, 1, 2, 3].map(short), [2, 4, 8, 8]);
        let long = |looks| quiet_period(looks, false).as_millis();
        assert_eq!([0, 3, 5, 6].map(long), [2, 16, 64, 64]);
        assert_eq!([30, 31, u32::MAX].map(long), [64; 3]);
    }
}
