//! CPU bandwidth control in virtual time: exact scenarios, among them the kernel selftests' A8 and A9.

mod common;

use common::{MILLI, Machine, SECOND, Work, close, usage};
use quotient_core::{
    BandwidthRules, Config, CpuId, Enqueue, GroupTree, Limit, Nanos, RunQueue, TaskEntity,
    ThrottleWatch, Weight,
};
use std::sync::Arc;

fn limit(quota_us: u64, period_us: u64) -> Limit {
    Limit::new(Nanos::from_micros(quota_us), Nanos::from_micros(period_us))
}

const POLL: u64 = 50_000;

/// Every row of the benchmark: what is charged is the quota, whatever the number of spinners and their polls.
#[test]
fn usage_is_the_quota_for_every_ratio_of_quota_to_period() {
    for (quota, period) in [
        (2, 10),
        (5, 100),
        (20, 100),
        (50, 100),
        (150, 100),
        (10, 1000),
    ] {
        for spinners in [1u64, 2, 8, 32] {
            for poll in [POLL, MILLI] {
                let mut machine = Machine::new(Config::new(2));
                machine.check_every = 997;
                let group = machine.group("g", 100);
                machine.limit(&group, Some(limit(quota * 1_000, period * 1_000)));
                for spinner in 0..spinners {
                    machine.spawn(spinner as usize % 2, &group, Work::Hog { chunk: poll });
                }
                let end = if period > 100 { 5 * SECOND } else { SECOND };
                machine.run_until(end);
                let ideal = (end * quota / period).min(end * spinners.min(2));
                let used = usage(&group);
                // What the polls under way at the end of a period overran is paid in the next one, so the error does
                // not grow with the time.
                let polls = 2 * poll;
                assert!(
                    used.abs_diff(ideal) <= polls + ideal / 1_000,
                    "{quota}/{period} ms, {spinners} spinners, {poll} ns: {used} against {ideal}, {:?}",
                    group.bandwidth_account()
                );
                assert!(group.bandwidth_account().is_balanced());
            }
        }
    }
}

/// A8: 1 ms in 100 ms, one hog, one second of wall time.
#[test]
fn cpucg_max_holds_per_period_and_by_the_published_formula() {
    for rules in [BandwidthRules::Default, BandwidthRules::KERNEL] {
        for nested in [false, true] {
            let mut machine = Machine::new(Config {
                bandwidth: rules,
                ..Config::new(2)
            });
            let (parent, child) = (machine.group("p", 100), machine.group("p/c", 100));
            parent
                .set_limit_text("1000", Nanos(0), &mut |_| ())
                .unwrap();
            let home = if nested { &child } else { &parent };
            machine.spawn(0, home, Work::Spin { chunk: POLL });
            machine.run_until(SECOND);
            let used = usage(&parent);
            assert!(close(used, 10 * MILLI, 10), "{rules:?} {nested}: {used}");
            let stats = parent.bandwidth_stats();
            let per_period = used / stats.nr_periods.max(1);
            assert!(close(per_period, MILLI, 10), "{rules:?}: {per_period}");
            assert!(stats.nr_throttled + 1 >= stats.nr_periods, "{stats:?}");
        }
    }
}

/// The worst window of one period sees the quota and the polls that were under way, no more.
#[test]
fn no_window_of_a_period_sees_more_than_the_quota_and_a_poll_a_cpu() {
    for (sleepy, poll) in [(false, MILLI), (true, 3 * MILLI)] {
        let mut machine = Machine::new(Config::new(2));
        let group = machine.group("g", 100);
        machine.limit(&group, Some(limit(20_000, 100_000)));
        let (tasks, work) = if sleepy {
            let sleep = 250 * MILLI;
            (16, Work::Periodic { run: poll, sleep })
        } else {
            (2, Work::Hog { chunk: poll })
        };
        for task in 0..tasks {
            machine.spawn(task % 2, &group, work);
        }
        let mut samples = vec![0];
        for step in 1..=4_000u64 {
            machine.run_until(step * MILLI / 2);
            samples.push(usage(&group));
        }
        let worst = samples.windows(201).map(|w| w[200] - w[0]).max().unwrap();
        assert!(worst <= 20 * MILLI + 2 * poll, "{sleepy}: {worst}");
    }
}

