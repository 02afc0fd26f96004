//! Units: wall nanoseconds, CPU numbers, slices, and the wrapping virtual time in which entities are compared.

use crate::error::SliceError;
use core::fmt;

/// A time stamp or a duration in nanoseconds.
///
/// Time stamps come from the host's monotonic clock, whose zero means nothing here. Arithmetic saturates in both
/// directions: a clock that steps backwards yields a zero duration, and 584 years is the end of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Zero nanoseconds.
    pub const ZERO: Nanos = Nanos(0);
    /// The largest representable value.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// A duration of `micros` microseconds, saturating.
    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros.saturating_mul(1_000))
    }

    /// A duration of `millis` milliseconds, saturating.
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis.saturating_mul(1_000_000))
    }

    /// A duration of `secs` seconds, saturating.
    pub const fn from_secs(secs: u64) -> Nanos {
        Nanos(secs.saturating_mul(1_000_000_000))
    }

    /// The number of nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `self + other`, at most [`Nanos::MAX`].
    pub const fn saturating_add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }

    /// `self - other`, at least zero: also the time that passed between two readings of a clock.
    pub const fn saturating_sub(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(other.0))
    }
}

impl core::ops::Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        self.saturating_add(other)
    }
}

impl core::ops::Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        self.saturating_sub(other)
    }
}

impl core::ops::AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

impl core::iter::Sum for Nanos {
    fn sum<I: Iterator<Item = Nanos>>(iter: I) -> Nanos {
        iter.fold(Nanos::ZERO, Nanos::saturating_add)
    }
}

impl fmt::Display for Nanos {
    /// In the largest unit of which there is at least one, and exactly: `5 s`, `1.5 ms`, `999 us`, `0 ns`. Units are those in which limits
    /// are written.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit, digits) = match self.0 {
            1_000_000_000.. => ("s", 1_000_000_000, 9),
            1_000_000.. => ("ms", 1_000_000, 6),
            1_000.. => ("us", 1_000, 3),
            _ => ("ns", 1, 0),
        };
        write!(formatter, "{}", self.0 / unit)?;
        let rest = self.0 % unit;
        if rest > 0 {
            let fraction = format!("{rest:0digits$}");
            write!(formatter, ".{}", fraction.trim_end_matches('0'))?;
        }
        write!(formatter, " {name}")
    }
}

impl From<core::time::Duration> for Nanos {
    /// Saturates beyond 584 years.
    fn from(duration: core::time::Duration) -> Nanos {
        Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for core::time::Duration {
    fn from(nanos: Nanos) -> core::time::Duration {
        core::time::Duration::from_nanos(nanos.0)
    }
}

/// The number of a virtual CPU, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(transparent)
)]
pub struct CpuId(pub u32);

impl CpuId {
    /// The number as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CpuId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cpu{}", self.0)
    }
}

/// The length of one request of a task: how long it may run before its peers are due. 0.1 to 100 ms.
///
/// A shorter slice buys earlier deadlines (latency), never a larger share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice(u32);

impl Slice {
    /// The shortest slice, 0.1 ms (the kernel's range for custom slices).
    pub const MIN: Slice = Slice(100_000);
    /// The longest slice, 100 ms (the kernel's range for custom slices).
    pub const MAX: Slice = Slice(100_000_000);

    /// Checks that `nanos` lies within 0.1 to 100 ms.
    ///
    /// # Errors
    /// [`SliceError`] names the value and the range.
    pub fn new(nanos: Nanos) -> Result<Slice, SliceError> {
        let in_range = (u64::from(Self::MIN.0)..=u64::from(Self::MAX.0)).contains(&nanos.0);
        match u32::try_from(nanos.0) {
            Ok(value) if in_range => Ok(Slice(value)),
            _ => Err(SliceError { value: nanos }),
        }
    }

    /// The length in nanoseconds.
    pub const fn nanos(self) -> Nanos {
        Nanos(self.0 as u64)
    }

    pub(crate) const fn raw(self) -> u32 {
        self.0
    }
}

