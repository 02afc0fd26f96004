//! Polls that are longer than a limit's period: refills that fall due in the middle of one are neither lost nor saved up.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{
    Config, CpuId, Enqueue, Group, GroupTree, Limit, Nanos, RunQueue, TaskEntity, Weight,
};
use std::sync::Arc;

fn limit(quota_ms: u64, period_ms: u64) -> Limit {
    Limit::new(Nanos::from_millis(quota_ms), Nanos::from_millis(period_ms))
}

/// Holds what a group used in `time` against what its limit earned.
fn gets_its_limit(machine: &Machine, group: &Arc<Group>, limit: Limit, poll: u64) {
    let earned = limit.quota.0 * (machine.now / limit.period.0);
    let cpus = machine.queues.len() as u64;
    let used = usage(group);
    let most = earned + limit.quota.0 + limit.burst.0 + cpus * poll;
    let least = earned - limit.quota.0 - poll;
    assert!(
        (least..=most).contains(&used),
        "{limit:?}, polls of {poll} on {cpus}: used {used}, earned {earned}"
    );
    let account = group.bandwidth_account();
    assert!(account.is_balanced(), "{account:?}");
    assert!(account.discarded >= 0, "{account:?}");
}

/// 20 ms polls under 5 ms of 10 ms came to 40 % of a CPU, 60 ms ones to 35 %.
#[test]
fn refills_during_a_poll_are_not_lost() {
    let cases = [
        (20, 5, 10),
        (60, 5, 10),
        (13, 10, 20),
        (100, 1, 1),
        (31, 1, 2),
    ];
    for (poll, quota, period) in cases {
        for (cpus, smooth) in [(1, false), (1, true), (2, false), (4, true)] {
            let limit = limit(quota, period).with_smooth(smooth);
            let mut machine = Machine::new(Config::new(cpus));
            machine.check_every = 101;
            let group = machine.group("g", 100);
            machine.limit(&group, Some(limit));
            for cpu in 0..cpus as usize {
                let chunk = poll * MILLI;
                machine.spawn(cpu, &group, Work::Hog { chunk });
            }
            machine.run_until(4 * SECOND);
            gets_its_limit(&machine, &group, limit, poll * MILLI);
        }
    }
}

/// Beside another group polls begin anywhere in a period, and short ones see refills, too. (9 ms polls got 75 % of the limit.)
#[test]
fn refills_during_a_poll_are_not_lost_beside_others() {
    for poll in [2, 7, 9, 20, 50] {
        let mut machine = Machine::new(Config::new(1));
        machine.check_every = 101;
        let group = machine.group("g", 100);
        let other = machine.group("other", 10);
        machine.limit(&group, Some(limit(4, 10)));
        let chunk = poll * MILLI;
        machine.spawn(0, &group, Work::Hog { chunk });
        machine.spawn(0, &other, Work::Hog { chunk: 3 * MILLI });
        machine.run_until(8 * SECOND);
        gets_its_limit(&machine, &group, limit(4, 10), poll * MILLI);
    }
}

/// A timer that comes late brings all that was due, to CPUs that wait as well: beyond the cap it pays their debts.
#[test]
fn a_late_refill_pays_the_debts_of_those_that_wait() {
    let tree = GroupTree::new(Config::new(1));
    let group = tree.group("g").unwrap();
    let set = group.set_limit(Some(limit(5, 10)), Nanos(0), &mut |_| ());
    set.unwrap();
    let mut queue: RunQueue<u8> = RunQueue::new(&tree, CpuId(0));
    queue.enqueue(&group, TaskEntity::default(), 1, Enqueue::New, Nanos(0));
    assert_eq!(queue.pick(Nanos(0)), Some(1));
    let mut now = 54 * MILLI;
    queue.put_prev_yield(1, Nanos(now));
    assert_eq!(queue.pick(Nanos(now)), None, "used 54 ms of 30");
    // 60 ms are earned by then, and nobody ran the timer.
    now = 110 * MILLI;
    while tree.refill(Nanos(now), &mut |_| ()) {}
    queue.unthrottle_pending(Nanos(now));
    assert_eq!(queue.pick(Nanos(now)), Some(1));
    assert!(group.bandwidth_account().is_balanced());
}

/// What spilt before a poll began is gone but for debts: these are paid while the group sleeps. (The debt of a CPU that had
/// nothing to run was not, and the second poll began 100 ms late.)
#[test]
fn an_idle_past_does_not_pay_for_a_long_poll() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(2, 10)));
    // Asleep for 400 ms, in which 80 ms spill; then 30 ms in one poll, which earn 6 ms.
    let (run, sleep) = (30 * MILLI, 400 * MILLI);
    machine.spawn(0, &group, Work::Periodic { run, sleep });
    machine.advance_to(430 * MILLI + 1);
    let before = group.bandwidth_account();
    machine.advance_to(460 * MILLI + 1);
    let after = group.bandwidth_account();
    assert_eq!(
        usage(&group),
        60 * MILLI,
        "the debt of the first poll was paid"
    );
    let owed = -(after.pool + after.local);
    // 30 ms used, less the quota it began with, less what the 30 ms earned (one refill more or less).
    let expected = i128::from(30 * MILLI - 2 * MILLI - 6 * MILLI);
    let refill = i128::from(2 * MILLI);
    assert!(
        (expected - refill..=expected + refill).contains(&owed),
        "owes {owed}, expected {expected}: {before:?} {after:?}"
    );
}

/// The periods of a long poll are periods in which the group was active.
#[test]
fn periods_pass_during_a_poll() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(5, 10)));
    let chunk = 60 * MILLI;
    machine.spawn(0, &group, Work::Hog { chunk });
    machine.run_until(2 * SECOND);
    assert_eq!(group.bandwidth_stats().nr_periods, 200);
}

/// A CPU's balance does not stay busy when the limit that it was of is lifted: the timer of an idle group ends.
#[test]
fn a_limit_that_comes_back_for_an_idle_group_arms_no_timer_for_ever() {
    let tree = GroupTree::new(Config::new(1));
    let group = tree.group("g").unwrap();
    let set = |limit, at| group.set_limit(limit, Nanos(at), &mut |_| ()).unwrap();
    set(Some(limit(5, 10)), 0);
    let mut queue: RunQueue<u8> = RunQueue::new(&tree, CpuId(0));
    let task = TaskEntity::new(Weight::DEFAULT, None);
    queue.enqueue(&group, task, 1, Enqueue::New, Nanos(0));
    assert_eq!(queue.pick(Nanos(0)), Some(1));
    set(None, MILLI);
    queue.charge(Nanos(2 * MILLI));
    queue.put_prev_exit(Nanos(3 * MILLI));
    set(Some(limit(5, 10)), 4 * MILLI);
    for at in 0..10 {
        while tree.refill(Nanos(at * 10 * MILLI), &mut |_| ()) {}
    }
    assert_eq!(tree.next_refill(), None);
}