#[test]
fn unused_quota_is_carried_over_up_to_the_burst_and_counted() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    machine.limit(
        &group,
        Some(limit(10_000, 100_000).with_burst(Nanos::from_millis(30))),
    );
    // 4 ms in most periods, then as much as it gets.
    machine.spawn(
        0,
        &group,
        Work::Periodic {
            run: 4 * MILLI,
            sleep: 96 * MILLI,
        },
    );
    machine.run_until(SECOND);
    let before = usage(&group);
    machine.spawn(1, &group, Work::Hog { chunk: POLL });
    machine.run_until(SECOND + 100 * MILLI);
    let burst = usage(&group) - before;
    assert!((39 * MILLI..=44 * MILLI).contains(&burst), "{burst}");
    machine.run_until(3 * SECOND);
    let stats = group.bandwidth_stats();
    assert_eq!(stats.nr_bursts, 1, "{stats:?}");
    assert!(stats.burst_time >= Nanos::from_millis(25), "{stats:?}");
    assert!(group.bandwidth_account().is_balanced());
}

/// Nested limits: each level keeps its own, and a child's sum may exceed the parent's.
#[test]
fn every_level_keeps_its_own_limit() {
    let mut machine = Machine::new(Config::new(4));
    let parent = machine.group("p", 100);
    let children: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| machine.group(&format!("p/{name}"), 100))
        .collect();
    machine.limit(&parent, Some(limit(80_000, 100_000)));
    machine.limit(&children[0], Some(limit(10_000, 50_000)));
    machine.limit(&children[1], Some(limit(300_000, 200_000)));
    for child in &children {
        for cpu in 0..4 {
            machine.spawn(cpu, child, Work::Hog { chunk: POLL });
        }
    }
    machine.run_until(5 * SECOND);
    let total = usage(&parent);
    assert!(close(total, 4 * SECOND, 1), "{total}");
    let used: Vec<u64> = children.iter().map(usage).collect();
    assert_eq!(used.iter().sum::<u64>(), total);
    // The parent's 80 ms are gone in the first half of its period, so the child's second refill in it comes too late.
    assert!(close(used[0], SECOND / 2, 2), "{used:?}");
    assert!(close(used[1], used[2], 5), "{used:?}");
}

#[test]
fn a_quota_of_all_cpus_never_throttles() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(200_000, 100_000)));
    for cpu in 0..4 {
        machine.spawn(cpu % 2, &group, Work::Hog { chunk: 7 * MILLI });
    }
    machine.run_until(2 * SECOND);
    assert_eq!(usage(&group), 4 * SECOND);
    assert_eq!(group.bandwidth_stats().throttles, 0);
    assert!(group.bandwidth_account().is_balanced());
}

/// Smooth refill spreads the quota over the period: throttles are short, the amount is the same.
#[test]
fn smooth_refill_gives_the_same_in_smaller_parts() {
    let mut worst = Vec::new();
    for smooth in [false, true] {
        let mut machine = Machine::new(Config::new(2));
        let group = machine.group("g", 100);
        machine.limit(&group, Some(limit(30_000, 100_000).with_smooth(smooth)));
        machine.spawn(0, &group, Work::Hog { chunk: POLL });
        machine.run_until(5 * SECOND);
        assert!(close(usage(&group), 1_500 * MILLI, 1), "{}", usage(&group));
        assert!(group.bandwidth_account().is_balanced());
        worst.push(machine.tasks[0].worst_delay);
    }
    assert!(worst[0] > 60 * MILLI && worst[1] < 3 * MILLI, "{worst:?}");
}

/// A soft limit yields to others and takes what is idle, which is booked apart.
#[test]
fn a_soft_group_uses_idle_cpus_as_overage_only() {
    let mut machine = Machine::new(Config::new(1));
    let (soft, other) = (machine.group("soft", 100), machine.group("other", 100));
    machine.limit(&soft, Some(limit(10_000, 100_000).with_soft(true)));
    machine.spawn(0, &soft, Work::Hog { chunk: POLL });
    machine.run_until(SECOND);
    assert_eq!(usage(&soft), SECOND, "nobody else wants the CPU");
    let stats = soft.bandwidth_stats();
    assert!(close(stats.overage.0, 900 * MILLI, 1), "{stats:?}");
    machine.spawn(0, &other, Work::Hog { chunk: POLL });
    machine.run_until(2 * SECOND);
    assert!(
        close(usage(&soft) - SECOND, 100 * MILLI, 2),
        "{}",
        usage(&soft)
    );
    assert!(soft.bandwidth_account().is_balanced());
}