/// A point in virtual time: 1,024 units are one nanosecond of service at [`NICE_0_SHARES`] shares.
///
/// The ten fractional bits keep a 50 ns poll of the heaviest group (102,400 shares) from being charged as nothing.
/// Values wrap; they are only ever compared by signed distance, which is right as long as all values of one
/// timeline lie within 2^63 units of each other. They do: one charge adds at most `MAX_CHARGE` / 1 share = 2^62.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VirtualTime(pub(crate) u64);

impl VirtualTime {
    /// Signed distance from `origin` to `self`.
    #[inline]
    pub(crate) fn since(self, origin: VirtualTime) -> i64 {
        self.0.wrapping_sub(origin.0).cast_signed()
    }

    #[inline]
    pub(crate) fn plus(self, distance: u64) -> VirtualTime {
        VirtualTime(self.0.wrapping_add(distance))
    }

    #[inline]
    pub(crate) fn offset(self, distance: i64) -> VirtualTime {
        VirtualTime(self.0.wrapping_add_signed(distance))
    }

    #[inline]
    pub(crate) fn is_before(self, other: VirtualTime) -> bool {
        self.since(other) < 0
    }

    #[inline]
    pub(crate) fn max(self, other: VirtualTime) -> VirtualTime {
        if self.is_before(other) { other } else { self }
    }

    #[inline]
    pub(crate) fn min(self, other: VirtualTime) -> VirtualTime {
        if other.is_before(self) { other } else { self }
    }
}

/// Shares of weight 100 (nice 0), the unit in which virtual time equals wall time.
pub const NICE_0_SHARES: u32 = 1024;

/// log2 of virtual units per nanosecond at one share.
pub(crate) const VIRTUAL_SHIFT: u32 = 20;

/// The longest interval that advances virtual time at once, ns: 2^42 (73 minutes). Longer ones are counted in full
/// in the clocks but advance virtual time by this much, which keeps `delta << 20` within 62 bits.
pub(crate) const MAX_CHARGE: u64 = 1 << 42;

/// Virtual time that `delta` ns of service cost at `shares`: `delta * 2^20 / shares`, rounded down.
#[inline]
pub(crate) fn to_virtual(delta: u64, shares: u32) -> u64 {
    let bounded = delta.min(MAX_CHARGE);
    if shares == NICE_0_SHARES {
        // The common weight needs no division.
        bounded << 10
    } else {
        (bounded << VIRTUAL_SHIFT) / u64::from(shares)
    }
}

/// Service in ns that `distance` of virtual time stands for at `shares`, saturating.
#[inline]
pub(crate) fn to_service(distance: u64, shares: u64) -> u64 {
    let product = (u128::from(distance) * u128::from(shares)) >> VIRTUAL_SHIFT;
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// A lag in virtual time at `shares` as ns of service, saturating.
pub(crate) fn to_service_lag(lag: i64, shares: u32) -> i64 {
    let service =
        i64::try_from(to_service(lag.unsigned_abs(), u64::from(shares))).unwrap_or(i64::MAX);
    if lag < 0 { -service } else { service }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_range_is_checked() {
        assert!(Slice::new(Nanos(99_999)).is_err());
        assert_eq!(Slice::new(Nanos(100_000)), Ok(Slice::MIN));
        assert_eq!(Slice::new(Nanos(100_000_000)), Ok(Slice::MAX));
        assert!(Slice::new(Nanos(100_000_001)).is_err());
        assert!(Slice::new(Nanos::MAX).is_err());
    }

    #[test]
    fn virtual_time_wraps_and_compares_by_distance() {
        let late = VirtualTime(u64::MAX - 5);
        let wrapped = late.plus(10);
        assert!(late.is_before(wrapped));
        assert_eq!(wrapped.since(late), 10);
        assert_eq!(late.max(wrapped), wrapped);
    }

    #[test]
    fn the_longest_charge_of_the_lightest_weight_stays_within_half_the_circle() {
        assert!(to_virtual(u64::MAX, 1) < 1 << 63);
        assert!(to_virtual(50, 102_400) > 500);
        assert_eq!(to_service(to_virtual(1_000_000, 1024), 1024), 1_000_000);
    }
}
