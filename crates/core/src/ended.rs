//! What tasks that ended had too much or too little, which the next new ones of their group on that CPU begin with.
//!
//! A task that ends takes its lag out of the timeline, and a new one owes nothing and has an early deadline. So who ends and begins anew for each
//! bit of work would owe nothing for ever: beside such a chain a group, or a task that stays, had nothing at all. The balance waits here
//! instead, and a chain stands as one task that goes on would. A debt is a place in the timeline's virtual time: as that goes on, what the others got pays
//! for it, as it does for a sleeper's ([`crate::Config::debts_fade`]). A credit stays what it is: who is not there misses nothing.

use crate::units::VirtualTime;

/// The balance of those that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ended {
    /// They had what was due.
    #[default]
    Even,
    /// They owe until the timeline's virtual time comes there, as one of so many shares.
    Owe(VirtualTime, u32),
    /// They are owed so much, in virtual time, as one of so many shares.
    Owed(u64, u32),
}

impl Ended {
    /// A task of that weight has ended, `lag` before the timeline as it stands at `now`. Debts of all together are kept up to `debt_max`, credit up to
    /// `credit_max`, both in its virtual time.
    pub(crate) fn add(
        &mut self,
        (lag, shares): (i64, u32),
        now: VirtualTime,
        (debt_max, credit_max): (u64, u64),
    ) {
        let balance = self.balance(shares, now).saturating_add(lag);
        let least = 0_i64.saturating_sub_unsigned(debt_max);
        let most = i64::try_from(credit_max).unwrap_or(i64::MAX);
        *self = Self::of(balance.clamp(least, most), shares, now);
    }

    /// What a new task of that weight begins with of it, a lag in its own virtual time: a debt of `debt_max` at most, a credit of `credit_max`. The next one
    /// has the rest.
    pub(crate) fn take(
        &mut self,
        shares: u32,
        now: VirtualTime,
        (debt_max, credit_max): (u64, u64),
    ) -> i64 {
        let balance = self.balance(shares, now);
        let least = 0_i64.saturating_sub_unsigned(debt_max);
        let most = i64::try_from(credit_max).unwrap_or(i64::MAX);
        let taken = balance.clamp(least, most);
        *self = Self::of(balance - taken, shares, now);
        taken
    }

    /// Nobody is left to be compared with, or the timeline's virtual time is another one from now on.
    pub(crate) fn forget(&mut self) {
        *self = Self::Even;
    }

    /// The balance in the virtual time of one of so many shares.
    fn balance(self, shares: u32, now: VirtualTime) -> i64 {
        let (balance, of) = match self {
            Self::Even => return 0,
            Self::Owe(until, of) => (now.since(until).min(0), of),
            Self::Owed(credit, of) => (credit.cast_signed(), of),
        };
        let scaled = i128::from(balance) * i128::from(of) / i128::from(shares.max(1));
        scaled.clamp(i128::from(i64::MIN / 2), i128::from(i64::MAX / 2)) as i64
    }

    fn of(balance: i64, shares: u32, now: VirtualTime) -> Self {
        match balance {
            0 => Self::Even,
            1.. => Self::Owed(balance.unsigned_abs(), shares),
            _ => Self::Owe(now.plus(balance.unsigned_abs()), shares),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::NICE_0_SHARES;

    const MOST: (u64, u64) = (300, 80);
    const USUAL: u32 = NICE_0_SHARES;

    #[test]
    fn the_next_ones_begin_with_what_was_owed() {
        let mut ended = Ended::Even;
        let now = VirtualTime(1 << 40);
        assert_eq!(ended.take(USUAL, now, (50, 50)), 0);
        ended.add((-100, 2 * USUAL), now, MOST);
        assert_eq!(ended.take(USUAL, now, (50, 50)), -50);
        // Of 150 that are left 30 are paid by what the others got, and to one of half the weight the rest is twice as far.
        assert_eq!(ended.take(USUAL / 2, now.plus(30), (1_000, 1_000)), -240);
        assert_eq!(ended, Ended::Even);
        ended.add((-100, USUAL), now, MOST);
        assert_eq!(ended.take(USUAL, now.plus(101), (1_000, 1_000)), 0);
    }

    #[test]
    fn a_credit_does_not_grow() {
        let mut ended = Ended::Even;
        let now = VirtualTime(7);
        ended.add((60, USUAL), now, MOST);
        assert_eq!(ended.take(USUAL, now.plus(1_000), (0, 50)), 50);
        assert_eq!(ended.take(USUAL, now.plus(2_000), (0, 50)), 10);
        assert_eq!(ended, Ended::Even);
    }

    #[test]
    fn debts_and_credits_make_up_for_each_other_within_bounds() {
        let mut ended = Ended::Even;
        let now = VirtualTime(5);
        for _ in 0..10 {
            ended.add((-100, USUAL), now, MOST);
        }
        ended.add((90, USUAL), now, MOST);
        assert_eq!(ended.take(USUAL, now, (u64::MAX, u64::MAX)), -210);
        for _ in 0..10 {
            ended.add((100, USUAL), now, MOST);
        }
        ended.add((-30, USUAL), now, MOST);
        assert_eq!(ended.take(USUAL, now, (u64::MAX, u64::MAX)), 50);
        ended.add((-100, USUAL), now, MOST);
        ended.forget();
        assert_eq!(ended.take(USUAL, now, (300, 300)), 0);
    }
}
