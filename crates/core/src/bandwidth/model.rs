//! Throttle, refill, idleness, changes of the limit and removal against each other, in every order of their locks and
//! atomics: real run queues on the model checker's threads.
//!
//! `cargo test --release -p quotient-core --features model --lib model`

use crate::{Config, CpuId, Enqueue, Group, GroupTree, Limit, Nanos, RunQueue, TaskEntity};
use loom::thread;
use std::sync::Arc;

const MILLI: u64 = 1_000_000;
const PERIOD: u64 = 10 * MILLI;

/// Explores with a bounded number of preemptions: two are enough for every two-sided race, three for chains of them.
fn explore(preemptions: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(scenario);
}

fn limit(quota_ms: u64) -> Limit {
    Limit::new(Nanos(quota_ms * MILLI), Nanos(PERIOD))
}

fn tree_with(quota_ms: u64) -> (GroupTree, Arc<Group>) {
    let tree = GroupTree::new(Config::new(2));
    let group = tree.group("g").expect("a valid path");
    let set = group.set_limit(Some(limit(quota_ms)), Nanos(0), &mut |_| ());
    set.expect("a valid limit");
    (tree, group)
}

/// A queue whose task has run for `nanos` and been put back.
fn queue_after(tree: &GroupTree, group: &Arc<Group>, cpu: u32, nanos: u64) -> RunQueue<u32> {
    let mut queue = RunQueue::new(tree, CpuId(cpu));
    queue.enqueue(group, TaskEntity::default(), cpu, Enqueue::New, Nanos(0));
    assert_eq!(queue.pick(Nanos(0)), Some(cpu));
    queue.put_prev_yield(cpu, Nanos(nanos));
    queue
}

/// After everything has happened: what the CPU keeps back waits or is posted, and runs after the next refill.
fn nobody_is_left_behind(tree: &GroupTree, queue: &mut RunQueue<u32>, now: u64) {
    queue.check().expect("an invariant");
    if queue.has_current() {
        return;
    }
    for period in 0..64 {
        let now = Nanos(now + period * PERIOD);
        while tree.refill(now, &mut |_| ()) {}
        if queue.pick(now).is_some() {
            return queue.check().expect("an invariant");
        }
    }
    panic!("a runnable task was left behind");
}

#[test]
fn a_refill_is_not_lost_on_a_cpu_that_is_about_to_throttle() {
    explore(3, || {
        let (tree, group) = tree_with(1);
        let mut queue = queue_after(&tree, &group, 0, MILLI);
        let refiller = {
            let tree = tree.clone();
            thread::spawn(move || {
                tree.refill(Nanos(PERIOD), &mut |_| ());
            })
        };
        let first = queue.pick(Nanos(MILLI));
        refiller.join().expect("no panic");
        // The refill has run, for it was armed by the first slice: whoever waits has been posted.
        let account = group.bandwidth_account();
        assert!(account.is_balanced() && account.waiting == 0, "{account:?}");
        assert!(first.is_some() || queue.load().has_unthrottles() || queue.nr_running() > 0);
        nobody_is_left_behind(&tree, &mut queue, PERIOD);
    });
}

#[test]
fn budget_of_a_cpu_that_becomes_idle_is_not_missed() {
    explore(3, || {
        let (tree, group) = tree_with(1);
        let mut idle = queue_after(&tree, &group, 1, 100_000);
        assert!(idle.pick(Nanos(100_000)).is_some());
        let mut queue = queue_after(&tree, &group, 0, 2 * MILLI);
        let sleeper = thread::spawn(move || {
            idle.put_prev_sleep(Nanos(100_000));
            idle.check().expect("an invariant");
            idle
        });
        let first = queue.pick(Nanos(2 * MILLI));
        let idle = sleeper.join().expect("no panic");
        let balances = group.bandwidth_balances();
        let held: i64 = balances
            .iter()
            .filter(|at| !at.busy)
            .map(|at| at.balance.max(0))
            .sum();
        let account = group.bandwidth_account();
        assert!(account.is_balanced());
        let due = tree
            .next_refill()
            .is_some_and(|due| due <= Nanos(2 * MILLI));
        let wasted = account.waiting > 0 && (account.pool > 0 || held > 0);
        assert!(!wasted || due, "{account:?} {balances:?}");
        assert!(first.is_some() || account.waiting > 0 || queue.load().has_unthrottles());
        drop(idle);
        nobody_is_left_behind(&tree, &mut queue, PERIOD);
    });
}

#[test]
fn a_limit_lifted_or_raised_meanwhile_lets_the_cpu_go() {
    for raised in [None, Some(limit(9))] {
        explore(3, move || {
            let (tree, group) = tree_with(1);
            let mut queue = queue_after(&tree, &group, 0, 2 * MILLI);
            let changer = {
                let group = Arc::clone(&group);
                thread::spawn(move || {
                    let set = group.set_limit(raised, Nanos(2 * MILLI), &mut |_| ());
                    set.expect("a valid limit");
                })
            };
            let first = queue.pick(Nanos(2 * MILLI));
            changer.join().expect("no panic");
            let posted = queue.load().has_unthrottles();
            assert!(first.is_some() || posted || queue.nr_running() > 0);
            assert!(group.bandwidth_account().is_balanced());
            if first.is_none() {
                assert_eq!(
                    queue.pick(Nanos(2 * MILLI)),
                    Some(0),
                    "at once, without a refill"
                );
            }
            queue.check().expect("an invariant");
        });
    }
}

