//! Limits that are set, raised, lowered, lifted and set on groups above and below while everything runs.

mod common;

use common::{MILLI, Machine, SECOND, Work, close, usage};
use quotient_core::{
    BandwidthRules, Config, CpuId, Enqueue, GroupTree, Limit, LimitError, Nanos, RatioRule,
    RunQueue, TaskEntity,
};

fn limit(quota_ms: u64, period_ms: u64) -> Limit {
    Limit::new(Nanos::from_millis(quota_ms), Nanos::from_millis(period_ms))
}

#[test]
fn usage_follows_every_change_of_the_limit() {
    let mut machine = Machine::new(Config::new(2));
    let group = machine.group("a/b", 100);
    let above = machine.tree.find("a").unwrap();
    for cpu in 0..4 {
        machine.spawn(cpu % 2, &group, Work::Hog { chunk: 100_000 });
    }
    let (mut end, mut before) = (0, 0);
    let steps = [
        (&group, Some(limit(50, 100)), 500),
        (&group, Some(limit(10, 100)), 100),
        (&group, Some(limit(10, 10)), 1_000),
        (&above, Some(limit(20, 100)), 200),
        (&group, None, 200),
        (&above, None, 2_000),
        (&group, Some(limit(150, 1_000)), 150),
    ];
    for (which, limit, expected_ms) in steps {
        machine.limit(which, limit);
        end += SECOND;
        machine.run_until(end);
        let used = usage(&group) - before;
        before += used;
        assert!(close(used, expected_ms * MILLI, 3), "{limit:?}: {used}");
        assert!(which.bandwidth_account().is_balanced());
    }
}

/// What is counted below each limit is right whichever levels are throttled as limits come and go above and below them.
#[test]
fn counts_follow_limits_that_come_and_go_at_any_level() {
    const NONE: Option<Limit> = None;
    let tight = Some(limit(1, 100));
    let wide = Some(limit(90, 100));
    let states: Vec<[Option<Limit>; 3]> = [NONE, tight, wide]
        .into_iter()
        .flat_map(|a| [NONE, tight, wide].map(|b| [a, b]))
        .flat_map(|[a, b]| [NONE, tight, wide].map(|c| [a, b, c]))
        .collect();
    let mut machine = Machine::new(Config::new(1));
    machine.check_every = 1;
    let groups = ["a", "a/b", "a/b/c"].map(|path| machine.group(path, 100));
    for group in &groups {
        machine.spawn(0, group, Work::Hog { chunk: 100_000 });
        let (run, sleep) = (100_000, 300_000);
        machine.spawn(0, group, Work::Periodic { run, sleep });
    }
    let mut throttled = 0;
    for from in &states {
        for to in &states {
            for state in [from, to] {
                for (group, limit) in groups.iter().zip(state) {
                    machine.limit(group, *limit);
                    machine.check();
                }
                machine.run_until(machine.now + 4 * MILLI);
                throttled += machine.queues[0].nr_throttled();
            }
        }
    }
    assert!(throttled > 1_000, "limits bind: {throttled}");
}

/// A limit may be lifted whose throttled group the CPU has not been told of yet: it finds out when it looks for work.
#[test]
fn a_cpu_that_was_not_told_counts_right_after_a_limit_was_lifted() {
    let tree = GroupTree::new(Config::new(1));
    let [above, group, below] = ["a", "a/b", "a/b/c"].map(|path| tree.group(path).unwrap());
    let mut nobody = |_| {};
    above
        .set_limit(Some(limit(90, 100)), Nanos(0), &mut nobody)
        .unwrap();
    group
        .set_limit(Some(limit(1, 100)), Nanos(0), &mut nobody)
        .unwrap();
    let mut queue: RunQueue<u8> = RunQueue::new(&tree, CpuId(0));
    for (handle, group) in [(1, &group), (2, &below), (3, &below)] {
        queue.enqueue(group, TaskEntity::default(), handle, Enqueue::New, Nanos(0));
    }
    let first = queue.pick(Nanos(0)).expect("all may run");
    let later = Nanos::from_millis(2);
    queue.put_prev_yield(first, later);
    assert_eq!((queue.pick(later), queue.nr_throttled()), (None, 3));
    queue.check().unwrap();
    group.set_limit(None, later, &mut nobody).unwrap();
    assert!(queue.pick(later).is_some());
    assert_eq!((queue.nr_running(), queue.nr_throttled()), (3, 0));
    queue.check().unwrap();
}

/// A shorter period is in force at once; the group does not wait for the end of the old one. But 9 of the 10 ms that it
/// has used were granted for the rest of the old period and not earned, and the new limit, which grants 1 ms in advance,
/// earns them first: from 0 to 300 ms the rates are worth 1 + 20 ms.
#[test]
fn a_shorter_period_does_not_wait_for_the_longer_one_to_end() {
    let mut machine = Machine::new(Config::new(1));
    let group = machine.group("g", 100);
    machine.limit(&group, Some(limit(10, 1_000)));
    machine.spawn(0, &group, Work::Hog { chunk: 50_000 });
    machine.run_until(100 * MILLI);
    machine.limit(&group, Some(limit(1, 10)));
    machine.run_until(300 * MILLI);
    let used = usage(&group);
    assert_eq!(used, 21 * MILLI);
}

