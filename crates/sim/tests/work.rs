//! What the engine has to do for a run, counted and not timed: the part of its speed that is the same on every machine.

use quotient_core::Nanos;
use quotient_sim::synthetic;
use quotient_sim::{Machine, Plan, Simulation, Span, speed};
use quotient_trace::Discard;

fn run(plan: &Plan) -> Simulation {
    let mut simulation = Simulation::new(plan, Discard).expect("a valid plan");
    simulation.run().expect("a run that goes on");
    simulation
}

/// Tasks that take turns on CPUs of their own, on a machine that is never short.
fn calm(cpus: u32) -> Plan {
    let mut plan = Plan::new(Machine::flat(cpus));
    plan.duration = Nanos::from_millis(200);
    let group = plan.group("calm");
    let span = |micros| Span::Fixed(Nanos::from_micros(micros));
    synthetic::closed_loop(&mut plan, "calm", group, cpus / 2, span(300), span(400));
    plan
}

/// A plan of balancing looks at every CPU: with hogs and limits on 64 CPUs that was 43 % of all instructions, made at every tick whether
/// anything waited or not.
#[test]
fn nobody_is_balanced_while_nothing_waits() {
    for cpus in [2, 64, 256] {
        let simulation = run(&calm(cpus));
        assert!(simulation.outcome().mechanisms.wakeups > 100);
        assert_eq!(simulation.plans(), 0, "{cpus} CPUs");
    }
}

/// Where tasks wait all the time, each CPU plans once a balancing period and once when it falls idle, however many of its neighbours
/// changed.
#[test]
fn a_busy_cpu_is_balanced_once_a_period_at_most() {
    for (name, plan) in [
        ("bench", speed::plan(64, 1_280, 0.02)),
        ("heavy", speed::heavy(64, 1_280, 0.02)),
    ] {
        let simulation = run(&plan);
        // Half a millisecond for every eight CPUs.
        let period = 4_000_000;
        let periods = (plan.duration.0 / period + 1) * 64;
        // These machines are overloaded: falling idle is rare.
        let idle = simulation.outcome().mechanisms.switches;
        assert!(
            simulation.plans() <= periods + idle / 20,
            "{name}: {} plans, {periods} periods, {idle} switches",
            simulation.plans()
        );
        assert!(simulation.plans() > 64, "{name}: some are made");
    }
}

/// Moments that end in nothing (a timer of who was woken otherwise, the end of a step that was put off) would be work without events.
#[test]
fn moments_are_fewer_than_events() {
    for (name, plan) in [
        ("bench-8", speed::plan(8, 160, 0.005)),
        ("bench-64", speed::plan(64, 1_280, 0.02)),
        ("heavy-64", speed::heavy(64, 1_280, 0.02)),
        ("calm-64", calm(64)),
    ] {
        let simulation = run(&plan);
        let (moments, events) = (simulation.moments(), simulation.events());
        assert!(moments <= events, "{name}: {moments} for {events} events");
    }
}