/// The CPU ceases to meter a group that waits for budget, and puts it back, as the limit returns: what has no meter competes.
#[test]
fn a_limit_that_returns_while_it_is_lifted_here_keeps_nobody_back() {
    explore(3, || {
        let (tree, group) = tree_with(1);
        let mut queue = queue_after(&tree, &group, 0, 50 * MILLI);
        assert_eq!(queue.pick(Nanos(50 * MILLI)), None);
        let changer = {
            let group = Arc::clone(&group);
            thread::spawn(move || {
                for to in [None, Some(limit(1))] {
                    let set = group.set_limit(to, Nanos(50 * MILLI), &mut |_| ());
                    set.expect("a valid limit");
                }
            })
        };
        // The list of changes is not the checker's: here it may let them happen before the queue looks at it.
        assert!(group.bandwidth_account().is_balanced());
        queue.pick(Nanos(50 * MILLI));
        queue.check().expect("an invariant");
        changer.join().expect("no panic");
        nobody_is_left_behind(&tree, &mut queue, 50 * MILLI);
    });
}

#[test]
fn refill_change_and_throttle_of_two_cpus_leave_nobody_behind() {
    explore(2, || {
        let (tree, group) = tree_with(1);
        let mut first = queue_after(&tree, &group, 0, 2 * MILLI);
        let mut second = queue_after(&tree, &group, 1, MILLI);
        let other = thread::spawn(move || {
            second.pick(Nanos(2 * MILLI));
            second
        });
        let refiller = {
            let (tree, group) = (tree.clone(), Arc::clone(&group));
            thread::spawn(move || {
                tree.refill(Nanos(PERIOD), &mut |_| ());
                let set = group.set_limit(Some(limit(2)), Nanos(PERIOD), &mut |_| ());
                set.expect("a valid limit");
            })
        };
        first.pick(Nanos(2 * MILLI));
        let mut second = other.join().expect("no panic");
        refiller.join().expect("no panic");
        assert!(group.bandwidth_account().is_balanced());
        nobody_is_left_behind(&tree, &mut first, PERIOD);
        nobody_is_left_behind(&tree, &mut second, PERIOD);
    });
}

/// A pool that owes calls in what a CPU holds, while that CPU charges and throttles: nothing is lost or paid twice, and the
/// refills that pay the debt find the CPU.
#[test]
fn a_balance_is_called_in_while_its_cpu_charges_it() {
    explore(3, || {
        let (tree, group) = tree_with(2);
        let mut queue = queue_after(&tree, &group, 0, MILLI / 2);
        assert_eq!(queue.pick(Nanos(MILLI / 2)), Some(0));
        let spender = {
            let group = Arc::clone(&group);
            thread::spawn(move || group.charge_foreign_budget(Nanos(9 * MILLI), Nanos(MILLI)))
        };
        queue.put_prev_yield(0, Nanos(MILLI));
        let first = queue.pick(Nanos(MILLI));
        spender.join().expect("no panic");
        let account = group.bandwidth_account();
        assert!(account.is_balanced(), "{account:?}");
        assert_eq!(account.consumed, 10 * i128::from(MILLI));
        let held = group.bandwidth_balances();
        assert!(account.pool < 0 && held.iter().all(|at| at.balance <= 0));
        if first.is_some() {
            queue.put_prev_yield(0, Nanos(MILLI + MILLI / 10));
            assert_eq!(queue.pick(Nanos(MILLI + MILLI / 10)), None, "one poll more");
        }
        nobody_is_left_behind(&tree, &mut queue, PERIOD);
    });
}

#[test]
fn a_group_can_be_removed_while_it_is_refilled() {
    explore(3, || {
        let (tree, group) = tree_with(1);
        let mut queue = queue_after(&tree, &group, 0, 2 * MILLI);
        assert_eq!(queue.pick(Nanos(2 * MILLI)), None);
        let refiller = {
            let tree = tree.clone();
            thread::spawn(move || {
                tree.refill(Nanos(PERIOD), &mut |_| ());
            })
        };
        let mut out = Vec::new();
        queue.drain(None, Nanos(PERIOD), &mut out);
        assert_eq!(out.len(), 1);
        tree.remove(&group).expect("nothing runnable");
        refiller.join().expect("no panic");
        assert!(group.bandwidth_account().is_balanced());
        assert_eq!(tree.next_refill(), None, "no timer is left behind");
        // A stale entry in the mailbox means nothing to the group that has the name now.
        let again = tree.group("g").expect("a valid path");
        queue.enqueue(
            &again,
            TaskEntity::default(),
            7,
            Enqueue::New,
            Nanos(PERIOD),
        );
        queue.unthrottle_pending(Nanos(PERIOD));
        assert_eq!(queue.pick(Nanos(PERIOD)), Some(7));
        queue.check().expect("an invariant");
    });
}
