//! Hazard: a move of all that waits of a group is taken for a sleep, so that the group comes back with no more than a sleeper's
//! credit, and its siblings' debts are forgiven. Two CPUs whose polls are long, and each that is done takes all that waits at the
//! other, as runtimes do for who waits behind a poll: the groups are somewhere on the way many times a second.

use quotient_core::balance::Pull;
use quotient_core::{
    Config, CpuId, Enqueue, Group, GroupTree, Nanos, RunQueue, TaskEntity, Weight,
};
use std::sync::Arc;

const MILLI: u64 = 1_000_000;

/// A task: the number of its group, and how long its polls are, which differs so that the CPUs meet at every distance.
/// As many of those that wait there as `max`.
fn pull(from: usize, max: usize) -> Pull {
    Pull {
        from: CpuId(from as u32),
        max,
        group: 0,
        own: false,
        noted: false,
    }
}

#[derive(Clone, Copy, Debug)]
struct Task {
    group: usize,
    poll: u64,
}

struct Machine {
    queues: Vec<RunQueue<Task>>,
    groups: Vec<Arc<Group>>,
    used: Vec<u64>,
}

impl Machine {
    fn relieve(&mut self, cpu: usize, now: Nanos) {
        let other = 1 - cpu;
        let mut moved = Vec::new();
        self.queues[other].detach_to(CpuId(cpu as u32), &pull(other, 128), now, &mut moved);
        for task in moved {
            let group = &self.groups[task.handle.group];
            self.queues[cpu].enqueue(group, task.entity, task.handle, Enqueue::Migrate, now);
        }
    }
}

/// Weights of the groups, 10 % and 90 %.
const WEIGHTS: [u32; 2] = [100, 900];

/// Runs `counts` tasks a group for `seconds`, in groups of [`WEIGHTS`] or in the only child group of each; the share of the first.
fn first_share(child: &str, counts: [usize; 2], poll: u64, seconds: u64) -> f64 {
    // The runtime's slices: shorter ones announce less of what a choice will take.
    let mut config = Config::new(2);
    config.base_slice = Nanos(MILLI / 4);
    let tree = GroupTree::new(config);
    let queues = (0..2).map(|cpu| RunQueue::new(&tree, CpuId(cpu))).collect();
    let group = |index: usize| {
        let group = tree.group(&format!("g{index}")).unwrap();
        group.set_weight(Weight::new(WEIGHTS[index]).unwrap());
        tree.group(&format!("g{index}{child}")).unwrap()
    };
    let mut machine = Machine {
        queues,
        groups: (0..2).map(group).collect(),
        used: vec![0; 2],
    };
    let mut spawned = 0;
    for (group, count) in counts.into_iter().enumerate() {
        for _ in 0..count {
            let poll = poll * (90 + 7 * spawned as u64 % 20) / 100;
            let task = Task { group, poll };
            let place = &machine.groups[group];
            machine.queues[spawned % 2].enqueue(
                place,
                TaskEntity::default(),
                task,
                Enqueue::New,
                Nanos(0),
            );
            spawned += 1;
        }
    }
    let mut running: Vec<(u64, Task)> = (0..2)
        .map(|cpu| {
            let task = machine.queues[cpu].pick(Nanos(0)).unwrap();
            (task.poll, task)
        })
        .collect();
    loop {
        let cpu = usize::from(running[1].0 < running[0].0);
        let (end, task) = running[cpu];
        if end > seconds * 1_000 * MILLI {
            break;
        }
        let now = Nanos(end);
        machine.used[task.group] += task.poll;
        machine.queues[cpu].charge(now);
        machine.queues[cpu].put_prev_yield(task, now);
        machine.relieve(cpu, now);
        let next = machine.queues[cpu].pick(now).unwrap();
        running[cpu] = (end + next.poll, next);
    }
    machine.used[0] as f64 / machine.used.iter().sum::<u64>() as f64
}

/// 15.5 % before groups kept their place on the way, by polls of 50 ms and more.
#[test]
fn a_group_in_debt_gets_its_weight_by_long_polls() {
    for (poll, seconds) in [(5, 8), (50, 30), (200, 120), (1_000, 400)] {
        for counts in [[4, 4], [4, 2], [1, 2], [8, 8]] {
            for child in ["", "/child"] {
                let share = first_share(child, counts, poll * MILLI, seconds);
                assert!(
                    (0.095..0.108).contains(&share),
                    "{share:.4} of the machine with {counts:?} tasks, polls of {poll} ms {child}"
                );
            }
        }
    }
}

