//! What a CPU shows others of how many tasks run and wait there is true after every choice, by the short way of yields, too.

use quotient_core::{Config, CpuId, Enqueue, GroupTree, Limit, Nanos, RunQueue, TaskEntity};

/// A limited group of eight beside two tasks on one of two CPUs, after the first choice.
fn set_up() -> (RunQueue<u32>, u32, std::sync::Arc<quotient_core::Group>) {
    let tree = GroupTree::new(Config::new(2));
    let mut queue = RunQueue::new(&tree, CpuId(0));
    let group = tree.group("limited").unwrap();
    let root = tree.root();
    for task in 0..8 {
        queue.enqueue(
            &group,
            TaskEntity::default(),
            task,
            Enqueue::New,
            Nanos::ZERO,
        );
    }
    for task in 8..10 {
        queue.enqueue(
            &root,
            TaskEntity::default(),
            task,
            Enqueue::New,
            Nanos::ZERO,
        );
    }
    limit(&group, Some(1), Nanos::ZERO);
    let task = queue.pick(Nanos::ZERO).unwrap();
    (queue, task, group)
}

fn limit(group: &std::sync::Arc<quotient_core::Group>, quota: Option<u64>, now: Nanos) {
    let limit = quota.map(|quota| Limit::new(Nanos::from_millis(quota), Nanos::from_secs(1)));
    group.set_limit(limit, now, &mut |_| {}).unwrap();
}

fn assert_published(queue: &RunQueue<u32>, when: &str) {
    let (shown, real) = (queue.load(), (queue.nr_running(), queue.nr_queued()));
    assert_eq!((shown.nr_running(), shown.nr_queued()), real, "{when}");
}

#[test]
fn a_throttle_at_a_yield_is_published() {
    let (mut queue, mut task, _group) = set_up();
    for turn in 1..9_000 {
        let now = Nanos::from_micros(100 * turn);
        task = queue.switch(task, now).unwrap();
        assert_published(&queue, &format!("at {now:?}"));
    }
    assert_eq!(queue.nr_throttled(), 8, "the group is throttled in the end");
}

#[test]
fn a_limit_that_is_lifted_is_published_by_the_charge_that_follows_it() {
    let (mut queue, mut task, group) = set_up();
    for turn in 1..100 {
        task = queue.switch(task, Nanos::from_micros(100 * turn)).unwrap();
    }
    assert_eq!(queue.nr_throttled(), 8);
    limit(&group, None, Nanos::from_millis(11));
    queue.charge(Nanos::from_millis(11));
    assert_eq!(queue.nr_running(), 10);
    assert_published(&queue, "lifted");
}
