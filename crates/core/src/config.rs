//! What can be chosen when a scheduler is built, with units, defaults and where the defaults come from.

use crate::bandwidth::BandwidthRules;
use crate::error::ConfigError;
use crate::group_weight::WeightMode;
use crate::units::{Nanos, Slice};

/// How the next entity of a timeline is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Earliest eligible virtual deadline first: lag decides who may run, the deadline decides who does.
    #[default]
    Eevdf,
    /// The older rule: smallest virtual runtime first, sleepers get a credit.
    Cfs,
}

/// How a group that runs on several CPUs is kept to its weight across all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupClock {
    /// One virtual time for the group on all CPUs, each of which gives it its full weight from there.
    #[default]
    Foreign,
    /// Every CPU gives the group a part of its weight, from what is runnable there and everywhere now.
    PerCpu(WeightMode),
    /// As [`GroupClock::PerCpu`], from load averages (what the kernel does). While they are switched off
    /// ([`crate::Gates::load_averages`]), from what is runnable.
    Averaged(WeightMode),
}

/// Settings of a scheduler. All CPUs of one [`crate::GroupTree`] share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How the next entity is chosen. Default EEVDF.
    pub policy: Policy,
    /// Request length of an entity that asked for none. Default 0.7 ms x (1 + floor(log2(min(cpus, 8)))), the
    /// kernel's rule: 0.7 ms on one CPU, 1.4 ms on two, 2.8 ms from eight.
    pub base_slice: Nanos,
    /// Width of the buckets in which deadlines are kept; FIFO inside a bucket, and an entity counts as eligible as
    /// soon as its bucket has begun. Zero is exact order and the default; about 50 us makes a switch O(1) and was
    /// measured better for request latency. Rounded down to a power of two (in 1/1024 ns).
    pub quantum: Nanos,
    /// How far (in the wakee's virtual time) a buddy or a woken task may be preferred over the rightful next.
    /// Default 1 ms x the factor of `base_slice`.
    pub wakeup_granularity: Nanos,
    /// Whether the task woken last by a peer runs next. Default true.
    pub next_buddy: bool,
    /// CFS only: whether a task that was preempted by a wake-up goes on before its other peers. (Under EEVDF it is near enough to its turn
    /// nearly always, and had the CPU back at once: three that compute left one that sleeps for microseconds 0.008 CPUs of 0.25. The
    /// kernel dropped it with CFS.) Default true.
    pub last_buddy: bool,
    /// Whether the current entity keeps the CPU until its deadline or the shortest waiting slice. Default true.
    pub run_to_parity: bool,
    /// EEVDF only: what parity protects. If true, an entity that had its timeline alone is protected from when another one comes, and who has
    /// had more than is due is protected from those who were moved here, and beside groups. If not, it is as in the kernel: from when it was
    /// chosen, only as long as it is eligible, and a wake-up interrupts only for who woke. Either way who wakes and is due
    /// does not wait for one that is ahead. Default true: who computes alone is interrupted by a first arrival that is owed nothing after
    /// a slice at the earliest, and the balancer's moves cut no turns short.
    pub parity_from_arrival: bool,
    /// Number of CPUs, each with one [`crate::RunQueue`]: those that compute at the same time. Others may come now and then, with numbers
    /// beyond; nothing is laid out for them. Default 1.
    pub cpus: u32,
    /// What a sleeper may keep of service that it is owed, beyond its own slice. Default 4 ms (a tick at HZ=250). Tasks beside child groups keep up to
    /// `debt_limit`: they are owed nothing for sleep, only for what they missed as they waited.
    pub lag_limit: Nanos,
    /// What a task may owe within its group at most when it leaves a CPU, and a limited group for time outside of all run
    /// queues. Default 100 ms for every 32 CPUs that are begun, at most 10 s: beyond it, long polls would build debts that
    /// starve a task later. What a group owes its siblings is not bounded; it decays as they are served.
    pub debt_limit: Nanos,
    /// EEVDF only: whether what a task owes within its group as it falls asleep fades while others catch up, so that it comes back
    /// where it left or at V, whichever is later: sleeping neither mints credit nor keeps a debt that was paid. So does the kernel since
    /// 6.12, which leaves such a task queued until it would be due and forgets its lag then (delayed dequeue). On another CPU than it
    /// left, and while load averages are on, a task owes what it owed. Default true.
    pub debts_fade: bool,
    /// EEVDF only: whether a task that is moved to another CPU or group takes the rest of its request along, so that its deadline is as far
    /// from its virtual time as before. So does the kernel since 6.12. If not, each move begins a new request: a task that others
    /// keep moving has a later deadline each time. Default true.
    pub moves_keep_requests: bool,
    /// CFS only: how far before its peers a sleeper is placed at most. Default 3 ms (half the old latency).
    pub sleeper_credit: Nanos,
    /// CFS only: nobody is preempted by the tick earlier than this. Default 0.75 ms x the factor of `base_slice`.
    pub min_granularity: Nanos,
    /// CFS only: the period in which everyone should run once. Default 6 ms x the factor of `base_slice`.
    pub latency: Nanos,
    /// How groups are kept to their weights across CPUs. Default [`GroupClock::Foreign`].
    pub group_clock: GroupClock,
    /// How long service may stay uncharged to the groups, and, for each CPU that a group is on (up to 32), unknown to other
    /// CPUs: bounds the staleness of clocks and of groups' times. Default 50 us.
    pub publish_interval: Nanos,
    /// What bandwidth control promises. Default [`BandwidthRules::Default`].
    pub bandwidth: BandwidthRules,
    /// How much of a limit a CPU takes from its group at once, at most by our rules: the kernel's `sched_cfs_bandwidth_slice_us`. 1 us
    /// to 1 s, default 5 ms.
    pub bandwidth_slice: Nanos,
}

