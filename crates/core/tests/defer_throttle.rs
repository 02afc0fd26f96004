//! Tasks that hold what others wait for: their throttle is deferred, they go before their peers, and the debt is paid.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{Config, CpuId, Enqueue, GroupTree, Limit, Nanos, RunQueue, TaskEntity};

const QUOTA: u64 = 10 * MILLI;

fn setup() -> (
    GroupTree,
    std::sync::Arc<quotient_core::Group>,
    RunQueue<u32>,
) {
    let tree = GroupTree::new(Config::new(1));
    let group = tree.group("g").unwrap();
    let limit = Limit::new(Nanos(QUOTA), Nanos::from_millis(100));
    group.set_limit(Some(limit), Nanos(0), &mut |_| ()).unwrap();
    let queue = RunQueue::new(&tree, CpuId(0));
    (tree, group, queue)
}

/// A holder runs on where its group would be throttled, before its peers, and no further than the overdraft.
#[test]
fn a_holder_runs_on_up_to_the_overdraft() {
    let (tree, group, mut queue) = setup();
    for task in 1..=4 {
        queue.enqueue(&group, TaskEntity::default(), task, Enqueue::New, Nanos(0));
    }
    let holder = queue.pick(Nanos(0)).unwrap();
    queue.defer_current(true);
    let mut now = 0;
    let mut runs_in_debt = 0;
    let mut current = Some(holder);
    while let Some(task) = current {
        now += MILLI / 2;
        queue.put_prev_yield(task, Nanos(now));
        queue.check().unwrap();
        current = queue.pick(Nanos(now));
        if now >= QUOTA && current.is_some() {
            assert_eq!(current, Some(holder), "only the holder runs in debt");
            runs_in_debt += 1;
        }
    }
    assert_eq!(now, 2 * QUOTA, "10 ms into debt");
    assert_eq!(runs_in_debt, 20);
    // The debt costs the next refill, and the one after that is available.
    tree.refill(Nanos(100 * MILLI), &mut |_| ());
    assert_eq!(
        queue.pick(Nanos(100 * MILLI)),
        None,
        "10 ms of debt, 10 ms of quota, and not 1 ns more"
    );
    tree.refill(Nanos(200 * MILLI), &mut |_| ());
    assert!(queue.pick(Nanos(200 * MILLI)).is_some());
    queue.check().unwrap();
}

/// The end of the guard is the end of the exemption.
#[test]
fn the_throttle_comes_when_the_guard_is_dropped() {
    let (_tree, group, mut queue) = setup();
    queue.enqueue(&group, TaskEntity::default(), 1, Enqueue::New, Nanos(0));
    queue.pick(Nanos(0)).unwrap();
    queue.defer_current(true);
    let now = Nanos(QUOTA + MILLI);
    queue.charge(now);
    assert!(!queue.should_resched(now), "the holder may go on");
    queue.defer_current(false);
    assert!(queue.should_resched(now));
    queue.put_prev_preempt(1, now);
    assert_eq!((queue.pick(now), queue.nr_throttled()), (None, 1));
    queue.check().unwrap();
}

/// A holder that is woken into its throttled group runs at once; its peers do not.
#[test]
fn a_holder_that_wakes_up_in_a_throttled_group_runs() {
    let (_tree, group, mut queue) = setup();
    for task in 1..=3 {
        queue.enqueue(&group, TaskEntity::default(), task, Enqueue::New, Nanos(0));
    }
    let first = queue.pick(Nanos(0)).unwrap();
    queue.put_prev_yield(first, Nanos(QUOTA));
    assert_eq!(queue.pick(Nanos(QUOTA)), None);
    let mut holder = TaskEntity::default();
    holder.set_deferring(true);
    queue.enqueue(&group, holder, 9, Enqueue::Wake, Nanos(QUOTA));
    queue.check().unwrap();
    assert_eq!(queue.pick(Nanos(QUOTA)), Some(9));
    let asleep = queue.put_prev_sleep(Nanos(QUOTA + MILLI)).unwrap();
    assert!(asleep.is_deferring());
    assert_eq!(queue.pick(Nanos(QUOTA + MILLI)), None);
    assert_eq!(queue.nr_throttled(), 3);
    queue.check().unwrap();
}

/// Over time a group with holders uses what it may, no more: overdrafts are repaid.
#[test]
fn overdrafts_are_repaid() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    let limit = Limit::new(Nanos(QUOTA), Nanos::from_millis(100));
    machine.limit(&group, Some(limit));
    let mut entity = TaskEntity::default();
    entity.set_deferring(true);
    let work = Work::Periodic {
        run: MILLI,
        sleep: 7 * MILLI,
    };
    machine.spawn_as(0, &group, work, entity);
    machine.spawn(1, &group, Work::Hog { chunk: 50_000 });
    machine.run_until(5 * SECOND);
    let used = usage(&group);
    assert!(used <= 500 * MILLI + 2 * (QUOTA + MILLI), "{used}");
    assert!(used >= 495 * MILLI, "{used}");
    assert!(group.bandwidth_account().is_balanced());
}
