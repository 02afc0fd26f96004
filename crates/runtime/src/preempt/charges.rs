//! What a bearer has used, and what of that is charged.

use quotient_core::Nanos;
use quotient_pause::Processor;

use super::dozing::Awakening;
use crate::cpu_clock::OwnTime;

/// What a bearer has used, and what of that is charged.
#[derive(Debug, Default)]
pub(super) struct Charges {
    /// How things stood when it began to bear: what came before is charged otherwise.
    pub(super) parting: Parting,
    /// What of its thread's CPU time since is charged, and what of it others account for, as far as that was seen.
    pub(super) charged: Nanos,
    pub(super) theirs: Nanos,
    /// What of the charged is not paid in virtual time (`overtime`).
    pub(super) early: Nanos,
    /// Its thread's CPU time at the end.
    pub(super) total: Option<Nanos>,
    /// Both clocks when its proxy went away, and its CPU time at the last look since.
    pub(super) blocked_at: OwnTime,
    pub(super) seen_at: Nanos,
    /// Where its poll ended.
    pub(super) ended_on: Option<Processor>,
}

/// How things stood when a poll was detached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parting {
    /// Both clocks.
    pub(crate) at: OwnTime,
    /// What of the poll up to then others account for.
    pub(crate) theirs: Nanos,
    /// That was because it slept in the kernel.
    pub(crate) was_asleep: bool,
}

/// What a bearer has used since the charge before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    /// To be charged.
    pub(crate) own: Nanos,
    /// What others account for by themselves, or was charged already (`overtime`): it is paid for in virtual time, since it was had by turns.
    pub(crate) theirs: Nanos,
}

impl Charge {
    pub(crate) fn sum(self) -> Nanos {
        self.own.saturating_add(self.theirs)
    }
}

impl Charges {
    /// All up to `at`, `theirs` of it others', less what was taken before: what was taken too much is made good the next time.
    pub(super) fn take(&mut self, at: Nanos, theirs: Nanos) -> Charge {
        let theirs = theirs.saturating_sub(self.parting.theirs);
        let all = at.saturating_sub(self.parting.at.cpu);
        let own = all.saturating_sub(theirs);
        let early = std::mem::take(&mut self.early);
        let charge = Charge {
            own: own.saturating_sub(self.charged),
            theirs: theirs.saturating_sub(self.theirs).saturating_add(early),
        };
        self.charged = self.charged.max(own);
        self.theirs = self.theirs.max(theirs);
        charge
    }

    /// As [`Charges::take`], of what is its own, which the next charge has pay in virtual time.
    pub(super) fn take_early(&mut self, at: Nanos, theirs: Nanos) -> Nanos {
        let theirs = theirs.saturating_sub(self.parting.theirs);
        let all = at.saturating_sub(self.parting.at.cpu);
        let own = all.saturating_sub(theirs);
        let more = own.saturating_sub(self.charged);
        self.charged = self.charged.max(own);
        self.early = self.early.saturating_add(more);
        more
    }

    /// What was used up to `at` and is not charged.
    pub(super) fn open(&self, at: Nanos) -> Nanos {
        let all = at.saturating_sub(self.parting.at.cpu);
        all.saturating_sub(self.charged.saturating_add(self.theirs))
    }

    /// Its proxy goes away.
    pub(super) fn goes_away(&mut self, at: OwnTime) {
        self.blocked_at = at;
        self.seen_at = at.cpu;
    }

    /// A look at a bearer whose proxy is away.
    pub(super) fn look_while_away(&mut self, at: OwnTime) -> Awakening {
        let stirs = std::mem::replace(&mut self.seen_at, at.cpu) != at.cpu;
        let used = at.cpu.saturating_sub(self.blocked_at.cpu);
        let passed = at.wall.saturating_sub(self.blocked_at.wall);
        Awakening::of(used, passed, stirs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_account_for_is_charged_once() {
        let micros = Nanos::from_micros;
        let mut charges = Charges::default();
        charges.parting.at.cpu = micros(5_000);
        charges.parting.theirs = micros(300);
        let mut take = |at: u64, theirs: u64| {
            let charge = charges.take(micros(at), micros(theirs));
            (
                charge.own.as_nanos() / 1_000,
                charge.theirs.as_nanos() / 1_000,
            )
        };
        assert_eq!(take(6_000, 300), (1_000, 0));
        assert_eq!(take(8_000, 1_800), (500, 1_500));
        // They had less than it had looked like, and then more.
        assert_eq!(take(9_000, 1_300), (1_500, 0));
        assert_eq!(take(10_000, 3_300), (0, 1_500));
        assert_eq!(take(11_000, 3_300), (0, 0), "charged before");
        assert_eq!(take(12_000, 3_300), (1_000, 0));
        // What was charged before its turn is paid in virtual time with the next.
        let mut early = |at: u64| charges.take_early(micros(at), micros(3_300));
        assert_eq!(early(12_400), micros(400));
        assert_eq!(early(12_500), micros(100));
        let charge = charges.take(micros(13_000), micros(3_300));
        assert_eq!((charge.own, charge.theirs), (micros(500), micros(500)));
    }
}
