//! CPUs that run one task without ticks: whoever comes elsewhere finds its group's time as it is, not as it was when that task began.

use quotient_core::{Limit, Nanos, Weight};
use quotient_sim::synthetic;
use quotient_sim::{Action, Change, Machine, Outcome, Plan, Simulation, Ticks};
use quotient_trace::{Discard, Event};

fn run(plan: &Plan) -> Outcome {
    let mut simulation = Simulation::new(plan, Discard).expect("a valid plan");
    simulation.run().expect("a run that goes on");
    simulation.check().expect("invariants");
    simulation.outcome()
}

/// What each group got, in milliseconds.
fn usage(plan: &Plan, paths: &[&str]) -> Vec<u64> {
    let outcome = run(plan);
    let of = |path: &&str| outcome.group(path).expect("a group of the plan").usage_ns / 1_000_000;
    paths.iter().map(of).collect()
}

/// `count` tasks that compute from `begin` on.
fn spin_from(plan: &mut Plan, path: &str, weight: u32, count: u32, begin: Nanos) {
    let group = plan.group(path);
    plan.groups.last_mut().expect("just added").weight = Weight::new(weight).expect("a weight");
    synthetic::spinners(plan, path, group, count);
    let workload = plan.workloads.last_mut().expect("just added");
    for task in &mut workload.tasks {
        task.begin = begin;
    }
}

/// Two CPUs: `q` has one task, and after 20 of 40 s an equal group `p` has two.
fn newcomer() -> Plan {
    let mut plan = Plan::new(Machine::flat(2));
    plan.duration = Nanos::from_secs(40);
    spin_from(&mut plan, "q", 100, 1, Nanos::ZERO);
    spin_from(&mut plan, "p", 100, 2, Nanos::from_secs(20));
    plan
}

#[test]
fn a_group_that_was_alone_owes_nothing_for_it() {
    let got = usage(&newcomer(), &["p", "q"]);
    assert!(got[1] >= 39_900, "{got:?}");
}

#[test]
fn groups_that_were_alone_beside_each_other_owe_nothing_for_it() {
    // a and b have a CPU each for 20 s, whatever they weigh; then c comes with two tasks and half of all weights.
    let mut plan = Plan::new(Machine::flat(2));
    plan.duration = Nanos::from_secs(40);
    for (path, weight, count) in [("a", 100, 1), ("b", 300, 1), ("c", 400, 2)] {
        let begin = Nanos::from_secs(if path == "c" { 20 } else { 0 });
        spin_from(&mut plan, path, weight, count, begin);
    }
    let mut busy = plan.clone();
    busy.machine.ticks = Ticks::Busy;
    let (needed, busy) = (
        usage(&plan, &["a", "b", "c"]),
        usage(&busy, &["a", "b", "c"]),
    );
    for (needed, busy) in needed.iter().zip(&busy) {
        assert!(needed.abs_diff(*busy) < 200, "{needed:?} {busy:?}");
    }
}

#[test]
fn a_weight_that_is_set_while_a_group_is_alone_holds_from_then_on() {
    let mut plan = newcomer();
    plan.changes.push(Change {
        at: Nanos::from_secs(10),
        group: 0,
        action: Action::Weight(Weight::new(300).expect("a weight")),
    });
    let got = usage(&plan, &["p", "q"]);
    assert!(got[1] >= 39_900, "{got:?}");
}

/// Hazard: a task that is alone on its CPU is charged for what lies behind; a limit that it uses first there has its period begin there,
/// and the refill that follows took the run back to when it was due.
#[test]
fn a_limit_that_is_used_first_while_alone_takes_no_time_back() {
    // As much quota as there are CPUs, so that nobody is watched.
    let limit = Limit::new(Nanos::from_millis(200), Nanos::from_millis(100));
    let end = Nanos::from_secs(15);
    for by_weight in [false, true] {
        let mut plan = Plan::new(Machine::flat(2));
        plan.duration = end;
        plan.settings.check = true;
        spin_from(&mut plan, "g", 100, 1, Nanos::ZERO);
        let mut change = |seconds, action| {
            plan.changes.push(Change {
                at: Nanos::from_secs(seconds),
                group: 0,
                action,
            });
        };
        change(4, Action::Limit(Some(limit)));
        if by_weight {
            change(7, Action::Weight(Weight::new(300).expect("a weight")));
        } else {
            spin_from(&mut plan, "h", 100, 1, Nanos::from_secs(7));
        }
        let mut stats = Vec::new();
        for ticks in [Ticks::Needed, Ticks::Busy] {
            plan.machine.ticks = ticks;
            let mut simulation = Simulation::new(&plan, Vec::<Event>::new()).expect("a valid plan");
            simulation.run().expect("a run that goes on");
            assert_eq!(simulation.now(), end);
            let group = &simulation.groups()[1];
            assert_eq!(group.cpu_time(), end, "{ticks:?}");
            assert!(group.bandwidth_account().is_balanced(), "{ticks:?}");
            assert_eq!(group.bandwidth_account().consumed, 11_000_000_000);
            stats.push(group.bandwidth_stats());
            let events = simulation.into_sink();
            let back = events.windows(2).find(|pair| pair[1].time < pair[0].time);
            assert_eq!(back, None, "{ticks:?}");
        }
        assert_eq!((stats[0].nr_periods, stats[0].throttles), (109, 0));
        assert_eq!(stats[0], stats[1], "by weight: {by_weight}");
    }
}
