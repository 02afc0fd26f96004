//! The weight of a group on one CPU, as pure functions of shares and loads ([`crate::GroupClock::PerCpu`]).
//!
//! | mode | weight on CPU c | sum over CPUs |
//! |---|---|---|
//! | `Up` | `shares` | `shares x CPUs` |
//! | `Smp` | `shares x load_c / load` | about `shares` (never less, but for rounding) |
//! | `Concur` | `shares x min(tasks, CPUs) x load_c / load` | about `shares x min(tasks, CPUs)` |
//!
//! `Smp` fragments: at 64 CPUs a default group weighs on each as much as a nice-19 task, so that it loses against
//! whatever sits directly beside it. `Concur` gives equal-weight tasks equal time as long as every group has at
//! least as many tasks as there are CPUs, and is the recommended mode.

/// The least weight of a group on a CPU, in shares: zero would mean starvation.
pub const SHARES_MIN: u32 = 2;

/// The most weight of a group on a CPU, in shares: the range of the kernel's v1 `cpu.shares`, 2^18, times 8 so that
/// `Concur` keeps the ratio of the heaviest weights on up to 20 CPUs.
pub const SHARES_MAX: u32 = 1 << 21;

/// How the weight of a group is divided among the CPUs on which it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightMode {
    /// The full weight on every CPU.
    Up,
    /// One weight divided among all CPUs.
    Smp,
    /// One weight for each CPU that the group's tasks could fill, divided among all CPUs.
    #[default]
    Concur,
}

/// What a group has runnable, here and everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLoad {
    /// Sum of the shares of its runnable children on this CPU.
    pub local: u64,
    /// The same over all CPUs; at least `local` is assumed.
    pub total: u64,
    /// Its runnable tasks over all CPUs.
    pub tasks: u32,
    /// CPUs of the machine.
    pub cpus: u32,
}

/// The largest weight that `mode` may give on one CPU.
pub fn mode_max(mode: WeightMode, shares: u32, load: GroupLoad) -> u32 {
    let factor = match mode {
        WeightMode::Up | WeightMode::Smp => 1,
        WeightMode::Concur => load.tasks.min(load.cpus).max(1),
    };
    let product = u64::from(shares) * u64::from(factor);
    u32::try_from(product)
        .unwrap_or(u32::MAX)
        .clamp(SHARES_MIN, SHARES_MAX)
}

/// The weight, in shares, of a group on one CPU: `clamp(max x local / total, 2, max)`, rounded up so that the sum
/// over CPUs is never below the mode's maximum. An empty group keeps the maximum. O(1).
pub fn weight(mode: WeightMode, shares: u32, load: GroupLoad) -> u32 {
    let max = mode_max(mode, shares, load);
    let total = load.total.max(load.local);
    if mode == WeightMode::Up || total == 0 {
        return max;
    }
    let part = (u128::from(max) * u128::from(load.local)).div_ceil(u128::from(total));
    u32::try_from(part).unwrap_or(max).clamp(SHARES_MIN, max)
}
