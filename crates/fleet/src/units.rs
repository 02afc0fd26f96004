//! Units: microseconds of time or of CPU time, and millionths of a processor.
//!
//! Every product goes through [`scaled`], in double precision, because the store's Lua has no other numbers: the same operations in
//! the same order give the same bits on both sides. Exact below 2^53, which is 285 years of microseconds, or 100 processors over a day.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// `floor(value * factor / divisor)` in double precision, as `math.floor(value * factor / divisor)` in Lua.
pub(crate) fn scaled(value: u64, factor: u64, divisor: u64) -> u64 {
    debug_assert!(divisor > 0, "a division by zero");
    // A float that is too large for the integer saturates.
    (value as f64 * factor as f64 / divisor as f64).floor() as u64
}

/// Microseconds: a moment, a length of time, or an amount of CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

impl Micros {
    /// Nothing.
    pub const ZERO: Micros = Micros(0);
    /// One second.
    pub const SECOND: Micros = Micros(1_000_000);

    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Micros {
        Micros(millis * 1_000)
    }

    /// So many seconds.
    pub const fn from_secs(seconds: u64) -> Micros {
        Micros(seconds * 1_000_000)
    }

    /// The difference, or zero.
    #[must_use]
    pub const fn saturating_sub(self, other: Micros) -> Micros {
        Micros(self.0.saturating_sub(other.0))
    }

    /// This much CPU time, spread over `time`: a rate, rounded down. Zero over no time.
    #[must_use]
    pub fn per(self, time: Micros) -> MicroCpus {
        if time.0 == 0 {
            return MicroCpus(0);
        }
        MicroCpus(scaled(self.0, 1_000_000, time.0))
    }
}

impl Add for Micros {
    type Output = Micros;

    /// Saturates.
    fn add(self, other: Micros) -> Micros {
        Micros(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Micros {
    fn add_assign(&mut self, other: Micros) {
        *self = *self + other;
    }
}

impl Sub for Micros {
    type Output = Micros;

    fn sub(self, other: Micros) -> Micros {
        debug_assert!(self >= other, "{other} is later than {self}");
        self.saturating_sub(other)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} us", self.0)
    }
}

/// Millionths of a processor: microseconds of CPU time in each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MicroCpus(pub u64);

impl MicroCpus {
    /// Nothing.
    pub const ZERO: MicroCpus = MicroCpus(0);

    /// So many whole processors.
    pub const fn whole(cpus: u64) -> MicroCpus {
        MicroCpus(cpus * 1_000_000)
    }

    /// So many processors, rounded; what is no positive number is zero.
    pub fn from_cpus(cpus: f64) -> MicroCpus {
        MicroCpus((cpus * 1e6).round() as u64)
    }

    /// The same in processors.
    pub fn as_cpus(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// What this rate earns in `time`, rounded down.
    #[must_use]
    pub fn over(self, time: Micros) -> Micros {
        Micros(scaled(self.0, time.0, 1_000_000))
    }
}

impl fmt::Display for MicroCpus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} CPU", self.as_cpus())
    }
}
