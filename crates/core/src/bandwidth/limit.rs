//! Limits: how much CPU time a group may use in each period, with the ranges that are accepted.

use crate::units::Nanos;
use core::fmt;

/// A group's limit: `quota` ns of CPU time, summed over all CPUs, in each `period`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// CPU time for each period. At least [`Limit::QUOTA_MIN`].
    pub quota: Nanos,
    /// Length of a period, [`Limit::PERIOD_MIN`] to [`Limit::PERIOD_MAX`].
    pub period: Nanos,
    /// How much unused quota of earlier periods may be carried over. Default 0. With the kernel's rules at most `quota`.
    pub burst: Nanos,
    /// Refill in small parts spread over the period rather than all at its start: shorter throttles, the same amount.
    /// Not with the kernel's rules, which refill at once.
    pub smooth: bool,
    /// A CPU that has nothing else to run may run the group's throttled tasks, which is booked as overage.
    /// Not with the kernel's rules, which know only hard limits.
    pub soft: bool,
}

impl Limit {
    /// The smallest quota, 1 ms (the kernel's).
    pub const QUOTA_MIN: Nanos = Nanos::from_millis(1);
    /// The shortest period, 1 ms (the kernel's).
    pub const PERIOD_MIN: Nanos = Nanos::from_millis(1);
    /// The longest period, 1 s (the kernel's).
    pub const PERIOD_MAX: Nanos = Nanos::from_secs(1);
    /// The period of a limit that names none, 100 ms (the kernel's).
    pub const PERIOD_DEFAULT: Nanos = Nanos::from_millis(100);
    /// The most that quota and burst may sum to, 2^44 - 1 us or about 203 days (the kernel's).
    pub const AMOUNT_MAX: Nanos = Nanos::from_micros((1 << 44) - 1);

    /// A hard limit without burst. Checked when it is set.
    pub const fn new(quota: Nanos, period: Nanos) -> Limit {
        Limit {
            quota,
            period,
            burst: Nanos::ZERO,
            smooth: false,
            soft: false,
        }
    }

    /// A limit of so many CPUs (0.5 is half of one) over [`Limit::PERIOD_DEFAULT`].
    ///
    /// # Errors
    /// [`LimitError::Text`] for what is no positive number; quotas out of range are found when the limit is set.
    pub fn cpus(cpus: f64) -> Result<Limit, LimitError> {
        if !cpus.is_finite() || cpus <= 0.0 {
            return Err(LimitError::text(
                &cpus.to_string(),
                "expected a positive number of CPUs",
            ));
        }
        // A float that is too large for the integer saturates, and is then out of range.
        let quota = (cpus * Self::PERIOD_DEFAULT.0 as f64).round() as u64;
        Ok(Limit::new(Nanos(quota), Self::PERIOD_DEFAULT))
    }

    /// The same limit with another burst.
    #[must_use]
    pub const fn with_burst(self, burst: Nanos) -> Limit {
        Limit { burst, ..self }
    }

    /// The same limit, refilled smoothly or at once.
    #[must_use]
    pub const fn with_smooth(self, smooth: bool) -> Limit {
        Limit { smooth, ..self }
    }

    /// The same limit, soft or hard.
    #[must_use]
    pub const fn with_soft(self, soft: bool) -> Limit {
        Limit { soft, ..self }
    }

    /// `floor(quota * 2^20 / period)`: what the kernel compares limits of different periods by.
    pub const fn ratio(&self) -> u64 {
        let ratio = ((self.quota.0 as u128) << 20) / self.period.0 as u128;
        if ratio > u64::MAX as u128 {
            u64::MAX
        } else {
            ratio as u64
        }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first of [`Limit::problems`].
    pub fn validate(&self, burst_up_to_quota: bool) -> Result<(), LimitError> {
        self.problems(burst_up_to_quota).next().map_or(Ok(()), Err)
    }

    /// Every field that is out of range, as a [`LimitError::OutOfRange`] with its value and the range.
    pub fn problems(&self, burst_up_to_quota: bool) -> impl Iterator<Item = LimitError> + use<> {
        let room = Self::AMOUNT_MAX - self.quota;
        let burst_max = if burst_up_to_quota {
            self.quota.min(room)
        } else {
            room
        };
        let fields = [
            ("period", self.period, Self::PERIOD_MIN, Self::PERIOD_MAX),
            ("quota", self.quota, Self::QUOTA_MIN, Self::AMOUNT_MAX),
            ("burst", self.burst, Nanos::ZERO, burst_max),
        ];
        fields.into_iter().filter_map(|(field, value, min, max)| {
            (!(min..=max).contains(&value)).then_some(LimitError::OutOfRange {
                field,
                value,
                min,
                max,
            })
        })
    }
}

impl fmt::Display for Limit {
    /// The text form of cgroup v2's `cpu.max`, in us: `50000 100000`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} {}",
            self.quota.0 / 1_000,
            self.period.0 / 1_000
        )
    }
}

/// Why a limit was refused. The old one stays in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitError {
    /// A field is outside its range.
    OutOfRange {
        /// `quota`, `period` or `burst`.
        field: &'static str,
        /// What was asked for.
        value: Nanos,
        /// The smallest accepted value.
        min: Nanos,
        /// The largest accepted value.
        max: Nanos,
    },
    /// The kernel's v1 rules: a group may not get a larger part of the CPUs than the nearest limited group above it.
    AboveParent {
        /// Path of the lower group.
        path: String,
        /// Its limit.
        limit: Limit,
        /// Path of the upper group.
        parent: String,
        /// The upper group's limit.
        parent_limit: Limit,
    },
    /// The root group cannot be limited: limit its children.
    Root,
    /// The group was removed.
    Removed {
        /// The path it had.
        path: String,
    },
    /// A text that is no limit.
    Text {
        /// The text as given, cut after [`LimitError::TEXT_SHOWN_MAX`] characters.
        text: String,
        /// What was expected.
        expected: &'static str,
    },
}

impl LimitError {
    /// How many characters of a refused text are kept.
    pub const TEXT_SHOWN_MAX: usize = 64;

    pub(crate) fn text(text: &str, expected: &'static str) -> LimitError {
        LimitError::Text {
            text: text.chars().take(Self::TEXT_SHOWN_MAX).collect(),
            expected,
        }
    }
}

impl fmt::Display for LimitError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LimitError::OutOfRange {
                field,
                value,
                min,
                max,
            } => {
                write!(formatter, "{field} of {value} is outside {min} to {max}")
            }
            LimitError::AboveParent {
                path,
                limit,
                parent,
                parent_limit,
            } => write!(
                formatter,
                "limit {limit} of group {path:?} is a larger part of the CPUs than {parent_limit} of group {parent:?} above it"
            ),
            LimitError::Root => write!(formatter, "the root group cannot be limited"),
            LimitError::Removed { path } => write!(formatter, "group {path:?} was removed"),
            LimitError::Text { text, expected } => {
                write!(formatter, "{text:?} is no limit: {expected}")
            }
        }
    }
}

impl std::error::Error for LimitError {}
