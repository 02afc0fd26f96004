//! Settings after releases of Linux, as far as they are modelled: what to compare a machine of that release with.
//!
//! | | 6.6 | 6.12 | 6.18 |
//! |---|---|---|---|
//! | choice | EEVDF, no buddies, run to parity of who has not had more than is due | the same | the same |
//! | request length times 1 + log2 of up to 8 CPUs | 0.75 ms | 0.75 ms | 0.7 ms |
//! | lag kept | up to two requests, at least a tick, either way | the same | the same |
//! | a debt | waits for the sleeper | fades while others catch up | the same |
//! | the request of a task that is moved | begins anew | goes on | the same |
//! | weights of groups across CPUs | divided by what is runnable | the same | the same |
//! | limits | slices of 5 ms from a pool, no expiry | the same | the same |
//! | a throttle | the group's whole queue, at a tick or switch | the same | each task on its way to user mode |
//! | ticks | while the CPU runs anything | the same | the same |
//! | a CPU that falls idle | takes what waits elsewhere, but for what ran in the last 0.5 ms, if it is idle for more than 5 us on average | the same | the same |
//! | a woken task | to an idle CPU that shares its cache, or where it was | the same | the same |
//! | a CPU that real-time tasks have | has that much less capacity (half forgotten in 32 ms): loads are evened out by what is left | the same | the same |
//!
//! Sleepers that stay queued until they would be due (delayed dequeue, 6.12 and later) are modelled by what that does to their lag
//! ([`Config::debts_fade`](quotient_core::Config::debts_fade)): while they sleep they are no part of the mean, as they are in the kernel, and
//! groups keep theirs.
//!
//! How often idle CPUs are overlooked is not in the releases but in the machines: `advise` takes it from the recording
//! ([`Placement`](crate::replay::Placement)); without one nothing is overlooked.
//!
//! Not modelled: load averages as what weights are divided by,
//! slack in the timers of periods, capacity but for real-time tasks, energy, and the searches of idle balancing across domains. None of the three has been
//! held against a kernel yet: [`Kernel::is_validated`].

use crate::machine::Ticks;
use crate::plan::{Plan, Throttling};
use quotient_core::{BandwidthRules, GroupClock, Nanos, Policy, WeightMode};
use serde::Deserialize;

/// For how long a task that ran is left to its CPU's caches: the kernel's `migration_cost_ns`.
const MIGRATION_COST: Nanos = Nanos::from_micros(500);

/// What looking for work takes a CPU that falls idle, in one cache domain. The kernel measures it (`max_newidle_lb_cost`); some
/// microseconds on small machines. Default 5 us.
const LOOKING: Nanos = Nanos::from_micros(5);

/// Whose rules a plan follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Kernel {
    /// Quotient's own.
    #[serde(rename = "ours")]
    Ours,
    /// Linux 6.6.
    #[serde(rename = "6.6")]
    Linux6_6,
    /// Linux 6.12.
    #[serde(rename = "6.12")]
    Linux6_12,
    /// Linux 6.18.
    #[serde(rename = "6.18")]
    Linux6_18,
}

