//! Whose request goes on when it is queued again, and whose begins anew.

use super::RunQueue;
use crate::balance::Pull;
use crate::config::Config;
use crate::entity::{Enqueue, TaskEntity};
use crate::gates::{CompiledOut, Gates};
use crate::group::Group;
use crate::tree::GroupTree;
use crate::units::{CpuId, Nanos, Slice, to_service};
use crate::weight::Weight;
use proptest::prelude::*;
use std::sync::Arc;

const MS: u64 = 1_000_000;

/// The unit in which a rest travels, and a ns for rounding it.
const UNIT: u64 = 2_049;

fn queues(config: Config) -> (GroupTree, Vec<RunQueue<usize>>) {
    let tree = GroupTree::new(config);
    let queues = (0..config.cpus)
        .map(|cpu| RunQueue::new(&tree, CpuId(cpu)))
        .collect();
    (tree, queues)
}

/// Service from where a task stands to its deadline, ns.
fn rest<G: Gates>(queue: &RunQueue<usize, G>, task: usize) -> u64 {
    let nodes = queue.slab.nodes.iter();
    let mut found = nodes.filter(|node| node.place.is_queued() && node.handle == Some(task));
    let node = found.next().expect("a task that waits there");
    let left = node.deadline.since(node.v).max(0).unsigned_abs();
    to_service(left, u64::from(node.shares))
}

fn pull(from: u32, max: usize) -> Pull {
    Pull {
        from: CpuId(from),
        max,
        group: 0,
        own: false,
        noted: false,
    }
}

/// Moves one waiting task, whichever is due to, to the other queue. Returns which, and what was left of its request before.
fn move_one(
    queues: &mut [RunQueue<usize>],
    from: usize,
    group: Option<&Arc<Group>>,
    now: Nanos,
) -> Option<(usize, u64)> {
    let to = 1 - from;
    let before: Vec<(usize, u64)> = {
        let nodes = queues[from].slab.nodes.iter();
        let waiting = nodes.filter(|node| node.place.is_queued());
        let tasks: Vec<usize> = waiting.filter_map(|node| node.handle).collect();
        let rest = |task: usize| (task, rest(&queues[from], task));
        tasks.into_iter().map(rest).collect()
    };
    let mut moved = Vec::new();
    queues[from].detach_to(CpuId(to as u32), &pull(from as u32, 1), now, &mut moved);
    let detached = moved.pop()?;
    let task = detached.handle;
    let group = group.unwrap_or(&detached.group);
    queues[to].enqueue(group, detached.entity, task, Enqueue::Migrate, now);
    before.into_iter().find(|(other, _)| *other == task)
}

/// Nine tenths of a request served, then moved: a tenth is left, so that it runs before one that has as much due to it and asks for all of its
/// request yet, and no longer than that.
#[test]
fn a_task_that_is_moved_goes_on_with_its_request() {
    for (keeps, first) in [(true, 0), (false, 2)] {
        let (tree, mut queues) = queues(Config {
            moves_keep_requests: keeps,
            ..Config::new(2)
        });
        let (group, slice) = (tree.group("g").unwrap(), tree.config().base_slice.0);
        let fresh = TaskEntity::default();
        queues[0].enqueue(&group, fresh, 0, Enqueue::Wake, Nanos(0));
        queues[1].enqueue(&group, fresh, 2, Enqueue::Wake, Nanos(0));
        assert_eq!(queues[0].pick(Nanos(0)), Some(0));
        let now = Nanos(slice / 10 * 9);
        queues[0].put_prev_preempt(0, now);
        let (moved, left) = move_one(&mut queues, 0, None, now).unwrap();
        assert_eq!((moved, left), (0, slice / 10));
        queues[1].check().unwrap();
        assert_eq!(queues[1].pick(now), Some(first), "keeps: {keeps}");
        if keeps {
            let end = now + Nanos(slice / 10 + UNIT);
            assert!(queues[1].should_resched(end));
            queues[1].put_prev_preempt(0, end);
            assert_eq!(queues[1].pick(end), Some(2), "a new request is later");
        }
    }
}

/// The current task goes to another group: its request goes on there. Who yields or sleeps, and only then is queued elsewhere, asks anew.
#[test]
fn who_changes_the_group_goes_on_and_who_sleeps_does_not() {
    let (tree, mut queues) = queues(Config::new(2));
    let queue = &mut queues[0];
    let slice = tree.config().base_slice.0;
    let (from, to) = (tree.group("from").unwrap(), tree.group("to").unwrap());
    for (moves, kind, left) in [
        (true, Enqueue::Migrate, slice / 2),
        (true, Enqueue::Wake, slice),
        (false, Enqueue::Migrate, slice),
        (false, Enqueue::Wake, slice),
    ] {
        let now = queue.last;
        queue.enqueue(&from, TaskEntity::default(), 7, Enqueue::Wake, now);
        assert_eq!(queue.pick(now), Some(7));
        let now = now + Nanos(slice / 2);
        let entity = if moves {
            queue.put_prev_move(now)
        } else {
            queue.put_prev_sleep(now)
        };
        queue.enqueue(&to, entity.unwrap(), 7, kind, now);
        assert!(rest(queue, 7).abs_diff(left) <= UNIT, "{moves} {kind:?}");
        queue.check().unwrap();
        assert_eq!(queue.pick(now), Some(7));
        queue.put_prev_exit(now);
    }
}