#[test]
fn bad_limits_are_refused_and_the_old_one_stays() {
    for rules in [BandwidthRules::Default, BandwidthRules::KERNEL] {
        let machine = Machine::new(Config {
            bandwidth: rules,
            ..Config::new(2)
        });
        let group = machine.group("g", 100);
        let good = limit(50, 100);
        let set = |limit| group.set_limit(Some(limit), Nanos(0), &mut |_| ());
        set(good).unwrap();
        let out_of_range = |limit, expected: &str| match set(limit) {
            Err(LimitError::OutOfRange { field, .. }) => assert_eq!(field, expected),
            other => panic!("{limit:?}: {other:?}"),
        };
        out_of_range(
            Limit {
                quota: Nanos(999_999),
                ..good
            },
            "quota",
        );
        out_of_range(
            Limit {
                period: Nanos(999_999),
                ..good
            },
            "period",
        );
        out_of_range(
            Limit {
                period: Nanos(1_000_000_001),
                ..good
            },
            "period",
        );
        out_of_range(
            Limit {
                burst: Nanos::MAX,
                ..good
            },
            "burst",
        );
        let burst = good.with_burst(Nanos::from_millis(51));
        assert_eq!(set(burst).is_err(), rules != BandwidthRules::Default);
        assert!(
            group
                .set_limit_text("50ms 100ms", Nanos(0), &mut |_| ())
                .is_err()
        );
        if rules != BandwidthRules::Default {
            assert_eq!(group.limit(), Some(good));
        }
        let root = machine.tree.root();
        assert_eq!(
            root.set_limit(Some(good), Nanos(0), &mut |_| ()),
            Err(LimitError::Root)
        );
    }
}

/// cgroup v1 compares with the nearest limited group above and below; v2 accepts everything.
#[test]
fn ratios_are_checked_by_the_rules_of_v1_only() {
    for ratio in [RatioRule::V1, RatioRule::V2] {
        let rules = BandwidthRules::Kernel {
            ratio,
            slice_expiry: false,
        };
        let machine = Machine::new(Config {
            bandwidth: rules,
            ..Config::new(2)
        });
        let (top, leaf) = (machine.group("t", 100), machine.group("t/m/l", 100));
        let set = |group: &std::sync::Arc<quotient_core::Group>, limit| {
            group.set_limit(Some(limit), Nanos(0), &mut |_| ())
        };
        set(&top, limit(50, 100)).unwrap();
        set(&leaf, limit(5, 10)).unwrap();
        let above = set(&leaf, limit(6, 10));
        let below = set(&top, limit(50, 101));
        match ratio {
            RatioRule::V2 => assert_eq!((above, below), (Ok(()), Ok(()))),
            RatioRule::V1 => {
                assert!(
                    matches!(above, Err(LimitError::AboveParent { .. })),
                    "{above:?}"
                );
                assert!(below.unwrap_err().to_string().contains("\"t/m/l\""));
                assert_eq!(leaf.limit(), Some(limit(5, 10)));
                assert_eq!(top.limit(), Some(limit(50, 100)));
            }
        }
    }
}

/// A host that cannot keep up with the timer: by the kernel's rules the period is doubled, and stays so. By default the
/// user's limit is the user's, and one late timer refills for all the time that has passed.
#[test]
fn a_timer_that_always_comes_late_rewrites_nobodys_limit_by_default() {
    let (limit, stretched) = after_late_timers(BandwidthRules::Default);
    assert_eq!(
        (limit.quota, limit.period, stretched),
        (Nanos(MILLI), Nanos(2 * MILLI), 0)
    );
}

#[test]
fn by_the_kernels_rules_a_timer_that_always_comes_late_is_slowed_down() {
    let (slowed, stretched) = after_late_timers(BandwidthRules::KERNEL);
    assert!(slowed.period > Nanos::from_millis(2), "{slowed:?}");
    assert_eq!(slowed.ratio(), limit(1, 2).ratio());
    assert!(stretched > 0);
}

/// The limit, set as 1 ms in 2 ms, and how often it was stretched.
fn after_late_timers(rules: BandwidthRules) -> (Limit, u64) {
    let machine = Machine::new(Config {
        bandwidth: rules,
        ..Config::new(1)
    });
    let group = machine.group("g", 100);
    group
        .set_limit(Some(limit(1, 2)), Nanos(0), &mut |_| ())
        .unwrap();
    let mut queue = quotient_core::RunQueue::new(&machine.tree, quotient_core::CpuId(0));
    let entity = quotient_core::TaskEntity::default();
    queue.enqueue(&group, entity, 1, quotient_core::Enqueue::New, Nanos(0));
    let mut now = 0;
    for _ in 0..20 {
        if queue.pick(Nanos(now)).is_some() {
            now += 3 * MILLI;
            queue.put_prev_yield(1, Nanos(now));
        }
        now += 9 * MILLI;
        machine.tree.refill(Nanos(now), &mut |_| ());
    }
    assert!(group.bandwidth_account().is_balanced());
    (group.limit().unwrap(), group.bandwidth_stats().stretched)
}
