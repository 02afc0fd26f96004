//! Buddy hints move turns within a group, never shares, and never the choice between groups.

use quotient_core::{
    Config, CpuId, Enqueue, Group, GroupTree, Nanos, Policy, RunQueue, TaskEntity,
};
use std::sync::Arc;

struct Bench {
    queue: RunQueue<u32>,
    tree: GroupTree,
    now: u64,
}

impl Bench {
    fn new(policy: Policy) -> Bench {
        let tree = GroupTree::new(Config {
            policy,
            ..Config::new(1)
        });
        Bench {
            queue: RunQueue::new(&tree, CpuId(0)),
            tree,
            now: 1,
        }
    }

    fn add(&mut self, group: &Arc<Group>, handle: u32, kind: Enqueue) -> bool {
        self.queue
            .enqueue(group, TaskEntity::default(), handle, kind, Nanos(self.now))
    }

    fn after(&mut self, nanos: u64) -> Nanos {
        self.now += nanos;
        Nanos(self.now)
    }
}

const POLICIES: [Policy; 2] = [Policy::Eevdf, Policy::Cfs];

#[test]
fn the_task_woken_by_a_peer_runs_next() {
    for policy in POLICIES {
        let mut bench = Bench::new(policy);
        let group = bench.tree.group("g").unwrap();
        for handle in 0..5 {
            bench.add(&group, handle, Enqueue::Wake);
        }
        let first = bench.queue.pick(Nanos(1)).unwrap();
        bench.after(1_000);
        bench.add(&group, 99, Enqueue::WakeBuddy);
        let now = bench.after(1_000);
        bench.queue.put_prev_sleep(now);
        assert_eq!((first, bench.queue.pick(now)), (0, Some(99)), "{policy:?}");
        bench.queue.check().unwrap();
    }
}

#[test]
fn a_driver_wake_does_not_jump_the_queue() {
    for policy in POLICIES {
        let mut bench = Bench::new(policy);
        let group = bench.tree.group("g").unwrap();
        for handle in 0..5 {
            bench.add(&group, handle, Enqueue::Wake);
        }
        bench.queue.pick(Nanos(1)).unwrap();
        bench.add(&group, 99, Enqueue::Wake);
        let now = bench.after(1_000);
        bench.queue.put_prev_sleep(now);
        assert_eq!(bench.queue.pick(now), Some(1), "{policy:?}");
    }
}

#[test]
fn a_buddy_of_another_group_does_not_change_the_choice_between_groups() {
    for policy in POLICIES {
        let mut bench = Bench::new(policy);
        let (mine, other) = (
            bench.tree.group("mine").unwrap(),
            bench.tree.group("other").unwrap(),
        );
        for handle in 0..3 {
            bench.add(&mine, handle, Enqueue::Wake);
            bench.add(&other, 10 + handle, Enqueue::Wake);
        }
        let first = bench.queue.pick(Nanos(1)).unwrap();
        let theirs = if first < 10 { &other } else { &mine };
        bench.add(theirs, 99, Enqueue::WakeBuddy);
        let now = bench.after(1_000);
        let next = bench.queue.switch_yield(first, now);
        assert_eq!(
            next < 10,
            first < 10,
            "{policy:?}: the group's turn goes on"
        );
        assert_ne!(next, 99);
    }
}

#[test]
fn a_buddy_too_far_ahead_is_not_honoured() {
    for policy in POLICIES {
        let mut bench = Bench::new(policy);
        let group = bench.tree.group("g").unwrap();
        bench.add(&group, 0, Enqueue::Wake);
        bench.add(&group, 1, Enqueue::Wake);
        // 0 overruns by far, sleeps, and is woken by 1: it must wait until it has paid.
        assert_eq!(bench.queue.pick(Nanos(1)), Some(0));
        let now = bench.after(20_000_000);
        let entity = bench.queue.put_prev_sleep(now).unwrap();
        assert!(
            entity.lag_service() < -1_000_000,
            "{policy:?}: {}",
            entity.lag_service()
        );
        bench.add(&group, 2, Enqueue::Wake);
        assert_eq!(bench.queue.pick(now), Some(1), "{policy:?}");
        bench
            .queue
            .enqueue(&group, entity, 0, Enqueue::WakeBuddy, now);
        let now = bench.after(1_000);
        assert_eq!(bench.queue.switch_yield(1, now), 2, "{policy:?}");
    }
}

#[test]
fn a_yielder_alone_goes_on_and_a_yielder_among_peers_does_not() {
    for policy in POLICIES {
        let mut bench = Bench::new(policy);
        let group = bench.tree.group("g").unwrap();
        bench.add(&group, 0, Enqueue::Wake);
        assert_eq!(bench.queue.pick(Nanos(1)), Some(0));
        let now = bench.after(100);
        assert_eq!(bench.queue.switch_yield(0, now), 0, "{policy:?}");
        bench.add(&group, 1, Enqueue::Wake);
        // Even without any time having passed.
        assert_eq!(bench.queue.switch_yield(0, now), 1, "{policy:?}");
        assert_eq!(bench.queue.switch_yield(1, now), 0, "{policy:?}");
    }
}
