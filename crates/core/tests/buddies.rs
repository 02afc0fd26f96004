//! Buddy hints move turns within a group, never shares, and never the choice between groups.

use quotient_core::{
    Config, CpuId, Enqueue, Group, GroupTree, Nanos, Policy, RunQueue, Slice, TaskEntity, Weight,
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

/// Long polls beside somebody who wakes once a millisecond: whoever is interrupted goes on with its request of 4 ms, and in the long run
/// all have the same.
#[test]
fn an_interrupted_request_goes_on_to_its_end() {
    const REQUEST: u64 = 4_000_000;
    let mut bench = Bench::new(Policy::Eevdf);
    let (hogs, victim) = (
        bench.tree.group("hogs").unwrap(),
        bench.tree.group("victim").unwrap(),
    );
    for handle in 0..3 {
        let mut entity = TaskEntity::default();
        entity.set_slice(Some(Slice::new(Nanos(REQUEST)).unwrap()));
        bench
            .queue
            .enqueue(&hogs, entity, handle, Enqueue::Wake, Nanos(1));
    }
    let mut sleeper = Some(TaskEntity::default());
    let mut used = [0_u64; 3];
    let (mut changes, mut wakes, mut last) = (0, 0, None);
    while bench.now < 1_200_000_000 {
        let now = Nanos(bench.now);
        let picked = bench.queue.pick(now).unwrap();
        if picked == 99 {
            let now = bench.after(20_000);
            sleeper = bench.queue.put_prev_sleep(now);
            wakes += 1;
            continue;
        }
        changes += u64::from(last.replace(picked) != Some(picked));
        used[picked as usize] += 1_000_000;
        let now = bench.after(1_000_000);
        if let Some(entity) = sleeper.take() {
            bench.queue.enqueue(&victim, entity, 99, Enqueue::Wake, now);
        }
        bench.queue.put_prev_interrupted(picked, now);
        bench.queue.check().unwrap();
    }
    // 1,200 ms in requests of 4 ms; without the hint it changes at nearly every interruption.
    assert!(
        wakes > 500 && changes <= 330,
        "{changes} changes, {wakes} wakes"
    );
    let (least, most) = (used.iter().min().unwrap(), used.iter().max().unwrap());
    assert!(most - least <= 2 * REQUEST, "{used:?}");
}

/// How those with long polls are disturbed, and how they go back.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// By nobody: in turns of a whole request.
    Undisturbed,
    /// Once a millisecond, by `put_prev_preempt`.
    Preempted,
    /// Once a millisecond, by `put_prev_interrupted`.
    Interrupted,
}

/// The turns, in milliseconds, of those who share 1:2:7 in requests of 4 ms: groups of three tasks, or tasks of one group.
fn turns_of(are_groups: bool, way: Way) -> Vec<u32> {
    let mut bench = Bench::new(Policy::Eevdf);
    let victim = bench.tree.group("victim").unwrap();
    victim.set_weight(Weight::new(1_000).unwrap());
    let request = Some(Slice::new(Nanos(4_000_000)).unwrap());
    for (place, weight) in (0..).zip(SHARED) {
        let weight = Weight::new(weight).unwrap();
        let (name, tasks, entity) = if are_groups {
            let entity = TaskEntity::new(Weight::DEFAULT, request);
            (format!("hogs-{place}"), 3, entity)
        } else {
            ("hogs".to_owned(), 1, TaskEntity::new(weight, request))
        };
        let group = bench.tree.group(&name).unwrap();
        if are_groups {
            group.set_weight(weight);
        }
        for number in 0..tasks {
            let handle = place * 10 + number;
            bench
                .queue
                .enqueue(&group, entity, handle, Enqueue::Wake, Nanos(1));
        }
    }
    let mut sleeper = Some(TaskEntity::default());
    let mut turns: Vec<u32> = Vec::new();
    while turns.len() < 3_000 {
        let picked = bench.queue.pick(Nanos(bench.now)).unwrap();
        if picked == 99 {
            let now = bench.after(20_000);
            sleeper = bench.queue.put_prev_sleep(now);
            continue;
        }
        let millis = if let Way::Undisturbed = way { 4 } else { 1 };
        turns.extend((0..millis).map(|_| picked / 10));
        let now = bench.after(millis * 1_000_000);
        let sleeper = if millis == 1 { sleeper.take() } else { None };
        if let Some(entity) = sleeper {
            bench.queue.enqueue(&victim, entity, 99, Enqueue::Wake, now);
        }
        match way {
            Way::Interrupted => bench.queue.put_prev_interrupted(picked, now),
            Way::Preempted | Way::Undisturbed => bench.queue.put_prev_preempt(picked, now),
        }
    }
    turns
}

const SHARED: [u32; 3] = [100, 200, 700];

/// How far, in points, anybody's share of any window of 100 ms is from its weight.
fn worst_window(turns: &[u32]) -> f64 {
    let mut worst = 0.0_f64;
    for window in turns.windows(100) {
        for (place, weight) in (0..).zip(SHARED) {
            let had = window.iter().filter(|turn| **turn == place).count();
            worst = worst.max((had as f64 - f64::from(weight) / 10.0).abs());
        }
    }
    worst
}

/// Between groups nothing changes, however their tasks go back. Between tasks of one group a window is off by one request, as it is if
/// nobody interrupts them.
#[test]
fn going_on_with_a_request_costs_no_window_of_100_ms_more_than_that() {
    for are_groups in [true, false] {
        let worst = |way| worst_window(&turns_of(are_groups, way));
        let (hinted, plain) = (worst(Way::Interrupted), worst(Way::Preempted));
        let undisturbed = worst(Way::Undisturbed);
        let most = if are_groups { plain } else { undisturbed };
        assert!(
            hinted <= most && hinted <= 5.0,
            "groups: {are_groups}; {hinted} points, {plain} without the hint, {undisturbed} undisturbed"
        );
    }
}

/// A server in one group with long polls: its wake-up is what interrupts them, and it does not wait for the end of their request.
#[test]
fn an_interrupted_request_gives_way_to_a_shorter_one_of_its_group() {
    let mut bench = Bench::new(Policy::Eevdf);
    let group = bench.tree.group("g").unwrap();
    for handle in 0..2 {
        let mut entity = TaskEntity::default();
        entity.set_slice(Some(Slice::new(Nanos(4_000_000)).unwrap()));
        bench
            .queue
            .enqueue(&group, entity, handle, Enqueue::Wake, Nanos(1));
    }
    let mut sleeper = Some(TaskEntity::default());
    let (mut waited, mut wakes) = (0, 0);
    for _ in 0..1_000 {
        let picked = bench.queue.pick(Nanos(bench.now)).unwrap();
        if picked == 99 {
            let now = bench.after(20_000);
            sleeper = bench.queue.put_prev_sleep(now);
            wakes += 1;
            continue;
        }
        waited += u32::from(sleeper.is_none());
        let now = bench.after(1_000_000);
        if let Some(entity) = sleeper.take() {
            bench.queue.enqueue(&group, entity, 99, Enqueue::Wake, now);
        }
        bench.queue.put_prev_interrupted(picked, now);
    }
    assert!(
        wakes > 400 && waited <= wakes / 10,
        "{wakes} wakes, {waited} turns of others in between"
    );
}
