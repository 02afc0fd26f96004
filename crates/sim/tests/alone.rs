//! CPUs that run one task without ticks: whoever comes elsewhere finds its group's time as it is, not as it was when that task began.

use quotient_core::{Nanos, Weight};
use quotient_sim::synthetic;
use quotient_sim::{Action, Change, Machine, Outcome, Plan, Simulation, Ticks};
use quotient_trace::Discard;

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
