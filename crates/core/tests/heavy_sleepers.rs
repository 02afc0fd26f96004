//! Heavy tasks that sleep and come back with the lag that they left with, beside a light one that is always runnable, in a
//! group that seldom has its turn. V goes back each time one of them returns, and it was suspected that this can keep the
//! light one from running. It does not: it gets at least what it would get if they never slept. Where its waits are of
//! seconds, that is its share: at 100 beside 16 times 10,000 in one hundredth of a CPU, 0.4 ms a minute.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{Config, TaskEntity, Weight};

/// What the light task polls for, ns.
const POLL: u64 = MILLI / 2;

/// CPU time of the light task and of its group, ns.
fn light_among(heavy: u64, weight: u32, (run, sleep): (u64, u64), other: u32) -> (u64, u64) {
    let mut machine = Machine::new(Config::new(1));
    machine.check_every = 10_007;
    let group = machine.group("g", 100);
    let beside = machine.group("o", other);
    let entity = TaskEntity::new(Weight::new(weight).unwrap(), None);
    machine.spawn(0, &beside, Work::Hog { chunk: MILLI });
    for number in 0..heavy {
        let sleep = sleep + number * 13_001;
        machine.spawn_as(0, &group, Work::Periodic { run, sleep }, entity);
    }
    let light = machine.spawn(0, &group, Work::Hog { chunk: POLL });
    machine.run_until(10 * SECOND);
    (machine.tasks[light].ran, usage(&group))
}

#[test]
fn heavy_sleepers_keep_a_light_task_from_nothing_that_is_its_own() {
    let rhythms = [
        (MILLI / 2, 20 * MILLI),
        (MILLI / 2, 60 * MILLI),
        (3 * MILLI, 20 * MILLI),
        (MILLI / 10, MILLI),
    ];
    for heavy in [1, 4, 8, 16] {
        for weight in [1_000, 10_000] {
            for rhythm in rhythms {
                for other in [1_000, 10_000] {
                    let (ran, total) = light_among(heavy, weight, rhythm, other);
                    let share = total * 100 / (100 + heavy * u64::from(weight));
                    assert!(
                        ran + POLL >= share,
                        "{heavy} of {weight}, {rhythm:?} ns, beside {other}: {ran} of {share}"
                    );
                }
            }
        }
    }
}
