//! What removed groups and spikes of tasks leave behind: nothing that is needed, and no memory but a little.

use crate::config::Config;
use crate::entity::{Enqueue, TaskEntity};
use crate::node::KEPT;
use crate::tree::GroupTree;
use crate::units::{CpuId, Nanos};
use crate::weight::Weight;
use crate::{DrainPart, Limit, RunQueue};

const MS: u64 = 1_000_000;

fn task() -> TaskEntity {
    TaskEntity::new(Weight::DEFAULT, None)
}

/// A hundred thousand groups that had a task each, and are removed.
#[test]
fn a_hundred_thousand_removed_groups_leave_no_memory() {
    let tree = GroupTree::new(Config::new(1));
    let mut queue: RunQueue<Box<u32>> = RunQueue::new(&tree, CpuId(0));
    let now = Nanos(MS);
    for count in [100_000_usize, 20_000] {
        let groups: Vec<_> = (0..count)
            .map(|number| tree.create(&tree.root(), &format!("g{number}")).unwrap())
            .collect();
        for group in &groups {
            queue.enqueue(group, task(), Box::new(0), Enqueue::New, now);
        }
        let high = (queue.node_bytes(), queue.timeline_bytes());
        assert!(high.0 > 2 * count * 64 && high.1 > count * 512, "{high:?}");
        while let Some(handle) = queue.pick(now) {
            drop(handle);
            queue.put_prev_exit(now);
        }
        for group in &groups {
            tree.remove(group).unwrap();
        }
        // The CPU follows the removals at its next task.
        let root = tree.root();
        queue.enqueue(&root, task(), Box::new(0), Enqueue::New, now);
        queue.check().unwrap();
        drop(queue.pick(now));
        queue.put_prev_exit(now);
        let left = (queue.node_bytes(), queue.timeline_bytes());
        // Four times the places that are kept; the ids of groups, four bytes each, are used again.
        assert!(left.0 <= 4 * KEPT * (64 + 4), "nodes: {left:?}");
        let ids = 4 * 100_001;
        assert!(left.1 <= KEPT * 2_048 + ids, "timelines: {left:?}");
    }
}

/// A spike of tasks in one group, and one that stays.
#[test]
fn a_spike_of_tasks_leaves_no_memory() {
    let tree = GroupTree::new(Config::new(1));
    let mut queue: RunQueue<Box<u32>> = RunQueue::new(&tree, CpuId(0));
    let group = tree.create(&tree.root(), "g").unwrap();
    let now = Nanos(MS);
    queue.enqueue(&group, task(), Box::new(0), Enqueue::New, now);
    for _ in 0..3 {
        for number in 1..=100_000 {
            queue.enqueue(&group, task(), Box::new(number), Enqueue::New, now);
        }
        let mut left = Vec::new();
        queue.drain_where(None, &mut |handle| **handle != 0, now, &mut left);
        assert_eq!(left.len(), 100_000);
        queue.check().unwrap();
        assert!(queue.node_bytes() <= 4 * KEPT * (64 + 4));
    }
    assert_eq!(queue.pick(now).as_deref(), Some(&0));
}

/// Hazard: whoever takes some tasks out of a queue of a hundred thousand keeps the CPU for as long as that takes; or, by parts, misses one that waited all
/// the while, or finds those again that it has queued anew.
#[test]
fn a_queue_that_is_drained_by_parts_is_looked_at_once() {
    let tree = GroupTree::new(Config::new(1));
    let mut queue: RunQueue<Box<u32>> = RunQueue::new(&tree, CpuId(0));
    let (from, to) = (
        tree.create(&tree.root(), "from").unwrap(),
        tree.create(&tree.root(), "to").unwrap(),
    );
    let now = Nanos(MS);
    // The group's own place, before there are free ones behind which it would lie.
    queue.enqueue(&to, task(), Box::new(0), Enqueue::New, now);
    for number in 1..3_000 {
        queue.enqueue(&from, task(), Box::new(number), Enqueue::New, now);
    }
    let part = DrainPart {
        slots: 100,
        tasks: 7,
    };
    let (mut looks, mut moved, mut next) = (0, Vec::new(), Some(0));
    while let Some(at) = next {
        let mut out = Vec::new();
        let before = looks;
        let mut odd = |number: &mut Box<u32>| {
            looks += 1;
            **number % 2 == 1
        };
        next = queue.drain_part(None, at, part, &mut odd, now, &mut out);
        assert!(looks - before <= 100 && out.len() <= 7);
        for detached in out {
            moved.push(*detached.handle);
            queue.enqueue(&to, detached.entity, detached.handle, Enqueue::Migrate, now);
        }
        queue.check().unwrap();
    }
    moved.sort_unstable();
    assert_eq!(
        moved,
        (0..3_000)
            .filter(|number| number % 2 == 1)
            .collect::<Vec<_>>()
    );
    assert_eq!(looks, 3_000);
}

