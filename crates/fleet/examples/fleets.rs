//! Fleets of 10, 1,000 and 10,000 processes in virtual time, and two other designs under the same loads:
//! `cargo run --release -p quotient-fleet --no-default-features --example fleets` (`-- 10 1000`: only these sizes).
//!
//! Exit status 1 if a window exceeds the bound. Where less than 97 % of a quota is used that more is wanted of, the row says so.

use std::error::Error;

use quotient_fleet::simulation::{
    Event, Fault, Load, Outcome, REQUEST_COST, Rival, Scenario, TARGET_PERIOD, run, run_rival,
};
use quotient_fleet::{FleetLimit, MicroCpus, Micros};

const QUOTA: MicroCpus = MicroCpus::whole(12);
const TIME: Micros = Micros::from_secs(200);
const KILLED_AT: Micros = Micros::from_secs(103);

const LOADS: [(&str, Load); 5] = [
    ("even", Load::Even),
    ("skewed", Load::Skewed),
    ("moving, 40 s", Load::Moving(Micros::from_secs(40))),
    ("bursts, 10 s", Load::Bursty(Micros::from_secs(10))),
    ("bursts, 1 s", Load::Bursty(Micros::SECOND)),
];

fn scenario(processes: u32, load: Load) -> Scenario {
    Scenario {
        processes: processes as usize,
        cpus: MicroCpus::whole(16),
        limit: FleetLimit::new(QUOTA).with_processes(processes),
        load,
        pressure: 2.0,
        faults: Vec::new(),
        loss_per_mille: 0,
        time: TIME,
        seed: 1,
    }
}

fn seconds(micros: f64) -> f64 {
    micros / 1e6
}

fn followed(outcome: &Outcome) -> String {
    let show = |time: Option<Micros>| time.map_or(f64::NAN, |time| seconds(time.0 as f64));
    match outcome.followed {
        None => "-".to_owned(),
        some => format!("{:.2} / {:.2} s", show(outcome.followed_mean), show(some)),
    }
}

/// One row of ours.
fn ours(processes: u32, name: &str, load: Load) -> Outcome {
    let outcome = run(&scenario(processes, load));
    // Written so that "not a number" is missed, too.
    let missed = if outcome.use_when_short >= 0.97 {
        ""
    } else {
        " (missed: 97 %)"
    };
    println!(
        "| {processes} | {name} | {:.1} %{missed} | {:.2} of {:.2} s | {:.0} / {} | {} |",
        100.0 * outcome.use_when_short,
        seconds(outcome.excess),
        seconds(outcome.allowed),
        outcome.calls,
        outcome.calls_most,
        followed(&outcome),
    );
    outcome
}

/// One row of a design. What is lost when half of the processes die at once is the difference to the same run without.
fn compare(
    processes: u32,
    (name, load): (&str, Load),
    design: &str,
    outcome: &Outcome,
    simulate: impl Fn(&Scenario) -> Outcome,
) {
    let lost = match load {
        Load::Even => {
            let killed = simulate(&Scenario {
                faults: vec![Event {
                    at: KILLED_AT,
                    fault: Fault::Die(0.5),
                }],
                ..scenario(processes, load)
            });
            format!("{:.2} s", seconds(outcome.used - killed.used))
        }
        _ => String::new(),
    };
    println!(
        "| {processes} | {name} | {design} | {:.1} % | {:.2} s | {:.0} / {} | {} | {:.2} s | {lost} |",
        100.0 * outcome.use_when_short,
        seconds(outcome.excess_of_quota),
        outcome.calls,
        outcome.calls_most,
        followed(outcome),
        seconds(outcome.stranded_time),
    );
}

fn main() -> Result<(), Box<dyn Error>> {
    let sizes: Result<Vec<u32>, _> = std::env::args().skip(1).map(|size| size.parse()).collect();
    let mut sizes = sizes?;
    if sizes.is_empty() {
        sizes = vec![10, 1_000, 10_000];
    }
    if let Some(size) = sizes.iter().find(|size| !(10..=100_000).contains(*size)) {
        return Err(format!("{size} processes, allowed are 10 to 100000").into());
    }
    println!(
        "{QUOTA} for all, twice that wanted (bursts: on average), 16 CPU a process, {} s of virtual time, lease 1 s for each thousand \
         processes, seed 1. Use: of what the quota earned while more was wanted. Calls: a second, mean / fullest second. Followed: time \
         from a move of the load until its new processes have 90 % of what is due to them, mean / longest.\n",
        seconds(TIME.0 as f64)
    );
    println!(
        "| processes | load | use | fullest window beyond quota and floors, of the bound | calls | followed |"
    );
    println!("|---|---|---|---|---|---|");
    let mut outcomes = Vec::new();
    for &processes in &sizes {
        for (name, load) in LOADS {
            outcomes.push((processes, (name, load), ours(processes, name, load)));
        }
    }
    println!(
        "\nLeases beside models of two other designs: a token bucket with trickle grants (CockroachDB's RFC 20210604, period {} s), and a \
         limiter that asks for each request ({} ms). Stranded: what processes without work may still use. Lost: half of the processes die at \
         once and begin anew.\n",
        seconds(TARGET_PERIOD.0 as f64),
        REQUEST_COST.0 / 1_000,
    );
    println!(
        "| processes | load | design | use | fullest window beyond the quota | calls | followed | stranded | lost |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (processes, load, outcome) in &outcomes {
        compare(*processes, *load, "leases", outcome, run);
        for (name, rival) in [
            ("token bucket", Rival::TokenBucket),
            ("each request", Rival::PerRequest),
        ] {
            let simulate = |scenario: &Scenario| run_rival(scenario, rival);
            let outcome = simulate(&scenario(*processes, load.1));
            compare(*processes, *load, name, &outcome, simulate);
        }
    }
    let good = |outcome: &Outcome| outcome.excess <= outcome.allowed;
    if outcomes.iter().all(|(_, _, outcome)| good(outcome)) {
        return Ok(());
    }
    Err("a window exceeds the bound".into())
}
