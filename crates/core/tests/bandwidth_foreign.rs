//! CPU time that was spent beside the run queues (metered threads, blocking functions, foreign tasks) under a limit: it is
//! a debt of the group, to the nanosecond, which the group's refills pay before its tasks run on.

mod common;

use common::{MILLI, Machine, SECOND, Work, usage};
use quotient_core::{Config, Limit, Nanos};

const POLL: u64 = 50_000;

fn limit(quota_ms: u64, period_ms: u64) -> Limit {
    Limit::new(Nanos::from_millis(quota_ms), Nanos::from_millis(period_ms))
}

/// What the refills of an idle past would have brought is not there to pay for time that was spent after it.
#[test]
fn an_idle_past_does_not_pay_for_foreign_time_that_came_after_it() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(10, 100)));
    machine.spawn(0, &group, Work::Once { run: MILLI });
    machine.run_until(10 * SECOND);
    // Below what the pool may owe, so that it is the idle time that is asked for.
    group.add_foreign_cpu_time(Nanos(18 * MILLI), Nanos(machine.now));
    machine.spawn(0, &group, Work::Hog { chunk: POLL });
    machine.run_until(10 * SECOND + 100 * MILLI - 1);
    assert_eq!(usage(&group), 19 * MILLI, "8 ms are owed: no task runs");
    machine.run_until(10 * SECOND + 200 * MILLI - 1);
    assert_eq!(
        usage(&group),
        21 * MILLI,
        "the next 10 ms pay for them first"
    );
    assert!(group.bandwidth_account().is_balanced());
}

/// 1.8 s of threads beside the run queues under 40 ms in 100 ms: the tasks wait until the last nanosecond of it is paid.
/// (While the debt was forgiven beyond one quota or 100 ms, they ran after a few periods.)
#[test]
fn no_foreign_debt_is_forgiven() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(40, 100)));
    for cpu in 0..2 {
        machine.spawn(cpu, &group, Work::Hog { chunk: POLL });
    }
    machine.run_until(SECOND - MILLI);
    assert_eq!(machine.ran(&group), 400 * MILLI);
    let foreign = 1_800 * MILLI + 7;
    group.add_foreign_cpu_time(Nanos(foreign), Nanos(machine.now));
    let account = group.bandwidth_account();
    assert_eq!(account.pool + account.local, -i128::from(foreign));
    // 45 refills, the last at 5.4 s, pay all but 7 ns.
    machine.run_until(5_500 * MILLI - 1);
    assert_eq!(machine.ran(&group), 400 * MILLI, "no task runs before");
    machine.run_until(10 * SECOND - 1);
    let tasks = 400 * MILLI + 45 * 40 * MILLI - 7;
    let used = machine.ran(&group);
    assert!(
        (tasks..=tasks + 2 * POLL).contains(&used),
        "{used} of {tasks}"
    );
    let stats = group.bandwidth_stats();
    assert_eq!(
        (stats.nr_periods, stats.nr_throttled),
        (99, 99),
        "{stats:?}"
    );
    assert!(
        stats.throttled_time >= Nanos(2 * 4_400 * MILLI),
        "{stats:?}"
    );
    assert!(group.bandwidth_account().is_balanced());
}

/// The whole path owes, and the tightest limit on it decides.
#[test]
fn foreign_time_is_owed_at_every_level() {
    let mut machine = Machine::new(Config::new(2));
    let groups = ["a", "a/b", "a/b/c"].map(|path| machine.group(path, 100));
    let sibling = machine.group("a/s", 100);
    for (group, quota) in groups.iter().zip([50, 20, 40]) {
        machine.limit(group, Some(limit(quota, 100)));
    }
    groups[2].add_foreign_cpu_time(Nanos(SECOND), Nanos(0));
    for (group, quota) in groups.iter().zip([50u64, 20, 40]) {
        let pool = group.bandwidth_account().pool;
        assert_eq!(pool, i128::from(quota * MILLI) - i128::from(SECOND));
    }
    for cpu in 0..2 {
        machine.spawn(cpu, &groups[2], Work::Hog { chunk: POLL });
        machine.spawn(cpu, &sibling, Work::Hog { chunk: POLL });
    }
    machine.run_until(1_900 * MILLI - 1);
    assert_eq!(
        machine.ran(&sibling),
        0,
        "a pays 1,000 ms with its first 20 quotas"
    );
    machine.run_until(3 * SECOND);
    assert!(machine.ran(&sibling) > 400 * MILLI);
    assert_eq!(machine.ran(&groups[2]), 0, "a/b needs 50 quotas");
    machine.run_until(6 * SECOND);
    let used = machine.ran(&groups[2]);
    assert!((190 * MILLI..=225 * MILLI).contains(&used), "{used}");
}

