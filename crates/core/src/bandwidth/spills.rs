//! What a full pool could not hold while polls were under way that nobody had been charged for yet.
//!
//! A poll is charged when it ends. Until then the pool looks fuller than it is, and refills that fall due meanwhile *spill* over
//! the cap, though they would have fit had the poll been charged as it went: 20 ms polls under 5 ms of 10 ms came to 40 % of a
//! CPU in place of 50 %. So spills are remembered with the time at which they fell due, and a charge that finds its CPU's
//! balance short takes back what spilt within the time that it charges: of each spill at most what the charge had used by then
//! beyond what its CPU held and beyond what it took back already. That is exactly by how much less would have spilt.
//!
//! Nothing is minted: what is taken back is discarded no more ([`super::ledger`]), each spill once, and whatever spilt before a
//! poll began stays lost, so that an idle past still pays for nothing that comes after it.

use std::collections::VecDeque;

/// Spills that are kept apart. Unit: spills. Default 16: with more refills than that within one poll the oldest are joined,
/// as if they had been even over the time from the first to the last.
const SPILLS_MAX: usize = 16;

/// Refills that fell due from `first` to `last`, and what of them did not fit, ns.
#[derive(Clone, Copy, Debug)]
struct Spill {
    first: u64,
    last: u64,
    amount: u64,
}

impl Spill {
    /// What of it fell due after `begin`.
    fn after(&self, begin: u64) -> u64 {
        if self.first > begin {
            return self.amount;
        }
        let (part, whole) = (self.last.saturating_sub(begin), self.last - self.first);
        if whole == 0 {
            return 0;
        }
        let share = u128::from(self.amount) * u128::from(part) / u128::from(whole);
        // No more than the amount.
        share as u64
    }
}

/// The spills of one pool, oldest first.
#[derive(Debug, Default)]
pub(super) struct Spills(VecDeque<Spill>);

impl Spills {
    /// Notes that `amount` of the refills from `first` to `last` did not fit.
    pub(super) fn add(&mut self, first: u64, last: u64, amount: u64) {
        if amount == 0 {
            return;
        }
        if self.0.len() == SPILLS_MAX
            && let Some(oldest) = self.0.pop_front()
            && let Some(next) = self.0.front_mut()
        {
            next.first = oldest.first;
            // Saturates beyond anything that a poll could take back.
            next.amount = next.amount.saturating_add(oldest.amount);
        }
        let first = first.min(last);
        self.0.push_back(Spill {
            first,
            last,
            amount,
        });
    }

    /// Takes out what the charge of a poll from `begin` on has a right to, which used more than the `held` ns that its CPU
    /// had, and owes `debt`.
    pub(super) fn take(&mut self, begin: u64, held: u64, debt: u64) -> u64 {
        let mut taken = 0;
        for spill in &mut self.0 {
            let used = spill.last.saturating_sub(begin).saturating_sub(held);
            let part = spill.after(begin).min(used.min(debt).saturating_sub(taken));
            spill.amount -= part;
            taken += part;
        }
        self.0.retain(|spill| spill.amount > 0);
        taken
    }
}
