//! The two sets of rules, and every constant of bandwidth control.

use crate::units::Nanos;

/// Whether a group may be promised more than the group above it can give.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RatioRule {
    /// cgroup v1: such a limit is refused.
    V1,
    /// cgroup v2: accepted; each level simply enforces its own.
    #[default]
    V2,
}

/// What bandwidth control promises. Fixed for a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BandwidthRules {
    /// No throttle while the pool or an idle CPU's balance holds budget; rewriting a limit mints nothing; a quota of all
    /// CPUs never throttles; any burst; smooth and soft limits.
    #[default]
    Default,
    /// CFS bandwidth control as in Linux, faults included, for comparison and simulation.
    Kernel {
        /// cgroup v1 refuses limits that a group above cannot keep.
        ratio: RatioRule,
        /// The fault of 2014 to 2019: what a CPU has left of its slice is lost at the end of the period.
        slice_expiry: bool,
    },
}

impl BandwidthRules {
    /// Linux as of v5.4, cgroup v2: no expiry of slices.
    pub const KERNEL: BandwidthRules = BandwidthRules::Kernel {
        ratio: RatioRule::V2,
        slice_expiry: false,
    };

    pub(crate) const fn is_kernel(self) -> bool {
        matches!(self, BandwidthRules::Kernel { .. })
    }

    pub(crate) const fn expires_slices(self) -> bool {
        matches!(
            self,
            BandwidthRules::Kernel {
                slice_expiry: true,
                ..
            }
        )
    }
}

/// The least that a CPU asks for, ns. Default rules only, where slices shrink with the pool so that little is left on CPUs
/// that stop running the group: 50 us, one publication, or [`crate::Config::bandwidth_slice`] if that is less.
pub(crate) const SLICE_MIN: i64 = 50_000;

/// What a CPU keeps when it stops running the group, ns: 1 ms. Kernel only.
pub(crate) const KEPT: i64 = 1_000_000;

/// How long returned slack is collected before it is given out, ns: 5 ms. Kernel only; by default at once.
pub(crate) const SLACK_DELAY: u64 = 5_000_000;

/// Slack is not given out when a refill is nearer than this, ns: 2 ms. Kernel only.
pub(crate) const SLACK_MARGIN: u64 = 2_000_000;

/// In how many parts a period is refilled smoothly at most, and how short a part may be, ns.
pub(crate) const PARTS_MAX: u64 = 64;
pub(crate) const PART_MIN: u64 = 1_000_000;

/// How often in a row a timer may come a whole period late before period, quota and burst are doubled. Kernel only. (There
/// it is how often one callback may find that another period has passed.)
pub(crate) const LATE_MAX: u32 = 3;

/// How far tasks that defer a throttle may run into debt on one CPU, ns: 10 ms, but never more than one quota, so that
/// each CPU's debt is paid by the next refills.
pub(crate) const OVERDRAFT_MAX: Nanos = Nanos::from_millis(10);

/// The most that a pool owes, ns: 2^60 (36 years), so that nothing overflows. What is charged beyond is in no account.
pub(crate) const DEBT_MAX: i64 = 1 << 60;

/// The longest time that one charge takes off a balance, ns: 2^42 (73 minutes), so that nothing overflows.
pub(crate) const CHARGE_MAX: u64 = 1 << 42;
