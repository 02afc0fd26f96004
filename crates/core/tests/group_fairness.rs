//! Shares of CPU time between groups, in exact virtual time.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{Config, Nanos};

fn hogs(machine: &mut Machine, path: &str, weight: u32, count: usize, chunk: u64) {
    let group = machine.group(path, weight);
    let cpus = machine.queues.len();
    for number in 0..count {
        machine.spawn(number % cpus, &group, Work::Hog { chunk });
    }
}

fn ratio(machine: &Machine, one: &str, other: &str) -> f64 {
    let time = |path: &str| usage(&machine.tree.find(path).unwrap()) as f64;
    time(one) / time(other)
}

fn assert_ratio(machine: &Machine, one: &str, other: &str, expected: f64, tolerance: f64) {
    let found = ratio(machine, one, other);
    assert!(
        (found / expected - 1.0).abs() <= tolerance,
        "{one}:{other} is {found}, not {expected}"
    );
}

#[test]
fn three_equal_hogs_on_two_cpus_get_two_thirds_each() {
    let mut machine = Machine::new(Config::new(2));
    for path in ["a", "b", "c"] {
        hogs(&mut machine, path, 100, 1, 50_000);
    }
    machine.run_until(5 * SECOND);
    assert_ratio(&machine, "a", "b", 1.0, 0.02);
    assert_ratio(&machine, "b", "c", 1.0, 0.02);
}

#[test]
fn one_to_three_with_eight_hogs_each_on_two_cpus() {
    let mut machine = Machine::new(Config::new(2));
    hogs(&mut machine, "a", 100, 8, 50_000);
    hogs(&mut machine, "b", 300, 8, 50_000);
    machine.run_until(5 * SECOND);
    assert_ratio(&machine, "b", "a", 3.0, 0.01);
}

#[test]
fn one_to_three_even_if_each_group_starts_on_its_own_cpu() {
    let mut machine = Machine::new(Config::new(2));
    let (a, b) = (machine.group("a", 100), machine.group("b", 300));
    for _ in 0..8 {
        machine.spawn(0, &a, Work::Hog { chunk: 50_000 });
        machine.spawn(1, &b, Work::Hog { chunk: 50_000 });
    }
    machine.run_until(5 * SECOND);
    assert_ratio(&machine, "b", "a", 3.0, 0.01);
}

#[test]
fn nested_groups_share_their_parents_part() {
    let mut machine = Machine::new(Config::new(2));
    hogs(&mut machine, "top", 100, 8, 50_000);
    hogs(&mut machine, "mid/one", 100, 8, 50_000);
    hogs(&mut machine, "mid/two", 200, 8, 50_000);
    machine.run_until(5 * SECOND);
    assert_ratio(&machine, "mid", "top", 1.0, 0.01);
    assert_ratio(&machine, "mid/two", "mid/one", 2.0, 0.01);
}

#[test]
fn hundred_equal_groups_on_two_cpus_differ_by_at_most_five_percent() {
    let mut machine = Machine::new(Config::new(2));
    machine.check_every = 101;
    let paths: Vec<String> = (0..100).map(|number| format!("g{number}")).collect();
    for (number, path) in paths.iter().enumerate() {
        let group = machine.group(path, 100);
        machine.spawn(number % 2, &group, Work::Hog { chunk: 50_000 });
    }
    machine.run_until(5 * SECOND);
    let times: Vec<u64> = paths
        .iter()
        .map(|path| usage(&machine.tree.find(path).unwrap()))
        .collect();
    let (max, min) = (*times.iter().max().unwrap(), *times.iter().min().unwrap());
    assert!(max as f64 / min as f64 <= 1.05, "max {max}, min {min}");
}

#[test]
fn anti_gaming_a_hundred_tasks_get_no_more_than_one() {
    let mut machine = Machine::new(Config::new(1));
    hogs(&mut machine, "many", 100, 100, 50_000);
    hogs(&mut machine, "one", 100, 1, 50_000);
    machine.run_until(5 * SECOND);
    assert_ratio(&machine, "many", "one", 1.0, 0.002);
}

#[test]
fn infeasible_weights_starve_nobody() {
    let mut machine = Machine::new(Config::new(2));
    for (path, weight) in [("huge", 10_000), ("tiny", 1), ("small", 100)] {
        hogs(&mut machine, path, weight, 1, 50_000);
    }
    machine.run_until(5 * SECOND);
    let time = |path: &str| usage(&machine.tree.find(path).unwrap());
    assert!(time("huge") > 49 * SECOND / 10, "huge {}", time("huge"));
    assert!(time("small") > 48 * SECOND / 10, "small {}", time("small"));
    assert!(time("tiny") > 20 * MILLI, "tiny {}", time("tiny"));
}

#[test]
fn foreign_time_is_paid_back() {
    let mut machine = Machine::new(Config::new(1));
    hogs(&mut machine, "a", 100, 1, 50_000);
    hogs(&mut machine, "b", 100, 1, 50_000);
    machine.run_until(SECOND / 10);
    machine
        .tree
        .find("a")
        .unwrap()
        .add_foreign_cpu_time(Nanos(20 * MILLI));
    machine.run_until(SECOND);
    let time = |path: &str| usage(&machine.tree.find(path).unwrap());
    assert!(
        time("a").abs_diff(time("b")) < 3 * MILLI,
        "a {} b {}",
        time("a"),
        time("b")
    );
}
