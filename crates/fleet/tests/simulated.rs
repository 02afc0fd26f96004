//! Fleets in virtual time: what they use, and what becomes of it when something fails.

use quotient_fleet::simulation::{Event, Fault, Load, Outcome, Scenario, run};
use quotient_fleet::{FleetLimit, MicroCpus, Micros};

fn scenario(processes: usize, load: Load) -> Scenario {
    let limit = FleetLimit::new(MicroCpus::whole(12)).with_processes(processes as u32);
    Scenario {
        processes,
        cpus: MicroCpus::whole(4),
        limit,
        load,
        pressure: 2.0,
        faults: Vec::new(),
        loss_per_mille: 0,
        time: Micros::from_secs(20),
        seed: 1,
    }
}

fn show(name: &str, outcome: &Outcome) {
    println!("{name}: {outcome:?}");
}

fn seconds(seconds: u64) -> Micros {
    Micros::from_secs(seconds)
}

#[test]
fn a_quota_that_more_is_wanted_of_is_used() {
    for (count, load) in [
        (10, Load::Even),
        (10, Load::Skewed),
        (100, Load::Even),
        (100, Load::Skewed),
        (100, Load::Moving(seconds(8))),
        (100, Load::Bursty(seconds(8))),
    ] {
        let outcome = run(&scenario(count, load));
        show(&format!("{count} {load:?}"), &outcome);
        assert!(
            outcome.use_when_short >= 0.97,
            "{count} {load:?}: {outcome:?}"
        );
        assert!(
            outcome.excess <= outcome.allowed,
            "{count} {load:?}: {outcome:?}"
        );
        assert!(
            outcome.calls <= 4.0 * count as f64,
            "{count} {load:?}: {outcome:?}"
        );
    }
}

#[test]
fn no_window_exceeds_the_bound_whatever_fails() {
    let after = |at: u64, fault| Event {
        at: seconds(at),
        fault,
    };
    let limit = FleetLimit::new(MicroCpus::whole(3));
    let faults = vec![
        after(3, Fault::Die(0.3)),
        after(5, Fault::Pause(0.3, seconds(2))),
        after(8, Fault::Partition(0.5, seconds(3))),
        after(9, Fault::Restart { keeps: true }),
        after(12, Fault::Restart { keeps: false }),
        after(15, Fault::Away(seconds(3))),
        after(20, Fault::Write(limit)),
        after(22, Fault::Write(limit.with_burst(seconds(2)))),
        after(25, Fault::Partition(1.0, seconds(5))),
    ];
    for load in [
        Load::Even,
        Load::Moving(seconds(2)),
        Load::Bursty(seconds(1)),
    ] {
        for seed in 0..4 {
            let outcome = run(&Scenario {
                faults: faults.clone(),
                loss_per_mille: 50,
                time: seconds(32),
                seed,
                ..scenario(20, load)
            });
            show(&format!("{load:?} {seed}"), &outcome);
            assert!(outcome.excess <= outcome.allowed, "{load:?}: {outcome:?}");
        }
    }
}
