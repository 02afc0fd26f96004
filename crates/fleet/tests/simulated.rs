//! Fleets in virtual time: what they use, and what becomes of it when something fails.

use quotient_fleet::simulation::{
    Event, Fault, Load, Outcome, REQUEST_COST, Rival, Scenario, run, run_rival,
};
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

/// Ten processes, of which one can use more than the quota and each holds most of it in its burst: who had one must not hold what the next one
/// wants, who got next to nothing must not wait for a renewal's time, and who needs more all at once not for a tick.
#[test]
fn bursts_of_a_second_among_a_few_processes_use_the_quota() {
    for seed in 1..=12 {
        let outcome = run(&Scenario {
            cpus: MicroCpus::whole(16),
            time: seconds(200),
            seed,
            ..scenario(10, Load::Bursty(seconds(1)))
        });
        show("bursts", &outcome);
        assert!(outcome.use_when_short >= 0.97, "seed {seed}: {outcome:?}");
        assert!(
            outcome.excess <= outcome.allowed,
            "seed {seed}: {outcome:?}"
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

/// The models of other designs meet the loads that ours meets, and show what each is known for.
#[test]
fn a_call_for_each_request_is_exact_and_dear_and_long_grants_strand_budget() {
    let scenario = scenario(40, Load::Moving(seconds(25)));
    let scenario = Scenario {
        time: seconds(55),
        cpus: MicroCpus::whole(16),
        ..scenario
    };
    let ours = run(&scenario);
    let each = run_rival(&scenario, Rival::PerRequest);
    let bucket = run_rival(&scenario, Rival::TokenBucket);
    show("leases", &ours);
    show("each request", &each);
    show("token bucket", &bucket);
    // Twice the quota is wanted, in requests of this much, whether they are admitted or not.
    let wanted = 2.0 * 12.0 * 1e6 / REQUEST_COST.0 as f64;
    assert!((each.calls / wanted - 1.0).abs() < 0.01, "{each:?}");
    assert!((each.use_when_short - 1.0).abs() < 0.01, "{each:?}");
    assert!(each.excess <= each.allowed, "{each:?}");
    assert_eq!(each.stranded_time, 0.0);
    assert!(bucket.calls < ours.calls / 4.0, "{bucket:?}");
    assert!(bucket.stranded_time > 10.0 * ours.stranded_time);
    assert!(bucket.followed > ours.followed, "{bucket:?}");
    assert!(bucket.excess > ours.allowed, "{bucket:?}");
}

#[test]
fn who_dies_loses_what_it_held_and_no_more() {
    let whole = scenario(100, Load::Even);
    let killed = Scenario {
        faults: vec![Event {
            at: seconds(10),
            fault: Fault::Die(0.5),
        }],
        ..whole.clone()
    };
    let lost = run(&whole).used - run(&killed).used;
    // Half of the quota, for one lease; and something, or nobody died.
    let most = 0.5 * whole.limit.capacity().0 as f64;
    assert!(lost > 0.0 && lost <= most, "{lost} of {most}");
    let each = |scenario: &Scenario| run_rival(scenario, Rival::PerRequest).used;
    assert!((each(&whole) - each(&killed)).abs() < 1e6 * 0.1);
}
