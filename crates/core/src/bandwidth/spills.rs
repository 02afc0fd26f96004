//! What a full pool could not hold while polls were under way that nobody had been charged for yet.
//!
//! A poll is charged when it ends. Until then the pool looks fuller than it is, and refills that fall due meanwhile *spill* over
//! the cap, though they would have fit had the poll been charged as it went: 20 ms polls under 5 ms of 10 ms came to 40 % of a
//! CPU in place of 50 %. So spills are remembered with the time at which they fell due, and a charge that finds its CPU's
//! balance short takes back what spilt within the time that it charges: of each spill at most what the charge had used by then
//! beyond what its CPU held and beyond what it took back already. That is exactly by how much less would have spilt. A thread beside
//! the run queues that waited for a processor is charged less than the time that it is charged for: by a spill it had used its part.
//!
//! Nothing is minted: what is taken back is discarded no more ([`super::ledger`]), each spill once, and whatever spilt before a
//! poll began stays lost, so that an idle past still pays for nothing that comes after it.

use std::collections::VecDeque;

/// Spills that are kept apart. Unit: spills. Default 16: with more refills than that within one poll the oldest are joined,
/// as if they had been even over the time from the first to the last.
pub(super) const SPILLS_MAX: usize = 16;

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

/// Time that is charged when all of it has been used.
#[derive(Clone, Copy, Debug)]
pub(super) struct LateCharge {
    /// Since when it was used, evenly.
    pub(super) begin: u64,
    /// For how long, ns; and how much of that time.
    pub(super) lasted: u64,
    pub(super) used: u64,
    /// What its CPU had for it.
    pub(super) held: u64,
    /// What is owed of it.
    pub(super) debt: u64,
}

impl LateCharge {
    /// How much of it was used up to `time`.
    fn used_by(&self, time: u64) -> u64 {
        let passed = time.saturating_sub(self.begin);
        if self.used >= self.lasted {
            return passed;
        }
        let used = u128::from(passed) * u128::from(self.used) / u128::from(self.lasted);
        // No more than what passed.
        used as u64
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

    /// Takes out what a charge has a right to.
    pub(super) fn take(&mut self, charge: &LateCharge) -> u64 {
        let &LateCharge {
            begin, held, debt, ..
        } = charge;
        let mut taken = 0;
        for spill in &mut self.0 {
            let used = charge.used_by(spill.last).saturating_sub(held);
            let due = spill.after(begin);
            let part = due.min(used.min(debt).saturating_sub(taken));
            if part > 0 && spill.first <= begin {
                // Joined ones: what is left fell due earlier, and is no other's who began then.
                let gone = u128::from(spill.last - begin) * u128::from(part) / u128::from(due);
                // No more than from its beginning on.
                spill.last -= gone as u64;
            }
            spill.amount -= part;
            taken += part;
        }
        self.0.retain(|spill| spill.amount > 0);
        taken
    }
}
