//! Tasks that are woken, moved, drained or finished while their group is throttled, and groups that are removed.

mod common;

use common::{MILLI, Machine, Work, usage};
use quotient_core::balance::Pull;
use quotient_core::{Config, CpuId, Enqueue, Group, GroupTree, Limit, Nanos, RunQueue, TaskEntity};
use std::sync::Arc;

struct Rig {
    tree: GroupTree,
    group: Arc<Group>,
    queue: RunQueue<u32>,
}

/// A group of 1 ms in 10 ms whose only task has just used it all up.
fn throttled() -> Rig {
    let tree = GroupTree::new(Config::new(2));
    let group = tree.group("g").unwrap();
    let limit = Limit::new(Nanos::from_millis(1), Nanos::from_millis(10));
    group.set_limit(Some(limit), Nanos(0), &mut |_| ()).unwrap();
    let mut queue = RunQueue::new(&tree, CpuId(0));
    queue.enqueue(&group, TaskEntity::default(), 1, Enqueue::New, Nanos(0));
    assert_eq!(queue.pick(Nanos(0)), Some(1));
    queue.put_prev_yield(1, Nanos(MILLI));
    assert_eq!(queue.pick(Nanos(MILLI)), None);
    assert_eq!((queue.nr_running(), queue.nr_throttled()), (0, 1));
    assert!(queue.is_throttled(&group));
    queue.check().unwrap();
    Rig { tree, group, queue }
}

/// Runs what is due at `now`; the CPUs that were kicked.
fn refill(rig: &Rig, now: u64) -> Vec<u32> {
    let mut kicked = Vec::new();
    rig.tree.refill(Nanos(now), &mut |cpu| kicked.push(cpu.0));
    kicked
}

#[test]
fn a_task_woken_while_throttled_runs_after_the_refill() {
    let mut rig = throttled();
    let now = Nanos(2 * MILLI);
    rig.queue
        .enqueue(&rig.group, TaskEntity::default(), 2, Enqueue::Wake, now);
    rig.queue.check().unwrap();
    assert_eq!((rig.queue.nr_throttled(), rig.queue.pick(now)), (2, None));
    assert_eq!(rig.tree.next_refill(), Some(Nanos(10 * MILLI)));
    assert_eq!(refill(&rig, 10 * MILLI), [0]);
    assert!(rig.queue.load().has_unthrottles());
    assert!(rig.queue.unthrottle_pending(Nanos(10 * MILLI)));
    rig.queue.check().unwrap();
    assert_eq!((rig.queue.nr_throttled(), rig.queue.nr_running()), (0, 2));
    assert!(rig.queue.pick(Nanos(10 * MILLI)).is_some());
}

/// The kick may come late or never: a choice that finds nothing looks for itself.
#[test]
fn a_choice_finds_what_was_posted_without_a_kick() {
    let mut rig = throttled();
    refill(&rig, 10 * MILLI);
    assert_eq!(rig.queue.pick(Nanos(10 * MILLI)), Some(1));
}

/// The debt of a long poll is paid first: 1 ms of quota against 3.5 ms of use takes three more periods.
#[test]
fn debts_are_paid_before_anything_runs() {
    let mut rig = throttled();
    refill(&rig, 10 * MILLI);
    assert_eq!(rig.queue.pick(Nanos(10 * MILLI)), Some(1));
    let end = 13 * MILLI + MILLI / 2;
    rig.queue.put_prev_yield(1, Nanos(end));
    assert_eq!(rig.queue.pick(Nanos(end)), None);
    for period in 2..=3u64 {
        assert!(refill(&rig, period * 10 * MILLI).is_empty());
        assert_eq!(rig.queue.pick(Nanos(period * 10 * MILLI)), None);
    }
    assert_eq!(refill(&rig, 40 * MILLI), [0]);
    assert_eq!(rig.queue.pick(Nanos(40 * MILLI)), Some(1));
}

