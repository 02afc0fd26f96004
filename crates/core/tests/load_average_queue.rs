//! Load averages of run queues: of tasks, groups and CPUs, as the hosts' calls go.

mod common;

use common::{Host, MILLI, SECOND, Work};
use quotient_core::load_average::UpdateMode;

type Machine = Host<AlwaysOn>;
use quotient_core::pelt::LoadAverages;
use quotient_core::{
    AlwaysOn, Config, CpuId, Enqueue, GroupTree, Nanos, RunQueue, TaskEntity, Weight,
};

fn near(found: u64, expected: u64, percent: u64) -> bool {
    found.abs_diff(expected) <= expected * percent / 100 + 2
}

#[test]
fn two_hogs_of_one_group_are_two_runnable_and_half_a_cpu_each() {
    let mut machine = Machine::new(Config::new(1));
    let (a, b) = (machine.group("a", 100), machine.group("b", 100));
    for group in [&a, &a, &b] {
        machine.spawn(0, group, Work::Hog { chunk: 50_000 });
    }
    machine.run_until(2 * SECOND);
    let queue = &machine.queues[0];
    let a_here = queue.load_averages(&a).expect("averaged");
    let b_here = queue.load_averages(&b).expect("averaged");
    let root = queue.load_averages(&machine.tree.root()).expect("averaged");
    assert!(
        near(a_here.load, 2048, 1) && near(b_here.load, 1024, 1),
        "{a_here:?} {b_here:?}"
    );
    assert!(
        near(a_here.runnable, 2048, 1) && near(root.runnable, 3072, 1),
        "{root:?}"
    );
    // Whose turn it is was averaged within this millisecond, the other one when its turn ended.
    assert!(
        near(a_here.util, 512, 8) && near(b_here.util, 512, 8),
        "{a_here:?} {b_here:?}"
    );
    assert!(
        near(root.util, 1024, 1) && near(root.load, 2048, 1),
        "{root:?}"
    );
    let task = queue.current_load_averages().expect("a hog runs");
    assert!(
        near(task.runnable, 1024, 1) && near(task.load, 1024, 1),
        "{task:?}"
    );
    let everywhere = a.load_averages(Nanos(2 * SECOND));
    assert!(near(everywhere.load, 2048, 1), "{everywhere:?}");
}

#[test]
fn a_task_that_sleeps_carries_its_averages_and_forgets() {
    let tree = GroupTree::new(Config::new(2));
    let group = tree.group("g").unwrap();
    let mut queues: Vec<RunQueue<u8>> =
        (0..2).map(|cpu| RunQueue::new(&tree, CpuId(cpu))).collect();
    let mut entity = TaskEntity::new(Weight::new(200).unwrap(), None);
    assert_eq!(entity.load_averages(), LoadAverages::default());
    // 10 ms on, 10 ms off, on alternating CPUs.
    for round in 0..60u64 {
        let queue = &mut queues[round as usize % 2];
        let start = Nanos::from_millis(20 * round);
        queue.enqueue(&group, entity, 7, Enqueue::Wake, start);
        assert_eq!(queue.pick(start), Some(7));
        for millisecond in 1..10 {
            queue.charge(start + Nanos::from_millis(millisecond));
        }
        entity = queue
            .put_prev_sleep(start + Nanos::from_millis(10))
            .unwrap();
    }
    let LoadAverages {
        load,
        runnable,
        util,
    } = entity.load_averages();
    assert!(
        (555..=568).contains(&util) && (555..=568).contains(&runnable),
        "{util} {runnable}"
    );
    assert!((2 * 555..=2 * 568).contains(&load), "{load}");
    // A century later nothing is left of it, here or in the group.
    let late = Nanos(3_000_000_000_000_000_000);
    assert_eq!(group.load_averages(late), LoadAverages::default());
    queues[0].enqueue(&group, entity, 7, Enqueue::Wake, late);
    queues[0].pick(late);
    let entity = queues[0].put_prev_sleep(late).unwrap();
    assert_eq!(entity.load_averages(), LoadAverages::default());
}

#[test]
fn a_conversation_by_the_short_way_is_averaged_as_by_the_long_way() {
    let run = |short: bool| {
        let tree = GroupTree::new(Config::new(1));
        let group = tree.group("g").unwrap();
        let mut queue: RunQueue<u8> = RunQueue::new(&tree, CpuId(0));
        let mut waiting = TaskEntity::default();
        queue.enqueue(&group, waiting, 0, Enqueue::New, Nanos(0));
        queue.pick(Nanos(0));
        for turn in 1..=20_000u64 {
            let now = Nanos(turn * 20_000);
            let handed = short
                .then(|| queue.hand_over(&group, &waiting, now))
                .flatten();
            waiting = handed.unwrap_or_else(|| {
                queue.enqueue(&group, waiting, (turn % 2) as u8, Enqueue::WakeBuddy, now);
                let sleeper = queue.put_prev_sleep(now).unwrap();
                queue.pick(now);
                sleeper
            });
        }
        (
            waiting.load_averages(),
            queue.load_averages(&group).unwrap(),
        )
    };
    let ((short_task, short_group), (long_task, long_group)) = (run(true), run(false));
    assert!(
        near(short_task.util, 512, 4) && near(long_task.util, 512, 4),
        "{short_task:?} {long_task:?}"
    );
    assert!(
        near(short_group.util, 1024, 1) && near(long_group.util, 1024, 1),
        "{short_group:?} {long_group:?}"
    );
    assert!(
        near(short_group.load, 1024, 1) && near(long_group.load, 1024, 1),
        "{short_group:?} {long_group:?}"
    );
}

#[test]
fn the_sum_over_cpus_follows_the_machine_in_every_mode_and_empties() {
    for mode in UpdateMode::ALL {
        let mut machine = Machine::new(Config::new(4));
        machine.tree.load_rules().set_nodes(2);
        machine.tree.load_rules().set_mode(mode);
        let group = machine.group("g", 100);
        for number in 0..8 {
            machine.spawn(number % 4, &group, Work::Once { run: 400 * MILLI });
        }
        machine.run_until(300 * MILLI);
        let busy = group.load_averages(Nanos(300 * MILLI));
        // 8 tasks of 1,024 shares on 4 CPUs; hysteresis holds back up to 1/64.
        assert!(near(busy.runnable, 8 * 1024, 3), "{mode:?} {busy:?}");
        assert!(near(busy.load, 8 * 1024, 3), "{mode:?} {busy:?}");
        assert!(near(busy.util, 4 * 1024, 3), "{mode:?} {busy:?}");
        machine.run_until(2 * SECOND);
        assert!(machine.queues.iter().all(|queue| queue.nr_running() == 0));
        let idle = group.load_averages(Nanos(4 * SECOND));
        assert_eq!(idle, LoadAverages::default(), "{mode:?}");
    }
}

#[test]
fn modes_can_be_changed_while_it_runs() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    for number in 0..4 {
        machine.spawn(number % 2, &group, Work::Hog { chunk: 50_000 });
    }
    for (step, mode) in UpdateMode::ALL.into_iter().cycle().take(12).enumerate() {
        machine.tree.load_rules().set_mode(mode);
        machine.run_until((step as u64 + 1) * 400 * MILLI);
        let averages = group.load_averages(Nanos(machine.now));
        assert!(near(averages.load, 4 * 1024, 3), "{mode:?} {averages:?}");
    }
}
