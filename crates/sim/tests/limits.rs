//! Limits under virtual time.

use quotient_core::{BandwidthRules, Limit, Nanos, Weight};
use quotient_sim::synthetic::{self, OpenLoop};
use quotient_sim::{Action, Change, Machine, Outcome, Plan, Simulation, Span, Throttling};
use quotient_trace::{Discard, Event, Kind, Statistics};

const MILLI: u64 = 1_000_000;

fn plan(shape: &str, seconds: u64) -> Plan {
    let mut plan = Plan::new(Machine::parse(shape).expect("a machine"));
    plan.duration = Nanos::from_secs(seconds);
    plan.settings.check = true;
    plan
}

fn limited(plan: &mut Plan, path: &str, quota: u64, period: u64) -> Option<u32> {
    let group = plan.group(path);
    let limit = Limit::new(Nanos::from_millis(quota), Nanos::from_millis(period));
    plan.groups.last_mut().expect("just made").limit = Some(limit);
    group
}

fn run(plan: &Plan) -> Outcome {
    let mut simulation = Simulation::new(plan, Discard).expect("a valid plan");
    simulation.run().expect("a run that goes on");
    simulation.check().expect("invariants");
    simulation.outcome()
}

#[test]
fn a_limit_holds_in_every_mode() {
    for rules in [BandwidthRules::Default, BandwidthRules::KERNEL] {
        for throttling in [Throttling::Queue, Throttling::Exact, Throttling::ExitToUser] {
            let mut plan = plan("4", 5);
            plan.settings.config.bandwidth = rules;
            plan.settings.throttling = throttling;
            let group = limited(&mut plan, "box", 30, 100);
            synthetic::spinners(&mut plan, "box", group, 3);
            let outcome = run(&plan);
            let used = outcome.group("box").unwrap();
            let allowed = if throttling == Throttling::Exact {
                2
            } else {
                80
            };
            assert!(
                used.usage_ns.abs_diff(1_500 * MILLI) <= allowed * MILLI,
                "{rules:?} {throttling:?} {used:?}"
            );
            assert!(used.nr_periods >= 49 && used.nr_throttled >= 48, "{used:?}");
        }
    }
}

/// Hazard: who runs alone on his CPU does not tick, so that nothing tells his queue of a limit that his group gets.
#[test]
fn a_limit_holds_for_tasks_that_had_none_and_run_alone() {
    for (shape, threads) in [("1", 1), ("4", 1), ("4", 4), ("4", 8)] {
        let mut plan = plan(shape, 10);
        let group = plan.group("box");
        synthetic::spinners(&mut plan, "box", group, threads);
        let limit = Limit::new(Nanos::from_millis(10), Nanos::from_millis(100));
        plan.changes.push(Change {
            at: Nanos::from_secs(1),
            group: group.expect("just made"),
            action: Action::Limit(Some(limit)),
        });
        let used = run(&plan).group("box").unwrap().usage_ns;
        let cpus = u64::from(threads.min(shape.parse().unwrap()));
        // A second without, 90 periods, and a tick on each CPU before it stops.
        let due = cpus * 1_000 + 900;
        assert!(
            used.abs_diff(due * MILLI) <= (cpus * 8 + 30) * MILLI,
            "{threads} on {shape}: {used}, due {due} ms"
        );
    }
}

/// Hazard: a weight that is set again and again, as controllers do: a group that was weighed anew went on by a protection that began anew,
/// and its sibling had nothing for as long as that went on.
#[test]
fn a_weight_that_is_set_at_each_tick_starves_nobody() {
    for (shape, every) in [
        ("1", 1_000),
        ("2", 1_000),
        ("2", 900),
        ("4", 1_000),
        ("16", 1_000),
    ] {
        let mut plan = plan(shape, 2);
        let mut machine = plan.machine.clone();
        machine.hz = 1_000;
        plan.set_machine(machine);
        let cpus = plan.machine.cpus();
        let groups = ["h", "g"].map(|path| plan.group(path));
        for (name, group) in ["h", "g"].into_iter().zip(groups) {
            synthetic::spinners(&mut plan, name, group, 2 * cpus);
        }
        for number in 1..2_000_000 / every {
            let weight = if number % 2 == 0 { 110 } else { 90 };
            plan.changes.push(Change {
                at: Nanos::from_micros(number * every),
                group: groups[1].expect("just made"),
                action: Action::Weight(Weight::new(weight).unwrap()),
            });
        }
        let outcome = run(&plan);
        let used = ["h", "g"].map(|path| outcome.group(path).unwrap().usage_ns / MILLI);
        let due = u64::from(cpus) * 1_000;
        assert!(
            used.iter().all(|used| used.abs_diff(due) <= due / 10),
            "{shape} CPUs, every {every} us: {used:?} ms"
        );
    }
}

