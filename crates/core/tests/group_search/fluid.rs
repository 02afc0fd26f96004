//! What a machine that can divide its processors at will gives each group: who is runnable at an instant has its max-min share of
//! that instant.
//!
//! It is what `shares` is only for tasks that never sleep: those count with their demand on average, though a group of sleepers that
//! wake together wants all CPUs for a while, and nothing after that. Beside six sleepers of 200 us in 700 us on three CPUs, in a group
//! of forty times its weight, a spinner has a CPU for 300 us of 700 by any fair rule, and 1.0 on average.

use crate::common::Work;
use crate::setup::{Setup, divide};

/// A task that sleeps now and then.
struct Sleeper {
    /// Of which leaf, or of which row of tasks after them.
    row: usize,
    run: f64,
    sleep: f64,
    /// Work left, ns; 0 while it sleeps.
    left: f64,
    wakes_at: f64,
}

/// The CPUs that each leaf gets, and each row of tasks beside them, over `seconds`, after half a second.
pub fn shares(setup: &Setup, seconds: u64) -> Vec<f64> {
    let leaves = setup.tops.iter().flat_map(|(_, leaves)| leaves);
    let leaves = leaves.map(|leaf| (leaf.tasks, leaf.work));
    let beside = setup.beside.iter().map(|row| (row.tasks, row.work));
    let rows: Vec<(usize, Work)> = leaves.chain(beside).collect();
    let mut sleepers = Vec::new();
    let mut spinners = vec![0; rows.len()];
    for (number, &(tasks, work)) in rows.iter().enumerate() {
        if let Work::Periodic { run, sleep } = work {
            sleepers.extend((0..tasks).map(|_| Sleeper {
                row: number,
                run: run as f64,
                sleep: sleep as f64,
                left: run as f64,
                wakes_at: f64::INFINITY,
            }));
        } else {
            spinners[number] = tasks;
        }
    }
    let (begin, end) = (5e8, 5e8 + seconds as f64 * 1e9);
    let (mut now, mut got) = (0.0_f64, vec![0.0; rows.len()]);
    while now < end {
        let mut runnable = spinners.clone();
        for sleeper in sleepers.iter().filter(|sleeper| sleeper.left > 0.0) {
            runnable[sleeper.row] += 1;
        }
        let rates = instant(setup, &runnable);
        let rate = |row: usize| rates[row] / runnable[row] as f64;
        let next = sleepers.iter().map(|sleeper| match sleeper.left > 0.0 {
            true => now + sleeper.left / rate(sleeper.row),
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
                sleeper.left -= rate(sleeper.row) * (next - now);
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

/// The CPUs that each row has while so many tasks of each can run.
fn instant(setup: &Setup, runnable: &[usize]) -> Vec<f64> {
    let (leaves, beside) = runnable.split_at(runnable.len() - setup.beside.len());
    let leaves: Vec<f64> = leaves.iter().map(|&count| count as f64).collect();
    let beside: Vec<_> = beside.iter().map(|&count| (count, 1.0)).collect();
    divide(setup, &leaves, &beside)
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
    let expect = |setup: &Setup, expected: &[f64]| {
        for (found, expected) in shares(setup, 1).iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    };
    expect(&setup, &[1.0 / 6.0, 0.5, 4.0 / 3.0]);
    // A task beside the leaves of the first group, and two of weight 100 beside both: a fifth of the machine each of them and that
    // group, of which its leaves have a fifth and three.
    let setup = setup.with(Some(0), 1, hog).with(None, 2, hog);
    expect(&setup, &[0.08, 0.24, 0.8, 0.08, 0.8]);
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
