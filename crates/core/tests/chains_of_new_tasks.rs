//! Hazard: who ends and begins anew for each bit of work. A task that ends took its debt along, and a new one owes nothing and has an early deadline, so that
//! such a chain had the CPU for itself beside whoever stays: a child group, or a task of its own group.

use quotient_core::{Config, CpuId, Enqueue, GroupTree, Nanos, RunQueue, TaskEntity, Weight};

const MICRO: u64 = 1_000;
const TICK: u64 = 1_000 * MICRO;
const SPAN: u64 = 2_000_000 * MICRO;

/// What a chain of tasks of `run` ns has in the root of one CPU beside one that stays, in the child "beside" or in the root as well; each link is
/// spawned before the last one ends, or after.
fn part_of_chain(run: u64, weight: u32, (in_group, spawns_first): (bool, bool)) -> f64 {
    const CHAIN: u32 = 0;
    const STAYS: u32 = 1;
    let tree = GroupTree::new(Config::new(1));
    let mut queue: RunQueue<u32> = RunQueue::new(&tree, CpuId(0));
    let root = tree.root();
    let home = match in_group {
        true => tree.group("beside").expect("a valid path"),
        false => tree.root(),
    };
    let link = || TaskEntity::new(Weight::new(weight).expect("in range"), None);
    queue.enqueue(
        &home,
        TaskEntity::new(Weight::DEFAULT, None),
        STAYS,
        Enqueue::New,
        Nanos::ZERO,
    );
    queue.enqueue(&root, link(), CHAIN, Enqueue::New, Nanos::ZERO);
    let (mut now, mut left, mut had) = (0, run, 0);
    while now < SPAN {
        let task = queue.pick(Nanos(now)).expect("both want to run");
        let tick = TICK - now % TICK;
        if task == STAYS {
            now += tick;
            queue.put_prev_preempt(task, Nanos(now));
            continue;
        }
        let ran = left.min(tick);
        (now, left, had) = (now + ran, left - ran, had + ran);
        if left > 0 {
            queue.put_prev_preempt(task, Nanos(now));
            continue;
        }
        left = run;
        if spawns_first {
            queue.enqueue(&root, link(), CHAIN, Enqueue::New, Nanos(now));
        }
        let _ended = queue.put_prev_exit(Nanos(now));
        if !spawns_first {
            queue.enqueue(&root, link(), CHAIN, Enqueue::New, Nanos(now));
        }
    }
    had as f64 / now as f64
}

#[test]
fn a_chain_of_new_tasks_has_about_what_one_task_has() {
    // A light one that spawns the next before it ends has two shares for that moment, and begins with what the one before the last owed.
    for (weight, due, most) in [(100, 0.5, 1.3), (10, 0.0909, 2.0)] {
        for run in [20 * MICRO, 50 * MICRO, 200 * MICRO, 700 * MICRO] {
            for how in [(true, false), (true, true), (false, false), (false, true)] {
                let part = part_of_chain(run, weight, how);
                assert!(
                    part < most * due && part > 0.8 * due,
                    "{run} ns, weight {weight}, {how:?}: {part}"
                );
            }
        }
    }
}