/// Tasks that poll for microseconds and sleep never use a slice up: what CPUs hold is called in.
#[test]
fn tiny_polls_are_throttled_for_foreign_debt() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(40, 100)));
    for cpu in 0..8 {
        let (run, sleep) = (2_000, 300_000);
        machine.spawn(cpu % 2, &group, Work::Periodic { run, sleep });
    }
    machine.run_until(50 * MILLI);
    let before = machine.ran(&group);
    group.add_foreign_cpu_time(Nanos(500 * MILLI), Nanos(machine.now));
    let balances = group.bandwidth_balances();
    assert!(balances.iter().all(|at| at.balance <= 0), "{balances:?}");
    machine.run_until(SECOND);
    let used = machine.ran(&group) - before;
    assert!(used <= 2 * 52_000, "{used}: no more than was under way");
    let stats = group.bandwidth_stats();
    assert!(stats.nr_throttled >= 9, "{stats:?}");
    machine.run_until(3 * SECOND);
    assert!(machine.ran(&group) > 10 * before, "paid, it runs on");
}

/// A group that nobody runs owes as well: the task that comes later pays first.
#[test]
fn a_task_that_comes_later_waits_for_the_debt() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(10, 100)));
    group.add_foreign_cpu_time(Nanos(95 * MILLI), Nanos(0));
    machine.run_until(450 * MILLI);
    machine.spawn(0, &group, Work::Hog { chunk: POLL });
    // Its first use began a period: 40 ms are owed then, and paid at 850 ms to the nanosecond.
    machine.run_until(950 * MILLI - 1);
    assert_eq!(machine.ran(&group), 0);
    machine.run_until(951 * MILLI);
    assert_eq!(machine.ran(&group), MILLI);
}

/// Neither another limit nor none for a while is a payment.
#[test]
fn foreign_debt_outlives_changes_of_the_limit() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(10, 100)));
    group.add_foreign_cpu_time(Nanos(210 * MILLI), Nanos(0));
    machine.limit(&group, None);
    machine.run_until(10 * SECOND);
    let account = group.bandwidth_account();
    assert_eq!(
        account.pool,
        -210 * i128::from(MILLI),
        "nothing was granted or earned"
    );
    machine.spawn(0, &group, Work::Hog { chunk: POLL });
    machine.run_until(10 * SECOND + MILLI);
    assert_eq!(machine.ran(&group), MILLI, "no limit, no wait");
    machine.limit(&group, Some(limit(100, 100)));
    machine.limit(&group, Some(limit(50, 100)));
    machine.run_until(10 * SECOND + 401 * MILLI - 1);
    let polls = POLL;
    assert!(
        machine.ran(&group) <= MILLI + polls,
        "{}",
        machine.ran(&group)
    );
    machine.run_until(10 * SECOND + 501 * MILLI);
    let used = machine.ran(&group) - MILLI;
    assert!(
        (40 * MILLI - 2 * polls..=90 * MILLI).contains(&used),
        "{used}"
    );
}

/// The books hold whatever is charged, up to far beyond the age of anything.
#[test]
fn absurd_foreign_time_overflows_nothing() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("a/b", 100);
    machine.limit(&group, Some(limit(10, 100)));
    for time in [u64::MAX, 1 << 60, 1] {
        group.charge_foreign_cpu_time(Nanos(time), Nanos(machine.now));
        machine.run_until(machine.now + SECOND);
        let account = group.bandwidth_account();
        assert!(account.is_balanced(), "{account:?}");
        assert!(
            account.pool < -(1 << 59) && account.pool >= -(1 << 60),
            "{account:?}"
        );
    }
    machine.limit(&group, Some(limit(20, 100)));
    machine.limit(&group, None);
    machine.limit(&group, Some(limit(20, 100)));
    assert!(group.bandwidth_account().is_balanced());
}

/// A second of a thread that is charged at its end owes what it would owe had it been charged as it went, to one quota: the refills of
/// that second found a full pool. (They were lost: 200 of 1,000 ms under a fifth of a CPU.)
#[test]
fn refills_are_lost_to_foreign_time_that_is_charged_at_its_end() {
    let quota = 20;
    let owed = |steps: u64| {
        let mut machine = Machine::new(Config::new(1));
        let group = machine.group("g", 100);
        machine.limit(&group, Some(limit(quota, 100)));
        machine.run_until(10 * SECOND);
        for _ in 0..steps {
            machine.run_until(machine.now + SECOND / steps);
            group.add_foreign_cpu_time(Nanos(SECOND / steps), Nanos(machine.now));
        }
        let account = group.bandwidth_account();
        assert!(account.is_balanced(), "{account:?}");
        account.pool
    };
    let (at_once, in_steps) = (owed(1), owed(1_000));
    assert_eq!(at_once, -i128::from(780 * MILLI));
    assert!(
        (at_once - in_steps).unsigned_abs() <= u128::from(quota * MILLI),
        "{at_once} at once, {in_steps} in steps"
    );
}

/// What four threads on two processors owe, which each compute for `each` ns in twice that time and are charged in so many steps, under a fifth
/// of a CPU, beside a task that keeps the group awake.
fn owed_by_four(each: u64, steps: u64, waited: bool) -> i128 {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(20, 100)));
    let (run, sleep) = (1_000, 10 * MILLI);
    machine.spawn(0, &group, Work::Periodic { run, sleep });
    machine.run_until(10 * SECOND);
    let part = Nanos(each / steps);
    let lasted = if waited { Nanos(2 * part.0) } else { part };
    for _ in 0..steps {
        machine.run_until(machine.now + 2 * part.0);
        for _ in 0..4 {
            group.show_foreign_cpu_time(0, part);
            group.charge_foreign_cpu_time_over(part, lasted, Nanos(machine.now));
        }
    }
    let account = group.bandwidth_account();
    assert!(account.is_balanced(), "{account:?}");
    -(account.pool + account.local)
}