/// Statistics agree with each other, and the length of throttles with the clock of each CPU.
#[test]
fn statistics_tell_what_happened() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(25_000, 100_000)));
    machine.spawn(0, &group, Work::Hog { chunk: POLL });
    machine.run_until(1_090 * MILLI);
    let stats = group.bandwidth_stats();
    assert_eq!((stats.nr_periods, stats.nr_throttled), (10, 10));
    assert_eq!((stats.throttles, stats.longest_throttled_run), (10, 10));
    assert_eq!(stats.throttle_lengths.iter().sum::<u64>(), 10);
    // 75 ms is in 2^16 us and more.
    assert_eq!(stats.throttle_lengths[16], 10, "{stats:?}");
    let clock = machine.queues[0].throttled_clock(&group, Nanos(machine.now));
    let current = Nanos(1_090 * MILLI - 1_025 * MILLI);
    assert_eq!(stats.throttled_time, clock - current);
    assert_eq!(clock.0 + usage(&group), machine.now);
}

/// Debts that were made beside the run queues, and what smooth parts left over, are no burst.
#[test]
fn bursts_are_counted_only_where_burst_was_used() {
    let run = |limit: Limit, foreign: u64, work: Work| {
        let mut machine = Machine::new(Config::new(1));
        let group = machine.group("g", 100);
        machine.limit(&group, Some(limit));
        machine.spawn(0, &group, work);
        machine.run_until(150 * MILLI);
        if foreign > 0 {
            group.add_foreign_cpu_time(Nanos(foreign), Nanos(machine.now));
        }
        machine.run_until(2 * SECOND);
        let stats = group.bandwidth_stats();
        (stats.nr_bursts, stats.burst_time)
    };
    let hog = Work::Hog { chunk: MILLI };
    assert_eq!(run(limit(10_000, 100_000), 300 * MILLI, hog), (0, Nanos(0)));
    let burst = limit(10_000, 100_000).with_burst(Nanos(2 * MILLI));
    assert_eq!(run(burst, 300 * MILLI, hog), (0, Nanos(0)));
    let (run_for, sleep) = (10 * MILLI, 190 * MILLI);
    let now_and_then = Work::Periodic {
        run: run_for,
        sleep,
    };
    let smooth = limit(10_000, 100_000).with_smooth(true);
    assert_eq!(run(smooth, 0, now_and_then), (0, Nanos(0)));
    let (run_for, sleep) = (12 * MILLI, 300 * MILLI);
    let bursts = Work::Periodic {
        run: run_for,
        sleep,
    };
    let (number, time) = run(burst, 0, bursts);
    assert!(number > 0);
    assert_eq!(time, Nanos(number * 2 * MILLI));
}

/// Who watches is told of a throttle once, and not of a group that keeps within its limit.
#[test]
fn a_watch_is_told_of_a_throttle_once_each_time_it_is_set() {
    let mut machine = Machine::new(Config::new(2));
    let watch = Arc::new(ThrottleWatch::default());
    let (hungry, modest, free) = (
        machine.group("hungry", 100),
        machine.group("modest", 100),
        machine.group("free", 100),
    );
    assert!(!free.watch_throttle(&watch, 3), "it never had a limit");
    for (group, number) in [(&hungry, 1), (&modest, 2)] {
        machine.limit(group, Some(limit(10_000, 100_000)));
        assert!(group.watch_throttle(&watch, number));
    }
    machine.spawn(0, &hungry, Work::Hog { chunk: POLL });
    machine.spawn(1, &hungry, Work::Hog { chunk: POLL });
    let (run, sleep) = (MILLI, 49 * MILLI);
    machine.spawn(0, &modest, Work::Periodic { run, sleep });
    let mut told = Vec::new();
    watch.take(&mut told);
    assert_eq!(told, [], "nothing has run");
    machine.run_until(SECOND);
    watch.take(&mut told);
    assert_eq!(told, [1], "on two CPUs, in ten periods: once");
    machine.run_until(2 * SECOND);
    watch.take(&mut told);
    assert_eq!(told, [1], "not before it is set again");
    // Another number, and another watch, in place of the first.
    let other = Arc::new(ThrottleWatch::default());
    assert!(hungry.watch_throttle(&watch, 4) && hungry.watch_throttle(&other, 5));
    machine.run_until(3 * SECOND);
    watch.take(&mut told);
    other.take(&mut told);
    assert_eq!(told, [1, 5]);
}

