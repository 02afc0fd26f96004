//! What happens in a run, told by one number: the same plan always gives the same events, whoever listens and in however many pieces the
//! run is cut.
//!
//! `digests.txt` protects changes that are to change nothing. Whoever makes the engine or the core faster, or divides a function, holds nine
//! runs of all kinds (many CPUs, nested groups, limits, hyperthreads, three sets of rules, tasks kept to a few CPUs) against it, event by event:
//!
//! `cargo test --release -p quotient-sim --test digest -- --ignored --nocapture`
//!
//! A change of policy changes the numbers rightly, so that the suite does not ask for them. Then the lines that the test prints become the
//! file's, in the commit of that change: a file that is behind protects nothing, since nobody can tell one change from another.

use quotient_core::{Limit, Nanos};
use quotient_sim::synthetic::{self, OpenLoop};
use quotient_sim::{Kernel, Machine, Plan, Simulation, Span, speed};
use quotient_trace::{Definition, Event, Sink};
use std::fmt::Write as _;

/// FNV-1a over everything that a sink is told.
struct Digest(u64, u64);

impl Digest {
    const NEW: Digest = Digest(0xcbf2_9ce4_8422_2325, 0);
}

impl std::fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(())
    }
}

impl Sink for Digest {
    fn event(&mut self, event: &Event) {
        self.1 += 1;
        write!(self, "{event:?}").expect("writing to a number");
    }

    fn define(&mut self, definition: &Definition) {
        write!(self, "{definition:?}").expect("writing to a number");
    }
}

/// What a run tells and what comes of it, as one line.
fn digest(plan: &Plan, pieces: u64) -> String {
    let mut simulation = Simulation::new(plan, Digest::NEW).expect("a valid plan");
    for piece in 1..=pieces {
        let until = Nanos(plan.duration.0 * piece / pieces);
        simulation.advance(until).expect("a run that goes on");
    }
    let outcome = simulation.outcome();
    let figures = format!("{:?}", (outcome.groups, outcome.workloads, outcome.meters));
    let mut told = simulation.into_sink();
    told.write_str(&figures).expect("writing to a number");
    format!("{:016x} {} events", told.0, told.1)
}

fn millis(count: u64) -> Nanos {
    Nanos::from_millis(count)
}

fn exponential(micros: u64) -> Span {
    Span::Exponential {
        mean: Nanos::from_micros(micros),
    }
}

/// A kernel's rules on hyperthreads and caches, with costs, noise, limits and requests.
fn kernel(kernel: Kernel) -> Plan {
    let mut machine = Machine::parse("2x4x2").expect("a machine");
    machine.caches = 2;
    let mut plan = Plan::new(machine);
    kernel.apply(&mut plan);
    plan.duration = millis(300);
    plan.costs.switch = Nanos(1_000);
    plan.costs.wake = Nanos(300);
    plan.costs.ipi_send = Nanos(200);
    plan.costs.ipi_receive = Nanos(700);
    plan.costs.tick = Nanos(1_500);
    plan.costs.migrate_near = Nanos(2_000);
    plan.costs.migrate_far = Nanos(5_000);
    plan.costs.noise_every = millis(3);
    plan.costs.noise_length = Nanos(20_000);
    let (web, batch) = (plan.group("web"), plan.group("batch/deep"));
    plan.groups[0].limit = Some(Limit::new(millis(60), millis(20)));
    let shape = OpenLoop {
        threads: 12,
        work: exponential(400),
        gap: exponential(120),
        parts: 2,
        begin: Nanos::ZERO,
    };
    synthetic::open_loop(&mut plan, "web", web, shape);
    synthetic::spinners(&mut plan, "batch", batch, 9);
    synthetic::messaging(&mut plan, "chat", batch, 2, 3, 40, exponential(30));
    plan
}

/// Tasks kept to some CPUs, a wake chain, a pipe.
fn bound() -> Plan {
    let mut plan = Plan::new(Machine::flat(4));
    plan.duration = millis(300);
    let group = plan.group("a/b");
    synthetic::wake_and_work(
        &mut plan,
        "schbench",
        group,
        7,
        exponential(200),
        exponential(80),
    );
    synthetic::pipe_test(&mut plan, "pipe", None, 500, exponential(10), Some(1));
    synthetic::periodic(&mut plan, "timer", group, 3, exponential(900), millis(4));
    let set = plan.cpuset(vec![0, 2]);
    for task in &mut plan.workloads[0].tasks {
        task.cpuset = Some(set);
    }
    plan
}

fn plans() -> Vec<(&'static str, Plan)> {
    vec![
        ("bench-8", speed::plan(8, 160, 0.002)),
        ("bench-64", speed::plan(64, 1_280, 0.012)),
        ("bench-128", speed::plan(128, 2_560, 0.006)),
        ("heavy-8", speed::heavy(8, 160, 0.03)),
        ("heavy-64", speed::heavy(64, 1_280, 0.03)),
        ("kernel-6.18", kernel(Kernel::Linux6_18)),
        ("kernel-6.6", kernel(Kernel::Linux6_6)),
        ("ours", kernel(Kernel::Ours)),
        ("bound", bound()),
    ]
}

#[test]
fn a_run_is_the_same_in_one_piece_and_in_many() {
    for (name, mut plan) in plans() {
        plan.duration = Nanos(plan.duration.0 / 8);
        assert_eq!(digest(&plan, 1), digest(&plan, 7), "{name}");
    }
}

#[test]
#[ignore = "policy changes these rightly; whoever changes only how fast the engine is compares them"]
fn events_are_those_of_the_file() {
    let known = include_str!("digests.txt");
    let mut found = String::new();
    for (name, plan) in plans() {
        writeln!(found, "{name} {}", digest(&plan, 1)).expect("writing to a text");
    }
    print!("{found}");
    assert_eq!(known, found);
}