impl Config {
    /// The largest accepted number of CPUs.
    pub const CPUS_MAX: u32 = 4096;

    /// Defaults for `cpus` CPUs.
    pub fn new(cpus: u32) -> Config {
        let factor = 1 + u64::from(cpus.clamp(1, 8).ilog2());
        Config {
            policy: Policy::Eevdf,
            base_slice: Nanos(700_000 * factor),
            quantum: Nanos::ZERO,
            wakeup_granularity: Nanos(1_000_000 * factor),
            next_buddy: true,
            last_buddy: true,
            run_to_parity: true,
            parity_from_arrival: true,
            cpus,
            lag_limit: Nanos::from_millis(4),
            debt_limit: Nanos::from_millis(100 * u64::from(cpus.div_ceil(32).clamp(1, 100))),
            debts_fade: true,
            moves_keep_requests: true,
            sleeper_credit: Nanos::from_millis(3),
            min_granularity: Nanos(750_000 * factor),
            latency: Nanos::from_millis(6 * factor),
            group_clock: GroupClock::Foreign,
            publish_interval: Nanos::from_micros(50),
            bandwidth: BandwidthRules::Default,
            bandwidth_slice: Nanos::from_millis(5),
        }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// [`ConfigError`] names the first field that is out of range, its value and the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let slices = (Slice::MIN.nanos().0, Slice::MAX.nanos().0);
        let second = Nanos::from_secs(1).0;
        let fields = [
            ("cpus", u64::from(self.cpus), 1, u64::from(Self::CPUS_MAX)),
            ("base_slice", self.base_slice.0, slices.0, slices.1),
            ("quantum", self.quantum.0, 0, slices.1),
            ("wakeup_granularity", self.wakeup_granularity.0, 0, second),
            ("lag_limit", self.lag_limit.0, 0, second),
            (
                "debt_limit",
                self.debt_limit.0,
                Nanos::from_millis(1).0,
                10 * second,
            ),
            ("sleeper_credit", self.sleeper_credit.0, 0, second),
            ("min_granularity", self.min_granularity.0, 1_000, second),
            ("latency", self.latency.0, 1_000, second),
            ("publish_interval", self.publish_interval.0, 1_000, second),
            ("bandwidth_slice", self.bandwidth_slice.0, 1_000, second),
        ];
        for (field, value, min, max) in fields {
            if !(min..=max).contains(&value) {
                return Err(ConfigError {
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

impl Default for Config {
    fn default() -> Config {
        Config::new(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_follow_the_number_of_cpus_and_are_valid() {
        let slices: Vec<u64> = [1, 2, 4, 8, 64]
            .iter()
            .map(|&cpus| Config::new(cpus).base_slice.0)
            .collect();
        assert_eq!(
            slices,
            [700_000, 1_400_000, 2_100_000, 2_800_000, 2_800_000]
        );
        let debts: Vec<u64> = [1, 32, 33, 4096]
            .iter()
            .map(|&cpus| Config::new(cpus).debt_limit.0 / 1_000_000)
            .collect();
        assert_eq!(debts, [100, 100, 200, 10_000]);
        assert!(
            [1, 2, 64, 4096]
                .iter()
                .all(|&cpus| Config::new(cpus).validate().is_ok())
        );
    }

    #[test]
    fn a_bad_field_is_named_with_its_range() {
        let error = Config::new(0).validate().unwrap_err();
        assert_eq!(error.to_string(), "cpus = 0 is outside 1..=4096");
        let config = Config {
            base_slice: Nanos(1),
            ..Config::new(1)
        };
        assert_eq!(config.validate().unwrap_err().field, "base_slice");
    }
}