/// As in the kernel, where who sleeps with a debt stays queued: back before the debt has faded, it goes on where it left, deadline included;
/// later it begins a new request at V.
#[test]
fn who_comes_back_in_debt_goes_on_with_its_request() {
    for (others_get, left) in [(0, 400_000), (200_000, 400_000), (5 * MS, 700_000)] {
        let tree = GroupTree::new(Config::new(1));
        let group = tree.group("g").unwrap();
        assert_eq!(tree.config().base_slice.0, 700_000);
        // Debts do not fade while there are load averages.
        let queue = &mut RunQueue::<usize, CompiledOut>::with_gates(&tree, CpuId(0));
        for task in 0..2 {
            queue.enqueue(&group, TaskEntity::default(), task, Enqueue::Wake, Nanos(0));
        }
        assert_eq!(queue.pick(Nanos(0)), Some(0));
        let now = Nanos(300_000);
        let asleep = queue.put_prev_sleep(now).unwrap();
        assert!(asleep.lag_service() < 0);
        assert_eq!(queue.pick(now), Some(1));
        let now = now + Nanos(others_get);
        queue.put_prev_preempt(1, now);
        queue.enqueue(&group, asleep, 0, Enqueue::Wake, now);
        let found = rest(queue, 0);
        assert!(
            found.abs_diff(left) <= UNIT,
            "{found} of {left}: {others_get}"
        );
        queue.check().unwrap();
    }
}

/// What a weight is changed to on the way stretches the rest as it stretches a whole request.
#[test]
fn a_rest_is_service_whatever_the_weight() {
    let (tree, mut queues) = queues(Config::new(2));
    let (group, slice) = (tree.group("g").unwrap(), tree.config().base_slice.0);
    for weight in [1, 50, 100, 700, 10_000] {
        let queue = &mut queues[0];
        queue.enqueue(&group, TaskEntity::default(), 3, Enqueue::Wake, Nanos(0));
        let now = queue.last;
        assert_eq!(queue.pick(now), Some(3));
        let mut entity = queue.put_prev_move(now + Nanos(slice / 4)).unwrap();
        entity.set_weight(Weight::new(weight).unwrap());
        queue.enqueue(&group, entity, 3, Enqueue::Migrate, now);
        assert!(rest(queue, 3).abs_diff(slice / 4 * 3) <= UNIT, "{weight}");
        let now = queue.last;
        assert_eq!(queue.pick(now), Some(3));
        queue.put_prev_exit(now);
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The CPU runs for so long, and its task is put back.
    Run(usize, u64),
    Yield(usize, u64),
    Sleep(usize, u64),
    Wake(usize),
    /// From this CPU to the other, into the other group or not.
    Move(usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let cpu = 0..2usize;
    let time = 1_000..3_000_000u64;
    let step = prop_oneof![
        3 => (cpu.clone(), time.clone()).prop_map(|(cpu, time)| Step::Run(cpu, time)),
        1 => (cpu.clone(), time.clone()).prop_map(|(cpu, time)| Step::Yield(cpu, time)),
        1 => (cpu.clone(), time).prop_map(|(cpu, time)| Step::Sleep(cpu, time)),
        1 => cpu.clone().prop_map(Step::Wake),
        3 => (cpu, any::<bool>()).prop_map(|(cpu, regroups)| Step::Move(cpu, regroups)),
    ];
    prop::collection::vec(step, 1..80)
}

proptest! {
    /// However tasks of any weight and slice are moved between CPUs and groups, beside child groups and without: a move leaves the rest of a
    /// request what it was, to the unit in which it travels, and moves in a row do not put a deadline off by more than a unit each.
    #[test]
    fn moves_leave_requests_what_they_were(
        tasks in prop::collection::vec((1..=10_000u32, 100_000..20_000_000u64, 0..3usize), 2..8),
        steps in steps(),
        quantum in prop_oneof![Just(0u64), Just(50_000)],
    ) {
        let (tree, mut queues) = queues(Config { quantum: Nanos(quantum), ..Config::new(2) });
        let parent = tree.group("p").unwrap();
        let groups = [parent.clone(), tree.group("p/c").unwrap(), tree.group("o").unwrap()];
        let mut asleep = Vec::new();
        let mut homes = Vec::new();
        let mut now = Nanos(MS);
        for (task, &(weight, slice, home)) in tasks.iter().enumerate() {
            let slice = Slice::new(Nanos(slice)).ok();
            let entity = TaskEntity::new(Weight::new(weight).unwrap(), slice);
            queues[task % 2].enqueue(&groups[home], entity, task, Enqueue::New, now);
            homes.push(home);
        }
        for step in steps {
            match step {
                Step::Run(cpu, time) | Step::Yield(cpu, time) | Step::Sleep(cpu, time) => {
                    let Some(task) = queues[cpu].pick(now) else {
                        continue;
                    };
                    now += Nanos(time);
                    match step {
                        Step::Run(..) => queues[cpu].put_prev_preempt(task, now),
                        Step::Yield(..) => queues[cpu].put_prev_yield(task, now),
                        _ => asleep.push((task, queues[cpu].put_prev_sleep(now).unwrap())),
                    }
                }
                Step::Wake(cpu) => {
                    if let Some((task, entity)) = asleep.pop() {
                        let group = &groups[homes[task]];
                        queues[cpu].enqueue(group, entity, task, Enqueue::Wake, now);
                    }
                }
                Step::Move(from, regroups) => {
                    let group = regroups.then_some(&groups[2]);
                    if let Some((task, before)) = move_one(&mut queues, from, group, now) {
                        if regroups {
                            homes[task] = 2;
                        }
                        let after = rest(&queues[1 - from], task);
                        let slice = tasks[task].1;
                        // Nothing was left: a new request.
                        let due = if before == 0 { slice } else { before };
                        prop_assert!(
                            after.abs_diff(due) <= UNIT + u64::from(tasks[task].0),
                            "{} after {} of {}", after, before, slice
                        );
                    }
                }
            }
            for queue in &queues {
                prop_assert!(queue.check().is_ok(), "{:?}", queue.check());
            }
        }
    }
}
