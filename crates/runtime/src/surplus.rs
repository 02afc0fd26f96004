//! Who is woken to take part of what waits on a virtual CPU that polls something else, and how often in vain.
//!
//! A virtual CPU with more in its queue than it polls next wakes one that sleeps, which pulls half of that (`quotient_core::balance`). What waits may be nothing
//! for the sleeper: its group is out of budget there, and has some left where it waits. Then it looks and sleeps again, and whoever woke it would wake it
//! again at once. Where long polls are about, surplus is offered before anything is polled, so that nothing was: 32 long polls under a limit of 0.2 CPUs on
//! 16 virtual CPUs of two processors came to 360 turns a second between 117,000 such wakings, which took 1.6 CPUs that were nobody's.
//!
//! So a sleeper that was woken for that, came to no poll, and leaves something waiting elsewhere is not woken for it again for a while, which doubles with each
//! time in a row: from [`PAUSE_MIN`] to [`pause_max`]. One that comes to a poll, whatever woke it, begins anew.
//!
//! *No wake-up is lost*: nothing else that wakes asks for this: neither what arrives (`shared::hand_in`, `park`), nor refills, nor the watch, which looks after what
//! waits behind a long poll within 2 ms. What could come to a sleeper that is let sleep, and could not when that looked, waits for the rest of its pause.
//! The two words are hints: the sleeper's `asked` may be set as it gets up by itself, and then a look that nobody asked for counts as one in vain.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quotient_core::Nanos;

use crate::shared::Shared;

/// How long a sleeper that was woken in vain is let sleep. Unit: nanoseconds. Default 100 us: about ten wakings.
const PAUSE_MIN: Nanos = Nanos::from_micros(100);
/// The longest such pause, for each virtual CPU, and its bounds. Unit: nanoseconds. 250 us: so all of them together are woken in vain four times in 1 ms, which
/// is 0.04 CPUs; at least 1 ms and at most 4 ms, the kernel's tick.
const PAUSE_EACH: Nanos = Nanos::from_micros(250);
const PAUSE_LEAST: Nanos = Nanos::from_micros(1_000);
const PAUSE_MOST: Nanos = Nanos::from_micros(4_000);

/// The longest pause where there are so many virtual CPUs.
fn pause_max(vcpus: usize) -> Nanos {
    let vcpus = u64::try_from(vcpus).unwrap_or(u64::MAX);
    let all = Nanos(PAUSE_EACH.0.saturating_mul(vcpus));
    all.clamp(PAUSE_LEAST, PAUSE_MOST)
}

/// What others know of one virtual CPU.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// It was woken for surplus, and has neither polled nor looked in vain since.
    asked: AtomicBool,
    /// Before this it is not woken for that. Unit: nanoseconds of the scheduler's clock. One writer, the virtual CPU.
    not_before: AtomicU64,
}

/// What it knows of itself: the length of its next pause.
#[derive(Debug, Default)]
pub(crate) struct Vain(Nanos);

impl Asked {
    /// Whether it was woken for surplus since it looked last.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    fn may_be_asked(&self, now: Nanos) -> bool {
        now.as_nanos() >= self.not_before.load(Ordering::Relaxed)
    }
}

impl Vain {
    /// It has come to a poll, whoever woke it for that.
    #[inline]
    pub(crate) fn polled(&mut self, asked: &Asked) {
        if asked.is_open() || self.0 != Nanos::ZERO {
            self.0 = Nanos::ZERO;
            asked.asked.store(false, Ordering::Relaxed);
            asked.not_before.store(0, Ordering::Relaxed);
        }
    }

    /// It was woken for surplus, has polled nothing, and something waits elsewhere. Of `vcpus` virtual CPUs.
    #[cold]
    pub(crate) fn looked(&mut self, asked: &Asked, vcpus: usize, now: Nanos) {
        asked.asked.store(false, Ordering::Relaxed);
        self.0 = Nanos(self.0.0 * 2).clamp(PAUSE_MIN, pause_max(vcpus));
        let until = now.saturating_add(self.0);
        asked.not_before.store(until.as_nanos(), Ordering::Relaxed);
    }
}

impl Shared {
    /// Somebody who sleeps and may be woken for what waits at `vcpu`. O(sleepers).
    #[inline]
    pub(crate) fn sleeper_for_surplus(&self, vcpu: usize, now: Nanos) -> Option<usize> {
        if !self.idle.any() {
            return None;
        }
        let may = |sleeper: usize| self.vcpus[sleeper].surplus.may_be_asked(now);
        self.idle.find(vcpu, may)
    }

    /// Wakes such a one, if there is any.
    pub(crate) fn offer_surplus(&self, vcpu: usize, now: Nanos) -> bool {
        let Some(sleeper) = self.sleeper_for_surplus(vcpu, now) else {
            return false;
        };
        self.vcpus[sleeper]
            .surplus
            .asked
            .store(true, Ordering::Relaxed);
        self.wake_vcpu(sleeper)
    }

    /// Whether anything waits in the queue of another virtual CPU than `vcpu`.
    pub(crate) fn waits_elsewhere(&self, vcpu: usize) -> bool {
        let loads = self.loads[..self.slots_in_use()].iter();
        let mut others = loads.enumerate().filter(|(index, _)| *index != vcpu);
        others.any(|(_, load)| load.nr_queued() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_most_and_begin_anew_with_a_poll() {
        let (asked, mut vain) = (Asked::default(), Vain::default());
        let mut now = Nanos::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..6 {
            assert!(asked.may_be_asked(now));
            vain.looked(&asked, 2, now);
            let until = asked.not_before.load(Ordering::Relaxed);
            assert!(!asked.may_be_asked(Nanos(until - 1)));
            pauses.push((until - now.0) / 1_000);
            now = Nanos(until);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1_000, 1_000]);
        vain.polled(&asked);
        assert!(asked.may_be_asked(now));
        vain.looked(&asked, 2, now);
        assert!(asked.may_be_asked(Nanos(now.0 + 100_000)));
        let most = [1, 4, 8, 16, 512].map(|vcpus| pause_max(vcpus).0 / 1_000);
        assert_eq!(most, [1_000, 1_000, 2_000, 4_000, 4_000]);
    }
}
