//! What a tenant may use in the whole fleet: the limit, its ranges, and why one is refused.

use core::fmt;

use crate::units::{MicroCpus, Micros};

/// A tenant's limit in the fleet. It lives in the store; every process remembers the newest version that it has seen, so that a store
/// that lost it gets it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetLimit {
    /// Which of two limits is newer: the store's time in us when it was set, or one more than the last version.
    pub version: u64,
    /// CPU time a second for all processes together; `None` is an explicit "no limit".
    pub quota: Option<MicroCpus>,
    /// How much unused quota may be saved up, CPU time. Default 0.
    pub burst: Micros,
    /// For how many processes a floor is reserved: each has `quota / 20 / processes` while the store is away. Default
    /// [`FleetLimit::PROCESSES_DEFAULT`].
    pub processes: u32,
    /// How much pool and leases may hold beside the burst, as the time in which the quota earns it: the "one lease" of the bound. What is granted
    /// lasts five eighths of it, and processes ask every three. Default: 1 s for each thousand processes begun.
    pub lease: Micros,
}

/// How long what is granted of a limit with this [`FleetLimit::lease`] lasts.
pub(crate) const fn lasts(lease: Micros) -> Micros {
    Micros(lease.0 / 8 * 5)
}

impl FleetLimit {
    /// The smallest quota: a thousandth of a processor, the smallest that a local limit can express (1 ms in 1 s).
    pub const QUOTA_MIN: MicroCpus = MicroCpus(1_000);
    /// The largest quota, 10,000 processors: larger products are not exact in the store's numbers.
    pub const QUOTA_MAX: MicroCpus = MicroCpus::whole(10_000);
    /// The largest burst, an hour of CPU time.
    pub const BURST_MAX: Micros = Micros::from_secs(3_600);
    /// The most processes that floors are reserved for.
    pub const PROCESSES_MAX: u32 = 100_000;
    /// For how many processes floors are reserved unless the limit says.
    pub const PROCESSES_DEFAULT: u32 = 100;
    /// The shortest lease. Below it a round trip to a store in another zone is no longer short.
    pub const LEASE_MIN: Micros = Micros::from_millis(100);
    /// The longest lease.
    pub const LEASE_MAX: Micros = Micros::from_secs(120);
    /// All floors together are the quota divided by this: 5 %.
    pub const FLOORS_DIVISOR: u64 = 20;

    /// A limit of so much CPU time a second, version zero, without burst, for [`FleetLimit::PROCESSES_DEFAULT`] processes.
    pub const fn new(quota: MicroCpus) -> FleetLimit {
        FleetLimit {
            version: 0,
            quota: Some(quota),
            burst: Micros::ZERO,
            processes: Self::PROCESSES_DEFAULT,
            lease: Micros::SECOND,
        }
    }

    /// The same limit with another burst.
    #[must_use]
    pub const fn with_burst(self, burst: Micros) -> FleetLimit {
        FleetLimit { burst, ..self }
    }

    /// The same limit for so many processes, with the lease that keeps the store at some 3,000 calls a second for this tenant while its
    /// demand is steady.
    #[must_use]
    pub fn with_processes(self, processes: u32) -> FleetLimit {
        let lease = Micros::from_secs(u64::from(processes.div_ceil(1_000)).clamp(1, 120));
        FleetLimit {
            processes,
            lease,
            ..self
        }
    }

    /// The same limit with another lease.
    #[must_use]
    pub const fn with_lease(self, lease: Micros) -> FleetLimit {
        FleetLimit { lease, ..self }
    }

    /// The same limit with another version.
    #[must_use]
    pub const fn with_version(self, version: u64) -> FleetLimit {
        FleetLimit { version, ..self }
    }

    /// The floor of one process; zero without a quota.
    pub fn floor(&self) -> MicroCpus {
        let quota = self.quota.unwrap_or_default();
        MicroCpus(quota.0 / Self::FLOORS_DIVISOR / u64::from(self.processes.max(1)))
    }

    /// What pool and leases may hold together: the burst, and what the quota earns in [`FleetLimit::lease`].
    pub fn capacity(&self) -> Micros {
        self.burst + self.quota.unwrap_or_default().over(self.lease)
    }

    /// How long a lease lasts, and over how much time a process spreads what it holds: five eighths of [`FleetLimit::lease`]. It asks again
    /// after three, so that what is held and what comes in meanwhile fit into the capacity together, and an answer may be late by two.
    pub fn spread(&self) -> Micros {
        lasts(self.lease)
    }

    /// After how much of [`FleetLimit::lease`] a process asks again: three eighths.
    pub fn renewal(&self) -> Micros {
        Micros(self.lease.0 / 8 * 3)
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// [`FleetLimitError`] names the first field out of range, its value and the range.
    pub fn validate(&self) -> Result<(), FleetLimitError> {
        let quota = self.quota.unwrap_or(Self::QUOTA_MIN);
        let fields = [
            ("quota", quota.0, Self::QUOTA_MIN.0, Self::QUOTA_MAX.0),
            ("burst", self.burst.0, 0, Self::BURST_MAX.0),
            (
                "processes",
                u64::from(self.processes),
                1,
                u64::from(Self::PROCESSES_MAX),
            ),
            ("lease", self.lease.0, Self::LEASE_MIN.0, Self::LEASE_MAX.0),
        ];
        for (field, value, min, max) in fields {
            if !(min..=max).contains(&value) {
                return Err(FleetLimitError {
                    field,
                    value,
                    min,
                    max,
                });
            }
        }
        Ok(())
    }
}

/// A field of a [`FleetLimit`] is outside its range; quotas in millionths of a CPU, times in us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetLimitError {
    /// `quota`, `burst`, `processes` or `lease`.
    pub field: &'static str,
    /// What was asked for.
    pub value: u64,
    /// The smallest accepted value.
    pub min: u64,
    /// The largest accepted value.
    pub max: u64,
}

impl fmt::Display for FleetLimitError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FleetLimitError {
            field,
            value,
            min,
            max,
        } = self;
        let unit = match *field {
            "quota" => " millionths of a CPU",
            "processes" => "",
            _ => " us",
        };
        write!(
            formatter,
            "{field} of {value}{unit} is outside {min} to {max}"
        )
    }
}

impl std::error::Error for FleetLimitError {}
