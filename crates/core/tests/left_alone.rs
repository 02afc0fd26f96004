//! A CPU that is left with one group's task, because another took all that waited there while it was stuck: the group must not go on
//! alone until it has had a multiple of what the others had.

mod common;

use common::{MILLI, Machine, SECOND, Work};
use quotient_core::balance::Pull;
use quotient_core::{Config, CpuId, Enqueue, Group, Nanos};
use std::sync::Arc;

/// Moves everything that waits on one CPU to another, as a host does for one that is stuck.
fn relieve(machine: &mut Machine, from: usize, to: usize) {
    let now = Nanos(machine.now);
    let mut moved = Vec::new();
    let everything = Pull {
        from: CpuId(from as u32),
        max: usize::MAX,
        group: 0,
        own: false,
        noted: false,
    };
    machine.queues[from].detach(&everything, now, &mut moved);
    for task in moved {
        machine.queues[to].enqueue(&task.group, task.entity, task.handle, Enqueue::Migrate, now);
    }
}

/// A turn is 250 us, as in the runtime, so that the lags of so many groups are less than what makes one worth pulling. While only those
/// were pulled, the one left alone had 167 ms where 99 others had 5, and then nothing for seconds.
#[test]
fn a_group_left_alone_on_a_cpu_does_not_run_ahead() {
    for count in [10_u64, 100, 1000] {
        let mut config = Config::new(2);
        config.base_slice = Nanos::from_micros(250);
        let mut machine = Machine::new(config);
        machine.check_every = 10_007;
        let groups: Vec<Arc<Group>> = (0..count)
            .map(|number| machine.group(&format!("group-{number}"), 100))
            .collect();
        for (number, group) in groups.iter().enumerate() {
            machine.spawn(number % 2, group, Work::Hog { chunk: 50_000 });
        }
        machine.advance_to(SECOND);
        for round in 0..4_u64 {
            let from = (round % 2) as usize;
            let before: Vec<u64> = groups.iter().map(|group| machine.ran(group)).collect();
            relieve(&mut machine, from, 1 - from);
            machine.advance_to(SECOND + (round + 1) * 500 * MILLI);
            let fair = SECOND / count;
            // Half a millisecond is what anybody may be ahead by, here and in the round before, and a turn on each side.
            let (least, most) = (fair.saturating_sub(MILLI), fair + 3 * MILLI / 2);
            for (group, before) in groups.iter().zip(before) {
                let had = machine.ran(group) - before;
                assert!(
                    (least..=most).contains(&had),
                    "{} of {count}, round {round}: {had} ns, fair is {fair}",
                    group.path()
                );
            }
        }
    }
}

/// One CPU has few of many equal groups, as after the other was away. While a CPU took no more before one was half a millisecond and a
/// turn ahead, nobody was for long, and some had 3.5 times what others had by then, 1.75 ms for 1.
#[test]
fn few_of_many_groups_on_a_cpu_do_not_run_ahead() {
    let turn = Nanos::from_micros(250);
    let mut config = Config::new(2);
    config.base_slice = turn;
    let mut machine = Machine::new(config);
    machine.check_every = 10_007;
    let groups: Vec<Arc<Group>> = (0..1000)
        .map(|number| machine.group(&format!("group-{number}"), 100))
        .collect();
    for (number, group) in groups.iter().enumerate() {
        let cpu = usize::from(number >= 160);
        machine.spawn(cpu, group, Work::Hog { chunk: 50_000 });
    }
    for rounds in 1..=6_u64 {
        machine.advance_to(rounds * 500 * MILLI);
        let fair = rounds * MILLI;
        for group in &groups {
            let had = machine.ran(group);
            assert!(
                had.abs_diff(fair) <= turn.0,
                "{} by {rounds}: {had} ns, fair is {fair}",
                group.path()
            );
        }
    }
}

/// One of two CPUs loses 10 ms each 100 ms, and each has half of a thousand equal groups. Half a millisecond that a group is owed, which is
/// worth pulling it for, is two turns here, so those that stood on the slower CPU were up to three turns behind all others.
#[test]
fn half_of_many_groups_on_a_slower_cpu_do_not_fall_behind() {
    let turn = Nanos::from_micros(250);
    let mut config = Config::new(2);
    config.base_slice = turn;
    let mut machine = Machine::new(config);
    machine.check_every = 10_007;
    let groups: Vec<Arc<Group>> = (0..1000)
        .map(|number| machine.group(&format!("group-{number}"), 100))
        .collect();
    for (number, group) in groups.iter().enumerate() {
        machine.spawn(number % 2, group, Work::Hog { chunk: 50_000 });
    }
    for round in 1..=40_u64 {
        machine.steal(1, 10 * MILLI);
        machine.advance_to(round * 100 * MILLI);
        let had: Vec<u64> = groups.iter().map(|group| machine.ran(group)).collect();
        let least = had.iter().min().expect("a thousand");
        let most = had.iter().max().expect("a thousand");
        assert!(
            most - least <= 2 * turn.0,
            "round {round}: {least} to {most}"
        );
    }
}
