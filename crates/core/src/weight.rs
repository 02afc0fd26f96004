//! Weights: what a user writes (cgroup v2 weights, nice values) and the shares that the arithmetic uses.

use crate::error::{NiceError, WeightError};

/// Shares of an idle group: what the kernel gives `cpu.idle`, less than any weight or nice value.
pub const IDLE_SHARES: u32 = 3;

/// A cgroup v2 `cpu.weight`: 1 to 10,000, default 100. Siblings get CPU time in the ratio of their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u16);

impl Weight {
    /// The smallest weight, 1.
    pub const MIN: Weight = Weight(1);
    /// The largest weight, 10,000.
    pub const MAX: Weight = Weight(10_000);
    /// The weight of a group or task that asked for none, 100.
    pub const DEFAULT: Weight = Weight(100);

    /// Checks that `weight` lies within 1 to 10,000.
    ///
    /// # Errors
    /// [`WeightError`] names the value and the range.
    pub fn new(weight: u32) -> Result<Weight, WeightError> {
        match u16::try_from(weight) {
            Ok(value) if (Self::MIN.0..=Self::MAX.0).contains(&value) => Ok(Weight(value)),
            _ => Err(WeightError { value: weight }),
        }
    }

    /// The weight as written, 1 to 10,000.
    pub const fn get(self) -> u32 {
        self.0 as u32
    }

    /// The number that [`Weight::kept`] makes the same weight of.
    #[inline]
    pub(crate) const fn kept_as(self) -> u16 {
        self.0
    }

    /// The weight of which that number was kept.
    #[inline]
    pub(crate) const fn kept(value: u16) -> Weight {
        Weight(value)
    }

    /// `round(weight * 1024 / 100)`, the kernel's conversion: 10 to 102,400.
    #[inline]
    pub const fn shares(self) -> u32 {
        (self.get() * 1024 + 50) / 100
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight::DEFAULT
    }
}

/// A nice value, -20 (heaviest) to 19 (lightest), default 0. One step is a factor of 1.25 in CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "i32", into = "i32"))]
pub struct Nice(i8);

/// Nice 0, the default.
pub(crate) const NICE_0: Nice = Nice(0);

impl Nice {
    /// Checks that `nice` lies within -20 to 19.
    ///
    /// # Errors
    /// [`NiceError`] names the value and the range.
    pub fn new(nice: i32) -> Result<Nice, NiceError> {
        match i8::try_from(nice) {
            Ok(value) if (-20..=19).contains(&value) => Ok(Nice(value)),
            _ => Err(NiceError { value: nice }),
        }
    }

    /// The nice value as written.
    pub const fn get(self) -> i32 {
        self.0 as i32
    }

    /// `round(1024 * 1.25^-nice)`: 88,818 at -20, 1,024 at 0, 15 at 19. Computed exactly, so within 0.3 % of the
    /// kernel's hand-rounded table.
    pub const fn shares(self) -> u32 {
        // 64-bit numerator and denominator: 1024 * 5^20 needs 57 bits.
        let steps = self.0.unsigned_abs() as u32;
        let (up, down) = (5u64.pow(steps), 4u64.pow(steps));
        let (numerator, denominator) = if self.0 < 0 {
            (1024 * up, down)
        } else {
            (1024 * down, up)
        };
        ((numerator + denominator / 2) / denominator) as u32
    }

    /// The weight that gives as much beside others of the same group: the nearest to `100 * 1.25^-nice`, 8,674 at -20, 100 at 0, 1 at 19.
    pub const fn weight(self) -> Weight {
        Weight(((self.shares() * 100 + 512) / 1024) as u16)
    }
}

impl TryFrom<i32> for Nice {
    type Error = NiceError;

    fn try_from(nice: i32) -> Result<Nice, NiceError> {
        Nice::new(nice)
    }
}

impl From<Nice> for i32 {
    fn from(nice: Nice) -> i32 {
        nice.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weight_range_and_shares() {
        assert_eq!(Weight::new(0), Err(WeightError { value: 0 }));
        assert_eq!(Weight::new(10_001), Err(WeightError { value: 10_001 }));
        assert_eq!(Weight::new(u32::MAX), Err(WeightError { value: u32::MAX }));
        let shares = |weight: u32| Weight::new(weight).unwrap().shares();
        assert_eq!(
            [shares(1), shares(50), shares(100), shares(10_000)],
            [10, 512, 1024, 102_400]
        );
    }

    #[test]
    fn nice_range_and_shares() {
        assert!(Nice::new(-21).is_err() && Nice::new(20).is_err());
        let shares = |nice: i32| Nice::new(nice).unwrap().shares();
        assert_eq!(
            [shares(-20), shares(0), shares(1), shares(19)],
            [88_818, 1024, 819, 15]
        );
        let weight = |nice: i32| Nice::new(nice).unwrap().weight().get();
        assert_eq!(
            [weight(-20), weight(0), weight(1), weight(19)],
            [8_674, 100, 80, 1]
        );
    }
}
