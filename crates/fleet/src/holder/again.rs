//! A group that was removed and made again under its path: to the store it is the same.
//!
//! # Its floor
//! A group begins with a whole period of its local limit: on a floor, all that the floor earns in a second. One that is removed
//! and made again twenty times a second would so have twenty floors. So in its first second it has, in all, what its predecessor left of the floor;
//! what that second earns is there in the next. A lease needs no such rule: what its first period gives is less than what is held, from which it is
//! taken.
//!
//! A local limit says 1 ms at least, so each begins with that much. What it uses beyond its floor is owed.

use super::{FLOOR_SAVED, Holder};
use crate::units::{MicroCpus, Micros};

impl Holder {
    /// The group was removed, and another one made under its path, with these figures so far: it goes on where the first was last observed. An
    /// answer that is awaited counts as before. O(1).
    pub fn resume(mut self, now: Micros, cpu: Micros, throttled: Micros) -> Holder {
        self.pass(now);
        (self.observed_cpu, self.observed_throttled) = (cpu, throttled);
        self.rest_of_floor = self.floor_credit.per(FLOOR_SAVED);
        self.rest_until = now + FLOOR_SAVED;
        self
    }

    /// Time passed without a group.
    pub(crate) fn pass(&mut self, now: Micros) {
        self.observe(now, self.observed_cpu, self.observed_throttled);
    }

    /// The floor that the group has: the whole one, but for one that was just made again.
    pub(super) fn floor_in_force(&self, now: Micros) -> MicroCpus {
        let floor = self.floor(now);
        if now < self.rest_until {
            return floor.min(self.rest_of_floor);
        }
        floor
    }

    /// Until when the rest of a floor is in force; in the past if the whole one is.
    pub(crate) fn rest_until(&self) -> Micros {
        self.rest_until
    }
}
