//! The swarm: a bounded number of random scenarios under the invariant checker. `QUOTIENT_SWARM=100000` runs more,
//! from the seed in `QUOTIENT_SWARM_SEED` (0 if not set).

use quotient_sim::fuzz;

/// How many by default: some seconds in a debug build.
const CASES: u64 = 20;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text} is no number")),
        Err(_) => default,
    }
}

#[test]
fn random_scenarios_keep_every_invariant() {
    let first = number("QUOTIENT_SWARM_SEED", 0);
    let count = number("QUOTIENT_SWARM", CASES);
    if let Err(failure) = fuzz::run(first..first + count) {
        panic!(
            "seed {}: {}\n\n{}",
            failure.seed, failure.what, failure.scenario
        );
    }
}