impl Kernel {
    /// All of them.
    pub const ALL: [Kernel; 4] = [
        Kernel::Ours,
        Kernel::Linux6_6,
        Kernel::Linux6_12,
        Kernel::Linux6_18,
    ];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Kernel::Ours => "ours",
            Kernel::Linux6_6 => "6.6",
            Kernel::Linux6_12 => "6.12",
            Kernel::Linux6_18 => "6.18",
        }
    }

    /// The one of that name.
    pub fn parse(name: &str) -> Option<Kernel> {
        Kernel::ALL.into_iter().find(|kernel| kernel.name() == name)
    }

    /// The preset whose rules a release follows, by what `uname -r` says: the last one that is not newer; `None` before 6.6.
    pub fn of_release(release: &str) -> Option<Kernel> {
        let mut numbers = release
            .trim()
            .split(|letter: char| !letter.is_ascii_digit());
        let mut number = || numbers.next()?.parse::<u32>().ok();
        let release = (number()?, number()?);
        let since = [
            ((6, 18), Kernel::Linux6_18),
            ((6, 12), Kernel::Linux6_12),
            ((6, 6), Kernel::Linux6_6),
        ];
        let (_, kernel) = since.into_iter().find(|(first, _)| release >= *first)?;
        Some(kernel)
    }

    /// The preset that is nearest to a release, which may be older than all of them; that of the newest where nobody says which it is.
    pub fn nearest(release: Option<&str>) -> Kernel {
        match release {
            Some(release) => Kernel::of_release(release).unwrap_or(Kernel::Linux6_6),
            None => Kernel::Linux6_18,
        }
    }

    /// Whether figures under this preset were held against that kernel. Ours is what it is.
    pub const fn is_validated(self) -> bool {
        matches!(self, Kernel::Ours)
    }

    /// What a user of the figures has to know.
    pub const fn note(self) -> &'static str {
        match self {
            Kernel::Ours => "Quotient's own rules",
            Kernel::Linux6_6 => "rules after Linux 6.6, not validated against that kernel",
            Kernel::Linux6_12 => "rules after Linux 6.12, not validated against that kernel",
            Kernel::Linux6_18 => "rules after Linux 6.18, not validated against that kernel",
        }
    }

    /// Sets a plan's scheduler and ticks after it. The machine's `hz` has to be right before.
    pub fn apply(self, plan: &mut Plan) {
        plan.set_machine(plan.machine.clone());
        if self == Kernel::Ours {
            return set_ours(plan);
        }
        let factor = 1 + u64::from(plan.machine.cpus().clamp(1, 8).ilog2());
        let slice = match self {
            Kernel::Linux6_18 => 700_000,
            _ => 750_000,
        } * factor;
        let tick = plan.machine.tick_length();
        // What lag is clamped to, either way.
        let clamp = (2 * slice).max(tick);
        let config = &mut plan.settings.config;
        config.policy = Policy::Eevdf;
        config.base_slice = Nanos(slice);
        config.quantum = Nanos::ZERO;
        (config.next_buddy, config.last_buddy) = (false, false);
        config.run_to_parity = true;
        config.parity_from_arrival = false;
        config.debts_fade = self != Kernel::Linux6_6;
        config.moves_keep_requests = self != Kernel::Linux6_6;
        config.lag_limit = Nanos(clamp - slice);
        config.debt_limit = Nanos(clamp);
        config.group_clock = GroupClock::PerCpu(WeightMode::Smp);
        config.bandwidth = BandwidthRules::KERNEL;
        plan.settings.throttling = match self {
            Kernel::Linux6_18 => Throttling::ExitToUser,
            _ => Throttling::Queue,
        };
        plan.settings.looks_at_choices = false;
        plan.settings.wake_within_node = true;
        plan.settings.hot_for = MIGRATION_COST;
        plan.settings.idle_at_least = LOOKING;
        plan.machine.ticks = Ticks::Busy;
    }
}