/// Hazard: a watch that is replaced goes under the lock for which the destructor of its alarm asks.
#[test]
fn a_watch_that_is_replaced_waits_for_itself() {
    struct Again(Arc<quotient_core::Group>);
    impl Drop for Again {
        fn drop(&mut self) {
            let other = Arc::new(ThrottleWatch::default());
            self.0.watch_throttle(&other, 2);
        }
    }
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("watched", 100);
    machine.limit(&group, Some(limit(10_000, 100_000)));
    let (done, replaced) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let again = Again(group.clone());
        let watch = ThrottleWatch::with_alarm(move || {
            let _ = &again;
        });
        assert!(group.watch_throttle(&Arc::new(watch), 1));
        assert!(group.watch_throttle(&Arc::new(ThrottleWatch::default()), 3));
        done.send(()).expect("somebody waits");
    });
    let within = std::time::Duration::from_secs(60);
    replaced.recv_timeout(within).expect("it waits for itself");
}

/// Who sleeps until somebody is throttled is woken for the first of a list, and again once it was taken; an alarm that panics harms nobody.
#[test]
fn a_watch_calls_its_alarm_when_its_list_is_no_longer_empty() {
    let mut machine = Machine::new(Config::new(2));
    let calls = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = calls.clone();
    let watch = Arc::new(ThrottleWatch::with_alarm(move || {
        counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        std::panic::resume_unwind(Box::new("an alarm's panic"));
    }));
    let groups = [machine.group("one", 100), machine.group("other", 100)];
    let watch_both = || {
        for (number, group) in (1..).zip(&groups) {
            assert!(group.watch_throttle(&watch, number));
        }
    };
    for (cpu, group) in groups.iter().enumerate() {
        machine.limit(group, Some(limit(10_000, 100_000)));
        machine.spawn(cpu, group, Work::Hog { chunk: POLL });
    }
    watch_both();
    let mut told = Vec::new();
    for round in 1..4 {
        machine.run_until(round * SECOND);
        assert_eq!(
            calls.load(std::sync::atomic::Ordering::SeqCst),
            round as usize
        );
        watch.take(&mut told);
        told.sort_unstable();
        assert_eq!(std::mem::take(&mut told), [1, 2]);
        watch_both();
    }
}

/// What a limit keeps from a group was its siblings' by right: it comes back level with them, and not with a sleeper's credit, which would have
/// it run through nearly all of its quota before anybody else, in each period.
#[test]
fn a_group_that_was_throttled_comes_back_level_with_its_siblings() {
    let slice = Nanos::from_micros(250);
    let mut config = Config::new(2);
    config.base_slice = slice;
    let tree = GroupTree::new(config);
    let mut queue: RunQueue<usize> = RunQueue::new(&tree, CpuId(0));
    let paths = ["limited", "busy"];
    let groups = paths.map(|path| tree.create(&tree.root(), path).unwrap());
    let quota = limit(5_000, 100_000);
    groups[0]
        .set_limit(Some(quota), Nanos(0), &mut |_| ())
        .unwrap();
    let mut now = Nanos(0);
    for (index, group) in groups.iter().enumerate() {
        for _ in 0..2 {
            let task = TaskEntity::new(Weight::DEFAULT, None);
            queue.enqueue(group, task, index, Enqueue::New, now);
        }
    }
    let (mut turn, mut longest) = (Nanos(0), Nanos(0));
    for _ in 0..2 * SECOND / POLL {
        if tree.next_refill().is_some_and(|due| due <= now) {
            tree.refill(now, &mut |_| ());
            queue.unthrottle_pending(now);
        }
        let index = queue.pick(now).unwrap();
        now += Nanos(POLL);
        turn = if index == 0 {
            turn + Nanos(POLL)
        } else {
            Nanos(0)
        };
        longest = longest.max(turn);
        queue.put_prev_yield(index, now);
    }
    assert!(
        close(usage(&groups[0]), SECOND / 10, 2),
        "{}",
        usage(&groups[0])
    );
    assert!(longest <= slice + slice, "{longest:?} in one go");
}