/// Hazard: as that, with a task of the root beside the group's three, at the ticks of two CPUs: weighed anew, the group was charged for nothing that it
/// got elsewhere, so that one of its tasks was never noted and never ran.
#[test]
fn a_weight_that_is_set_at_each_tick_starves_no_task_of_its_group() {
    let mut plan = plan("2", 4);
    let mut machine = plan.machine.clone();
    machine.hz = 250;
    machine.tick_skew = false;
    plan.set_machine(machine);
    let group = plan.group("g");
    synthetic::spinners(&mut plan, "root", None, 1);
    for name in ["a", "b", "c"] {
        synthetic::spinners(&mut plan, name, group, 1);
    }
    for number in 1..1_000 {
        let weight = if number % 2 == 0 { 100 } else { 99 };
        plan.changes.push(Change {
            at: Nanos::from_millis(4 * number),
            group: group.expect("just made"),
            action: Action::Weight(Weight::new(weight).unwrap()),
        });
    }
    let outcome = run(&plan);
    for name in ["a", "b", "c"] {
        let used = outcome.workload(name).unwrap().usage_ns / MILLI;
        assert!((1_100..1_500).contains(&used), "{name}: {used} of 1,333 ms");
    }
}

#[test]
fn an_exact_limit_is_exact() {
    let mut plan = plan("1", 1);
    plan.settings.throttling = Throttling::Exact;
    let group = limited(&mut plan, "box", 20, 100);
    synthetic::periodic(
        &mut plan,
        "box",
        group,
        1,
        Span::Fixed(Nanos::from_millis(15)),
        Nanos::from_millis(100),
    );
    let outcome = run(&plan);
    // Never throttled: 15 of 20 ms.
    assert_eq!(outcome.group("box").unwrap().nr_throttled, 0);
    assert_eq!(outcome.meter("box").unwrap().times.count, 10);
    assert_eq!(outcome.busy_ns, 150 * MILLI);
}

#[test]
fn throttles_are_told_in_pairs() {
    let mut plan = plan("2", 1);
    let group = limited(&mut plan, "box", 20, 100);
    synthetic::spinners(&mut plan, "box", group, 2);
    let mut simulation = Simulation::new(&plan, Vec::<Event>::new()).unwrap();
    simulation.run().unwrap();
    let (mut throttled, mut refills, mut running) = ([false; 2], 0, [0u32; 2]);
    for event in simulation.into_sink() {
        let cpu = event.cpu.index();
        match event.kind {
            Kind::Throttle { .. } => assert!(!core::mem::replace(&mut throttled[cpu], true)),
            Kind::Unthrottle { .. } => assert!(core::mem::replace(&mut throttled[cpu], false)),
            Kind::Refill { .. } => refills += 1,
            Kind::Switch { next, .. } => running[cpu] = next.0,
            _ => {}
        }
        if let Kind::Switch { next, .. } = event.kind {
            assert!(next.is_idle() || !throttled[cpu], "{event:?}");
        }
    }
    assert!((9..=11).contains(&refills), "{refills}");
}

/// A group may be throttled on one CPU and not on another. The balancer leaves its tasks where they are then, whichever of the
/// two is the throttled one: pulled to where the group is throttled, a task that could run would wait for a refill.
#[test]
fn nothing_is_pulled_to_where_its_group_is_throttled() {
    for rules in [BandwidthRules::Default, BandwidthRules::KERNEL] {
        let mut plan = plan("4", 2);
        plan.settings.config.bandwidth = rules;
        let group = limited(&mut plan, "box", 60, 100);
        synthetic::spinners(&mut plan, "box", group, 11);
        let mut simulation = Simulation::new(&plan, Vec::<Event>::new()).unwrap();
        simulation.run().unwrap();
        let (mut throttled, mut moves, mut astray) = ([false; 4], 0, 0);
        for event in simulation.into_sink() {
            match event.kind {
                Kind::Throttle { .. } => throttled[event.cpu.index()] = true,
                Kind::Unthrottle { .. } => throttled[event.cpu.index()] = false,
                Kind::Migrate { to, .. } => {
                    moves += 1;
                    astray += u32::from(throttled[to.index()]);
                }
                _ => {}
            }
        }
        assert_eq!(astray, 0, "{rules:?}: of {moves} moves");
    }
}

