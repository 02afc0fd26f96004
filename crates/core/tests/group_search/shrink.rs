//! Makes a set-up that was found smaller while what was found stays.

use crate::common::Work;
use crate::setup::{Leaf, Setup};

/// Every set-up that is one step smaller: a group, a task or a CPU less, a plainer weight, a rounder time.
fn smaller(setup: &Setup) -> Vec<Setup> {
    let mut steps = Vec::new();
    let mut step = |change: &dyn Fn(&mut Setup)| {
        let mut changed = setup.clone();
        change(&mut changed);
        steps.push(changed);
    };
    for top in 0..setup.tops.len() {
        step(&|setup| {
            drop(setup.tops.remove(top));
            setup.beside.retain(|row| row.top != Some(top));
            for row in &mut setup.beside {
                row.top = row.top.map(|other| other - usize::from(other > top));
            }
        });
    }
    for (number, row) in setup.beside.iter().enumerate() {
        step(&|setup| _ = setup.beside.remove(number));
        if row.tasks > 1 {
            step(&|setup| setup.beside[number].tasks /= 2);
            step(&|setup| setup.beside[number].tasks -= 1);
        }
        if !matches!(row.work, Work::Hog { chunk: 250_000 }) {
            step(&|setup| setup.beside[number].work = Work::Hog { chunk: 250_000 });
        }
    }
    if setup.cpus > 1 {
        step(&|setup| setup.cpus /= 2);
        step(&|setup| setup.cpus -= 1);
    }
    for (top, (weight, leaves)) in setup.tops.iter().enumerate() {
        if *weight != 100 {
            step(&|setup| setup.tops[top].0 = 100);
        }
        for (number, leaf) in leaves.iter().enumerate() {
            let mut change = |change: &dyn Fn(&mut Leaf)| {
                step(&|setup| change(&mut setup.tops[top].1[number]));
            };
            if leaf.tasks > 1 {
                change(&|leaf| leaf.tasks /= 2);
                change(&|leaf| leaf.tasks -= 1);
            }
            if leaf.weight != 100 {
                change(&|leaf| leaf.weight = 100);
            }
            if !matches!(leaf.work, Work::Hog { chunk: 250_000 }) {
                change(&|leaf| leaf.work = Work::Hog { chunk: 250_000 });
            }
            if leaves.len() > 1 {
                step(&|setup| drop(setup.tops[top].1.remove(number)));
            }
        }
    }
    steps.retain(|setup| !setup.tops.is_empty());
    steps.iter_mut().for_each(rename);
    steps
}

/// Names leaves by where they are now: one with the name of a place that is gone would be below a group of another weight.
fn rename(setup: &mut Setup) {
    for (top, (_, leaves)) in setup.tops.iter_mut().enumerate() {
        for (number, leaf) in leaves.iter_mut().enumerate() {
            leaf.name = format!("{top}/{number}");
        }
    }
}

/// The smallest set-up that can be reached by steps each of which is still `found`. At most `tries` are looked at.
pub fn shrink(setup: &Setup, tries: usize, found: impl Fn(&Setup) -> bool) -> Setup {
    let (mut smallest, mut left) = (setup.clone(), tries);
    'again: loop {
        for candidate in smaller(&smallest) {
            if left == 0 {
                return smallest;
            }
            left -= 1;
            if found(&candidate) {
                smallest = candidate;
                continue 'again;
            }
        }
        return smallest;
    }
}

/// As a row of `finds`.
pub fn row(setup: &Setup) -> String {
    let of = |work: Work| match work {
        Work::Hog { chunk } => format!("hog({chunk})"),
        Work::Periodic { run, sleep } => format!("periodic({run}, {sleep})"),
        other => format!("{other:?}"),
    };
    let mut text = format!("Setup::of({}, &[", setup.cpus);
    for (weight, leaves) in &setup.tops {
        text += &format!("({weight}, &[");
        for leaf in leaves {
            text += &format!("({}, {}, {}),", leaf.weight, leaf.tasks, of(leaf.work));
        }
        text += "]),";
    }
    text += "])";
    for row in &setup.beside {
        text += &format!(".with({:?}, {}, {})", row.top, row.tasks, of(row.work));
    }
    text
}

#[test]
fn a_find_shrinks_to_what_it_needs() {
    let hog = Work::Hog { chunk: 50_000 };
    let sleeper = Work::Periodic {
        run: 50_000,
        sleep: 100_000,
    };
    let setup = Setup::of(
        8,
        &[
            (700, &[(50, 4, hog), (200, 3, sleeper)]),
            (2_000, &[(100, 9, sleeper)]),
        ],
    )
    .with(Some(1), 3, hog)
    .with(None, 2, sleeper);
    // Says that two CPUs and a sleeper are what matters.
    let smallest = shrink(&setup, 1_000, |setup| {
        let leaves = setup.tops.iter().flat_map(|(_, leaves)| leaves);
        let sleeps = |leaf: &Leaf| matches!(leaf.work, Work::Periodic { .. });
        setup.cpus >= 2 && leaves.into_iter().any(sleeps)
    });
    assert_eq!(
        row(&smallest),
        "Setup::of(2, &[(100, &[(100, 1, periodic(50000, 100000)),]),])"
    );
}
