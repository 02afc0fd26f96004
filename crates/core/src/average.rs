//! V, the virtual time of a timeline: the weighted mean of its entities' virtual times, kept incrementally.
//!
//! With `z` a moving zero point, `W = sum(w_i)` and `S = sum(w_i (v_i - z))`:
//!
//! ```text
//! V = z + S / W                      v_i <= V   <=>   (v_i - z) W <= S
//! ```
//!
//! so eligibility needs no division. S is 128 bits wide: |v - z| < 2^63, w <= 2^21 and fewer than 2^32 entities
//! bound it by 2^116, so nothing here can overflow.

use crate::units::VirtualTime;

/// S from which the zero point is moved, in virtual time x shares: a minute of service, a hundredth of what 64 bits hold.
const FAR: u128 = 1 << 56;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Average {
    zero: VirtualTime,
    sum: i128,
    load: u64,
}

impl Average {
    /// Sum of the shares of the entities, the current one included.
    #[inline]
    pub(crate) fn load(&self) -> u64 {
        self.load
    }

    #[inline]
    pub(crate) fn add(&mut self, v: VirtualTime, shares: u32) {
        self.sum += i128::from(v.since(self.zero)) * i128::from(shares);
        self.load += u64::from(shares);
    }

    #[inline]
    pub(crate) fn remove(&mut self, v: VirtualTime, shares: u32) {
        if self.load == u64::from(shares) {
            // V stays where it was: an empty timeline's virtual time stands still.
            self.zero = v;
            self.sum = 0;
            self.load = 0;
        } else {
            self.sum -= i128::from(v.since(self.zero)) * i128::from(shares);
            self.load -= u64::from(shares);
        }
    }

    /// An entity of `shares` moved forward by `distance`.
    #[inline]
    pub(crate) fn advance(&mut self, distance: u64, shares: u32) {
        self.sum += i128::from(distance) * i128::from(shares);
    }

    /// Whether an entity at `v` is owed service (or exactly even).
    #[inline]
    pub(crate) fn is_eligible(&self, v: VirtualTime) -> bool {
        i128::from(v.since(self.zero)) * self.signed_load() <= self.sum
    }

    /// W for a product with a signed distance: below 2^53, so that one multiplication of signed words does.
    #[inline]
    fn signed_load(&self) -> i128 {
        i128::from(self.load.cast_signed())
    }

    /// V, rounded down.
    #[inline]
    pub(crate) fn mean(&self) -> VirtualTime {
        self.mean_after(0)
    }

    /// V as it would be had some entity of the timeline received `extra` share-weighted virtual time more.
    #[inline]
    pub(crate) fn mean_after(&self, extra: i128) -> VirtualTime {
        if self.load == 0 {
            return self.zero;
        }
        let sum = self.sum + extra;
        let offset = match i64::try_from(sum) {
            // Right after the zero point was moved.
            Ok(sum) if sum.cast_unsigned() < self.load => 0,
            // 64-bit division is several times faster; the load fits since it is a sum of few large shares.
            Ok(sum) => sum.div_euclid(self.load.cast_signed()),
            Err(_) => sum.div_euclid(i128::from(self.load)) as i64,
        };
        self.zero.offset(offset)
    }

    /// Whether `point` lies beyond V as it would be after `extra`: `V < point`, without a division.
    #[inline]
    pub(crate) fn mean_is_before(&self, point: VirtualTime, extra: i128) -> bool {
        let distance = i128::from(point.since(self.zero));
        if self.load == 0 {
            return distance > 0;
        }
        // floor(S / W) < d  <=>  S < d W, for integers and W > 0.
        self.sum + extra < distance * self.signed_load()
    }

    /// Moves the zero point to V when it has fallen far behind, so that S stays in 64 bits, which divide several times faster than 128.
    /// V is the same before and after. O(1).
    #[inline]
    pub(crate) fn recentre(&mut self) {
        if self.sum.unsigned_abs() >= FAR {
            self.move_zero();
        }
    }

    #[cold]
    fn move_zero(&mut self) {
        let mean = self.mean();
        let distance = mean.since(self.zero);
        self.sum -= i128::from(distance) * self.signed_load();
        self.zero = mean;
    }

    /// S: what the checker recomputes.
    pub(crate) fn parts(&self) -> (VirtualTime, i128) {
        (self.zero, self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_is_weighted_and_survives_wrapping_and_recentring() {
        let mut average = Average::default();
        let origin = VirtualTime(u64::MAX - 100);
        average.add(origin, 1);
        average.add(origin.plus(400), 3);
        assert_eq!(average.mean(), origin.plus(300));
        assert!(average.is_eligible(origin.plus(300)) && !average.is_eligible(origin.plus(301)));
        // Rounded down: 300 up to an extra of 3, then 301.
        for (extra, mean) in [(0, 300), (3, 300), (4, 301), (-1, 299), (-1_201, -1)] {
            assert_eq!(average.mean_after(extra), origin.offset(mean), "{extra}");
            assert!(!average.mean_is_before(origin.offset(mean), extra));
            assert!(average.mean_is_before(origin.offset(mean + 1), extra));
        }
        let mut far = average;
        far.recentre();
        assert_eq!(far.parts(), average.parts(), "near enough to divide fast");
        far.advance(1 << 56, 4);
        far.recentre();
        assert_eq!(far.parts(), (origin.plus(300 + (1 << 56)), 0));
        assert_eq!(far.mean(), origin.plus(300 + (1 << 56)));
        average.move_zero();
        assert_eq!(average.mean(), origin.plus(300));
        average.remove(origin, 1);
        assert_eq!(average.mean(), origin.plus(400));
        average.remove(origin.plus(400), 3);
        assert_eq!((average.mean(), average.load()), (origin.plus(400), 0));
        assert!(average.mean_is_before(origin.plus(401), 0));
        assert!(!average.mean_is_before(origin.plus(400), 0));
    }
}
