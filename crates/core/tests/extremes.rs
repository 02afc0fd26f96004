//! Where nobody had looked: weights of 1 beside 10,000 on up to 512 CPUs, weights changed while their groups are throttled, days of virtual time,
//! and pipelines under limits. Exact virtual time, short runs.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{Config, Group, Limit, Nanos, Weight};
use std::sync::Arc;

const SHORT: u64 = 50_000;

fn machine(cpus: u32) -> Machine {
    let mut machine = Machine::new(Config::new(cpus));
    machine.check_every = 40_009;
    machine
}

fn fill(machine: &mut Machine, group: &Arc<Group>, tasks: usize, work: Work) {
    let cpus = machine.queues.len();
    for _ in 0..tasks {
        let cpu = machine.tasks.len() % cpus;
        machine.spawn(cpu, group, work);
    }
}

/// What the groups use from `begin` to `end`, in CPUs.
fn rates(machine: &mut Machine, groups: &[&Arc<Group>], begin: u64, end: u64) -> Vec<f64> {
    machine.run_until(begin);
    let before: Vec<u64> = groups.iter().map(|group| usage(group)).collect();
    machine.run_until(end);
    let used = groups.iter().zip(before);
    used.map(|(group, before)| (usage(group) - before) as f64 / (end - begin) as f64)
        .collect()
}

#[track_caller]
fn near(what: &str, found: f64, due: f64, tolerance: f64) {
    assert!(
        (found / due - 1.0).abs() <= tolerance,
        "{what}: {found:.5} CPUs of {due:.5}"
    );
}

/// A group of weight 1 beside one of 10,000 has its 10,001st part in whole turns of a slice: not a turn a CPU more, not one less.
fn one_of_10_001(cpus: u32, seconds: u64) {
    let mut machine = machine(cpus);
    let (one, ten) = (machine.group("one", 1), machine.group("ten", 10_000));
    let (all, hog) = (cpus as usize, Work::Hog { chunk: SHORT });
    fill(&mut machine, &one, all, hog);
    fill(&mut machine, &ten, 2 * all, hog);
    machine.run_until(seconds * SECOND);
    let due = u64::from(cpus) * seconds * SECOND / 10_001;
    let turn = Config::new(cpus).base_slice.0 + SHORT;
    let (got, most) = (usage(&one), due + turn * u64::from(cpus));
    println!("{cpus} CPUs, {seconds} s: {got} ns of {due}");
    assert!(got + turn >= due && got <= most, "{got} of {due}");
    assert_eq!(got + usage(&ten), u64::from(cpus) * seconds * SECOND);
}

#[test]
fn weights_of_1_to_10_000_are_kept_to_a_turn() {
    for cpus in [1, 2, 8] {
        one_of_10_001(cpus, 8);
    }
}

#[test]
#[ignore = "takes minutes unoptimized"]
fn weights_of_1_to_10_000_are_kept_to_a_turn_on_64_and_512_cpus() {
    one_of_10_001(64, 5);
    one_of_10_001(512, 1);
}

/// Each of ten times, in the middle of a throttle: the weight counts from then on, the limit as before, nobody starves.
#[test]
fn a_weight_changed_while_throttled_counts_at_once() {
    for cpus in [1_u32, 2, 4] {
        let mut machine = machine(cpus);
        let parent = machine.group("parent", 100);
        let limited = machine.group("parent/limited", 100);
        let (free, beside) = (
            machine.group("parent/free", 100),
            machine.group("beside", 100),
        );
        let all = cpus as usize;
        for group in [&limited, &free, &beside] {
            fill(&mut machine, group, 2 * all, Work::Hog { chunk: SHORT });
        }
        let quota = Nanos::from_millis(2 * u64::from(cpus));
        let limit = Limit::new(quota, Nanos::from_millis(20));
        machine.limit(&limited, Some(limit));
        for round in 0..10_u64 {
            let begin = machine.now;
            // Not a whole period: the change comes at another place of it each time.
            machine.run_until(begin + 17 * MILLI + round * 313_000);
            let weight = [10_000, 1, 300, 100, 700][round as usize % 5];
            limited.set_weight(Weight::new(weight).expect("in range"));
            parent.set_weight(Weight::new(weight.clamp(50, 2_000)).expect("in range"));
            machine.check();
        }
        limited.set_weight(Weight::new(10_000).expect("in range"));
        parent.set_weight(Weight::new(300).expect("in range"));
        let begin = machine.now;
        let groups = [&limited, &free, &beside];
        let found = rates(&mut machine, &groups, begin + SECOND, begin + 3 * SECOND);
        let all = f64::from(cpus);
        near("limited", found[0], 0.1 * all, 0.02);
        near("free", found[1], 0.65 * all, 0.03);
        near("beside", found[2], 0.25 * all, 0.03);
        assert!(limited.bandwidth_account().is_balanced());
    }
}

/// Sleepers that run once an hour, for three days; then everybody computes. What was long ago is worth nothing.
#[test]
fn after_days_of_sleep_shares_are_as_at_the_start() {
    const HOUR: u64 = 3_600 * SECOND;
    for (light, heavy) in [(1, 10_000), (100, 100)] {
        let mut machine = machine(1);
        let (a, b) = (machine.group("a", light), machine.group("b", heavy));
        let rare = |run| Work::Periodic { run, sleep: HOUR };
        machine.spawn(0, &a, rare(40 * MILLI));
        machine.spawn(0, &b, rare(90 * MILLI));
        machine.balances = false;
        machine.run_until(72 * HOUR);
        assert_eq!(usage(&a), 72 * 40 * MILLI, "{light}:{heavy}");
        let (c, d) = (machine.group("c", 100), machine.group("d", 100));
        for group in [&c, &d] {
            fill(&mut machine, group, 2, Work::Hog { chunk: SHORT });
        }
        let begin = machine.now;
        let found = rates(&mut machine, &[&c, &d], begin, begin + 2 * SECOND);
        near("late comers", found[0], found[1], 0.01);
        near("together", found[0] + found[1], 1.0, 0.01);
    }
}

/// Four stages with channels of two, in groups of weights 1:3, the heavy one under a limit: the limit is met and the rest is used.
#[test]
fn pipelines_under_limits_use_what_they_may() {
    for cpus in [1_u32, 2, 4] {
        let mut machine = machine(cpus);
        let (light, heavy) = (machine.group("light", 100), machine.group("heavy", 300));
        for group in [&light, &heavy] {
            for _ in 0..4 {
                let rooms = [machine.channels.open(2), machine.channels.open(2)];
                let ends = [None, Some(rooms[0]), Some(rooms[1]), None];
                for stage in 0..3 {
                    let (from, to) = (ends[stage], ends[stage + 1]);
                    let work = Work::Stage {
                        from,
                        to,
                        least: 100_000,
                        most: 900_000,
                    };
                    fill(&mut machine, group, 1, work);
                }
            }
        }
        let all = f64::from(cpus);
        let period = Nanos::from_millis(20);
        // Half of the machine, of which it is due three quarters.
        let quota = Nanos::from_millis(10 * u64::from(cpus));
        machine.limit(&heavy, Some(Limit::new(quota, period)));
        let found = rates(&mut machine, &[&light, &heavy], SECOND, 6 * SECOND);
        println!("{cpus} CPUs: {found:?}");
        near("heavy", found[1], 0.5 * all, 0.02);
        near("light", found[0], 0.5 * all, 0.03);
    }
}