/// A task comes into a group at the moment of its removal, and a limit keeps it back. The group above is removed, too, and has
/// nothing runnable: its timeline is needed all the same, when the task is let go.
#[test]
fn a_removed_group_above_a_throttled_one_is_kept() {
    for reused in [false, true] {
        let tree = GroupTree::new(Config::new(1));
        let mut queue: RunQueue<Box<u32>> = RunQueue::new(&tree, CpuId(0));
        // The group above has the smaller id: it is looked at first.
        let above = tree.create(&tree.root(), "above").unwrap();
        let below = tree.create(&above, "below").unwrap();
        let limit = Limit::new(Nanos(MS), Nanos(100 * MS));
        below.set_limit(Some(limit), Nanos(0), &mut |_| {}).unwrap();
        queue.enqueue(&below, task(), Box::new(7), Enqueue::New, Nanos(0));
        let handle = queue.pick(Nanos(0)).unwrap();
        queue.put_prev_yield(handle, Nanos(50 * MS));
        assert!(queue.pick(Nanos(50 * MS)).is_none(), "it is throttled");
        queue.check().unwrap();
        tree.remove_with_tasks(&below);
        tree.remove_with_tasks(&above);
        if reused {
            // Their ids and places are wanted for others.
            for name in ["a", "b", "c"] {
                let group = tree.create(&tree.root(), name).unwrap();
                queue.enqueue(&group, task(), Box::new(1), Enqueue::New, Nanos(60 * MS));
            }
        } else {
            let root = tree.root();
            queue.enqueue(&root, task(), Box::new(1), Enqueue::New, Nanos(60 * MS));
        }
        queue.check().unwrap();
        let mut seen = Vec::new();
        while let Some(handle) = queue.pick(Nanos(60 * MS)) {
            seen.push(*handle);
            queue.put_prev_exit(Nanos(60 * MS));
            queue.check().unwrap();
        }
        assert!(seen.contains(&7), "lost: {seen:?}");
    }
}

/// Hazard: a group's first limit comes together with the removal of its limited child, whose tasks have just left for the group: they are counted off
/// twice, and the CPU counts tasks that it has not for as long as it runs.
#[test]
fn what_has_left_a_removed_child_is_counted_once() {
    for count in [1, 3, 40] {
        let tree = GroupTree::new(Config::new(2));
        let mut queue: RunQueue<Box<u32>> = RunQueue::new(&tree, CpuId(0));
        let child = tree.group("above/child").unwrap();
        let above = tree.group("above").unwrap();
        for number in 0..count {
            queue.enqueue(&child, task(), Box::new(number), Enqueue::New, Nanos(1));
        }
        let limit = Limit::new(Nanos(MS), Nanos(4 * MS));
        child.set_limit(Some(limit), Nanos(1), &mut |_| {}).unwrap();
        let mut now = Nanos(1);
        for _ in 0..count {
            let handle = queue.pick(now).unwrap();
            now += Nanos(10_000);
            let entity = queue.put_prev_move(now).unwrap();
            queue.enqueue(&above, entity, handle, Enqueue::Migrate, now);
        }
        let limit = Limit::new(Nanos(MS), Nanos(100 * MS));
        above.set_limit(Some(limit), now, &mut |_| {}).unwrap();
        tree.remove(&child).unwrap();
        let handle = queue.pick(now).unwrap();
        queue.check().unwrap();
        now += Nanos(2 * MS);
        queue.put_prev_preempt(handle, now);
        assert!(queue.pick(now).is_none(), "it is throttled");
        queue.check().unwrap();
        assert_eq!(queue.nr_running(), 0, "of {count}");
        let mut left = Vec::new();
        queue.drain(None, now, &mut left);
        assert_eq!(left.len(), count as usize);
        queue.check().unwrap();
        assert_eq!((queue.nr_running(), queue.nr_throttled()), (0, 0));
    }
}
