//! What a machine that can divide its processors at will gives each group: who is runnable at an instant has its max-min share of
//! that instant.
//!
//! It is what `shares` is only for tasks that never sleep: those count with their demand on average, though a group of sleepers that
//! wake together wants all CPUs for a while, and nothing after that. Beside six sleepers of 200 us in 700 us on three CPUs, in a group
//! of forty times its weight, a spinner has a CPU for 300 us of 700 by any fair rule, and 1.0 on average.

use crate::common::Work;
use crate::setup::{Setup, fill};

/// A task that sleeps now and then.
struct Sleeper {
    leaf: usize,
    run: f64,
    sleep: f64,
    /// Work left, ns; 0 while it sleeps.
    left: f64,
    wakes_at: f64,
}

/// The CPUs that each leaf gets over `seconds`, after half a second.
pub fn shares(setup: &Setup, seconds: u64) -> Vec<f64> {
    let leaves: Vec<_> = setup.tops.iter().flat_map(|(_, leaves)| leaves).collect();
    let mut sleepers = Vec::new();
    let mut spinners = vec![0; leaves.len()];
    for (number, leaf) in leaves.iter().enumerate() {
        if let Work::Periodic { run, sleep } = leaf.work {
            sleepers.extend((0..leaf.tasks).map(|_| Sleeper {
                leaf: number,
                run: run as f64,
                sleep: sleep as f64,
                left: run as f64,
                wakes_at: f64::INFINITY,
            }));
        } else {
            spinners[number] = leaf.tasks;
        }
    }
    let (begin, end) = (5e8, 5e8 + seconds as f64 * 1e9);
    let (mut now, mut got) = (0.0_f64, vec![0.0; leaves.len()]);
    while now < end {
        let mut runnable = spinners.clone();
        for sleeper in sleepers.iter().filter(|sleeper| sleeper.left > 0.0) {
            runnable[sleeper.leaf] += 1;
        }
        let rates = instant(setup, &runnable);
        let rate = |leaf: usize| rates[leaf] / runnable[leaf] as f64;
        let next = sleepers.iter().map(|sleeper| match sleeper.left > 0.0 {
            true => now + sleeper.left / rate(sleeper.leaf),
            false => sleeper.wakes_at,
        });
        // Steps of a nanosecond at least: less is rounding.
        let next = next.fold(end, f64::min).max(now + 1.0);
        let judged = next - now.max(begin).min(next);
        for (got, rate) in got.iter_mut().zip(&rates) {
            *got += rate * judged;
        }
        for sleeper in &mut sleepers {
            if sleeper.left > 0.0 {
                sleeper.left -= rate(sleeper.leaf) * (next - now);
                if sleeper.left < 1.0 {
                    (sleeper.left, sleeper.wakes_at) = (0.0, next + sleeper.sleep);
                }
            } else if sleeper.wakes_at <= next + 1.0 {
                sleeper.left = sleeper.run;
            }
        }
        now = next;
    }
    got.iter().map(|got| got / (end - begin)).collect()
}

/// The CPUs that each leaf has while so many tasks of each can run.
fn instant(setup: &Setup, runnable: &[usize]) -> Vec<f64> {
    let cpus = f64::from(setup.cpus);
    let mut first = 0;
    let mut wants = Vec::new();
    for (weight, leaves) in &setup.tops {
        let counts = &runnable[first..first + leaves.len()];
        let inside: Vec<(u32, f64)> = leaves
            .iter()
            .zip(counts)
            .map(|(leaf, count)| (leaf.weight, (*count as f64).min(cpus)))
            .collect();
        let sum: f64 = counts.iter().sum::<usize>() as f64;
        wants.push(((*weight, sum.min(cpus)), inside));
        first += leaves.len();
    }
    let tops: Vec<(u32, f64)> = wants.iter().map(|(top, _)| *top).collect();
    let parts = fill(cpus, &tops);
    let inside = wants.iter().zip(parts);
    inside
        .flat_map(|((_, wants), part)| fill(part, wants))
        .collect()
}

#[test]
fn spinners_have_their_max_min_shares() {
    let hog = Work::Hog { chunk: 50_000 };
    let setup = Setup::of(
        2,
        &[
            (100, &[(100, 1, hog), (300, 1, hog)]),
            (200, &[(100, 2, hog)]),
        ],
    );
    let expected = [1.0 / 6.0, 0.5, 4.0 / 3.0];
    for (found, expected) in shares(&setup, 1).iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
}

#[test]
fn sleepers_that_wake_together_take_the_machine_together() {
    let sleeper = Work::Periodic {
        run: 200_000,
        sleep: 500_000,
    };
    let setup = Setup::of(
        3,
        &[(
            100,
            &[(2_000, 6, sleeper), (1, 1, Work::Hog { chunk: 50_000 })],
        )],
    );
    let found = shares(&setup, 2);
    // 400 us of all three CPUs, then 500 us in which the spinner has one.
    assert!((found[1] - 5.0 / 9.0).abs() < 0.01, "{found:?}");
}