#[test]
fn a_parallel_request_waits_for_the_next_period() {
    // 10 CPUs, 200 ms in 100 ms; a request every 100 ms is 50 ms of work in ten parts. By the kernel's rules slices of
    // 5 ms are stranded on CPUs; by ours nothing is throttled while the pool holds budget.
    let time = |rules| {
        let mut plan = plan("10", 10);
        plan.settings.config.bandwidth = rules;
        let group = limited(&mut plan, "app", 200, 100);
        let shape = OpenLoop {
            threads: 10,
            work: Span::Fixed(Nanos::from_millis(5)),
            gap: Span::Fixed(Nanos::from_millis(100)),
            parts: 10,
            begin: Nanos::ZERO,
        };
        synthetic::open_loop(&mut plan, "app", group, shape);
        run(&plan).meter("app").unwrap().times.max_ns / MILLI
    };
    assert_eq!(time(BandwidthRules::Default), 5);
    assert!(time(BandwidthRules::KERNEL) >= 5);
}

#[test]
fn a_limit_can_change_and_end() {
    let mut plan = plan("1", 3);
    let group = limited(&mut plan, "box", 10, 100);
    synthetic::spinners(&mut plan, "box", group, 1);
    plan.settings.throttling = Throttling::Exact;
    let half = Limit::new(Nanos::from_millis(50), Nanos::from_millis(100));
    for (at, limit) in [(1, Some(half)), (2, None)] {
        plan.changes.push(Change {
            at: Nanos::from_secs(at),
            group: 0,
            action: Action::Limit(limit),
        });
    }
    let used = run(&plan).group("box").unwrap().usage_ns / MILLI;
    assert!(used.abs_diff(100 + 500 + 1_000) <= 60, "{used}");
}

#[test]
fn impossible_limits_are_named() {
    let mut plan = plan("1", 1);
    limited(&mut plan, "box", 0, 100);
    let error = Simulation::new(&plan, Discard).err().expect("no quota");
    assert!(error.to_string().contains("limit of group box"), "{error}");
}

#[test]
fn counters_and_trace_of_nested_limits_say_the_same() {
    for rules in [BandwidthRules::Default, BandwidthRules::KERNEL] {
        let mut plan = plan("2", 2);
        plan.settings.config.bandwidth = rules;
        limited(&mut plan, "p", 30, 100);
        // Wider than the one above, so never the one that throttles; and one that always does.
        let wide = limited(&mut plan, "p/wide", 60, 100);
        let narrow = limited(&mut plan, "p/narrow", 5, 100);
        synthetic::spinners(&mut plan, "wide", wide, 2);
        synthetic::spinners(&mut plan, "narrow", narrow, 2);
        let mut simulation = Simulation::new(&plan, Statistics::new()).expect("a valid plan");
        simulation.run().expect("a run that goes on");
        let outcome = simulation.outcome();
        let figures = simulation.into_sink().finish();
        for traced in &figures.groups {
            let counted = outcome.group(&traced.group).expect("the same groups");
            // What the trace ends in is counted there only when the period is over.
            let periods = traced.nr_throttled.abs_diff(counted.nr_throttled);
            assert!(periods <= 1, "{rules:?}: {traced:?} {counted:?}");
            let time = traced.throttled_ns.abs_diff(counted.throttled_ns);
            assert!(time <= 200 * MILLI, "{rules:?}: {traced:?} {counted:?}");
        }
        assert_eq!(
            outcome.group("p/wide").unwrap().nr_throttled,
            0,
            "{rules:?}"
        );
        assert!(outcome.group("p").unwrap().nr_throttled >= 18, "{rules:?}");
    }
}

#[test]
fn a_throttle_that_ends_with_a_refill_counts_in_one_period() {
    for rules in [BandwidthRules::Default, BandwidthRules::KERNEL] {
        let mut plan = plan("8", 10);
        plan.settings.config.bandwidth = rules;
        let group = limited(&mut plan, "box", 10, 100);
        let limit = plan.groups[0].limit.expect("just set");
        plan.groups[0].limit = Some(limit.with_burst(Nanos::from_millis(10)));
        // Each time it has what is saved up, waits for the next refill, and has enough then.
        let work = Span::Fixed(Nanos::from_millis(25));
        synthetic::periodic(&mut plan, "job", group, 1, work, Nanos::from_millis(500));
        let mut simulation = Simulation::new(&plan, Statistics::new()).expect("a valid plan");
        simulation.run().expect("a run that goes on");
        let stats = simulation.groups()[1].bandwidth_stats();
        let figures = simulation.into_sink().finish();
        let traced = figures.groups.iter().find(|group| group.group == "box");
        let traced = traced.expect("the same groups").nr_throttled;
        assert!(stats.throttles >= 19, "{rules:?}: {stats:?}");
        assert_eq!(
            (stats.nr_throttled, traced),
            (stats.throttles, stats.throttles),
            "{rules:?}: {stats:?}"
        );
    }
}
