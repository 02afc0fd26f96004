//! How often a second CPUs write what they share for groups' times. The table for 2 to 512 CPUs, held to the same bar: `cargo test --release -p
//! quotient-core --test shared_writes -- --ignored --nocapture`.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::Config;

const WEIGHTS: [(&str, u32); 3] = [("one", 100), ("two", 200), ("seven", 700)];

/// Writes a second of one clock that are too many.
const BAR: u64 = 20_000;

/// What was counted over a second of virtual time, after half a second.
struct Writes {
    /// Of the clock of the groups at the top.
    root: u64,
    /// Of the busiest clock inside one of these.
    inside: u64,
    /// How far the groups at the top are from their weights, in percent of their entitlement.
    error: f64,
}

/// 1:2:7, with 1:7 in two of them; as many spinners a leaf as CPUs, polls of `chunk` ns.
fn writes(cpus: u32, chunk: u64) -> Writes {
    let mut machine = Machine::new(Config::new(cpus));
    machine.check_every = 1_000_003;
    for (outer, weight) in WEIGHTS {
        machine.group(outer, weight);
        let leaves: &[(&str, u32)] = match outer {
            "one" => &[("", 0)],
            _ => &[("/one", 100), ("/seven", 700)],
        };
        for (inner, weight) in leaves {
            let path = format!("{outer}{inner}");
            let group = match *weight {
                0 => machine.tree.find(&path).expect("a group of the test"),
                weight => machine.group(&path, weight),
            };
            for cpu in 0..cpus as usize {
                machine.spawn(cpu, &group, Work::Hog { chunk });
            }
        }
    }
    let top = |machine: &Machine, path: &str| machine.tree.find(path).expect("a group of the test");
    let count = |machine: &Machine| {
        let inside = ["two", "seven"].map(|path| top(machine, path).clock_writes());
        (machine.tree.root().clock_writes(), inside)
    };
    let used = |machine: &Machine| WEIGHTS.map(|(path, _)| usage(&top(machine, path)));
    machine.run_until(SECOND / 2);
    let (before, used_before) = (count(&machine), used(&machine));
    machine.run_until(SECOND / 2 + SECOND);
    let (after, used_after) = (count(&machine), used(&machine));
    let error = (0..3).map(|n| {
        let all = f64::from(cpus) * SECOND as f64;
        let entitled = all * f64::from(WEIGHTS[n].1) / 1_000.0;
        100.0 * ((used_after[n] - used_before[n]) as f64 / entitled - 1.0).abs()
    });
    Writes {
        root: after.0 - before.0,
        inside: (0..2).map(|n| after.1[n] - before.1[n]).max().unwrap_or(0),
        error: error.fold(0.0, f64::max),
    }
}

#[test]
fn clocks_are_written_20_000_times_a_second_on_2_to_32_cpus() {
    for (cpus, chunk) in [2, 4, 8, 16, 32].map(|cpus| (cpus, MILLI)) {
        let Writes { root, inside, .. } = writes(cpus, chunk);
        assert!(
            root <= BAR && inside <= BAR,
            "{cpus} CPUs, polls of {chunk} ns: {root} at the root, {inside} inside"
        );
    }
}

#[test]
#[ignore = "ten seconds where it is optimized"]
fn table_of_writes() {
    println!(
        "writes of a clock in a second; how far groups at the top are from their weights over it"
    );
    for cpus in [2, 4, 8, 16, 32, 64, 128, 512] {
        for chunk in [50_000, MILLI] {
            if chunk < MILLI && cpus > 64 {
                continue;
            }
            let Writes {
                root,
                inside,
                error,
            } = writes(cpus, chunk);
            // On fewer CPUs and with short polls, choices and moves alone come near it.
            let is_held = cpus > 8 || chunk == MILLI;
            assert!(
                !is_held || root <= BAR && inside <= BAR,
                "{cpus} CPUs: {root} at the root, {inside} inside"
            );
            println!(
                "{cpus:>4} CPUs, polls of {chunk:>8} ns: root {root:>7}  inside {inside:>7}  off {error:.2} %"
            );
        }
    }
}