/// Hazard: a task that may not go where others ask for it is put back with no more than a move takes along (100 ms), and the rest of what it
/// is owed goes to everybody else. Behind a poll of 600 ms beside it, it is owed 300; it is asked for `asked` times before it runs.
fn share_of_a_task_that_may_not_go(asked: usize) -> f64 {
    let tree = GroupTree::new(Config::new(2));
    let mut queue: RunQueue<usize> = RunQueue::new(&tree, CpuId(0));
    let groups = [tree.group("p").unwrap(), tree.group("p/c").unwrap()];
    for (task, group) in groups.iter().enumerate() {
        queue.enqueue(group, TaskEntity::default(), task, Enqueue::Wake, Nanos(0));
    }
    let mut used = [0; 2];
    let mut now = 0;
    let mut asks = asked;
    while now < 1_200 * MILLI {
        let task = queue.pick(Nanos(now)).unwrap();
        let first_of_the_group = task == 1 && used[1] == 0;
        let poll = if first_of_the_group { 600 } else { 1 } * MILLI;
        now += poll;
        used[task] += poll;
        queue.put_prev_yield(task, Nanos(now));
        if used[1] > 0 {
            for _ in 0..core::mem::take(&mut asks) {
                let mut moved = Vec::new();
                queue.detach_to(CpuId(1), &pull(0, 128), Nanos(now), &mut moved);
                for task in moved {
                    queue.take_back(task, Nanos(now));
                    queue.check().unwrap();
                }
            }
        }
    }
    used[0] as f64 / now as f64
}

/// It has 0.42 when it comes back with what a move takes along only, 0.35 when the child group that comes back with it is placed as after a sleep,
/// and 0.25 when the poll is charged to the clock after the task was taken out.
#[test]
fn a_task_that_may_not_go_is_owed_what_it_was_owed() {
    let unasked = share_of_a_task_that_may_not_go(0);
    assert!((0.49..=0.51).contains(&unasked), "{unasked}");
    for asked in [1, 2, 50] {
        let share = share_of_a_task_that_may_not_go(asked);
        assert!(
            (unasked - share).abs() < 0.005,
            "{share} asked {asked} times"
        );
    }
}

/// Hazard: a task that is handed on before it is queued, in the inbox of a CPU that is in a long poll, is counted nowhere, so that its group
/// comes back as from a sleep. The heavy group's only task waits in an inbox while the light one has 200 ms; its part of the next second.
fn heavy_share_after_an_inbox(keeps: bool) -> f64 {
    let tree = GroupTree::new(Config::new(2));
    let mut queues: Vec<RunQueue<usize>> =
        (0..2).map(|cpu| RunQueue::new(&tree, CpuId(cpu))).collect();
    let groups = WEIGHTS.map(|weight| {
        let group = tree.group(&format!("of {weight}")).unwrap();
        group.set_weight(Weight::new(weight).unwrap());
        group
    });
    let fresh = TaskEntity::default();
    queues[0].enqueue(&groups[1], fresh, 1, Enqueue::Wake, Nanos(0));
    queues[1].enqueue(&groups[0], fresh, 0, Enqueue::Wake, Nanos(0));
    let mut moved = Vec::new();
    queues[0].detach_to(CpuId(1), &pull(0, 1), Nanos(0), &mut moved);
    let (task, rest) = moved.pop().unwrap().split();
    let entity = rest.entity;
    let inbox = keeps.then_some(rest);
    assert_eq!(queues[1].pick(Nanos(0)), Some(0));
    let mut now = 200 * MILLI;
    queues[1].charge(Nanos(now));
    queues[1].put_prev_yield(0, Nanos(now));
    queues[1].enqueue(&groups[1], entity, task, Enqueue::Migrate, Nanos(now));
    drop(inbox);
    let mut used = [0; 2];
    for _ in 0..1_000 {
        let task = queues[1].pick(Nanos(now)).unwrap();
        now += MILLI;
        used[task] += 1;
        queues[1].charge(Nanos(now));
        queues[1].put_prev_yield(task, Nanos(now));
        queues[1].check().unwrap();
    }
    f64::from(used[1]) / 1_000.0
}

#[test]
fn a_task_that_is_handed_on_keeps_the_place_of_its_group() {
    let kept = heavy_share_after_an_inbox(true);
    assert!(kept > 0.99, "{kept}");
    let dropped = heavy_share_after_an_inbox(false);
    assert!(dropped < 0.95, "{dropped}");
}