/// Hazard: two CPUs run below a small limit in turns, and each keeps what is there from the other. What a note asks for by its group goes, if that may run
/// where it goes to.
#[test]
fn what_is_noted_goes_where_its_group_may_run() {
    let mut rig = throttled();
    let noted = Pull {
        from: CpuId(0),
        max: 8,
        group: rig.group.id(),
        own: true,
        noted: true,
    };
    let now = Nanos(MILLI);
    let mut moved = Vec::new();
    assert_eq!(rig.queue.detach(&noted, now, &mut moved), 0, "where?");
    assert_eq!(rig.queue.detach_to(CpuId(1), &noted, now, &mut moved), 1);
    rig.queue.check().unwrap();
    assert_eq!((rig.queue.nr_running(), rig.queue.nr_throttled()), (0, 0));
    let mut other = RunQueue::new(&rig.tree, CpuId(1));
    let task = moved.pop().unwrap();
    other.enqueue(&task.group, task.entity, task.handle, Enqueue::Migrate, now);
    assert_eq!(other.pick(now), None, "the budget of all is used up");
    // Nor does it go where its group is throttled as well.
    let back = Pull {
        from: CpuId(1),
        ..noted
    };
    rig.queue
        .enqueue(&rig.group, TaskEntity::default(), 2, Enqueue::Wake, now);
    assert_eq!(rig.queue.pick(now), None);
    assert_eq!(other.detach_to(CpuId(0), &back, now, &mut moved), 0);
    let refilled = 10 * MILLI;
    refill(&rig, refilled);
    other.unthrottle_pending(Nanos(refilled));
    other.check().unwrap();
    rig.queue.unthrottle_pending(Nanos(refilled));
    assert!(other.pick(Nanos(refilled)).is_some() || rig.queue.pick(Nanos(refilled)).is_some());
}

/// Hazard: two CPUs have a group in turns below its limit, and each takes back what the other had taken to even weights out. Where it has something already
/// what is kept back elsewhere does not go for its sake.
#[test]
fn what_is_kept_back_does_not_go_where_its_group_has_something() {
    let mut rig = throttled();
    let mut other = RunQueue::new(&rig.tree, CpuId(1));
    let now = Nanos(MILLI);
    other.enqueue(&rig.group, TaskEntity::default(), 2, Enqueue::Wake, now);
    let for_group = Pull {
        from: CpuId(0),
        max: 8,
        group: rig.group.id(),
        own: false,
        noted: true,
    };
    let mut moved = Vec::new();
    assert_eq!(
        rig.queue.detach_to(CpuId(1), &for_group, now, &mut moved),
        0
    );
    rig.queue.check().unwrap();
}

#[test]
fn nothing_is_pulled_out_of_or_into_a_throttled_hierarchy() {
    let mut rig = throttled();
    let mut other = RunQueue::new(&rig.tree, CpuId(1));
    let request = |from| Pull {
        from: CpuId(from),
        max: 8,
        group: 0,
        own: false,
        noted: false,
    };
    let mut moved = Vec::new();
    assert_eq!(rig.queue.detach(&request(0), Nanos(MILLI), &mut moved), 0);
    let of_group = Pull {
        group: rig.group.id(),
        ..request(0)
    };
    assert_eq!(rig.queue.detach(&of_group, Nanos(MILLI), &mut moved), 0);
    // There is budget for the other CPU only as long as this one waits for its debt.
    rig.group
        .set_limit(
            Some(Limit::new(Nanos::from_millis(9), Nanos::from_millis(10))),
            Nanos(MILLI),
            &mut |_| (),
        )
        .unwrap();
    for task in 10..13 {
        other.enqueue(
            &rig.group,
            TaskEntity::default(),
            task,
            Enqueue::Wake,
            Nanos(MILLI),
        );
    }
    assert!(other.pick(Nanos(MILLI)).is_some());
    assert!(rig.queue.load().has_unthrottles() && rig.queue.is_throttled(&rig.group));
    assert_eq!(
        other.detach_to(CpuId(0), &request(1), Nanos(MILLI), &mut moved),
        0
    );
    // Hazard: whoever has been there longest may not go, and so nobody does, though one that came lately may.
    let free = rig.tree.group("free").unwrap();
    let late = Nanos(9 * MILLI);
    rig.queue
        .enqueue(&free, TaskEntity::default(), 20, Enqueue::Wake, late);
    let back = Pull {
        group: free.id(),
        ..request(0)
    };
    let mut came = Vec::new();
    assert_eq!(rig.queue.detach_to(CpuId(1), &back, late, &mut came), 1);
    let task = came.pop().unwrap();
    other.enqueue(&free, task.entity, task.handle, Enqueue::Migrate, late);
    let taken = other.detach_to(CpuId(0), &request(1), late, &mut moved);
    assert_eq!(taken, 1, "only the one without a limit");
    rig.queue.unthrottle_pending(Nanos(MILLI));
    assert!(other.detach_to(CpuId(0), &request(1), Nanos(MILLI), &mut moved) > 0);
}

