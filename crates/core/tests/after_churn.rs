//! Whatever was done to groups, once it is over each has its share soon: debts and credits that churn leaves are bounded.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use proptest::prelude::*;
use quotient_core::{Config, Enqueue, Limit, Nanos, Weight};

const PATHS: [&str; 5] = ["a", "b", "b/x", "b/y", "c"];

/// Of which there are tasks: the others only hold groups.
const LEAVES: [usize; 4] = [0, 2, 3, 4];

/// Groups that come and go.
const PASSING: [&str; 2] = ["d", "b/z"];

/// What is done, to which group, and how much of it.
type Step = (u8, usize, u32);

fn churn(machine: &mut Machine, (action, which, amount): Step) {
    let group = machine
        .tree
        .find(PATHS[which % PATHS.len()])
        .expect("made before");
    let leaf = PATHS[LEAVES[which % LEAVES.len()]];
    let leaf = machine.tree.find(leaf).expect("made before");
    let cpu = amount as usize % machine.queues.len();
    match action {
        0 => group.set_weight(Weight::new(1 + amount % 10_000).expect("in range")),
        1 => {
            let quota = Nanos(MILLI + u64::from(amount) % (20 * MILLI));
            let limit = Limit::new(quota, Nanos(10 * MILLI));
            machine.limit(&group, Some(limit));
        }
        2 => machine.limit(&group, None),
        3 => {
            let run = 1 + u64::from(amount) % (30 * MILLI);
            machine.spawn(cpu, &leaf, Work::Once { run });
        }
        // A task beside the groups in `b`, or in the root.
        4 => {
            let parent = machine.tree.find("b").ok().filter(|_| which % 2 == 0);
            let parent = parent.unwrap_or_else(|| machine.tree.root());
            machine.spawn(cpu, &parent, Work::Once { run: 5 * MILLI });
        }
        5 => drain(machine, cpu),
        // A group below or beside these, or its removal: that of one that has tasks is refused, and a task may outlive it asleep.
        6 => match machine.tree.find(PASSING[which % 2]) {
            Ok(group) => _ = machine.tree.remove(&group),
            Err(_) => {
                let group = machine.group(PASSING[which % 2], 1 + amount % 10_000);
                let run = 1 + u64::from(amount) % (10 * MILLI);
                machine.spawn(cpu, &group, Work::Once { run });
            }
        },
        _ => {}
    }
    machine.run_until(machine.now + u64::from(amount) % (20 * MILLI));
}

/// Moves what waits on a CPU, of all groups, to the next one, as a host does with a CPU that is to go.
fn drain(machine: &mut Machine, cpu: usize) {
    let (now, to) = (Nanos(machine.now), (cpu + 1) % machine.queues.len());
    let mut moved = Vec::new();
    machine.queues[cpu].drain(None, now, &mut moved);
    for task in moved {
        machine.queues[to].enqueue(&task.group, task.entity, task.handle, Enqueue::Migrate, now);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Two seconds after the last change every group at the top has its part of the next four within a tenth.
    #[test]
    fn shares_are_right_two_seconds_after_churn(
        cpus in 1..5_u32,
        steps in prop::collection::vec((0..7_u8, any::<usize>(), any::<u32>()), 1..60),
    ) {
        let mut machine = Machine::new(Config::new(cpus));
        machine.check_every = 1_009;
        for path in PATHS {
            machine.group(path, 100);
        }
        for leaf in LEAVES {
            let group = machine.tree.find(PATHS[leaf]).expect("made before");
            for cpu in 0..cpus as usize {
                machine.spawn(cpu, &group, Work::Hog { chunk: 250_000 });
            }
        }
        for step in steps {
            churn(&mut machine, step);
        }
        for (path, weight) in PATHS.iter().zip([100, 200, 100, 300, 700]) {
            let group = machine.group(path, weight);
            machine.limit(&group, None);
        }
        // The last of the tasks that end are gone by then.
        machine.run_until(machine.now + 2 * SECOND);
        let top = [("a", 0.1), ("b", 0.2), ("c", 0.7)];
        let used = |machine: &Machine| top.map(|(path, _)| usage(&machine.tree.find(path).unwrap()));
        let before = used(&machine);
        machine.run_until(machine.now + 4 * SECOND);
        for ((path, part), (after, before)) in top.iter().zip(used(&machine).iter().zip(before)) {
            let got = (after - before) as f64 / (4 * SECOND) as f64 / f64::from(cpus) / part;
            prop_assert!((0.9..=1.1).contains(&got), "{} had {} of its part", path, got);
        }
    }
}
