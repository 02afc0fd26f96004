//! V of the children of one group, and how far it is from their mean.

use crate::units::VirtualTime;

/// The clock of a group's children.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    pub(super) now: VirtualTime,
    /// W, in shares.
    pub(super) weight: u64,
    /// D, in virtual time x shares.
    pub(super) deficit: i128,
    /// How often CPUs came to change it; begins anew after 2^64.
    pub(super) writes: u64,
    /// Service that children got who owed as they were chosen, ns, as far as no sibling's credit was cut for it yet.
    pub(super) surplus: u64,
}

impl Clock {
    /// Children received service, `total` in virtual time x shares.
    pub(super) fn serve(&mut self, total: i128) {
        self.deficit -= total;
        self.step((total / 2).max(-self.deficit));
    }

    /// Keeps V from being before the mean.
    pub(super) fn settle(&mut self) {
        self.step(-self.deficit);
    }

    fn step(&mut self, least: i128) {
        if self.weight == 0 {
            self.deficit = 0;
            return;
        }
        if least <= 0 {
            return;
        }
        let weight = i128::from(self.weight);
        let distance = match u64::try_from(least) {
            // 64-bit division is several times faster.
            Ok(least) => least.div_ceil(self.weight),
            Err(_) => u64::try_from((least + weight - 1) / weight).unwrap_or(u64::MAX >> 2),
        };
        self.now = self.now.plus(distance);
        self.deficit += i128::from(distance) * weight;
    }
}