/// What the other presets set is as it is without one; the rest of the plan's settings is nobody's but its own.
fn set_ours(plan: &mut Plan) {
    let fresh = Plan::new(plan.machine.clone()).settings;
    let (ours, config) = (fresh.config, &mut plan.settings.config);
    config.policy = ours.policy;
    config.base_slice = ours.base_slice;
    config.quantum = ours.quantum;
    (config.next_buddy, config.last_buddy) = (ours.next_buddy, ours.last_buddy);
    config.run_to_parity = ours.run_to_parity;
    config.parity_from_arrival = ours.parity_from_arrival;
    config.debts_fade = ours.debts_fade;
    config.moves_keep_requests = ours.moves_keep_requests;
    config.lag_limit = ours.lag_limit;
    config.debt_limit = ours.debt_limit;
    config.group_clock = ours.group_clock;
    config.bandwidth = ours.bandwidth;
    plan.settings.throttling = fresh.throttling;
    plan.settings.looks_at_choices = fresh.looks_at_choices;
    plan.settings.wake_within_node = fresh.wake_within_node;
    plan.settings.hot_for = fresh.hot_for;
    plan.settings.idle_at_least = fresh.idle_at_least;
    plan.machine.ticks = Ticks::Needed;
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::machine::Machine;
    use crate::{Simulation, Span, synthetic};
    use quotient_core::Limit;
    use quotient_trace::{Discard, Kind as Event};

    #[test]
    fn a_release_follows_the_last_preset_before_it() {
        for (release, expected) in [
            ("6.18.44-fc-v782\n", Some(Kernel::Linux6_18)),
            ("7.1-rc3", Some(Kernel::Linux6_18)),
            ("6.17.0", Some(Kernel::Linux6_12)),
            ("6.8.0-45-generic", Some(Kernel::Linux6_6)),
            ("6.6", Some(Kernel::Linux6_6)),
            ("6.1.90", None),
            ("5.15.0-91-generic", None),
            ("6", None),
            ("", None),
            ("x.y", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(Kernel::of_release(release), expected, "{release:?}");
            let nearest = expected.unwrap_or(Kernel::Linux6_6);
            assert_eq!(Kernel::nearest(Some(release)), nearest, "{release:?}");
        }
        assert_eq!(Kernel::nearest(None), Kernel::Linux6_18);
    }

    #[test]
    fn no_preset_takes_back_what_a_scenario_says_of_other_classes() {
        for kernel in Kernel::ALL {
            let mut plan = Plan::new(Machine::flat(2));
            let runtime = Some((Nanos::from_millis(950), Nanos::from_millis(1_000)));
            plan.settings.rt_throttling = runtime;
            plan.settings.balance_every = Some(Nanos::from_millis(3));
            kernel.apply(&mut plan);
            assert_eq!(plan.settings.rt_throttling, runtime, "{}", kernel.name());
            assert_eq!(plan.settings.balance_every, Some(Nanos::from_millis(3)));
        }
    }

    #[test]
    fn every_preset_is_a_valid_plan_on_any_machine() {
        for kernel in Kernel::ALL {
            assert_eq!(Kernel::parse(kernel.name()), Some(kernel));
            for (shape, hz) in [("1", 100), ("2x4x2", 250), ("8x16", 1_000)] {
                let mut plan = Plan::new(Machine {
                    hz,
                    ..Machine::parse(shape).unwrap()
                });
                kernel.apply(&mut plan);
                plan.validate().unwrap();
                let before = plan.clone();
                kernel.apply(&mut plan);
                assert_eq!(plan, before, "{kernel:?}");
            }
        }
        assert_eq!(Kernel::parse("5.4"), None);
    }

    #[test]
    fn a_quota_of_a_part_of_a_tick_depends_on_hz_as_in_the_kernel() {
        // 13 ms in 20: budget is looked at when ticks come, so what is used beyond it grows with the tick.
        let used = |hz: u32, kernel: Kernel| {
            let mut plan = Plan::new(Machine {
                hz,
                ..Machine::flat(1)
            });
            plan.duration = Nanos::from_secs(4);
            kernel.apply(&mut plan);
            let group = plan.group("box");
            let limit = Limit::new(Nanos::from_millis(13), Nanos::from_millis(20));
            plan.groups[0].limit = Some(limit);
            synthetic::spinners(&mut plan, "box", group, 1);
            let mut simulation = Simulation::new(&plan, Discard).unwrap();
            simulation.run().unwrap();
            simulation.outcome()
        };
        let (coarse, fine) = (used(100, Kernel::Linux6_18), used(1_000, Kernel::Linux6_18));
        let throttled = |hz: &crate::Outcome| hz.group("box").unwrap().nr_throttled;
        assert!(throttled(&fine) > throttled(&coarse), "{fine:?} {coarse:?}");
        // In the long run the quota holds all the same, since what is overdrawn is paid back.
        for outcome in [&coarse, &fine] {
            let usage = outcome.group("box").unwrap().usage_ns;
            assert!(usage.abs_diff(2_600_000_000) <= 30_000_000, "{usage}");
        }
        assert_eq!(
            coarse.mechanisms.ticks,
            used(100, Kernel::Linux6_6).mechanisms.ticks
        );
    }

    #[test]
    fn a_woken_task_stays_with_its_cache_by_kernel_rules() {
        // Wake-ups to another node than the one on which the task ran last.
        let strays = |kernel: Kernel| {
            let mut plan = Plan::new(Machine::parse("2x2").unwrap());
            plan.duration = Nanos::from_secs(1);
            kernel.apply(&mut plan);
            synthetic::spinners(&mut plan, "busy", None, 1);
            let (work, think) = (
                Span::Exponential {
                    mean: Nanos::from_millis(1),
                },
                Nanos::from_millis(1).into(),
            );
            synthetic::closed_loop(&mut plan, "web", None, 6, work, think);
            let mut simulation = Simulation::new(&plan, Vec::new()).unwrap();
            simulation.run().unwrap();
            let mut last = std::collections::BTreeMap::new();
            let mut strays = 0;
            for event in simulation.into_sink() {
                match event.kind {
                    Event::Switch { next, .. } => {
                        last.insert(next.0, event.cpu.0 / 2);
                    }
                    Event::Wakeup { task, target, .. } => {
                        let home = last.get(&task.0);
                        strays += u32::from(home.is_some_and(|&home| home != target.0 / 2));
                    }
                    _ => {}
                }
            }
            strays
        };
        assert_eq!(strays(Kernel::Linux6_18), 0);
        assert!(strays(Kernel::Ours) > 10);
    }
}
