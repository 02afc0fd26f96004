//! The kernel's cgroup CPU selftests, rebuilt in exact virtual time: weights with more and with fewer tasks than
//! CPUs, flat and nested. Tolerances are the kernel's; see `close`.
//!
//! All hogs start on CPU 0, so that the spreading is the balancer's work, too.

mod common;

use common::{MILLI, Machine, SECOND, Work, close, usage};
use quotient_core::{Config, GroupClock, Policy, WeightMode};

const CHUNK: u64 = 500_000;

fn machine(cpus: u32, policy: Policy) -> Machine {
    let mut machine = Machine::new(Config {
        policy,
        ..Config::new(cpus)
    });
    // The checker is O(tasks): on 64 CPUs, now and then will do.
    machine.check_every = u64::from(cpus) * 97;
    machine
}

fn hogs(machine: &mut Machine, path: &str, weight: u32, count: u32) {
    let group = machine.group(path, weight);
    for _ in 0..count {
        machine.spawn(0, &group, Work::Hog { chunk: CHUNK });
    }
}

fn used(machine: &Machine, path: &str) -> u64 {
    usage(&machine.tree.find(path).unwrap())
}

/// A shorter run on the large machine keeps the debug build quick; shares settle within milliseconds.
fn length(cpus: u32) -> u64 {
    if cpus > 8 { SECOND } else { 5 * SECOND }
}

fn weight_overprovisioned(mut machine: Machine, cpus: u32) {
    for (path, weight) in [("a/b", 50), ("a/c", 100), ("a/d", 150)] {
        hogs(&mut machine, path, weight, cpus);
    }
    machine.run_until(length(cpus));
    let times = ["a/b", "a/c", "a/d"].map(|path| used(&machine, path));
    assert!(
        times[0] < times[1] && times[1] < times[2],
        "{cpus} CPUs: {times:?}"
    );
    assert!(
        close(times[1] - times[0], times[0], 35),
        "{cpus} CPUs: {times:?}"
    );
    assert!(
        close(times[2] - times[1], times[0], 35),
        "{cpus} CPUs: {times:?}"
    );
    // Nobody else runs, so nothing may be lost either.
    assert_eq!(times.iter().sum::<u64>(), used(&machine, "a"));
    assert!(close(
        used(&machine, "a"),
        u64::from(cpus) * length(cpus),
        1
    ));
}

#[test]
fn a4_weight_overprovisioned() {
    for cpus in [1, 2, 4, 64] {
        weight_overprovisioned(machine(cpus, Policy::Eevdf), cpus);
    }
}

#[test]
fn a4_weight_overprovisioned_under_cfs() {
    for cpus in [1, 2, 4] {
        weight_overprovisioned(machine(cpus, Policy::Cfs), cpus);
    }
}

#[test]
fn a4_weights_split_by_load_keep_the_order_but_are_approximate() {
    // Why this is not the default: the parts follow from where tasks happen to be.
    for cpus in [1, 2, 4] {
        for mode in [WeightMode::Smp, WeightMode::Concur] {
            let config = Config {
                group_clock: GroupClock::PerCpu(mode),
                ..Config::new(cpus)
            };
            let mut machine = Machine::new(config);
            for (path, weight) in [("a/b", 50), ("a/c", 100), ("a/d", 150)] {
                hogs(&mut machine, path, weight, cpus);
            }
            machine.run_until(length(cpus));
            let times = ["a/b", "a/c", "a/d"].map(|path| used(&machine, path));
            assert!(
                times[0] < times[1] && times[1] < times[2],
                "{cpus} {mode:?}: {times:?}"
            );
            assert!(times[2] < 5 * times[0], "{cpus} {mode:?}: {times:?}");
        }
    }
}

#[test]
fn a5_weight_underprovisioned() {
    for cpus in [4, 64] {
        let mut machine = machine(cpus, Policy::Eevdf);
        for (path, weight) in [("a/b", 50), ("a/c", 100), ("a/d", 150)] {
            hogs(&mut machine, path, weight, 1);
        }
        machine.run_until(length(cpus));
        let times = ["a/b", "a/c", "a/d"].map(|path| used(&machine, path));
        assert!(
            close(times[1], times[0], 15) && close(times[2], times[0], 15),
            "{cpus} CPUs: {times:?}"
        );
        assert!(close(times[0], length(cpus), 1), "{cpus} CPUs: {times:?}");
    }
}

fn nested(machine: &mut Machine, count: u32) -> [u64; 4] {
    for (path, weight) in [("a/b", 1000), ("a/c/d", 5000), ("a/c/e", 5000)] {
        hogs(machine, path, weight, count);
    }
    machine.group("a/c", 1000);
    let end = length(machine.queues.len() as u32);
    machine.run_until(end);
    ["a/b", "a/c", "a/c/d", "a/c/e"].map(|path| used(machine, path))
}

#[test]
fn a6_nested_weight_overprovisioned() {
    for cpus in [1, 2, 4, 64] {
        let [b, c, d, e] = nested(&mut machine(cpus, Policy::Eevdf), cpus);
        assert!(close(b, d + e, 15), "{cpus} CPUs: b {b}, d {d}, e {e}");
        assert!(close(d, e, 15), "{cpus} CPUs: d {d}, e {e}");
        assert_eq!(c, d + e);
    }
}

#[test]
fn a7_nested_weight_underprovisioned() {
    for cpus in [4, 64] {
        let [b, c, d, e] = nested(&mut machine(cpus, Policy::Eevdf), cpus / 4);
        assert!(close(2 * b, d + e, 15), "{cpus} CPUs: b {b}, d {d}, e {e}");
        assert_eq!(c, d + e);
    }
}

#[test]
fn a2_usage_is_what_the_tasks_ran() {
    let mut machine = machine(2, Policy::Eevdf);
    assert_eq!(usage(&machine.tree.root()), 0);
    hogs(&mut machine, "a/b", 100, 3);
    machine.run_until(200 * MILLI);
    let ran: u64 = machine.tasks.iter().map(|task| task.ran).sum();
    assert_eq!(used(&machine, "a/b"), ran);
    assert_eq!(used(&machine, "a"), ran);
    assert_eq!(usage(&machine.tree.root()), ran);
}