/// Hazard: the group that is looked into first offers a task that may not go, and nobody asks its siblings in the same parent.
#[test]
fn a_pull_passes_over_a_child_that_is_throttled_where_it_is_for() {
    for limited_first in [false, true] {
        let tree = GroupTree::new(Config::new(2));
        let (limited, free) = (tree.group("p/a").unwrap(), tree.group("p/b").unwrap());
        // A later deadline: the other one comes first, in whatever order they were woken.
        free.set_weight(quotient_core::Weight::new(10).unwrap());
        let limit = |millis| Limit::new(Nanos::from_millis(millis), Nanos::from_millis(10));
        let set = |millis| limited.set_limit(Some(limit(millis)), Nanos(0), &mut |_| ());
        set(1).unwrap();
        let mut puller: RunQueue<u32> = RunQueue::new(&tree, CpuId(0));
        puller.enqueue(&limited, TaskEntity::default(), 1, Enqueue::New, Nanos(0));
        assert_eq!(puller.pick(Nanos(0)), Some(1));
        puller.put_prev_yield(1, Nanos(MILLI));
        assert_eq!(puller.pick(Nanos(MILLI)), None);
        set(9).unwrap();
        assert!(puller.is_throttled(&limited));
        let mut victim: RunQueue<u32> = RunQueue::new(&tree, CpuId(1));
        let mut wake = |group: &Arc<Group>, task| {
            let entity = TaskEntity::default();
            victim.enqueue(group, entity, task, Enqueue::Wake, Nanos(MILLI));
        };
        let groups = match limited_first {
            true => [&limited, &free],
            false => [&free, &limited],
        };
        for group in groups {
            wake(group, if Arc::ptr_eq(group, &free) { 20 } else { 10 });
        }
        let request = Pull {
            from: CpuId(1),
            max: 8,
            group: 0,
            own: false,
            noted: false,
        };
        assert_eq!(victim.nr_queued(), 2);
        let mut moved = Vec::new();
        let taken = victim.detach_to(CpuId(0), &request, Nanos(MILLI), &mut moved);
        assert_eq!((taken, moved[0].handle), (1, 20));
        victim.check().unwrap();
    }
}