/// They owe what they would had they been charged as they went, to one quota and what the task computes. (While each was taken to have begun
/// as long ago as it computed, the refills of the first half were lost. Of a thread that slept meanwhile they are.)
#[test]
fn refills_are_lost_to_threads_that_wait_for_processors() {
    let each = SECOND / 2;
    let exact = i128::from(4 * each - 2 * each / 5);
    let near = |one: i128, other: i128| {
        let apart = (one - other).unsigned_abs();
        assert!(apart <= u128::from(21 * MILLI), "{one} {other}");
    };
    near(owed_by_four(each, 1, true), exact);
    near(owed_by_four(each, 100, true), exact);
    near(
        owed_by_four(each, 1, false),
        exact + i128::from(100 * MILLI),
    );
}

/// Of more refills than are kept apart, each of the threads took a part of those that had fallen due before it began: 360 ms.
#[test]
fn threads_take_back_refills_from_before_they_began() {
    for each in [SECOND, 2 * SECOND, 4 * SECOND] {
        let owed = owed_by_four(each, 1, true);
        let exact = i128::from(4 * each - 2 * each / 5);
        assert!(owed >= exact - i128::from(21 * MILLI), "{owed} of {exact}");
        let slept = owed_by_four(each, 1, false);
        assert!(owed < slept, "{owed}, {slept} of who slept");
    }
}

/// Idle before and between, so that no timer runs: only whole periods count, and nothing is earned by more than the time that passed.
#[test]
fn threads_that_waited_bring_no_more_than_the_refills_of_their_time() {
    for lasted in [0, 1, 30, 100, 150, 1_000, 60_000, 1_000_000] {
        let mut machine = Machine::new(Config::new(1));
        let group = machine.group("g", 100);
        machine.limit(&group, Some(limit(20, 100)));
        machine.run_until(60 * SECOND);
        let (time, lasted) = (Nanos(10 * SECOND), Nanos(lasted * MILLI));
        for _ in 0..3 {
            group.charge_foreign_cpu_time_over(time, lasted, Nanos(machine.now));
        }
        let account = group.bandwidth_account();
        assert!(account.is_balanced(), "{account:?}");
        // What was refilled since the limit was set: a quota at first, and 20 ms each 100.
        let most = 20 * MILLI + 60 * SECOND / 5;
        let owed = i128::from(30 * SECOND) - i128::from(most);
        assert!(-(account.pool + account.local) >= owed, "{account:?}");
        assert!(account.discarded >= 0, "{account:?}");
    }
}

/// Foreign polls that are longer than a period, at just the rate of the limit, beside a task that keeps the group awake: it owes no more
/// after ten seconds than after one.
#[test]
fn long_foreign_polls_at_the_limit_pile_up_debt() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(5, 10)));
    let (run, sleep) = (1_000, MILLI);
    machine.spawn(0, &group, Work::Periodic { run, sleep });
    for _ in 0..250 {
        machine.run_until(machine.now + 40 * MILLI);
        // The task's microseconds are a part of the half.
        group.add_foreign_cpu_time(Nanos(19_900_000), Nanos(machine.now));
    }
    let owed = -group.bandwidth_account().pool;
    assert!(owed <= i128::from(20 * MILLI), "{owed} ns are owed");
    assert!(group.bandwidth_account().is_balanced());
}

/// Work beside the run queues that asks before each step has what the tightest limit of its path earns, and goes on at once where that is lifted.
#[test]
fn who_asks_before_it_goes_on_keeps_to_the_tightest_limit() {
    let mut machine = Machine::new(Config::new(2));
    let groups = ["a", "a/b"].map(|path| machine.group(path, 100));
    for (group, quota) in groups.iter().zip([5, 40]) {
        machine.limit(group, Some(limit(quota, 100)));
    }
    let mut used = 0;
    let mut step = |machine: &mut Machine| {
        machine.run_until(machine.now + MILLI);
        let now = Nanos(machine.now);
        let waits = groups[1].keeps_back_foreign(now);
        if !waits {
            groups[1].add_foreign_cpu_time(Nanos(MILLI), now);
            used += MILLI;
        }
        waits
    };
    while machine.now < 4 * SECOND {
        step(&mut machine);
    }
    while !step(&mut machine) {}
    machine.limit(&groups[0], None);
    assert!(!step(&mut machine), "nothing is in force that it waits for");
    // 40 periods, the quota that was there at first, and the steps after that.
    assert!((200 * MILLI..=212 * MILLI).contains(&used), "{used}");
    let stats = groups[0].bandwidth_stats();
    assert!(stats.nr_throttled >= 38, "{stats:?}");
    assert!(
        groups
            .iter()
            .all(|group| group.bandwidth_account().is_balanced())
    );
}
