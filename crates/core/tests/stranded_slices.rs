//! Budget that sits on CPUs which do not run the group any more: by the default rules it is taken back before anybody
//! waits, by the kernel's it is stranded, and with slice expiry lost.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{BandwidthRules, Config, Limit, Nanos, RatioRule};

/// Many threads that each run a little now and then, well below their quota all together.
fn throttles_of_a_light_load(rules: BandwidthRules) -> (u64, u64) {
    let cpus = 16;
    let mut machine = Machine::new(Config {
        bandwidth: rules,
        ..Config::new(cpus)
    });
    machine.check_every = 101;
    let group = machine.group("g", 100);
    // Needs at most 16 x 0.1 ms in any 10 ms, and may use 2.5: slices of 5 ms go to the CPUs that come first.
    machine.limit(
        &group,
        Some(Limit::new(
            Nanos::from_micros(2_500),
            Nanos::from_millis(10),
        )),
    );
    for cpu in 0..cpus as usize {
        let sleep = 10 * MILLI + 17_000 * cpu as u64;
        machine.spawn(
            cpu,
            &group,
            Work::Periodic {
                run: 100_000,
                sleep,
            },
        );
    }
    machine.run_until(SECOND);
    (group.bandwidth_stats().nr_throttled, usage(&group))
}

#[test]
fn a_light_load_on_many_cpus_is_not_throttled() {
    let (throttled, used) = throttles_of_a_light_load(BandwidthRules::Default);
    assert_eq!(throttled, 0);
    assert!(used < 250 * MILLI, "the load is below its quota: {used}");
}

#[test]
fn by_the_kernels_rules_slices_are_stranded_and_expire() {
    let (kernel, _) = throttles_of_a_light_load(BandwidthRules::KERNEL);
    let expiring = BandwidthRules::Kernel {
        ratio: RatioRule::V2,
        slice_expiry: true,
    };
    let (expiry, used) = throttles_of_a_light_load(expiring);
    let (_, wanted) = throttles_of_a_light_load(BandwidthRules::Default);
    assert!(kernel > 0, "the slices of the first CPUs starve the others");
    assert!(
        expiry > kernel,
        "{expiry} against {kernel}: what is left expires, so it gets worse"
    );
    assert!(used < wanted);
}

/// A CPU that becomes idle gives what it has to those that wait, at once.
#[test]
fn what_an_idle_cpu_holds_goes_to_those_that_wait() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    machine.limit(
        &group,
        Some(Limit::new(Nanos::from_millis(20), Nanos::from_secs(1))),
    );
    machine.spawn(0, &group, Work::Once { run: 500_000 });
    machine.spawn(1, &group, Work::Hog { chunk: 50_000 });
    machine.run_until(SECOND / 2);
    let used = usage(&group);
    assert!((20 * MILLI..=20 * MILLI + 50_000).contains(&used), "{used}");
    let account = group.bandwidth_account();
    assert!(account.pool <= 0 && account.local <= 0, "{account:?}");
}

/// By the kernel's rules what an idle CPU returns is not capped: with 50 ms of quota and no burst the pool holds more than
/// that until the next refill, which caps it. By the default rules it never does.
#[test]
fn by_the_kernels_rules_returned_slack_is_capped_by_the_next_refill_only() {
    for rules in [BandwidthRules::KERNEL, BandwidthRules::Default] {
        let mut machine = Machine::new(Config {
            bandwidth: rules,
            ..Config::new(2)
        });
        let group = machine.group("g", 100);
        let limit = Limit::new(Nanos::from_millis(50), Nanos::from_millis(100));
        machine.limit(&group, Some(limit));
        // A slice of 5 ms, most of it unused when the pool is refilled in the middle of a run.
        let (run, sleep) = (3 * MILLI, 8 * MILLI + 17_000);
        machine.spawn(0, &group, Work::Periodic { run, sleep });
        let (mut most, mut after_refill) = (0, 0);
        let mut periods = 0;
        for step in 1..=12_000u64 {
            machine.run_until(step * MILLI / 4);
            let pool = group.bandwidth_account().pool;
            most = most.max(pool);
            let passed = group.bandwidth_stats().nr_periods;
            if core::mem::replace(&mut periods, passed) != passed {
                after_refill = after_refill.max(pool);
            }
            assert!(group.bandwidth_account().is_balanced());
        }
        let quota = 50 * i128::from(MILLI);
        assert!(after_refill <= quota, "{rules:?}: {after_refill}");
        assert_eq!(
            most > quota,
            rules == BandwidthRules::KERNEL,
            "{rules:?}: {most}"
        );
    }
}