#[test]
fn a_drain_takes_throttled_tasks_and_ends_the_wait() {
    let mut rig = throttled();
    let mut out = Vec::new();
    rig.queue.drain(None, Nanos(2 * MILLI), &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!((rig.queue.nr_throttled(), rig.queue.nr_running()), (0, 0));
    assert_eq!(rig.group.bandwidth_account().waiting, 0);
    rig.queue.check().unwrap();
    // Without tasks the group can be removed, and its name used again without its limit.
    rig.tree.remove(&rig.group).unwrap();
    let again = rig.tree.group("g").unwrap();
    assert_eq!((again.limit(), again.id()), (None, rig.group.id()));
    let now = Nanos(3 * MILLI);
    rig.queue
        .enqueue(&again, TaskEntity::default(), 5, Enqueue::New, now);
    assert_eq!(rig.queue.pick(now), Some(5));
    rig.queue.check().unwrap();
    assert!(again.set_limit(None, now, &mut |_| ()).is_ok());
    assert!(
        rig.group
            .set_limit(Some(Limit::cpus(0.5).unwrap()), now, &mut |_| ())
            .is_err()
    );
}

/// Lifting the limit, raising it, and removing what is above: whoever waits is let go at once.
#[test]
fn a_lifted_limit_lets_everybody_go() {
    let mut rig = throttled();
    let mut kicked = Vec::new();
    let now = Nanos(2 * MILLI);
    rig.group
        .set_limit(None, now, &mut |cpu| kicked.push(cpu))
        .unwrap();
    assert_eq!(kicked, [CpuId(0)]);
    assert!(rig.queue.unthrottle_pending(now));
    assert_eq!(rig.queue.pick(now), Some(1));
    assert!(rig.group.bandwidth_account().is_balanced());
    assert_eq!(rig.tree.next_refill(), None, "no timer is left behind");
}

/// A sleeper's clock of throttled time stands still while the group may run.
/// The choice that follows the lifted limit finds the group's name in its mail, too, and nothing to do about it.
#[test]
fn mail_of_a_limit_that_was_lifted_does_not_hide_that_of_the_next() {
    let mut rig = throttled();
    let set = |limit, now| rig.group.set_limit(limit, now, &mut |_| ()).unwrap();
    set(None, Nanos(2 * MILLI));
    assert_eq!(rig.queue.pick(Nanos(2 * MILLI)), Some(1));
    let limit = Limit::new(Nanos::from_millis(1), Nanos::from_millis(10));
    set(Some(limit), Nanos(3 * MILLI));
    rig.queue.put_prev_yield(1, Nanos(8 * MILLI));
    assert_eq!(rig.queue.pick(Nanos(8 * MILLI)), None);
    for period in 1..10 {
        refill(&rig, period * 10 * MILLI);
    }
    assert_eq!(rig.group.bandwidth_account().waiting, 0);
    assert_eq!(rig.queue.pick(Nanos(90 * MILLI)), Some(1));
    rig.queue.check().unwrap();
}

#[test]
fn a_task_can_be_told_how_long_it_was_throttled() {
    let mut rig = throttled();
    let clock = |rig: &Rig, at: u64| rig.queue.throttled_clock(&rig.group, Nanos(at)).0;
    assert_eq!((clock(&rig, MILLI), clock(&rig, 4 * MILLI)), (0, 3 * MILLI));
    refill(&rig, 10 * MILLI);
    assert_eq!(rig.queue.pick(Nanos(11 * MILLI)), Some(1));
    assert_eq!(
        (clock(&rig, 11 * MILLI), clock(&rig, 12 * MILLI)),
        (10 * MILLI, 10 * MILLI)
    );
}

/// Parent and child throttled at once: the time is counted once.
#[test]
fn overlapping_throttles_of_parent_and_child_are_counted_once() {
    let mut machine = Machine::new(Config::new(1));
    let (parent, child) = (machine.group("p", 100), machine.group("p/c", 100));
    machine.limit(
        &parent,
        Some(Limit::new(Nanos::from_millis(5), Nanos::from_millis(20))),
    );
    machine.limit(
        &child,
        Some(Limit::new(Nanos::from_millis(2), Nanos::from_millis(11))),
    );
    machine.spawn(0, &child, Work::Hog { chunk: 100_000 });
    for step in 1..400u64 {
        machine.run_until(step * MILLI / 2);
        let clock = machine.queues[0]
            .throttled_clock(&child, Nanos(machine.now))
            .0;
        assert_eq!(clock + usage(&child), machine.now);
    }
}

/// A queue that follows another on the same CPU hears of refills.
#[test]
fn a_second_queue_of_a_cpu_gets_its_mail() {
    let tree = GroupTree::new(Config::new(1));
    let group = tree.group("g").unwrap();
    let limit = Limit::new(Nanos::from_millis(1), Nanos::from_millis(10));
    group.set_limit(Some(limit), Nanos(0), &mut |_| ()).unwrap();
    let mut asleep = TaskEntity::default();
    let mut now = 0;
    for _ in 0..3 {
        let mut queue: RunQueue<u8> = RunQueue::new(&tree, CpuId(0));
        queue.enqueue(&group, asleep, 1, Enqueue::New, Nanos(now));
        let mut picked = None;
        for _ in 0..10 {
            let mut kicked = false;
            while tree.refill(Nanos(now), &mut |_| kicked = true) {}
            if kicked {
                queue.unthrottle_pending(Nanos(now));
            }
            picked = queue.pick(Nanos(now));
            if picked.is_some() {
                break;
            }
            now += MILLI;
        }
        assert_eq!(picked, Some(1), "at {now}");
        now += 2 * MILLI;
        queue.put_prev_yield(1, Nanos(now));
        assert_eq!(queue.pick(Nanos(now)), None, "throttled");
        // A refill posts it, which this queue does not read any more.
        now += 10 * MILLI;
        while tree.refill(Nanos(now), &mut |_| ()) {}
        let mut out = Vec::new();
        queue.drain(None, Nanos(now), &mut out);
        asleep = out.pop().expect("the task").entity;
        now += 2 * MILLI;
    }
}
